"""What a translation can't carry over: dropped and said, or refused. And the errors of dialects' code.

    Refuse what changes an answer's meaning; drop what tunes it. Where the route is strict, every drop is a refusal.

Knows: how a loss is told. Does not know: which field of which dialect is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from velox.dialects.canonical.model import ApiError
from velox.protocol.reply_body import BrokenReplyError

__all__ = [
    "SEARCHES",
    "BadRequestError",
    "BrokenReplyError",
    "Losses",
    "ReplyError",
    "UnknownPreviousError",
    "lost_media",
]


# What a tool of the provider's own did, in an answer.
SEARCHES: Final = "answer.tools.hosted"


class BadRequestError(Exception):
    """A client's request that can't be read, or can't be said in the model's dialect: a 400.

    param: the path of the field, as its client would write it: "messages[2].content[0].text"; "" for the whole body.
    message: for the client: what is wrong with it and what to do, without its value. details: JSON, for clients of
    Messages: what their SDK knows how to go on from; b"" for none.
    """

    def __init__(self, message: str, param: str = "", details: bytes = b"") -> None:
        super().__init__(message)
        self.message: Final = message
        self.param: Final = param
        self.details: Final = details


class UnknownPreviousError(BadRequestError):
    """A `previous_response_id` whose answer is not known: clients then send the whole conversation.

    OpenAI's code for it is `previous_response_not_found` (maximhq/bifrost#2441).
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, "previous_response_id")


class ReplyError(Exception):
    """An upstream's error in place of an answer, with a status of 2xx."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error: Final = error


def lost_media(kind: str) -> str:
    """Return the name of a lost part of an answer (form.Lost). kind: as media types begin: "image", "audio"."""
    return f"answer.{kind}" if kind in ("image", "audio", "video") else "answer.file"


class Losses:
    """The losses of one request or attempt. strict: a drop is a refusal. on_lost: called for each of an answer."""

    __slots__ = ("_dropped", "_on_lost", "_strict")

    def __init__(self, *, strict: bool = False, on_lost: Callable[[], None] | None = None) -> None:
        self._strict: Final = strict
        self._on_lost: Final = on_lost
        self._dropped: Final[dict[str, None]] = {}

    def __repr__(self) -> str:
        return f"<Losses {' '.join(self._dropped)}>"

    def drop(self, field: str, param: str = "", *, problem: str = "") -> None:
        """Leave a field out, or change its value. field: its name, from a closed list, for the header and a counter.

        problem: for the client of a strict route: what its value may be; by default: there is nothing like the field.
        Raises BadRequestError where the route is strict.
        """
        if self._strict:
            message = f"{problem}, and the route is strict"
            if not problem:
                message = (
                    f"{field} has no counterpart at the upstream of this model, and the route is strict; leave it out"
                )
            raise BadRequestError(message, param or field)
        self._dropped[field] = None

    def lose(self, field: str) -> None:
        """Note that an answer loses something; it is made, so no route refuses it. field: as in form.Lost."""
        if field not in self._dropped:
            self._dropped[field] = None
            if self._on_lost is not None:
                self._on_lost()

    @property
    def dropped(self) -> tuple[str, ...]:
        """Return the fields that were left out, each once, in their order."""
        return tuple(self._dropped)
