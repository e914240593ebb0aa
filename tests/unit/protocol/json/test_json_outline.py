"""The outline of a JSON object, read as it comes: what the standard library finds at its top, however it is cut."""

from __future__ import annotations

import json
import random

import pytest

from velox.protocol.json.outline import Outline

NAMES = (b"usage", b"model", b"service_tier")
PATHS = ("usage", "model", "service_tier", *(f"response.{name.decode()}" for name in NAMES))
WORDS = ["usage", 'a"b', "\\", '\\\\"', "{[", "}]", "x" * 50, '"usage":{"a":1}', "é\n", "", "service_tier", "model"]


def outline(*pieces: bytes) -> object:
    """Return what is found; None: the document is not whole."""
    reader = Outline(*PATHS)
    for piece in pieces:
        reader.feed(piece)
        assert reader.n_kept <= 48 * 1024
    text = reader.text()
    return None if text is None else json.loads(text)


def cut(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


class Maker:
    """Writes documents, each in many ways."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def value(self, depth: int) -> object:
        kind = self.chance.randrange(9 if depth > 0 else 5)
        if kind < 2:
            return self.chance.choice(WORDS)
        if kind < 5:
            return self.chance.choice([None, True, False, 1, -2.5, 1e30, [], {}])
        if kind < 7:
            return [self.value(depth - 1) for _ in range(self.chance.randrange(5))]
        return {self.chance.choice(WORDS): self.value(depth - 1) for _ in range(self.chance.randrange(5))}

    def write(self, value: object) -> str:
        blank = self.chance.choice(["", "", " ", "\n  ", "\r\n\t"])
        if isinstance(value, dict):
            members = (f"{self.string(name)}{blank}:{blank}{self.write(each)}" for name, each in value.items())
            return "{" + blank + f"{blank},".join(members) + blank + "}"
        if isinstance(value, list):
            return "[" + blank + f"{blank},".join(map(self.write, value)) + "]"
        return self.string(value) if isinstance(value, str) else json.dumps(value)

    def string(self, text: str) -> str:
        """Write a string with some of its letters escaped that need not be."""
        letters = (
            f"\\u{ord(letter):04x}"
            if self.chance.random() < 0.3 and ord(letter) < 128
            else json.dumps(letter, ensure_ascii=self.chance.random() < 0.5)[1:-1]
            for letter in text
        )
        return '"' + "".join(letters) + '"'

    def document(self) -> str:
        """Write an object, whose names may be there twice."""
        names = ["usage", "model", "service_tier", "response", "x", 'u"', "message"]
        members = [
            f"{self.string(self.chance.choice(names))} : {self.write(self.value(self.chance.randrange(5)))}"
            for _ in range(self.chance.randrange(7))
        ]
        return "{" + ",".join(members) + "}" + self.chance.choice([*[""] * 9, " ", "\n", "x", "}"])


def found(text: str) -> object:
    """Return what the standard library finds of what is asked for; None: it is no JSON."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    top = {name: value for name, value in document.items() if name.encode() in NAMES}
    if "response" in document:
        inside = document["response"]
        is_object = isinstance(inside, dict)
        top["response"] = {name: inside[name] for name in inside if name.encode() in NAMES} if is_object else None
    return top


@pytest.mark.parametrize("n_documents", [500, pytest.param(50_000, marks=pytest.mark.more)])
def test_outline_is_what_a_parser_finds_however_a_document_is_written_and_cut(n_documents: int) -> None:
    """Escaped names, equal names, brackets and quotes in strings, what follows the end."""
    for seed in range(n_documents):
        maker = Maker(seed)
        text = maker.document()
        sizes = (1, maker.chance.randrange(2, 9), maker.chance.randrange(9, 40), len(text.encode()))
        for size in sizes:
            assert outline(*cut(text.encode(), size)) == found(text), (seed, size, text)


@pytest.mark.parametrize("size", [13, 1000, 70_000])
@pytest.mark.parametrize(
    "value",
    [
        "x" * 300_000,
        '"\\' * 100_000,
        [[["}"] * 3] * 10] * 5_000,
        {"a": [{"b": "]"}, {"c": '"{'}]},
        [0.25] * 50_000,
        [],
    ],
    ids=["text", "escapes", "short strings", "brackets in strings", "numbers", "nothing"],
)
def test_values_of_any_length_are_passed_over_in_bounded_memory(value: object, size: int) -> None:
    document = {"model": "m", "pad": value, "usage": {"a": 1}, "more": {"x": value}}

    assert outline(*cut(json.dumps(document).encode(), size)) == {"model": "m", "usage": {"a": 1}}


def test_value_that_is_too_long_is_null_and_what_follows_is_read() -> None:
    for value in ("x" * 20_000, ["x"] * 20_000, {"a": "x" * 20_000}):
        text = json.dumps({"usage": value, "model": "m"}).encode()
        for size in (7, len(text)):
            assert outline(*cut(text, size)) == {"usage": None, "model": "m"}


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b" ", b"[]", b'"usage"', b"1", b"x{}", b'{"usage":1', b'{"usage":[}', b'{"usage":}'),
        *(b'{"usage":1}}', b'{"usage":1}{}', b"{usage:1}", b'{"a":"b":1}', b'{"a":[{]}]}', b"\xef\xbb{}", b"{]"),
        b"{" + b",".join(b'"%d":1' % n for n in range(600)) + b"}",
        b"\x1f\x8b\x08\x00",
    ],
)
def test_what_is_no_whole_object_has_no_outline(text: bytes) -> None:
    for size in (1, 1000):
        assert outline(*cut(text, size)) is None


def test_byte_order_mark_is_passed_over() -> None:
    text = b"\xef\xbb\xbf" + b'{"usage":1}'

    assert outline(text) == outline(*cut(text, 1)) == {"usage": 1}


def test_objects_of_an_array_each_have_their_outline() -> None:
    """As they become whole, however the array is cut; one that is cut off has none."""
    for seed in range(200):
        maker = Maker(seed)
        documents = [text for text in (maker.document() for _ in range(5)) if found(text) is not None]
        text = ("[" + ",\n".join(documents) + "]").encode()
        size = maker.chance.choice((1, 7, 50, len(text)))
        reader = Outline(*PATHS, in_array=True)
        told: list[object] = []
        for piece in cut(text + b'\n[{"usage":1', size):
            reader.feed(piece)
            told += map(json.loads, reader.take())

        assert told == [found(document) for document in documents]
        assert not reader.is_broken
        reader.feed(b"]")
        assert reader.is_broken
        assert reader.take() == []
