"""The ways to write a request, and to leave: each with an upstream that answers what it was asked, as a vendor does."""

from __future__ import annotations

import json
from typing import Final

from tests.e2e.exam.bookkeeper import Bill
from tests.e2e.exam.paper import Answer, Case, Ends, stream

__all__ = ["CASES", "LEAVING"]

_USAGE: Final = {
    "prompt_tokens": 1000,
    "completion_tokens": 20_000,
    "completion_tokens_details": {"reasoning_tokens": 19_990},
}


# What the vendor charges, whether the stream tells it or not.
_BILL: Final = Bill(input=1000, output=20_000, reasoning=19_990, model="exam")
_WORDS: Final = 10
_DONE: Final = b"data: [DONE]\n\n"


def _as_asked(body: bytes) -> Answer:
    """Answer with a stream of a model that reasons; its usage is told only to who asks for it."""
    asked = json.loads(body.decode("utf-8-sig"))
    events = [{"model": "exam", "choices": [{"delta": {"content": f"word{n}"}}]} for n in range(_WORDS)]
    used = {"model": "exam", "choices": [], "usage": _USAGE}
    options = asked.get("stream_options")
    told = [used] if isinstance(options, dict) and options.get("include_usage") is True else []
    return stream(*events, *told, _DONE, bill=_BILL)


def _chat(**fields: object) -> bytes:
    return json.dumps({"model": "exam", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


_START: Final = b'"model":"exam","messages":[{"role":"user","content":"hi"}],"stream":true'
_MIB: Final = 1024 * 1024


def _raw(*members: bytes) -> bytes:
    return b"{%b}" % b",".join(members)


# What stands behind `"stream_options":`, and how the case is called.
_OPTIONS: Final = (
    ("null", b"null"),
    ("empty", b"{}"),
    ("blanks inside", b"{ \n\t}"),
    ("none asked for", b'{"include_usage":false}'),
    ("null asked for", b'{"include_usage":null}'),
    ("asked for by a number", b'{"include_usage":1}'),
    ("asked for by a text", b'{"include_usage":"true"}'),
    ("asked for by an object", b'{"include_usage":{"include_usage":true}}'),
    ("asked for by a list", b'{"include_usage":[true]}'),
    ("asked for, and then not", b'{"include_usage":true,"include_usage":false}'),
    ("not asked for, and then", b'{"include_usage":false,"include_usage":true}'),
    ("in another case", b'{"Include_Usage":true}'),
    ("a valid option with an escape in its name", rb'{"include_\u006fbfuscation":false}'),
    ("an escape in the name, and not", rb'{"include_usag\u0065":false}'),
    ("an escape in the name, twice", rb'{"include_usage":true,"include_\u0075sage":false}'),
    ("a brace in a text", b'{"a":"}"}'),
    ("an open brace in a text", b'{"a":"{"}'),
    ("brackets in a text", b'{"a":"][","b":"}{"}'),
    ("a quote in a text", rb'{"a":"\""}'),
    ("a backslash at the end of a text", rb'{"a":"\\"}'),
    ("quotes and braces", rb'{"a":"\"}","b":"\\\"}"}'),
    ("a list as a value", b'{"a":[1,[2,{"b":[]}]]}'),
    ("an object as a value", b'{"a":{"b":{"c":{}}}}'),
    ("the name inside a value", b'{"a":{"stream_options":{"include_usage":true}}}'),
    ("the name as a value", b'{"a":"stream_options","b":"include_usage"}'),
    ("half a character", rb'{"a":"\ud83d"}'),
    ("a long number", b'{"a":%b}' % (b"9" * 100)),
    ("3 KiB", b'{"a":"%b"}' % (b"x" * 3000)),
    ("continuous usage asked for", b'{"continuous_usage_stats":true}'),
)
_WRITTEN: Final = tuple(
    (f"options: {name}, {where}", body)
    for name, value in _OPTIONS
    for where, body in (
        ("last", _raw(_START, b'"stream_options":%b' % value)),
        ("first", _raw(b'"stream_options" :\n %b' % value, _START)),
    )
)
_NULL: Final = b'"stream_options":null'
_PLACED: Final = (
    ("options behind 2 MiB", _raw(b'"x":"%b"' % (b"x" * 2 * _MIB), _START, b'"stream_options":{"a":[]}')),
    ("options before 2 MiB", _raw(b'"stream_options":{"a":"}"}', _START, b'"x":"%b"' % (b"x" * 2 * _MIB))),
    ("options behind 1 MiB of brackets", _raw(b'"x":[%b0]' % (b"[]," * 350_000), _START, _NULL)),
    ("options behind 1 MiB of quotes", _raw(b'"x":"%b"' % (rb"\"" * 550_000), _START, _NULL)),
    ("options behind 2 MiB of others", _raw(b'"x":[%b0]' % (b'{"stream_options":{}},' * 100_000), _START, _NULL)),
    ("no options, in 3 MiB", _raw(b'"x":"%b"' % (b"x" * 3 * _MIB), _START)),
    ("an escape in the name", _raw(_START, rb'"stream\u005foptions":null')),
    (
        "the whole name in escapes",
        _raw("".join(rf"\u{ord(c):04x}" for c in "stream_options").join('""').encode() + b":{}", _START),
    ),
    ("the name as a value before", _raw(b'"user":"stream_options"', _START, _NULL)),
    ("the name inside another object", _raw(b'"metadata":{"stream_options":{"include_usage":true}}', _START)),
    ("the name inside an object before", _raw(b'"metadata":{"stream_options":{"include_usage":true}}', _START, _NULL)),
    ("the name and a colon in a text", _raw(rb'"user":"\"stream_options\":{\"include_usage\":true}"', _START)),
    ("words that name fields", _raw(b'"user":"usage","safety_identifier":"service_tier"', _START, _NULL)),
    ("a byte order mark", b"\xef\xbb\xbf" + _raw(_START, _NULL)),
    ("blanks around", b"\n\t " + _raw(_START, _NULL) + b" \r\n"),
    ("no strict JSON", _raw(_START, rb'"x":"\ud83d"', _NULL)),
)
_REFUSED: Final = (
    *(
        (f"options that are {name}", _raw(_START, b'"stream_options":%b' % value))
        for name, value in (
            ("a list", b"[]"),
            ("a list with options", b'[{"include_usage":true}]'),
            ("true", b"true"),
            ("a number", b"0"),
            ("a text", b'"{}"'),
            ("too long", b'{"a":"%b"}' % (b"x" * 5000)),
            ("too long, cut inside a text of braces", b'{"a":"%b%b"}' % (b"x" * 4080, b"}" * 100)),
            ("no number that JSON can write again", b'{"a":1e999}'),
        )
    ),
    ("options twice", _raw(_START, b'"stream_options":{"include_usage":true}', b'"stream_options":{}')),
    ("options twice, once escaped", _raw(_START, b'"stream_options":{}', rb'"stream_\u006fptions":{}')),
    ("options hidden in a large body", _raw(b'"x":"%b"' % (b"x" * 600_000), _START, rb'"stream\u005foptions":{}')),
    (
        "options in the middle of 6 MiB",
        _raw(b'"x":"%b"' % (b"x" * 3 * _MIB), _NULL, b'"y":"%b"' % (b"y" * 3 * _MIB), _START),
    ),
    ("stream as a number", _chat(stream=1)),
    ("stream as a text", _chat(stream="true")),
    ("stream twice", _raw(_START, b'"stream":false')),
    ("max_tokens as a text", _chat(max_tokens="20000")),
    ("max_tokens as a fraction", _chat(max_tokens=20000.0)),
    ("max_tokens below 0", _chat(max_tokens=-1)),
)

CASES: Final[tuple[Case, ...]] = (
    Case("without options", _as_asked, is_stream=True, body=_chat(stream=True)),
    *(Case(name, _as_asked, is_stream=True, body=body) for name, body in (*_WRITTEN, *_PLACED)),
    *(
        Case(
            f"text completion, {name}",
            _as_asked,
            "completions",
            is_stream=True,
            body=body.replace(b'"messages"', b'"prompt"'),
        )
        for name, body in _WRITTEN[::4]
    ),
    *(
        Case(
            f"the path {path}",
            _as_asked,
            is_stream=True,
            path=path,
            body=_chat(stream=True),
            ends=Ends.REFUSED if "//" in path else Ends.REAL,
        )
        for path in (
            *("/v1/Chat/Completions", "/V1/CHAT/COMPLETIONS", "/v1//chat//completions", "/v1/chat%2Fcompletions"),
            *("/v1/chat/%63ompletions", "/v1/chat/completions/", "//v1/chat/completions?a=b", "/chat/completions"),
        )
    ),
    *(Case(name, _as_asked, is_stream=True, body=body, ends=Ends.REFUSED) for name, body in _REFUSED),
)

_LAST: Final = f"word{_WORDS - 1}"


def _responses(_body: bytes) -> Answer:
    usage = {"input_tokens": 1000, "output_tokens": 20_000, "output_tokens_details": {"reasoning_tokens": 19_990}}
    words = [{"type": "response.output_text.delta", "delta": f"word{n}"} for n in range(_WORDS)]
    ended = {"type": "response.completed", "response": {"model": "exam", "usage": usage}}
    return stream(*words, ended, bill=_BILL)


def _messages(_body: bytes) -> Answer:
    begun = {
        "type": "message_start",
        "message": {"model": "cla-exam", "usage": {"input_tokens": 1000, "output_tokens": 1}},
    }
    words = [{"type": "content_block_delta", "index": 0, "delta": {"text": f"word{n}"}} for n in range(_WORDS)]
    ended = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 20_000}}
    bill = Bill(input=1000, output=20_000, model="cla-exam")
    return stream(begun, *words, ended, {"type": "message_stop"}, bill=bill)


def _generate(_body: bytes) -> Answer:
    words = [{"candidates": [{"content": {"parts": [{"text": f"word{n}"}]}}]} for n in range(_WORDS)]
    counts = {"promptTokenCount": 1000, "candidatesTokenCount": 10, "thoughtsTokenCount": 19_990}
    bill = Bill(input=1000, output=20_000, reasoning=19_990, model="gem-exam")
    return stream(*words, {"candidates": [{"finishReason": "STOP"}], "usageMetadata": counts}, bill=bill)


# Clients that leave after the last word, before the upstream tells its usage. All streams are read on for it.
LEAVING: Final[tuple[Case, ...]] = tuple(
    Case(f"leaves at {at}", answer, dialect, is_stream=True, leaves_at=at.encode(), body=body)
    for at in ("word0", _LAST)
    for answer, dialect, body in (
        (_as_asked, "chat", _raw(_START, b'"stream_options":{"include_usage":false}')),
        (_responses, "responses", None),
        (_messages, "messages", None),
        (_generate, "generate", None),
    )
)
