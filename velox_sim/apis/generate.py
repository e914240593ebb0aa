"""The answers of Gemini's generateContent and streamGenerateContent.

Knows: their JSON, whole and in events, as server-sent events and as a JSON array; the shape of errors. Does not know:
HTTP, pace, how a request was read.

A call comes whole, in one event, without an id, and with the finish reason STOP, as Google sends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from velox_sim.apis.generate_request import call_signature, generate_wish
from velox_sim.apis.wishes import Wish
from velox_sim.request import Fields
from velox_sim.shapes import Job, RefusalError, Text, TokenStream

__all__ = ["GenerateWriter", "WishedGenerate", "generate_error", "models_page"]

_THOUGHT: Final = "**Reading the request**\n\nThe answer is made up as it always is."
_ERRORS: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_Part = dict[str, object]
_REST: Final = b"}]}}]}"


def generate_error(refusal: RefusalError) -> bytes:
    """Return an error's body."""
    status = _ERRORS.get(refusal.status, "INVALID_ARGUMENT" if refusal.status < 500 else "INTERNAL")
    return orjson.dumps({"error": {"code": refusal.status, "message": refusal.message, "status": status}})


def models_page(names: Sequence[str]) -> bytes:
    """Return the list of models."""
    methods = ["generateContent", "countTokens"]
    return orjson.dumps(
        {"models": [{"name": f"models/{name}", "supportedGenerationMethods": methods} for name in names]}
    )


class _Frame:
    """What stands between the events: of a stream of server-sent events, or of a JSON array."""

    def __init__(self, *, is_sse: bool) -> None:
        self.first: Final = b"data: " if is_sse else b"["
        self.between: Final = b"data: " if is_sse else b",\r\n"
        self.end: Final = b"\r\n\r\n" if is_sse else b""
        self.last: Final = b"" if is_sse else b"]"


class GenerateWriter:
    """Writes plain texts."""

    def __init__(self, text: Text, *, is_sse: bool = True) -> None:
        self._text: Final = text
        self._frame: Final = _Frame(is_sse=is_sse)
        self._rests: Final = tuple(token + _REST + self._frame.end for token in text.tokens_json)

    def whole(self, job: Job) -> bytes:
        """Return the answer as one object."""
        return orjson.dumps(_reply(job, Wish(), [{"text": self._text.first(job.n_tokens)}], job.n_tokens, _finish(job)))

    def stream(self, job: Job) -> TokenStream:
        """Return the answer as events: one a token."""
        return _stream(job, Wish(), self._frame, [], self._rests, job.n_tokens)


class WishedGenerate:
    """Writes calls, JSON and thoughts."""

    def __init__(self, *, is_sse: bool = True) -> None:
        self._frame: Final = _Frame(is_sse=is_sse)

    def read(self, fields: Fields) -> Wish | None:
        """Return what a request asks for; None: nothing special. Raises RefusalError (400)."""
        return generate_wish(fields)

    def whole(self, job: Job, wish: Wish, pieces: Sequence[str], fields: Fields) -> bytes:
        """Return the answer as one object."""
        said = _calls(job, wish, pieces) if wish.tool is not None else [{"text": "".join(pieces)}]
        parts = [*_thoughts(wish), *said]
        return orjson.dumps(_reply(job, wish, parts, job.n_tokens, _finish(job)))

    def stream(self, job: Job, wish: Wish, pieces: Sequence[str], fields: Fields) -> TokenStream:
        """Return the answer as events; a call is one."""
        end = _REST + self._frame.end
        rests = tuple(orjson.dumps(piece) + end for piece in pieces)
        if wish.tool is not None:
            # The lead has begun a part with a text; a call is another part after an empty one.
            rests = (b'""},' + orjson.dumps(_calls(job, wish, pieces))[1:-2] + end,)
        return _stream(job, wish, self._frame, _thoughts(wish), rests, len(rests))


def _thoughts(wish: Wish) -> list[_Part]:
    return [] if wish.thinking is None else [{"text": _THOUGHT, "thought": True}]


def _calls(job: Job, wish: Wish, pieces: Sequence[str]) -> list[_Part]:
    """Return the calls; of several the first is signed."""
    assert wish.tool is not None, "asked for calls only"
    # Arguments that the limit cut are no JSON: then there are none.
    args = {} if job.is_cut else orjson.loads("".join(pieces))
    signature = call_signature(wish.tool.name, args)
    others: list[_Part] = [
        {"functionCall": {"name": call.name, "args": orjson.loads(call.arguments)}} for call in wish.others
    ]
    return [{"functionCall": {"name": wish.tool.name, "args": args}, "thoughtSignature": signature}, *others]


def _finish(job: Job) -> str:
    return "MAX_TOKENS" if job.is_cut else "STOP"


def _usage(job: Job, wish: Wish, n_tokens: int) -> dict[str, object]:
    n_thoughts = 0 if wish.thinking is None else len(_THOUGHT.split())
    usage: dict[str, object] = {
        "promptTokenCount": job.n_prompt,
        "candidatesTokenCount": n_tokens,
        "totalTokenCount": job.n_prompt + n_tokens + n_thoughts,
    }
    if job.n_cached:
        usage["cachedContentTokenCount"] = job.n_cached
    if n_thoughts:
        usage["thoughtsTokenCount"] = n_thoughts
    return usage


def _reply(job: Job, wish: Wish, parts: Sequence[_Part], n_tokens: int, finish: str | None) -> dict[str, object]:
    candidate: dict[str, object] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "usageMetadata": _usage(job, wish, n_tokens),
        "modelVersion": job.model,
        "responseId": job.key,
    }


def _stream(
    job: Job, wish: Wish, frame: _Frame, opening: Sequence[_Part], rests: Sequence[bytes], n_tokens: int
) -> TokenStream:
    """Return the events: the opening parts, one for each of the rests, and the finish with the whole usage."""
    first = orjson.dumps(_reply(job, wish, [*opening, {"text": ""}], 0, None))
    known = orjson.dumps({"responseId": job.key, "modelVersion": job.model})[:-1]
    lead = known + b',"candidates":[{"index":0,"content":{"role":"model","parts":[{"text":'
    last = orjson.dumps(_reply(job, wish, [{"text": ""}], job.n_tokens, _finish(job)))
    return TokenStream(
        frame.first + first + frame.end,
        frame.between + lead,
        rests,
        n_tokens,
        frame.between + last + frame.end + frame.last,
    )
