"""What a translation costs: a request from one API into another, an event of a stream, and the memory of a stream.

    python -m bench.translation [--rounds N] [--dry]      # half a minute; fills docs/benchmarks/translation.md

A request is read from the client's bytes and written for the model, an event is read from the upstream's and written
for the client: all that a translated request costs beside one that passes as it came. No sockets: these are the same
for both. Rounds rotate over the pairs, so that a slow second is no pair's alone. The time of the same bytes through
`orjson` (loads and dumps) is shown beside: what a gateway pays that decodes each body once.

The events of a stream differ as those of its servers do: all in their text, Anthropic's in their padding, Gemini's in
their counts, OpenAI's own in `obfuscation`. Others that speak Chat Completions send the same but for the text.

Knows: which pairs, which bytes. Does not know: any dialect.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import orjson

from bench.machine import describe
from docs.tables import fill
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import ClientCall
from velox.dialects.facts.model_facts import ModelFacts
from velox.gateway.translation.translators import GenerationTranslator
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind

__all__ = ["chat_request", "event_work", "main", "request_body", "request_work", "tables", "translator_of"]

_PAGE: Final = Path(__file__).parents[1] / "docs" / "benchmarks" / "translation.md"
_REQUESTS_A_ROUND: Final = 200
_EVENTS_A_ROUND: Final = 2000
_STREAMS: Final = 500
_NAMES: Final = {
    ApiKind.CHAT: "Chat Completions",
    ApiKind.RESPONSES: "Responses",
    ApiKind.MESSAGES: "Messages",
    ApiKind.GENERATE: "Gemini",
    ApiKind.CONVERSE: "Converse",
}
_WORDS: Final = (b"Hello there", b"a", b"light wind", b"from the west", b"and", b"sunshine", b"tomorrow", b"in Paris")
_SEARCH: Final = {
    ApiKind.RESPONSES: "web_search",
    ApiKind.MESSAGES: "web_search_20250305",
    ApiKind.GENERATE: "googleSearch",
}
_REQUEST_PAIRS: Final = (
    (ApiKind.CHAT, ApiKind.MESSAGES),
    (ApiKind.CHAT, ApiKind.GENERATE),
    (ApiKind.CHAT, ApiKind.CONVERSE),
    (ApiKind.MESSAGES, ApiKind.CHAT),
    (ApiKind.MESSAGES, ApiKind.GENERATE),
)
_EVENT_PAIRS: Final = (
    (ApiKind.CHAT, ApiKind.MESSAGES),
    (ApiKind.CHAT, ApiKind.GENERATE),
    (ApiKind.MESSAGES, ApiKind.CHAT),
    (ApiKind.RESPONSES, ApiKind.CHAT),
    (ApiKind.GENERATE, ApiKind.CHAT),
)


def chat_request(model: str, *, stream: bool) -> bytes:
    """Return the request in Chat Completions, for this model."""
    request = orjson.loads(request_body(ApiKind.CHAT))
    return orjson.dumps({**request, "model": model, "stream": stream})


def request_body(api: ApiKind) -> bytes:
    """Return a request of 3.5 KB, of Messages or Chat Completions: a system prompt, five turns, three tools."""
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The city"}, "unit": {"enum": ["c", "f"]}},
        "required": ["city"],
    }
    told = "You are a helpful assistant who answers in short sentences. " * 16
    turns: list[dict[str, Any]] = []
    for _ in range(4):
        turns.append({"role": "user", "content": "What about the weather in Paris today? " * 4})
        turns.append({"role": "assistant", "content": "It is sunny, with a light wind from the west. " * 4})
    turns.append({"role": "user", "content": "And tomorrow?"})
    named = [(f"get_{n}", "Look up one thing in the register of things.") for n in range(3)]
    more = {"model": "m", "temperature": 0.5, "max_tokens": 500, "stream": True}
    if api is ApiKind.MESSAGES:
        tools = [{"name": name, "description": text, "input_schema": schema} for name, text in named]
        return orjson.dumps({**more, "system": told, "messages": turns, "tools": tools})
    functions = [{"name": name, "description": text, "parameters": schema} for name, text in named]
    chat_tools = [{"type": "function", "function": function} for function in functions]
    system = {"role": "system", "content": told}
    return orjson.dumps({**more, "messages": [system, *turns], "tools": chat_tools})


def _ask(api: ApiKind) -> bytes:
    """Return a short request for a stream."""
    if api is ApiKind.GENERATE:
        return b'{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}'
    if api is ApiKind.RESPONSES:
        return b'{"model":"m","input":"hi","stream":true}'
    return b'{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hi"}]}'


def _events(api: ApiKind, *, is_padded: bool = False) -> tuple[bytes, list[bytes]]:
    """Return how a stream begins, and events of it with some text. is_padded: as OpenAI's own servers do it."""
    if api is ApiKind.MESSAGES:
        begin = (
            b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message","role":'
            b'"assistant","model":"m","content":[],"stop_reason":null,"usage":{"input_tokens":3,"output_tokens":1}}}\n\n'
            b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":'
            b'{"type":"text","text":""}}\n\n'
        )
        form = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" %b"}%b}'
        form = b"event: content_block_delta\ndata: %b\n\n" % form
        return begin, [form % (word, b" " * (5 * n % 16)) for n, word in enumerate(_WORDS)]
    if api is ApiKind.GENERATE:
        form = (
            b'data: {"candidates":[{"content":{"parts":[{"text":" %b"}],"role":"model"},"index":0}],"usageMetadata":'
            b'{"promptTokenCount":3,"candidatesTokenCount":%d,"totalTokenCount":%d},"modelVersion":"m",'
            b'"responseId":"r"}\r\n\r\n'
        )
        events = [form % (word, n, n + 3) for n, word in enumerate(_WORDS)]
        return events[0], events
    chunk = (
        b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
        b'"delta":{%b},"logprobs":null,"finish_reason":null}]%b}\n\n'
    )
    padding = [b',"obfuscation":"%b"' % b"a1B2c3D4"[:n] if is_padded else b"" for n in range(len(_WORDS))]
    begin = chunk % (b'"role":"assistant","content":""', padding[0])
    return begin, [chunk % (b'"content":" %b"' % word, pad) for word, pad in zip(_WORDS, padding, strict=True)]


def _facts(model: ApiKind) -> ModelFacts:
    """Return what is known of a model: that it searches the web, if any of its API does."""
    return ModelFacts(web_search=_SEARCH.get(model, ""))


def translator_of(client: ApiKind, model: ApiKind, *, stream: bool = False) -> GenerationTranslator:
    dropped, made = DroppedFields(), dialect_table()
    call = ClientCall("0a1b2c", 1_790_000_000, "m", stream)
    return GenerationTranslator(
        made.clients[client](call, dropped), made.models[model](_facts(model), dropped, "x"), dropped
    )


def request_work(client: ApiKind, model: ApiKind, body: bytes) -> Callable[[], object]:
    """Return one request's way, with all that is made for it."""
    made, facts = dialect_table(), _facts(model)

    def cross() -> object:
        dropped = DroppedFields()
        call = ClientCall("0a1b2c", 1_790_000_000, "m", True)
        reader, writer = made.clients[client](call, dropped), made.models[model](facts, dropped, "x")
        return GenerationTranslator(reader, writer, dropped).request(body, "m")

    return cross


def event_work(client: ApiKind, model: ApiKind, *, is_padded: bool = False) -> Callable[[], object]:
    """Return the way of one event, the next one each time."""
    begin, events = _events(model, is_padded=is_padded)
    translator = translator_of(client, model, stream=True)
    translator.request(_ask(client), "m")
    stream = translator.stream()
    stream.feed(begin, False)
    for event, word in zip(events, _WORDS, strict=True):
        assert word in stream.feed(event, False), "the event has text, and it is written"
    take = itertools.cycle(events).__next__
    return lambda: stream.feed(take(), False)


def _decoding(body: bytes) -> Callable[[], object]:
    return lambda: orjson.dumps(orjson.loads(body))


def _measure(work: Callable[[], object], n: int) -> float:
    began_ns = time.process_time_ns()  # of this process: others may have the processor meanwhile
    for _ in range(n):
        work()
    return (time.process_time_ns() - began_ns) / n / 1000


def _rounds(works: dict[str, Callable[[], object]], n: int, n_rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(n_rounds):
        for name, work in works.items():
            found[name].append(_measure(work, n))
    return found


def _stream_bytes(client: ApiKind, model: ApiKind) -> float:
    """Return the memory of an open stream, after some events."""
    begin, events = _events(model)
    tracemalloc.start()
    held = []
    for _ in range(_STREAMS):
        translator = translator_of(client, model, stream=True)
        translator.request(_ask(client), "m")
        stream = translator.stream()
        for part in (begin, *events[:3]):
            stream.feed(part, False)
        held.append((translator, stream))
    n_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return n_bytes / len(held)


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join([f"| {title} | µs: median of the rounds (least to greatest) |", "|---|---|", *_lines(rows)])


def _lines(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [f"| {name} | {value} |" for name, value in rows]


def _shown(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def tables(n_rounds: int) -> str:
    """Return what was measured."""
    requests = {f"{_NAMES[c]} to {_NAMES[m]}": request_work(c, m, request_body(c)) for c, m in _REQUEST_PAIRS}
    chat = request_body(ApiKind.CHAT)
    requests["the same bytes through orjson"] = _decoding(chat)
    events = {f"{_NAMES[m]} to {_NAMES[c]}": event_work(c, m) for c, m in _EVENT_PAIRS}
    events[f"{_NAMES[ApiKind.CHAT]} of OpenAI, padded, to {_NAMES[ApiKind.MESSAGES]}"] = event_work(
        ApiKind.MESSAGES, ApiKind.CHAT, is_padded=True
    )
    data = _events(ApiKind.CHAT)[1][0][6:]
    events["a chunk's JSON through orjson"] = _decoding(data)
    parts = [
        _table(f"a request of {len(chat):,} bytes", _all(_rounds(requests, _REQUESTS_A_ROUND, n_rounds))),
        _table("a streamed event", _all(_rounds(events, _EVENTS_A_ROUND, n_rounds))),
    ]
    memory = [(f"{_NAMES[m]} to {_NAMES[c]}", f"{_stream_bytes(c, m) / 1024:.1f}") for c, m in _EVENT_PAIRS]
    parts.append("\n".join(["| an open stream | KiB of Python objects |", "|---|---|", *_lines(memory)]))
    return "\n\n".join(parts)


def _all(found: dict[str, list[float]]) -> list[tuple[str, str]]:
    return [(name, _shown(values)) for name, values in found.items()]


def main() -> None:
    """Measure, print, and fill the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--dry", action="store_true", help="write no page")
    arguments = parser.parse_args()
    text = tables(arguments.rounds)
    print(text)
    if arguments.dry:
        return
    page = fill(_PAGE.read_text(), "run", f"{_about()}\n")
    _PAGE.write_text(fill(page, "translation", f"{text}\n"))


def _about() -> str:
    """Return when and where it was measured."""
    machine = describe()
    return (
        f"{time.strftime('%Y-%m-%d')}: {machine['cpu']}, CPython {machine['python']}, commit {machine['commit']}"
        f"{', changed since' if machine['modified'] else ''}."
    )


if __name__ == "__main__":
    main()
