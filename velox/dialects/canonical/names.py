"""Names and ids that a dialect does not take: what they are called there, and how they are restored.

The same name is always mapped to the same one, so that a conversation's calls and results fit each other over all of
its requests, and caches see the same bytes.

Knows: how a name is made to fit, or unique. Does not know: what any dialect takes.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

__all__ = ["FittedNames", "UniqueIds", "short_key"]

_OTHER: Final = re.compile(r"[^a-zA-Z0-9_-]")
_MOST_KEY: Final = 64
_N_DIGITS: Final = 10  # of a hash: 40 bits among the tools or calls of one request


def short_key(key: str) -> str:
    """Return who asks, or which cache, as OpenAI takes it: in up to 64 characters. Claude Code's user ids have more."""
    if len(key) <= _MOST_KEY:
        return key
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class FittedNames(msgspec.Struct):
    """The names of one request, or its ids.

    allowed: what fits, by fullmatch. Every run of ASCII letters, digits, "_" and "-" that begins with a letter or "_"
    must. most: characters, at least 12. originals: those that were mapped: theirs -> the client's.
    """

    allowed: re.Pattern[str]
    most: int
    originals: dict[str, str] = {}

    def fit(self, name: str) -> str:
        """Return the name as the dialect takes it."""
        if len(name) <= self.most and (
            (name.isascii() and name.isidentifier()) or self.allowed.fullmatch(name) is not None
        ):
            return name
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_N_DIGITS]
        stem = _OTHER.sub("_", name[: self.most])
        if not stem[:1].isalpha():
            stem = "t" + stem
        fitted = f"{stem[: self.most - _N_DIGITS - 1]}_{digest}"
        self.originals[fitted] = name
        return fitted


class UniqueIds:
    """The ids of calls in one conversation, of which some servers give the same ones in each turn ("call_0").

    An id that was there before gets a number. The same conversation always has the same ids, also when it goes on.
    """

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times: Final[dict[str, int]] = {}  # how often each was there, or the number that it got last

    def unique(self, given: str) -> str:
        """Return the id of the next call."""
        times = self._times
        n = times.get(given)
        if n is None:
            times[given] = 1
            return given
        while True:
            n += 1
            found = f"{given}_{n}"
            if found not in times:
                break
        times[given], times[found] = n, 1
        return found
