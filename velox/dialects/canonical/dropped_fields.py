"""What a translation can't carry over: a field is dropped and named, or the request is refused.

    Refuse what changes an answer's meaning; drop what tunes it. Where the route is strict, every drop is a refusal.

Knows: how a dropped field is reported. Does not know: which field of which dialect is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from velox.dialects.canonical.errors import BadRequestError

__all__ = ["SEARCHES", "DroppedFields", "lost_media"]

# What a tool of the provider's own did, in an answer.
SEARCHES: Final = "answer.tools.hosted"


def lost_media(kind: str) -> str:
    """Return the name of a lost part of an answer (model.Lost). kind: as media types begin: "image", "audio"."""
    return f"answer.{kind}" if kind in ("image", "audio", "video") else "answer.file"


class DroppedFields:
    """The fields of one request that were left out, and what its answer has lost.

    strict: a drop is a refusal. on_lost: called for each thing that the answer loses.
    """

    __slots__ = ("_names", "_on_lost", "is_strict")

    def __init__(self, *, strict: bool = False, on_lost: Callable[[], None] | None = None) -> None:
        self.is_strict: Final = strict
        self._on_lost: Final = on_lost
        self._names: Final[dict[str, None]] = {}

    def __repr__(self) -> str:
        return f"<DroppedFields {' '.join(self._names)}>"

    def drop(self, field: str, param: str = "", *, problem: str = "") -> None:
        """Leave a field out, or change its value. field: its name, from a closed list, for the header and a counter.

        problem: for the client of a strict route: what its value may be; by default: there is nothing like the field.
        Raises BadRequestError where the route is strict.
        """
        if self.is_strict:
            message = f"{problem}, and the route is strict"
            if not problem:
                message = (
                    f"{field} has no counterpart at the upstream of this model, and the route is strict; leave it out"
                )
            raise BadRequestError(message, param or field)
        self._names[field] = None

    def lose(self, field: str) -> None:
        """Note that an answer loses something; it is made, so no route refuses it. field: as in model.Lost."""
        if field not in self._names:
            self._names[field] = None
            if self._on_lost is not None:
                self._on_lost()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the fields that were left out, each once, in their order."""
        return tuple(self._names)
