"""When a batch is sent, how often it is tried again, and what is dropped: on a loop where waiting takes no time."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.unit.virtual_time import run
from velox.observe.traces.record import AttemptRecord, ContentRecord, TraceRecord, packed
from velox.observe.traces.redaction import Redaction
from velox.outcomes import SpanEnd
from velox.providers.renewal import FetchError, HttpRequest, Reply
from velox.runtime.traces.exporter import Contents, Exporter
from velox.settings.telemetry import TraceSettings
from velox.shm.span_ring import SpanRing, span_rings

TAKEN = Reply(200, b"")


class FakeCollector:
    """Answers with what is next, and with the last of it for ever; an error: there is no answer."""

    def __init__(self, *answers: Reply | FetchError) -> None:
        self._answers: Final = list(answers)
        self.asked: Final[list[tuple[float, HttpRequest]]] = []
        self.hangs = False

    async def ask(self, question: HttpRequest) -> Reply:
        self.asked.append((asyncio.get_running_loop().time(), question))
        if self.hangs:
            await asyncio.Event().wait()
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, FetchError):
            raise answer
        return answer

    async def read(self, path: str) -> bytes | None:
        raise AssertionError("no file is asked for")

    @property
    def names(self) -> list[list[str]]:
        """Return the span ids of each request."""
        return [[span.span_id.decode().strip("-") for span in spans_in(question)] for _, question in self.asked]


def spans_in(question: HttpRequest) -> list[object]:
    body = question.body or b""
    data = gzip.decompress(body) if (b"content-encoding", b"gzip") in question.headers else body
    found = ExportTraceServiceRequest.FromString(data)
    return [span for resource in found.resource_spans for scope in resource.scope_spans for span in scope.spans]


class Bench:
    """An exporter of one ring, and what became of spans."""

    def __init__(self, collector: FakeCollector, size: int = 100_000, **settings: object) -> None:
        self.ring: SpanRing
        (self.ring,) = span_rings(1, size)
        self.became: Final[Counter[str]] = Counter()
        self.logged: Final[list[str]] = []
        self.collector: Final = collector
        self.exporter: Final = self.another(**settings)

    def another(self, **settings: object) -> Exporter:
        logger = logging.Logger("test")
        logger.addFilter(lambda record: self.logged.append(record.getMessage()) or False)
        found = TraceSettings("http://collector/v1/traces", **settings)  # type: ignore[arg-type]
        clock = lambda: asyncio.get_running_loop().time()  # noqa: E731 - the loop is not running yet
        contents = Contents(1000, Redaction().of)
        return Exporter(found, contents, [self.ring], self.collector, self._count, lambda: None, logger, clock)

    def _count(self, end: SpanEnd, n: int) -> None:
        self.became[end.name] += n

    def put(self, name: str, n_attempts: int = 0, content: ContentRecord | None = None) -> bool:
        attempts = [AttemptRecord(b"%d-------" % n, "up", "openai", "", "m", 1, 2) for n in range(n_attempts)]
        ids = b"t" * 16, name.encode().ljust(8, b"-"), b"", "", True, 1, 2
        record = TraceRecord(*ids, name, "POST", "/", "chat", 200, attempts=attempts, content=content)
        return self.ring.put(packed(record))

    def went(self, seconds: float, during: Callable[[], None] = lambda: None) -> Counter[str]:
        """Run the exporter for so long, then end it; return what became of spans."""

        async def go() -> None:
            task = asyncio.create_task(self.exporter.run())
            during()
            await asyncio.sleep(seconds)
            self.exporter.stop()
            await task

        run(go())
        return +self.became


def test_batch_is_sent_once_it_is_full_or_due() -> None:
    """Spans of one request stay together; the last go at the end, however few they are."""
    collector = FakeCollector(TAKEN)
    bench = Bench(collector, delay_s=5.0, batch=3)
    for name in ("a", "b", "c", "d"):
        bench.put(name)
    assert bench.went(4.0) == {"SENT": 4}
    assert collector.names == [["a", "b", "c"], ["d"]]
    (first_s, first), (last_s, _) = collector.asked
    assert (first_s, last_s) == (pytest.approx(1000.0), pytest.approx(1004.0))
    assert (b"content-type", b"application/x-protobuf") in first.headers and first.url.endswith("/v1/traces")


def test_batch_that_is_not_full_waits_for_its_time() -> None:
    collector = FakeCollector(TAKEN)
    bench = Bench(collector, delay_s=5.0)
    bench.put("a", n_attempts=2)
    assert bench.went(8.0) == {"SENT": 3}
    assert [round(at_s) for at_s, _ in collector.asked] == [1005]


@pytest.mark.parametrize("answer", [Reply(status, b"") for status in (429, 502, 503, 504)] + [FetchError("cut")])
def test_what_may_pass_is_tried_again(answer: Reply | FetchError) -> None:
    """The same bytes, after a pause that grows; logged once, and once more when it is over."""
    collector = FakeCollector(answer, answer, answer, TAKEN)
    bench = Bench(collector, delay_s=0.0)
    bench.put("a")
    assert bench.went(20.0) == {"SENT": 1}
    pauses = [after - before for (before, _), (after, _) in zip(collector.asked, collector.asked[1:], strict=False)]
    assert pauses >= [0.4, 0.8, 1.6] and pauses <= [0.6, 1.2, 2.4]
    assert len({question.body for _, question in collector.asked}) == 1
    assert len(bench.logged) == 2


def test_retry_after_is_kept() -> None:
    collector = FakeCollector(Reply(503, b"", [(b"retry-after", b"7")]), TAKEN)
    bench = Bench(collector, delay_s=0.0)
    bench.put("a")
    assert bench.went(20.0) == {"SENT": 1}
    (first_s, _), (second_s, _) = collector.asked
    assert second_s - first_s == pytest.approx(7.0)


@pytest.mark.parametrize("status", [301, 400, 401, 413, 500])
def test_what_does_not_pass_is_not_tried_again(status: int) -> None:
    collector = FakeCollector(Reply(status, b""))
    bench = Bench(collector, delay_s=0.0)
    bench.put("a", n_attempts=1)
    assert bench.went(20.0) == {"REFUSED": 2}
    assert len(collector.asked) == 1


def test_batch_is_given_up_in_time_and_the_next_one_is_sent() -> None:
    collector = FakeCollector(Reply(503, b""))
    bench = Bench(collector, delay_s=0.0, give_up_s=3.0, batch=1)
    bench.put("a")
    bench.put("b")
    assert bench.went(20.0) == {"UNSENT": 2}
    assert {tuple(names) for names in collector.names} == {("a",), ("b",)}
    assert collector.asked[-1][0] < 1007.0


def test_collector_that_says_what_it_did_not_take_is_believed_up_to_what_it_was_given() -> None:
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 2
    lie = ExportTraceServiceResponse()
    lie.partial_success.rejected_spans = 1 << 40
    collector = FakeCollector(Reply(200, answer.SerializeToString()), Reply(200, lie.SerializeToString()))
    bench = Bench(collector, delay_s=0.0, batch=3)
    for name in "abcdef":
        bench.put(name)
    assert bench.went(5.0) == {"SENT": 1, "REFUSED": 5}


def test_what_waits_is_bounded_where_the_collector_hangs() -> None:
    """The queue fills, then the ring; what is more has no room, and its writer goes on. Nothing is lost uncounted."""
    collector = FakeCollector(TAKEN)
    collector.hangs = True
    bench = Bench(collector, size=2000, delay_s=0.0, queue=4, batch=2)
    taken = 0

    async def fill() -> None:
        nonlocal taken
        task = asyncio.create_task(bench.exporter.run())
        for n in range(1000):
            taken += bench.put(f"{n}")
            await asyncio.sleep(0.01)
        bench.exporter.stop()
        await task

    run(fill())
    assert 4 < taken < 50
    assert len(collector.asked) == 1
    assert bench.became == {"UNSENT": 1 + 4}
    assert len(bench.ring.read(bench.ring.freed, 1000)) == taken - 1  # only the batch under way was given back


def test_exporter_that_was_killed_is_followed_by_one_that_has_what_was_not_sent() -> None:
    collector = FakeCollector(TAKEN)
    bench = Bench(collector, delay_s=0.0, batch=1)
    bench.put("a")
    bench.put("b")

    async def one_batch() -> None:
        bench.exporter.turn()  # what is under way is given back, and lost with it
        await asyncio.sleep(0)

    run(one_batch())
    follower = bench.another(delay_s=0.0)

    async def rest() -> None:
        follower.stop()
        await follower.run()

    run(rest())
    assert collector.names == [["a"], ["b"]]


def test_garbage_in_a_ring_is_counted_and_passed_over() -> None:
    collector = FakeCollector(TAKEN)
    bench = Bench(collector, delay_s=0.0)
    for garbage in (b"", b"\xc1", packed_of_another_version()):
        assert bench.ring.put(garbage)
    bench.put("a")
    assert bench.went(5.0) == {"UNREAD": 3, "SENT": 1}
    assert bench.ring.n_waiting == 0


def test_content_is_on_the_last_attempt_and_makes_batches_smaller() -> None:
    collector = FakeCollector(TAKEN)
    bench = Bench(collector, size=1 << 24, delay_s=5.0)
    large = b'{"messages": [{"role": "user", "content": "hello"}], "more": "%b"}' % (b"x" * 3_000_000)
    for name in ("a", "b", "c"):
        bench.put(name, n_attempts=2, content=ContentRecord(large, b'{"choices": [{"message": {"content": "yes"}}]}'))
    assert bench.went(8.0) == {"SENT": 9}
    assert [len(names) for names in collector.names] == [6, 3]
    exchange, first, last = (str(span) for span in spans_in(collector.asked[1][1]))
    assert "hello" in last and "yes" in last and "x" * 100 not in last
    assert "hello" not in exchange + first


def test_content_that_is_deeper_than_code_can_go_costs_its_own_trace_alone() -> None:
    collector = FakeCollector(TAKEN)
    bench = Bench(collector, delay_s=0.0)
    deep = b'{"messages": %b}' % (b"[" * 900 + b"]" * 900)
    bench.put("a", n_attempts=1, content=ContentRecord(deep, deep))
    assert bench.went(5.0) == {"SENT": 2}


def packed_of_another_version() -> bytes:
    return b"\x93\x01\x02\x03"
