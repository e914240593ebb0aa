"""Chat completions that are more than one plain text: tool calls, JSON, several answers, log probabilities, reasoning.

Knows: their JSON, whole and in chunks. Does not know: HTTP, pace, how a wish was read. Beside chat.py, which writes the
usual answers at less cost.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from velox_sim.apis.chat import ENDS, FINGERPRINT, chat_lead, last_events, usage
from velox_sim.apis.wishes import THOUGHT, THOUGHT_PIECES, Wish, chat_wish, token_logprobs
from velox_sim.request import Fields
from velox_sim.shapes import Job, TokenStream

__all__ = ["WishedChat"]


class WishedChat:
    """Writes such chat completions."""

    def read(self, fields: Fields) -> Wish | None:
        """Return what a request asks for; None: nothing special. Raises RefusalError (400)."""
        return chat_wish(fields)

    def whole(self, job: Job, wish: Wish, pieces: Sequence[str], fields: Fields) -> bytes:
        """Return the answer as one object. pieces: the tokens of each choice."""
        return orjson.dumps(_whole(job, wish, pieces))

    def stream(self, job: Job, wish: Wish, pieces: Sequence[str], fields: Fields) -> TokenStream:
        """Return the answer in chunks, those of the choices in turn."""
        return _stream(job, wish, pieces)


def _whole(job: Job, wish: Wish, pieces: Sequence[str]) -> dict[str, object]:
    text = "".join(pieces)
    message: dict[str, object] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    if wish.tool is not None:
        message["content"] = None
    if wish.thinking is not None:
        message["reasoning_content"] = THOUGHT
    choices = []
    for index in range(wish.n):
        calls = {} if wish.tool is None else {"tool_calls": [_call(job, wish, index, text), *_others(job, wish, index)]}
        choices.append(
            {
                "index": index,
                "message": {**message, **calls},
                "logprobs": _logprobs(wish, pieces),
                "finish_reason": _finish(job, wish),
            }
        )
    return {
        "id": f"chatcmpl-{job.key}",
        "object": "chat.completion",
        "created": job.created,
        "model": job.model,
        "choices": choices,
        "usage": usage(job, wish.n_thoughts),
        "service_tier": "default",
        "system_fingerprint": FINGERPRINT,
    }


def _stream(job: Job, wish: Wish, pieces: Sequence[str]) -> TokenStream:
    lead, end = chat_lead(job), ENDS[job.include_usage]
    choices = range(wish.n)
    role: dict[str, object] = {"role": "assistant", "content": "" if wish.tool is None else None, "refusal": None}
    opening = []
    for index in choices:
        begun = role if wish.tool is None else {**role, "tool_calls": [{"index": 0, **_call(job, wish, index, "")}]}
        if wish.thinking is not None:
            opening += [_chunk(index, {"role": "assistant", "content": None, "reasoning_content": ""})]
            opening += [_chunk(index, {"reasoning_content": piece}) for piece in THOUGHT_PIECES]
            begun = {name: value for name, value in begun.items() if name != "role"}
        opening.append(_chunk(index, begun))
    rests = tuple(
        _chunk(index, _delta(wish, piece), _logprobs(wish, [piece])) + end for piece in pieces for index in choices
    )
    closing = [
        _chunk(index, {"tool_calls": [{"index": n, **call}]})
        for index in choices
        for n, call in enumerate(_others(job, wish, index), start=1)
    ]
    closing += [_chunk(index, {}, None, _finish(job, wish)) for index in choices]
    return TokenStream(
        b"".join(lead + chunk + end for chunk in opening),
        lead,
        rests,
        len(rests),
        b"".join(lead + chunk + end for chunk in closing) + last_events(lead, job, wish.n_thoughts),
    )


def _delta(wish: Wish, piece: str) -> dict[str, object]:
    if wish.tool is None:
        return {"content": piece}
    return {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}


def _call(job: Job, wish: Wish, index: int, arguments: str) -> dict[str, object]:
    assert wish.tool is not None, "asked for calls only"
    function = {"name": wish.tool.name, "arguments": arguments}
    return {"id": f"call_{job.key}{index}", "type": "function", "function": function}


def _others(job: Job, wish: Wish, index: int) -> list[dict[str, object]]:
    """Return the calls beside the first, each whole."""
    return [
        {
            "id": f"call_{job.key}{index}_{n}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for n, call in enumerate(wish.others)
    ]


def _logprobs(wish: Wish, pieces: Sequence[str]) -> dict[str, object] | None:
    if wish.logprobs is None or wish.tool is not None:
        return None
    return {"content": [token_logprobs(piece, wish.logprobs) for piece in pieces], "refusal": None}


def _finish(job: Job, wish: Wish) -> str:
    return "length" if job.is_cut else "stop" if wish.tool is None else "tool_calls"


def _chunk(index: int, delta: dict[str, object], logprobs: object = None, finish: str | None = None) -> bytes:
    return orjson.dumps({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish})
