"""Nothing of a request stays in a worker that only the garbage collector would free: on no lane, however it ends.

Of what stays by mistake most is a request's body, once or several times: a reference cycle leaves each for ever, as the
collector runs when more is allocated than freed, and the traffic of a gateway is in balance. Each test asks of a
gateway whose collector is off, has its worker collect once nothing runs, and wants that to find nothing.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import websockets.sync.client
import yaml

from tests.e2e.collecting import uncollected, unreachable
from tests.e2e.harness import VeloxProcess
from tests.e2e.leaving import LEAVING, Leave, reset
from tests.e2e.raw_http import read_reply
from tests.e2e.routed import nobody
from tests.e2e.tools import request_bytes
from tests.e2e.upstreams import make_certificates
from tests.soak.ground import start_provider
from tests.soak.lanes import LANES, SECRETS, Lane, configuration
from tests.soak.provider import Fault
from tests.untrusting import NO_TRUST

KEY: Final = "sk-of-a-client-0123456789"
POOR: Final = "sk-of-a-poor-client-0123456789"
# A kind of each way up, and of each way that a reply comes back.
SOME: Final = (
    "chat to chat",
    "chat to anthropic",
    "messages to gemini",
    "messages to bedrock claude",
    "responses to bedrock nova",
    "generate to responses",
    "generate, as an array, to anthropic",
    "chat, hedged, to anthropic",
    "messages, mirrored, to anthropic",
    "chat, fallback, to anthropic",
    "messages counted by gemini",
    "embeddings of bedrock",
    "embeddings of vertex",
    "chat to a server without a provider",
    "a form",
)
LONG: Final = "a word " * 200
ENV: Final = {
    **SECRETS,
    "VELOX_WORKERS": "1",
    "VELOX_RATE_LIMIT_RPM": "0",
    "VELOX_RETRIES": "1",
    "VELOX_RETRY_MAX_WAIT": "0.1s",
    "VELOX_UPSTREAM_FIRST_BYTE_TIMEOUT": "0.5s",
    "VELOX_UPSTREAM_IDLE_TIMEOUT": "0.5s",
}


@dataclass
class Ground:
    """A gateway of one worker whose collector is off. headers: that each request has."""

    velox: VeloxProcess
    folder: str
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, lane: Lane, *, stream: bool = False, fault: str = "", text: str = LONG, **headers: str) -> int:
        """Ask once, on a connection of its own; return the status, 0 where the reply was cut."""
        with self.velox.connect(30.0) as sock:
            sock.sendall(self.bytes_of(lane, stream=stream, fault=fault, text=text, **headers))
            with contextlib.suppress(ConnectionError):
                return read_reply(sock).status
        return 0

    def bytes_of(self, lane: Lane, *, stream: bool, fault: str = "", text: str = LONG, **headers: str) -> bytes:
        """Return a request."""
        request = lane.request(text, stream=stream, fault=fault, headers={**self.headers, **headers})
        method = "POST" if request.body else "GET"
        return request_bytes(method, request.path, request.body or None, request.headers)

    def ask_all(self, calls: Sequence[tuple[Lane, bool, str]]) -> list[int]:
        """Ask side by side; return the statuses. calls: lane, streamed, fault."""
        with ThreadPoolExecutor(32) as pool:
            return list(pool.map(lambda call: self.ask(call[0], stream=call[1], fault=call[2]), calls))

    def left(self) -> dict[str, int]:
        """Return what a collection frees, by type, once nothing runs."""
        for sample in ("velox_inflight_requests", "velox_client_connections", "velox_upstream_streams"):
            self.velox.wait_metric(sample, lambda n: n == 0)
        (worker,) = self.velox.worker_pids()
        return dict(unreachable(worker, self.folder))


@contextlib.contextmanager
def running(origin: str, config: dict[str, Any] | None = None, **env: str) -> Iterator[Ground]:
    """Run one. config: more of the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "velox.yaml")
        path.write_text(yaml.safe_dump(configuration({}, origin) | (config or {})))
        with VeloxProcess({**ENV, "VELOX_CONFIG": str(path), **env}, launcher=uncollected(folder)) as velox:
            ground = Ground(velox, folder)
            if not velox.base_url.startswith("https"):
                ground.ask(LANES[0])
                ground.left()  # of the start, and of modules that are loaded with the first request
            yield ground


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with start_provider() as found:
        yield found


@pytest.fixture(scope="module")
def bare(origin: str) -> Iterator[Ground]:
    """Without keys, limits and records."""
    with running(origin) as ground:
        yield ground


@pytest.fixture(scope="module")
def accounted(origin: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """With keys, limits of tokens, budgets and records; with one key whose budget is used up and whose limit is one."""
    prices = tmp_path_factory.mktemp("prices") / "prices.yaml"
    prices.write_text("prices:\n  - {model: '*', input: 1, output: 10}\n")
    config = {
        "api_keys": [
            {"name": "rich", "key": KEY, "endpoints": ["all"]},
            {"name": "poor", "key": POOR, "models": ["claude-x*"], "budgets": ["1 tokens/24h"], "rpm": 2},
        ],
        "budgets": [{"per": "key", "usd": 1000, "window": "month", "unpriced": "allow"}],
        "ledger": str(prices.parent / "ledger"),
        "prices": str(prices),
    }
    with running(origin, config, VELOX_RATE_LIMIT_TPM="100000000") as ground:
        ground.headers = {"authorization": f"Bearer {KEY}"}
        yield ground


def lanes(*names: str) -> list[Lane]:
    return [lane for lane in LANES if lane.name in names]


def every_way(found: Sequence[Lane]) -> Iterator[tuple[Lane, bool]]:
    for lane in found:
        for stream in (False, True)[: 1 + lane.streams]:
            yield lane, stream


def test_answered_requests_leave_nothing(bare: Ground) -> None:
    """X1: in each client's API, to each API of a model, plain and streamed; counts, vectors, forms, copies, hedges."""
    asked = list(every_way(LANES))
    failed = [lane.name for lane, stream in asked if bare.ask(lane, stream=stream) != 200]

    assert failed == []
    if left := bare.left():
        found = {}
        for lane, stream in asked:  # say which
            bare.ask(lane, stream=stream)
            found[f"{lane.name}{', streamed' * stream}"] = bare.left()
        assert {name: types for name, types in found.items() if types} == {}, left


@pytest.mark.parametrize("headers", [{}, {"x-velox-cost": "true"}], ids=["", "cost"])
def test_recorded_requests_leave_nothing(accounted: Ground, headers: dict[str, str]) -> None:
    """Their calls, holds and tokens are accounted; some tell their cost."""
    asked = list(every_way(lanes(*SOME)))
    statuses = [accounted.ask(lane, stream=stream, **headers) for lane, stream in asked]

    assert (set(statuses), accounted.left()) == ({200}, {})


FAULTS: Final = [each for each in Fault if each is not Fault.NONE]


def test_failed_requests_leave_nothing(bare: Ground) -> None:
    """X10: an error of the upstream, a reset, a cut, silence, garbage; what can't be translated, what is over a bound.

    An exception that is kept holds all that the functions had through which it was raised.
    """
    some = [
        (lane, stream, fault) for fault in FAULTS for lane, stream in every_way(lanes(*SOME)) if fault != Fault.HUGE
    ]
    some += [(lane, stream, Fault.HUGE) for lane, stream in every_way(lanes("chat to anthropic"))]
    bare.ask_all(some)

    if left := bare.left():
        found = {}
        for fault in FAULTS:  # say which
            bare.ask_all([each for each in some if each[2] == fault])
            found[fault] = bare.left()
        assert {fault: types for fault, types in found.items() if types} == {}, left


@pytest.mark.more
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["bare", "accounted"])
def test_failed_requests_leave_nothing_on_any_lane(name: str, fault: Fault, request: pytest.FixtureRequest) -> None:
    """All of them, where the usual suite has one of each kind; also with their calls recorded.

    But for a copy of an answer that stalls: it is read for five minutes.
    """
    ground: Ground = request.getfixturevalue(name)
    asked = [lane for lane in LANES if fault is not Fault.STALL or "mirrored" not in lane.name]
    ground.ask_all([(lane, stream, fault) for lane, stream in every_way(asked)])

    assert ground.left() == {}


@pytest.mark.parametrize(
    ("leave", "when"),
    [
        pytest.param(leave, when, marks=[] if leave is reset else [pytest.mark.more])
        for leave in LEAVING
        for when in ("in its request", "before the head", "in the reply", "without reading it")
    ],
)
def test_clients_that_leave_leave_nothing(accounted: Ground, leave: Leave, when: str) -> None:
    """In each phase of a request, by FIN, by RST, by a half close."""
    fault = {"before the head": Fault.SILENT, "in the reply": Fault.SLOW}.get(when, Fault.LARGE)
    for lane, stream in every_way(lanes(*SOME)):
        asked = accounted.bytes_of(lane, stream=stream, fault=fault)
        with accounted.velox.connect(30.0) as sock:
            sock.sendall(asked[: len(asked) // 2] if when == "in its request" else asked)
            if when == "before the head":
                accounted.velox.wait_metric("velox_inflight_requests", lambda n: n == 1)
            elif when == "in the reply":
                sock.recv(1)
            leave(sock)

    assert accounted.left() == {}


REFUSALS: Final[dict[str, Callable[[Ground, Lane, bool], tuple[int, set[int]]]]] = {
    "no key": lambda ground, lane, stream: (ground.ask(lane, stream=stream, authorization=""), {401}),
    "an unknown key": lambda g, lane, stream: (g.ask(lane, stream=stream, authorization="Bearer sk-of-nobody"), {401}),
    "a budget, a limit, or a model": lambda ground, lane, stream: (
        ground.ask(lane, stream=stream, authorization=f"Bearer {POOR}"),
        {200, 402, 403, 429},
    ),
    "no time": lambda ground, lane, stream: (
        ground.ask(lane, stream=stream, fault=Fault.SILENT, **{"x-request-timeout-ms": "50"}),
        {504},
    ),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_refused_requests_leave_nothing(accounted: Ground, why: str) -> None:
    """By Velox itself, before they went anywhere, or as the client gave them no time."""
    for lane, stream in every_way(lanes("chat to chat", "chat to anthropic", "messages to gemini")):
        status, expected = REFUSALS[why](accounted, lane, stream)
        assert status in expected, (lane.name, status)

    assert accounted.left() == {}


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"model": "claude-x"}',
        b'{"model": "claude-x", "messages": [{"role": "user", "content": 5}]}',
        b"[" * 9999,
    ],
    ids=["cut", "without messages", "of another type", "nested"],
)
def test_bodies_that_can_not_be_read_leave_nothing(bare: Ground, body: bytes) -> None:
    """They are refused by who reads them, or by the upstream."""
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/embeddings"):
        bare.velox.request("POST", path, body)

    assert bare.left() == {}


def test_large_requests_leave_nothing(bare: Ground) -> None:
    """They are read in slices, by a task that goes on as the request."""
    for lane, stream in every_way(lanes(*SOME)):
        bare.ask(lane, stream=stream, text="a word " * 100_000)

    assert bare.left() == {}


@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=pytest.mark.more)])
def test_kept_connections_leave_nothing(origin: str, tmp_path: Path, tls: bool) -> None:
    """Many requests on one connection, which ends: of HTTP/1.1 and of HTTP/2, plain and over TLS."""
    env, trust = {"VELOX_LISTEN_HTTP2": "on"}, NO_TRUST
    if tls:
        files = make_certificates(tmp_path)
        env |= {"VELOX_TLS_CERT": files.cert_file, "VELOX_TLS_KEY": files.key_file}
        trust = ssl.create_default_context(cafile=files.ca_file)
    with running(origin, **env) as ground:
        for is_http2 in (False, True, True):
            with httpx.Client(verify=trust, http2=is_http2, http1=not is_http2, trust_env=False) as client:
                for lane, stream in every_way(lanes(*SOME)):
                    asked = lane.request(LONG, stream=stream)
                    url = ground.velox.base_url + asked.path
                    assert client.post(url, content=asked.body, headers=dict(asked.headers)).status_code == 200
            left = ground.left()  # the first ones load modules

        assert left == {}


@pytest.mark.parametrize("leave", ["closes", "is gone"])
def test_tunnels_leave_nothing(accounted: Ground, leave: str) -> None:
    """A WebSocket that passes through, with messages in both directions."""
    url = accounted.velox.base_url.replace("http", "ws") + "/v1/realtime?model=plain-x"
    for _ in range(3):
        with websockets.sync.client.connect(url, additional_headers=accounted.headers) as ws:
            for _ in range(3):
                ws.send(json.dumps({"type": "session.update", "session": {"instructions": LONG}}))
                assert "updated" in str(ws.recv())
            if leave == "is gone":
                ws.socket.shutdown(socket.SHUT_RDWR)

    assert accounted.left() == {}


@pytest.mark.parametrize(
    "fault",
    ["", Fault.CUT, *(pytest.param(f, marks=pytest.mark.more) for f in (Fault.E500, Fault.ERROR, Fault.NONSENSE))],
)
def test_responses_over_a_socket_leave_nothing(accounted: Ground, fault: str) -> None:
    """The WebSocket of the Responses API on models of other APIs: answers, errors, cuts; a client that goes."""
    url = accounted.velox.base_url.replace("http", "ws") + "/v1/responses"
    ended = ("response.completed", "response.incomplete", "response.failed", "error")
    for model in ("claude-x", "gemini-x", "qwen-x"):
        asked = {"type": "response.create", "model": f"{model}-soak-{fault}" if fault else model, "input": LONG}
        with websockets.sync.client.connect(url, additional_headers=accounted.headers) as ws:
            for text in (LONG, LONG * 300):  # the latter is read beside the loop
                ws.send(json.dumps(asked | {"input": text}))
                while json.loads(ws.recv(timeout=20))["type"] not in ended:
                    pass
            ws.send(json.dumps(asked))

    assert accounted.left() == {}


@pytest.mark.parametrize("name", ["", pytest.param("http://no-such-host.invalid:1", marks=pytest.mark.more)])
def test_upstreams_that_are_not_there_leave_nothing(name: str) -> None:
    """Nobody listens, or no such name is known."""
    with nobody() as origin, running(name or origin) as ground:
        asked = [(lane, stream, "") for lane, stream in every_way(lanes(*SOME))]
        assert set(ground.ask_all(asked)) <= {502, 503}

        assert ground.left() == {}
