"""Reading a request's body: which model, a stream or not, how many tokens, whose user.

Knows: how each parser is asked, and what it can't see. Does not know: how Velox reads (protocol/json/body.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeAlias

import orjson

from bench.micro.candidates import Answers, Candidate, Case, Subject, Timed, calls
from velox.errors import VeloxError
from velox.protocol.json.body import BodyReader
from velox.types import BodyFields

if TYPE_CHECKING:
    import msgspec

__all__ = ["SIZES", "SUBJECT", "chat"]

_Read: TypeAlias = Callable[[bytes], BodyFields]

SIZES: Final = {"48 B": 48, "4 KB": 4096, "64 KB": 65536}
_SENTENCE: Final = 'It said: "one café, two teas"\nand the model went on reading what it was told, word by word. '
_MAX_TOKENS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_NAME_CHARS: Final = 256


def chat(size: int) -> bytes:
    """Return a chat request of just `size` bytes: messages of some 300 bytes, with escapes and letters of two bytes."""
    if size < 512:
        return b'{"model":"gpt-4o","max_tokens":16,"messages":[]}'[:size]
    last = {"role": "user", "content": ""}
    messages = [{"role": "system", "content": "You are a helpful assistant."}, last]
    document = {
        "model": "gpt-4o",
        "stream": True,
        "max_tokens": 256,
        "temperature": 0.7,
        "user": "someone",
        "messages": messages,
    }
    while len(orjson.dumps(document)) < size - 700:
        messages.insert(-1, {"role": "user" if len(messages) % 2 else "assistant", "content": _SENTENCE * 3})
    last["content"] = "x" * (size - len(orjson.dumps(document)))
    return orjson.dumps(document)


_QUESTIONS: Final[Mapping[str, bytes]] = {
    **{size: chat(n) for size, n in SIZES.items()},
    "all fields": b'{"model":"m","stream":false,"n":3,"best_of":4,"user":"u","max_completion_tokens":7,"max_tokens":9,'
    b'"stream_options":{"include_usage":true},"x":[1,{"model":"not this one"}]}',
    "null": b'{"model":"m","stream":null,"max_tokens":null,"user":null}',
    "no field": b"{}",
    "a model that is no text": b'{"model":4}',
    "a stream that is text": b'{"model":"m","stream":"true"}',
    "less than no tokens": b'{"model":"m","max_tokens":-1}',
    "an array": b'["model"]',
    "cut off": b'{"model":"m","messages":[',
    "the same field twice": b'{"model":"cheap","model":"expensive"}',
    "not a number": b'{"model":"m","temperature":NaN}',
    "not UTF-8": b'{"model":"m","messages":["\xff"]}',
    "half a surrogate": b'{"model":"m","messages":["\\ud800"]}',
}


def _answers(make: Callable[[], _Read]) -> Answers:
    read = make()
    return {question: _asked(read, body) for question, body in _QUESTIONS.items()}


def _asked(read: _Read, body: bytes) -> object:
    try:
        return read(body)
    except (ValueError, VeloxError):  # each library's errors are ValueErrors
        return "refused"


def _peek(document: object) -> BodyFields:
    """Return what is asked for of a parsed document, in the usual way. Raises ValueError."""
    if not isinstance(document, dict):
        raise ValueError("no object")
    model, stream, user = document.get("model"), document.get("stream"), document.get("user")
    if "model" in document and not (isinstance(model, str) and 1 <= len(model) <= _NAME_CHARS and model.isprintable()):
        raise ValueError("model")
    if stream is not None and not isinstance(stream, bool):
        raise ValueError("stream")
    tokens = None
    for name in _MAX_TOKENS:
        value = document.get(name)
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(name)
            tokens = value if tokens is None else max(tokens, value)
    peek = BodyFields(
        model, stream or False, tokens, user if isinstance(user, str) and 1 <= len(user) <= _NAME_CHARS else None
    )
    if "n" in document or "best_of" in document:
        peek.n = max(1, _count(document.get("n")), _count(document.get("best_of")))
    if "stream_options" in document:
        options = document["stream_options"]
        peek.include_usage = isinstance(options, dict) and options.get("include_usage") is True
    return peek


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 1


def _by_velox() -> _Read:
    return BodyReader().read


def _by_orjson() -> _Read:
    return lambda body: _peek(orjson.loads(body))


def _by_json() -> _Read:
    return lambda body: _peek(json.loads(body))


def _by_careful_json() -> _Read:
    """Return json as it must be asked to see a second field of a name, and to refuse what is no JSON."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a field is there twice")
        return found

    def refuse(name: str) -> NoReturn:
        raise ValueError(name)

    decoder = json.JSONDecoder(object_pairs_hook=once, parse_constant=refuse)
    return lambda body: _peek(decoder.decode(body.decode()))


def _by_msgspec() -> _Read:
    """Return msgspec told of the fields that count: it makes nothing of the others."""
    import msgspec

    tokens = Annotated[int, msgspec.Meta(ge=0)] | None
    name = Annotated[str, msgspec.Meta(min_length=1, max_length=_NAME_CHARS)]
    fields: list[tuple[str, Any, Any]] = [
        ("model", name | msgspec.UnsetType, msgspec.UNSET),
        ("stream", bool | None, None),
        ("user", Any, None),
        *((field, tokens, None) for field in _MAX_TOKENS),
        *((field, Any, msgspec.UNSET) for field in ("n", "best_of", "stream_options")),
    ]
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(msgspec.defstruct("Asked", fields))
    unset = msgspec.UNSET

    def read(body: bytes) -> BodyFields:
        asked = decoder.decode(body)
        model = None if asked.model is unset else asked.model
        if model is not None and not model.isprintable():
            raise ValueError("model")
        given = [
            each
            for each in (asked.max_completion_tokens, asked.max_output_tokens, asked.max_tokens)
            if each is not None
        ]
        tokens = max(given, default=None)
        user = asked.user if isinstance(asked.user, str) and 1 <= len(asked.user) <= _NAME_CHARS else None
        peek = BodyFields(model, asked.stream or False, tokens, user)
        if asked.n is not unset or asked.best_of is not unset:
            peek.n = max(1, _count(asked.n), _count(asked.best_of))
        options = asked.stream_options
        if options is not unset:
            peek.include_usage = isinstance(options, dict) and options.get("include_usage") is True
        return peek

    return read


def _begin(make: Callable[[], _Read], size: int) -> Timed:
    return calls(partial(make(), chat(size)))


_TWICE: Final = "the same field twice"
_WAYS: Final[tuple[tuple[str, Callable[[], _Read], tuple[str, ...], frozenset[str]], ...]] = (
    ("Velox", _by_velox, (), frozenset()),
    ("orjson", _by_orjson, ("orjson",), frozenset({_TWICE, "half a surrogate"})),
    ("json", _by_json, (), frozenset({_TWICE, "not a number"})),
    ("json, seeing fields that are there twice", _by_careful_json, (), frozenset()),
    ("msgspec", _by_msgspec, ("msgspec",), frozenset({_TWICE, "not UTF-8", "half a surrogate"})),
)

SUBJECT: Final = Subject(
    "bodies",
    "a body",
    tuple(
        Case(
            size,
            tuple(
                Candidate(name, partial(_begin, make, n), partial(_answers, make), needs, unable)
                for name, make, needs, unable in _WAYS
            ),
        )
        for size, n in SIZES.items()
    ),
)
