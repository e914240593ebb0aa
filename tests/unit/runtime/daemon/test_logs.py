"""`velox logs`: files are read over rotations, lines are chosen, and shown as text that can do a terminal no harm."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from velox.runtime.daemon.logs import LogReader, Wanted, follow, last_lines, shown


def access(**more: object) -> bytes:
    """Return a line of the access log."""
    fields: dict[str, Any] = {
        "time": "2026-01-31T12:00:00.250Z",
        "id": "vx-1",
        "caller": "app",
        "key_id": "key_1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "endpoint": "chat",
        "model": "gpt-x",
        "stream": False,
        "status": 200,
        "reason": "ok",
        "sent_status": 200,
        "phase": "stream",
        "ttfb_ms": 10.5,
        "total_ms": 250.0,
        "bytes_in": 1,
        "bytes_out": 2,
        "attempts": 1,
        "upstream": "openai",
        "input_tokens": 3,
        "output_tokens": 4,
        "field_of_a_later_version": 1,
    }
    return json.dumps({**fields, **more}).encode()


def operations(level: str = "info", message: str = "velox is ready", **more: object) -> bytes:
    """Return a line of the operations log."""
    return json.dumps({"time": "2026-01-31T12:00:01.000Z", "level": level, "message": message, **more}).encode()


def show(raw: bytes, wanted: Wanted = Wanted(), *, as_json: bool = False) -> str | None:  # noqa: B008 - it is frozen
    return shown(raw, wanted, as_json=as_json)


def test_lines_are_shown_for_a_person() -> None:
    assert show(access()) == (
        "12:00:00 200 POST /v1/chat/completions gpt-x app at openai 250.0 ms (first byte 10.5 ms) 3+4 tokens"
    )
    assert show(operations("error", "worker 0 died", traceback="a\nb")) == "12:00:01 error   worker 0 died\na\nb"
    assert show(access(), as_json=True) == access().decode()


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        (Wanted(), "good failed slow ready died"),
        (Wanted(errors=True), "failed died"),
        (Wanted(slow_ms=1000), "slow"),
        (Wanted(key="app"), "good failed slow"),
        (Wanted(key="key_1"), "good failed slow"),
        (Wanted(key="other"), ""),
        (Wanted(model="gpt-x"), "good failed"),
        (Wanted(errors=True, model="gpt-x"), "failed"),
    ],
)
def test_lines_are_chosen(wanted: Wanted, taken: str) -> None:
    lines = {
        "good": access(),
        "failed": access(status=502, reason="upstream_connect"),
        "slow": access(total_ms=1000.0, model="other"),
        "ready": operations(),
        "died": operations("error", "worker 0 died"),
    }
    assert [name for name, raw in lines.items() if show(raw, wanted) is not None] == taken.split()


def test_what_is_no_line_of_ours_is_shown_only_where_all_is() -> None:
    """A traceback of Python, a line of text, half a line: printable, and nothing breaks."""
    for raw in (b"Segmentation fault", b'{"time":', b"[1]", b"\xff\x1b[2J", b'{"level": 1}', access(total_ms="x")):
        assert show(raw) is not None and "\x1b" not in str(show(raw)), raw
        assert show(raw, Wanted(slow_ms=1.0)) is None, raw
    assert show(operations(message="\x1b[2J\u202e")) == "12:00:01 info    ?[2J?"


def test_reader_follows_renames_and_cuts(tmp_path: Path) -> None:
    """Nothing is lost or told twice; a line that is written in two parts is one."""
    path = tmp_path / "log"
    reader = LogReader(str(path))
    assert list(reader.lines()) == []
    path.write_bytes(b"1\n2\nhal")
    assert list(reader.lines()) == [b"1", b"2"]
    with path.open("ab", buffering=0) as file:
        file.write(b"f\n")
        assert list(reader.lines()) == [b"half"]
        path.rename(tmp_path / "log.1")
        file.write(b"late\n")
    path.write_bytes(b"new\n")
    assert list(reader.lines()) == [b"late", b"new"]
    os.truncate(path, 0)
    assert list(reader.lines()) == []
    with path.open("ab", buffering=0) as file:
        file.write(b"after\n")
    assert list(reader.lines()) == [b"after"]
    path.unlink()
    assert list(reader.lines()) == []
    path.write_bytes(b"anew\n")
    assert list(reader.lines()) == [b"anew"]
    reader.close()


def test_last_lines_of_two_files_are_in_the_order_of_their_times(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"".join(operations(message=f"a{n}", time=f"2026-01-01T00:00:0{n}Z") + b"\n" for n in (1, 3, 5)))
    two.write_bytes(b"".join(operations(message=f"b{n}", time=f"2026-01-01T00:00:0{n}Z") + b"\n" for n in (2, 4)))
    readers = [LogReader(str(one)), LogReader(str(two))]
    found = last_lines(readers, 3, show)
    assert [line.split()[-1] for line in found] == ["a3", "b4", "a5"]
    assert last_lines(readers, 0, show) == []
    for reader in readers:
        reader.close()


def test_follow_writes_what_comes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    reader = LogReader(str(path))
    written: list[str] = []

    def pause(_seconds: float) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        if written:
            path.rename(tmp_path / "old")
        path.write_bytes(operations() + b"\n")

    with pytest.raises(KeyboardInterrupt):
        follow([reader], show, written.append, pause)
    assert written == ["12:00:01 info    velox is ready"] * 2
    reader.close()
