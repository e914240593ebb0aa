"""Requests and replies as real clients and a real provider send them: no two are equal.

    request   18 fields and the host, as the OpenAI SDK for Python (on httpx) or for Node (on undici) sends them.
              `traceparent` and `x-request-id` are new in each request; `x-stainless-retry-count` is 1 in one of
              RETRIED_EACH; the prompt and so the content-length differ. N_CALLERS callers, each with its own key and
              one SDK; N_MODELS models. Caller and model are chosen per request: a connection has no caller of its own.
    reply     the fields of api.openai.com. Ids, date, processing time, remaining limits and cookie are new in each.
    hostile   a request with FIELDS_INVENTED fields whose names and values no other request has.

Everything follows from a seed. Knows: names and values of fields, bodies. Does not know: who sends them, HTTP/2.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import orjson

from bench.payloads import CHAT_PATH

__all__ = [
    "FIELDS_INVENTED",
    "KEYS",
    "MODELS",
    "MODELS_REPLY",
    "N_CALLERS",
    "N_MODELS",
    "REPLY_END",
    "Fields",
    "Reply",
    "Request",
    "replies",
    "requests",
]

Fields: TypeAlias = tuple[tuple[str, str], ...]

N_CALLERS: Final = 100
N_MODELS: Final = 10
RETRIED_EACH: Final = 20
FIELDS_INVENTED: Final = 8
# Not secrets: the keys that the bench's gateways ask of the bench's clients.
KEYS: Final[Sequence[str]] = tuple(
    f"bench-key-{number:03d}-{number * 7919 % 100003:06d}" for number in range(N_CALLERS)
)
MODELS: Final[Sequence[str]] = (
    *("gpt-5", "gpt-5-mini", "gpt-5-nano", "gpt-4o", "gpt-4o-mini"),
    *("gpt-4.1-2025-04-14", "o3", "o4-mini", "llama-3.3-70b-instruct", "qwen2.5-coder-32b"),
)
# Routers that stand before model servers ask these what they serve.
MODELS_REPLY: Final = orjson.dumps(
    {"object": "list", "data": [{"id": name, "object": "model"} for name in ("gpt-bench", *MODELS)]}
)
# All JSON replies end so, which tells a client that looks at the last bytes only that one is whole.
REPLY_END: Final = b'"service_tier":"default","system_fingerprint":"fp_560af6e559"}'

_HOST: Final = "127.0.0.1:8080"
_REPLY_BYTES: Final = (450, 750)
_AROUND_PROMPT: Final = 176  # bytes of a body that are no prompt
_AROUND_REPLY: Final = 340
_WORDS: Final = (
    *("the", "model", "reads", "a", "question", "about", "rivers", "prices", "code", "history", "or", "law", "and"),
    *("answers", "in", "words", "tables", "lists", "that", "nobody", "asked", "for", "while", "another", "tool"),
    *("waits", "until", "its", "turn", "comes", "to", "call", "search", "calculator", "with", "arguments"),
)
_PYTHON_RUNTIMES: Final = ("3.11.7", "3.12.9", "3.13.2")
_NODE_RUNTIMES: Final = ("v20.19.0", "v22.14.0")
_FIRST_S: Final = 1780272000  # 2026-06-01


@dataclass(frozen=True, slots=True)
class Request:
    """One chat request. fields: in the order in which the SDK sends them, content-length among them."""

    fields: Fields
    body: bytes

    def http1(self, host: str = _HOST) -> bytes:
        """Return the whole request over HTTP/1.1."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in self.fields)
        return f"POST {CHAT_PATH} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n".encode() + self.body

    def http2(self, host: str = _HOST) -> list[tuple[str, str]]:
        """Return the fields over HTTP/2."""
        fields = [(":method", "POST"), (":authority", host), (":scheme", "http"), (":path", CHAT_PATH)]
        return fields + [(name.lower(), value) for name, value in self.fields if name.lower() != "connection"]


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply. constant: fields that are equal in all; changing: those that are not. body: b"" of a stream."""

    constant: Fields
    changing: Fields
    body: bytes

    def http1_head(self) -> bytes:
        """Return the head over HTTP/1.1."""
        framing = f"content-length: {len(self.body)}\r\n" if self.body else "transfer-encoding: chunked\r\n"
        lines = "".join(f"{name}: {value}\r\n" for name, value in (*self.changing, *self.constant))
        return f"HTTP/1.1 200 OK\r\n{lines}{framing}\r\n".encode()

    def http2_head(self) -> list[tuple[bytes, bytes]]:
        """Return the fields over HTTP/2."""
        length = (("content-length", str(len(self.body))),) if self.body else ()
        fields = ((":status", "200"), *self.changing, *self.constant, *length)
        return [(name.encode(), value.encode()) for name, value in fields]


def requests(
    *,
    stream: bool = False,
    seed: int = 1,
    mean_bytes: int = 750,
    body: bytes = b"",
    keys: Sequence[str] = KEYS,
    models: Sequence[str] = MODELS,
    hostile: bool = False,
) -> Iterator[Request]:
    """Yield requests without end.

    mean_bytes: of bodies. body: of all of them. keys: one a caller. hostile: fields in each that no other has.
    """
    source = random.Random(seed)
    prose = _Prose(source, 2 * mean_bytes)
    sdks = [_sdk_fields(source, number, key) for number, key in enumerate(keys)]
    while True:
        number = source.randrange(len(sdks))
        model = models[source.randrange(len(models))]
        sent = body or _chat(source, prose, model, mean_bytes, stream=stream, model_first=number % 3 > 0)
        first, then = sdks[number]
        changing: Fields = (
            ("traceparent", f"00-{source.getrandbits(128):032x}-{source.getrandbits(64):016x}-01"),
            ("x-request-id", _uuid(source)),
            ("x-stainless-retry-count", "0" if source.randrange(RETRIED_EACH) else "1"),
        )
        if hostile:
            changing += tuple(
                (f"x-{source.getrandbits(48):012x}", f"{source.getrandbits(96):024x}") for _ in range(FIELDS_INVENTED)
            )
        yield Request((*first, *changing, *then, ("Content-Length", str(len(sent)))), sent)


def replies(*, stream: bool = False, seed: int = 2) -> Iterator[Reply]:
    """Yield replies without end."""
    source = random.Random(seed)
    prose = _Prose(source, max(_REPLY_BYTES))
    constant = (
        ("content-type", "text/event-stream; charset=utf-8" if stream else "application/json"),
        ("openai-organization", "velox-bench"),
        ("openai-version", "2020-10-01"),
        ("x-ratelimit-limit-requests", "30000"),
        ("x-ratelimit-limit-tokens", "150000000"),
        ("cf-cache-status", "DYNAMIC"),
        ("server", "cloudflare"),
        ("alt-svc", 'h3=":443"; ma=86400'),
    )
    now_s = 0
    while True:
        now_s += 1
        changing = (
            ("date", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(_FIRST_S + now_s))),
            ("openai-processing-ms", str(source.randrange(200, 9000))),
            ("x-request-id", f"req_{source.getrandbits(128):032x}"),
            ("x-ratelimit-remaining-requests", str(source.randrange(20000, 30000))),
            ("x-ratelimit-remaining-tokens", str(source.randrange(100000000, 150000000))),
            ("x-ratelimit-reset-requests", f"{source.randrange(2, 900)}ms"),
            ("x-ratelimit-reset-tokens", f"{source.randrange(1, 500)}ms"),
            (
                "set-cookie",
                f"__cf_bm={source.getrandbits(256):064x}-{_FIRST_S + now_s}-1.0.1.1; path=/; domain=.api.openai.com; "
                "HttpOnly; Secure; SameSite=None",
            ),
            ("cf-ray", f"{source.getrandbits(64):016x}-FRA"),
        )
        yield Reply(constant, changing, b"" if stream else _completion(source, prose, now_s))


def _sdk_fields(source: random.Random, number: int, key: str) -> tuple[Fields, Fields]:
    """Return what one caller's SDK sends before and after the fields that change."""
    arch = ("arch", source.choice(("x64", "arm64")))
    if number % 3 == 0:
        return (
            ("Connection", "keep-alive"),
            ("Content-Type", "application/json"),
            ("Accept", "application/json"),
            ("User-Agent", "OpenAI/JS 6.9.1"),
        ), (
            ("X-Stainless-Lang", "js"),
            ("X-Stainless-Package-Version", "6.9.1"),
            ("X-Stainless-OS", "Linux"),
            ("X-Stainless-Arch", arch[1]),
            ("X-Stainless-Runtime", "node"),
            ("X-Stainless-Runtime-Version", source.choice(_NODE_RUNTIMES)),
            ("Authorization", f"Bearer {key}"),
            ("accept-language", "*"),
            ("sec-fetch-mode", "cors"),
            ("accept-encoding", "gzip, deflate"),
        )
    is_async = number % 3 == 1
    return (
        ("Accept-Encoding", "gzip, deflate"),
        ("Connection", "keep-alive"),
        ("authorization", f"Bearer {key}"),
        ("accept", "application/json"),
        ("content-type", "application/json"),
        ("user-agent", f"{'AsyncOpenAI' if is_async else 'OpenAI'}/Python 3.54.0"),
        ("x-stainless-lang", "python"),
        ("x-stainless-package-version", "3.54.0"),
        ("x-stainless-os", "Linux"),
        ("x-stainless-arch", arch[1]),
        ("x-stainless-runtime", "CPython"),
        ("x-stainless-runtime-version", source.choice(_PYTHON_RUNTIMES)),
        ("x-stainless-async", "async:asyncio" if is_async else "false"),
    ), (("x-stainless-read-timeout", "600"),)


class _Prose:
    """Words without end, of which each text is a piece that begins somewhere else."""

    def __init__(self, source: random.Random, longest: int) -> None:
        self._source: Final = source
        self._words: Final = " ".join(source.choices(_WORDS, k=2000 + longest // 2))

    def text(self, size: int) -> str:
        """Return `size` characters."""
        start = self._source.randrange(len(self._words) - size)
        return self._words[start : start + size]


def _chat(
    source: random.Random, prose: _Prose, model: str, mean_bytes: int, *, stream: bool, model_first: bool
) -> bytes:
    """Return a body. Sizes are spread evenly around the mean, by a third of it either way."""
    size = source.randrange(mean_bytes * 2 // 3, mean_bytes * 4 // 3)
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": prose.text(max(1, size - _AROUND_PROMPT))},
    ]
    rest: dict[str, object] = {"max_tokens": source.randrange(64, 2048), "temperature": 0.7, "stream": stream}
    document = {"model": model, **rest, "messages": messages}
    return orjson.dumps(document if model_first else {"messages": messages, "model": model, **rest})


def _completion(source: random.Random, prose: _Prose, now_s: int) -> bytes:
    text = prose.text(source.randrange(*_REPLY_BYTES) - _AROUND_REPLY)
    n_tokens = source.randrange(20, 200)
    document = {
        "id": f"chatcmpl-{source.getrandbits(112):028x}",
        "object": "chat.completion",
        "created": _FIRST_S + now_s,
        "model": MODELS[source.randrange(N_MODELS)],
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 120, "completion_tokens": n_tokens, "total_tokens": 120 + n_tokens},
    }
    return orjson.dumps(document)[:-1] + b"," + REPLY_END


def _uuid(source: random.Random) -> str:
    digits = f"{source.getrandbits(128):032x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
