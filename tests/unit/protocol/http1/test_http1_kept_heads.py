"""Heads that a worker remembers: whatever came before, a head is read as if it were the first one."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox.errors import VeloxError
from velox.gateway.translation.dropped_headers import CREDENTIALS, DROPPED, DROPPED_STARTS, OVERRIDING
from velox.gateway.translation.forward import Forwarder
from velox.heads import ExtraFields, RequestHead
from velox.policy.routes.entries import HeaderRules
from velox.protocol.head_template import HeadTemplate, TemplateBeside
from velox.protocol.heads.fields import only_pass
from velox.protocol.heads.memory import Bounds
from velox.protocol.http1.request import HeadReader, Http1Limits
from velox.providers.rows import OPENAI
from velox.types import BodyFields

LIMITS = Http1Limits(body_bytes=1000)
# A head of an SDK with what is new in each request.
SDK = (
    b"POST /v1/chat/completions HTTP/1.1",
    b"Host: gateway.example:8080",
    b"Accept: application/json",
    b"Content-Type: application/json",
    b"User-Agent: OpenAI/Python 1.99.9",
    b"Authorization: Bearer %(key)b",
    b"x-stainless-retry-count: 0",
    b"traceparent: 00-%(n)032d-00f067aa0ba902b7-01",
    b"x-request-id: %(n)036d",
    b"Content-Length: %(length)d",
)


def sdk(n: int, key: bytes = b"sk-1", length: int = 5, *more: bytes) -> bytes:
    return b"\r\n".join([line % {b"n": n, b"key": key, b"length": length} for line in SDK] + [*more, b"", b""])


def found(reader: HeadReader, head: bytes) -> RequestHead:
    """Read a head as a decoder does: by its form, with what follows it, or else by itself."""
    known = reader.find(b"before" + head + b"GET", 6)
    if known is None:
        return reader.read(head)
    assert known[1] == 6 + len(head), "it ends where a decoder finds its end"
    assert known[0] == reader.read(head), "and says what its lines say"
    return known[0]


def outcome(reader: HeadReader, head: bytes) -> RequestHead | tuple[str, int, str]:
    """What a head is read as, or refused with; where it is not refused, its caller is served."""
    try:
        read = found(reader, head)
    except VeloxError as error:
        return error.reason.code, error.status, str(error)
    reader.accept(read)
    return read


def serve(reader: HeadReader, head: bytes) -> RequestHead:
    """Read a head once, as for a connection whose caller is served; found() reads it twice, as if two had come."""
    known = reader.find(head)
    read = reader.read(head) if known is None else known[0]
    reader.accept(read)
    return read


def trained(*heads: bytes, limits: Http1Limits = LIMITS) -> HeadReader:
    """Return a reader that knows these heads, and what is new in them."""
    reader = HeadReader(limits)
    for _ in range(3):
        for head in heads:
            outcome(reader, head)
    return reader


def is_planned(reader: HeadReader, head: bytes) -> bool:
    return found(reader, head).shape.is_shared


LINES = [
    b"Host: a",
    b"host: b",
    b"Content-Length: 5",
    b"Content-Length: 6",
    b"content-length: 7",
    b"CONTENT-LENGTH: 8",
    b"Content-Length:9",
    b"Content-Length: 10 ",
    b"Content-Length:  5",
    b"Content-Length: +5",
    b"Content-Length: 05",
    b"Content-Length: 0",
    b"Content-Length: 1001",
    b"Content-Length: 1000000000000000000",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 5, 5",
    b"Content-Length: ",
    b"Content_Length: 5",
    b"X: Content-Length: 5",
    b"Transfer-Encoding: chunked",
    b"transfer-encoding: gzip",
    b"Connection: close",
    b"Connection: content-length",
    b"Connection: x-new",
    b"Expect: 100-continue",
    b"Authorization: Bearer k",
    b"authorization: Bearer l",
    b"X-Api-Key: k",
    b"Upgrade: h2c",
    b"Upgrade: websocket",
    b"Connection: Upgrade, HTTP2-Settings",
    b"HTTP2-Settings: AAMAAABk",
    b" Content-Length: 5",
]
VALUES = [
    b"1",
    b"2",
    b"3",
    b"4",
    b"5",
    b" 6",
    b"7 ",
    b"8\t",
    b"9 9",
    b"a\tb",
    b"",
    b" ",
    b"\x00",
    b"\x7f",
    b"\x80",
    b"a\rb",
]
VALUES += [b"a\nb", b"a\n", b"x" * 100, b": ", b"b: c", b'"', b"\x1f", b"\xc3\xa9"]
STARTS = [b"X-New: ", b"X-New:", b"x-new: ", b"X_New: ", b"X-Two: ", b" X-New: ", b"X-New : ", b"X-New"]
NEW = st.builds(lambda start, value: start + value, st.sampled_from(STARTS), st.sampled_from(VALUES))
REQUEST_LINES = [
    b"POST /v1/x HTTP/1.1",
    b"GET /v1/x HTTP/1.1",
    b"POST /v1/x HTTP/1.0",
    b"POST  /v1/x HTTP/1.1",
    b"PUT /",
]
HEADS = st.builds(
    lambda start, lines: b"\r\n".join([start, *lines, b"", b""]),
    st.sampled_from(REQUEST_LINES),
    st.lists(st.sampled_from(LINES) | NEW, max_size=5).map(lambda lines: [b"Host: a", *lines])
    | st.lists(st.sampled_from(LINES) | NEW, max_size=5),
)
NEW_EACH_TIME = [b"POST /v1/x HTTP/1.1\r\nHost: a\r\nX-New: n%d\r\nContent-Length: 5\r\n\r\n" % n for n in range(5)] + [
    b"POST /v1/x HTTP/1.1\r\nHost: a\r\nX-New: n%d\r\nX-Two: n%d\r\n\r\n" % (n, n) for n in range(5)
]


@settings(max_examples=1500, deadline=None)
@given(heads=st.lists(HEADS, min_size=2, max_size=6), is_trained=st.booleans())
@pytest.mark.more
def test_head_is_read_the_same_whatever_was_read_before(heads: list[bytes], is_trained: bool) -> None:
    """Property: a reader that remembers and one that is new never disagree, on any sequence of heads."""
    reader = trained(*NEW_EACH_TIME) if is_trained else HeadReader(LIMITS)

    for head in heads * 2:
        assert outcome(reader, head) == outcome(HeadReader(LIMITS), head)


@st.composite
def twisted(draw: st.DrawFn) -> bytes:
    """Return a head that is known but for its values, with some bytes changed, lines moved, doubled or left out."""
    lines = sdk(draw(st.integers(0, 10**6)), length=draw(st.integers(0, 1100)))[:-4].split(b"\r\n")
    for _ in range(draw(st.integers(0, 3))):
        at, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        line = lines[at]
        match draw(st.integers(0, 5)):
            case 0:
                lines[at], lines[other] = lines[other], line
            case 1:
                lines.insert(other, line)
            case 2 if len(lines) > 1:
                del lines[at]
            case 3:
                cut = draw(st.integers(0, len(line)))
                inserted = draw(st.sampled_from([b" ", b"\t", b"\x00", b"\n", b"\r", b"\x80", b":", b"x", b"0"]))
                lines[at] = line[:cut] + inserted + line[cut:]
            case 4:
                lines[at] = draw(st.sampled_from([line.lower(), line.upper(), line.replace(b": ", b":"), line + b" "]))
            case _:
                cut = draw(st.integers(0, len(line)))
                lines[at] = line[:cut] + line[cut + 1 :]
    return b"\r\n".join(lines) + b"\r\n\r\n"


@settings(max_examples=1500, deadline=None)
@given(head=twisted())
@pytest.mark.more
def test_head_that_is_nearly_known_is_read_as_by_a_new_reader(head: bytes) -> None:
    """Property: also where it differs in one byte from those that are found by their lines."""
    reader = trained(*map(sdk, range(8)))
    assert is_planned(reader, sdk(9))
    if b"\r\n\r\n" in head[:-4]:
        return  # no decoder gives that to a reader
    for _ in range(3):
        assert outcome(reader, head) == outcome(HeadReader(LIMITS), head)
    assert is_planned(reader, sdk(10**7))


RULES = [HeaderRules(), HeaderRules(set=((b"x-request-id", b"ours"),)), HeaderRules(remove=(b"traceparent",))]


# Looked for in each request by itself; of replies; no names of fields.
ONLY_PASS = {b"anthropic-beta", b"openai-beta", b"idempotency-key", b"x-goog-upload-command"}
ONLY_PASS |= {b"x-idempotency-key"}  # joining.py looks for both in each request's own head
ONLY_PASS |= {b"alt-svc", b"cache-control", b"content-disposition", b"content-language", b"content-md5", b"x-gzip"}
ONLY_PASS |= {b"last-modified", b"retry-after", b"retry-after-ms", b"set-cookie", b"www-authenticate"}
# Of replies; of a request one is looked for with its body (ownership.py), in its own head.
ONLY_PASS |= {b"content-location", b"operation-location", b"azure-asyncoperation", b"json-seq"}
ONLY_PASS |= {b"x-goog-upload-url", b"x-goog-upload-control-url", b"x-goog-upload-command"}
ONLY_PASS |= {b"x-amzn-requestid", b"x-should-retry", b"us-ascii", b"utf-8", b"no-cache"}
ONLY_PASS |= {b"server-timing", b"first-byte"}  # a reply's, and one of its metrics
# Of pages of elsewhere (cors.py looks in each request's own head), of coded bodies, of parts of forms; no names.
ONLY_PASS |= {b"access-control-" + name for name in (b"allow-headers", b"allow-origin", b"allow-private-network")}
ONLY_PASS |= {b"access-control-expose-headers", b"access-control-max-age", b"access-control-request-headers"}
ONLY_PASS |= {b"access-control-request-private-network", b"content-digest", b"content-transfer-encoding"}
ONLY_PASS |= {b"form-data", b"pack200-gzip", b"x-compress", b"x-accel-buffering"}
WORDS = [
    b"velox",
    b"stainless",
    b"websocket",
    b"forwarded",
    b"model",
    b"deployment",
    b"engine",
    b"override",
    b"rewrite",
]
WORDS += [b"original", b"method", b"envoy", b"sagemaker", b"amzn-bedrock", b"portkey", b"litellm", b"helicone"]
WORDS += [b"cf-aig"]
NAMES = [b"X-New-%d", b"x-other%d", b"Abc.%d", b"X-Request-Id", b"Cookie", b"X-Forwarded-For", b"Connection", b"X_A%d"]
NAMES += [
    b"Transfer-Encoding",
    b"content-length",
    b"anthropic-version",
    b"x-model-%d",
    b"accept",
    b"X-Velox-A",
    b"X-New%d ",
]
EXTRAS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from([b": ", b": ", b": ", b":"]), st.sampled_from(VALUES)), max_size=6
)


def beside(reader: HeadReader) -> None:
    """Have a reader see so many invented names that it reads them beside what it knows."""
    for n in range(80):
        serve(reader, sdk(n, b"sk-1", 5, b"X-Invented-%d: a" % n, b"x-more-%d: %d" % (n, n)))


def with_fields(head: bytes, at: int, lines: list[bytes]) -> bytes:
    """Return a head with more lines, before its line number `at`."""
    known = head[:-4].split(b"\r\n")
    return b"\r\n".join([*known[:at], *lines, *known[at:], b"", b""])


@settings(max_examples=400, deadline=None)
@given(
    extras=EXTRAS,
    at=st.lists(st.integers(0, 10), min_size=1, max_size=2),
    rules=st.sampled_from([*RULES, HeaderRules(remove=(b"x-new-1", b"x-other0"))]),
    stream=st.booleans(),
    added=st.sampled_from([(), ((b"x-new-0", b"ours"),)]),
)
@pytest.mark.more
def test_invented_fields_change_nothing_else(
    extras: list[tuple[bytes, bytes, bytes]],
    at: list[int],
    rules: HeaderRules,
    stream: bool,
    added: tuple[tuple[bytes, bytes], ...],
) -> None:
    """Property: a head with fields that no other had is read, and goes up, as by who knows no other head.

    Most of these fields stand where those of other heads did, in one run or in two.
    """
    reader = trained(*map(sdk, range(8)))
    beside(reader)
    for n in range(40):
        serve(reader, with_fields(sdk(n), max(at[0], 1), [b"X-At-%d: %d" % (n, n)]))
    lines = [(name % n if b"%" in name else name) + colon + value for n, (name, colon, value) in enumerate(extras)]
    head = with_fields(with_fields(sdk(9), at[0], lines[:3]), at[-1], lines[3:])
    if b"\r\n\r\n" in head[:-4]:
        return  # no decoder gives that to a reader
    kept, fresh = (
        Forwarder(OPENAI, base_path="/b", root_path="/", key="sk-ours", client_keys_are_ours=True, added=added)
        for _ in range(2)
    )
    for _ in range(3):
        ours, theirs = outcome(reader, head), outcome(HeadReader(LIMITS), head)
        assert ours == theirs
        if isinstance(ours, RequestHead) and isinstance(theirs, RequestHead):
            up, alone = (
                each.build(read, BodyFields(stream=stream), b"{}", rules=rules)
                for each, read in ((kept, ours), (fresh, theirs))
            )
            assert sorted(up.headers) == sorted(alone.headers) and up.target == alone.target
            assert sorted(up.lines.split(b"\r\n")) == sorted(alone.lines.split(b"\r\n"))


def test_invented_fields_are_read_beside_what_is_known() -> None:
    """And neither fill the memory, nor keep what is new in other heads from being learnt."""
    reader = HeadReader(LIMITS)
    beside(reader)  # no head of this client was ever without
    for n in range(3000):
        serve(reader, sdk(n, b"sk-1", 5, *(b"X-%d-%d: a" % (n, at) for at in range(4))))
    found = [serve(reader, sdk(n, b"sk-1", 5, b"X-Once-%d: v" % n)) for n in range(100)]
    assert sum(head.shape.is_shared for head in found) >= 90, "but for a few that are read afresh"
    assert all(head.headers[-1] == (b"x-once-%d" % n, b"v") for n, head in enumerate(found) if head.shape.is_shared)
    assert is_planned(reader, sdk(1)), "without them, too"

    for n in range(1000):
        serve(reader, sdk(n, b"sk-2", 5, b"X-Trace: %d" % n))
    (name,) = {field[0] for field in reader.read(sdk(1, b"sk-2", 5, b"X-Trace: new")).shape.fields} - {
        field[0] for field in reader.read(sdk(1)).shape.fields
    }
    assert name == b"x-trace", "what each head of another caller has is learnt"


@pytest.mark.parametrize("at", range(1, 11))
@pytest.mark.parametrize("is_lower", [True, False])
def test_invented_fields_in_the_same_place_are_found_by_one_pattern(at: int, is_lower: bool) -> None:
    """However many there are; names go up in lower case, values as they came."""
    reader = trained(*map(sdk, range(8)))
    name = b"x-a-%d" if is_lower else b"X-A-%d"
    for n in range(80):
        serve(reader, with_fields(sdk(n), at, [name % n + b": n"]))

    for n_fields in (1, 2, 91):
        lines = [name % n + b": Value, of: %d" % n for n in range(n_fields)]
        head = with_fields(sdk(9, b"sk-2"), at, lines)
        known = reader.find(head) or reader.find(head)  # but for one in a few
        assert known is not None and known == (HeadReader(LIMITS).read(head), len(head))
        extras = known[0].extras
        assert extras is not None and extras.names == {b"x-a-%d" % n for n in range(n_fields)}
        assert extras.headers == [(b"x-a-%d" % n, b"Value, of: %d" % n) for n in range(n_fields)]
        assert known[0].header(b"x-a-0") == b"Value, of: 0" and known[0].header(b"X-A-0") is None


@pytest.mark.parametrize(
    "lines",
    [
        *([b"x-a: b", b"x-a: c"], [b"x-a: b", b"X-A: c"], [b"x-a: b", b"traceparent: c"], [b"x-a: b", b"Accept: c"]),
        *([b"x-a: b", b"x-a_b: c"], [b"x-a: b", b"x-a!: c"], [b"x-a:b"], [b"x-a : b"], [b": b"]),
        *([b"x-a: " + value] for value in (b"", b" a", b"a ", b"a\tb", b"a\rb", b"a\nb", b"a\0b", b"a\x80", b"a\x7f")),
        *([b"x-velox-a: b"], [b"x-forwarded-for: b"], [b"Connection: x-a"], [b"content-length: 5"], [b"x-model: b"]),
        [b"x-%d: b" % n for n in range(92)],
        [b"x-a: " + b"b" * 4096],
    ],
)
def test_head_with_any_other_invented_field_is_not_found(lines: list[bytes]) -> None:
    """What comes twice, is looked for, is over a limit, or must be looked at more closely."""
    reader = trained(*map(sdk, range(8)))
    for n in range(80):
        serve(reader, sdk(n, b"sk-1", 5, b"x-a-%d: a" % n))
    usual = sdk(9, b"sk-1", 5, b"x-a: b", b"x-c: d")

    found = [reader.find(sdk(9, b"sk-1", 5, *lines)) for _ in range(2)]

    assert found == [None, None]
    assert reader.find(usual) or reader.find(usual), "but for one in a few"


def test_extra_lines_that_are_more_than_their_names_never_go_up() -> None:
    """A field that holds the end of a line is refused where it is written, whoever has read it."""
    for lines in (b"x-a: b\r\nc: d\r\n", b"x-a: b\n\r\n", b"x-a: b\r\r\n", b"x-a: b\0\r\n"):
        fields = TemplateBeside(HeadTemplate([], []), ExtraFields(frozenset({b"x-a"}), lines))
        with pytest.raises(ValueError, match="CR, LF or NUL"):
            fields.lines(())


def test_names_that_velox_looks_for_are_no_passengers() -> None:
    """Every name of a field in the sources that read requests: what follows from a head is kept for others like it."""
    sources = [*Path("velox/gateway").rglob("*.py"), *Path("velox/protocol").rglob("*.py")]
    text = "".join(path.read_text() for path in [*sources, Path("velox/policy/retries/deadline.py")])
    found = {name.encode() for name in re.findall(r'b"([a-z][a-z0-9]*(?:-[a-z0-9]+)+)"', text)}
    assert {b"x-request-timeout-ms", b"anthropic-version", b"x-goog-api-key", b"content-type"} <= found

    passengers = {name for name in found if only_pass([name], name)}

    assert passengers.isdisjoint(OVERRIDING), "a key that is limited is refused for them (access.py)"
    passengers -= DROPPED | CREDENTIALS  # by name, whatever the plan (forward.py)
    assert passengers == ONLY_PASS, "say of a new name whether a kept plan depends on it (only_pass), or add it here"


@pytest.fixture(scope="module")
def used_reader() -> HeadReader:
    """One that reads invented fields beside what it knows."""
    reader = trained(*map(sdk, range(8)))
    beside(reader)
    return reader


# Refused, and in each head already.
NEVER_UP = sorted((DROPPED | CREDENTIALS | {start + b"a" for start in DROPPED_STARTS}) - {b"expect", b"authorization"})


@pytest.mark.parametrize("name", NEVER_UP, ids=lambda name: name.decode())
def test_field_that_no_upstream_gets_is_dropped_from_new_heads_and_known_ones(
    used_reader: HeadReader, name: bytes
) -> None:
    """Also where it stands beside a plan that was made without it. The upstream's own field of that name goes up."""
    ours, own = (
        Forwarder(OPENAI, base_path="", root_path="/", key="sk-ours", client_keys_are_ours=True, added=added)
        for added in ((), ((name, b"own"),))
    )
    for reader in (HeadReader(LIMITS), used_reader):
        for spelled in (name, name.title()):
            head = reader.read(with_fields(sdk(9), 3, [spelled + b": theirs", b"x-new-1: passes"]))
            sent = ours.build(head, BodyFields(), b"{}").headers
            assert (b"x-new-1", b"passes") in sent and name not in {key for key, _ in sent}
            assert [value for key, value in own.build(head, BodyFields(), b"{}").headers if key == name] == [b"own"]


@pytest.mark.parametrize("word", WORDS)
def test_no_name_with_such_a_word_only_passes(word: bytes) -> None:
    """Wherever the word stands in it, and whatever names are beside it; one letter less, and it is another name."""
    for name in (word, b"x-" + word, b"xy" + word + b"yx"):
        assert not only_pass([name], name) and not only_pass([b"x-a", name], b"x-a\n" + name)
    assert only_pass([word[1:]], word[1:]) and only_pass([word[:-1]], word[:-1])


@settings(max_examples=500, deadline=None)
@given(
    ids=st.lists(st.sampled_from([b"a", b"a b", b"a%b", b"x" * 64, b"x" * 65, b"a:b", b"%d"]), min_size=1, max_size=4),
    rules=st.sampled_from(RULES),
    stream=st.booleans(),
    added=st.sampled_from([(), ((b"x-two", b"ours"),)]),
)
@pytest.mark.slow
def test_what_goes_up_of_a_known_head_is_what_goes_up_of_a_new_one(
    ids: list[bytes], rules: HeaderRules, stream: bool, added: tuple[tuple[bytes, bytes], ...]
) -> None:
    """Property: the fields and the lines that are filled in are those that are built for this head alone."""
    more = [b"X-Two: %d", b"X-Forwarded-For: %d", b"Cookie: %d", b"X-Last: 1"]
    heads = [sdk(n, b"sk-1", 5, *(line % n if b"%" in line else line for line in more)) for n in range(8)]
    reader = trained(*heads)
    kept, fresh = (
        Forwarder(OPENAI, base_path="/b", root_path="/", key="sk-ours", client_keys_are_ours=True, added=added)
        for _ in range(2)
    )
    for n, text in enumerate(ids):
        head = heads[0].replace(b"x-request-id: %036d" % 0, b"x-request-id: " + text)
        head = head.replace(b"traceparent: 00", b"traceparent: %d" % n)
        planned, read = reader.read(head), HeadReader(LIMITS).read(head)
        assert planned.shape.is_shared and not read.shape.is_shared

        ours = kept.build(planned, BodyFields(stream=stream), b"{}", rules=rules)

        theirs = fresh.build(read, BodyFields(stream=stream), b"{}", rules=rules)
        assert (ours.headers, ours.lines, ours.target) == (theirs.headers, theirs.lines, theirs.target)


def test_known_head_with_a_second_length_is_refused() -> None:
    """B-2: the length that a known head is looked up without does not hide another one."""
    reader = trained(b"POST / HTTP/1.1\r\nHost: a\r\nCONTENT-LENGTH: 5\r\n\r\n")

    smuggled = b"POST / HTTP/1.1\r\nHost: a\r\nCONTENT-LENGTH: 5\r\nContent-Length: 6\r\n\r\n"

    assert outcome(reader, smuggled)[:2] == ("bad_framing", 400)  # type: ignore[index]


@pytest.mark.parametrize(("digits", "length"), [(b"0", 0), (b"999", 999), (b"1000", 1000)])
def test_known_head_takes_each_length(digits: bytes, length: int) -> None:
    """The length is checked each time."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %b\r\n\r\n"
    reader = trained(head % b"5")
    first = reader.read(head % b"6")

    again = reader.read(head % digits)

    assert again.content_length == length
    assert again.shape is first.shape and again.shape.is_shared
    for bad in (b"1001", b"05", b"1" * 18, b"1" * 19, b"9" * 20, b"5 ", b"0x5"):
        assert outcome(reader, head % bad) == outcome(HeadReader(LIMITS), head % bad)


def test_head_that_was_given_out_does_not_change_what_is_kept() -> None:
    """A connection may mark its own head (keep_alive after a refusal); the next one starts afresh."""
    head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    reader = trained(head)
    for _ in range(3):
        given_out = reader.read(head)
        assert given_out.keep_alive and given_out.shape.is_shared
        given_out.keep_alive = False
        given_out.headers.append((b"x", b"y"))
        assert given_out.headers == []


def test_what_is_new_in_each_head_is_found_out() -> None:
    """After a few heads only the ids are new, and the others are found by their lines; nothing of them is kept."""
    reader = trained(*map(sdk, range(8)))

    one, other = reader.read(sdk(100)), reader.read(sdk(101, length=7))

    assert one.shape is other.shape and one.shape.is_shared
    assert one.values == (b"Bearer sk-1", b"00-%032d-00f067aa0ba902b7-01" % 100, b"%036d" % 100)
    volatile = [name for name, value in one.shape.fields if value is None]
    assert volatile == [b"authorization", b"traceparent", b"x-request-id"]
    assert other.header(b"x-request-id") == b"%036d" % 101 and other.header(b"accept") == b"application/json"
    assert other.headers == HeadReader(LIMITS).read(sdk(101)).headers


@pytest.mark.parametrize(
    "line",
    [
        *(b"Host: a%d", b"Content-Type: a/%d", b"Content-Encoding: %d", b"Accept-Encoding: %d"),
        b"x-request-timeout-ms: %d",
        *(b"X-Velox-Priority: %d", b"x-velox-timing: %d", b"x-velox-tagged: %d", b"x-litellm-tags: %d"),
        *(b"x-stainless-retry-count: %d", b"x-stainless-read-timeout: %d"),
    ],
)
def test_field_that_velox_acts_on_is_never_volatile(line: bytes) -> None:
    """However often it changes: what follows from it is found by its value."""
    host = b"" if line.startswith(b"Host") else b"Host: a\r\n"
    heads = [b"GET / HTTP/1.1\r\n%b%b\r\n\r\n" % (host, line % n) for n in range(1, 20)]
    reader = trained(*heads)

    for head in heads:
        read = reader.read(head)
        assert read.values == () and read == HeadReader(LIMITS).read(head)


@pytest.mark.parametrize("name", [b"X-Velox-Session", b"x-velox-tag", b"X-Velox-Tags"])
def test_field_of_which_clients_have_many_values_is_volatile(name: bytes) -> None:
    """Nothing that is kept for a head follows from it: routes and records read it from each request."""
    heads = [b"GET / HTTP/1.1\r\nHost: a\r\n%b: s%d\r\n\r\n" % (name, n) for n in range(1, 20)]
    reader = trained(*heads)

    shapes = {id(found(reader, head).shape) for head in heads}

    assert len(shapes) == 1
    for n, head in enumerate(heads, 1):
        read = reader.read(head)
        assert read.values == (b"s%d" % n,) and read.header(name.lower()) == b"s%d" % n
        assert read == HeadReader(LIMITS).read(head)


def test_name_that_comes_twice_is_not_volatile() -> None:
    """The order of two values says something."""
    heads = [b"GET / HTTP/1.1\r\nHost: a\r\nx-a: %d\r\nX-A: %d\r\n\r\n" % (n, n + 1) for n in range(0, 60, 2)]
    reader = trained(*heads)

    for head in heads:
        assert reader.read(head).values == () and outcome(reader, head) == outcome(HeadReader(LIMITS), head)


def test_head_that_was_not_accepted_is_not_remembered() -> None:
    """Whoever is refused leaves nothing behind, nor what somebody else is accepted for."""
    reader = HeadReader(LIMITS)
    for n in range(20):
        reader.read(sdk(n))
        reader.accept(RequestHead.of(b"GET", b"/"))

    assert len(reader._memory) == 0 and not is_planned(reader, sdk(30))


@pytest.mark.parametrize("name", [b"Authorization", b"authorization", b"x-api-key", b"api-key", b"X-Goog-Api-Key"])
def test_credential_is_never_in_a_shape(name: bytes) -> None:
    """Callers whose heads are alike share what follows from them; who they are is said by each head's own value."""
    heads = [b"GET / HTTP/1.1\r\nHost: a\r\n%b: secret-%d\r\n\r\n" % (name, n) for n in range(200)]
    reader = trained(*heads[:3])

    read = [reader.read(head) for head in heads]

    assert len({id(each.shape) for each in read}) == 1 and read[0].shape.is_shared
    for n, each in enumerate(read):
        assert each.values[each.shape.credential_at] == b"secret-%d" % n == each.header(name.lower())
    assert b"secret" not in repr(read[0].shape).encode()


def test_second_credential_is_refused_though_the_first_is_known() -> None:
    reader = trained(*map(sdk, range(8)))

    both = b"Authorization: Bearer sk-1\r\nAuthorization: Bearer sk-2"
    twice = sdk(9).replace(b"Authorization: Bearer sk-1", both)
    assert outcome(reader, twice)[:2] == ("bad_request", 400)  # type: ignore[index]
    for _ in range(3):
        other = sdk(9, b"sk-1", 5, b"x-api-key: sk-2")
        assert outcome(reader, other) == outcome(HeadReader(LIMITS), other)
    assert not is_planned(reader, other)


def test_clear_forgets_everything() -> None:
    reader = trained(*map(sdk, range(8)))
    assert is_planned(reader, sdk(9))

    reader.clear()

    assert not is_planned(reader, sdk(9)) and len(reader._memory) == 0


HOSTILE = {
    "names": lambda n: sdk(n, b"sk-2", 5, b"x-%d: 1" % n),
    "values": lambda n: sdk(n, b"sk-2", 5, b"x-velox-a: %d" % n),
    "order": lambda n: sdk(
        n,
        b"sk-2",
        5,
        *next(
            itertools.islice(
                itertools.permutations([b"a: 1", b"b: 2", b"c: 3", b"d: 4", b"e: 5", b"f: 6", b"g: 7"]), n % 5040, None
            )
        ),
    ),
    "long": lambda n: sdk(n, b"sk-2", 5, b"content-type: %d%b" % (n, b"y" * 480)),
    "credentials": lambda n: sdk(n, b"sk-2-%d" % n),
    "anonymous": lambda n: b"GET / HTTP/1.1\r\nHost: a\r\nx-%d: %d\r\n\r\n" % (n % 300, n),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.slow
def test_hostile_heads_leave_memory_bounded_and_others_alone(kind: str) -> None:
    """10,000 heads made to fill the memory; another caller's plan is found all the same."""
    reader = trained(*map(sdk, range(8)))
    shape = reader.read(sdk(9)).shape
    assert shape.is_shared

    for n in range(5_000):
        for _ in range(2):
            outcome(reader, HOSTILE[kind](n))
        if n % 50 == 0:
            assert reader.read(sdk(n)).shape is shape

    bounds = Bounds()
    assert len(reader._memory) <= 2 * bounds.lines and len(reader._memory.plans) <= bounds.plans
    assert reader.read(sdk(9)).shape is shape


@pytest.mark.more
def test_many_hostile_callers_together_leave_those_in_use_alone() -> None:
    """Each adds its part, and all of it is put aside again and again; what is asked for comes back from there."""
    reader = trained(*map(sdk, range(8)))
    shape = reader.read(sdk(9)).shape

    for n in range(30_000):
        outcome(reader, sdk(n, b"sk-%d" % (n % 300), 5, *(b"x-%d-%d: 1" % (n, more) for more in range(3))))
        if n % 100 == 0:
            assert reader.read(sdk(n)).shape is shape

    assert len(reader._memory) <= 2 * Bounds().lines


@pytest.mark.slow
def test_one_hostile_caller_never_makes_the_memory_start_over() -> None:
    """It may add an eighth; who came before is still found at once, without being put aside."""
    reader = trained(*map(sdk, range(8)))

    for n in range(10_000):
        outcome(reader, sdk(n, b"sk-2", 5, *(b"x-%d-%d: 1" % (n, more) for more in range(8))))

    assert len(reader._memory) == len(reader._memory.marks) <= Bounds().lines // 4
    assert is_planned(reader, sdk(9))


@pytest.mark.parametrize("over", [-1, 0, 1])
@pytest.mark.parametrize("limit", ["target_bytes", "head_bytes", "line_bytes", "header_count", "plan"])
def test_limits_hold_for_known_heads(limit: str, over: int) -> None:
    """One below a limit, at it, and one above: known or not."""
    base = sdk(1)
    sizes = {"target_bytes": len(b"/v1/chat/completions"), "head_bytes": len(base) + 100, "header_count": len(SDK) - 1}
    sizes |= {"line_bytes": len(base) + 100}
    limits = LIMITS if limit == "plan" else Http1Limits(body_bytes=1000, **{limit: sizes[limit] + over})
    heads = [sdk(n) for n in range(8)]
    reader = trained(*heads, limits=limits)
    n_more = (4096 if limit == "plan" else len(base) + 100) - len(base)

    for n_bytes in range(n_more - 2, n_more + 3):
        head = base.replace(b"x-request-id: ", b"x-request-id: " + b"y" * n_bytes)
        assert outcome(reader, head) == outcome(HeadReader(limits), head)
    for head in (base, sdk(1, b"sk-1", 5, b"x-more: 1")):
        assert outcome(reader, head) == outcome(HeadReader(limits), head)


def test_known_head_without_a_body_does_not_hide_that_a_client_waits_with_one() -> None:
    """Without a body `Expect` asks for nothing; the same head with one is answered 100."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\n%bexpect: 100-continue\r\n\r\n"
    reader = trained(head % b"", head % b"Content-Length: 0\r\n")
    assert not reader.read(head % b"").expect_continue

    assert reader.read(head % b"Content-Length: 5\r\n").expect_continue


def test_websocket_behind_many_other_offers_is_one() -> None:
    """B-21: the value of an Upgrade is looked at in each head, however many others were ignored before."""
    start = b"GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: "
    heads = [start + b"proto-%d\r\n\r\n" % n for n in range(20)]
    handshake = b"websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

    reader = trained(*heads, *heads)

    assert reader.read(start + handshake).offer is not None
    with pytest.raises(VeloxError):
        reader.read(start + b"websocket\r\n\r\n")


@pytest.mark.parametrize("n_trained", [0, 1, 12])
def test_page_is_of_its_own_kind_however_many_came_before(n_trained: int) -> None:
    """What follows from its Origin is never taken from a head with another one, or with none."""
    reader = HeadReader(LIMITS)
    for n in range(n_trained):
        serve(reader, sdk(n))
        serve(reader, sdk(n, b"sk-1", 5, b"Origin: http://localhost:%d" % n))
    with_page = sdk(99, b"sk-1", 5, b"Origin: https://evil.example")
    for _ in range(3):
        read = serve(reader, with_page)
        assert read.header(b"origin") == b"https://evil.example"
        assert read.extras is None and (b"origin", b"https://evil.example") in read.shape.fields


@pytest.mark.parametrize(
    ("line", "host", "is_own"),
    [
        ("GET / HTTP/1.1", "Host: gateway.example:8080", True),
        ("GET / HTTP/1.1", "Host: GATEWAY.EXAMPLE.", True),
        ("GET / HTTP/1.1", "Host: 127.0.0.1:8080", True),
        ("GET / HTTP/1.1", "Host: [::1]:8080", True),
        ("GET / HTTP/1.1", "Host: app.localhost", True),
        ("GET / HTTP/1.1", "Host: evil.example:8080", False),
        ("GET / HTTP/1.1", "Host: gateway.example.evil.example", False),
        ("GET http://gateway.example/ HTTP/1.1", "Host: evil.example", True),
        ("GET / HTTP/1.0", "Host: evil.example", False),
        ("GET / HTTP/1.0", "Accept: a", True),
    ],
)
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(
    ("agent", "is_browsers"),
    [
        ("Mozilla/5.0 (X11)", True),
        ("OpenAI/Python 1.0", False),
        ("curl/8\r\nAccept-Language: en", True),
        ("curl/8\r\nAccept-Language:", True),
        ("node\r\nAccept-Language: *\r\nSec-Fetch-Mode: cors", False),
    ],
)
def test_head_tells_whether_a_page_of_elsewhere_may_have_sent_it(
    line: str, host: str, is_own: bool, is_known: bool, agent: str, is_browsers: bool
) -> None:
    """The same for one that is known: neither Host nor User-Agent is ever a line that may be new in each head."""
    reader = HeadReader(Http1Limits(hosts=frozenset({b"gateway.example"})))
    for n in range(12 * is_known):
        serve(reader, f"{line}\r\n{host}\r\nUser-Agent: {agent}\r\nx-n: {n}\r\n\r\n".encode())
        serve(reader, f"GET / HTTP/1.1\r\nHost: h{n}.example\r\nUser-Agent: a{n}\r\nx-n: {n}\r\n\r\n".encode())
    read = serve(reader, f"{line}\r\n{host}\r\nUser-Agent: {agent}\r\nx-n: new\r\n\r\n".encode())
    is_foreign = not is_own and is_browsers
    assert (read.shape.is_foreign_page, read.shape.is_shared) == (is_foreign, is_known)
