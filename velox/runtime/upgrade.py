"""Upgrades: how the next version of a gateway is started beside this one, and what follows. For the supervisor.

    asked by     SIGUSR2, the admin listener (velox.admin.upgrades)
    started      by the same command line, so that it has the modules that are installed now, and reads all settings
    handed over  listening sockets, shared memories, the ledger's lock (processes/handover.py)
    ready        all its workers serve, on the same sockets: from then on it is the gateway. The workers of this one
                 accept no more, and end what they have begun
    not ready    it ends, crashes, or takes too long: nothing has changed, and whoever asked is told why

Knows: the order of all that. Does not know: what is handed over, or how a worker ends what it has begun.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from velox.admin.upgrades.page import ANSWER_BYTES, UpgradeAnswer, UpgradeAnswers
from velox.runtime.processes.handover import VARIABLE, HandoverSocket, Kind, Message, State
from velox.shm.snapshot import SharedSnapshot
from velox.shm.status import GatewayStatus

__all__ = ["Taken", "Upgrade", "UpgradeError", "own_command", "start_detached"]

_MOST_TOLD: Final = 16 * 1024
_MOST_LINES: Final = 20
_STDERR: Final = 2
_NOT_STARTED: Final = 127
_TRACEBACK: Final = "Traceback (most recent call last)"


class UpgradeError(Exception):
    """The next version can't be started now. The message says why."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What the next version goes on with.

    pid, version: its own. listeners: addresses. locks: the ledger's folders. has_leases: it speaks with Redis.
    """

    pid: int
    version: str
    listeners: frozenset[str]
    locks: frozenset[str]
    has_leases: bool = False


class _Phase(enum.Enum):
    IDLE = enum.auto()
    STARTING = enum.auto()  # the next one is started, and has not said that it is ready
    ENDING = enum.auto()  # it has failed, and has not ended yet
    DONE = enum.auto()  # it is the gateway


def own_command() -> tuple[str, ...]:
    """Return the command line that this process was started by."""
    return (sys.executable, *sys.orig_argv[1:])


def start_detached(command: Sequence[str], environ: Mapping[str, str], keep: Sequence[int], stderr: int) -> int:
    """Start a program that is no child of this process; return its pid. Raises OSError.

    keep: descriptors that it has, too. stderr: its standard error, which also says why it could not be started.
    """
    read, write = os.pipe()
    try:
        between = os.fork()
        if not between:
            _become(command, environ, keep, stderr, write)
        os.waitpid(between, 0)
        os.set_blocking(read, False)
        return int(os.read(read, 32))
    finally:
        os.close(read)
        os.close(write)


def _become(command: Sequence[str], environ: Mapping[str, str], keep: Sequence[int], stderr: int, told: int) -> None:
    """Be the child, whose own child becomes the program. Never returns."""
    try:
        pid = os.fork()
        if pid:
            os.write(told, str(pid).encode())
            os._exit(0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        os.dup2(stderr, _STDERR)
        for descriptor in keep:
            os.set_inheritable(descriptor, True)
        os.execve(command[0], [*command], dict(environ))  # noqa: S606 - our own command line
    except OSError as exc:
        with contextlib.suppress(OSError):
            os.write(_STDERR, f"{command[0]} can't be started: {exc.strerror}\n".encode())
    finally:
        os._exit(_NOT_STARTED)


class Upgrade:
    """Of one supervisor.

    timeout_s: that the next version has to get ready. end_s: that one which failed has to end what it has begun. state:
    says what is handed over; raises UpgradeError. hand_over: makes this one leave: called once the next one is ready.
    failed: called once one that was not to be has ended.
    """

    def __init__(
        self,
        status: GatewayStatus,
        logger: logging.Logger,
        timeout_s: float,
        end_s: float,
        *,
        state: Callable[[], State],
        hand_over: Callable[[Taken], None],
        failed: Callable[[], None],
        command: Sequence[str],
        environ: Mapping[str, str],
        start: Callable[[Sequence[str], Mapping[str, str], Sequence[int], int], int] = start_detached,
    ) -> None:
        self.answers: Final[UpgradeAnswers] = SharedSnapshot(ANSWER_BYTES)
        self._status: Final = status
        self._logger: Final = logger
        self._timeout_s: Final = timeout_s
        self._end_s: Final = end_s
        self._state: Final = state
        self._hand_over: Final = hand_over
        self._failed: Final = failed
        self._command: Final = tuple(command)
        self._environ: Final = environ
        self._start: Final = start
        self._phase = _Phase.IDLE
        self._is_asked = False
        self._upto = 0
        self._sock: HandoverSocket | None = None
        self._errors = -1  # what the next version writes before it has the log
        self._told = b""
        self._until_s = 0.0
        self._pid = 0

    def __repr__(self) -> str:
        return f"<Upgrade {self._phase.name}>"

    @property
    def is_under_way(self) -> bool:
        """True while there is a next version that is not the gateway yet."""
        return self._phase in (_Phase.STARTING, _Phase.ENDING)

    @property
    def is_done(self) -> bool:
        """True once the next version is the gateway."""
        return self._phase is _Phase.DONE

    def ask(self) -> None:
        """Start the next version at the next turn. May be called by a signal's handler."""
        self._is_asked = True

    def look(self, now_s: float) -> bool:
        """Do what is due; True if the next version wants this gateway to stop. now_s: monotonic."""
        asked = self._status.upgrades_asked
        if self._phase is _Phase.IDLE and (self._is_asked or asked != self._upto):
            self._upto = asked
            self._begin(now_s)
        elif self._is_asked and self._phase is not _Phase.DONE:
            self._logger.warning("an upgrade is under way already")
        self._is_asked = False
        if self._phase is _Phase.STARTING:
            self._follow(now_s)
        elif self._phase is _Phase.ENDING:
            self._see_end(now_s)
        elif self._phase is _Phase.DONE:
            return self._is_told_to_stop()
        return False

    def refuse(self, why: str) -> None:
        """Answer whoever has asked that there is none now. For a gateway that stops, and in place of look()."""
        self._is_asked = False
        if self._status.upgrades_asked != self._upto:
            self._upto = self._status.upgrades_asked
            self._answer((why,))

    def give_up(self, why: str, now_s: float) -> None:
        """Go on without it, as when this gateway is to stop."""
        if self._phase is _Phase.STARTING:
            self._fail((why,), now_s)

    def tell_freed(self, block: int) -> None:
        """Say that a worker has left, and that what it had is cleaned up."""
        if self._sock is not None and self.is_done:
            self._sock.send(Message(Kind.FREED, {"block": block}))

    def tell_alone(self) -> None:
        """Say that the ledger and the lease manager have ended."""
        if self._sock is not None:
            self._sock.send(Message(Kind.ALONE, {}))

    def close(self) -> None:
        """Say no more: this gateway has ended all that it had begun."""
        if self._sock is not None:
            self._sock.close()

    # -- the steps ---------------------------------------------------------------------------------

    def _begin(self, now_s: float) -> None:
        self._told = b""
        try:
            state = self._state()
        except UpgradeError as exc:
            self._logger.error("no upgrade: %(error)s", {"error": str(exc)})
            self._answer((str(exc),))
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors, errors = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._errors, False)
        log = os.dup(_STDERR)
        environ = {**self._environ, VARIABLE: f"{theirs.fileno()}:{log}"}
        self._logger.info("upgrade: the next version is started: %(command)s", {"command": " ".join(self._command)})
        self._sock = HandoverSocket(ours)
        self._phase, self._until_s = _Phase.STARTING, now_s + self._timeout_s
        try:
            self._pid = self._start(self._command, environ, (theirs.fileno(), log), errors)
        except (OSError, ValueError) as exc:
            self._pid = 0
            why = exc.strerror if isinstance(exc, OSError) and exc.strerror else "it gave no process id"
            self._fail((f"no process could be started: {why}",), now_s)
        finally:
            theirs.close()
            os.close(errors)
            os.close(log)
        if self._phase is _Phase.STARTING and not all(self._sock.send(message) for message in state.messages()):
            self._read_errors()
            if not self._told:  # else it has ended already, and has said why
                self._fail(("nothing could be handed over to it",), now_s)

    def _follow(self, now_s: float) -> None:
        assert self._sock is not None, "it was started"
        self._read_errors()
        while (message := self._sock.receive()) is not None:
            if message.kind is Kind.FAILED:
                self._fail((str(message.fields["why"]),), now_s)
                return
            if message.kind is Kind.READY:
                self._go(message)
                return
        if self._sock.is_over:
            self._read_errors()
            self._fail(self._told_lines() or ("it ended before it was ready; the log says more",), now_s)
        elif now_s >= self._until_s:
            self._fail(
                (f"it was not ready within {self._timeout_s:g} s (VELOX_UPGRADE_TIMEOUT)", *self._told_lines()), now_s
            )

    def _go(self, message: Message) -> None:
        assert self._sock is not None, "it has sent this"
        fields = message.fields
        if not self._sock.send(Message(Kind.GO, {})):
            return  # it is gone: seen at the next turn
        self._phase = _Phase.DONE
        self._close_errors()
        version = str(fields["version"])
        self._answer((), version, tuple(fields["lost"]))
        self._logger.info(
            "upgrade: velox %(version)s (process %(next_pid)d) is the gateway now; this one ends what it has begun",
            {"version": version, "next_pid": self._pid},
        )
        listeners, locks = frozenset(fields["listeners"]), frozenset(fields["locks"])
        self._hand_over(Taken(self._pid, version, listeners, locks, has_leases=fields["leases"]))

    def _fail(self, why: tuple[str, ...], now_s: float) -> None:
        self._logger.error(
            "upgrade: the next version did not get ready, this one goes on: %(error)s", {"error": "; ".join(why)}
        )
        self._answer(why)
        self._phase, self._until_s = _Phase.ENDING, now_s + self._end_s
        self._signal(signal.SIGTERM)

    def _see_end(self, now_s: float) -> None:
        assert self._sock is not None, "it was started"
        self._read_errors()  # what it says meanwhile must not hold it up
        while self._sock.receive() is not None:
            pass
        if self._sock.is_over or not self._pid:
            self._sock.close()
            self._close_errors()
            self._phase = _Phase.IDLE
            self._failed()
        elif now_s >= self._until_s:
            self._signal(signal.SIGKILL)

    def _is_told_to_stop(self) -> bool:
        if self._sock is None or self._sock.is_over:
            return False
        message = self._sock.receive()
        return message is not None and message.kind is Kind.STOP

    # -- small things ----------------------------------------------------------------------------

    def _signal(self, number: signal.Signals) -> None:
        if self._pid and self._sock is not None and not self._sock.is_over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _read_errors(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while text := os.read(self._errors, 4096):
                self._told = (self._told + text)[-_MOST_TOLD:]

    def _told_lines(self) -> tuple[str, ...]:
        """Return what it has written before it had the log: settings that can't be used, a module that is missing.

        Of a traceback only the last line: what failed.
        """
        lines: list[str] = []
        is_traceback = False
        for line in self._told.decode("utf-8", "replace").splitlines():
            is_traceback = line.startswith(_TRACEBACK) or (is_traceback and line.startswith(" "))
            if line.strip() and not is_traceback:
                lines.append(line.rstrip())
        return tuple(lines[-_MOST_LINES:])

    def _close_errors(self) -> None:
        if self._errors >= 0:
            os.close(self._errors)
            self._errors = -1

    def _answer(self, problems: tuple[str, ...], version: str = "", lost: tuple[str, ...] = ()) -> None:
        self.answers.publish(UpgradeAnswer(self._upto, version, self._pid, problems, lost))
