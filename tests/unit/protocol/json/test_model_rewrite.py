"""Another model in a request: its name is written anew, and not a byte beside it."""

from __future__ import annotations

import json
import random
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.errors import Reason, VeloxError
from velox.protocol.json.body import BodyReader
from velox.protocol.json.edit import Field, naming_model, with_model, with_model_in_steps, with_query_model

KIB = 1024
SPELLINGS = [b'"model"', b'"mod\\u0065l"', b'"\\u006dodel"', b'"\\u006D\\u006f\\u0064\\u0065\\u006C"']


def rewritten(body: bytes, model: str = "new") -> bytes:
    """Rewrite bytes and a bytearray, which must give the same, and stay as they are."""
    array = bytearray(body)
    out = with_model(body, model)
    assert with_model(array, model) == out
    assert array == body
    return bytes(out)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":%b}',
        b'{"model":%b,"stream":true}',
        b'\xef\xbb\xbf \r\n{\t"model" : \n%b , "n" : 1 }\r\n',
        b'{"messages":[{"role":"user","content":"hi"}],"model":%b}',
        b'{"messages":[{"content":"\\"model\\":\\"x\\""}],"model":%b,"tools":[{"a":{"model":"x"}}]}',
        b'{"a":{"model":"x"},"model":%b,"b":[{"model":"y"},{"model":{"model":"z"}}]}',
        b'{"a":[{"model":"x"}],"b":[[],{}],"c":{"d":{}},"model":%b}',
        b'{"a":"model","model":%b,"b":"model"}',
        b'{"a":"{[{[","model":%b,"b":"]}","c":"\\\\"}',
        b'{"a":"\\\\\\"{","b":{"model":"x"},"model":%b,"c":["}","\\\\","model"]}',
        b'{"\\"model":"x","model\\"":"x","\\\\\\"model":1,"model":%b}',
        b'{"\\"model" : "x" , "a":[1], "model":%b}',
        b'{"":"","":[""],"{":"}","model":%b,"}":"{","\\u007b":[]}',
        # What simdjson refuses, and Velox reads all the same.
        b'{"a":"\\ud800","model":%b}',
        b'{"model":%b,"seed":123456789012345678901234567890}',
        # Somewhere in many members on both sides.
        b'{"a":[' + b'{"model":"x"},' * 50 + b'1],"model":%b,"b":[' + b'{"model":"x"},' * 70 + b"1]}",
        b'{"a":[' + b'{"model":"x"},' * 200 + b'1],"model":%b,"b":[' + b'{"model":"x"},' * 70 + b"1]}",
    ],
)
@pytest.mark.parametrize("old", ["old", 'with "quotes" and \\', "ä🌍", "}"])
def test_body_names_the_other_model_and_is_otherwise_as_it_was(body: bytes, old: str) -> None:
    """The value of the document's own member goes; what only looks like it stays."""
    for text in (json.dumps(old), json.dumps(old, ensure_ascii=False)):
        assert rewritten(body % text.encode()) == body % b'"new"'


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_key_is_found_however_it_is_written(spelling: bytes) -> None:
    """A key in escapes is the same key, whatever other ones are there, and keeps its spelling."""
    body = b'{"a":{"model":"x","mod\\u0065l":"y"},"model ":"x","modem":["model"],%b :%b,"b":[{"model":"x"}]}'

    assert rewritten(body % (spelling, b'"old"')) == body % (spelling, b'"new"')


@pytest.mark.parametrize("body", [b"{}", b'{"a":{"model":"x"}}', b'{"a":"model","b":["model"]}', b'{"model":null}'])
def test_body_without_a_model_stays_as_it_is(body: bytes) -> None:
    """Nothing is put in: what an upstream does without a model is its own choice."""
    assert with_model(body, "new") is body


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"a":1}', b'{"model":"n\xc3\xa9w","a":1}'),
        (b" {} ", b' {"model":"n\xc3\xa9w"} '),
        (b'{ "b" : {"model":1}}', b'{"model":"n\xc3\xa9w", "b" : {"model":1}}'),
        (b'{"model":"old","a":1}', b'{"model":"n\xc3\xa9w","a":1}'),
    ],
)
def test_body_names_the_model_though_it_had_none(body: bytes, named: bytes) -> None:
    """Where the path named it, which is built anew."""
    assert naming_model(body, "néw") == named == naming_model(bytearray(body), "néw")


def test_body_that_names_the_model_already_is_not_copied() -> None:
    body = b'{"model": "new"}'

    assert with_model(body, "new") is body


def test_model_is_written_as_json() -> None:
    """A name of the settings may have any characters."""
    out = rewritten(b'{"model":"old"}', 'a"b\\c/ä\U0001f30d')

    assert json.loads(out) == {"model": 'a"b\\c/ä\U0001f30d'}


def test_what_was_rewritten_can_be_rewritten() -> None:
    """An attempt at another upstream, where the model has another name."""
    body = b'{"stream":true,"model":"old" }'

    once = with_model(body, "one")
    again = with_model(once, "another")

    assert again == b'{"stream":true,"model":"another" }'


@pytest.mark.parametrize("length", [64 * KIB - 40, 64 * KIB, 10 * KIB * KIB])
@pytest.mark.parametrize("model_at", [0, 1, 2])
def test_large_body_is_rewritten(length: int, model_at: int) -> None:
    """A picture in it, and tools that have a parameter of that name."""
    members = [b'"messages":[{"content":[{"model":"x","url":"%b"}]}]' % (b"A" * length), b'"tools":[{"model":{}}]']
    members.insert(model_at, b'"model":"%b"')
    body = b"{%b}" % b",".join(members).replace(b"%b", b"old")

    assert rewritten(body) == b"{%b}" % b",".join(members).replace(b"%b", b"new")


MANY = b'{"model":1},' * 5000 + b"1"
HIDDEN = {
    "escaped": b'{"x":"%b","mod\\u0065l":"old"}',
    "among many": b'{"x":"%b","a":[' + MANY + b'],"model":"old","b":[' + MANY + b"]}",
    "among values": b'{"x":"%b","a":["' + b'model","' * 5000 + b'"],"model":"old","b":["' + b'model","' * 5000 + b'"]}',
}


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
def test_hidden_model_of_a_long_body_is_refused(hidden: bytes) -> None:
    """Where it is not found but by a walk through all of the body, no other request would move meanwhile."""
    at_most = 512 * KIB
    longest = hidden % (b"x" * (at_most - len(hidden) + 2))
    assert len(longest) == at_most and BodyReader().read(longest).model == "old"
    assert rewritten(longest) == longest.replace(b'"old"', b'"new"')

    with pytest.raises(VeloxError, match="over 512 KiB; write it first") as refused:
        with_model(longest + b" ", "new")
    assert (refused.value.reason, refused.value.param) == (Reason.BAD_REQUEST, "model")


TRICKY = (
    rb'"\\","{","\"}","[{\"model\":\"x\"}]",{"model":"y","z":[{}]},"","\\\"","}}"',
    rb'"\\\\\\\\\\\\\\\\\\\\","}","{{{",{"a":{"model":"x"}},"\\\"[[["',
)


@pytest.mark.parametrize("tricky", TRICKY)
@pytest.mark.parametrize("shift", range(0, 90, 3))
def test_slices_of_a_large_body_end_anywhere(tricky: bytes, shift: int) -> None:
    """Inside a text, an escape or a key, between brackets: what is counted, found and copied is the same."""
    fill = b'"%b",' % (b"a" * (256 * KIB - 20 - shift))
    side = b"[%b%b,%b%b]" % (fill, tricky, fill, tricky)
    body = b'{"x":%b,"model":"old","y":%b}' % (side, side)

    assert rewritten(body) == body.replace(b'"model":"old"', b'"model":"new"')
    hidden = body.replace(b'"model":"old"', b'"other":"old"')
    assert Field("model").find(hidden) == -1 and rewritten(hidden) == hidden


def test_large_body_is_rewritten_in_short_steps() -> None:
    """60 MiB held the loop for 200 ms: each step looks at a slice, or copies one."""
    small = b'{"role":"user","content":"x"},' * 20_000
    steps = with_model_in_steps(b'{"x":[%b1],"model":"old","y":[%b1]}' % (small, small), "new")
    n_steps = sum(1 for _ in steps)
    assert n_steps > 2 * len(small) / (256 * KIB)


def test_long_body_without_a_model_is_not_refused() -> None:
    """Escapes that can be no letter of the key hide nothing."""
    body = b'{"x":"%b\\u00e9","a":{"model":"x"}}' % (b"x" * 600 * KIB)

    assert with_model(body, "new") is body


TEXTS = st.sampled_from(
    ["", "model", '"model"', '"model":', "\\", '\\"', "}", "{[", "\\u0065", "é", "\ud800", "\x7f\n"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.just(10**30) | st.just(1.5) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def written(value: object, rng: random.Random) -> bytes:
    """Write JSON, with blanks and escapes anywhere that they may be."""
    blank = rng.choice([b"", b"", b" ", b"\r\n\t "])
    if isinstance(value, str):
        return blank + b'"%b"' % b"".join(_char(char, rng) for char in value) + blank
    if isinstance(value, list):
        return blank + b"[%b]" % (b",".join(written(each, rng) for each in value) or blank) + blank
    if isinstance(value, dict):
        members = (written(name, rng) + b":" + written(each, rng) for name, each in value.items())
        return blank + b"{%b}" % (b",".join(members) or blank) + blank
    return blank + json.dumps(value).encode() + blank


def _char(char: str, rng: random.Random) -> bytes:
    if rng.random() < 0.2 or "\ud800" <= char <= "\udfff":
        escaped = json.dumps(char)[1:-1] if ord(char) > 0xFFFF else f"\\u{ord(char):04x}"
        return rng.choice([escaped, escaped.upper().replace("\\U", "\\u")]).encode()
    return json.dumps(char, ensure_ascii=False)[1:-1].encode()


@pytest.mark.slow
@given(
    before=st.dictionaries(TEXTS.filter(lambda name: name != "model"), VALUES, max_size=4),
    after=st.dictionaries(TEXTS.filter(lambda name: name != "model"), VALUES, max_size=4),
    old=st.sampled_from(["old", 'a"b', "\\", "é", "\U0001f30d"]),
    new=st.text('ab"\\{é\U0001f30d', min_size=1),
    rng=st.randoms(use_true_random=False),
)
def test_nothing_but_the_value_changes(
    before: dict[str, object], after: dict[str, object], old: str, new: str, rng: random.Random
) -> None:
    """Whatever stands around it, and however it is written."""
    head = [written(name, rng) + b":" + written(value, rng) for name, value in before.items()]
    tail = [written(name, rng) + b":" + written(value, rng) for name, value in after.items() if name not in before]
    key, value = written("model", rng), written(old, rng)
    blanks = value[: value.index(b'"')], value[value.rindex(b'"') + 1 :]
    body = b"{%b}" % b",".join([*head, key + b":" + value, *tail])
    assert BodyReader().read(body).model == old

    out = rewritten(body, new)

    member = key + b":" + blanks[0] + json.dumps(new, ensure_ascii=False).encode() + blanks[1]
    assert old == new or out == b"{%b}" % b",".join([*head, member, *tail])
    assert BodyReader().read(out).model == new


def test_member_of_any_name_is_found() -> None:
    """Digits and underscores are hidden by escapes, too."""
    assert Field("a_1").find(b'{"a_1":7}') == len(b'{"a_1":')
    assert Field("a_1").find(b'{"b":{"a_1":6},"a\\u005F1" : 7}') == len(b'{"b":{"a_1":6},"a\\u005F1" : ')


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        (b"model=old", b"model=new%2F1+%26"),
        (b"a=b&model=old&model_x=1", b"a=b&model=new%2F1+%26&model_x=1"),
        (b"mod%65l=old%20x&", b"mod%65l=new%2F1+%26&"),
        (b"model=", b"model=new%2F1+%26"),
        (b"model", b"model=new%2F1+%26"),
        (b"", b""),
        (b"intent=transcription&x=model", b"intent=transcription&x=model"),
        (b"model=new%2f1%20%26", b"model=new%2f1%20%26"),
        (b"model=a=b", b"model=new%2F1+%26"),
    ],
)
def test_query_names_the_other_model(query: bytes, wanted: bytes) -> None:
    """Of a WebSocket: only the field's value is written anew."""
    wanted = wanted.replace(b"1+%26", b"1%20%26")
    out = with_query_model(query, "new/1 &")

    assert out == wanted
    if b"model" in query or b"mod%65l" in query:
        assert dict(parse_qsl(out.decode())).get("model") in ("new/1 &", None)
