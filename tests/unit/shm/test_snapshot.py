"""The snapshot between supervisor and workers: whole texts only, each read once by each."""

from __future__ import annotations

import os

from velox.shm.snapshot import SharedSnapshot


def test_text_is_news_to_each_worker_once_and_never_to_its_author() -> None:
    """A worker that is forked later begins with what was there: it inherits that itself."""
    snapshot: SharedSnapshot[bytes] = SharedSnapshot(1100)
    snapshot.publish(b"first")
    assert snapshot.read_new() is None

    def worker() -> tuple[bytes | None, bytes | None, bytes | None]:
        before = snapshot.read_new()
        os.write(ready_write, b"x")
        os.read(go_read, 1)
        return before, snapshot.read_new(), snapshot.read_new()

    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if worker() == (None, b"second", None) else 1)
    os.read(ready_read, 1)
    snapshot.publish(b"second")
    os.write(go_write, b"x")
    _, status = os.waitpid(pid, 0)
    for descriptor in (ready_read, ready_write, go_read, go_write):
        os.close(descriptor)
    assert os.waitstatus_to_exitcode(status) == 0


def test_shorter_text_after_a_longer_one_is_whole() -> None:
    """Nothing of the one before is left."""
    snapshot: SharedSnapshot[bytes] = SharedSnapshot(1100)
    pid_read, pid_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(pid_read, 1)
        os._exit(0 if snapshot.read_new() == b"b" else 1)
    snapshot.publish(b"a" * 1000)
    snapshot.publish(b"b")
    os.write(pid_write, b"x")
    _, status = os.waitpid(pid, 0)
    os.close(pid_read)
    os.close(pid_write)
    assert os.waitstatus_to_exitcode(status) == 0


def test_text_that_is_just_being_written_is_not_read() -> None:
    """The number says that there is one, the digest that it is not whole yet."""
    snapshot: SharedSnapshot[bytes] = SharedSnapshot(1100)
    pid_read, pid_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(pid_read, 1)
        torn = snapshot.read_new()
        os._exit(0 if torn is None else 1)
    snapshot.publish(b"whole")
    snapshot._memory[snapshot._memory.find(b"whole")] ^= 1  # what a reader sees that comes in the middle
    os.write(pid_write, b"x")
    _, status = os.waitpid(pid, 0)
    os.close(pid_read)
    os.close(pid_write)
    assert os.waitstatus_to_exitcode(status) == 0
