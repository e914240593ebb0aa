"""Faults that a request asks for by the name of its model: an error, a stream that is cut, one that fails inside.

    gpt-sim-error-529    the status 529, in the shape of the route's dialect
    claude-sim-cut-3     a stream without an end after 3 tokens; a plain answer is reset
    gemini-sim-fail-0    an error as the first event of a stream, or after so many tokens; a plain answer is a 500

Knows: these names, and the errors in streams of each dialect. Does not know: HTTP, routes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

import orjson

from velox_sim.apis.generate import generate_error
from velox_sim.apis.messages import message_error
from velox_sim.shapes import RefusalError, TokenStream

__all__ = ["AskedFault", "Dialect", "asked_fault"]

_NAME: Final = re.compile(r"sim-(error|cut|fail)-(\d{1,6})")
_MESSAGE: Final = "The model's name asks for this error (simulated)."
_RETRY_AFTER: Final = ((b"retry-after", b"1"),)
_LEAST_ERROR: Final = 400
_MOST_ERROR: Final = 599

# "chat" (completions, too), "responses", "messages", "generate".
Dialect = str


@dataclass(frozen=True, slots=True)
class AskedFault:
    """kind: "error", "cut", "fail". n: the status, or the tokens before."""

    kind: str
    n: int

    def refusal(self) -> RefusalError:
        """Return the error."""
        status = self.n if self.kind == "error" and _LEAST_ERROR <= self.n <= _MOST_ERROR else 500
        kind = "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "server_error"
        headers = _RETRY_AFTER if status in (429, 503, 529) else ()
        return RefusalError(status, _MESSAGE, kind=kind, headers=headers)

    def applied(self, events: TokenStream, dialect: Dialect) -> TokenStream:
        """Return a stream that is cut or fails."""
        n_tokens = min(self.n, events.n_tokens)
        last = b"" if self.kind == "cut" else _event(self.refusal(), dialect)
        if n_tokens:
            return replace(events, n_tokens=n_tokens, closing=last)
        return TokenStream(b"", b"", (last or events.opening or b": cut\n\n",), 1, b"")


def asked_fault(model: str) -> AskedFault | None:
    """Return the fault that the name of a model asks for."""
    found = _NAME.search(model) if "sim-" in model else None
    return None if found is None else AskedFault(found[1], int(found[2]))


def _event(refusal: RefusalError, dialect: Dialect) -> bytes:
    if dialect == "messages":
        return b"event: error\ndata: %b\n\n" % message_error(refusal, "req_simulated")
    if dialect == "generate":
        return b"data: %b\r\n\r\n" % generate_error(refusal)
    if dialect == "responses":
        fields = {"type": "error", "code": refusal.kind, "message": refusal.message, "param": None}
        return b"event: error\ndata: %b\n\n" % orjson.dumps({**fields, "sequence_number": 0})
    return b"data: %b\n\n" % orjson.dumps({"error": {"message": refusal.message, "type": refusal.kind, "code": None}})
