"""The whole step by which a request comes in: from the bytes that a socket brought to the route that it takes.

Velox: its real parts, put together as a worker does, without sockets: PlainSocket, ClientHttp1Connection, HeadReader,
Gateway (key and path), BodyReader, Routing. Not in it, and measured by themselves: queue and gate.

Knows: the ways in. Does not know: what each of Velox's parts does.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Final, TypeAlias

import httptools
import orjson
import uvloop

from bench.micro.candidates import Answers, Candidate, Case, Subject, Timed
from bench.payloads import API_KEY, CHAT_PATH, chat_body
from velox.errors import VeloxError
from velox.gateway.auth import Authenticator
from velox.gateway.front.intake import Gateway
from velox.gateway.request.exchange import Exchange
from velox.heads import RequestHead
from velox.net.application import Client, ClientTimeouts
from velox.net.client.body_budget import BodyBudget
from velox.net.client.ingress import Ingress
from velox.observe import series
from velox.observe.access_log import AccessLog, AccessRules
from velox.observe.metrics import WorkerMetrics
from velox.protocol.http1.request import Http1Limits
from velox.runtime.signing.authorities import Authorities
from velox.runtime.upstreams.members import MemberMaker
from velox.runtime.upstreams.upstream_manager import UpstreamManager
from velox.runtime.worker import gateway_parts, queue_of
from velox.settings import load
from velox.shm.quota_table import QuotaMemory
from velox.shm.quotas import QuotaTable
from velox.shm.upstream_table import UpstreamCells, UpstreamTable
from velox.types import Caller

__all__ = ["SUBJECT", "request"]

# What came of a request: caller, model, a stream or not, where it goes; "refused".
_Taken: TypeAlias = tuple[str, str | None, bool, str] | str
_Take: TypeAlias = Callable[[bytes], _Taken]

# As an upstream is called that no file names.
_UPSTREAM: Final = "default"
# More than Velox keeps heads of: with each of its own no head is known.
_N_HEADS: Final = 2048
_SETTINGS: Final = {
    "VELOX_API_KEYS": API_KEY,
    "VELOX_UPSTREAM_ORIGIN": "http://127.0.0.1:9",
    "OPENAI_API_KEY": "upstream-key",
}


def request(number: int | None = None, *, body: bytes | None = None, more: bytes = b"") -> bytes:
    """Return a request as OpenAI's SDK sends it. number: of its x-request-id; None: it has none."""
    sent = chat_body(stream=True) if body is None else body
    own = b"" if number is None else b"x-request-id: req-%08d\r\n" % number
    return (
        b"POST %b HTTP/1.1\r\n"
        b"Host: gateway.example:8080\r\n"
        b"Accept-Encoding: gzip, deflate\r\n"
        b"Connection: keep-alive\r\n"
        b"Accept: application/json\r\n"
        b"Content-Type: application/json\r\n"
        b"User-Agent: OpenAI/Python 2.8.0\r\n"
        b"X-Stainless-Lang: python\r\n"
        b"X-Stainless-Package-Version: 2.8.0\r\n"
        b"X-Stainless-OS: Linux\r\n"
        b"X-Stainless-Arch: x64\r\n"
        b"X-Stainless-Runtime: CPython\r\n"
        b"X-Stainless-Runtime-Version: 3.11.2\r\n"
        b"X-Stainless-Async: false\r\n"
        b"x-stainless-retry-count: 0\r\n"
        b"Authorization: Bearer %b\r\n"
        b"%b%b"
        b"Content-Length: %d\r\n\r\n%b"
    ) % (CHAT_PATH.encode(), API_KEY.encode(), own, more, len(sent), sent)


# -- Velox --------------------------------------------------------------------------------------------------------


class _Door(Gateway):
    """The gateway, up to the route: what would go on is noted, and the connection is free again."""

    taken: _Taken = ""

    def submit(self, client: Client, head: RequestHead, body: bytes | bytearray | None, caller: Caller) -> None:
        exchange = Exchange(self, client, head, body, self.plan(head, caller))
        try:
            exchange.read()
            way = self.routing.resolve(head, exchange.fields.model, caller)
        except VeloxError as error:
            self.refuse(client, head, error)
            return
        to = way.levels[0].group.members[0].entry.name
        self.taken = (caller.name, exchange.fields.model, exchange.fields.stream, to)
        client.finish()

    def refuse(self, client: Client, head: RequestHead | None, error: VeloxError) -> None:
        self.taken = "refused"


class _Nowhere(asyncio.Transport):
    """A transport to nobody."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 40000) if name == "peername" else default

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def is_closing(self) -> bool:
        return False


def _by_velox() -> _Take:
    settings = load(_SETTINGS)
    loop = uvloop.new_event_loop()
    logger = logging.getLogger("bench")
    metrics = WorkerMetrics(memoryview(bytearray(8 * series.CELLS)).cast("Q"))
    table = UpstreamTable(1)
    table.enroll([(_UPSTREAM, _SETTINGS["VELOX_UPSTREAM_ORIGIN"])])
    maker = MemberMaker(
        *(0, UpstreamCells(table, 0), metrics, logger, loop),
        max_connections=64,
        on_change=lambda: None,
        authorities=Authorities({}, loop, logger),
        sim_origin=None,
    )
    parts = gateway_parts(
        *(settings, 0, loop),
        auth=Authenticator(settings.api_keys),
        quotas=QuotaTable(QuotaMemory(64, 1), 0),
        leases=None,
        max_tunnels=1,
        bodies=BodyBudget(1 << 30, 1.0, loop.time),
        metrics=metrics,
        log=AccessLog(2, AccessRules("off"), metrics.count_log_dropped),
        logger=logger,
    )
    door = _Door(parts, queue_of(settings, 0), UpstreamManager(settings, maker, table, loop).routing, loop)
    weakref.finalize(door, loop.close)
    ingress = Ingress(
        *(door, Http1Limits(), ClientTimeouts(10.0, 60.0, 60.0, 30.0), BodyBudget(1 << 30, 1.0, loop.time), loop),
        max_connections=64,
    )

    def connect() -> asyncio.BufferedProtocol:
        protocol = ingress.connection()
        assert isinstance(protocol, asyncio.BufferedProtocol), "a plain socket is read into a buffer"
        protocol.connection_made(_Nowhere())
        return protocol

    connection = connect()

    def take(data: bytes) -> _Taken:
        nonlocal connection
        memoryview(connection.get_buffer(-1))[: len(data)] = data
        connection.buffer_updated(len(data))
        if door.taken == "refused":
            connection, door.taken = connect(), ""
            return "refused"
        return door.taken

    return take


# -- the usual parts ------------------------------------------------------------------------------------------------


class _Plain:
    """What every way does once head and body are there: key, path, body, where to."""

    def __init__(self, load_body: Callable[[bytes], object]) -> None:
        self._load: Final = load_body
        self._digests: Final = {hashlib.sha256(API_KEY.encode()).digest(): _caller_name()}
        self._paths: Final = {CHAT_PATH.encode(): "chat"}
        self._upstreams: Final[dict[str, str]] = {}

    def take(self, path: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> _Taken:
        fields = {name.lower(): value for name, value in headers}
        digest = hashlib.sha256(fields.get(b"authorization", b"").removeprefix(b"Bearer ")).digest()
        names = [name for known, name in self._digests.items() if hmac.compare_digest(known, digest)]
        if not names or path not in self._paths:
            return "refused"
        document = self._load(body)
        assert isinstance(document, dict), "no other is sent here"
        model = document["model"]
        return names[0], model, bool(document.get("stream")), self._upstreams.get(model, _UPSTREAM)


class _Collector:
    """Gathers what httptools tells, as uvicorn does."""

    def __init__(self) -> None:
        self.is_whole = False
        self.begin()

    def begin(self) -> None:
        self.url, self.body, self.headers = b"", b"", list[tuple[bytes, bytes]]()

    def on_message_begin(self) -> None:
        self.begin()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self.body += body


def _by_httptools() -> _Take:
    plain = _Plain(orjson.loads)
    collector = _Collector()
    parser = httptools.HttpRequestParser(collector)

    def take(data: bytes) -> _Taken:
        nonlocal parser
        try:
            parser.feed_data(data)
        except httptools.HttpParserError:
            parser = httptools.HttpRequestParser(collector)
            return "refused"
        return plain.take(httptools.parse_url(collector.url).path, collector.headers, collector.body)

    return take


def _by_h11() -> _Take:
    import h11

    plain = _Plain(json.loads)

    def take(data: bytes) -> _Taken:
        # A connection for each: for the next request on one, it would have to be told of a reply.
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(data)
        head, body = None, b""
        try:
            while True:
                event = connection.next_event()
                if isinstance(event, h11.Request):
                    head = event
                elif isinstance(event, h11.Data):
                    body += event.data
                else:
                    break
        except h11.RemoteProtocolError:
            return "refused"
        assert head is not None, "a whole request was sent"
        return plain.take(head.target.partition(b"?")[0], list(head.headers), body)

    return take


# -- what they answer, and their time --------------------------------------------------------------------------------


def _caller_name() -> str:
    keys = load(_SETTINGS).api_keys
    return keys[0].caller_name


def _answers(make: Callable[[], _Take]) -> Answers:
    take = make()
    asked = {
        "a request": request(),
        "one more": request(7),
        "another model": request(body=b'{"model":"other","messages":[]}'),
        "two lengths": request(more=b"Content-Length: 3\r\n"),
        "no key of ours": request().replace(API_KEY.encode(), b"x" * len(API_KEY)),
        "two keys": request(more=b"X-Api-Key: another\r\n"),  # one is ours
        "a model twice": request(body=b'{"model":"cheap","model":"expensive"}'),
    }
    return {question: take(data) for question, data in asked.items()}


def _begin(make: Callable[[], _Take], n_heads: int) -> Timed:
    take = make()
    sent = cycle([request(number) for number in range(n_heads)])

    def timed(n: int) -> float:
        laps = islice(sent, n)
        began_s = time.thread_time()
        for data in laps:
            take(data)
        return time.thread_time() - began_s

    return timed


_UNSEEN: Final = frozenset({"a model twice"})

SUBJECT: Final = Subject(
    "ingress",
    "a request",
    tuple(
        Case(
            name,
            (
                Candidate("Velox", partial(_begin, _by_velox, n), partial(_answers, _by_velox)),
                Candidate(
                    "httptools and orjson",
                    partial(_begin, _by_httptools, n),
                    partial(_answers, _by_httptools),
                    ("httptools", "orjson"),
                    _UNSEEN,
                ),
                Candidate("h11 and json", partial(_begin, _by_h11, n), partial(_answers, _by_h11), ("h11",), _UNSEEN),
            ),
        )
        for name, n in {"the same head each time": 1, "a head of its own each time": _N_HEADS}.items()
    ),
)
