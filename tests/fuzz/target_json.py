"""Fuzz: the fields that Velox reads of a JSON body, against the parser that most upstreams use.

Input: a body, in which the byte 0x01 stands for a long text, 0x02 for one of many escapes, 0x03 for deep nesting,
0x04 for a name that takes much room for its characters.
Whatever it is: only VeloxError is raised, nothing of the body is in its message; and a body that passes has, for an
upstream, the very model, stream, token limit, user, number of answers and stream options that Velox acted on, each
once. A body that Velox makes ask for the usage is otherwise the same document, and one that it gives another model is
the same but for the bytes of the old one.
"""

from __future__ import annotations

import json

from velox.errors import VeloxError
from velox.protocol.json.body import BodyReader
from velox.protocol.json.edit import ask_for_usage, with_model
from velox.types import BodyFields

__all__ = ["run"]

_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_CHOICES = ("n", "best_of")
_OPTIONS = "stream_options"
_PROMPT = "prompt"
_FIELDS = {"model", "stream", "user", _OPTIONS, _PROMPT, *_LIMITS, *_CHOICES}
_EXPANDED = (
    (b"\x01", b"long text " * 400),
    (b"\x02", b"\\u00e9\\n\\\\" * 400),
    (b"\x03", b"[" * 1100),
    (b"\x04", b"\\ud83c\\udf0d" * 250),
)
# A marker that no message of ours has: what of the body is in a message, would have it.
_SHORTEST_ECHO = 12


_WALKED_BYTES = 512 * 1024  # in a longer body, a model that is hidden is not found
_OTHER_MODEL = "another model, that no input names"


class _Pairs(list[tuple[str, object]]):
    """An object, with every key."""


def run(data: bytes) -> None:
    """Read a body. Raises AssertionError, or what a bug raises."""
    body = data
    for short, long in _EXPANDED:
        body = body.replace(short, long)
    reader = BodyReader()
    peek = _read(reader, body)
    assert _read(reader, bytearray(body)) == peek, "read differently the second time"
    assert _read_in_steps(reader, body) == peek, "read differently in slices"
    if peek is not None:
        _check_as_upstream(body, peek)


def _read(reader: BodyReader, body: bytes | bytearray) -> BodyFields | None:
    try:
        return reader.read(body)
    except VeloxError as error:
        _check_message(error, bytes(body))
        return None


def _read_in_steps(reader: BodyReader, body: bytes) -> BodyFields | None:
    steps = reader.read_in_steps(body)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        peek: BodyFields = end.value
        return peek
    except VeloxError as error:
        _check_message(error, body)
        return None


def _check_message(error: VeloxError, body: bytes) -> None:
    """An error never repeats what it refuses."""
    assert error.message.isascii() and error.message.isprintable(), error.message
    message = error.message.encode()
    for at in range(len(message) - _SHORTEST_ECHO):
        piece = message[at : at + _SHORTEST_ECHO]
        assert piece not in body or _is_of_ours(piece), f"{error.message!r} repeats the body"


def _is_of_ours(piece: bytes) -> bool:
    """True for words that stand in messages whatever a body holds: a body may hold them too."""
    return any(piece in text for text in _OURS)


# The fixed texts of the messages; the fuzzer finds them and writes them into bodies.
_OURS = tuple(
    _text.encode()
    for _text in (
        *(f"body has the field {name} twice" for name in _FIELDS),
        *(f"{name} must be an integer of 0 or more, or null" for name in _LIMITS),
        "stream must be true, false or null",
        "model must be a string",
        "model must have 1 to 256 characters, none of them a control character",
        "body is not UTF-8: byte ",
        "body is not JSON: ",
        "body is JSON but not an object",
        "body is nested too deeply",
        "body is not strict JSON, which a body must be that has over 1 MiB beside its long strings, or over 20,000"
        " values",
        "body has over 10,000 fields",
        "body is no JSON object, or has over 512 fields beside over 200,000 values or 2 MiB of short strings",
    )
)


def _check_as_upstream(body: bytes, peek: BodyFields) -> None:
    try:
        document = json.loads(body.decode("utf-8-sig"), object_pairs_hook=_Pairs)
    except RecursionError:
        return  # an upstream that can't read it reads no other model
    assert isinstance(document, _Pairs), "no object passed"
    names = [name for name, _ in document if name in _FIELDS]
    assert len(names) == len(set(names)), "a field that counts passed twice"
    fields = dict(document)
    assert fields.get("model") == peek.model and (peek.model is not None or "model" not in fields), "another model"
    assert (fields.get("stream") or False) is peek.stream, "another stream"
    given = next((fields[name] for name in _LIMITS if fields.get(name) is not None), None)
    assert given == peek.max_tokens and not isinstance(given, float), "another token limit"
    user = fields.get("user")
    is_name = isinstance(user, str) and 1 <= len(user) <= 256
    assert peek.user == (str(user).encode(errors="replace").decode() if is_name else None), "another user"
    counts = [fields[name] for name in _CHOICES if type(fields.get(name)) is int]
    others = any(type(fields.get(name)) in (str, float) for name in _CHOICES)
    assert peek.n >= max([1, *counts]) and (others or peek.n == max([1, *counts])), "another number of answers"
    prompts = fields.get(_PROMPT)
    is_list = type(prompts) is list and bool(prompts) and type(prompts[0]) not in (int, float)
    assert peek.n_prompts == (len(prompts) if isinstance(prompts, list) and is_list else 1), "another number of prompts"
    assert peek.include_usage is (_asks(fields[_OPTIONS]) if _OPTIONS in fields else None), "other stream options"
    _check_asking(body, document, peek)
    _check_model(body, document, peek)


def _asks(options: object) -> bool:
    return isinstance(options, _Pairs) and dict(options).get("include_usage") is True


def _check_asking(body: bytes, document: _Pairs, peek: BodyFields) -> None:
    """What goes up instead of a body has the same fields in the same order, and once the options, that ask."""
    try:
        asking = ask_for_usage(body, peek)
    except VeloxError as error:
        assert error.param == _OPTIONS and peek.include_usage is False, "what asks is refused"
        return
    assert ask_for_usage(bytearray(body), peek) == asking, "a bytearray is changed in another way"
    if asking is None:
        return
    changed = json.loads(asking.decode("utf-8-sig"), object_pairs_hook=_Pairs)
    options = [value for name, value in changed if name == _OPTIONS]
    assert len(options) == 1 and _asks(options[0]), "a body that does not ask"
    # Compared as texts: NaN, which is none of Velox's business, is not equal to itself.
    others = [repr([(name, value) for name, value in each if name != _OPTIONS]) for each in (document, changed)]
    assert others[0] == others[1], "asking changed another field"


def _check_model(body: bytes, document: _Pairs, peek: BodyFields) -> None:
    """With another model it is the same text, but for that one's name in the document itself."""
    try:
        changed = with_model(body, _OTHER_MODEL)
    except VeloxError as error:
        assert len(body) > _WALKED_BYTES and error.param == "model", "a short body hides its model"
        return
    assert with_model(bytearray(body), _OTHER_MODEL) == changed, "a bytearray gets its model in another way"
    if peek.model is None:
        assert changed is body, "a model where there was none"
        return
    parts = bytes(changed).split(json.dumps(_OTHER_MODEL).encode())
    assert len(parts) == 2 and body.startswith(parts[0]) and body.endswith(parts[1]), "more than the model is new"
    old = body[len(parts[0]) : len(body) - len(parts[1])]
    assert json.loads(old) == peek.model, "the value of something else is new"
    fields = json.loads(changed.decode("utf-8-sig"), object_pairs_hook=_Pairs)
    wanted = [(name, _OTHER_MODEL if name == "model" else value) for name, value in document]
    assert repr(wanted) == repr(list(fields)), "another document"
