"""The files that the configuration is read from: whether they are as they were when it was read.

Knows: how a file that changed is told from one that was touched, replaced by its equal, or is still being written.
Does not know: what is in one, or what a change leads to.

What is looked at is what a path leads to, so that a symbolic link that is swapped counts (Kubernetes does that with
what it mounts). First its state, by stat(2), for there may be thousands of them; where that has changed and settled
(policy/settled.py), its content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeAlias

from velox.policy.settled import Settled
from velox.settings.keys import read_key_file

__all__ = ["ConfigFiles"]

# The file system's clock may be this much behind the system's.
_CLOCK_NS: Final = 20_000_000

_State: TypeAlias = tuple[int, ...] | str


class ConfigFiles:
    """Of one gateway, in its supervisor. Nothing is looked at before follow()."""

    def __init__(self) -> None:
        # Of each path: what it was when it was read, and the digest of its content. None: not known.
        self._states: dict[str, _State | None] = {}
        self._digests: dict[str, bytes | None] = {}
        self._seen: Final[Settled[tuple[_State | None, ...]]] = Settled(())

    def __repr__(self) -> str:
        return f"<ConfigFiles {len(self._states)} {self._seen!r}>"

    def follow(self, paths: Iterable[str], since_ns: int) -> None:
        """Look at these from now on, and at no others. since_ns: when they began to be read, in the system's time.

        One that was followed before stays known as it was. Of another one that changed since then nobody can say
        which content was read: it counts as changed.
        """
        states: dict[str, _State | None] = {}
        digests: dict[str, bytes | None] = {}
        for path in sorted(set(paths)):
            if path in self._states:
                states[path], digests[path] = self._states[path], self._digests[path]
                continue
            state = _state(path)
            is_known = isinstance(state, str) or state[-1] < since_ns - _CLOCK_NS
            states[path], digests[path] = (state, _digest(path)) if is_known else (None, None)
        self._states, self._digests = states, digests
        self._seen.take(tuple(states.values()))

    def have_changed(self, now_s: float) -> bool:
        """Look if it is time; True for a change that has settled, once. now_s: monotonic."""
        if not self._states or not self._seen.is_due(now_s):
            return False
        mark = tuple(_state(path) for path in self._states)
        return self._seen.see(mark, now_s) and self.take()

    def take(self) -> bool:
        """They are read now: what is there counts as known. Return True if it is not what was known before."""
        states = {path: _state(path) for path in self._states}
        digests = {path: _digest(path) for path, state in states.items() if state != self._states[path]}
        has_changed = any(digest != self._digests[path] for path, digest in digests.items())
        self._states.update(states)
        self._digests.update(digests)
        self._seen.take(tuple(states.values()))
        return has_changed


def _state(path: str) -> _State:
    """Return what tells a file of now from what it was; the last is the later of its two times, in nanoseconds."""
    try:
        found = Path(path).stat()
    except OSError as exc:
        return exc.strerror or "gone"
    # The time of the last change of the inode can't be set back, unlike that of the content.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _digest(path: str) -> bytes:
    """Return the digest of what a file holds, or of why it can't be read."""
    try:
        content = read_key_file(path)
    except (OSError, ValueError) as exc:
        content = str(exc).encode()
    return hashlib.sha256(content).digest()
