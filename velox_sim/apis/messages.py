"""The answers of /v1/messages, in Anthropic's dialect.

Knows: their JSON, whole and in events, and the shape of errors. Does not know: HTTP, pace, how a request was read.

The events, in order: message_start with the usage of the prompt; for each block content_block_start, deltas, and
content_block_stop; message_delta with the stop reason and the whole usage; message_stop. A ping may stand anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from velox_sim.apis.message_wishes import message_wish
from velox_sim.apis.wishes import THOUGHT, THOUGHT_PIECES, Wish, signature_of
from velox_sim.request import Fields
from velox_sim.shapes import Job, RefusalError, Text, TokenStream

__all__ = ["MessageWriter", "WishedMessages", "message_error"]

_DELTA: Final = b"content_block_delta"
_PING: Final = b'event: ping\ndata: {"type": "ping"}\n\n'
_ERRORS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def message_error(refusal: RefusalError, request_id: str) -> bytes:
    """Return an error's body."""
    kind = _ERRORS.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error")
    return orjson.dumps(
        {"type": "error", "error": {"type": kind, "message": refusal.message}, "request_id": request_id}
    )


class MessageWriter:
    """Writes messages with a plain text."""

    def __init__(self, text: Text) -> None:
        self._text: Final = text
        self._rests: Final = tuple(token + b"}}\n\n" for token in text.tokens_json)

    def whole(self, job: Job) -> bytes:
        """Return the answer as one object."""
        content: list[dict[str, object]] = [{"type": "text", "text": self._text.first(job.n_tokens)}]
        return orjson.dumps(_message(job, content, _stop(job), _usage(job, Wish(), job.n_tokens)))

    def stream(self, job: Job) -> TokenStream:
        """Return the answer as events: one delta a token."""
        opening = _start(job, Wish()) + _open(0, {"type": "text", "text": ""}) + _PING
        closing = _close(0) + _end(job, Wish(), job.n_tokens)
        return TokenStream(opening, _lead(0, b'{"type":"text_delta","text":'), self._rests, job.n_tokens, closing)


class WishedMessages:
    """Writes messages with a tool's call, JSON, thinking, or cache counts."""

    def read(self, fields: Fields) -> Wish | None:
        """Return what a request asks for; None: nothing special. Raises RefusalError (400)."""
        return message_wish(fields, signature_of)

    def whole(self, job: Job, wish: Wish, pieces: Sequence[str], fields: Fields) -> bytes:
        """Return the answer as one object."""
        content: list[dict[str, object]] = []
        if wish.thinking is not None:
            content.append(_thinking(wish))
        text = "".join(pieces)
        if wish.tool is not None:
            # Arguments that the limit cut are no JSON: then there are none.
            arguments = {} if job.is_cut else orjson.loads(text)
            content.append({"type": "tool_use", "id": f"toolu_{job.key}", "name": wish.tool.name, "input": arguments})
            content += _others(job, wish)
        else:
            content.append({"type": "text", "text": text})
        return orjson.dumps(_message(job, content, _stop(job, wish), _usage(job, wish, _n_output(job, wish))))

    def stream(self, job: Job, wish: Wish, pieces: Sequence[str], fields: Fields) -> TokenStream:
        """Return the answer as events."""
        opening = _start(job, wish)
        index = 0
        if wish.thinking is not None:
            opening += _thinking_events(wish)
            index = 1
        if wish.tool is not None:
            block: dict[str, object] = {
                "type": "tool_use",
                "id": f"toolu_{job.key}",
                "name": wish.tool.name,
                "input": {},
            }
            lead = _lead(index, b'{"type":"input_json_delta","partial_json":')
            opening += _open(index, block) + _PING + lead + b'""}}\n\n'
        else:
            lead = _lead(index, b'{"type":"text_delta","text":')
            opening += _open(index, {"type": "text", "text": ""}) + _PING
        rests = tuple(orjson.dumps(piece) + b"}}\n\n" for piece in pieces)
        closing = _close(index) + b"".join(
            _call_events(n, block) for n, block in enumerate(_others(job, wish), start=index + 1)
        )
        closing += _end(job, wish, _n_output(job, wish))
        return TokenStream(opening, lead, rests, len(rests), closing)


def _thinking(wish: Wish) -> dict[str, object]:
    """Return the thinking block. Where its text is to be omitted, it is empty; the signature is valid all the same."""
    text = "" if wish.thinking == "omitted" else THOUGHT
    return {"type": "thinking", "thinking": text, "signature": signature_of(text)}


def _thinking_events(wish: Wish) -> bytes:
    block = _thinking(wish)
    deltas: list[dict[str, object]] = []
    if block["thinking"]:
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in THOUGHT_PIECES]
    deltas.append({"type": "signature_delta", "signature": block["signature"]})
    return (
        _open(0, {"type": "thinking", "thinking": "", "signature": ""})
        + b"".join(_event("content_block_delta", {"index": 0, "delta": delta}) for delta in deltas)
        + _close(0)
    )


def _others(job: Job, wish: Wish) -> list[dict[str, object]]:
    """Return the calls beside the first."""
    return [
        {"type": "tool_use", "id": f"toolu_{job.key}_{n}", "name": call.name, "input": orjson.loads(call.arguments)}
        for n, call in enumerate(wish.others)
    ]


def _call_events(index: int, block: dict[str, object]) -> bytes:
    """Return the events of a call that comes whole."""
    delta = {"type": "input_json_delta", "partial_json": orjson.dumps(block["input"]).decode()}
    return (
        _open(index, {**block, "input": {}})
        + _event("content_block_delta", {"index": index, "delta": delta})
        + _close(index)
    )


def _n_output(job: Job, wish: Wish) -> int:
    return job.n_tokens + wish.n_thoughts


def _stop(job: Job, wish: Wish | None = None) -> str:
    if job.is_cut:
        return "max_tokens"
    return "tool_use" if wish is not None and wish.tool is not None else "end_turn"


def _usage(job: Job, wish: Wish, n_output: int) -> dict[str, object]:
    """Return the token counts. What is read from the cache or written to it is not among input_tokens."""
    n_read = job.n_cached if wish.cache is not None else 0
    n_rest = job.n_prompt - n_read
    n_written = max(0, n_rest - 1) if wish.cache is not None else 0
    by_ttl = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}
    if wish.cache is not None:
        by_ttl[f"ephemeral_{wish.cache}_input_tokens"] = n_written
    usage: dict[str, object] = {
        "input_tokens": n_rest - n_written,
        "cache_creation_input_tokens": n_written,
        "cache_read_input_tokens": n_read,
        "cache_creation": by_ttl,
        "output_tokens": n_output,
        "service_tier": "standard",
    }
    if wish.thinking is not None:
        usage["output_tokens_details"] = {"thinking_tokens": wish.n_thoughts}
    return usage


def _message(
    job: Job, content: Sequence[dict[str, object]], stop_reason: str | None, usage: dict[str, object]
) -> dict[str, object]:
    return {
        "id": f"msg_{job.key}",
        "type": "message",
        "role": "assistant",
        "model": job.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage,
    }


# -- events -----------------------------------------------------------------------------------------


def _event(name: str, fields: dict[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps({"type": name, **fields}))


def _start(job: Job, wish: Wish) -> bytes:
    return _event("message_start", {"message": _message(job, [], None, _usage(job, wish, 1))})


def _open(index: int, block: dict[str, object]) -> bytes:
    return _event("content_block_start", {"index": index, "content_block": block})


def _lead(index: int, delta: bytes) -> bytes:
    return b'event: %b\ndata: {"type":"%b","index":%d,"delta":%b' % (_DELTA, _DELTA, index, delta)


def _close(index: int) -> bytes:
    return _event("content_block_stop", {"index": index})


def _end(job: Job, wish: Wish, n_output: int) -> bytes:
    usage = {name: value for name, value in _usage(job, wish, n_output).items() if name != "cache_creation"}
    usage.pop("service_tier")
    delta = {"stop_reason": _stop(job, wish), "stop_sequence": None}
    return _event("message_delta", {"delta": delta, "usage": usage}) + _event("message_stop", {})
