"""A call of the API, its answer, and why it is refused: as values.

Knows: what handlers are given, and how an error is written. Does not know: paths (routes.py), or what a call does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from velox.admin.message import Reply
from velox.admin.roles import Role

__all__ = ["Answer", "ApiCall", "ApiError", "Asker", "error_reply", "json_reply"]

_JSON: Final = "application/json"
_MOST_NUMBER: Final = 2**53


class ApiError(Exception):
    """A call that is refused; nothing of it was done. code: for programs. field: of the query or the body, "" for none.

    The message never shows what was given, but for a name of what there is none of.
    """

    def __init__(
        self, status: int, code: str, message: str, field: str = "", headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(message)
        self.status: Final = status
        self.code: Final = code
        self.message: Final = message
        self.field: Final = field
        self.headers: Final = headers


class Asker(NamedTuple):
    """Who asks. name: as the audit has it. key, team: of one whose role is OWN: what is its own; "" for none.

    key_name: as records have it. manages: it changes keys of its team.
    """

    role: Role
    name: str
    key: str = ""
    key_name: str = ""
    team: str = ""
    manages: bool = False


@dataclass(frozen=True, slots=True)
class ApiCall:
    """What a handler is given. ids: the parts of the path that differ. query: each parameter once. body: an object.

    is_private: a secret may be shown.
    """

    asker: Asker
    ids: tuple[str, ...] = ()
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    is_private: bool = False

    def number(self, name: str, default: int, most: int) -> int:
        """Return a whole number of the query, from 1. Raises ApiError."""
        text = self.query.get(name)
        if text is None:
            return default
        if (
            not text.isascii()
            or not text.isdecimal()
            or len(text) > len(str(_MOST_NUMBER))
            or not 1 <= int(text) <= most
        ):
            raise ApiError(400, "invalid", f"{name}: expected a whole number from 1 to {most}", name)
        return int(text)


class Answer(NamedTuple):
    """What a call has come to, as JSON."""

    status: int
    body: Mapping[str, Any] | Sequence[Any] | int


def json_reply(status: int, body: object, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    """Return a reply of JSON."""
    return Reply(status, orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE), _JSON, headers)


def error_reply(error: ApiError) -> Reply:
    """Return the reply of a call that is refused."""
    told = {"code": error.code, "message": error.message, "field": error.field or None}
    return json_reply(error.status, {"error": told}, error.headers)
