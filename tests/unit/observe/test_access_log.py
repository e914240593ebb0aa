"""The access log: a fixed list of fields, and it never blocks."""

from __future__ import annotations

import json
import os
import socket

import pytest

from velox.observe.access_log import AccessLog, AccessRecord


def record(**changes: object) -> AccessRecord:
    fields: dict[str, object] = {
        "time": "2026-01-01T00:00:00.000Z",
        "id": "vx-1",
        "caller": "",
        "method": "POST",
        "path": "/v1/chat/completions",
        "route": "chat",
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
    """R-LOG-1: a model name with a line break can't make a second line; text is cut to 256 characters."""
    reader, writer = pipe
    log = AccessLog(writer, "all", Dropped())

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
    log = AccessLog(writer, "all", Dropped())
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
    """R-LOG-1: no control character, line separator, direction mark or lone surrogate stands there as it is."""
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
    assert AccessLog(1, level, Dropped()).wants(reason) is wanted  # type: ignore[arg-type]


@pytest.mark.slow
def test_full_pipe_drops_lines_and_counts_them(pipe: tuple[int, int]) -> None:
    """F-60: nobody reads; write and flush return at once, memory stays bounded, what is lost is counted."""
    reader, writer = pipe
    dropped = Dropped()
    log = AccessLog(writer, "all", dropped)

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
    log = AccessLog(writer, "all", dropped)
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
        log = AccessLog(theirs.fileno(), "all", dropped)
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
    log = AccessLog(writer, "all", dropped)
    n = 2000
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
