"""Bodies in one spelling, against a reader of JSON that is written here: it compares what two bodies say."""

from __future__ import annotations

import json
import re
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.policy.cache.canonical import NotCanonicalError, read_canonical

_TOKEN: Final = re.compile(r'\s*("(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null|[{}\[\]:,])')


def canonical(body: bytes, without: frozenset[str] = frozenset()) -> bytes | None:
    try:
        return read_canonical(body).text(without)
    except NotCanonicalError:
        return None


class Reference:
    """Reads a body with no library but for one string: into tuples that are equal when the bodies must be."""

    def __init__(self, body: bytes) -> None:
        self._tokens: Final = _TOKEN.findall(body.decode())
        self._at = 0

    def read(self) -> object:
        kind, fields = self._value()
        assert kind == "object"
        return kind, frozenset(fields)  # of the body itself, in any order

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _value(self) -> tuple[str, tuple[object, ...]]:
        token = self._next()
        if token == "{":
            return "object", self._fields()
        if token == "[":
            return "list", self._items()
        if token[0] == '"':
            return "text", (json.loads(token),)
        return "other", (token,)

    def _fields(self) -> tuple[object, ...]:
        found: list[object] = []
        while True:
            token = self._next()
            if token == "}":
                return tuple(found)
            if token == ",":
                continue
            assert self._next() == ":"
            found.append((json.loads(token), self._value()))

    def _items(self) -> tuple[object, ...]:
        found: list[object] = []
        while self._tokens[self._at] != "]":
            if self._tokens[self._at] == ",":
                self._at += 1
                continue
            found.append(self._value())
        self._at += 1
        return tuple(found)


_NAMES: Final = st.sampled_from(("a", "b", "model", "é", "\U0001f600", 'q"', "", "A"))
_NUMBERS: Final = st.sampled_from(("0", "1", "1.0", "1e0", "1E0", "10e-1", "-1", "0.1", "0.10", "123456789012345678"))
_BLANKS: Final = st.sampled_from(("", " ", "\n\t", "  "))


@st.composite
def spelled(draw: st.DrawFn, text: str) -> str:
    """A text as JSON: each character as it is, or escaped."""
    parts = []
    for char in text:
        code = ord(char)
        escaped = f"\\u{code:04x}" if code < 0x10000 else "".join(f"\\u{half:04X}" for half in _halves(code))
        plain = f"\\{char}" if char in '"\\' else char
        parts.append(draw(st.sampled_from((plain, escaped))))
    return f'"{"".join(parts)}"'


def _halves(code: int) -> tuple[int, int]:
    high, low = divmod(code - 0x10000, 0x400)
    return 0xD800 + high, 0xDC00 + low


@st.composite
def values(draw: st.DrawFn, depth: int = 2) -> str:
    kinds = ("number", "text", "word") + (("list", "object") if depth else ())
    kind = draw(st.sampled_from(kinds))
    if kind == "number":
        return draw(_NUMBERS)
    if kind == "text":
        return draw(spelled(draw(_NAMES)))
    if kind == "word":
        return draw(st.sampled_from(("true", "false", "null", '"null"', '"1"')))
    blank = draw(_BLANKS)
    if kind == "list":
        items = draw(st.lists(values(depth - 1), max_size=2))
        return f"[{blank}{f'{blank},'.join(items)}]"
    return draw(objects(depth - 1, most=2))


@st.composite
def objects(draw: st.DrawFn, depth: int = 2, most: int = 3) -> str:
    names = draw(st.lists(_NAMES, max_size=most, unique=True))
    blank = draw(_BLANKS)
    fields = [f"{draw(spelled(name))}{blank}:{blank}{draw(values(depth))}" for name in names]
    return f"{{{blank}{','.join(fields)}{blank}}}"


@given(objects(), objects())
def test_same_form_only_for_what_a_reader_takes_as_equal(one: str, other: str) -> None:
    """In both directions: what the reference calls equal has one form, and nothing else has."""
    a, b = one.encode(), other.encode()
    assert (canonical(a) == canonical(b)) == (Reference(a).read() == Reference(b).read())


@given(objects(), st.data())
def test_other_spelling_of_one_body_has_the_same_form(text: str, data: st.DataObject) -> None:
    """Fields of the body in another order, other blanks, other escapes."""
    pairs = list(json.loads(text, parse_float=_Text, parse_int=_Text, object_pairs_hook=tuple))
    shuffled = data.draw(st.permutations(pairs))

    def written(value: object) -> str:
        if isinstance(value, _Text):
            return value[:]
        if isinstance(value, str):
            return data.draw(spelled(value))
        if isinstance(value, list):
            return f"[ {', '.join(map(written, value))} ]"
        if isinstance(value, tuple):
            return f"{{ {', '.join(f'{data.draw(spelled(name))} :{written(each)}' for name, each in value)} }}"
        return json.dumps(value)

    again = written(tuple(shuffled))
    assert canonical(again.encode()) == canonical(text.encode()) is not None


class _Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a": 1}', b'{"a": 1.0}'),
        (b'{"a": 1.0}', b'{"a": 1.00}'),
        (b'{"a": 1e2}', b'{"a": 100}'),
        (b'{"a": "1"}', b'{"a": 1}'),
        (b'{"a": "1.5"}', b'{"a": 1.5}'),
        (b'{"a": {"x": 1, "y": 2}}', b'{"a": {"y": 2, "x": 1}}'),
        (b'{"a": null}', b"{}"),
        (b'{"a": []}', b'{"a": [[]]}'),
        ('{"a": "\u00e9"}'.encode(), '{"a": "e\u0301"}'.encode()),  # composed or not: other tokens of a model
        (b'{"a": "x"}', b'{"A": "x"}'),
    ],
)
def test_what_is_unequal_in_doubt(one: bytes, other: bytes) -> None:
    forms = canonical(one), canonical(other)
    assert None not in forms
    assert forms[0] != forms[1]


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1, "a": 1}',
        b'{"a": {"b": 1, "\\u0062": 2}}',
        b'{"a": "\\ud800"}',
        b'{"\\udc00": 1}',
        b'{"a": -0}',
        b'{"a": NaN}',
        b'{"a": 01}',
        b'{"a": 18446744073709551616}',
        b'{"a": "\x00"}',
        b'{"a": 1} {}',
        b"\xef\xbb\xbf{}",
        '{"a": "é"}'.encode("latin-1"),
        '{"a": 1}'.encode("utf-16"),
        b"[]",
        b"",
        b"[" * 100_000,
        b'{"a":' * 400 + b"1" + b"}" * 400,
        b'{"a": [' + b"1.5," * 300 + b"1]}",
        b'{"a": [' + b"{}," * 1200 + b"{}]}",
    ],
    ids=range(19),
)
def test_what_has_no_form(body: bytes) -> None:
    """Parsers differ about these, or they would hold a worker: nothing is kept for them."""
    assert canonical(body) is None


def test_fields_that_are_left_out_are_those_of_the_body_itself() -> None:
    one, other = b'{"user": "a", "x": {"user": 1}}', b'{"x": {"user": 2}, "user": "b"}'
    without = frozenset({"user"})
    assert canonical(one, without) == b'{"x":{"user":1}}'
    assert canonical(other, without) == b'{"x":{"user":2}}'


@pytest.mark.parametrize(
    ("body", "refers"),
    [
        (b'{"input": [{"type": "input_image", "file_id": "file-1"}]}', True),
        (b'{"m": [{"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}]}', True),
        (b'{"m": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}', False),
        (b'{"m": [{"fileData": {"fileUri": "gs://b/a.pdf"}}]}', True),
        (b'{"input": [{"type": "item_reference", "id": "msg_1"}]}', True),
        (b'{"m": [{"role": "assistant", "audio": {"id": "audio_1"}}]}', True),
        (b'{"t": [{"vector_store_ids": ["vs_1"]}]}', True),
        (b'{"tools": [{"parameters": {"properties": {"url": {"type": "string"}, "file_id": {}}}}]}', False),
        (b'{"required": ["url"]}', False),
    ],
)
def test_what_stands_for_something_elsewhere(body: bytes, refers: bool) -> None:
    """A file or a page may have changed; a schema only names such fields."""
    assert read_canonical(body).refers is refers
