"""What is read of a request's body, what is refused, and that both of its parsers agree."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu_bound import assert_cpu_below
from velox.errors import Reason, VeloxError
from velox.protocol.json.body import BodyReader
from velox.types import BodyFields

# A value that simdjson refuses and the standard library reads: with it, the tolerant way reads the same body.
SURROGATE = b'"x":"\\ud83d"'


def refusal(body: bytes) -> VeloxError:
    with pytest.raises(VeloxError) as caught:
        BodyReader().read(body)
    assert caught.value.status == 400
    return caught.value


def tolerant(body: bytes) -> bytes:
    """Put a lone surrogate in front of an object's fields."""
    assert body.startswith(b"{")
    return b"{" + SURROGATE + (b"," if body != b"{}" else b"") + body[1:]


GOOD = [
    (b"{}", BodyFields()),
    (b'{"model":"gpt-4o","messages":[{"model":"inner","stream":true}]}', BodyFields(model="gpt-4o")),
    (b'{"stream":true,"model":"m","user":"u1"}', BodyFields(model="m", stream=True, user="u1")),
    (b'{"stream":null,"max_tokens":null,"user":null}', BodyFields()),
    (b'{"stream":false,"max_tokens":0}', BodyFields(max_tokens=0)),
    (b'{"max_tokens":1,"max_output_tokens":2,"max_completion_tokens":3}', BodyFields(max_tokens=3)),
    (b'{"max_tokens":1,"max_output_tokens":2}', BodyFields(max_tokens=2)),
    (b'{"max_tokens":1,"max_output_tokens":null}', BodyFields(max_tokens=1)),
    (b'{"max_completion_tokens":1,"max_tokens":100000}', BodyFields(max_tokens=100_000)),
    (b'{"max_completion_tokens":null,"max_output_tokens":0,"max_tokens":7}', BodyFields(max_tokens=7)),
    (b'{"max_tokens":18446744073709551615}', BodyFields(max_tokens=2**64 - 1)),
    (b'{"mod\\u0065l":"m"}', BodyFields(model="m")),
    (b'{"model":"../x"}', BodyFields(model="../x")),
    (b'{"model":"a\\"\\u202eb {\'}"}', BodyFields(model='a"\u202eb {\'}')),
    ('{"model":"modèle\u00a0☃"}'.encode(), BodyFields(model="modèle\u00a0☃")),
    (b'{"model":"' + b"m" * 256 + b'"}', BodyFields(model="m" * 256)),
    (b'{"user":["a"],"n":-1,"a":1,"a":2}', BodyFields()),
    (b'{"user":{"model":1}}', BodyFields()),
    (b' \r\n\t{"model" : "m"} \n', BodyFields(model="m")),
]  # fmt: skip


@pytest.mark.parametrize(("body", "peek"), GOOD)
def test_body_fields_read(body: bytes, peek: BodyFields) -> None:
    """Top-level fields come out as plain values, from bytes and bytearray alike; nested ones don't count."""
    assert BodyReader().read(body) == peek
    assert BodyReader().read(bytearray(body)) == peek


@pytest.mark.parametrize(("body", "peek"), [(body, peek) for body, peek in GOOD if body.startswith(b"{")])
def test_body_fields_read_the_same_tolerantly(body: bytes, peek: BodyFields) -> None:
    """B-34: a lone surrogate elsewhere in the body changes nothing about what is read."""
    assert BodyReader().read(tolerant(body)) == peek


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"", "line 1, column 1"), (b"  ", "line 1, column 3"), (b"{", "line 1, column 2"),
        (b'{"a":1}x', "line 1, column 8"), (b'{"a":1}{"b":2}', "line 1, column 8"), (b'{"a":1,}', "line 1, column"),
        (b'{\n  "a": tru\n}', "line 2, column 8"), (b"{'a':1}", "line 1, column 2"), (b"hello", "line 1, column 1"),
        (b'{"a":01}', "line 1"), (b'{"a":"\x00"}', "line 1, column 7"), (b'{"a":"\n"}', "line 1, column 7"),
        (b'{"a":1}\x00', "line 1, column 8"),
        (b'{"a":"\xff"}', "byte 6"), (b'{"a":"\xc0\xaf"}', "byte 6"), (b'{"a":"\xed\xa0\x80"}', "byte 6"),
        ('{"a":1}'.encode("utf-16"), "byte 0"), ('{"a":1}'.encode("utf-16-le"), "line 1"),
        ('{"a":1}'.encode("utf-32-be"), "line 1"),
        (b"null", "not an object"), (b"[]", "not an object"), (b'"x"', "not an object"), (b"1", "not an object"),
        (b'[{"model":"m"}]', "not an object"), (b'["\\ud800"]', "not an object"),
        (b'{"a":NaN}', "NaN"), (b'{"a":Infinity}', "Infinity"), (b'{"a":-Infinity}', "-Infinity"),
    ],
)  # fmt: skip
def test_body_not_json_refused_with_place(body: bytes, place: str) -> None:
    """B-31, B-33, B-34: what is no JSON object in UTF-8 is refused, and the message says where."""
    error = refusal(body)

    assert error.reason is Reason.INVALID_JSON
    assert place in error.message


@pytest.mark.parametrize(
    "key",
    [
        *("model", "stream", "max_tokens", "max_completion_tokens", "max_output_tokens", "user"),
        *("n", "best_of", "prompt", "stream_options"),
    ],
)
@pytest.mark.parametrize("value", ["null", '"a"', "1", "{}"])
def test_body_repeated_field_refused(key: str, value: str) -> None:
    """B-32: the upstream would read the other one. Equal values and other spellings of the key are no excuse."""
    escaped = f"\\u{ord(key[0]):04x}{key[1:]}"
    for second in (key, escaped):
        body = f'{{"{key}":{value},"a":[1],"{second}":{value}}}'.encode()
        for wire in (body, tolerant(body)):
            error = refusal(wire)
            assert (error.reason, error.param) == (Reason.DUPLICATE_KEY, key)


def test_body_bom_accepted_by_both_parsers() -> None:
    """B-33: a UTF-8 byte order mark passes."""
    bom = b"\xef\xbb\xbf"

    assert BodyReader().read(bom + b'{"model":"m"}') == BodyFields(model="m")
    assert BodyReader().read(bom + tolerant(b'{"model":"m"}')) == BodyFields(model="m")


@pytest.mark.parametrize("value", [b'"\\ud800"', b"1e400", b"-1e999", b"9" * 30, b"-" + b"9" * 30, b"9" * 5000])
def test_body_that_simdjson_refuses_and_upstreams_accept_read(value: bytes) -> None:
    """B-34: lone surrogates and huge numbers are for the upstream to judge."""
    assert BodyReader().read(b'{"model":"m","x":%b,"stream":true}' % value) == BodyFields(model="m", stream=True)


@pytest.mark.parametrize(
    ("text", "param"),
    [
        *((b'"model":' + value, "model") for value in (
            b"1", b"null", b"[]", b"{}", b"true", b"1.5", b'""', b'"' + b"m" * 257 + b'"', b'"a\\u0000b"', b'"a\\nb"',
            b'"a\\u007f"', b'"a\\u0085"', b'"\\ud800"')),
        *((b'"stream":' + value, "stream") for value in (b'"true"', b"1", b"0", b"[]", b"{}", b'""', b"1e400")),
        *((b'"' + name.encode() + b'":' + value, name)
          for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")
          for value in (b"-1", b"1.5", b'"1"', b"true", b"[]", b"{}", b"1e400", b"-" + b"9" * 30)),
    ],
)  # fmt: skip
def test_body_field_of_wrong_type_refused(text: bytes, param: str) -> None:
    """B-36, B-38, B-39: a field that Velox acts on has the type it must have; the param names it."""
    for wire in (b"{%b}" % text, tolerant(b"{%b}" % text)):
        error = refusal(wire)
        assert (error.reason, error.param) == (Reason.BAD_REQUEST, param)
        assert error.message.startswith(param + " must")


def test_body_later_limit_of_wrong_type_refused_too() -> None:
    """B-39: a wrong max_tokens does not hide behind a good max_completion_tokens."""
    assert refusal(b'{"max_completion_tokens":1,"max_tokens":-1}').param == "max_tokens"


def test_body_huge_max_tokens_never_negative() -> None:
    """B-39: a number over 64 bits stays the positive number it is."""
    assert BodyReader().read(b'{"max_tokens":' + b"9" * 30 + b"}").max_tokens == 10**30 - 1


def test_body_user_with_surrogate_can_be_encoded() -> None:
    """What comes out can always be written on."""
    user = BodyReader().read(b'{"user":"a\\ud800"}').user

    assert user == "a?"


@pytest.mark.parametrize("depth", [1_030, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_body_deep_refused(depth: int, opening: bytes, closing: bytes) -> None:
    """B-35: nesting without end is refused by both parsers, closed or not."""
    assert refusal(b'{"a":' + opening * depth + b"1" + closing * depth + b"}").reason is Reason.INVALID_JSON
    assert refusal(b'{"a":' + opening * depth).reason is Reason.INVALID_JSON


def test_body_moderately_deep_read() -> None:
    """Depth that simdjson takes is no trouble: the document is never walked."""
    assert BodyReader().read(b'{"a":' + b"[" * 900 + b"]" * 900 + b',"model":"m"}') == BodyFields(model="m")


@pytest.mark.parametrize(
    "body",
    [
        b"{" + b",".join(b'"k%d":1' % n for n in range(9_999)) + b',"model":"m"}',
        b'{"a":"' + b"x" * 10_000_000 + b'","model":"m"}',
        b'{"a":[' + b"[]," * 300_000 + b'1],"model":"m"}',
    ],
    ids=["keys", "string", "array"],
)
def test_body_large_read_within_bound(body: bytes) -> None:
    """B-35: at most 100 ms of CPU per MB."""

    def read() -> None:
        assert BodyReader().read(body) == BodyFields(model="m")

    assert_cpu_below(0.1 * len(body) / 1e6 + 0.05, read)


@pytest.mark.parametrize("field", [b'"n":0,', b'"store":0,'])
def test_body_full_of_one_field_read_within_bound(field: bytes) -> None:
    """B-35: a field that is there a hundred thousand times, behind as many others, is not looked for each time."""
    body = b"{" + b'"a":0,' * 5_000 + field * 4_999 + b'"model":"m"}'

    def read() -> None:
        try:
            assert BodyReader().read(body) == BodyFields(model="m", stores=True)
        except VeloxError as error:
            assert (error.reason, error.param) == (Reason.DUPLICATE_KEY, "n")

    assert_cpu_below(0.1 * len(body) / 1e6 + 0.05, read)


def read_in_steps(body: bytes) -> tuple[BodyFields | VeloxError, int]:
    """Return what comes, and in how many steps."""
    steps, n_steps = BodyReader().read_in_steps(body), 0
    while True:
        n_steps += 1
        try:
            next(steps)
        except StopIteration as end:
            return end.value, n_steps
        except VeloxError as error:
            return error, n_steps


@pytest.mark.parametrize(
    "values", [b"1," * 1_500_000, b"[]," * 700_000, b'{"a":1},' * 300_000], ids=["numbers", "arrays", "objects"]
)
def test_body_of_many_values_is_read_in_short_steps(values: bytes) -> None:
    """X9: a megabyte of small values held the loop for 7 ms and more, 20 MB for 150. All is found all the same."""
    told, n_steps = read_in_steps(b'{"model":"m","a":[' + values + b'1],"stream":true,"max_tokens":7,"user":"u"}')
    assert told == BodyFields(model="m", stream=True, max_tokens=7, user="u")
    assert n_steps > len(values) // 524_288
    twice, _ = read_in_steps(b'{"model":"m","a":[' + values + b'1],"model":"n"}')
    assert isinstance(twice, VeloxError) and twice.reason is Reason.DUPLICATE_KEY
    broken, _ = read_in_steps(b'{"model":"m","a":[' + values + b"1]")
    assert isinstance(broken, VeloxError) and broken.reason is Reason.INVALID_JSON


@pytest.mark.parametrize(
    ("prompt", "most"),
    [(b"[" + b"1," * 700_000 + b"1]", 1), (b"[" + b'"a",' * 400_000 + b'"a"]', 800_100), (b'"a"', 1), (b"null", 1)],
    ids=["tokens", "texts", "one text", "none"],
)
def test_prompts_among_many_values_are_never_counted_too_low(prompt: bytes, most: int) -> None:
    """X9: each gets an answer that is paid for."""
    told, _ = read_in_steps(b'{"model":"m","a":[' + b"1," * 700_000 + b'1],"prompt":' + prompt + b"}")
    assert isinstance(told, BodyFields)
    least = 400_001 if b'"a",' in prompt else 1
    assert least <= told.n_prompts <= (most if prompt != b"null" else 100)


@pytest.mark.parametrize("n", [10_000, 200_000])
def test_body_of_many_fields_is_refused(n: int) -> None:
    """X9: each costs a step of Python: 200,000 held the loop for 20 ms."""
    error = refusal(b"{" + b'"a":0,' * n + b'"model":"m"}')
    assert error.reason is Reason.BAD_REQUEST and "10,000 fields" in error.message
    told, n_steps = read_in_steps(b"{" + b'"a":0,' * (n * 20) + b'"model":"m"}')
    assert isinstance(told, VeloxError) and told.status == 400 and n_steps > n // 500


def test_body_over_tolerant_limit_must_be_strict() -> None:
    """The tolerant parser makes objects of everything, and nothing else runs then: 1 MiB is as much as it gets."""

    def wire(n: int) -> bytes:
        body = tolerant(b'{"a":"","model":"m"}')
        return body.replace(b'"a":"', b'"a":"' + b"x" * (n - len(body)))

    assert BodyReader().read(wire(2**20 - 1)) == BodyReader().read(wire(2**20)) == BodyFields(model="m")
    assert "1 MiB" in refusal(wire(2**20 + 1)).message
    assert BodyReader().read(b'{"a":"' + b"x" * 2**23 + b'","model":"m"}') == BodyFields(model="m")


def test_body_large_not_utf_8_refused_with_place() -> None:
    """B-33: where the encoding breaks is told for a body of any size."""
    assert "byte 2097158" in refusal(b'{"a":"' + b"x" * 2**21 + b'\xff"}').message


def test_body_reader_works_on_while_an_error_is_held() -> None:
    """No parser's object survives in an error: the next body is read by the same parser."""
    reader, held = BodyReader(), []
    bodies = [
        b'{"model":{"a":[1]}}',
        b'{"model":[1],"model":{}}',
        b'{"stream":[]}',
        b"[[1]]",
        b"{",
        b'{"max_tokens":{}}',
    ]

    for body in bodies:
        with pytest.raises(VeloxError) as caught:
            reader.read(body)
        held.append(caught.value)
        # simdjson would raise RuntimeError here if one of its objects were alive.
        reader._parser.parse(b"[]")

    assert reader.read(b'{"model":"m"}') == BodyFields(model="m")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
FIELD_NAMES = ["model", "stream", "max_tokens", "max_completion_tokens", "max_output_tokens", "user"]


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from(FIELD_NAMES) | st.text(max_size=3), json_values, max_size=6),
    st.booleans(),
)
def test_body_both_parsers_agree(document: dict[str, object], ascii_only: bool) -> None:
    """Strict or tolerant, the same body gives the same fields or the same refusal."""

    def outcome(body: bytes) -> BodyFields | tuple[Reason, str | None]:
        try:
            return BodyReader().read(body)
        except VeloxError as error:
            return error.reason, error.param

    body = json.dumps(document, ensure_ascii=ascii_only).encode()

    assert outcome(body) == outcome(tolerant(body))


@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:\\u0123 truefalsn-.eE', max_size=60).map(str.encode))
def test_body_random_raises_only_refusals(body: bytes) -> None:
    """Whatever comes is read or refused as INVALID_JSON, DUPLICATE_KEY or BAD_REQUEST."""
    try:
        peek = BodyReader().read(body)
    except VeloxError as error:
        assert error.reason in (Reason.INVALID_JSON, Reason.DUPLICATE_KEY, Reason.BAD_REQUEST)
    else:
        assert isinstance(json.loads(body.decode("utf-8-sig")), dict)
        assert isinstance(peek, BodyFields)


@pytest.mark.parametrize(
    ("fields", "stores"),
    [
        (b"", False),
        (b'"store":true,', True),
        (b'"deferred":true,', True),
        (b'"d\\u0065ferred":1,', True),
        (b'"deferred":false,"store":null,', False),
        (b'"deferred":true,"store":false,', True),
        (b'"deferred":false,"deferred":true,', True),
    ],
)
def test_body_that_asks_for_its_answer_to_be_kept_says_so(fields: bytes, stores: bool) -> None:
    """By OpenAI's name for it, and by xAI's."""
    assert BodyReader().read(b"{" + fields + b'"model":"m"}').stores is stores
