"""JSON whose long strings are decoded in slices: the same comes of it as at one go (dialects/json_text/large.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.dialects.test_cross_garbage import translator_of
from velox.dialects.chat import wire
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.json_text import text as json_text
from velox.dialects.json_text.decoding import decode
from velox.dialects.json_text.large import decode_large
from velox.protocol.slices import SLICE_BYTES, is_ascii
from velox.types import ApiKind

MIB = 1 << 20
LONG = 8
PIECES = (*"ab ", "\\n", '\\"', "\\\\", "\\u0041", "\\ud83d\\ude00", "ä", "あ", "🙂", "/")
_TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
_VALUES = st.recursive(
    _TEXTS.map(lambda text: f'"{text}"') | st.sampled_from(["1", "-2.5", "null", "true"]),
    lambda inner: (
        st.lists(inner, max_size=5).map(lambda each: f"[{','.join(each)}]")
        | st.lists(st.tuples(_TEXTS, inner), max_size=5).map(
            lambda pairs: "{" + " , ".join(f'"{name}{n}" : {each}' for n, (name, each) in enumerate(pairs)) + "}"
        )
    ),
    max_leaves=20,
)


class Node(msgspec.Struct):
    a: msgspec.Raw = msgspec.Raw(b"")
    b: str | None = None
    c: list[str] = []
    d: dict[str, msgspec.Raw] = {}
    e: tuple[str, int] | None = None
    f: Node | None = None


ANY, RAW, NODE = msgspec.json.Decoder(), msgspec.json.Decoder(msgspec.Raw), msgspec.json.Decoder(Node)
FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def plain(value: object) -> object:
    """Return a value with nothing that is a view of something else."""
    match value:
        case msgspec.Raw():
            return bytes(value)
        case msgspec.Struct():
            return [plain(each) for each in msgspec.structs.astuple(value)]
        case list() | tuple():
            return [plain(each) for each in value]
        case dict():
            return {plain(name): plain(each) for name, each in value.items()}
    return value


@given(_VALUES)
def test_any_text_is_decoded_as_at_one_go(text: str) -> None:
    data = text.encode()

    assert decode_large(ANY, data, LONG) == ANY.decode(data)
    assert bytes(decode_large(RAW, data, LONG)) == data.strip()
    if text.startswith("{"):
        assert plain(decode_large(FIELDS, data, LONG)) == plain(FIELDS.decode(data))


@given(a=_VALUES, b=_TEXTS, c=_TEXTS, d=_VALUES)
def test_any_struct_is_decoded_as_at_one_go(a: str, b: str, c: str, d: str) -> None:
    inner = f'{{"a": {a} ,"b":"{b}","c":["{c}","{b}"],"d":{{"{c}x":{d}}},"e":["{b}",1]}}'
    data = f'{{"f":{inner},"a":[{inner}, {d}],"c":["{c}"]}}'.encode()

    assert plain(decode_large(NODE, data, LONG)) == plain(NODE.decode(data))


@given(_VALUES, st.integers(0, 300), st.sampled_from(["", '"', "\\", "\\x", "\x01", "}", "\\u12", "\\ud800"]))
def test_broken_text_is_broken_in_slices_too(text: str, at: int, put: str) -> None:
    broken = f'["{"x" * 50}",{text[:at]}{put}{text[at + 1 :]}]'.encode()
    try:
        wanted = ANY.decode(broken)
    except msgspec.DecodeError:
        with pytest.raises(msgspec.DecodeError):
            decode_large(ANY, broken, LONG)
    else:
        assert decode_large(ANY, broken, LONG) == wanted


def test_error_shows_nothing_that_nobody_sent() -> None:
    """What stands for a string is not the client's: where an error names one, it has dots."""
    decoder = msgspec.json.Decoder(wire.RequestBody)
    name = "n" * 5000
    data = b'{"messages":[],"model":"m","%b":1,"user":"%b"}' % (name.encode(), b"u" * SLICE_BYTES)

    with pytest.raises(msgspec.ValidationError, match=r"unknown field `\.\.\.`"):
        decode(decoder, data)
    with pytest.raises(msgspec.DecodeError) as raised:
        decode(decoder, data[:-1])
    assert "byte" not in str(raised.value)


@pytest.mark.parametrize("letters", ["a", '"', "\\", "\u3042", "\U0001f642", "\ud83d"])
@pytest.mark.parametrize("n", [SLICE_BYTES - 1, SLICE_BYTES, SLICE_BYTES + 1, 3 * SLICE_BYTES])
def test_large_strings_are_written_and_read_in_slices_as_at_once(letters: str, n: int) -> None:
    text = letters * n
    written = json_text.quoted(text)

    assert json.loads(written) == text
    assert json_text.decoded(written) == text


@pytest.mark.parametrize("at", [0, SLICE_BYTES - 1, SLICE_BYTES, 2 * SLICE_BYTES])
def test_text_of_ascii_is_known_in_slices(at: int) -> None:
    text = bytearray(b"a" * (2 * SLICE_BYTES + 1))
    assert is_ascii(text)
    text[at] = 0x80
    assert not is_ascii(text)


class Noting:
    """A decoder that notes how much it is given at once."""

    def __init__(self) -> None:
        self.n_bytes = 0
        self._decoder: Final = msgspec.json.Decoder(wire.RequestBody)

    def decode(self, data: bytes) -> wire.RequestBody:
        self.n_bytes = max(self.n_bytes, len(data))
        return self._decoder.decode(data)


CONTENTS = {
    "quotes": b'"%b"' % (b'\\"' * MIB),
    "quotes and backslashes": b'"%b"' % (b'\\"\\\\' * MIB),
    "escapes": b'"%b"' % (rb"\u0041" * MIB),
    "blanks": b'"%b"' % (b" " * MIB),
    "no ASCII": b'"%b"' % ("あ".encode() * MIB),
    "a part": b'[{"type":"text","text":"%b"}]' % (b"a" * MIB),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_no_call_decodes_megabytes(content: bytes) -> None:
    """Each had all of it: 10 to 25 ms for 24 MiB, while nothing else has the interpreter's lock."""
    data = b'{"model":"m","messages":[{"role":"user","content":%b}]}' % content
    noting = Noting()
    decoder = cast(msgspec.json.Decoder[wire.RequestBody], noting)

    assert bytes(decode(decoder, data).messages[0].content) == content
    assert noting.n_bytes < SLICE_BYTES


def test_translated_request_has_its_long_texts() -> None:
    """As a string, as a part, and in arguments of a call, which are a string of JSON in JSON."""
    texts = ['a " b' * MIB, "あ\n" * MIB, "\\" * MIB]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"x": texts[2]})}}
    messages = [
        {"role": "user", "content": texts[0]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": texts[1]}]},
    ]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    sent = translator_of(ApiKind.CHAT, ApiKind.MESSAGES, ModelFacts()).request(body, "m")

    assert set(texts) <= set(strings(json.loads(sent)))


def strings(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from strings(each)
        case dict():
            yield from strings([*value.values()])


def test_text_that_has_what_stands_for_strings_is_decoded_as_it_is() -> None:
    """Nobody can know it, as its key is the process's; who guesses it gets no other text for it."""
    long = "a" * 100
    begin = '["' + "b" * 100
    nonce = f"{hash(begin[:64].encode()) & ((1 << 64) - 1):016x}"
    data = f'{begin}","{nonce}00000000","{long}"]'.encode()

    assert decode_large(ANY, data, 50) == ["b" * 100, f"{nonce}00000000", long]
