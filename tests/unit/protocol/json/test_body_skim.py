"""Large bodies: read in slices, with the same result as at one go."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox.errors import Reason, VeloxError
from velox.protocol.json.body import BodyReader
from velox.protocol.json.skim import skim
from velox.types import BodyFields

T = TypeVar("T")
LONG = 3_000_000


def run(steps: Generator[None, None, T]) -> tuple[T, int]:
    """Run to the end; return the result and the number of times that others had a turn."""
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value, turns
        turns += 1


def read(body: bytes | bytearray) -> BodyFields:
    return run(BodyReader().read_in_steps(body))[0]


def refusal(body: bytes) -> VeloxError:
    with pytest.raises(VeloxError) as refused:
        read(body)
    return refused.value


def chat(content: bytes, rest: bytes = b"") -> bytes:
    return b'{"model":"m","stream":true,"messages":[{"role":"user","content":"' + content + b'"}]' + rest + b"}"


CONTENTS = {
    "base64": b"QUJD" * (LONG // 4),
    "line breaks": b"a line of text\\n" * (LONG // 16),
    "two-byte characters": "ä".encode() * (LONG // 2),
    "four-byte characters, shifted": b"x" + "🙂".encode() * (LONG // 4),
    "escaped quote here and there": (b"x" * 5000 + b'\\"') * 600,
    "backslashes at the end": b"x" * LONG + b"\\\\" * 3,
    "backslashes only": b"\\\\" * (LONG // 2),
    "backslashes before a quote": b"\\\\" * (LONG // 4) + b'\\"' + b"\\\\" * (LONG // 4),
    "lone surrogate": b"x" * LONG + b"\\ud800" + b"y" * LONG,
    "escapes only": b"\\u00e4" * (LONG // 6),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())
def test_large_body_is_read_as_a_small_one(content: bytes) -> None:
    """The fields are found before and behind a long string, whatever is in it."""
    body = chat(content, b',"max_tokens":7,"user":"u"')

    assert json.loads(body)["max_tokens"] == 7
    assert read(body) == read(bytearray(body)) == BodyFields(model="m", stream=True, max_tokens=7, user="u")


def test_texts_that_count_are_read_in_slices_as_at_once() -> None:
    """The longest model there is, each of its characters 12 bytes; a `user` that is too long to be one is none."""
    model = "\\ud83c\\udf0d" * 256
    longest, longer = "u" * 256, "u" * 5000
    for user, wanted in ((longest, longest), (longer, None)):
        body = b'{"model":"%b","user":"%b","a":"%b"}' % (model.encode(), user.encode(), CONTENTS["base64"])

        assert read(body) == BodyReader().read(body) == BodyFields(model="\U0001f30d" * 256, user=wanted)


@pytest.mark.parametrize(
    "name", ["base64", "two-byte characters", "four-byte characters, shifted", "backslashes only", "escapes only"]
)
def test_long_string_is_walked_in_slices_and_left_out(name: str) -> None:
    """Between two slices of 64 KiB the loop has a turn; what is parsed at the end is small, whatever was in it."""
    body = chat(CONTENTS[name])

    skimmed, turns = run(skim(body, lambda _data, _offset: None))

    assert len(skimmed.data) < 200
    assert turns >= LONG // (64 * 1024)


def test_megabytes_of_short_strings_are_not_parsed_at_once() -> None:
    """A long conversation: 53 MB of it held the loop for 60 ms and more."""
    text = b'{"role":"user","content":"%b"},' % (b"x" * 900)
    body = b'{"model":"m","messages":[%b{}],"stream":true}' % (text * (LONG // len(text)))

    fields, turns = run(BodyReader().read_in_steps(body))

    assert fields == BodyFields(model="m", stream=True)
    assert turns >= len(body) // (32 * 1024)


@pytest.mark.parametrize("n_backslashes", range(120, 140))
def test_end_of_a_string_behind_backslashes_is_found(n_backslashes: int) -> None:
    """Whether a quote is escaped depends on all backslashes before it, in however many pieces they are counted."""
    content = b"x" * LONG + b"\\" * n_backslashes + (b'"' if n_backslashes % 2 else b"")
    body = chat(content, b',"user":"u"')

    assert json.loads(body)["user"] == "u"
    assert read(body) == BodyFields(model="m", stream=True, user="u")
    assert len(run(skim(body, lambda _data, _offset: None))[0].data) < 200


def test_backslashes_are_counted_in_slices() -> None:
    """A string of nothing else, of megabytes, gives others their turns before its end is found."""
    _, turns = run(skim(chat(CONTENTS["backslashes only"]), lambda _data, _offset: None))

    assert turns >= LONG // (64 * 1024)


@pytest.mark.parametrize(
    ("fault", "words"),
    [(b"\x01", "control character"), (b"\\x", "escape"), (b"\xff", "not UTF-8"), (b"\xc3", "not UTF-8")],
)
def test_fault_in_a_long_string_is_named_with_its_place(fault: bytes, words: str) -> None:
    """Not JSON: 400 that says where, in a body of any size."""
    body = chat(b"x" * LONG + fault + b"y" * LONG)

    error = refusal(body)

    assert error.reason is Reason.INVALID_JSON
    assert words in error.message
    place = int(error.message.rsplit("byte ", 1)[1])
    assert abs(place - body.index(fault)) <= 1


@pytest.mark.parametrize("tail", [b"", b"}}", b"]", b" {}"])
def test_fault_behind_a_long_string_is_placed_in_the_body(tail: bytes) -> None:
    """The place that is named counts what was left out before the parse."""
    body = chat(CONTENTS["base64"])[:-1] + tail
    with pytest.raises(json.JSONDecodeError) as expected:
        json.loads(body)

    message = refusal(body).message

    assert int(message.rsplit("byte ", 1)[1]) == expected.value.pos


def test_duplicate_key_behind_a_long_string_is_refused() -> None:
    """B-32 holds for large bodies too."""
    error = refusal(chat(CONTENTS["base64"], b',"mod\\u0065l":"other"'))

    assert (error.reason, error.param) == (Reason.DUPLICATE_KEY, "model")


def test_string_without_an_end_is_refused() -> None:
    """A large body that was cut inside its long string is no JSON."""
    assert refusal(b'{"model":"' + b"x" * LONG).reason is Reason.INVALID_JSON


def test_body_of_short_strings_is_left_as_it_is() -> None:
    """Where looking costs more than parsing, the body is parsed at one go."""
    body = json.dumps({"model": "m", "messages": ["short"] * 300_000}).encode()

    skimmed, _ = run(skim(body, lambda _data, _offset: None))

    assert skimmed.data is body
    assert read(body) == BodyFields(model="m")


PIECES = st.lists(
    st.one_of(
        st.text(max_size=30),
        st.sampled_from(
            ["x" * 3072, "x" * 3073, '"' * 40, "\\" * 41, "ä" * 2000, "\n\t" * 900, "🙂" * 700, "\ud800" * 300]
        ),
    ),
    max_size=6,
).map("".join)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), PIECES), lambda inner: st.lists(inner, max_size=4)
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(document=st.dictionaries(PIECES, VALUES, max_size=5), ascii_only=st.booleans())
def test_what_is_left_out_is_content_of_strings_only(document: dict[str, object], ascii_only: bool) -> None:
    """Property: put back what was left out, and it is the body again; each part was a string's whole content."""
    text = json.dumps(document, ensure_ascii=ascii_only)
    try:
        body = text.encode()
    except UnicodeEncodeError:
        body = json.dumps(document).encode()

    skimmed, _ = run(skim(body, lambda _data, _offset: None))

    json.loads(skimmed.data)
    rebuilt, copied, before = b"", 0, 0
    for at, left_out in skimmed.cuts:
        rebuilt += skimmed.data[copied:at]
        content = body[len(rebuilt) : len(rebuilt) + left_out - before]
        json.loads(b'"%b"' % content)
        assert rebuilt.endswith(b'"')
        rebuilt += content
        assert body[len(rebuilt) : len(rebuilt) + 1] == b'"'
        assert skimmed.origin(at) == len(rebuilt)
        copied, before = at, left_out
    assert rebuilt + skimmed.data[copied:] == body
