"""What a reply says of its tokens, however it is written and cut; and how a request is made to ask for it."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox.errors import Reason, VeloxError
from velox.protocol.json.body import LARGE_BYTES, BodyReader
from velox.protocol.json.edit import ask_for_usage
from velox.protocol.slices import finished
from velox.protocol.usage.reader import BodyUsage, StreamUsage
from velox.types import BodyFields

CHUNK = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"}}]'
NULLS = CHUNK + b',"usage":null}\n\n'
OPENAI = (
    b'{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":2,'
    b'"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":3}}'
)
ANTHROPIC = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","usage":{"input_tokens":10,'
    b'"cache_creation_input_tokens":2,"cache_read_input_tokens":3,"cache_creation":{"ephemeral_5m_input_tokens":2},'
    b'"output_tokens":1,"service_tier":"standard"}}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"hi"}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":%b}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)


def scan(*pieces: bytes) -> tuple[int | None, int | None]:
    """Read a body, or a stream: only a body begins with a brace."""
    reader = BodyUsage() if pieces[0][:1] in b"{[" else StreamUsage()
    for piece in pieces:
        reader.feed(piece)
        assert kept(reader) <= (128 if isinstance(reader, BodyUsage) else 68) * 1024
    return reader.tokens()


def kept(reader: BodyUsage | StreamUsage) -> int:
    return int(repr(reader).partition("kept=")[2][:-1])


REPLIES = [
    (b'{"id":"c","choices":[{"message":{"content":"hi"}}],"usage":' + OPENAI + b"}", (5, 7)),
    (json.dumps({"choices": [], "usage": json.loads(OPENAI)}, indent=2).encode(), (5, 7)),
    (b'{"usage"\r\n\t :\n {"completion_tokens" : 7 , "prompt_tokens" : 5}, "id": "c"}\n', (5, 7)),
    (b'{"object":"list","data":[{"embedding":[0.1]}],"usage":{"prompt_tokens":8,"total_tokens":8}}', (8, 0)),
    # Three levels of objects.
    (b'{"type":"message","usage":{"input_tokens":54,"iterations":[{"type":"message","input_tokens":54,'
     b'"cache_creation":{"ephemeral_1h_input_tokens":0}}],"output_tokens":14}}', (54, 14)),
    (b'{"usage":{"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens_details":{"a":1}}}}',
     (5, 7)),
    (NULLS * 3 + b'data: {"choices":[],"usage":' + OPENAI + b"}\n\ndata: [DONE]\n\n", (5, 7)),
    (
        b'data: {"type":"response.created","response":{"usage":null}}\n\ndata: {"type":"response.completed","response":'
        b'{"usage":{"input_tokens":3,"input_tokens_details":{"cached_tokens":0},"output_tokens":4,'
        b'"output_tokens_details":{"reasoning_tokens":1},"total_tokens":7}}}\n\n',
        (3, 4),
    ),
    (ANTHROPIC % b'{"output_tokens":15}', (15, 15)),
    (ANTHROPIC % b'{"input_tokens":0,"output_tokens":15}', (15, 15)),
    # The prompt once more: with its cache, or without a word of it.
    (ANTHROPIC % b'{"input_tokens":20,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":15}',
     (24, 15)),
    (ANTHROPIC % b'{"input_tokens":20,"output_tokens":15}', (25, 15)),
    (ANTHROPIC % b'{"input_tokens":20,"cache_creation_input_tokens":null,"output_tokens":15}', (25, 15)),
    # A cache beside the prompt, and a total of all.
    (b'{"usage":{"input_tokens":20,"cache_read_input_tokens":4,"output_tokens":15,"total_tokens":45}}', (24, 21)),
    # vLLM with continuous_usage_stats.
    (b"".join(CHUNK + b',"usage":{"prompt_tokens":4,"completion_tokens":%d}}\n\n' % n for n in range(1, 6)), (4, 5)),
    # Moonshot puts it into the choice; some count reasoning in the total only.
    (b'data: {"choices":[{"usage":{"prompt_tokens":19,"completion_tokens":21,"total_tokens":90}}]}\n\n', (19, 71)),
    (b'data: {"id":1,"id":2,"choices":[{"usage":{"prompt_tokens":1,"completion_tokens":2}}]}\n\n', (1, 2)),
    # Two objects: the top-level one counts.
    (b'{"input":{"usage":{"input_tokens":9,"output_tokens":9}},"usage":{"input_tokens":1,"output_tokens":2}}', (1, 2)),
    (b'{"usage":{"input_tokens":1,"output_tokens":2},"input":{"usage":{"input_tokens":9,"output_tokens":9}}}', (1, 2)),
    (b'{"usage":{"input_tokens":9,"output_tokens":9},"usage":{"input_tokens":1,"output_tokens":2}}', (1, 2)),
    (b'{"tools":[{"parameters":{"properties":{"usage":{"type":"object","properties":{"a":{"type":"string"}}}}}}],'
     b'"usage":{"input_tokens":1,"output_tokens":2}}\n', (1, 2)),
    (b'{"usage":{"input_tokens":1,"output_tokens":2},"a":"\\"}{[","b":[{"c":"}"}]}', (1, 2)),
    # The last event that has one; a Response's own, and no other.
    (b'data: {"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\ndata: {"a":{"usage":{"prompt_tokens":9}}}\n\n',
     (1, 2)),
    (b'data: {"type":"response.completed","response":{"tools":[{"usage":{"input_tokens":0,"output_tokens":0}}],'
     b'"usage":{"input_tokens":3,"output_tokens":4},"metadata":{"usage":{"input_tokens":0,"output_tokens":0}}}}\n\n',
     (3, 4)),
    (b'data: {"response":{"usage":{"input_tokens":3,"output_tokens":4},"x":"\\ud83d"},"type":"response.completed"}\n\n',
     (3, 4)),
    # JSON over two lines, and a stream whose last blank line is missing.
    (b'event: x\ndata: {"choices":[],\ndata: "usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n', (1, 2)),
    (b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}', (1, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "tokens"), REPLIES)
def test_usage_of_every_dialect_is_read_however_it_is_cut(reply: bytes, tokens: tuple[int, int]) -> None:
    """At each place, in three, and byte by byte."""
    assert scan(reply) == tokens
    assert scan(*(reply[at : at + 1] for at in range(len(reply)))) == tokens
    for at in range(1, len(reply)):
        assert scan(reply[:at], reply[at:]) == tokens
    for at in range(1, len(reply) - 3, 3):
        assert scan(reply[:at], reply[at : at + 3], reply[at + 3 :]) == tokens


@pytest.mark.parametrize(
    "reply",
    [
        b'{"choices":[{"message":{"content":"\\"usage\\": {\\"prompt_tokens\\": 5}"}}]}',
        b'{"content":"say \\"usage":{"prompt_tokens":5}}',
        b'{"what they say of \\"usage":{"prompt_tokens":5}}',
        b'{"type":"usage","x":{"prompt_tokens":5}}',
        b'{"usage":null}',
        # The issue's: an echoed schema, then null.
        b'{"tools":[{"usage":{"input_tokens":0,"output_tokens":0}}],"usage":null}',
        b'{"usage":null,"tools":[{"usage":{"input_tokens":0,"output_tokens":0}}]}',
        b'{"tools":{"usage":{"input_tokens":0,"output_tokens":0}}}',
        b'{"usage":{"input_tokens":1,"output_tokens":1},"usage":null}',
        b'[{"usage":{"input_tokens":0,"output_tokens":0}}]',
        b'{"usage":{"prompt_tokens":5},"a":{"b":1}',
        b'data: {"response":{"tools":[{"usage":{"input_tokens":0}}],"usage":null},"type":"response.completed"}\n\n',
        b'data: {"type":"response.completed","usage":null,"response":{"usage":{"input_tokens":0}}}\n\n',
        b'data: {"type":"other","response":{"usage":{"input_tokens":0}}}\n\n',
        b'data: {"type":"response.completed","message":{"usage":{"input_tokens":0}}}\n\n',
        b'data: {"response":{"usage":{"input_tokens":0}},"type":"message_start"}\n\n',
        b'data: {"choices":[{"usage":{"prompt_tokens":1}}],"usage":null}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":5}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":5}',
        b'{"usage":[{"prompt_tokens":5}]}',
        b'{"usages":{"prompt_tokens":5}}',
        b'{"usage":"{"}',
        b'{"properties":{"usage":{"type":"string"}}}',
        b'{"usage":{"prompt_tokens":5',
        b'{"usage":{"prompt_tokens":5,}}',
        NULLS * 2,
        b"data: [DONE]\n\n",
        b"\x1f\x8b\x08\x00",
    ],
)
def test_what_is_no_usage_counts_nothing(reply: bytes) -> None:
    """Text that a model wrote, other values, objects that are cut or broken."""
    for at in range(1, len(reply)):
        assert scan(reply[:at], reply[at:]) == (None, None)


@pytest.mark.parametrize(
    "value",
    [b"-1", b"1.5", b"1e-3", b"1e99", b"NaN", b'"5"', b"true", b"null", b"[5]", b"{}", b"1000000001", b"9" * 30],
)
def test_count_that_is_none_is_ignored(value: bytes) -> None:
    """Only whole numbers up to a thousand millions are tokens; the other field counts all the same."""
    assert scan(b'{"usage":{"prompt_tokens":%b,"completion_tokens":7}}' % value) == (None, 7)
    assert scan(b'{"usage":{"prompt_tokens":5,"completion_tokens":%b}}' % value) == (5, None)
    assert scan(b'{"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":%b}}' % value) == (5, 7)


@pytest.mark.parametrize(("value", "n"), [(b"1.0", 1), (b"1e3", 1000), (b"12.50e1", 125), (b"1E9", 1_000_000_000)])
def test_whole_number_is_a_count_however_it_is_written(value: bytes, n: int) -> None:
    assert scan(b'{"usage":{"prompt_tokens":%b,"completion_tokens":7}}' % value) == (n, 7)
    assert scan(b'data: {"usage":{"prompt_tokens":%b,"completion_tokens":7}}\n\n' % value) == (n, 7)


def test_counts_at_their_limits_are_read() -> None:
    assert scan(b'{"usage":{"prompt_tokens":0,"completion_tokens":1000000000}}') == (0, 1_000_000_000)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 100, 5000])
def test_object_that_is_too_long_is_left_and_never_kept(size: int) -> None:
    """Memory is bounded whatever an upstream sends, and what follows is read."""
    long = b'{"usage":{"x":"' + b"y" * 200_000 + b'"},"usage":{"prompt_tokens":1,"completion_tokens":2}}'
    pieces = [long[at : at + size] for at in range(0, len(long), size)]

    assert scan(*pieces) == (1, 2)
    assert scan(b"data: ", *pieces, b"\n\n") == (1, 2)
    assert scan(b"data: ", *pieces[:-1], pieces[-1].replace(b"}}", b"}}\n\n")) == (1, 2)


def test_long_event_with_null_at_its_top_has_none() -> None:
    """As a short one: what it holds besides is not its own."""
    inside = b'"response":{"usage":{"input_tokens":1,"output_tokens":2}}'
    for pad in (b"", b"x" * 70_000):
        head = b'data: {"type":"response.completed","pad":"%b",' % pad
        assert scan(head + inside + b"}\n\n") == (1, 2)
        assert scan(head + b'"usage":null,' + inside + b"}\n\n") == (None, None)
        assert scan(head + inside + b',"usage":null}\n\n') == (None, None)


@pytest.mark.parametrize(("n", "is_read"), [(16383, True), (16384, True), (16385, False)])
def test_longest_usage_of_a_long_reply_is_16_kib(n: int, is_read: bool) -> None:
    """Of a reply that is kept whole it may be as long as the reply."""
    usage = b'{"total_tokens":5,"prompt_tokens":5,"x":"' + b"y" * (n - 43) + b'"}'
    assert len(usage) == n
    short, long = b'{"usage":%b}' % usage, b'{"pad":"%b","usage":%b}' % (b"x" * 130_000, usage)

    for pieces in ([short], [short[:9000], short[9000:]]):
        assert scan(*pieces) == (5, 0)
    for pieces in ([long], [long[:9000], long[9000:]], [long[:-2], long[-2:]]):
        assert scan(*pieces) == ((5, 0) if is_read else (None, None))


@pytest.mark.parametrize("n_padding", [0, 5000])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("odd", [b"1", b'"\\ud83d"', b"123456789012345678901234567890"])
def test_searches_are_counted_whatever_one_parser_refuses(mark: bytes, odd: bytes, n_padding: int) -> None:
    """A byte order mark, half a surrogate, a number of over 64 bits; of a size for either parser."""
    usage = b'{"input_tokens":5,"output_tokens":7,"total_tokens":12}'
    search = b'{"type":"web_search_call","action":{"type":"search"}}'
    reader = BodyUsage()
    reader.feed(mark + b'{"odd":%b,"pad":"%b","output":[%b],"usage":%b}' % (odd, b"x" * n_padding, search, usage))

    assert reader.tokens() == (5, 7) and reader.kinds().web_searches == 1


# -- whatever a reply echoes ---------------------------------------------------------------------------------------

NAMES = st.sampled_from(["usage", "response", "message", "type", "choices", "a", 'x"usage', "\\", '{"usage":{'])
COUNTS = st.dictionaries(
    st.sampled_from(["prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens"]),
    st.integers(0, 9) | st.none(),
    max_size=3,
)
TEXTS = st.sampled_from(
    [
        '"usage":{"input_tokens":0}',
        "\\",
        '\\"',
        "usage",
        "}",
        "{[",
        "\ud83d",
        "é",
        "data: ",
        "\n\n",
        "response.completed",
    ]
)
HOSTILE = st.recursive(
    st.none() | st.integers(0, 9) | st.booleans() | TEXTS | COUNTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(NAMES, HOSTILE, max_size=6)
CUTS = st.lists(st.integers(0, 3000), max_size=12)
PADDING = st.sampled_from([0, 0, 5000])
KINDS = st.sampled_from([None, "response.completed", "response.created", "message_start", "message_delta", "other"])


def pieces_of(text: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [text[start:end] for start, end in itertools.pairwise(places)]


def counts_of(usage: object) -> tuple[int | None, int | None]:
    """Return what a whole object says, as the reader of a single one does."""
    if not isinstance(usage, dict):
        return None, None
    return scan(json.dumps({"usage": usage}).encode())


@settings(deadline=None)
@given(document=DOCUMENTS, indent=st.sampled_from([None, 1]), is_ascii=st.booleans(), n_padding=PADDING, cuts=CUTS)
def test_body_has_the_usage_that_a_parser_finds_at_its_top(
    document: dict[str, object], indent: int | None, is_ascii: bool, n_padding: int, cuts: list[int]
) -> None:
    """Whatever else is in it, however it is cut, and whichever parser reads one of its size."""
    document = {**document, "pad": "x" * n_padding}
    text = json.dumps(document, indent=indent, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")

    assert scan(*pieces_of(text, cuts)) == counts_of(document.get("usage"))


@settings(deadline=None)
@given(document=DOCUMENTS, kind=KINDS, n_padding=PADDING | st.just(70_000), cuts=CUTS, at_end=st.booleans())
def test_event_has_the_usage_that_a_parser_finds_at_its_place(
    document: dict[str, object], kind: str | None, n_padding: int, cuts: list[int], at_end: bool
) -> None:
    """Also of an event that is too long to be kept."""
    if kind is not None:
        document["type"] = kind
    if n_padding:
        document = {**document, "pad": "x" * n_padding} if at_end else {"pad": "x" * n_padding, **document}
    text = b"data: " + json.dumps(document).encode() + b"\n\n"
    kind_now = document.get("type") if isinstance(document.get("type"), str) else ""
    assert isinstance(kind_now, str)
    wanted = document.get("usage")
    if "usage" not in document:
        starts = {"response": "response.", "message": "message_start"}
        holder = next((name for name, start in starts.items() if kind_now.startswith(start)), "")
        inside = document.get(holder)
        choices = document.get("choices")
        if not holder and isinstance(choices, list) and choices and n_padding < 70_000:
            inside = choices[-1]
        wanted = inside.get("usage") if isinstance(inside, dict) else None

    assert scan(*pieces_of(text, [0, *cuts, *(n_padding + cut for cut in cuts)])) == counts_of(wanted)


# -- events --------------------------------------------------------------------------------------------------------

LINES = [b"data: a", b"data:", b"data", b"da", b"ta: x", b"event: x", b": ping", b" data: x", b"\n", b"\r\n", b"\n\n"]


@given(parts=st.lists(st.sampled_from(LINES), max_size=20), cuts=st.lists(st.integers(0, 150), max_size=20))
def test_lines_with_data_are_counted_however_they_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(parts)
    reader = StreamUsage()
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})

    for start, end in itertools.pairwise(places):
        reader.feed(stream[start:end])
    reader.tokens()

    assert reader.n_events == sum(line.startswith(b"data:") for line in re.split(rb"\r\n|\r|\n", stream))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [7, 1000, 70_000, 1_000_000])
@pytest.mark.parametrize("n_padding", [10, 150_000])
def test_usage_of_a_stream_is_found_whatever_ends_its_lines(end: bytes, size: int, n_padding: int) -> None:
    """Of events of any length, which are kept to 64 KiB; behind comments, a byte order mark, and with data in lines."""
    padding = b"x" * n_padding
    stream = b"\xef\xbb\xbf: %b\n\n" % padding + b'data: {"pad":"%b",\ndata:"usage":%b}\n\n' % (padding, OPENAI)
    stream = stream.replace(b"\n", end)
    reader, most = StreamUsage(), 0
    for at in range(0, len(stream), size):
        reader.feed(stream[at : at + size])
        most = max(most, reader._events.n_held)

    assert reader.tokens() == (5, 7)
    assert reader.n_events == 2
    assert most <= 64 * 1024


# -- requests ------------------------------------------------------------------------------------------------------


def asked(body: bytes) -> bytes | None:
    """Ask with bytes and with a bytearray, which must give the same."""
    reader = BodyReader()
    peek = finished(reader.read_in_steps(body)) if len(body) >= LARGE_BYTES else reader.read(body)
    out = ask_for_usage(body, peek)
    array = bytearray(body)
    again = ask_for_usage(array, peek)
    assert again is None or again is array
    assert out == again
    return None if out is None else bytes(out)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b'{"stream":true}', b'{"stream":true%b}'),
        (b'\xef\xbb\xbf \n{"stream":true }\r\n\t ', b'\xef\xbb\xbf \n{"stream":true %b}'),
        (b'{"stream":true,"x":{"stream_options":{}}}', b'{"stream":true,"x":{"stream_options":{}}%b}'),
        (b'{"stream":true,"x":"stream_options\\u0021}"}', b'{"stream":true,"x":"stream_options\\u0021}"%b}'),
        (b'{"stream_options":null,"stream":true}', b'{"stream_options":{"include_usage":true},"stream":true}'),
        (b'{"stream_options" : { } ,"stream":true}', b'{"stream_options" : {"include_usage":true} ,"stream":true}'),
        (b'{"stream_options":{"include_obfuscation":false},"stream":true}',
         b'{"stream_options":{"include_obfuscation":false,"include_usage":true},"stream":true}'),
        (b'{"stream_options":{"include_usage":false,"a":1},"stream":true}',
         b'{"stream_options":{"include_usage":true,"a":1},"stream":true}'),
        (b'{"stream_options":{"include_usage":true,"include_usage":null},"stream":true}',
         b'{"stream_options":{"include_usage":true},"stream":true}'),
        # Wherever they are, however their key is written.
        (b'{"stream":true,"stream_options":null,"x":"\\u0041"}',
         b'{"stream":true,"stream_options":{"include_usage":true},"x":"\\u0041"}'),
        (b'{"stream":true,"stream\\u005foptions":null,"x":{"stream_options":null}}',
         b'{"stream":true,"stream\\u005foptions":{"include_usage":true},"x":{"stream_options":null}}'),
        (b'{"x":{"stream_options":null},"stream":true,"stream_options":null}',
         b'{"x":{"stream_options":null},"stream":true,"stream_options":{"include_usage":true}}'),
    ],
)  # fmt: skip
def test_body_asks_for_the_usage_and_is_otherwise_as_it_was(body: bytes, wanted: bytes) -> None:
    """Bytes of the client's stay where they were; blanks after the end are nobody's."""
    assert asked(body) == wanted.replace(b"%b", b',"stream_options":{"include_usage":true}')


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream":true,"stream_options":{"include_usage":true}}',
        b'{"stream":false}',
        b"{}",
    ],
)
def test_body_stays_as_it_is_where_it_asks_already(body: bytes) -> None:
    assert asked(body) is None


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("n_padding", [0, 3 * 1024 * 1024])
@pytest.mark.parametrize(
    ("options", "others"),
    [
        (rb'{"include_\u006fbfuscation":false}', {"include_obfuscation": False}),
        (rb'{"include_usag\u0065":false}', {}),
        (b'{"a":{"b":1}}', {"a": {"b": 1}}),
        (b'{"a":"}"}', {"a": "}"}),
        (b'{"a":"{[","b":[[{}],"]}"]}', {"a": "{[", "b": [[{}], "]}"]}),
        (b'{"a":"%b"}' % (b"x" * 3000), {"a": "x" * 3000}),
        (rb'{"a":"\\\"}","b":"\ud83d"}', {"a": '\\"}', "b": "\ud83d"}),
        (b'{"a":123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
        (b'{"include_usage":{"include_usage":true}}', {}),
        (b'{"include_usage":"true","include_usage":1}', {}),
        (b"{\n}", {}),
        (b"null", {}),
    ],
)
def test_options_ask_for_the_usage_however_a_client_writes_them(
    options: bytes, others: dict[str, object], n_padding: int, is_first: bool
) -> None:
    """M2: a client that could keep the usage away would not be counted. Other options stay what they are."""
    members = [
        b'"x":"%b"' % (b"x" * n_padding),
        b'"stream":true',
        b'"y":{"stream_options":0}',
        b'"stream_options":%b' % options,
    ]
    out = asked(b"{%b}" % b",".join(reversed(members) if is_first else members))

    assert out is not None
    assert json.loads(out)["stream_options"] == {**others, "include_usage": True}


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream":true,"stream_options":[]}',
        b'{"stream":true,"stream_options":[{"include_usage":true}]}',
        b'{"stream":true,"stream_options":true}',
        b'{"stream":true,"stream_options":0}',
        b'{"stream":true,"stream_options":"null"}',
        b'{"stream":true,"stream_options":{"a":"%b"}}' % (b"x" * 5000),
        b'{"stream":true,"stream_options":{"a":"%b%b"}}' % (b"x" * 4070, b"}" * 100),  # cut inside a string of brackets
        b'{"stream":true,"stream_options":{"a":1e999}}',
        rb'{"stream":true,"str\u0065am_options":{},"x":"%b"}' % (b"x" * 600_000),
        b'{"stream":true,"x":"%b","stream_options":{},"y":"%b"}' % (b"x" * 2**21, b"y" * 2**21),
    ],
)
def test_options_that_can_t_be_made_to_ask_are_refused_by_their_name(body: bytes) -> None:
    """Passed as they are they would switch the counting off."""
    with pytest.raises(VeloxError) as caught:
        ask_for_usage(body, BodyReader().read(body))

    assert (caught.value.reason, caught.value.param) == (Reason.BAD_REQUEST, "stream_options")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "stream_options", '"stream_options":', "}"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["stream_options", "include_usage", "stream", "a", '"}']), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@given(
    fields=st.dictionaries(st.sampled_from(["a", "stream_options", "messages"]), JSON, max_size=3),
    indent=st.sampled_from([None, 2]),
)
def test_body_that_was_changed_means_the_same(fields: dict[str, object], indent: int | None) -> None:
    """Whatever the client sent: the same document, whose options ask; and they are there once."""
    document = {**fields, "stream": True}
    given = fields.get("stream_options")
    body = json.dumps(document, indent=indent, ensure_ascii=False).encode()
    if given is not None and not isinstance(given, dict):
        with pytest.raises(VeloxError, match="stream_options must be an object"):
            asked(body)
        return
    out = asked(body)

    if out is None:
        assert isinstance(given, dict) and given["include_usage"] is True
        return
    pairs = json.loads(out, object_pairs_hook=list)
    assert [name for name, _ in pairs].count("stream_options") == 1
    options = {**(given or {}), "include_usage": True}
    assert json.loads(out) == {**document, "stream_options": options}
    assert BodyReader().read(out).include_usage is True


@pytest.mark.parametrize(
    ("text", "peek"),
    [
        (b'"n":3', BodyFields(n=3)),
        (b'"n":1', BodyFields()),
        (b'"n":2,"best_of":5', BodyFields(n=5)),
        (b'"n":2,"best_of":null', BodyFields(n=2)),
        *(
            (b'"n":%b' % value, BodyFields())
            for value in (b"null", b"0", b"-3", b"true", b'"four"', b'""', b'"nan"', b'"inf"', b'"%b"' % (b"4" * 21))
        ),
        *((b'"n":%b' % value, BodyFields()) for value in (b"[4]", b"{}")),
        *((b'"n":%b' % value, BodyFields(n=4)) for value in (b"4.0", b'"4"', b'" 4.0"', b"4e0", b"3.5")),
        (b'"prompt":"a"', BodyFields()),
        (b'"prompt":["a"]', BodyFields()),
        (b'"prompt":[]', BodyFields()),
        (b'"prompt":["a","b","c"],"n":2', BodyFields(n=2, n_prompts=3)),
        (b'"prompt":[1,2,3]', BodyFields()),
        (b'"prompt":[[1,2],[3]]', BodyFields(n_prompts=2)),
        (b'"prompt":{"id":"p"}', BodyFields()),
        (b'"stream_options":null', BodyFields(include_usage=False)),
        (b'"stream_options":{}', BodyFields(include_usage=False)),
        (b'"stream_options":[]', BodyFields(include_usage=False)),
        (b'"stream_options":true', BodyFields(include_usage=False)),
        (b'"stream_options":{"include_usage":true}', BodyFields(include_usage=True)),
        (b'"stream_options":{"a":{},"include_usage":true,"b":[]}', BodyFields(include_usage=True)),
        (b'"stream_options":{"include_usage":1}', BodyFields(include_usage=False)),
        (b'"stream_options":{"include_usage":false,"include_usage":true}', BodyFields(include_usage=True)),
        (b'"stream_options":{"include_usage":true,"include_usage":false}', BodyFields(include_usage=False)),
        (b'"x":{"stream_options":{"include_usage":true},"n":4}', BodyFields()),
    ],
)
def test_answers_and_options_are_read_by_both_parsers(text: bytes, peek: BodyFields) -> None:
    """What is no count of answers is the upstream's to refuse. Lenient ones take a text or a fraction for a count."""
    assert BodyReader().read(b"{%b}" % text) == peek
    assert BodyReader().read(b'{"x":"\\ud83d",%b}' % text) == peek
