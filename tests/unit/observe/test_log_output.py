"""Where logs are written: at once or not at all, whatever a descriptor is, and no line is torn."""

from __future__ import annotations

import os
import pty
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from velox.observe.log_output import ATOMIC_BYTES, LogOutput, LogStream, own_descriptor

LINE = b"x" * 99 + b"\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe as a log driver hands it over: it blocks."""
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader), os.close(writer)


def test_descriptor_of_a_pipe_does_not_block_and_the_one_of_others_does(pipe: tuple[int, int]) -> None:
    """They share no open file, so what is set for one holds for it alone."""
    own = own_descriptor(pipe[1])
    assert not os.get_blocking(own) and os.get_blocking(pipe[1])
    assert LogOutput(own).write(LINE)
    os.close(own)
    assert os.read(pipe[0], 1000) == LINE


def test_descriptor_of_a_file_appends(tmp_path: Path) -> None:
    """Standard output and standard error may be one file: neither writes over what the other one wrote."""
    path = tmp_path / "log"
    shared = os.open(path, os.O_WRONLY | os.O_CREAT)
    first, second = own_descriptor(shared), own_descriptor(shared)
    assert LogOutput(first).write(b"1\n") and LogOutput(second).write(b"2\n") and LogOutput(first).write(b"3\n")
    os.close(shared), os.close(first), os.close(second)
    assert path.read_bytes() == b"1\n2\n3\n"


def test_file_of_a_script_keeps_what_was_said_when_the_script_says_more(tmp_path: Path) -> None:
    """As in `{ echo begin; velox serve; echo done; } > log`: the shell's own descriptor has not moved by our lines."""
    path = tmp_path / "log"
    shared = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(shared, b"begin\n")
    own = own_descriptor(shared)
    assert LogOutput(own).write(LINE)
    os.close(own)
    os.write(shared, b"done\n")
    os.close(shared)
    assert path.read_bytes() == b"begin\n" + LINE + b"done\n"


def test_descriptor_of_a_terminal_does_not_block() -> None:
    """Ctrl-S at it stops the log and nothing else."""
    ours, theirs = pty.openpty()
    own = own_descriptor(theirs)
    assert not os.get_blocking(own) and os.get_blocking(theirs)
    assert LogOutput(own).write(b"said\n")
    os.close(own)
    assert os.read(ours, 1000) == b"said\r\n"
    os.close(ours), os.close(theirs)


def test_pipe_that_blocks_and_is_full_is_not_waited_for(pipe: tuple[int, int]) -> None:
    """One of another user, which can't be opened anew."""
    output = LogOutput(pipe[1])
    batch = LINE * (ATOMIC_BYTES // len(LINE))
    n = 0
    while output.write(batch):
        n += 1
    assert n and os.get_blocking(pipe[1])
    got = b""
    while len(got) < n * len(batch):
        got += os.read(pipe[0], 65536)
    assert got == n * batch and output.write(LINE)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET], ids=str)
def test_socket_that_is_full_is_not_waited_for(kind: int) -> None:
    """It can't be opened anew, and to let it not block would change it for all who have it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    with ours, theirs:
        own = own_descriptor(theirs.fileno())
        output = LogOutput(own)
        n = 0
        while output.write(LINE):
            n += 1
        assert n and theirs.getblocking()
        assert ours.recv(len(LINE)) == LINE
        os.close(own)


def test_line_that_was_begun_is_ended_before_another_one_begins(pipe: tuple[int, int]) -> None:
    """More than a pipe takes in one piece, as a network's socket may do with any line."""
    own = own_descriptor(pipe[1])
    output = LogOutput(own)
    long = b"l" * 200_000 + b"\n"
    assert output.write(long), "taken, and its begin is written"
    assert not output.write(LINE)
    got = b""
    while len(got) < len(long):
        got += os.read(pipe[0], 65536)
        output.write()
    assert output.write(LINE)
    os.close(own)
    assert got + os.read(pipe[0], 1000) == long + LINE


def test_line_that_was_begun_on_a_full_disk_is_ended_when_there_is_room(pipe: tuple[int, int]) -> None:
    """A disk that fills up takes a part of a line, then nothing. Here a pipe is it, until it is full."""
    own, full = own_descriptor(pipe[1]), os.open("/dev/full", os.O_WRONLY)
    output = LogOutput(own)
    long = b"l" * 100_000 + b"\n"
    assert output.write(long)
    os.dup2(full, own)
    with pytest.raises(OSError, match="No space"):
        output.write(LINE)
    got = os.read(pipe[0], 100_000)
    os.dup2(pipe[1], own)
    assert output.write(LINE)
    os.close(own), os.close(full)
    assert got + os.read(pipe[0], 100_000) == long + LINE


def test_reader_that_is_gone_is_an_error() -> None:
    """Nobody will ever read: there is nothing to keep."""
    reader, writer = os.pipe()
    os.close(reader)
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        for descriptor in (writer, theirs.fileno()):
            with pytest.raises(BrokenPipeError):
                LogOutput(descriptor).write(LINE)
    os.close(writer)


# -- as a text stream -----------------------------------------------------------------------------------------


def test_stream_drops_lines_that_nobody_reads_and_counts_them(pipe: tuple[int, int]) -> None:
    """F-60: the process goes on; when the reader comes back, so do the lines."""
    dropped: list[int] = []
    with LogStream(own_descriptor(pipe[1])) as stream:
        stream.on_dropped = dropped.append
        for number in range(2000):
            stream.write(f"{number:>99}\n")
        got = os.read(pipe[0], 1_000_000).decode().splitlines()
        assert dropped == [1] * (2000 - len(got)) and got == [f"{number:>99}" for number in range(len(got))]
        print("h\u00e9", "\ud800", file=stream)
        assert os.read(pipe[0], 1000) == b"h\xc3\xa9 \\ud800\n"


def test_stream_on_a_full_disk_fails_no_write() -> None:
    """F-60: what it could not write is counted."""
    dropped: list[int] = []
    with LogStream(os.open("/dev/full", os.O_WRONLY)) as stream:
        stream.on_dropped = dropped.append
        stream.write("one\n")
        stream.writelines(["two\n", "three\nfour\n"])
        stream.flush()
    assert dropped == [1, 1, 2]
