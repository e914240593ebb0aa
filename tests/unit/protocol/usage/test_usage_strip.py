"""What only the gateway asked for is taken out of a stream, and everything else is as the upstream sent it."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.protocol.usage.strip import UsageStrip

HEAD = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":['
CHOICE = b'{"index":0,"delta":{"content":"\\"usage\\":null} "},"logprobs":null,"finish_reason":null}'
USAGE = b'{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":0}}'
DONE = b"data: [DONE]\n\n"
HELD = 64 * 1024


def strip(*pieces: bytes) -> bytes:
    """Return what a client gets of a whole stream."""
    filters = UsageStrip()
    return b"".join(filters.feed(piece, False) for piece in pieces) + filters.feed(b"", True)


CHANGED = [
    # OpenAI, without and with its padding.
    ((HEAD + CHOICE + b'],"usage":null}\n\n') * 3 + HEAD + b'],"usage":' + USAGE + b"}\n\n" + DONE,
     (HEAD + CHOICE + b"]}\n\n") * 3 + DONE),
    ((HEAD + CHOICE + b'],"usage":null,"obfuscation":"a}Z"}\n\n') * 2
     + HEAD + b'],"usage":' + USAGE + b',"obfuscation":""}\n\n' + DONE,
     (HEAD + CHOICE + b'],"obfuscation":"a}Z"}\n\n') * 2 + DONE),
    # vLLM: nothing but the last event is another.
    (HEAD + CHOICE + b"]}\n\n" + HEAD + b'],"usage":' + USAGE + b"}\n\n" + DONE, HEAD + CHOICE + b"]}\n\n" + DONE),
    # Blanks, other places of the field, comments and other lines.
    (b'data: {"choices": [{}], "usage": null}\n\ndata: {"usage": null, "choices": [{}]}\n\n'
     b'data:{ "usage" : null , "choices":[{}]}\n\ndata: {"choices": [], "usage": {}}\n\n',
     b'data: {"choices": [{}]}\n\ndata: {"choices": [{}]}\n\ndata:{ "choices":[{}]}\n\n'),
    (b': ping\n\nid: 1\nevent: x\ndata: {"choices":[{}],"usage":null}\nretry: 5\n\n: ping\n\n',
     b': ping\n\nid: 1\nevent: x\ndata: {"choices":[{}]}\nretry: 5\n\n: ping\n\n'),
    (b'data: {"a":[{"usage":null}],"usage":null,"b":[{"usage":null}],"usage":null}\n\n',
     b'data: {"a":[{"usage":null}],"b":[{"usage":null}]}\n\n'),
    (b'data: {"usage":null}\n\n', b"data: {}\n\n"),
    (b'\n\n\ndata: {"choices":[],"usage":{}}\n\n\ndata: 1\n\n', b"\n\n\n\ndata: 1\n\n"),
    # Azure: the first event has no choice, and more than the usage to say.
    (b'data: {"choices":[],"prompt_filter_results":[{}],"usage":null}\n\n',
     b'data: {"choices":[],"prompt_filter_results":[{}]}\n\n'),
]  # fmt: skip


@pytest.mark.parametrize(("stream", "wanted"), CHANGED)
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_usage_is_taken_out_however_the_stream_is_cut(stream: bytes, wanted: bytes, newline: bytes) -> None:
    """The event that carries it as a whole, and null from the others; at each place, and byte by byte."""
    stream, wanted = stream.replace(b"\n", newline), wanted.replace(b"\n", newline)

    assert strip(stream) == wanted
    assert strip(*(stream[at : at + 1] for at in range(len(stream)))) == wanted
    for at in range(1, len(stream)):
        assert strip(stream[:at], stream[at:]) == wanted


KEPT = [
    DONE,
    HEAD + CHOICE + b"]}\n\n",
    # A choice together with the usage: Mistral, DeepSeek and others say it without being asked.
    HEAD + CHOICE + b'],"usage":' + USAGE + b"}\n\n",
    b'data: {"choices":[{"index":0,"delta":{},"usage":null}]}\n\n',
    b'data: {"choices":[{"a":"\\\\"},{"usage":null}],"x":{"y":1}}\n\n',
    b'data: {"choices":null,"usage":{}}\n\n',
    b'data: {"choices":[],"x":{"usage":{}}}\n\n',
    b'data: {"choices":[],"usage":[]}\n\n',
    b'data: [{"choices":[],"usage":{}},{"usage":null}]\n\n',
    b'data: {"choices":[],"usage":{}\n\n',
    b'data: {"choices":[],\ndata: "usage":{}}\n\n',
    b'data: {"choices":[],"what they say of \\"usage":null}\n\n',
    b': {"choices":[],"usage":null}\n\n',
    b'event: {"choices":[],"usage":{}}\n\n',
    b'xdata: {"choices":[],"usage":{}}\n\n',
    b'{"choices":[],"usage":null}\n\n',
    # Lines that end with CR alone are nobody's, and not understood.
    b'data: 1\r\rdata: {"choices":[],"usage":{}}\r\r',
    b'data: 1\rx\n\ndata: {"choices":[],"usage":{}}\n\n',
    b'data: 1\rdata: {"choices":[],"usage":{}}\n\ndata: {"choices":[],"usage":{}}\n\n',
    # Not an event: the stream ends inside it.
    b'data: {"choices":[],"usage":{}}\n',
    b'data: 1\n\ndata: {"choices":[{}],"us',
]


@pytest.mark.parametrize("stream", KEPT)
@pytest.mark.parametrize("is_asked_twice", [False, True])
def test_everything_else_passes_byte_for_byte(stream: bytes, is_asked_twice: bool) -> None:
    """What the upstream would have sent unasked, what is not JSON, what is no event."""
    stream = stream * (1 + is_asked_twice) if stream.endswith(b"\n\n") else stream

    assert strip(stream) == stream
    for at in range(1, len(stream)):
        assert strip(stream[:at], stream[at:]) == stream


def test_events_go_on_as_soon_as_they_are_whole() -> None:
    """Nothing is held back but the event that is not whole."""
    filters = UsageStrip()

    assert filters.feed(b"data: 1\n\n", False) == b"data: 1\n\n"
    assert filters.feed(b"data: 2\n\ndata: ", False) == b"data: 2\n\n" and filters.holds
    assert filters.feed(b"3\n", False) == b"" and filters.holds
    assert filters.feed(b"\n", False) == b"data: 3\n\n" and not filters.holds
    assert filters.feed(b"data: 4", False) == b""
    assert filters.feed(b"", True) == b"data: 4" and not filters.holds


@pytest.mark.parametrize("n_bytes", [1000, HELD, 10 * HELD, 0])
def test_event_of_over_64_kib_passes_and_so_does_all_after_it(n_bytes: int) -> None:
    """Memory is bounded: what would have to be held longer is not read any more. n_bytes: of a piece; 0: an event."""
    usage = b'data: {"choices":[],"usage":{}}\n\n'
    fits = b"data: " + b"x" * (HELD - 8) + b"\n\n"
    longer = b"x" + fits
    for event, wanted in ((fits, fits), (longer, longer + usage)):
        stream = usage + event + usage
        pieces = [stream[at : at + n_bytes] for at in range(0, len(stream), n_bytes or len(stream))]
        filters, out = UsageStrip(), b""
        for piece in pieces if n_bytes else (usage, event, usage):
            out += filters.feed(piece, False)
            assert int(repr(filters).partition("held=")[2][:-1]) <= HELD
        assert out == wanted


EVENTS = [
    *(stream for stream, _ in CHANGED),
    *(stream for stream in KEPT if b"\r" not in stream and stream.endswith(b"\n\n")),
]


def events_of(stream: bytes) -> list[bytes]:
    return [event.strip(b"\n") for event in stream.split(b"\n\n") if event.strip(b"\n")]


@given(
    parts=st.lists(st.sampled_from(EVENTS), max_size=6),
    cut_at=st.integers(0, 2000),
    cuts=st.lists(st.integers(0, 2000), max_size=20),
)
def test_cut_stream_ends_with_a_whole_event(parts: list[bytes], cut_at: int, cuts: list[int]) -> None:
    """At a cut the client has whole events only, and all that came whole but what is taken out."""
    stream = b"".join(parts)[:cut_at]
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    filters = UsageStrip()

    out = b"".join(filters.feed(stream[start:end], False) for start, end in itertools.pairwise(places))

    whole = stream[: stream.rfind(b"\n\n") + 2] if b"\n\n" in stream else b""
    assert out == strip(whole) + (stream[len(whole) :] if not stream[len(whole) :].strip(b"\n") else b"")
    assert not out.strip(b"\n") or out.endswith(b"\n\n")


def test_reader_of_json_finds_the_same_chunks() -> None:
    """As an SDK reads it: the same chunks, without one member; and one chunk less."""
    stream, _ = CHANGED[1]

    before = [json.loads(event[6:]) for event in events_of(stream)[:-1]]
    after = [json.loads(event[6:]) for event in events_of(strip(stream))[:-1]]

    assert [{name: chunk[name] for name in chunk if name != "usage"} for chunk in before[:-1]] == after
    assert before[-1]["usage"]["total_tokens"] == 12
