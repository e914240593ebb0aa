"""What a lane (lanes.py) is asked, and the answer that needs no upstream.

Knows: these values. Does not know: the dialects, which only members with lanes need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from velox.gateway.apart import Apart
from velox.heads import Headers, RequestHead
from velox.policy.routes import HeaderRules
from velox.protocol.token_usage import TokenUsage
from velox.types import AnswerKeeper, BodyFields, Surface

__all__ = ["COUNTED_BY", "COUNTS", "AnsweredHereError", "Asked", "InBackgroundError"]

# The API whose requests each counts.
COUNTED_BY: Final = {
    Surface.COUNT_MESSAGES: Surface.MESSAGES,
    Surface.COUNT_RESPONSES: Surface.RESPONSES,
    Surface.COUNT_GENERATE: Surface.GENERATE,
}
COUNTS: Final = frozenset(COUNTED_BY)


class AnsweredHereError(Exception):
    """No upstream is asked: this is the answer, of status 200. own: fields of Velox's own, beside the others."""

    def __init__(self, headers: Headers, body: bytes, own: Headers) -> None:
        super().__init__("answered here")
        self.headers: Final = headers
        self.own: Final = own
        self.body: Final = body


class InBackgroundError(AnsweredHereError):
    """The answer is to be made in the background, and its client is told so now."""

    def __init__(self) -> None:
        super().__init__([], b"", [])


class Asked(NamedTuple):
    """One request, as far as its lane depends on it.

    model: the one to ask for; None: none is named. rules: of its route, for the fields that go up. id, now_s: as in
    form.Call. strict: a field that would be dropped is refused. has_limits: Velox tells its own limits with the reply.
    to_be_read: Velox reads the reply, which must not be compressed then. on_bug, on_tokens: as in TranslatedReply.
    on_translated: called with the client's API, the upstream's, and how many fields were left out. on_lost: called with
    both for each thing that the answer loses, in whichever thread that is found. apart: for what is large of an answer.
    keeper: as in form.Call.
    """

    surface: Surface
    head: RequestHead
    fields: BodyFields
    body: bytes | bytearray | None
    model: str | None
    rules: HeaderRules
    id: str
    now_s: int
    strict: bool
    has_limits: bool
    to_be_read: bool
    on_bug: Callable[[Exception], None]
    on_tokens: Callable[[TokenUsage], None] | None
    on_translated: Callable[[Surface, Surface, int], None]
    on_lost: Callable[[Surface, Surface], None]
    apart: Apart
    keeper: AnswerKeeper | None = None
