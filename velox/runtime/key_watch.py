"""The keys of the gateway: looked after by the supervisor, taken over by each worker.

Knows: when the file of keys has changed, and that one which can't be used changes nothing. Does not know: how a key is
written, or who asks for one.

The content counts, not the file's time: a file that is replaced, one that is written over, and a symbolic link that is
swapped (Kubernetes does that with secrets) are all seen, once they have settled (policy/settled.py).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import astuple
from typing import Final

import orjson

from velox.policy.settled import Settled
from velox.settings import Settings
from velox.settings.keys import merged, parse_key_file, read_key_file
from velox.settings.problems import Problem
from velox.shm.board import Board
from velox.shm.status import GatewayStatus
from velox.types import KeyEntry, Priority, Rates

__all__ = ["KeyWatch"]

_BOARD_BYTES: Final = 16 * 2**20  # more than settings/keys.py lets through


class KeyWatch:
    """Of one gateway; a worker has the copy that it was forked with.

    keys: those that hold, as far as this process knows.
    """

    def __init__(self, settings: Settings, status: GatewayStatus, logger: logging.Logger) -> None:
        self.keys = settings.api_keys
        self._board: Final = Board(_BOARD_BYTES)
        self._path: Final = settings.api_keys_file
        self._status: Final = status
        self._logger: Final = logger
        self._content: Final = Settled(b"")  # by its hash; what the settings were read from is looked at once more
        status.n_keys = len(self.keys)

    def __repr__(self) -> str:
        return f"<KeyWatch {self._path} keys={len(self.keys)}>"

    def look(self, now_s: float) -> None:
        """Look at the file if it is time. For the supervisor, four times a second. now_s: monotonic."""
        if self._path is None or not self._content.is_due(now_s):
            return
        content, why = _read(self._path)
        mark = hashlib.sha256(content if why is None else why.encode()).digest()
        if self._content.see(mark, now_s):
            self._content.take(mark)
            self._judge(self._path, content, why)

    def replace_fixed(self, entries: Iterable[KeyEntry]) -> None:
        """Let these take the place of the keys that are not of the file. Of `entries`, those of the file don't count.

        For the supervisor, when the configuration has changed.
        """
        of_file = (key for key in self.keys if key.in_file)
        keys, _ = merged((*(key for key in entries if not key.in_file), *of_file))
        if keys != self.keys:
            self._publish(keys)

    def take_over(self) -> bool:
        """Take the keys that the supervisor has found since the last time; False when there are none. For a worker."""
        text = self._board.news()
        if text is None:
            return False
        self.keys = tuple(_entry(*fields) for fields in orjson.loads(text))
        return True

    def _judge(self, path: str, content: bytes, why: str | None) -> None:
        problems: list[Problem] = []
        keys: tuple[KeyEntry, ...] = ()
        if why is None:
            found, problems = parse_key_file(content, path)
            keys, doubtful = merged((*(key for key in self.keys if not key.in_file), *found))
            problems = problems or doubtful
            why = str(problems[0]) if problems else None
        if why is None:
            self._take(keys)
            return
        self._status.key_file_is_bad = True
        self._status.count_key_file(taken=False)
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        self._logger.error("VELOX_API_KEYS_FILE can't be used, the keys stay as they were: %s%s", why, more)

    def _take(self, keys: tuple[KeyEntry, ...]) -> None:
        was_bad, self._status.key_file_is_bad = self._status.key_file_is_bad, False
        before, now = ({key.digest for key in self.keys}, {key.digest for key in keys})
        if keys == self.keys:
            if was_bad:
                self._logger.info("VELOX_API_KEYS_FILE can be used again, and holds the same keys")
            return
        self._publish(keys)
        self._status.count_key_file(taken=True)
        self._logger.info(
            "VELOX_API_KEYS_FILE changed: %d keys more, %d fewer; clients must present one of %d",
            *(len(now - before), len(before - now), len(keys)),
        )

    def _publish(self, keys: tuple[KeyEntry, ...]) -> None:
        self.keys = keys
        self._board.publish(orjson.dumps([_fields(key) for key in keys]))
        self._status.n_keys = len(keys)


def _fields(key: KeyEntry) -> tuple[object, ...]:
    return key.digest.hex(), key.name, key.models, astuple(key.rates), key.priority


def _entry(digits: str, name: str, models: list[str], rates: list[int], priority: int | None) -> KeyEntry:
    highest = None if priority is None else Priority(priority)
    return KeyEntry(bytes.fromhex(digits), name, tuple(models), Rates(*rates), highest)


def _read(path: str) -> tuple[bytes, str | None]:
    """Return the file's content, or why it has none."""
    try:
        return read_key_file(path), None
    except OSError as exc:
        return b"", f"it can't be read ({exc.strerror})"
    except ValueError as exc:
        return b"", str(exc)
