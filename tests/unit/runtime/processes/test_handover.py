"""What is handed over comes out as it went in: messages with descriptors, memories, modules."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from velox.runtime.processes.handover import HandoverError, HandoverSocket, Kind, Message, State
from velox.runtime.processes.memories import HandedMemory, Memories
from velox.shm.budget_table import BudgetMemory
from velox.shm.quota_table import QuotaMemory


def pair() -> tuple[HandoverSocket, HandoverSocket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return HandoverSocket(ours), HandoverSocket(theirs)


def received(sock: HandoverSocket) -> list[Message]:
    found = []
    while (message := sock.receive()) is not None:
        found.append(message)
    return found


def test_state_comes_out_as_it_went_in() -> None:
    """With more descriptors than a message may have; each leads to the same file."""
    ours, theirs = pair()
    fds = [os.memfd_create(f"test-{n}") for n in range(450)]
    state = State(
        version="1",
        workers=2,
        blocks=4,
        busy=(0, 3),
        listeners={"clients 127.0.0.1:80": tuple(fds[:440]), "admin unix:/x": (fds[440],)},
        memories=(HandedMemory("quotas", 1, (2, 3), b"key", fds[441]),),
        locks={"/ledger": fds[442]},
        anchor=fds[443],
    )
    assert all(ours.send(message) for message in state.messages())
    found = received(theirs)
    descriptors = [fd for message in found for fd in message.descriptors]
    came = State.of(found[0].fields, descriptors)
    assert (came.version, came.workers, came.blocks, came.busy) == ("1", 2, 4, (0, 3))
    assert [os.fstat(fd).st_ino for fd in descriptors] == [os.fstat(fd).st_ino for fd in fds[:444]]
    assert came.memories[0][:4] == state.memories[0][:4]
    assert [*came.listeners] == [*state.listeners] and came.anchor == descriptors[-1]
    for fd in (*fds, *descriptors):
        os.close(fd)
    ours.close()
    theirs.close()


def test_another_form_is_refused() -> None:
    """It is said which version hands over how."""
    with pytest.raises(HandoverError, match=r"velox 9. .* form 99"):
        State.of({"protocol": 99, "version": "9"}, ())


def test_end_of_the_other_side_is_seen() -> None:
    """After what it has said before."""
    ours, theirs = pair()
    assert ours.send(Message(Kind.GO, {})) and theirs.receive(0.0) == Message(Kind.GO, {})
    assert theirs.receive() is None and not theirs.is_over
    ours.close()
    assert theirs.receive() is None and theirs.is_over and not theirs.send(Message(Kind.STOP, {}))
    theirs.close()


def test_memory_of_the_same_layout_and_shape_is_the_same_memory() -> None:
    """What one version writes the other one reads; of another layout, shape or key it is a new one, and lost."""
    before = Memories()
    place = before.place("table", 1, (4, 2))
    memory = place.make("table", 4096)
    memory[0] = 7
    (handed,) = before.all
    for layout, shape, key, is_kept in (
        (1, (4, 2), b"", True),
        (2, (4, 2), b"", False),
        (1, (4, 3), b"", False),
        (1, (4, 2), b"other", False),
    ):
        after = Memories([handed._replace(descriptor=os.dup(handed.descriptor))])
        found = after.place("table", layout, shape, key=key)
        assert found.make("table", 4096)[0] == (7 if is_kept else 0)
        assert (found.is_kept, after.lost) == (is_kept, [] if is_kept else ["table"])
        assert (found.key == place.key) is is_kept
        after.settle()


def test_limits_and_budgets_are_copied_to_other_blocks() -> None:
    """With another number of workers: the state of each bucket, and what was spent in the open window."""
    quotas = QuotaMemory(64, 2)
    quotas.tag(5).store(99)
    quotas.tat(5).store(1234)
    more = QuotaMemory(64, 6, key=quotas.key)
    more.take(quotas)
    assert (more.tag(5).load(), more.tat(5).load(), more.tag(6).load()) == (99, 1234, 0)

    budgets = BudgetMemory(256, 2)
    row = budgets.claim(7)
    assert row is not None
    wider = BudgetMemory(256, 6, key=budgets.key)
    wider.take(budgets)
    assert wider.find(7) == row


def test_modules_are_loaded_from_where_those_of_now_are(tmp_path: Path) -> None:
    """Also when a symbolic link on the way leads to another version by then."""
    for name in ("one", "two"):
        package = tmp_path / name / "package"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "late.py").write_text(f"NAME = {name!r}")
    link = tmp_path / "current"
    link.symlink_to(tmp_path / "one")
    code = """if True:
        import os, sys
        from velox.runtime.processes.process import keep_modules
        sys.path.insert(0, sys.argv[1])
        import package
        keep_modules()
        os.unlink(sys.argv[1])
        os.symlink("two", sys.argv[1])
        from package.late import NAME
        print(NAME)
        """
    done = subprocess.run([sys.executable, "-c", code, str(link)], capture_output=True, text=True, check=True)
    assert done.stdout == "one\n"
