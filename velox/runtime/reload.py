"""Reloads: when the configuration is read again, how it is read, and what follows. For the supervisor.

    asked by     SIGHUP, a file that changed, the admin listener (velox.admin.reload)
    read         once its files look the same twice, in a process of its own, with a time limit: 10,000 routes take
                 seconds. What changed while it was read is read again
    good         what can change while workers run goes to all of them (configuration.py); later workers start with it
    bad          nothing changes, every problem is logged. So is a configuration that lost much (settings/losses.py),
                 unless the caller forces it

Knows: the order of all that. Does not know: what is in a configuration, or how a worker changes.

A file is what its path leads to, so that a swapped symbolic link counts (Kubernetes does that with mounted files).
stat(2) is checked first, for there may be thousands of files; where it changed and settled (policy/settled.py), the
content is compared.

The result of a reading holds keys of upstreams: it comes back through a memfd, which is in no file system.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec import structs

from velox.admin.reload import READING_S, ReloadAnswer, ReloadAnswers
from velox.observe.oplog import crash_text, operations_logger
from velox.policy.settled import Settled
from velox.runtime.configuration import MAX_BYTES, ConfigPieces, ConfigSnapshot, assembled, packed, pieces, unpacked
from velox.runtime.file_state import FileState, file_state
from velox.runtime.keys.credentials import CLOCK_NS, KeyWatch
from velox.runtime.processes.listeners import Listeners
from velox.settings import Settings, SettingsError
from velox.settings.callers.keys import read_key_file
from velox.settings.checks.advice import advice
from velox.settings.checks.contradictions import uncounted
from velox.settings.live import changes, taken
from velox.settings.losses import losses
from velox.settings.routing.upstreams import files_of, files_of_bad, share_problems
from velox.settings.yaml.tree import NO_END, FileEnd
from velox.shm.status import GatewayStatus
from velox.shm.upstream_table import TableFullError
from velox.types import KeyEntry

__all__ = ["ConfigFiles", "ConfigSource", "Reload", "ReloadResult", "ResultFile", "read"]

# A file that was not written to for so long is whole.
_STILL_S: Final = 0.2


class ConfigFiles:
    """Of one gateway, in its supervisor. Nothing is looked at before follow()."""

    def __init__(self) -> None:
        # Of each path: what it was when it was read, and the digest of its content. None: not known.
        self._states: dict[str, FileState | None] = {}
        self._digests: dict[str, bytes | None] = {}
        self._seen: Final[Settled[tuple[FileState | None, ...]]] = Settled(())
        # What was there when a caller asked, and since when it is.
        self._restless: tuple[FileState, ...] = ()
        self._restless_s = 0.0

    def __repr__(self) -> str:
        return f"<ConfigFiles {len(self._states)} {self._seen!r}>"

    def follow(self, paths: Iterable[str], since_ns: int) -> None:
        """Watch these from now on, and no others. since_ns: when they began to be read, in the system's time.

        A file that was followed before keeps its known state. For another one that changed since then it is unknown
        which content was read: it counts as changed.
        """
        states: dict[str, FileState | None] = {}
        digests: dict[str, bytes | None] = {}
        for path in sorted(set(paths)):
            if path in self._states:
                states[path], digests[path] = self._states[path], self._digests[path]
                continue
            state = file_state(path)
            is_known = isinstance(state, str) or state[-1] < since_ns - CLOCK_NS
            states[path], digests[path] = (state, _digest(path)) if is_known else (None, None)
        self._states, self._digests = states, digests
        self._seen.take(tuple(states.values()))

    def have_changed(self, now_s: float) -> bool:
        """Look if it is time; True for a change that has settled, once. now_s: monotonic."""
        if not self._states or not self._seen.is_due(now_s):
            return False
        mark = tuple(file_state(path) for path in self._states)
        return self._seen.see(mark, now_s) and self.take()

    def are_still(self, now_s: float) -> bool:
        """Return True if nobody writes to them: they are as they were last read, or a moment ago. now_s: monotonic."""
        mark = tuple(file_state(path) for path in self._states)
        if mark == tuple(self._states.values()):
            return True
        if mark != self._restless:
            self._restless, self._restless_s = mark, now_s
            return False
        return now_s - self._restless_s >= _STILL_S

    def differ(self) -> bool:
        """Return True if they are not what they were at the last take()."""
        return any(
            file_state(path) != state and _digest(path) != self._digests[path] for path, state in self._states.items()
        )

    def take(self) -> bool:
        """They are read now: what is there counts as known. Return True if it is not what was known before."""
        states = {path: file_state(path) for path in self._states}
        digests = {path: _digest(path) for path, state in states.items() if state != self._states[path]}
        has_changed = any(digest != self._digests[path] for path, digest in digests.items())
        self._states.update(states)
        self._digests.update(digests)
        self._seen.take(tuple(states.values()))
        return has_changed


def _digest(path: str) -> bytes:
    """Return the digest of what a file holds, or of why it can't be read."""
    try:
        content = read_key_file(path)
    except (OSError, ValueError) as exc:
        content = str(exc).encode()
    return hashlib.sha256(content).digest()


# It takes what workers leave of the processors, and goes first where memory is short.
_NICENESS: Final = 5
_FIRST_TO_GO: Final = "1000"


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """Where the settings come from.

    load: reads them, as at the start; raises SettingsError. began_ns: when that was, in the system's time.
    """

    load: Callable[[], Settings]
    began_ns: int


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The result of a reading. parts: of the live settings, if any of them has changed. keys: all clients' keys.

    changes, summary, restart: as in settings/live.py. problems: why it can't be used. files: where upstreams' keys are.
    end: of the file.
    """

    files: frozenset[str]
    parts: ConfigPieces | None = None
    keys: tuple[KeyEntry, ...] = ()
    changes: tuple[str, ...] = ()
    summary: str = ""
    restart: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    end: FileEnd = NO_END


class ResultFile:
    """Where a reading leaves its result for the supervisor. One for a gateway's life."""

    def __init__(self) -> None:
        self._fd: Final = os.memfd_create("velox-reading", os.MFD_CLOEXEC)

    def write(self, result: ReloadResult) -> None:
        """Replace the result."""
        with open(self._fd, "wb", closefd=False) as file:
            file.seek(0)
            file.truncate()
            file.write(packed(result))

    def take(self) -> ReloadResult:
        """Return the result, and clear the file. For a reading that has ended well."""
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(0)
            result: ReloadResult = unpacked(file.read())
        self.clear()
        return result

    def clear(self) -> None:
        """Leave nothing: the result holds keys."""
        os.ftruncate(self._fd, 0)


def read(source: ConfigSource, running: Settings, used: Collection[str], file: ResultFile, *, is_forced: bool) -> int:
    """Read the settings, compare them with those that run, write the result; return the exit code.

    used, is_forced: as for result_of.
    """
    os.nice(_NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
    try:
        file.write(result_of(source.load, running, used, is_forced=is_forced))
    except Exception as exc:
        operations_logger(sys.stderr).error("reading the configuration: %s", crash_text(exc))
        return 1
    return 0


def result_of(
    load: Callable[[], Settings], running: Settings, used: Collection[str], *, is_forced: bool
) -> ReloadResult:
    """Read the settings, and hold them against those that run.

    used: the upstreams that had requests. is_forced: a configuration that lost much is taken, too.
    """
    try:
        settings = load()
    except SettingsError as exc:
        # What is bad may be one of those that run: a certificate without its key, which comes next.
        files = files_of(running.upstreams)
        if running.prices is not None:
            files |= {running.prices}
        if running.config_file is not None:
            files |= files_of_bad(running.config_file)
        return ReloadResult(files, problems=tuple(map(str, exc.problems)))
    files = files_of(settings.upstreams)
    lost = tuple(str(loss) for loss in losses(running, settings, used) if loss.is_final or not is_forced)
    if lost:
        return ReloadResult(files, problems=lost)
    differs = changes(running, settings)
    after = taken(running, settings)
    # The file may be right for as many workers as it names, and with its keys and records: a reload changes none of it.
    unfit = [str(problem) for problem in share_problems(after.upstreams, after.workers)]
    unfit += [f"{each}; a reload does not change that, a restart does" for each in uncounted(structs.asdict(after))]
    if unfit:
        return ReloadResult(files, problems=tuple(unfit))
    parts = pieces(after) if differs.live else None
    if parts is not None and parts.n_bytes > MAX_BYTES:
        problem = f"upstreams and routes take {parts.n_bytes} bytes; expected at most {MAX_BYTES}"
        return ReloadResult(files, problems=(problem,))
    return ReloadResult(
        *(files, parts, after.api_keys, differs.live, differs.summary, differs.restart),
        end=settings.file_end,
    )


# So often a configuration is read whose files change meanwhile; then it is refused.
_MOST_RESTLESS: Final = 5
# What goes by until a reading is tried again for which there was no process.
_AGAIN_S: Final = 5.0
# Of a file with more problems, the next reading shows the rest.
_MOST_LOGGED: Final = 20


class Reload:
    """Of one gateway. settings: those that hold now.

    enroll: gives each member of a configuration its place in the memory that all workers share, before they see it.
    used: names of the upstreams that had requests.
    """

    def __init__(
        self,
        settings: Settings,
        source: ConfigSource,
        status: GatewayStatus,
        keys: KeyWatch,
        logger: logging.Logger,
        *,
        enroll: Callable[[Settings], None],
        used: Callable[[], Collection[str]],
    ) -> None:
        self.settings = settings
        self.snapshot: Final = ConfigSnapshot()
        self.answers: Final = ReloadAnswers()
        self._source: Final = source
        self._status: Final = status
        self._keys: Final = keys
        self._logger: Final = logger
        self._enroll: Final = enroll
        self._used: Final = used
        self._result: Final = ResultFile()
        self._files: Final = ConfigFiles()
        self._follow(files_of(settings.upstreams), source.began_ns)
        self._is_asked = False
        self._is_forced = False
        self._n_restless = 0  # readings in a row during which a file changed
        self._pid = 0  # 0: nothing is read
        self._again_at_s = math.inf  # inf: the last one had its process
        self._began_ns = 0
        self._give_up_s = 0.0
        self._gave_up = False
        self._answers_upto = 0
        self._asked_before = 0  # what it was before the reading
        # What the configuration that holds has changed, and when it was taken; none and 0: it is that of the start.
        self._changes: tuple[str, ...] = ()
        self._taken_s = 0.0
        status.configuration = self.snapshot.number

    def __repr__(self) -> str:
        return f"<Reload {self.snapshot.number} {'reading' if self._pid else 'idle'}>"

    def ask(self) -> None:
        """Read everything again at the next turn. May be called by a signal's handler."""
        self._is_asked = True

    def is_due(self, now_s: float) -> bool:
        """Return True when a reading is to be started: then started() is called. For each turn. now_s: monotonic."""
        if self._pid:
            if now_s >= self._give_up_s:
                self._gave_up = True
                os.kill(self._pid, signal.SIGKILL)  # reaped() follows
            return False
        if now_s >= self._again_at_s:
            self._is_asked = True
        asked = self._status.reloads_asked
        if not self._files.have_changed(now_s):
            is_wanted = self._is_asked or asked != self._answers_upto
            if not is_wanted or not self._files.are_still(now_s):
                return False
        self._is_forced = self._answers_upto < self._status.reloads_forced <= asked
        self._asked_before = self._answers_upto
        # All of this before it reads: what comes from now on is news for the next one.
        self._is_asked, self._answers_upto, self._began_ns = False, asked, time.time_ns()
        self._files.take()
        return True

    def run(self, listeners: Listeners) -> int:
        """Read, in a process of its own."""
        listeners.close_all()
        return read(self._source, self.settings, self._used(), self._result, is_forced=self._is_forced)

    def started(self, pid: int, now_s: float) -> None:
        """Note its process. pid: 0: there could be none; who asked is told, and it is tried again by and by."""
        self._pid, self._give_up_s, self._gave_up = pid, now_s + READING_S, False
        self._again_at_s = math.inf if pid else now_s + _AGAIN_S
        if not pid:
            self._refuse((f"no process could be started to read it; it is tried again in {_AGAIN_S:g} s",))

    def reaped(self, pid: int, how: str, now_s: float, *, ended_well: bool) -> bool:
        """Take what the process has result that was reaped; False if it was another one's."""
        if not pid or pid != self._pid:
            return False
        self._pid = 0
        if ended_well and self._files.differ():
            self._result.clear()
            self._read_again()
        elif ended_well:
            self._n_restless = 0
            result = self._result.take()
            self._follow(result.files, self._began_ns)
            self._judge(result, now_s)
        else:
            self._result.clear()
            more = f" within {READING_S:g} s" if self._gave_up else ""
            self._refuse((f"it could not be read{more} ({how})",))
        return True

    def _read_again(self) -> None:
        """A file changed while it was read: what was found may be a part of it."""
        self._n_restless += 1
        if self._n_restless < _MOST_RESTLESS:
            self._is_asked, self._answers_upto = True, self._asked_before
            return
        self._n_restless = 0
        self._refuse((f"its files changed each of the {_MOST_RESTLESS} times that they were read",))

    def stop(self) -> None:
        """Read no more: the gateway leaves."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self._pid = 0

    def _follow(self, files: frozenset[str], since_ns: int) -> None:
        config_file = self.settings.config_file
        self._files.follow(files if config_file is None else {config_file, *files}, since_ns)

    # -- what was result -----------------------------------------------------------------------------

    def _judge(self, result: ReloadResult, now_s: float) -> None:
        if result.problems:
            self._refuse(result.problems)
            return
        before = frozenset(advice(self.settings))
        if result.parts is not None:
            settings = structs.replace(assembled(result.parts, self.settings), api_keys=result.keys)
            try:
                self._enroll(settings)
            except TableFullError as exc:
                self._refuse((f"there is no room for its upstreams yet: {exc}",))
                return
            self.settings = settings
            self._keys.replace_fixed(result.keys)
            self.snapshot.publish(result.parts)
            self._changes, self._taken_s = result.changes, now_s
        self.settings = structs.replace(self.settings, file_end=result.end)
        self._status.configuration = self.snapshot.number
        self._status.configuration_is_bad = False
        self._status.count_reload(taken=True)
        age_s = now_s - self._taken_s if self._changes else 0.0
        self._answer(ReloadAnswer(self._answers_upto, self.snapshot.number, self._changes, result.restart, age_s=age_s))
        what = result.summary or "nothing has changed"
        more = f"; needs a restart: {', '.join(result.restart)}" if result.restart else ""
        self._logger.info(
            "configuration %(configuration)d is in use: %(changes)s%(more)s",
            {"configuration": self.snapshot.number, "changes": what, "more": more},
        )
        for line in advice(self.settings):
            if line not in before:
                self._logger.warning("%s", line)

    def _refuse(self, problems: tuple[str, ...]) -> None:
        self._status.configuration_is_bad = True
        self._status.count_reload(taken=False)
        self._answer(ReloadAnswer(self._answers_upto, self.snapshot.number, problems=problems))
        n = len(problems)
        more = f", here the first {_MOST_LOGGED}" if n > _MOST_LOGGED else ""
        self._logger.error(
            "the configuration can't be used, number %(configuration)d stays in use: %(problems)d problem%(more)s",
            {"configuration": self.snapshot.number, "problems": n, "more": f"{'s' * (n > 1)}{more}"},
        )
        for problem in problems[:_MOST_LOGGED]:
            self._logger.error("%s", problem)

    def _answer(self, answer: ReloadAnswer) -> None:
        self.answers.publish(answer)
