"""The plain values that pass between the parts of the simulator.

Knows: shapes. Does not know: JSON of any route, HTTP versions, time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from velox.types import Headers

__all__ = ["Job", "RefusalError", "Reply", "Streamed", "TokenStream", "Whole"]


@dataclass(frozen=True, slots=True)
class Job:
    """One answer to be made up.

    key: hexadecimal, unique to this answer: a reader can tell two answers apart by the ids made of it.
    created: Unix seconds. limit: the client's own, or None. n_tokens: the answer's length, limit applied.
    is_cut: the limit ended the answer before its own end.
    """

    key: str
    created: int
    model: str
    n_prompt: int
    n_tokens: int
    limit: int | None
    is_cut: bool
    include_usage: bool


@dataclass(frozen=True, slots=True)
class TokenStream:
    """The bytes of an event stream: `opening`, `lead + rest` for each of `rests[:n_tokens]`, then `closing`.

    lead: what this answer's events have in common (ids, model). rests: built once, shared by all answers.
    """

    opening: bytes
    lead: bytes
    rests: Sequence[bytes]
    n_tokens: int
    closing: bytes


@dataclass(frozen=True, slots=True)
class Whole:
    """A reply with a body of known length. n_tokens: the tokens whose time it takes; 0 is sent at once."""

    status: int
    headers: Headers
    body: bytes
    n_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Streamed:
    """A reply whose body is an event stream."""

    status: int
    headers: Headers
    events: TokenStream


Reply: TypeAlias = Whole | Streamed


class RefusalError(Exception):
    """A request that gets an error in OpenAI's shape instead of an answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status: Final = status
        self.message: Final = message
        self.kind: Final = kind
        self.param: Final = param
        self.code: Final = code
        self.headers: Final = headers
