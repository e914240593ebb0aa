"""The access log: a fixed list of fields, and it never blocks."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from velox.observe.access_log import AccessLog, AccessRecord, AccessRules
from velox.observe.access_text import text_line
from velox.observe.log_output import open_log


def record(**changes: object) -> AccessRecord:
    fields: dict[str, object] = {
        "time": "2026-01-01T00:00:00.000Z",
        "id": "vx-1",
        "caller": "",
        "method": "POST",
        "path": "/v1/chat/completions",
        "endpoint": "chat",
        "model": "m",
        "stream": True,
        "status": 200,
        "reason": "ok",
        "phase": "stream",
        "ttfb_ms": 1.0,
        "total_ms": 2.0,
        "bytes_in": 3,
        "bytes_out": 4,
        "attempts": 1,
    }
    return AccessRecord(**(fields | changes))  # type: ignore[arg-type]


class Dropped:
    def __init__(self) -> None:
        self.n = 0

    def __call__(self, n: int) -> None:
        self.n += n


@pytest.fixture
def pipe() -> tuple[int, int]:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    return reader, writer


def test_line_is_one_json_object_with_controls_escaped(pipe: tuple[int, int]) -> None:
    """A model name with a line break can't make a second line; text is cut to 256 characters."""
    reader, writer = pipe
    log = AccessLog(writer, AccessRules("all"), Dropped())

    log.write(record(model='evil"\n{"level":"x"', path="/" + "a" * 1000))
    log.flush()

    lines = os.read(reader, 65536).splitlines()
    os.close(reader), os.close(writer)
    assert len(lines) == 1
    fields = json.loads(lines[0])
    assert fields["model"] == 'evil"\n{"level":"x"'
    assert len(fields["path"]) == 256
    assert set(fields) == set(AccessRecord.__slots__)


def written(record: AccessRecord) -> bytes:
    """Log one record; return what the descriptor got."""
    reader, writer = os.pipe2(os.O_NONBLOCK)
    log = AccessLog(writer, AccessRules("all"), Dropped())
    log.write(record)
    log.flush()
    got = os.read(reader, 65536)
    os.close(reader), os.close(writer)
    return got


@pytest.mark.parametrize(
    "text",
    [
        "\x00\x1b[31m\x7f",
        "\u0085\u2028\u2029",
        "\u202eexe.txt",
        "\ud800",
        "h\u00e9",
        "\U0001f30d",
        '"}\n{"status":200}',
    ],
    ids=ascii,
)
def test_line_is_printable_ascii_whatever_a_text_holds(text: str) -> None:
    """No control character, line separator, direction mark or lone surrogate stands there as it is."""
    line = written(record(model=text, path=text))

    assert line.endswith(b"\n") and line[:-1].decode("ascii").isprintable()
    assert json.loads(line)["model"] == text


def test_line_fits_a_pipe_whatever_its_texts_need() -> None:
    """A line over PIPE_BUF would mix with another worker's: 12 bytes for each character make the texts shorter."""
    astral = "\U0001f30d" * 300

    line = written(record(model=astral, path=astral, caller=astral, session=astral))

    fields = json.loads(line)
    assert len(line) <= 4096
    assert astral.startswith(fields["model"]) and len(fields["model"]) >= 40
    assert len(json.loads(written(record(model=astral)))["model"]) == 256, "where there is room, it is used"


@pytest.mark.parametrize(
    ("level", "reason", "wanted"),
    [("off", "internal", False), ("errors", "ok", False), ("errors", "internal", True), ("all", "ok", True)],
)
def test_level_decides_what_is_logged(level: str, reason: str, wanted: bool) -> None:
    """VELOX_ACCESS_LOG: off, errors, all."""
    assert AccessLog(1, AccessRules(level), Dropped()).wants(reason) is wanted  # type: ignore[arg-type]


@pytest.mark.slow
def test_full_pipe_drops_lines_and_counts_them(pipe: tuple[int, int]) -> None:
    """F-60: nobody reads; write and flush return at once, memory stays bounded, what is lost is counted."""
    reader, writer = pipe
    dropped = Dropped()
    log = AccessLog(writer, AccessRules("all"), dropped)

    for _ in range(10_000):
        log.write(record())
    log.flush()

    buffered = sum(len(line) for line in log._lines)
    os.close(reader), os.close(writer)
    assert buffered <= 1024 * 1024 + 4096
    assert dropped.n > 0


def test_lines_that_are_left_at_the_end_are_counted(pipe: tuple[int, int]) -> None:
    """A worker that is replaced while its reader is slow loses what it has kept for it, but not unseen."""
    reader, writer = pipe
    dropped = Dropped()
    log = AccessLog(writer, AccessRules("all"), dropped)
    for _ in range(1000):
        log.write(record())
    assert not log.flush() and dropped.n == 0

    log.close()

    n_lines = 0
    while dropped.n + n_lines < 1000:
        n_lines += os.read(reader, 65536).count(b"\n")
    assert dropped.n > 0 and dropped.n + n_lines == 1000
    log.close()
    assert dropped.n + n_lines == 1000 and log.flush()
    os.close(reader), os.close(writer)


def test_socket_that_nobody_reads_takes_lines_until_it_is_full() -> None:
    """F-60: systemd's journal is one. The socket itself goes on blocking: others may have it too."""
    ours, theirs = socket.socketpair()
    dropped = Dropped()
    with ours, theirs:
        log = AccessLog(theirs.fileno(), AccessRules("all"), dropped)
        for number in range(5000):
            log.write(record(id=f"vx-{number}"))
        assert dropped.n > 0 and theirs.getblocking()
        ours.settimeout(0)
        got = b""
        while log._lines:
            got += ours.recv(65536)
            log.flush()
        while got.count(b"\n") < 5000 - dropped.n:
            got += ours.recv(65536)

    ids = [json.loads(line)["id"] for line in got.splitlines()]
    assert ids == [f"vx-{number}" for number in range(5000 - dropped.n)]


def test_lines_stay_whole_when_a_pipe_fills_up(pipe: tuple[int, int]) -> None:
    """Several workers share a pipe: what is written at once is whole lines of at most PIPE_BUF bytes."""
    reader, writer = pipe
    dropped = Dropped()
    log = AccessLog(writer, AccessRules("all"), dropped)
    n = 1500
    for number in range(n):
        log.write(record(id=f"vx-{number}"))
    log.flush()
    got = b""
    for _ in range(1000):
        try:
            got += os.read(reader, 65536)
        except BlockingIOError:
            log.flush()
            if not log._lines:
                break

    try:
        got += os.read(reader, 65536)
    except BlockingIOError:
        pass
    os.close(reader), os.close(writer)
    ids = [json.loads(line)["id"] for line in got.splitlines()]
    assert ids == [f"vx-{number}" for number in range(n)]
    assert dropped.n == 0


def test_of_what_ended_well_only_slow_ones_and_a_share_are_logged() -> None:
    """VELOX_ACCESS_LOG_SLOW, VELOX_ACCESS_LOG_SAMPLE: errors are always there, whatever these say."""
    drawn = iter([0.24, 0.25, 0.0])
    log = AccessLog(1, AccessRules("all", slow_ns=5, share=0.25), Dropped(), random=lambda: next(drawn))

    assert [log.wants("ok", 4), log.wants("ok", 5), log.wants("ok", 6), log.wants("ok", 9)] == [
        False,
        True,
        False,
        True,
    ]
    assert log.wants("internal", 0)
    log.rules = AccessRules("errors", slow_ns=5, share=0.25)
    assert not log.wants("ok", 9) and log.wants("internal", 0)
    log.rules = AccessRules("off")
    assert not log.wants("internal", 9)


def test_log_goes_on_in_a_file_that_was_opened_anew(tmp_path: Path) -> None:
    """No line is lost, torn or written twice, whichever file it is in."""
    path = tmp_path / "access.log"
    dropped, first = Dropped(), open_log(str(path))
    log = AccessLog(first, AccessRules("all"), dropped)
    log.write(record(id="vx-1"))
    path.rename(tmp_path / "access.log.1")
    second = open_log(str(path))
    log.move_to(second)
    os.close(first)
    log.write(record(id="vx-2"))
    log.flush()
    os.close(second)

    found = [
        [json.loads(line)["id"] for line in (tmp_path / name).read_text().splitlines()]
        for name in ("access.log.1", "access.log")
    ]
    assert found == [["vx-1"], ["vx-2"]] and dropped.n == 0
    assert stat.S_IMODE(path.stat().st_mode) & 0o007 == 0, "others may not read who asked what"


def test_part_of_a_line_that_its_reader_never_takes_is_counted_when_the_log_moves() -> None:
    """What is left whole goes to the new descriptor."""
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    reader, writer = os.pipe2(os.O_NONBLOCK)
    dropped = Dropped()
    with ours, theirs:
        log = AccessLog(theirs.fileno(), AccessRules("all"), dropped)
        for number in range(200):
            log.write(record(id=f"vx-{number}"))
        assert not log.flush()
        log.move_to(writer)
    got = b""
    while not log.flush():
        got += os.read(reader, 65536)
    got += os.read(reader, 65536)
    os.close(reader), os.close(writer)

    assert dropped.n <= 1
    assert [json.loads(line)["id"] for line in got.splitlines()][-1] == "vx-199"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "00:00:00 200 POST /v1/chat/completions m 2.0 ms (first byte 1.0 ms)"),
        (
            {"sent_status": 200, "status": 502, "reason": "upstream_reset", "caller": "app", "upstream": "one",
             "total_ms": 1234.5, "input_tokens": 5, "output_tokens": None, "cost_usd": 0.00012},
            "00:00:00 200 upstream_reset POST /v1/chat/completions m app at one 1.23 s (first byte 1.0 ms) 5+0 tokens"
            " $0.000120",
        ),
        ({"model": "a b\n\u202e\x1b\x7f", "method": "", "path": "", "ttfb_ms": None},
         "00:00:00 200 a\\u0020b\\n\\u202e\\u001b\\u007f 2.0 ms"),
    ],
)  # fmt: skip
def test_line_for_a_person_is_printable_ascii(changes: dict[str, object], line: str) -> None:
    """What a client wrote is one word, and moves no cursor."""
    assert text_line(record(**changes), 256) == line.encode() + b"\n"
    assert len(text_line(record(model="x" * 1000), 40)) < 140
