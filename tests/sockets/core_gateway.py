"""A gateway whose client and upstream do what a test says."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from velox.gateway.auth import Authenticator
from velox.gateway.exchange import Exchange
from velox.gateway.forward import Forwarder
from velox.gateway.intake import Gateway
from velox.gateway.parts import GatewayLimits, Parts
from velox.gateway.recorder import Recorder
from velox.gateway.routes import Routes
from velox.net.pool import UpstreamPool
from velox.net.upstream import ConnectionOwner, UpstreamConnection
from velox.observe.access_log import AccessLog
from velox.observe.metrics import WorkerMetrics
from velox.observe.series import CELLS
from velox.policy.admission import AdmissionQueue
from velox.policy.token_bucket import UNLIMITED
from velox.protocol.body import BodyReader
from velox.providers.openai import OPENAI
from velox.shm.bucket import SharedBucket
from velox.shm.segment import Segment
from velox.types import RequestHead

__all__ = ["FakeClient", "gateway", "request_head"]

Dial = Callable[[ConnectionOwner], Awaitable[UpstreamConnection]]


class FakeClient:
    """A client's connection that notes what it is told."""

    will_close = True

    def __init__(self) -> None:
        self.is_write_paused = False
        self.written = b""
        self.finished: Final = asyncio.Event()
        self.cuts: Final[list[tuple[bytes, bool]]] = []

    def write(self, data: bytes) -> None:
        self.written += data

    def finish(self, *, close: bool) -> None:
        self.finished.set()

    def cut(self, last: bytes, *, reset: bool) -> None:
        self.cuts.append((last, reset))
        self.finished.set()

    def release_body(self) -> None: ...


def request_head(method: bytes = b"POST", path: bytes = b"/v1/chat/completions") -> RequestHead:
    return RequestHead(
        method=method,
        target=path,
        path=path,
        query=b"",
        http_1_0=False,
        headers=[(b"content-type", b"application/json")],
        keep_alive=True,
        content_length=None,
        chunked=False,
        expect_continue=False,
    )


@contextmanager
def gateway(dial: Dial, *, first_byte_timeout_s: float = 60.0) -> Iterator[Gateway]:
    """Build a gateway that logs everything to nowhere and limits nothing."""
    log_fd = os.open(os.devnull, os.O_WRONLY)
    segment = Segment(1, CELLS)
    metrics = WorkerMetrics(segment.metrics(0))
    forwarder = Forwarder(OPENAI, base_path="", root_path="/", key=None, client_keys_are_ours=False)
    queue: AdmissionQueue[Exchange] = AdmissionQueue(16, 16, 60 * 10**9)
    pool = UpstreamPool(
        dial,
        forwarder.warmup("/v1/models"),
        warm_connections=1,
        max_connections=8,
        warmup_timeout_s=60.0,
        on_change=lambda: None,
        on_warm_failure=lambda _failure: None,
    )
    parts = Parts(
        routes=Routes(("*",)),
        auth=Authenticator(frozenset()),
        reader=BodyReader(),
        queue=queue,
        bucket=SharedBucket(segment, UNLIMITED, 0),
        forwarder=forwarder,
        pool=pool,
        recorder=Recorder(metrics, AccessLog(log_fd, "all", metrics.count_log_dropped), logging.Logger("t"), "t"),
        limits=GatewayLimits(
            max_inflight=8,
            queue_timeout_s=60.0,
            lease_timeout_s=60.0,
            first_byte_timeout_s=first_byte_timeout_s,
            idle_timeout_s=60.0,
        ),
    )
    try:
        yield Gateway(parts, asyncio.get_running_loop())
    finally:
        pool.close()
        os.close(log_fd)
