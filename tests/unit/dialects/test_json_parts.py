"""JSON of very many values is decoded part by part: the same comes of it as at one go (dialects/json_text/parts.py)."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.dialects.test_large_json import plain
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.chat import wire
from velox.dialects.json_text.decoding import decode, decoded_request
from velox.dialects.json_text.large import decode_large
from velox.dialects.json_text.parts import PART_BYTES, decode_parts
from velox.protocol.json.blanks import without_long_blanks

PART = 24
_TEXTS = st.lists(st.sampled_from([*"ab, []{}:", "\\n", '\\"', "\\\\", "\\u005b", "ä"]), max_size=12).map("".join)
_BLANKS = st.sampled_from(["", "", " ", "\n\t ", " " * 40])
_SCALARS = _TEXTS.map(lambda text: f'"{text}"') | st.sampled_from(["1", "-2.5e3", "null", "true", "12345678901"])


@st.composite
def lists(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    items = draw(st.lists(inner, max_size=12))
    return "[" + ",".join(draw(_BLANKS) + each + draw(_BLANKS) for each in items) + draw(_BLANKS) + "]"


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    pairs = draw(st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d", "e", "\\u0061", "x"]), inner), max_size=5))
    return "{" + ",".join(f'{draw(_BLANKS)}"{name}"{draw(_BLANKS)}:{each}' for name, each in pairs) + "}"


_VALUES = st.recursive(_SCALARS, lambda inner: lists(inner) | objects(inner), max_leaves=60)


class Leaf(msgspec.Struct):
    a: msgspec.Raw = msgspec.Raw(b"")
    b: Any = None
    c: list[Any] | str | None = None


class Tree(msgspec.Struct, rename={"others": "x"}):
    a: list[msgspec.Raw] | str | float | None = None
    b: dict[str, msgspec.Raw] | list[Leaf] | str | float | bool | None = None
    c: list[list[Any]] | str | None = None
    d: list[Tree] | Leaf | None = None
    others: tuple[str, ...] | str | None = None


DECODERS: list[msgspec.json.Decoder[Any]] = [
    msgspec.json.Decoder(),
    msgspec.json.Decoder(msgspec.Raw),
    msgspec.json.Decoder(list[msgspec.Raw]),
    msgspec.json.Decoder(dict[str, msgspec.Raw]),
    msgspec.json.Decoder(dict[str, list[Any]]),
    msgspec.json.Decoder(list[Leaf]),
    msgspec.json.Decoder(Tree | list[Tree]),
    msgspec.json.Decoder(list[list[float]]),
]


def outcome(decoder: msgspec.json.Decoder[Any], text: bytes, *, in_parts: bool) -> object:
    """Return the decoded value, with raw values as their text."""
    try:
        found = decode_parts(decoder, text, PART) if in_parts else decoder.decode(text)
    except msgspec.ValidationError:
        return "of another type"
    except msgspec.DecodeError:
        return "no JSON"
    return plain(found)


def same(found: object, wanted: object) -> bool:
    """Compare what was decoded; of raw values where they stand, blanks around them aside."""
    match found, wanted:
        case bytes(), bytes():
            return found.strip() == wanted.strip()
        case list(), list():
            return len(found) == len(wanted) and all(map(same, found, wanted))
        case dict(), dict():
            return found.keys() == wanted.keys() and all(same(found[name], wanted[name]) for name in found)
    return type(found) is type(wanted) and found == wanted


@given(_VALUES, st.sampled_from(DECODERS))
def test_any_text_is_decoded_as_at_one_go(text: str, decoder: msgspec.json.Decoder[Any]) -> None:
    data = text.encode()

    assert same(outcome(decoder, data, in_parts=True), outcome(decoder, data, in_parts=False))


@given(_VALUES, st.sampled_from(DECODERS), st.integers(0, 400), st.sampled_from(["", *'[]{},:"\\ 1', "[]", ",,", '""']))
def test_broken_text_is_refused_as_at_one_go(text: str, decoder: msgspec.json.Decoder[Any], at: int, put: str) -> None:
    data = (text[:at] + put + text[at + 1 :]).encode()
    wanted = outcome(decoder, data, in_parts=False)
    found = outcome(decoder, data, in_parts=True)

    if isinstance(wanted, str) and wanted in ("of another type", "no JSON"):
        assert found in ("of another type", "no JSON")
    else:
        assert same(found, wanted)


ITEMS = [{"role": "user", "content": "x"}] * 60_000
LONG = {
    "a list": (wire.RequestBody, {"model": "m", "messages": ITEMS}),
    "a list of lists": (list[list[float]], [[0.5] * 40_000] * 3),
    "a list in an object in an object": (dict[str, dict[str, list[wire.Message]]], {"a": {"b": ITEMS}}),
    "a raw list": (dict[str, msgspec.Raw], {"a": 1, "b": ITEMS}),
    "texts of a kilobyte": (list[str], ["x" * 1000] * 2_000),
}


@pytest.mark.parametrize(("kind", "value"), LONG.values(), ids=LONG)
def test_no_call_decodes_very_many_values(kind: Any, value: object) -> None:
    """The longest call took 10 to 20 ms, in which nothing else had the interpreter's lock."""
    data = json.dumps(value).encode()
    given: list[int] = []

    class Noting:
        """What is made for each type; notes how much it is given at once."""

        def __init__(self, kind: Any, *, strict: bool) -> None:
            self._decoder = msgspec.json.Decoder(kind, strict=strict)

        def decode(self, data: bytes) -> object:
            given.append(len(data))
            return self._decoder.decode(data)

    found = decode_parts(msgspec.json.Decoder(kind), data, make=cast(Any, Noting))

    assert same(plain(found), plain(msgspec.json.decode(data, type=kind)))
    assert max(given) < 3 * PART_BYTES
    assert len(given) > len(data) / PART_BYTES / 3


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"messages": [*ITEMS, {"role": 5}]}, "messages[60000].role"),
        ({"messages": ITEMS, "tools": [{"type": "function", "function": {"name": 1}}]}, "tools[0].function.name"),
        (
            {"messages": [{"role": "user", "tool_calls": [{"id": "c"}] * 90_000 + [{"id": 1}]}]},
            "messages[0].tool_calls[90000].id",
        ),
    ],
)
def test_error_names_the_place(body: dict[str, Any], place: str) -> None:
    with pytest.raises(BadRequestError) as raised:
        decoded_request(msgspec.json.Decoder(wire.RequestBody), json.dumps({"model": "m", **body}).encode())

    assert raised.value.param == place
    assert "byte" not in raised.value.message


def test_error_of_broken_json_says_so() -> None:
    text = json.dumps({"model": "m", "messages": ITEMS}).encode()
    for broken in (text[:-2], text[:-1] + b"]", text.replace(b'"x"}, {', b'"x"} {', 1), text[:-3] + b"]}}"):
        with pytest.raises(msgspec.DecodeError, match=r"malformed|truncated|trailing") as raised:
            decode(msgspec.json.Decoder(wire.RequestBody), broken)
        assert "byte" not in str(raised.value)


@given(_VALUES, st.integers(0, 400), st.sampled_from([" ", "\t", "\r\n", " \n"]))
def test_long_blanks_are_left_out_of_what_is_no_string(text: str, at: int, blank: str) -> None:
    data = json.dumps(json.loads(text)).encode() if "\\" in text else text.encode()
    run = blank.encode() * 9000
    long = data[:at] + run + data[at:]
    short = without_long_blanks(long)
    try:
        wanted = json.loads(long)
    except ValueError:
        with pytest.raises(ValueError):
            json.loads(short)
    else:
        assert json.loads(short) == wanted
        assert len(short) < len(data) + 1000 or run in short


@pytest.mark.parametrize("blank", [" ", "\n", "\t", " \r\n"])
@pytest.mark.parametrize("place", ["[%b1]", '{"a"%b:1}', '{"a":[{"b":"c"%b}]}', '"\\\\"%b'])
def test_megabytes_of_blanks_are_passed_over_in_slices(blank: str, place: str) -> None:
    """They took 100 ms in one call."""
    text = place.encode().replace(b"%b", blank.encode() * 3_000_000)
    short = without_long_blanks(text)

    assert len(short) < 1000
    assert json.loads(short) == json.loads(place.replace("%b", ""))
    assert decode_large(msgspec.json.Decoder(), text) == json.loads(short)


@pytest.mark.parametrize("content", [" " * 100_000, '\\"' * 50_000 + " " * 9000, "\\\\" + " " * 9000])
def test_blanks_of_a_string_stay(content: str) -> None:
    text = f'["{content}",1]'.encode()

    assert without_long_blanks(text) == text
