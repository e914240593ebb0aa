"""The ways to write a request, and to leave: each with an upstream that answers what it was asked, as a vendor does."""

from __future__ import annotations

import json
from typing import Final

from tests.e2e.exam.bookkeeper import Bill
from tests.e2e.exam.paper import Answer, Case, stream

__all__ = ["CASES"]

_USAGE: Final = {
    "prompt_tokens": 1000,
    "completion_tokens": 20_000,
    "completion_tokens_details": {"reasoning_tokens": 19_990},
}


# What the vendor charges, whether the stream tells it or not.
_BILL: Final = Bill(input=1000, output=20_000, reasoning=19_990, model="exam")


def _as_asked(body: bytes) -> Answer:
    """Answer with a stream of a model that reasons; its usage is told only to who asks for it."""
    asked = json.loads(body)
    events = [{"model": "exam", "choices": [{"delta": {"content": "x"}}]} for _ in range(10)]
    used = {"model": "exam", "choices": [], "usage": _USAGE}
    told = [used] if (asked.get("stream_options") or {}).get("include_usage") else []
    return stream(*events, *told, b"data: [DONE]\n\n", bill=_BILL)


def _chat(**fields: object) -> bytes:
    return json.dumps({"model": "exam", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


CASES: Final[tuple[Case, ...]] = (
    Case("without options", _as_asked, is_stream=True, body=_chat(stream=True)),
    Case("options that are null", _as_asked, is_stream=True, body=_chat(stream=True, stream_options=None)),
    Case(
        "options that ask for none",
        _as_asked,
        is_stream=True,
        body=_chat(stream=True, stream_options={"include_usage": False}),
    ),
)
