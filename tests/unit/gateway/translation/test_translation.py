"""The filter that brings one attempt's reply into the client's dialect (gateway/translation/translated_reply.py)."""

from __future__ import annotations

import pytest

from velox.dialects.canonical.errors import BrokenReplyError, ReplyError
from velox.dialects.canonical.model import ApiError, ErrorKind
from velox.errors import Reason, VeloxError
from velox.gateway.reply.filters import FilterChain, InnerError
from velox.gateway.translation.translated_reply import StreamTranslator, TranslatedHeads, TranslatedReply
from velox.heads import Headers, ReplyHead, ReplyShape
from velox.net.upstream.interface import UpstreamFailure

SSE = (b"content-type", b"text/event-stream")
JSON = (b"content-type", b"application/json")
OVERLOADED = ApiError(ErrorKind.OVERLOADED, 529, "busy")


class Stream:
    """A stream of a made-up dialect: `.` is a prelude, `e` an event, `!` an error, `$` the end.

    `(` begins what is not whole before `)`, and counts as so many events then.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.failed: ApiError | None = None
        self.is_whole = False
        self.n_held = 0

    def begin(self) -> None:
        self.has_begun = True

    def feed(self, data: bytes, end: bool) -> bytes:
        written = b""
        if data.startswith(b"("):
            self.n_held += len(data)
            return b""
        if self.n_held and b")" in data:
            n, self.n_held = 100 * 1024, 0
            inner, _, data = data.partition(b")")
            written = b"<%b>" % inner * n
        for letter in data.decode().replace(" ", ""):
            self.has_begun = self.has_begun or letter in "e$"
            if letter == "?":
                raise BrokenReplyError("no such event")
            if letter == "!":
                self.failed = OVERLOADED
                return written + (b"<error>" if self.has_begun else b"")
            self.is_whole = letter == "$"
            written += b"<%b>" % letter.encode()
        return written

    def fail(self, error: ApiError) -> bytes:
        return b"<failed %d>" % error.status


class Made:
    """A translator of that dialect."""

    dropped: tuple[str, ...] = ("seed", "logit_bias")
    tokens = (3, 4)
    n_held = 0
    most_values = 200_000

    def answer(self, body: bytes) -> bytes:
        if body.strip() == b"bug":
            raise ZeroDivisionError
        if body.strip() == b"bomb":
            return bytes(128 * 1024 * 1024 + 1)
        if body.strip() == b"{error":
            raise ReplyError(OVERLOADED)
        return b"{%b}" % body

    def answer_of_stream(self, body: bytes) -> bytes:
        return b"{of %b}" % body

    def whole_stream(self, body: bytes) -> bytes:
        return b"<%b>" % body

    def stream(self) -> StreamTranslator:
        return Stream()

    def read_error(self, status: int, headers: Headers, body: bytes) -> ApiError:
        if body == b"quota":
            return ApiError(ErrorKind.RATE_LIMIT, 429, "quota", retry_after_s=1.2)
        return ApiError(ErrorKind.API, status, body.decode())

    def error(self, error: ApiError) -> bytes:
        return b"[%d %b]" % (error.status, error.message.encode())


class Play:
    """One reply, played through the chain."""

    def feed(self, data: bytes, end: bool) -> bytes:
        """Feed it, and have done what is to be done beside the loop; return all that goes on."""
        found = [self.chain.feed(data, end)]
        while self.chain.is_behind:
            if self.chain.has_work:
                self.chain.work()
            if self.chain.pending_error is not None:
                self.asked.append(self.chain.pending_error)
            found.append(self.chain.go_on())
        return b"".join(found)

    def __init__(self, *, is_stream: bool, has_limits: bool = False) -> None:
        self.bugs: list[Exception] = []
        self.asked: list[InnerError] = []  # the pending errors, which were passed on
        self.tokens: list[tuple[int | None, int | None]] = []
        self.filter = TranslatedReply(
            Made(),
            self.bugs.append,
            is_stream=is_stream,
            has_limits=has_limits,
            on_tokens=lambda told: self.tokens.append(told[:2]),
        )
        self.chain = FilterChain((), is_sse=False, is_plain=True)

    def begin(self, status: int, *headers: tuple[bytes, bytes]) -> ReplyHead | None:
        self.chain = FilterChain((self.filter,), is_sse=SSE in headers, is_plain=True)
        return self.chain.begin(ReplyHead.of(status, headers, 7))

    def fields(self) -> dict[bytes, bytes]:
        assert self.chain.head is not None
        assert self.chain.head.content_length is None
        return dict(self.chain.head.headers)


def test_plain_answer_waits_for_its_end_and_gets_a_new_head() -> None:
    """The upstream's length and dialect fields are of another body; what was dropped is said."""
    play = Play(is_stream=False)

    assert play.begin(200, JSON, (b"request-id", b"r1"), (b"anthropic-organization-id", b"o"), (b"etag", b"x")) is None
    assert play.chain.feed(b"12", False) == b""
    assert play.chain.feed(b"34", True) == b"{1234}"

    assert play.fields() == {
        b"request-id": b"r1",
        b"content-type": b"application/json",
        b"x-velox-dropped": b"seed,logit_bias",
    }
    assert play.tokens[-1] == (3, 4)


@pytest.mark.parametrize(("has_limits", "passes"), [(False, False), (True, True)])
def test_upstream_limits_do_not_pass_but_ours_do(has_limits: bool, passes: bool) -> None:
    """Rate-limit headers are in the upstream's dialect; Velox's own have replaced them where it has limits."""
    play = Play(is_stream=False, has_limits=has_limits)

    play.begin(200, JSON, (b"x-ratelimit-remaining-requests", b"9"))
    play.chain.feed(b"1", True)

    assert (b"x-ratelimit-remaining-requests" in play.fields()) is passes


def test_error_keeps_its_status_in_the_shape_of_the_client() -> None:
    """An upstream's error, whatever its body."""
    play = Play(is_stream=True)

    play.begin(503, (b"content-type", b"text/html"), (b"retry-after", b"2"))

    assert play.chain.feed(b"<html>", False) == b""
    assert play.chain.feed(b"down", True) == b"[503 <html>down]"
    assert play.chain.head is not None and play.chain.head.status == 503
    assert play.fields()[b"retry-after"] == b"2"


def test_error_that_means_another_status_has_that() -> None:
    """For the client, and for who decides on another attempt; when to try again may stand in the body only."""
    play = Play(is_stream=False)
    play.begin(400, JSON)

    assert play.feed(b"quota", True) == b"[429 quota]"
    assert play.chain.head is not None and play.chain.head.status == 429
    assert play.fields()[b"retry-after"] == b"2"
    assert [(each.head.status, dict(each.head.headers)[b"retry-after"]) for each in play.asked] == [(429, b"2")]


def test_upstream_says_itself_when_to_try_again() -> None:
    """Its header counts."""
    play = Play(is_stream=False)
    play.begin(429, JSON, (b"retry-after", b"9"))
    play.chain.feed(b"quota", True)

    assert play.chain.head is not None
    assert [value for name, value in play.chain.head.headers if name == b"retry-after"] == [b"9"]
    assert play.asked == []


def test_head_of_a_stream_waits_for_the_first_event() -> None:
    """A prelude is written with it, in order."""
    play = Play(is_stream=True)

    play.begin(200, SSE)
    assert play.chain.feed(b".", False) == b"" and play.chain.head is None
    assert play.chain.feed(b".e", False) == b"<.><.><e>"
    assert play.chain.is_sse
    assert play.chain.feed(b"e$", False) == b"<e><$>" and play.chain.is_over


def test_error_before_the_first_event_has_its_own_status() -> None:
    """Another attempt may follow; without one the client gets an error, not a stream."""
    play = Play(is_stream=True)
    play.begin(200, SSE)
    play.chain.feed(b".", False)

    assert play.chain.feed(b"!", False) == b"" and play.chain.head is None
    pending = play.chain.pending_error
    assert pending is not None and pending.head.status == 529
    assert b'"message":' in pending.body, "a fallback may take what it says: too long for this model, say"
    assert play.chain.go_on() == b"[529 busy]"
    assert play.chain.head is not None and play.chain.head.status == 503 and play.chain.is_over


def test_error_after_the_first_event_is_an_event() -> None:
    """The status is gone; no end follows."""
    play = Play(is_stream=True)
    play.begin(200, SSE)

    assert play.chain.feed(b".e", False) == b"<.><e>"
    assert play.chain.feed(b"!", False) == b"<error>" and play.chain.is_over
    assert play.filter.cut(VeloxError(Reason.UPSTREAM_RESET, "x")) is None  # it has been told already


@pytest.mark.parametrize(("begin", "more"), [(b"", b"."), (b"e", b"")])
def test_stream_without_an_event_for_the_client_is_given_up(begin: bytes, more: bytes) -> None:
    """Endless pings would keep the exchange for ever, and what it holds. Each event for the client counts anew."""
    play = Play(is_stream=True)
    play.begin(200, SSE)
    play.chain.feed(begin, False)
    piece = more.ljust(1024 * 1024)

    for _ in range(128):
        play.chain.feed(piece, False)
    if begin:
        assert play.chain.feed(b"e", False) == b"<e>"
        for _ in range(128):
            play.chain.feed(piece, False)
    with pytest.raises(UpstreamFailure) as raised:
        play.chain.feed(piece, False)
    assert raised.value.reason is Reason.UPSTREAM_PROTOCOL


@pytest.mark.parametrize("is_stream", [True, False])
def test_blanks_without_a_body_are_given_up(is_stream: bool) -> None:
    """Some servers keep a connection open so, but not for ever."""
    play = Play(is_stream=is_stream)
    play.begin(200, JSON)
    blanks = b" " * 1024 * 1024

    with pytest.raises(UpstreamFailure) as raised:
        for _ in range(129):
            play.chain.feed(blanks, False)

    assert raised.value.reason is Reason.UPSTREAM_PROTOCOL


@pytest.mark.parametrize("before", [b"", b".", b".e", b".eee"])
def test_cut_stream_never_looks_whole(before: bytes) -> None:
    """It fails wherever it is cut; once begun, the client is told in its own dialect."""
    play = Play(is_stream=True)
    play.begin(200, SSE)
    play.chain.feed(before, False)

    with pytest.raises(UpstreamFailure) as raised:
        play.chain.feed(b"", True)
    assert raised.value.reason is Reason.UPSTREAM_TRUNCATED
    told = play.chain.cut(VeloxError(Reason.UPSTREAM_TRUNCATED, "cut"))
    assert told == (b"<failed 502>" if b"e" in before else None)


def test_last_event_before_a_cut_is_told_first() -> None:
    """It may come in one read with the end."""
    play = Play(is_stream=True)
    play.begin(200, SSE)
    play.chain.feed(b".e", False)

    with pytest.raises(UpstreamFailure):
        play.chain.feed(b"e", True)
    assert play.chain.cut(VeloxError(Reason.UPSTREAM_TRUNCATED, "cut")) == b"<e><failed 502>"


def test_json_in_place_of_a_stream_becomes_one() -> None:
    """A server that does not stream answers a client that asked for it."""
    play = Play(is_stream=True)
    play.begin(200, JSON)

    assert play.chain.feed(b"12", True) == b"<12>"
    assert play.fields()[b"content-type"].startswith(b"text/event-stream")


def test_error_inside_a_whole_answer_of_200_is_one() -> None:
    """Some answer 200 with an error for a body."""
    play = Play(is_stream=False)
    play.begin(200, JSON)

    assert play.feed(b"{error", True) == b"[529 busy]"
    assert play.chain.head is not None and play.chain.head.status == 503  # 529 is Anthropic's alone


def test_reply_that_is_no_dialect_fails() -> None:
    """The upstream's fault."""
    play = Play(is_stream=True)
    play.begin(200, SSE)

    with pytest.raises(UpstreamFailure) as raised:
        play.chain.feed(b"?", False)
    assert raised.value.reason is Reason.UPSTREAM_PROTOCOL


def test_bug_in_a_dialect_is_recorded_and_ends_the_reply() -> None:
    """Nothing else is harmed."""
    play = Play(is_stream=False)
    play.begin(200, JSON)

    with pytest.raises(UpstreamFailure) as raised:
        play.chain.feed(b"bug", True)
    assert raised.value.reason is Reason.INTERNAL
    assert [type(bug) for bug in play.bugs] == [ZeroDivisionError]


def test_heads_that_are_known_are_made_once() -> None:
    """New values, another status or another loss count; what goes down is what a head of its own would have."""
    fields = ((b"date", None), (b"server", b"x"), (b"anthropic-organization-id", None), (b"cf-ray", None), JSON)
    shape, heads = ReplyShape(200, fields, is_shared=True), TranslatedHeads()

    for values in ((b"Mon", b"org", b"1"), (b"Tue", b"org", b"2")):
        for status in (200, 503):
            for more in ((JSON,), (JSON, (b"x-velox-dropped", b"seed"))):
                for has_limits in (False, True):
                    known = ReplyHead(shape, values, 7)
                    alone = ReplyHead.of(200, known.headers, 7)
                    one, other = (heads.of(each, status, more, has_limits=has_limits) for each in (known, alone))
                    assert one == other
                    wanted = [(b"date", values[0]), (b"server", b"x"), (b"cf-ray", values[2]), *more]
                    assert (one.status, one.headers, one.content_length) == (status, wanted, None)

    first, second = (
        heads.of(ReplyHead(shape, (day, b"", b""), 7), 200, (JSON,), has_limits=True) for day in (b"a", b"b")
    )
    assert first.shape is second.shape and first.shape.is_shared


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("value", [b"1,", b"{},"])
def test_answer_of_too_many_values_is_not_translated(is_stream: bool, value: bytes) -> None:
    """As of requests: a million blocks held the loop for up to ten seconds."""
    play = Play(is_stream=is_stream)
    play.begin(200, JSON)
    play.chain.feed(b'{"a":[' + value * 200_001, False)

    with pytest.raises(UpstreamFailure, match="over 200,000 fields and values") as raised:
        play.feed(b"1]}", True)

    assert raised.value.reason is Reason.UPSTREAM_PROTOCOL
    assert play.chain.head is None and play.bugs == []


def test_commas_in_texts_are_no_values() -> None:
    play = Play(is_stream=False)
    play.begin(200, JSON)
    text = b'["' + b"," * 300_000 + b'"]'

    assert play.feed(text, True) == b"{%b}" % text


# -- what would hold the loop ------------------------------------------------------------------------------------------

LARGE = 300 * 1024


def test_large_answer_is_made_beside_the_loop_and_goes_out_in_pieces() -> None:
    """X7: an answer of 50 MB was one step of the loop. The client knows its length."""
    play = Play(is_stream=False)
    play.begin(200, JSON)
    assert play.chain.feed(b"x" * LARGE, True) == b""
    assert play.chain.has_work and play.tokens == []

    play.chain.work()
    pieces = [play.chain.go_on()]
    assert play.chain.head is not None and play.chain.head.content_length == LARGE + 2
    assert play.tokens == [(3, 4)]
    while play.chain.is_behind:
        pieces.append(play.chain.go_on())
    assert b"".join(pieces) == b"{" + b"x" * LARGE + b"}"
    assert [len(piece) for piece in pieces] == [256 * 1024, LARGE + 2 - 256 * 1024]


def test_large_answer_as_a_stream_tells_no_length() -> None:
    play = Play(is_stream=True)
    play.begin(200, JSON)

    assert play.feed(b"x" * LARGE, True) == b"<" + b"x" * LARGE + b">"
    assert play.chain.head is not None and play.chain.head.content_length is None


def test_error_in_a_large_answer_is_asked_about_by_the_loop() -> None:
    """Its padding makes it large; who decides on another attempt is asked where the work is over."""
    play = Play(is_stream=False)
    play.begin(200, JSON)
    play.chain.feed(b"{error" + b" " * LARGE, True)
    play.chain.work()
    assert play.chain.pending_error is None

    assert play.chain.go_on() == b"" and play.chain.pending_error is not None
    assert play.chain.pending_error.head.status == 529
    assert play.chain.go_on() == b"[529 busy]" and play.chain.pending_error is None


def test_bug_in_a_large_answer_is_recorded_by_the_loop() -> None:
    play = Play(is_stream=False)
    play.begin(200, JSON)
    play.chain.feed(b"bug" + b" " * LARGE, True)
    play.chain.work()
    assert play.bugs == []

    with pytest.raises(UpstreamFailure) as raised:
        play.chain.go_on()
    assert raised.value.reason is Reason.INTERNAL
    assert [type(bug) for bug in play.bugs] == [ZeroDivisionError]


def test_answer_that_grows_over_a_bound_is_broken() -> None:
    """X7: 57 MB became 360 MB for one client. Nothing has gone out, so another upstream may be asked."""
    play = Play(is_stream=False)
    play.begin(200, JSON)

    with pytest.raises(UpstreamFailure, match="would have over 134217728 bytes") as raised:
        play.feed(b"bomb".rjust(LARGE), True)
    assert raised.value.reason is Reason.UPSTREAM_PROTOCOL
    assert play.chain.head is None


def test_large_event_is_made_beside_the_loop() -> None:
    """X7: as an answer. Until it is written the client stands between two events; inside it, an error ends it."""
    play = Play(is_stream=True)
    play.begin(200, SSE)
    play.feed(b".e", False)
    for _ in range(3):
        assert play.chain.feed(b"(" * 100 * 1024, False) == b""
    assert not play.chain.has_work

    assert play.chain.feed(b"e)", False) == b""
    assert play.chain.has_work and play.chain.holds and not play.filter.begins_stream()
    assert play.filter.cut(VeloxError(Reason.UPSTREAM_RESET, "x")) is None  # its writer is at work

    play.chain.work()
    first = play.chain.go_on()
    assert play.chain.is_behind and not play.chain.holds
    assert play.filter.cut(VeloxError(Reason.UPSTREAM_RESET, "x")) == b"\n\n<failed 502>"
    rest = play.chain.go_on()
    assert not play.chain.is_behind and play.chain.holds
    assert first + rest == b"<e>" * 100 * 1024
    assert play.chain.feed(b"$", True) == b"<$>" and play.chain.is_over


def test_end_of_a_stream_that_is_in_pieces_is_the_last_piece() -> None:
    play = Play(is_stream=True)
    play.begin(200, SSE)
    play.feed(b".e", False)
    for _ in range(3):
        play.chain.feed(b"(" * 100 * 1024, False)
    play.chain.feed(b"e)$", False)
    play.chain.work()
    play.chain.go_on()
    assert not play.chain.is_over
    assert play.chain.go_on().endswith(b"<$>") and play.chain.is_over
