"""Turns a request into a reply: the simulator without its sockets.

Knows: routes, ids, errors in the shape of a route's dialect. Does not know: HTTP versions, the loop, pace, what else
runs.

Not simulated: stop sequences, stored responses, keys.
A request may name any model; only the configured ones are listed.
"""

from __future__ import annotations

import random
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import formatdate
from functools import partial
from typing import Final, Protocol

import orjson

from velox.heads import Headers
from velox_sim import load
from velox_sim.apis.asked_faults import Dialect, asked_fault
from velox_sim.apis.chat import ChatWriter, CompletionWriter
from velox_sim.apis.conversations import Conversation, RealtimeConversation, ResponsesConversation
from velox_sim.apis.embeddings import EmbeddingWriter
from velox_sim.apis.generate import GenerateWriter, WishedGenerate, generate_error, models_page
from velox_sim.apis.generate_request import LIMIT, PROMPT, read_generate
from velox_sim.apis.messages import MessageWriter, WishedMessages, message_error
from velox_sim.apis.responses import ResponseWriter
from velox_sim.apis.wished_chat import WishedChat
from velox_sim.apis.wished_responses import WishedResponses
from velox_sim.apis.wishes import Wish
from velox_sim.engine import AnswerPlanner, Engine, Outage, PrefixCache
from velox_sim.options import SimOptions
from velox_sim.request import Fields, ModelRequest, count_prompt_tokens, prompt_text, read_limit, read_request
from velox_sim.shapes import Job, RefusalError, Reply, Streamed, Text, TokenStream, Whole

__all__ = ["Simulator"]

_JSON: Final = (b"content-type", b"application/json")
_EVENTS: Final = (b"content-type", b"text/event-stream; charset=utf-8")
_PLAIN: Final = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")  # the version is of the metrics' format
_NO_CACHE: Final = (b"cache-control", b"no-cache")
_GET: Final = (b"GET", b"HEAD")
_HEALTH: Final = b"/health"
_METRICS: Final = b"/metrics"
_MODELS: Final = b"/models"
_EMBEDDINGS: Final = b"/embeddings"
_MESSAGES: Final = b"/messages"
_DEPLOYMENT: Final = re.compile(rb"/openai/deployments/[^/]+/")
_COUNT: Final = b"/messages/count_tokens"
_MESSAGE_PROMPTS: Final = ("system", "messages")
_RESPONSE_PROMPTS: Final = ("instructions", "input")
# Where tokens are counted: the fields with the prompt, and what the answer has beside them.
_COUNTS: Final[Mapping[bytes, tuple[Sequence[str], Mapping[str, str]]]] = {
    _COUNT: (_MESSAGE_PROMPTS, {}),
    b"/responses/input_tokens": (_RESPONSE_PROMPTS, {"object": "response.input_tokens"}),
}
_GEMINI_ACTIONS: Final = ("generateContent", "streamGenerateContent", "countTokens")
_MODEL_CREATED: Final = 1_700_000_000  # Unix seconds; any constant will do


class _Writer(Protocol):
    def whole(self, job: Job) -> bytes: ...
    def stream(self, job: Job) -> TokenStream: ...


class _WishWriter(Protocol):
    """Writes what is more than one plain text. read: what a request asks for; None: nothing special."""

    def read(self, fields: Fields) -> Wish | None: ...
    def whole(self, job: Job, wish: Wish, pieces: Sequence[str], fields: Fields) -> bytes: ...
    def stream(self, job: Job, wish: Wish, pieces: Sequence[str], fields: Fields) -> TokenStream: ...


@dataclass(frozen=True, slots=True)
class _TextRoute:
    """A route that answers with text. prompts, limits: the fields with the prompt and the longest answer.

    dialect: of its errors in streams.
    """

    writer: _Writer
    prompts: tuple[str, ...]
    limits: tuple[str, ...]
    wishes: _WishWriter | None = None
    dialect: Dialect = "chat"


class Simulator:
    """Answers requests, one at a time and without waiting."""

    def __init__(
        self, options: SimOptions, clock: Callable[[], float], engine: Engine, outage: Outage | None = None
    ) -> None:
        """clock: Unix seconds. outage: while it lasts, every request fails as options.flap_as says."""
        self._options: Final = options
        self._clock: Final = clock
        self._random: Final = random.Random(options.seed)
        text = Text(options.tokens)
        self._usual: Final = text.tokens()
        self._texts: Final = {
            b"/chat/completions": _TextRoute(
                ChatWriter(text), ("messages",), ("max_completion_tokens", "max_tokens"), WishedChat()
            ),
            b"/responses": _TextRoute(
                ResponseWriter(text), _RESPONSE_PROMPTS, ("max_output_tokens",), WishedResponses(), "responses"
            ),
            b"/completions": _TextRoute(CompletionWriter(text), ("prompt",), ("max_tokens",)),
            _MESSAGES: _TextRoute(MessageWriter(text), _MESSAGE_PROMPTS, ("max_tokens",), WishedMessages(), "messages"),
        }
        # By whether a stream has server-sent events, which ?alt=sse asks for, or is one JSON array.
        self._generate: Final = {
            is_sse: _TextRoute(
                GenerateWriter(text, is_sse=is_sse), (PROMPT,), (LIMIT,), WishedGenerate(is_sse=is_sse), "generate"
            )
            for is_sse in (True, False)
        }
        self._embeddings: Final = EmbeddingWriter()
        self._cache: Final = PrefixCache(options.prefix_cache)
        self._planner: Final = AnswerPlanner(options)
        self._engine: Final = engine
        self._outage: Final = outage
        self._name: Final[Headers] = [(b"x-sim-name", options.name.encode())] if options.name else []
        self._second = -1
        self._date = b""

    def answer(self, method: bytes, target: bytes, body: bytes) -> Reply | None:
        """Return the reply to a whole request; None: it gets none, and its connection is reset.

        target: path and query, with or without /v1 in front, and before it whatever stands before it at some providers
        (/openai/v1/chat/completions); or below a deployment of Azure's (/openai/deployments/NAME/embeddings). A HEAD is
        answered like a GET: whoever writes the reply leaves the body out.
        """
        now = int(self._clock())
        path, _, query = target.partition(b"?")
        if self._outage is not None and self._outage.is_now():
            return self._fail(path)
        try:
            if _is_gemini(path):
                return self._gemini(method, path, body, now, is_sse=b"alt=sse" in query)
            return self._route(method, path, body, now)
        except RefusalError as refusal:
            return self._refuse_at(path, refusal)
        except TypeError as exc:  # an id or role that is a list, half a character where it is repeated
            return self._refuse_at(path, RefusalError(400, f"a field is not of its type: {exc}"))

    def conversation(self, target: bytes) -> Conversation | None:
        """Return what is said over a WebSocket; None where there is none. target: as for answer()."""
        path, _, query = target.partition(b"?")
        ask = partial(self.answer, b"POST", b"/v1/responses")
        if path.endswith(b"/responses"):
            return ResponsesConversation(ask)
        if path.endswith(b"/realtime"):
            model = dict(urllib.parse.parse_qsl(_shown(query))).get("model", self._options.models[0])
            return RealtimeConversation(ask, model, self._key())
        return None

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

    def _refuse_at(self, path: bytes, refusal: RefusalError) -> Whole:
        """Return a refusal in the dialect of its path."""
        if _is_gemini(path):
            headers = self._headers(_JSON, int(self._clock()))
            return Whole(refusal.status, [*headers, *refusal.headers], generate_error(refusal))
        if not path.endswith((_MESSAGES, _COUNT)):
            return self.refuse(refusal)
        request_id = f"req_{self._key()}"
        headers = [*self._headers(_JSON, int(self._clock())), (b"request-id", request_id.encode())]
        return Whole(refusal.status, [*headers, *refusal.headers], message_error(refusal, request_id))

    def _fail(self, path: bytes) -> Whole | None:
        """Return what a request gets while the simulator is down."""
        if self._options.flap_as == "reset":
            return None
        status = 503 if path == _HEALTH else int(self._options.flap_as)
        return self._refuse_at(path, RefusalError(status, "The server is down (simulated).", kind="server_error"))

    def _route(self, method: bytes, path: bytes, body: bytes, now: int) -> Reply | None:
        _, has_v1, rest = path.partition(b"/v1/")
        short = b"/" + rest if has_v1 else _DEPLOYMENT.sub(b"/", path)
        is_model = short == _MODELS or short.startswith(_MODELS + b"/")
        is_operations = path in (_HEALTH, _METRICS)
        is_known = short in self._texts or short == _EMBEDDINGS or short in _COUNTS
        if not is_known and not is_model and not is_operations:
            raise RefusalError(404, f"Invalid URL ({_shown(method)} {_shown(path)})")
        allowed = _GET if is_model or is_operations else (b"POST",)
        if method not in allowed:
            raise RefusalError(
                405,
                f"Not allowed to {_shown(method)} on {_shown(path)}.",
                code="method_not_supported",
                headers=((b"allow", b", ".join(allowed)),),
            )
        if is_model:
            return Whole(200, self._headers(_JSON, now), self._models(short[len(_MODELS) + 1 :]))
        if is_operations:
            return Whole(200, self._headers(_PLAIN, now), self._load() if path == _METRICS else b"")
        self._fail_at_random()
        if short == _EMBEDDINGS:
            request = read_request(body)
            vectors = self._embeddings.whole(request)
            n_prompt = count_prompt_tokens(request.fields.get("input"))
            return Whole(200, self._headers(_JSON, now), vectors, 1, self._planner.next(n_prompt, n_prompt))
        if short in _COUNTS:
            prompts, more = _COUNTS[short]
            fields = read_request(body).fields
            n_prompt = count_prompt_tokens(*(fields.get(name) for name in prompts))
            return Whole(200, self._headers(_JSON, now), orjson.dumps({**more, "input_tokens": n_prompt}))
        return self._text(self._texts[short], read_request(body), now)

    def _fail_at_random(self) -> None:
        """Fail some requests. Only work fails: a listing that failed would make a gateway's warm-up flap."""
        if self._random.random() < self._options.error_rate:
            raise RefusalError(
                500,
                "The server had an error while processing your request (simulated). Sorry about that!",
                kind="server_error",
            )

    def _gemini(self, method: bytes, path: bytes, body: bytes, now: int, *, is_sse: bool) -> Reply | None:
        """Answer in Gemini's dialect: the model, and what is asked of it, stand in the path."""
        name, _, action = urllib.parse.unquote(_shown(path)).rpartition("/")[2].partition(":")
        if method in _GET and name == "models":
            return Whole(200, self._headers(_JSON, now), models_page(self._options.models))
        if method != b"POST" or action not in _GEMINI_ACTIONS:
            raise RefusalError(404, f"{_shown(path)} is not found")
        self._fail_at_random()
        request = read_generate(body, name, stream=action == "streamGenerateContent")
        if action == "countTokens":
            n_prompt = count_prompt_tokens(request.fields[PROMPT])
            return Whole(200, self._headers(_JSON, now), orjson.dumps({"totalTokens": n_prompt}))
        return self._text(self._generate[is_sse], request, now)

    def _text(self, route: _TextRoute, request: ModelRequest, now: int) -> Reply | None:
        fault = asked_fault(request.model)
        if fault is None:
            return self._answer(route, request, now)
        if fault.kind == "error" or (fault.kind == "fail" and not request.stream):
            raise fault.refusal()
        reply = self._answer(route, request, now)
        if isinstance(reply, Streamed):
            return replace(reply, events=fault.applied(reply.events, route.dialect))
        return None

    def _answer(self, route: _TextRoute, request: ModelRequest, now: int) -> Reply:
        limit = read_limit(request.fields, route.limits)
        wish = None if route.wishes is None else route.wishes.read(request.fields)
        pieces = self._usual if wish is None else wish.pieces(self._usual)
        full = len(pieces)
        n_tokens = full if limit is None else min(limit, full)
        prompts = [request.fields.get(name) for name in route.prompts]
        n_prompt = count_prompt_tokens(*prompts)
        n_cached = self._cache.look_up(request.model, prompt_text(*prompts)) if self._options.prefix_cache else 0
        job = Job(
            key=self._key(),
            created=now,
            model=request.model,
            n_prompt=n_prompt,
            n_cached=n_cached,
            n_tokens=n_tokens if wish is None else n_tokens * wish.n,
            limit=limit,
            is_cut=n_tokens < full,
            include_usage=request.include_usage,
        )
        plan = self._planner.next(n_prompt - n_cached, n_prompt + job.n_tokens)
        if wish is not None and route.wishes is not None:
            pieces, fields = pieces[:n_tokens], request.fields
            if request.stream:
                events = route.wishes.stream(job, wish, pieces, fields)
                return Streamed(200, [*self._headers(_EVENTS, now), _NO_CACHE], events, plan)
            return Whole(200, self._headers(_JSON, now), route.wishes.whole(job, wish, pieces, fields), n_tokens, plan)
        if request.stream:
            return Streamed(200, [*self._headers(_EVENTS, now), _NO_CACHE], route.writer.stream(job), plan)
        return Whole(200, self._headers(_JSON, now), route.writer.whole(job), n_tokens, plan)

    def _load(self) -> bytes:
        options, engine, cache = self._options, self._engine, self._cache
        if options.prefix_cache:
            usage = engine.n_held / options.prefix_cache
        else:
            usage = engine.n_running / options.capacity if options.capacity else 0.0
        now = load.Load(engine.n_running, engine.n_waiting, min(1.0, usage), cache.n_asked, cache.n_hit)
        return load.page(options.load_metrics, options.models[0], now)

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
        return [content_type, (b"date", self._date), (b"x-request-id", b"req_" + self._key().encode()), *self._name]

    def _key(self) -> str:
        return f"{self._random.getrandbits(112):028x}"


def _shown(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _is_gemini(path: bytes) -> bool:
    """Tell whether a path is one of Gemini's API, which has two versions: v1 and v1beta."""
    return b"/v1beta" in path or (b":" in path and _shown(path).rpartition(":")[2] in _GEMINI_ACTIONS)
