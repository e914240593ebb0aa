"""The exporter of traces: a process of its own, so that no collector, however it behaves, costs a request anything.

Knows: when a batch is sent, how often it is tried again, and what is dropped. Does not know: what a span says
(observe/traces), or when the process is started (supervisor.py).

    workers     each puts what it notes into the ring of its block, and goes on; without room it counts what it drops
    exporter    ten times a second: reads what is there, makes spans of it; has a batch sent when it is full or due

What waits is bounded: by OTEL_BSP_MAX_QUEUE_SIZE spans here, then by the rings; what is more is dropped, and counted.
A record's room is given back when its batch is sent for the first time: an exporter that is killed loses what was
under way, and nothing else. A batch that could not be sent is tried again while that may help (OTLP: 429, 502, 503,
504, or no answer), with a growing pause or the collector's Retry-After, up to OTEL_BSP_EXPORT_TIMEOUT. One batch is
under way at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import random
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from velox.build import VERSION
from velox.heads import Headers
from velox.observe.metrics import WorkerMetrics
from velox.observe.traces.content import content_attributes
from velox.observe.traces.otlp import AttributeValue, Span, rejected_spans, request_of
from velox.observe.traces.record import TraceRecord, unpacked
from velox.observe.traces.socket_content import socket_attributes
from velox.observe.traces.spans import NO_CONTENT, spans_of
from velox.outcomes import SpanEnd
from velox.policy.routes.proxies import EnvironmentProxies
from velox.providers.renewal import FetchClient, FetchError, HttpRequest
from velox.runtime.http_client import HttpClient
from velox.runtime.traces.collector_tls import CollectorTrust
from velox.settings.telemetry import TraceSettings
from velox.shm.span_ring import SpanRing

__all__ = ["Contents", "Exporter", "run_exporter"]

_TURN_S: Final = 0.1
_RECORDS_OF_RING: Final = 512  # in a turn
# Of records, which are larger than their spans: a collector takes 20 MiB at most, as it comes.
_BATCH_BYTES: Final = 8 * 1024 * 1024
_QUEUE_BYTES: Final = 32 * 1024 * 1024
_FIRST_PAUSE_S: Final = 0.5
_MOST_PAUSE_S: Final = 10.0
_AGAIN: Final = frozenset({429, 502, 503, 504})
# At the end: less than what the supervisor gives.
_LAST_S: Final = 2.0
_SCOPE: Final = ("velox", VERSION)


def run_exporter(
    settings: TraceSettings,
    contents: Contents,
    proxies: EnvironmentProxies,
    rings: Sequence[SpanRing],
    metrics: WorkerMetrics,
    beat: Callable[[], None],
    logger: logging.Logger,
) -> int:
    """Export until SIGTERM, then what is left; return the exit code. beat: a sign of life."""

    async def run() -> None:
        trust = None if settings.tls is None else CollectorTrust(settings.tls).context
        client = HttpClient(proxies, trust)
        exporter = Exporter(settings, contents, rings, client, metrics.count_spans, beat, logger)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, exporter.stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        await exporter.run()

    asyncio.run(run())
    return 0


class _Waiting(NamedTuple):
    """The spans of a request, and where its record ends in its ring. n_bytes: of the record."""

    spans: Sequence[Span]
    ring: SpanRing
    end: int
    n_bytes: int


class Contents(NamedTuple):
    """How content is exported. most: characters of a request, and of a reply. redact: what takes out of a text."""

    most: int
    redact: Callable[[str], str]

    def of(self, record: TraceRecord) -> Mapping[str, AttributeValue]:
        """Return the attributes of what a record has of it."""
        found = record.content
        if found is None:
            return NO_CONTENT
        if found.is_socket:
            return socket_attributes(
                found.asked, found.answered, is_cut=found.is_cut, most=self.most, redact=self.redact
            )
        return content_attributes(
            found.asked,
            found.answered,
            is_stream=found.is_stream,
            is_cut=found.is_cut,
            most=self.most,
            redact=self.redact,
        )


class Exporter:
    """Takes records, and sends spans. count: called with what became of so many spans."""

    def __init__(
        self,
        settings: TraceSettings,
        contents: Contents,
        rings: Sequence[SpanRing],
        client: FetchClient,
        count: Callable[[SpanEnd, int], None],
        beat: Callable[[], None],
        logger: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings: Final = settings
        self._contents: Final = contents
        self._rings: Final = rings
        self._client: Final = client
        self._count: Final = count
        self._beat: Final = beat
        self._logger: Final = logger
        self._clock: Final = clock
        self._waiting: Final[deque[_Waiting]] = deque()
        self._n_waiting = 0  # spans
        self._n_bytes = 0  # of their records
        self._positions: Final = [ring.freed for ring in rings]  # to which each was read
        self._since_s = 0.0  # when the oldest came that waits
        self._sending: asyncio.Task[None] | None = None
        self._stopped: Final = asyncio.Event()
        self._problem = ""  # as logged last; "": all is well
        self._headers: Final = _headers_of(settings)
        self._resource: Final = dict(settings.resource)

    def __repr__(self) -> str:
        return f"<Exporter {self._n_waiting} spans wait>"

    def stop(self) -> None:
        """Export what there is, and end."""
        self._stopped.set()

    async def run(self) -> None:
        """Export until stop()."""
        while not self._stopped.is_set():
            self.turn()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TURN_S):
                    await self._stopped.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await self._flush()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        self._count(SpanEnd.UNSENT, self._n_waiting)

    async def _flush(self) -> None:
        while True:
            self.turn(is_last=True)
            if self._sending is None:
                return
            await asyncio.wait((self._sending,))

    def turn(self, *, is_last: bool = False) -> None:
        """Take what is there, and begin to send a batch that is full or due. is_last: whatever there is."""
        self._beat()
        for n, ring in enumerate(self._rings):
            self._read(n, ring)
        if self._sending is not None and self._sending.done():
            self._sending = None
        if self._sending is not None or not self._waiting:
            return
        is_due = self._clock() - self._since_s >= self._settings.delay_s
        if is_last or is_due or self._n_waiting >= self._settings.batch:
            batch = self._next_batch()
            self._since_s = self._clock()
            self._sending = asyncio.get_running_loop().create_task(self._send(batch), name="export")

    def _read(self, n: int, ring: SpanRing) -> None:
        # What has no room here waits in its ring, as long as there is room.
        room = self._settings.queue - self._n_waiting
        if room <= 0 or self._n_bytes >= _QUEUE_BYTES:
            return
        if not self._waiting:
            self._since_s = self._clock()
        for message, end in ring.read(self._positions[n], min(room, _RECORDS_OF_RING)):
            record = unpacked(message)
            if record is None:
                self._count(SpanEnd.UNREAD, 1)
            spans = () if record is None else tuple(spans_of(record, self._content(record)))
            self._waiting.append(_Waiting(spans, ring, end, len(message)))
            self._n_waiting += len(spans)
            self._n_bytes += len(message)
            self._positions[n] = end

    def _content(self, record: TraceRecord) -> Mapping[str, AttributeValue]:
        try:
            return self._contents.of(record)
        except Exception as exc:  # a bug, or JSON as deep as no model wants it: a record must not end each exporter
            self._logger.warning("content of a trace can't be read: %(error)s", {"error": type(exc).__name__})
            return NO_CONTENT

    def _next_batch(self) -> list[Span]:
        """Return the next spans, those of one request together, and give their room back."""
        batch: list[Span] = []
        n_bytes = 0
        while self._waiting:
            spans, ring, end, n_more = self._waiting[0]
            n_bytes += n_more
            if batch and (len(batch) + len(spans) > self._settings.batch or n_bytes > _BATCH_BYTES):
                break
            self._waiting.popleft()
            batch += spans
            self._n_bytes -= n_more
            ring.free(end)
        self._n_waiting -= len(batch)
        return batch

    async def _send(self, batch: list[Span]) -> None:
        """Send a batch, again and again while that may help."""
        body = request_of(batch, self._resource, _SCOPE)
        if self._settings.is_compressed:
            body = gzip.compress(body, compresslevel=1)
        question = HttpRequest(b"POST", self._settings.url, self._headers, body, timeout_s=self._settings.timeout_s)
        until_s, pause_s = self._clock() + self._settings.give_up_s, _FIRST_PAUSE_S
        try:
            while True:
                problem, wait_s = await self._ask(question, len(batch))
                self._tell(problem)
                if not problem:
                    return
                if wait_s is None:
                    self._count(SpanEnd.REFUSED, len(batch))
                    return
                wait_s = wait_s or pause_s * random.uniform(0.8, 1.2)
                if self._clock() + wait_s >= until_s:
                    self._count(SpanEnd.UNSENT, len(batch))
                    return
                pause_s = min(2 * pause_s, _MOST_PAUSE_S)
                await asyncio.sleep(wait_s)
        except asyncio.CancelledError:
            self._count(SpanEnd.UNSENT, len(batch))
            raise

    async def _ask(self, question: HttpRequest, n: int) -> tuple[str, float | None]:
        """Send it once; return what is wrong, "" for nothing, and how long to wait: 0: as usual; None: for nothing."""
        try:
            reply = await self._client.ask(question)
        except FetchError as exc:
            return str(exc), 0.0
        if 200 <= reply.status < 300:
            n_rejected = min(rejected_spans(reply.body), n)
            self._count(SpanEnd.REFUSED, n_rejected)
            self._count(SpanEnd.SENT, n - n_rejected)
            return "", None
        problem = f"the collector answered with status {reply.status}"
        if reply.status not in _AGAIN:
            return problem, None
        return problem, _retry_after_s(reply.headers)

    def _tell(self, problem: str) -> None:
        """Log what has changed."""
        if problem and problem != self._problem:
            self._logger.warning("traces can't be exported: %(error)s", {"error": problem})
        elif self._problem and not problem:
            self._logger.info("traces can be exported again")
        self._problem = problem


def _headers_of(settings: TraceSettings) -> Headers:
    headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in settings.headers]
    headers.append((b"content-type", b"application/x-protobuf"))
    if settings.is_compressed:
        headers.append((b"content-encoding", b"gzip"))
    return headers


def _retry_after_s(headers: Headers) -> float:
    """Return what a collector says in seconds; 0 if it says nothing that can be read. A date is none of them."""
    value = dict(headers).get(b"retry-after", b"")
    return float(min(int(value), 3600)) if value.isdigit() and len(value) < 8 else 0.0
