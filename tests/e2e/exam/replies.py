"""The ways to write a reply: where usage, tier and model stand, how they are spelled, and what looks like them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from tests.e2e.exam.bookkeeper import Bill, bill_of
from tests.e2e.exam.paper import Case, Ends, plain, stream

__all__ = ["CASES"]

CHAT: Final[dict[str, Any]] = {
    "prompt_tokens": 120_000,
    "completion_tokens": 3001,
    "total_tokens": 123_001,
    "prompt_tokens_details": {"cached_tokens": 777, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 111, "audio_tokens": 0},
}
RESPONSES: Final[dict[str, Any]] = {
    "input_tokens": 100_000,
    "input_tokens_details": {"cached_tokens": 501},
    "output_tokens": 10_001,
    "output_tokens_details": {"reasoning_tokens": 9001},
    "total_tokens": 110_001,
}
MESSAGES: Final[dict[str, Any]] = {
    "input_tokens": 1003,
    "cache_creation_input_tokens": 307,
    "cache_read_input_tokens": 50_021,
    "cache_creation": {"ephemeral_5m_input_tokens": 107, "ephemeral_1h_input_tokens": 200},
    "output_tokens": 409,
    "service_tier": "standard",
}
GENERATE: Final[dict[str, Any]] = {
    "promptTokenCount": 9007,
    "toolUsePromptTokenCount": 101,
    "cachedContentTokenCount": 303,
    "candidatesTokenCount": 77,
    "thoughtsTokenCount": 1301,
    "totalTokenCount": 10_486,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 9007}],
}
# Without a name that a reply has, too.
PLAIN_SCHEMA: Final = {
    "type": "function",
    "name": "f",
    "parameters": {"type": "object", "properties": {"where": {"type": "string"}}, "required": ["where"]},
}
MESSAGE: Final = {"role": "assistant", "content": "Hello from afar."}
CHOICES: Final = [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]
SCHEMA: Final = {
    "type": "function",
    "name": "f",
    "parameters": {"type": "object", "properties": {"usage": {"type": "object", "properties": {}}, "model": {}}},
}


def response(tier: object = "priority", **more: Any) -> dict[str, Any]:
    """Return a Responses answer in OpenAI's order of fields: much stands between the tier and the usage."""
    document = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "background": False,
        "billing": {"payer": "developer"},
        "error": None,
        "instructions": None,
        "model": "exam",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "hi", "annotations": []}]}],
        "service_tier": tier,
        "store": True,
        "text": {"format": {"type": "text"}},
        "tools": [],
        "usage": RESPONSES,
        "user": None,
        "metadata": {},
    }
    return {**document, **more}


def completion(**more: Any) -> dict[str, Any]:
    """Return a chat completion."""
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "exam", "choices": CHOICES, **more}


def indented(document: dict[str, Any]) -> bytes:
    """Write as OpenAI's API does."""
    return json.dumps(document, indent=2).encode()


# What a client chooses, and a reply repeats: words that name fields, and JSON that is a text.
_WORDS: Final = (
    *("service_tier", "model", "usage", "usage\\", '"usage"', "modelVersion"),
    *(
        '"service_tier":"flex"',
        '","service_tier":"flex","x":"',
        '{"usage":{"prompt_tokens":0}}',
        "]}{[",
        "\\\\",
        "\ud83d\ude00",
    ),
)
_NAMES: Final = ("usage", "service_tier", "model")


def _escaped(name: str, *, every: bool = False, upper: bool = False) -> str:
    """Return a name as JSON text, with its second letter escaped, or every one."""
    letters = [
        f"\\u{ord(letter):04{'X' if upper else 'x'}}" if every or at == 1 else letter for at, letter in enumerate(name)
    ]
    return '"' + "".join(letters) + '"'


def _compact(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _places() -> Iterator[Case]:
    """Where usage, tier and model stand, and how JSON is laid out."""
    document = {**completion(usage=CHAT), "service_tier": "priority", "model": "exam-big"}
    yield Case("compact", plain(document))
    yield Case("indented", plain(indented(document)))
    yield Case("indented with tabs", plain(json.dumps(document, indent="\t").encode()))
    yield Case("CRLF between tokens", plain(json.dumps(document, indent=1).replace("\n", "\r\n").encode()))
    yield Case("blanks before colons", plain(json.dumps(document, separators=(" , ", " : ")).encode()))
    yield Case("a line end behind it", plain(_compact(document) + b"\r\n \t"))
    yield Case("a line end before it", plain(b"\n\n " + _compact(document)))
    for size in (1, 2, 3, 7, 64, 1000):
        yield Case(f"in pieces of {size}", plain(document).cut(size))
    for n, order in enumerate(itertools.permutations(("usage", "service_tier", "model", "choices"))):
        yield Case(f"order {n} of fields", plain({name: document[name] for name in order}))
        far = {"a": ["x" * 40] * 300, **{name: document[name] for name in order[:2]}, "b": {"c": "y" * 9000}}
        yield Case(f"order {n}, far apart", plain({**far, **{name: document[name] for name in order[2:]}}))
    for tier in ("flex", "priority", "batch", "default", "auto", "standard", "on_demand", "FLEX", None):
        yield Case(f"tier {tier} behind the usage", plain({**completion(usage=CHAT), "service_tier": tier}))
        yield Case(f"tier {tier}", plain(response(tier)), "responses")
        for n in (3, 40, 400):
            for name, tool in (("tools", PLAIN_SCHEMA), ("tools that name fields", SCHEMA)):
                yield Case(f"tier {tier} before {n} {name}", plain(response(tier, tools=[tool] * n)), "responses")


def _decoys() -> Iterator[Case]:
    """What looks like a field and is none."""
    for word in _WORDS:
        echoed = {"user": word, "safety_identifier": word, "prompt_cache_key": word, "metadata": {word: word}}
        yield Case(f"fields that repeat {word!r}", plain(response("priority", **echoed)), "responses")
        yield Case(f"fields first that repeat {word!r}", plain({**echoed, **response("flex", **echoed)}), "responses")
        yield Case(
            f"{word!r} in a stream",
            stream({"type": "response.completed", "response": response("flex", **echoed)}),
            "responses",
            True,
        )
        yield Case(
            f"an answer of {word!r}",
            plain({**completion(usage=CHAT, service_tier="flex"), "choices": [{"message": {"content": word * 9}}]}),
        )
        told = {**completion(usage=CHAT), "model": "exam-big"}
        yield Case(
            f"a member named {word!r}", plain({f"x{word}": word, **told, f"{word}x": {word: {"prompt_tokens": 1}}})
        )
    inside: dict[str, Any] = {
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
        "service_tier": "flex",
        "model": "exam-big",
    }
    for name, value in (("object", inside), ("list", [inside, [inside]]), ("deep", {"a": {"b": [{"c": inside}]}})):
        yield Case(f"a decoy before it: {name}", plain({"x": value, **completion(usage=CHAT)}))
        yield Case(f"a decoy behind it: {name}", plain({**completion(usage=CHAT), "x": value}))
        yield Case(
            f"a decoy in the choices: {name}", plain({**completion(usage=CHAT), "choices": [{"message": value}]})
        )
    yield Case("5,000 decoys", plain({**completion(), "x": [inside] * 5000, "usage": CHAT, "service_tier": "priority"}))


def _spellings() -> Iterator[Case]:
    """Escapes, equal names, kinds of numbers, null."""
    members = {"usage": _compact(CHAT).decode(), "service_tier": '"priority"', "model": '"exam-big"'}
    for every in (False, True):
        for upper in (False, True):
            for names in (*((name,) for name in _NAMES), _NAMES):
                text = ",".join(
                    f"{_escaped(name, every=every, upper=upper) if name in names else json.dumps(name)}:{value}"
                    for name, value in members.items()
                )
                told = f"escapes in {', '.join(names)}{' all' if every else ''}{' upper' if upper else ''}"
                yield Case(told, plain(f'{{"choices":[],{text}}}'.encode()))
                yield Case(told, stream(f'data: {{"choices":[],{text}}}\n\n'.encode()), is_stream=True)
    for value in ("priority", "flex"):
        yield Case(
            f"escapes in the value {value}",
            plain(f'{{"service_tier":{_escaped(value)},"usage":{_compact(CHAT).decode()}}}'.encode()),
        )
    yield Case(
        "escapes in names of counts", plain(b'{"usage":{"prompt_\\u0074okens":1000,"completion_\\u0074okens":20}}')
    )
    first = '"usage":{"prompt_tokens":1,"completion_tokens":1},"service_tier":"flex","model":"exam"'
    last = ",".join(f'"{name}":{value}' for name, value in members.items())
    written = ",".join(f"{_escaped(name)}:{value}" for name, value in members.items())
    for name, text in (
        ("equal names", f"{first},{last}"),
        ("equal names, far apart", f'{first},"x":"{"y" * 200_000}",{last}'),
        ("equal names, one escaped", f"{first},{written}"),
        ("equal names, three", f"{last},{first},{last}"),
        ("null, then a usage", f'"usage":null,"service_tier":null,{last}'),
        ("equal names in the usage", '"usage":{"prompt_tokens":1,"prompt_tokens":1000,"completion_tokens":20}'),
    ):
        yield Case(name, plain(f"{{{text}}}".encode()))
        yield Case(name, stream(f"data: {{{text}}}\n\n".encode()), is_stream=True)
    for number, n in (("1e3", 1000), ("1000.0", 1000), ("1E+3", 1000), ("10000e-1", 1000), ("1000", 1000)):
        bill = Bill(input=n, output=20, model="exam")
        yield Case(
            f"a count that is {number}",
            plain(f'{{"usage":{{"prompt_tokens":{number},"completion_tokens":20}}}}'.encode(), bill=bill),
        )
    for name in ("prompt_tokens_details", "completion_tokens_details", "total_tokens"):
        yield Case(f"null for {name}", plain(completion(usage={**CHAT, name: None})))
    yield Case(
        "half a surrogate in the answer",
        plain(b'{"choices":[{"message":{"content":"\\ud83d"}}],"usage":%b,"service_tier":"flex"}' % _compact(CHAT)),
    )
    yield Case(
        "a number of 400 digits", plain(b'{"x":%b,"usage":%b,"service_tier":"flex"}' % (b"9" * 400, _compact(CHAT)))
    )
    yield Case(
        "nested 3,000 deep",
        plain(b'{"x":%b%b,"usage":%b,"service_tier":"flex"}' % (b"[" * 900, b"]" * 900, _compact(CHAT))),
    )
    yield Case("NaN beside it", plain(b'{"x":NaN,"usage":%b,"service_tier":"flex"}' % _compact(CHAT)))
    yield Case(
        "letters of other scripts",
        plain(json.dumps({**completion(usage=CHAT), "x": "\u0443\u0441\u4f60" * 99}, ensure_ascii=False).encode()),
    )


def _sizes() -> Iterator[Case]:
    """Replies around every limit, and far over it."""
    text = 'She said: "{usage}" \\ [x]\n\t'
    for n in (4_000, 16_300, 65_400, 131_000, 300_000, 1_100_000, 3_000_000):
        pad = text * (n // len(text))
        named = {"service_tier": "priority", "model": "exam-big"}
        yield Case(
            f"{n} bytes of text before it", plain({**named, "choices": [{"message": {"content": pad}}], "usage": CHAT})
        )
        yield Case(
            f"{n} bytes of text behind it", plain({"usage": CHAT, **named, "choices": [{"message": {"content": pad}}]})
        )
        yield Case(f"{n} bytes at the top", plain({"text": pad, "usage": CHAT, "more": pad, **named}))
        yield Case(
            f"{n} bytes of numbers",
            plain(
                {"data": [{"embedding": [0.25] * (n // 5)}], **named, "usage": {"prompt_tokens": 8, "total_tokens": 8}}
            ),
            "embeddings",
        )
        yield Case(
            f"a tier before {n} bytes of tools", plain(response("flex", tools=[SCHEMA] * (n // 150))), "responses"
        )
        if n < 1_000_000:
            event = {"type": "response.completed", "response": response("flex", tools=[SCHEMA] * (n // 150))}
            yield Case(f"an event of {n} bytes of tools", stream(event), "responses", True)
            yield Case(
                f"an event of {n} bytes",
                stream(response("flex", instructions=pad) | {"type": "x"}).cut(9000),
                "responses",
                True,
            )
    for n in range(131_060, 131_080, 2):
        around = len(_compact({"pad": "", "usage": CHAT, "service_tier": "priority"}))
        yield Case(
            f"{n} bytes in all",
            plain({"pad": "x" * (n - around), "usage": CHAT, "service_tier": "priority"}).cut(65_536),
        )


def _streams() -> Iterator[Case]:
    """Event streams of each dialect."""
    chunk = {"id": "c", "object": "chat.completion.chunk", "model": "exam-big", "service_tier": "flex"}
    delta = {**chunk, "choices": [{"delta": {"content": "hi"}}]}
    used = {**chunk, "choices": [], "usage": CHAT}
    done = b"data: [DONE]\n\n"
    yield Case("usage at the end", stream(delta, delta, used, done), is_stream=True)
    yield Case("null before it", stream({**delta, "usage": None}, used, done), is_stream=True)
    yield Case(
        "a usage in each event",
        stream(*({**delta, "usage": {**CHAT, "completion_tokens": n}} for n in (1, 500, 3001)), done),
        is_stream=True,
    )
    yield Case("CRLF", stream(*(b"data: %b\r\n\r\n" % _compact(each) for each in (delta, used))), is_stream=True)
    yield Case("no blank after data:", stream(b"data:%b\n\n" % _compact(used)), is_stream=True)
    yield Case(
        "comments and names of events",
        stream(b": x\n\nevent: y\nid: 1\ndata: %b\nretry: 1\n\n" % _compact(used)),
        is_stream=True,
    )
    yield Case(
        "over several data lines",
        stream(b"data: " + indented(used).replace(b"\n", b"\ndata: ") + b"\n\n"),
        is_stream=True,
    )
    yield Case("no blank line at the end", stream(delta, b"data: %b" % _compact(used)), is_stream=True)
    for size in (1, 2, 5, 17, 100):
        yield Case(
            f"in pieces of {size}", stream({**delta, "usage": None}, delta, used, done).cut(size), is_stream=True
        )
    bare = {"choices": [], "usage": CHAT}
    bill = replace(bill_of(_compact(used), dialect="openai", model="exam"))
    yield Case(
        "tier and model in the first event only", stream(delta, {"choices": []}, bare, done, bill=bill), is_stream=True
    )
    yield Case(
        "all in one write",
        replace(stream(delta, used, done), pieces=(b"".join(stream(delta, used, done).pieces),)),
        is_stream=True,
    )
    for tier in ("flex", "priority", "default", None):
        begun = {"type": "response.created", "response": response("auto", usage=None)}
        ended = {"type": "response.completed", "response": response(tier, tools=[SCHEMA] * 50)}
        yield Case(
            f"tier {tier}",
            stream(begun, {"type": "response.output_text.delta", "delta": "usage"}, ended),
            "responses",
            True,
        )
        yield Case(
            f"tier {tier}, the type last",
            stream({"response": ended["response"], "type": "response.completed"}),
            "responses",
            True,
        )
        yield Case(
            f"tier {tier}, incomplete", stream(begun, {**ended, "type": "response.incomplete"}), "responses", True
        )


def _claude() -> Iterator[Case]:
    message = {"id": "m", "type": "message", "role": "assistant", "model": "cla-exam", "content": [], "usage": MESSAGES}
    for tier in ("standard", "priority", "batch"):
        yield Case(f"tier {tier}", plain({**message, "usage": {**MESSAGES, "service_tier": tier}}), "messages")
    yield Case("indented", plain(indented(message)), "messages")
    yield Case("usage first", plain({"usage": MESSAGES, **message}), "messages")
    yield Case("without a cache", plain({**message, "usage": {"input_tokens": 10, "output_tokens": 5}}), "messages")
    yield Case(
        "a tool whose input reads like a usage",
        plain({**message, "content": [{"type": "tool_use", "input": {"usage": MESSAGES, "model": "x"}}]}),
        "messages",
    )
    begun = {"type": "message_start", "message": {**message, "usage": {**MESSAGES, "output_tokens": 1}}}
    text = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": '"usage":{'}}
    for name, used in (
        ("answer at the end", {"output_tokens": 409}),
        ("prompt repeated", {**MESSAGES}),
        ("prompt counted otherwise", {**MESSAGES, "input_tokens": 900, "cache_read_input_tokens": 60_000}),
        ("null for the prompt", {"input_tokens": None, "cache_read_input_tokens": None, "output_tokens": 409}),
    ):
        events = (
            begun,
            text,
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": used},
            {"type": "message_stop"},
        )
        yield Case(name, stream(*events), "messages", True)
        yield Case(f"{name}, in pieces", stream(*events).cut(11), "messages", True)


def _gemini() -> Iterator[Case]:
    document = {
        "candidates": [{"content": {"parts": [{"text": "hi"}]}}],
        "usageMetadata": GENERATE,
        "modelVersion": "gem-exam",
    }
    for traffic in ("ON_DEMAND", "ON_DEMAND_FLEX", "ON_DEMAND_PRIORITY"):
        usage = {**GENERATE, "trafficType": traffic}
        yield Case(f"traffic {traffic}", plain({**document, "usageMetadata": usage}), "generate")
        yield Case(f"traffic {traffic}", stream({**document, "usageMetadata": usage}), "generate", True)
    yield Case("indented", plain(indented(document)), "generate")
    yield Case("model first", plain({"modelVersion": "gem-exam", **document}), "generate")
    yield Case(
        "escaped names",
        plain(_compact(document).replace(b"usageM", b"usage\\u004d").replace(b"modelV", b"model\\u0056")),
        "generate",
    )
    yield Case(
        "a call that reads like a usage",
        plain(
            {
                **document,
                "candidates": [
                    {"content": {"parts": [{"functionCall": {"args": {"usageMetadata": {"promptTokenCount": 0}}}}]}}
                ],
            }
        ),
        "generate",
    )
    sound = {
        **GENERATE,
        "promptTokensDetails": [
            {"modality": "TEXT", "tokenCount": 5000},
            {"modality": "AUDIO", "tokenCount": 4000},
            {"modality": "IMAGE", "tokenCount": 7},
        ],
        "cacheTokensDetails": [
            {"modality": "AUDIO", "tokenCount": 200},
            {"modality": "IMAGE", "tokenCount": 3},
            {"modality": "TEXT", "tokenCount": 100},
        ],
        "candidatesTokensDetails": [
            {"modality": "AUDIO", "tokenCount": 50},
            {"modality": "IMAGE", "tokenCount": 11},
            {"modality": "TEXT", "tokenCount": 16},
        ],
    }
    yield Case("sound and pictures", plain({**document, "usageMetadata": sound}), "generate")
    yield Case("sound and pictures", stream({**document, "usageMetadata": sound}), "generate", True)
    begun = {**document, "usageMetadata": {"promptTokenCount": 9007, "totalTokenCount": 9007}}
    yield Case("totals that grow", stream(begun, document), "generate", True)
    items = json.dumps([begun, document], indent=1).encode()
    array = "/v1beta/models/gem-exam:streamGenerateContent"
    for size in (1_000_000, 10):
        yield Case(f"an array in pieces of {size}", plain(items).cut(size), "generate", True, path=array)
    escaped = items.replace(b"usageM", b"usage\\u004d").replace(b"modelV", b"model\\u0056")
    yield Case("an array with escaped names", plain(escaped), "generate", True, path=array)
    drawn = {**document, "candidates": [{"content": {"parts": [{"inlineData": {"data": "A" * 3_000_000}}]}}]}
    for size in (5_000_000, 65_536):
        picture = plain(_compact([begun, drawn])).cut(size)
        yield Case(f"an array with a picture in pieces of {size}", picture, "generate", True, path=array)


def _media() -> Iterator[Case]:
    """Sound and pictures, with and without a rate."""
    sound = {
        **CHAT,
        "prompt_tokens_details": {"audio_tokens": 500, "cached_tokens": 0},
        "completion_tokens_details": {"audio_tokens": 250, "reasoning_tokens": 0},
    }
    yield Case("sound in and out", plain(completion(usage=sound)))
    yield Case("sound in and out", stream({"choices": [], "usage": sound}), is_stream=True)
    details = {
        "cached_tokens": 300,
        "audio_tokens": 500,
        "image_tokens": 400,
        "cached_tokens_details": {"text_tokens": 100, "audio_tokens": 150, "image_tokens": 50},
    }
    picture = {
        "input_tokens": 2000,
        "input_tokens_details": details,
        "output_tokens": 700,
        "output_tokens_details": {"image_tokens": 600, "text_tokens": 100},
        "total_tokens": 2700,
    }
    for tier in ("flex", "default"):
        yield Case(
            f"pictures and sound from a cache, tier {tier}",
            plain({"data": [], "usage": picture, "service_tier": tier}),
            "images",
        )
    cached = {**sound, "prompt_tokens_details": {"audio_tokens": 500, "cached_tokens": 300}}
    yield Case("cached, and sound, and not how much of it", plain(completion(usage=cached)), ends=Ends.UNKNOWN)
    unpriced = {"usage": MESSAGES, "model": "cla-exam"}
    del unpriced["model"]
    for name, usage in (
        ("sound without a rate", {**CHAT, "prompt_tokens_details": {"audio_tokens": 5}}),
        ("speech without a rate", {**CHAT, "completion_tokens_details": {"audio_tokens": 5}}),
        ("pictures without a rate", {**CHAT, "completion_tokens_details": {"image_tokens": 5}}),
    ):
        yield Case(name, plain({**completion(usage=usage), "model": "cla-exam"}), ends=Ends.UNKNOWN)
        yield Case(
            f"{name}, in a stream",
            stream({"model": "cla-exam", "choices": [], "usage": usage}),
            is_stream=True,
            ends=Ends.UNKNOWN,
        )


def _translated() -> Iterator[Case]:
    """Asked in Chat, answered by Bedrock in its own words."""
    output = {"message": {"role": "assistant", "content": [{"text": '"usage":{'}]}}
    usage = {"inputTokens": 1003, "outputTokens": 409, "totalTokens": 1412}
    inside = {**usage, "cacheReadInputTokens": 77, "cacheWriteInputTokens": 0}
    cache = {**inside, "totalTokens": 1489}
    for name, used in (("without a cache", usage), ("with a cache", cache), ("with a cache inside", inside)):
        yield Case(name, plain({"output": output, "stopReason": "end_turn", "usage": used}), "converse")
        yield Case(
            f"{name}, usage first", plain({"usage": used, "output": output, "stopReason": "end_turn"}), "converse"
        )
    for tier in ("flex", "priority", "default"):
        yield Case(
            f"tier {tier}",
            plain({"output": output, "stopReason": "end_turn", "usage": usage, "serviceTier": {"type": tier}}),
            "converse",
        )


def _translated_streams() -> Iterator[Case]:
    """Asked in Chat, answered by Claude and by Gemini, plain and streamed."""
    text = {"type": "text", "text": '"usage":{"input_tokens":1}'}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "cla-exam", "content": [text]}
    for tier in ("standard", "priority", "batch"):
        usage = {**MESSAGES, "service_tier": tier}
        for n in (0, 200_000):
            document = {"usage": usage, **message, "stop_reason": "end_turn", "pad": "x" * n}
            yield Case(f"tier {tier}, {n} bytes more", plain(document), "claude for chat")
        for name, told in (
            ("answer at the end", {"output_tokens": 409}),
            ("smaller at the end", {**usage, "input_tokens": 400, "cache_read_input_tokens": 7}),
            ("larger at the end", {**usage, "input_tokens": 4000}),
        ):
            events = (
                {
                    "type": "message_start",
                    "message": {**message, "content": [], "usage": {**usage, "output_tokens": 1}},
                },
                {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text["text"]}},
                {"type": "content_block_stop", "index": 0},
                {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": told},
                {"type": "message_stop"},
            )
            named = (b"event: %b\ndata: %b\n\n" % (str(each["type"]).encode(), _compact(each)) for each in events)
            yield Case(f"{name}, tier {tier}", stream(*named), "claude for chat", True)
    for traffic in ("ON_DEMAND", "ON_DEMAND_FLEX", "ON_DEMAND_PRIORITY"):
        reply = {
            "candidates": [{"content": {"role": "model", "parts": [text]}, "finishReason": "STOP", "index": 0}],
            "usageMetadata": {**GENERATE, "trafficType": traffic},
            "modelVersion": "gem-exam",
        }
        yield Case(f"traffic {traffic}", plain(reply), "gemini for chat")
        yield Case(f"traffic {traffic}", stream(reply), "gemini for chat", True)


def _beside() -> Iterator[Case]:
    """What vendors count beside the prompt, or only in a total."""
    sound = {
        "prompt_audio_seconds": 12,
        "prompt_tokens": 9,
        "completion_tokens": 248,
        "total_tokens": 632,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 375},
    }
    bill = Bill(input=384, output=248, audio_input=375, model="exam")
    yield Case("Mistral's sound", plain(completion(usage=sound), bill=bill))
    yield Case("Mistral's sound", stream({"choices": [], "usage": sound}, bill=bill), is_stream=True)
    cached = {"prompt_tokens": 10, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 161}}
    bill = Bill(input=171, output=7, cached=161, model="exam")
    for total in (17, 178):
        yield Case(
            f"Grok's cache, total {total}", plain(completion(usage={**cached, "total_tokens": total}), bill=bill)
        )
    usage = {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 200}
    yield Case("reasoning in the total", plain(completion(usage=usage), bill=Bill(input=100, output=100, model="exam")))
    for told in ({"prompt_tokens": 8, "total_tokens": 8}, {"total_tokens": 8}):
        yield Case(f"{len(told)} counts", plain({"data": [], "model": "exam", "usage": told}), "embeddings")
    picture = {
        "input_tokens": 50,
        "input_tokens_details": {"text_tokens": 10, "image_tokens": 40},
        "output_tokens": 4160,
    }
    drawn = Bill(input=50, output=4160, image_input=40, image_output=4160, model="exam")
    done = {"type": "image_generation.completed", "b64_json": "A" * 100_000, "usage": picture}
    yield Case("pictures in a stream", stream(done, bill=drawn), "images", True)
    yield Case("pictures", plain({"data": [{"b64_json": "A" * 500_000}], "usage": picture}, bill=drawn), "images")


CASES: Final[tuple[Case, ...]] = (
    *_places(),
    *_decoys(),
    *_spellings(),
    *_sizes(),
    *_streams(),
    *_claude(),
    *_gemini(),
    *_media(),
    *_translated(),
    *_translated_streams(),
    *_beside(),
)
