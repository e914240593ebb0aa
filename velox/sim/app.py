"""Turns a request into a reply: the simulator without its sockets.

Knows: routes, ids, errors in OpenAI's shape. Does not know: HTTP versions, the loop, pace.

Not simulated: several choices (n), tools, stop sequences, log probabilities, stored responses, keys.
A request may name any model; only the configured ones are listed.
"""

from __future__ import annotations

import random
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Final, Protocol

import orjson

from velox.sim.ask import count_prompt_tokens, read_ask, read_limit
from velox.sim.chat import ChatWriter, CompletionWriter
from velox.sim.embeddings import EmbeddingWriter
from velox.sim.options import SimOptions
from velox.sim.responses import ResponseWriter
from velox.sim.shapes import Job, RefusalError, Reply, Streamed, TokenStream, Whole
from velox.sim.text import Text
from velox.types import Headers

__all__ = ["Simulator"]

_JSON: Final = (b"content-type", b"application/json")
_EVENTS: Final = (b"content-type", b"text/event-stream; charset=utf-8")
_NO_CACHE: Final = (b"cache-control", b"no-cache")
_MODELS: Final = b"/models"
_EMBEDDINGS: Final = b"/embeddings"
_MODEL_CREATED: Final = 1_700_000_000  # Unix seconds; any constant will do


class _Writer(Protocol):
    def whole(self, job: Job) -> bytes: ...
    def stream(self, job: Job) -> TokenStream: ...


@dataclass(frozen=True, slots=True)
class _TextRoute:
    """A route that answers with text. prompts, limits: the fields with the prompt and the longest answer."""

    writer: _Writer
    prompts: tuple[str, ...]
    limits: tuple[str, ...]


class Simulator:
    """Answers requests, one at a time and without waiting."""

    def __init__(self, options: SimOptions, clock: Callable[[], float]) -> None:
        """clock: Unix seconds."""
        self._options: Final = options
        self._clock: Final = clock
        self._random: Final = random.Random(options.seed)
        text = Text(options.tokens)
        self._texts: Final = {
            b"/chat/completions": _TextRoute(ChatWriter(text), ("messages",), ("max_completion_tokens", "max_tokens")),
            b"/responses": _TextRoute(ResponseWriter(text), ("instructions", "input"), ("max_output_tokens",)),
            b"/completions": _TextRoute(CompletionWriter(text), ("prompt",), ("max_tokens",)),
        }
        self._embeddings: Final = EmbeddingWriter()
        self._second = -1
        self._date = b""

    def answer(self, method: bytes, target: bytes, body: bytes) -> Reply:
        """Return the reply to a whole request.

        target: path and query, with or without /v1 in front. A HEAD is answered like a GET: whoever writes
        the reply leaves the body out.
        """
        now = int(self._clock())
        path = target.partition(b"?")[0]
        try:
            return self._route(method, path, body, now)
        except RefusalError as refusal:
            return self.refuse(refusal)

    def refuse(self, refusal: RefusalError) -> Whole:
        """Return a refusal as a reply."""
        error = {
            "message": refusal.message,
            "type": refusal.kind,
            "param": refusal.param,
            "code": refusal.code,
        }
        headers = self._headers(_JSON, int(self._clock()))
        return Whole(refusal.status, [*headers, *refusal.headers], orjson.dumps({"error": error}))

    def _route(self, method: bytes, path: bytes, body: bytes, now: int) -> Reply:
        short = path.removeprefix(b"/v1")
        is_model = short == _MODELS or short.startswith(_MODELS + b"/")
        if not is_model and short != _EMBEDDINGS and short not in self._texts:
            raise RefusalError(404, f"Invalid URL ({_shown(method)} {_shown(path)})")
        allowed = (b"GET", b"HEAD") if is_model else (b"POST",)
        if method not in allowed:
            raise RefusalError(
                405,
                f"Not allowed to {_shown(method)} on {_shown(path)}.",
                code="method_not_supported",
                headers=((b"allow", b", ".join(allowed)),),
            )
        if is_model:
            return Whole(200, self._headers(_JSON, now), self._models(short[len(_MODELS) + 1 :]))
        # Only work fails: a listing that failed would make a gateway's warm-up flap, not its requests.
        if self._random.random() < self._options.error_rate:
            raise RefusalError(
                500,
                "The server had an error while processing your request (simulated). Sorry about that!",
                kind="server_error",
            )
        if short == _EMBEDDINGS:
            vectors = self._embeddings.whole(read_ask(body))
            return Whole(200, self._headers(_JSON, now), vectors, n_tokens=1)
        return self._text(self._texts[short], body, now)

    def _text(self, route: _TextRoute, body: bytes, now: int) -> Reply:
        ask = read_ask(body)
        limit = read_limit(ask.fields, route.limits)
        full = self._options.tokens
        n_tokens = full if limit is None else min(limit, full)
        job = Job(
            key=self._key(),
            created=now,
            model=ask.model,
            n_prompt=count_prompt_tokens(*(ask.fields.get(name) for name in route.prompts)),
            n_tokens=n_tokens,
            limit=limit,
            is_cut=n_tokens < full,
            include_usage=ask.include_usage,
        )
        if ask.stream:
            return Streamed(200, [*self._headers(_EVENTS, now), _NO_CACHE], route.writer.stream(job))
        return Whole(200, self._headers(_JSON, now), route.writer.whole(job), n_tokens)

    def _models(self, wanted: bytes) -> bytes:
        """Return the list of models, or the one that is `wanted` (percent-encoded; empty for the list)."""
        models = {
            name: {"id": name, "object": "model", "created": _MODEL_CREATED, "owned_by": "velox-sim"}
            for name in self._options.models
        }
        if not wanted:
            return orjson.dumps({"object": "list", "data": list(models.values())})
        name = urllib.parse.unquote(_shown(wanted))
        if name not in models:
            raise RefusalError(404, f"The model '{name}' does not exist", param="model", code="model_not_found")
        return orjson.dumps(models[name])

    def _headers(self, content_type: tuple[bytes, bytes], now: int) -> Headers:
        if now != self._second:
            self._second = now
            self._date = formatdate(now, usegmt=True).encode()
        return [content_type, (b"date", self._date), (b"x-request-id", b"req_" + self._key().encode())]

    def _key(self) -> str:
        return f"{self._random.getrandbits(112):028x}"


def _shown(text: bytes) -> str:
    return text.decode("utf-8", "replace")
