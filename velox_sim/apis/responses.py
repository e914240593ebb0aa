"""The answers of /v1/responses.

Knows: the response object and the order of its events. Does not know: HTTP, pace, how a request was read.

The events, in order: created, in_progress, output_item.added, content_part.added, one output_text.delta a
token, output_text.done, content_part.done, output_item.done, and completed (incomplete when the client's
limit ended the answer). sequence_number counts them from 0. There is no [DONE] mark.
"""

from __future__ import annotations

from typing import Final

import orjson

from velox_sim.shapes import Job, Text, TokenStream

__all__ = ["ResponseWriter", "event", "response", "status_of", "usage_of"]

_N_OPENING: Final = 4  # events before the first delta
_DELTA: Final = "response.output_text.delta"


class ResponseWriter:
    """Writes responses (object response) and their event streams."""

    def __init__(self, text: Text) -> None:
        self._text: Final = text
        self._rests: Final = tuple(
            b'%b,"logprobs":[],"sequence_number":%d}\n\n' % (token, number)
            for number, token in enumerate(text.tokens_json, start=_N_OPENING)
        )

    def whole(self, job: Job) -> bytes:
        """Return the answer as one object."""
        return orjson.dumps(_finished(job, self._text.first(job.n_tokens)))

    def stream(self, job: Job) -> TokenStream:
        """Return the answer as events."""
        item_id = f"msg_{job.key}"
        started = response(job, "in_progress", [], None)
        item = {"id": item_id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        place = {"item_id": item_id, "output_index": 0, "content_index": 0}
        opening = (
            event("response.created", 0, {"response": started}),
            event("response.in_progress", 1, {"response": started}),
            event("response.output_item.added", 2, {"output_index": 0, "item": item}),
            event("response.content_part.added", 3, {**place, "part": _part("")}),
        )
        lead = b'event: %b\ndata: {"type":"%b","item_id":"%b","output_index":0,"content_index":0,"delta":' % (
            _DELTA.encode(),
            _DELTA.encode(),
            item_id.encode(),
        )
        closing = self._closing(job, place)
        return TokenStream(b"".join(opening), lead, self._rests, job.n_tokens, closing)

    def _closing(self, job: Job, place: dict[str, object]) -> bytes:
        text = self._text.first(job.n_tokens)
        number = _N_OPENING + job.n_tokens
        finished = _finished(job, text)
        closing = (
            event("response.output_text.done", number, {**place, "text": text, "logprobs": []}),
            event("response.content_part.done", number + 1, {**place, "part": _part(text)}),
            event("response.output_item.done", number + 2, {"output_index": 0, "item": _message(job, text)}),
            event(f"response.{status_of(job)}", number + 3, {"response": finished}),
        )
        return b"".join(closing)


def event(name: str, number: int, fields: dict[str, object]) -> bytes:
    """Return one event of a stream."""
    body = orjson.dumps({"type": name, **fields, "sequence_number": number})
    return b"event: %b\ndata: %b\n\n" % (name.encode(), body)


def status_of(job: Job) -> str:
    """Return how a response ended."""
    return "incomplete" if job.is_cut else "completed"


def _part(text: str) -> dict[str, object]:
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}


def _message(job: Job, text: str) -> dict[str, object]:
    return {
        "id": f"msg_{job.key}",
        "type": "message",
        "status": status_of(job),
        "role": "assistant",
        "content": [_part(text)],
    }


def _finished(job: Job, text: str) -> dict[str, object]:
    return response(job, status_of(job), [_message(job, text)], usage_of(job))


def usage_of(job: Job, n_thoughts: int = 0) -> dict[str, object]:
    """Return the token counts of an answer. n_thoughts: tokens of its reasoning, beside its own."""
    n_output = job.n_tokens + n_thoughts
    return {
        "input_tokens": job.n_prompt,
        "input_tokens_details": {"cached_tokens": job.n_cached, "cache_write_tokens": 0},
        "output_tokens": n_output,
        "output_tokens_details": {"reasoning_tokens": n_thoughts},
        "total_tokens": job.n_prompt + n_output,
    }


def response(
    job: Job, status: str, output: list[dict[str, object]], usage: dict[str, object] | None
) -> dict[str, object]:
    """Return a response as an object."""
    return {
        "id": f"resp_{job.key}",
        "object": "response",
        "created_at": job.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "max_output_tokens": job.limit,
        "metadata": {},
        "model": job.model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": usage,
        "user": None,
    }
