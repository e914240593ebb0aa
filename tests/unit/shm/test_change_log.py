"""A log of changes in shared memory: what is read is what was written, or the reader is told that it lost some."""

from __future__ import annotations

import os
import random

import pytest

from velox.shm.change_log import ChangeLog, LogReader, LostChangesError


def read(reader: LogReader) -> list[tuple[int, bytes]]:
    found = []
    while (frame := reader.read()) is not None:
        found.append(frame[:2])
    return found


def test_each_reader_reads_all_in_order() -> None:
    """At its own pace, over the end of the memory too; frames that are skipped say nothing."""
    log, chosen = ChangeLog(8192), random.Random(1)
    readers = [LogReader(log, log.end) for _ in range(2)]
    seen: list[list[tuple[int, bytes]]] = [[], []]
    written = []
    for n in range(500):
        written.append((n % 256, chosen.randbytes(chosen.randrange(700))))
        log.publish(*written[-1])
        seen[0] += read(readers[0])
        if n % 5 == 0:
            seen[1] += read(readers[1])
    seen[1] += read(readers[1])
    assert seen[0] == seen[1] == written
    assert not readers[0].is_behind and readers[0].read() is None
    behind = readers[0].copy()
    log.publish(7, b"skipped")
    log.publish(8, b"read")
    assert behind.is_behind
    assert [behind.read({8}), behind.read({8})] == [
        (7, b"", log.end - len(b"read") - 5),
        (8, b"read", log.end),
    ]


def test_reader_that_is_too_slow_is_told() -> None:
    """As soon as a frame that it has not read may be gone, and not before."""
    log = ChangeLog(4096)
    reader = LogReader(log, log.end)
    for n in range(4):
        log.publish(n, bytes(1019))  # with what stands before it: 1024
    late = reader.copy()
    assert len(read(reader)) == 4
    log.publish(9, b"")
    with pytest.raises(LostChangesError):
        late.read()
    assert read(reader) == [(9, b"")]
    with pytest.raises(ValueError, match="longer than the log"):
        log.publish(0, bytes(4096))


def test_memory_is_given_back() -> None:
    """Whoever has read what is forgotten goes on; who has not has lost it."""
    log = ChangeLog(64 * 1024)
    reader = LogReader(log, log.end)
    log.publish(1, b"x" * 50_000)
    late = reader.copy()
    read(reader)
    assert log.n_bytes > 50_000
    log.forget(log.end)
    assert log.n_bytes == 0
    log.publish(2, b"next")
    assert read(reader) == [(2, b"next")]
    with pytest.raises(LostChangesError):
        late.read()


def test_frames_behind_those_that_are_forgotten_stay() -> None:
    """Wherever they are in the memory, also where the log is full and a page has the oldest and the newest frame."""
    log, chosen = ChangeLog(16 * 4096), random.Random(2)
    written: list[tuple[int, bytes, int]] = []
    begin = LogReader(log, 0)
    for n in range(3000):
        said = chosen.randbytes(chosen.randrange(4000))
        log.publish(n % 256, said)
        written.append((n % 256, said, log.end))
        while log.end - begin.position > log.n_bytes:  # the log is full: these are gone
            begin.position = written[0][2]
            del written[0]
        if n % 7 == 0:
            at = chosen.randrange(len(written))
            begin.position = written[at][2]
            log.forget(begin.position)
            del written[: at + 1]
            assert log.n_bytes == log.end - begin.position
        assert read(begin.copy()) == [frame[:2] for frame in written]


@pytest.mark.slow
def test_child_reads_while_its_parent_writes() -> None:
    """What it reads is whole and in order until it is told that it lost something; then it may begin anew."""
    log = ChangeLog(64 * 1024)
    reader = LogReader(log, log.end)
    last = 60_000
    pid = os.fork()
    if not pid:
        code, at = 1, -1
        try:
            while at < last:
                try:
                    frame = reader.read()
                except LostChangesError:
                    reader = LogReader(log, log.bounds()[1])
                    continue
                if frame is not None:
                    number, rest = int(frame.said[:8]), frame.said[8:]
                    assert number > at and frame.kind == number % 256 and rest == bytes([number % 256]) * (number % 997)
                    at = number
            code = 0
        finally:
            os._exit(code)
    ended, n = (0, 0), 0
    while not ended[0]:
        log.publish(n % 256, b"%08d" % n + bytes([n % 256]) * (n % 997))
        n += 1
        if n > last:  # it may have lost the last ones
            ended = os.waitpid(pid, os.WNOHANG)
    assert ended[1] == 0
