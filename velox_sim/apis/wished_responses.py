"""Responses that are more than one plain text: function calls, JSON, log probabilities, reasoning.

Knows: their objects and the order of their events. Does not know: HTTP, pace, how a wish was read. Beside responses.py,
which writes the usual answers at less cost.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from velox_sim.apis.responses import event, response, status_of, usage_of
from velox_sim.apis.wishes import THOUGHT, THOUGHT_PIECES, Wish, response_wish, signature_of, token_logprobs
from velox_sim.request import Fields
from velox_sim.shapes import Job, TokenStream

__all__ = ["WishedResponses"]


class WishedResponses:
    """Writes such responses."""

    def read(self, fields: Fields) -> Wish | None:
        """Return what a request asks for; None: nothing special. Raises RefusalError (400)."""
        return response_wish(fields)

    def whole(self, job: Job, wish: Wish, pieces: Sequence[str], fields: Fields) -> bytes:
        """Return the answer as one object. fields: of the request, some of which come back."""
        return orjson.dumps(_finished(job, wish, pieces, fields))

    def stream(self, job: Job, wish: Wish, pieces: Sequence[str], fields: Fields) -> TokenStream:
        """Return the answer as events, numbered from 0."""
        return _stream(job, wish, pieces, fields)


def _stream(job: Job, wish: Wish, pieces: Sequence[str], fields: Fields) -> TokenStream:
    started = {**response(job, "in_progress", [], None), **_asked(fields)}
    item = _item(job, wish, [], "in_progress")
    first = len(_reasoning(job, wish))
    opening: list[tuple[str, dict[str, object]]] = [
        ("response.created", {"response": started}),
        ("response.in_progress", {"response": started}),
        *_reasoning_events(job, wish),
        ("response.output_item.added", {"output_index": first, "item": item}),
    ]
    deltas: list[dict[str, object]]
    place: dict[str, object] = {"item_id": item["id"], "output_index": first}
    text, finished = "".join(pieces), _finished(job, wish, pieces, fields)
    if wish.tool is not None:
        kind = "response.function_call_arguments"
        deltas = [{**place, "delta": piece} for piece in pieces]
        closing: list[tuple[str, dict[str, object]]] = [
            (f"{kind}.done", {**place, "name": wish.tool.name, "arguments": text})
        ]
    else:
        kind = "response.output_text"
        place["content_index"] = 0
        opening.append(("response.content_part.added", {**place, "part": _part(wish, [])}))
        deltas = [{**place, "delta": piece, "logprobs": _logprobs(wish, [piece])} for piece in pieces]
        closing = [
            (f"{kind}.done", {**place, "text": text, "logprobs": _logprobs(wish, pieces)}),
            ("response.content_part.done", {**place, "part": _part(wish, pieces)}),
        ]
    done = _item(job, wish, pieces, status_of(job))
    closing.append(("response.output_item.done", {"output_index": first, "item": done}))
    for n, other in enumerate(_others(job, wish), start=first + 1):
        at: dict[str, object] = {"item_id": other["id"], "output_index": n}
        begun = {**other, "status": "in_progress", "arguments": ""}
        told = {"name": other["name"], "arguments": other["arguments"]}
        closing += [
            ("response.output_item.added", {"output_index": n, "item": begun}),
            (f"{kind}.delta", {**at, "delta": other["arguments"]}),
            (f"{kind}.done", {**at, **told}),
            ("response.output_item.done", {"output_index": n, "item": other}),
        ]
    closing += [
        (f"response.{status_of(job)}", {"response": finished}),
    ]
    n_opening = len(opening)
    rests = tuple(event(f"{kind}.delta", n, delta) for n, delta in enumerate(deltas, n_opening))
    return TokenStream(
        b"".join(event(name, n, each) for n, (name, each) in enumerate(opening)),
        b"",
        rests,
        len(rests),
        b"".join(event(name, n, each) for n, (name, each) in enumerate(closing, n_opening + len(rests))),
    )


def _finished(job: Job, wish: Wish, pieces: Sequence[str], fields: Fields) -> dict[str, object]:
    output = [*_reasoning(job, wish), _item(job, wish, pieces, status_of(job)), *_others(job, wish)]
    return {**response(job, status_of(job), output, usage_of(job, wish.n_thoughts)), **_asked(fields)}


def _reasoning(job: Job, wish: Wish) -> list[dict[str, object]]:
    """Return the reasoning as an item, with a summary and the sealed content where they are asked for; or nothing."""
    if wish.thinking is None:
        return []
    key = f"rs_{job.key}"
    summary = [_summary(THOUGHT)] if wish.thinking == "summarized" else []
    sealed = {"encrypted_content": signature_of(key)} if wish.is_sealed else {}
    return [{"id": key, "type": "reasoning", "summary": summary, **sealed}]


def _summary(text: str) -> dict[str, object]:
    return {"type": "summary_text", "text": text}


def _reasoning_events(job: Job, wish: Wish) -> list[tuple[str, dict[str, object]]]:
    """Return the events of the reasoning: its sealed content comes with the last one."""
    events: list[tuple[str, dict[str, object]]] = []
    for item in _reasoning(job, wish):
        begun = {"id": item["id"], "type": "reasoning", "summary": []}
        events.append(("response.output_item.added", {"output_index": 0, "item": begun}))
        if item["summary"]:
            kind = "response.reasoning_summary"
            place = {"item_id": item["id"], "output_index": 0, "summary_index": 0}
            events.append((f"{kind}_part.added", {**place, "part": _summary("")}))
            events += [(f"{kind}_text.delta", {**place, "delta": piece}) for piece in THOUGHT_PIECES]
            events.append((f"{kind}_text.done", {**place, "text": THOUGHT}))
            events.append((f"{kind}_part.done", {**place, "part": _summary(THOUGHT)}))
        events.append(("response.output_item.done", {"output_index": 0, "item": item}))
    return events


def _asked(fields: Fields) -> dict[str, object]:
    """Return what comes back of a request."""
    return {name: fields[name] for name in ("tools", "tool_choice", "text") if fields.get(name) is not None}


def _item(job: Job, wish: Wish, pieces: Sequence[str], status: str) -> dict[str, object]:
    if wish.tool is None:
        content = [_part(wish, pieces)] if status != "in_progress" else []
        return {"id": f"msg_{job.key}", "type": "message", "status": status, "role": "assistant", "content": content}
    return {
        "id": f"fc_{job.key}",
        "type": "function_call",
        "status": status,
        "call_id": f"call_{job.key}",
        "name": wish.tool.name,
        "arguments": "".join(pieces),
    }


def _others(job: Job, wish: Wish) -> list[dict[str, object]]:
    """Return the calls beside the first."""
    return [
        {
            "id": f"fc_{job.key}_{n}",
            "type": "function_call",
            "status": "completed",
            "call_id": f"call_{job.key}_{n}",
            "name": call.name,
            "arguments": call.arguments,
        }
        for n, call in enumerate(wish.others)
    ]


def _part(wish: Wish, pieces: Sequence[str]) -> dict[str, object]:
    return {"type": "output_text", "annotations": [], "logprobs": _logprobs(wish, pieces), "text": "".join(pieces)}


def _logprobs(wish: Wish, pieces: Sequence[str]) -> list[dict[str, object]]:
    return [] if wish.logprobs is None else [token_logprobs(piece, wish.logprobs) for piece in pieces]
