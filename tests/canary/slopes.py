"""How long the longest turn of a worker's loop takes by the size of what is sent: requests, replies, messages.

    python -m tests.canary.slopes [--accounted] [WORD ...]     those ways whose names have one of the words; all without

With --accounted: with keys for some models, budgets, a ledger, and costs that clients are told.

Each row is a way through the gateway: milliseconds of the loop's own thread in the longest turn, at each size (the
least of three tries), and where a long turn was mostly seen. A turn is to take 5 ms at most, whatever the size.

Knows: which ways there are, and sizes. Does not know: how a turn is timed (turns.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import websockets.sync.client
import yaml
import zstandard
from h2.connection import H2Connection
from h2.events import DataReceived, StreamEnded, StreamReset

from tests import outlets
from tests.canary.turns import longest, timed
from tests.e2e.harness import VeloxProcess
from tests.soak import provider
from tests.soak.lanes import LANES, SECRETS, Lane, configuration
from tests.untrusting import NO_TRUST

MIB: Final = 1 << 20
SIZES: Final = (1, 5, 20)
_KEY: Final = "sk-of-a-client-0123456789"
_FIELDS: Final = {"authorization": f"Bearer {_KEY}", "x-velox-cost": "true"}
_SSE: Final = "text/event-stream"
_JSON: Final = "application/json"
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz     "
_LINE: Final = (
    b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions",'
    b'"body":{"model":"plain-x","messages":[{"role":"user","content":"%b"}]}}\n'
)
_TIMES: Final = 3  # each is sent: other programs may take the processor in the middle of one turn, seldom of all
BLANKS: Final = {
    "at the start": '_{"model":"MODEL","messages":[{"role":"user","content":"x"}]}',
    "behind a name": '{"model"_:"MODEL","messages":[{"role":"user","content":"x"}]}',
    "before a value": '{"model":_"MODEL","messages":[{"role":"user","content":"x"}]}',
    "before options": '{"model":"MODEL","messages":[{"role":"user","content":"x"}],"stream":true,"stream_options"_:{}}',
    "between items": '{"model":"MODEL","messages":[{"role":"user","content":"x"},_{"role":"user","content":"x"}]}',
    "at the end": '{"model":"MODEL","messages":[{"role":"user","content":"x"}]}_',
}
Way = Callable[[VeloxProcess, int], str]


class Provider(provider.Provider):
    """Answers as the soak's does (provider.py); of a model named `large-N` with so many MiB more of a text.

    values: these are small objects in place of a text. models: a list of so many thousands. In a thread of its own,
    over HTTP/1.1 and HTTP/2.
    """

    def __init__(self) -> None:
        super().__init__()
        self.origins: list[str] = []

    def start(self) -> None:
        ready = threading.Event()

        async def serve() -> None:
            loop = asyncio.get_running_loop()
            for link in (outlets.Http1Link, outlets.Http2Link):
                server = await loop.create_server(partial(link, self), "127.0.0.1", 0)
                self.origins.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            ready.set()
            await asyncio.Event().wait()

        threading.Thread(target=asyncio.run, args=(serve(),), daemon=True).start()
        ready.wait(20)

    async def _answer(self, asked: outlets.Asked, outlet: outlets.Outlet) -> None:
        given = provider.answer(asked.target.partition("?")[0], asked.body)
        start = asked.body[:300] + asked.target.encode()
        if b"large-" in start and given.form in (_SSE, _JSON):
            n = int(start.partition(b"large-")[2].partition(b"-")[0])
            unit, at = (b'{"a":1},', given.body.index(b"{") + 1)
            if b"-values" in start:
                more = b'"x":[%b{}],' % (unit * min(60_000, n * MIB // len(unit)))
            else:
                more = b'"x":"%b",' % (b"a word " * (n * MIB // 7))
            given = given._replace(body=given.body[:at] + more + given.body[at:])
        await provider.give(asked, outlet, given)


def ask(velox: VeloxProcess, lane: Lane, text: str, *, stream: bool = False, fault: str = "") -> str:
    """Ask once; return the status."""
    asked = lane.request(text, stream=stream)
    body, path = asked.body, asked.path
    if fault:
        body = body.replace(lane.model.encode(), lane.model.encode() + fault.encode(), 1)
        path = path.replace(lane.model, lane.model + fault)
    answer = httpx.post(
        velox.base_url + path, content=body, headers={**asked.headers, **_FIELDS}, timeout=60, verify=NO_TRUST
    )
    return str(answer.status_code)


def requests(lane: Lane) -> Way:
    return lambda velox, n: ask(velox, lane, "a word " * (n * MIB // 7))


def replies(lane: Lane, *, stream: bool, kind: str = "") -> Way:
    return lambda velox, n: ask(velox, lane, "Hi", stream=stream, fault=f"-large-{n}-{kind}")


def blocks_of(model: str, *, stream: bool = False) -> Way:
    """Send many small messages, as many as are taken."""
    more = ',"stream":true' if stream else ""
    return lambda velox, n: _send_blocks(velox, n, model, more)


def amid(model: str) -> Way:
    """Send a request whose model stands between two long texts."""

    def send(velox: VeloxProcess, n: int) -> str:
        text = "a word " * (n * MIB // 14)
        body = f'{{"messages":[{{"role":"user","content":"{text}"}}],"model":"{model}","user":"{text}"}}'
        return _send(velox, body)

    return send


def _send_blocks(velox: VeloxProcess, n: int, model: str, more: str) -> str:
    message = '{"role":"user","content":"x"},'
    count = min(60_000, n * MIB // len(message))
    body = f'{{"messages":[{message * count}{message[:-1]}],"model":"{model}"{more}}}'
    return _send(velox, body)


def _send(velox: VeloxProcess, body: str) -> str:
    answer = httpx.post(
        f"{velox.base_url}/v1/chat/completions",
        content=body,
        headers={"content-type": "application/json", **_FIELDS},
        timeout=60,
        verify=NO_TRUST,
    )
    return str(answer.status_code)


def message(model: str, *, values: bool = False) -> Way:
    """Send one message of a WebSocket of the Responses API."""

    def send(velox: VeloxProcess, n: int) -> str:
        n = min(n, 15)
        text: object = "a word " * (n * MIB // 7)
        if values:
            item = {"role": "user", "content": "x"}
            text = [item] * min(60_000, n * MIB // 30)
        url = velox.base_url.replace("http", "ws") + "/v1/responses"
        with websockets.sync.client.connect(url, max_size=None, compression=None, additional_headers=_FIELDS) as ws:
            ws.send(json.dumps({"type": "response.create", "model": model, "input": text}, separators=(",", ":")))
            while True:
                kind = json.loads(ws.recv(timeout=30))["type"]
                if kind in ("response.completed", "response.incomplete", "response.failed", "error"):
                    return str(kind)

    return send


def upload(line: bytes) -> Way:
    """Upload a batch file of lines. line: with %b where its text stands; without, it is repeated."""

    def send(velox: VeloxProcess, n: int) -> str:
        text = line % (b"a" * (n * MIB)) if b"%b" in line else line * (n * MIB // len(line))
        files = {"purpose": (None, "batch"), "file": ("b.jsonl", text, "application/jsonl")}
        with httpx.Client(timeout=60, verify=NO_TRUST, headers=_FIELDS) as client:
            return str(client.post(f"{velox.base_url}/v1/files", files=files).status_code)

    return send


def batch(velox: VeloxProcess, n: int) -> str:
    """Send a batch of Anthropic's, of small requests."""
    one = b'{"custom_id":"a","params":{"model":"claude-x","max_tokens":1,"messages":[]}},'
    body = b'{"requests":[%b]}' % (one * (n * MIB // len(one)))[:-1]
    return post(velox, "/v1/messages/batches", body)


def transcription(velox: VeloxProcess, n: int) -> str:
    """Send a form with a large file and its model behind that."""
    files = {"file": ("a.wav", b"a" * (n * MIB), "audio/wav"), "model": (None, "plain-x")}
    with httpx.Client(timeout=60, verify=NO_TRUST, headers=_FIELDS) as client:
        return str(client.post(f"{velox.base_url}/v1/audio/transcriptions", files=files).status_code)


def parts(velox: VeloxProcess, n: int) -> str:
    """Send a form of very many small parts."""
    part = b'--x\r\ncontent-disposition: form-data; name="a"\r\n\r\nb\r\n'
    body = part * (n * MIB // len(part)) + b"--x--\r\n"
    return post(velox, "/v1/audio/transcriptions", body, {"content-type": "multipart/form-data; boundary=x"})


def coded(coding: str, model: str, *, is_bomb: bool) -> Way:
    """Send a compressed request. is_bomb: of blanks, which take a thousandth; else of text."""

    def send(velox: VeloxProcess, n: int) -> str:
        text = " " * (n * MIB) if is_bomb else "".join(random.Random(n).choices(_LETTERS, k=n * MIB))
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()
        body = zlib.compress(body, 1) if coding == "deflate" else zstandard.compress(body, 1)
        return post(velox, "/v1/chat/completions", body, {"content-encoding": coding, "content-type": _JSON})

    return send


def numbers(model: str) -> Way:
    """Send a request of very many numbers."""
    return lambda velox, n: _send(velox, f'{{"model":"{model}","messages":[{"1," * (n * MIB // 2)}1]}}')


def fields(model: str) -> Way:
    """Send a request of very many fields."""
    field = '"a":1,'
    return lambda velox, n: _send(velox, f'{{"model":"{model}",{field * (n * MIB // 6)}"messages":[]}}')


def blanks(text: str, path: str = "/v1/chat/completions") -> Way:
    """Send a request with as many blanks where a text has a place for them."""
    return lambda velox, n: post(velox, path, text.replace("_", " \n" * (n * MIB // 2)).encode())


def heads(velox: VeloxProcess, n: int) -> str:
    """Send a request with as many header fields as are taken."""
    more = {f"x-{k}": "v" for k in range(100 * n)}
    return post(velox, "/v1/chat/completions", b'{"model":"plain-x","messages":[]}', {"content-type": _JSON, **more})


def over_http2(model: str) -> Way:
    """Send a large request over HTTP/2, and get a large reply."""

    def send(velox: VeloxProcess, n: int) -> str:
        text = "a word " * (n * MIB // 7)
        body = {"model": f"{model}-large-{n}-", "messages": [{"role": "user", "content": text}]}
        with httpx.Client(http1=False, http2=True, timeout=60, verify=NO_TRUST, headers=_FIELDS) as client:
            return str(client.post(f"{velox.base_url}/v1/chat/completions", json=body).status_code)

    return send


def streams(velox: VeloxProcess, n: int) -> str:
    """Begin as many streams as one connection of HTTP/2 may have, in one write, n times; read what comes."""
    port = int(velox.base_url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        h2 = H2Connection()
        h2.initiate_connection()
        sock.sendall(h2.data_to_send())
        body = b'{"model":"plain-x","messages":[{"role":"user","content":"x"}]}'
        head = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", "/v1/chat/completions")]
        head += [("content-type", _JSON), ("authorization", f"Bearer {_KEY}")]
        ended = 0
        h2.receive_data(sock.recv(MIB))
        for _ in range(n):
            for _ in range(100):
                stream = h2.get_next_available_stream_id()
                h2.send_headers(stream, head)
                h2.send_data(stream, body, end_stream=True)
            sock.sendall(h2.data_to_send())
            until = ended + 100
            while ended < until:
                events = h2.receive_data(sock.recv(MIB))
                ended += sum(isinstance(event, StreamEnded | StreamReset) for event in events)
                for event in events:
                    if isinstance(event, DataReceived):
                        h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                sock.sendall(h2.data_to_send())
    return str(ended)


def pipelined(velox: VeloxProcess, n: int) -> str:
    """Send requests ahead on one connection: 100 n of them."""
    port = int(velox.base_url.rpartition(":")[2])
    one = f"GET /v1/models/unknown HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {_KEY}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        sock.sendall(one * (100 * n) + b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        while sock.recv(MIB):
            pass
    return "closed"


@contextlib.contextmanager
def connected(velox: VeloxProcess, n: int) -> Iterator[list[socket.socket]]:
    """Connect as often."""
    port = int(velox.base_url.rpartition(":")[2])
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", port), 20)) for _ in range(n)]


@contextlib.contextmanager
def standing(velox: VeloxProcess) -> Iterator[None]:
    """Let the worker stand still, so that what is sent meanwhile is all there in one turn of its loop."""
    (worker,) = velox.worker_pids()
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker, signal.SIGCONT)


def connections(path: str) -> Way:
    """Send the same at once over 50 n connections."""
    one = f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {_KEY}\r\n\r\n".encode()

    def send(velox: VeloxProcess, n: int) -> str:
        with connected(velox, 50 * n) as socks:
            with standing(velox):
                for sock in socks:
                    sock.sendall(one)
            return str(sum(bool(sock.recv(MIB)) for sock in socks))

    return send


def leaving(velox: VeloxProcess, n: int) -> str:
    """Close 50 n connections at once."""
    with connected(velox, 50 * n) as socks, standing(velox):
        for sock in socks:
            sock.close()
    return _send(velox, "{}")


def coming(velox: VeloxProcess, n: int) -> str:
    """Connect 50 n times at once."""
    with standing(velox), connected(velox, 50 * n):
        pass
    return _send(velox, "{}")


def uploads(velox: VeloxProcess, n: int) -> str:
    """Send 30 requests of n MiB at once."""
    said: list[str] = []

    def upload() -> None:
        said.append(_send(velox, '{"model":"plain-x","messages":[{"role":"user","content":"%s"}]}' % ("a" * (n * MIB))))

    threads = [threading.Thread(target=upload) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return min(said, default="")


def in_bytes(velox: VeloxProcess, n: int) -> str:
    """Send n bodies at once, each in 3,000 chunks of a byte."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {_KEY}\r\n"
    head += "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b'{"model":"plain-x","messages":[{"role":"user","content":"%b"}]}' % (b"x" * 2_900)
    wire = head.encode() + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with connected(velox, n) as socks:
        with standing(velox):
            for sock in socks:
                sock.sendall(wire)
        return str(sum(b" 200 " in sock.recv(MIB) for sock in socks))


def post(velox: VeloxProcess, path: str, body: bytes, more: Mapping[str, str] | None = None) -> str:
    """Post; return the status."""
    headers = {**(more or {"content-type": _JSON}), **_FIELDS}
    answer = httpx.post(velox.base_url + path, content=body, headers=headers, timeout=60, verify=NO_TRUST)
    return str(answer.status_code)


def ways() -> Iterator[tuple[str, Way]]:
    for lane in LANES:
        if "hedged" in lane.name or lane.form != _JSON:
            continue
        yield f"request: {lane.name}", requests(lane)
        if "mirrored" in lane.name or "fallback" in lane.name:
            continue
        for stream in (False, True)[: 1 + lane.streams]:
            yield f"reply: {lane.name}{', event' * stream}", replies(lane, stream=stream)
    some = [lane for lane in LANES if lane.name in ("chat to anthropic", "messages to gemini")]
    for lane in some:
        yield f"reply of values: {lane.name}", replies(lane, stream=False, kind="values")
        yield f"reply of values: {lane.name}, event", replies(lane, stream=True, kind="values")
    yield "request of messages: chat to anthropic", blocks_of("claude-x")
    for model in ("claude-x", "plain-x", "gemini-x"):
        yield f"WebSocket message: {model}", message(model)
        yield f"WebSocket message of items: {model}", message(model, values=True)
    yield "upload of a batch file", upload(_LINE % b"")
    yield "upload of a batch file of one line", upload(_LINE)
    yield "batch of messages", batch
    yield "form with a large file", transcription
    yield "form of many parts", parts
    for coding in ("zstd", "deflate"):
        for model in ("plain-x", "claude-x"):
            yield f"{coding} of blanks: {model}", coded(coding, model, is_bomb=True)
            yield f"{coding} of text: {model}", coded(coding, model, is_bomb=False)
    for model in ("plain-x", "old-x", "claude-x"):
        yield f"request of numbers: {model}", numbers(model)
        yield f"request of fields: {model}", fields(model)
        for place, text in BLANKS.items():
            yield f"request with blanks {place}: {model}", blanks(text.replace("MODEL", model))
    yield "batch with blanks", blanks('_{"requests":[]}', "/v1/messages/batches")
    yield "many header fields", heads
    for model in ("plain-x", "h2-plain-x", "claude-x", "h2-claude-x", "gemini-v-x", "h2-gemini-x"):
        yield f"request and reply over HTTP/2: {model}", over_http2(model)
    for lane in (replace(LANES[0], model="h2-plain-x"), replace(LANES[0], model="h2-claude-x")):
        for kind in ("", "values"):
            yield f"reply of HTTP/2 {kind}: {lane.model}", replies(lane, stream=False, kind=kind)
            yield f"reply of HTTP/2 {kind}: {lane.model}, event", replies(lane, stream=True, kind=kind)
    yield "streams at once", streams
    yield "requests ahead on one connection", pipelined
    yield "requests of many connections", connections("/nowhere")
    yield "requests for a model of many connections", connections("/v1/models/unknown")
    yield "clients that leave at once", leaving
    yield "clients that come at once", coming
    yield "uploads at once", uploads
    yield "bodies in chunks of a byte", in_bytes
    renamed = replace(next(lane for lane in LANES if lane.name == "chat to a server without a provider"), model="old-x")
    yield "request: renamed", requests(renamed)
    yield "request of messages: renamed", blocks_of("old-x")
    yield "stream of messages: renamed", blocks_of("old-x", stream=True)
    yield "request: renamed, its model in the middle", amid("old-x")


@contextlib.contextmanager
def running(folder: str, *, accounted: bool) -> Iterator[VeloxProcess]:
    """Run a gateway of one worker with all lanes."""
    config: dict[str, object] = {}
    if accounted:
        prices = Path(folder, "prices.yaml")
        prices.write_text("prices:\n  - {model: '*', input: 1, output: 10}\n")
        key = {
            "name": "a",
            "key": _KEY,
            "endpoints": ["all"],
            "models": ["*-x*", "gpt*", "gemini*", "text-*", "amazon*"],
        }
        config = {
            "api_keys": [key, {"name": "b", "key": "sk-of-another-0123456789"}],
            "budgets": [{"per": "key", "usd": 100000, "window": "month", "unpriced": "allow"}],
            "ledger": str(Path(folder, "ledger")),
            "prices": str(prices),
        }
    played = Provider()
    played.start()
    path = Path(folder, "velox.yaml")
    http1, http2 = played.origins
    lanes = configuration({}, http1)
    for name in ("anthropic", "plain", "vertex"):
        entry = next(each for each in lanes["upstreams"] if each["name"] == name)
        lanes["upstreams"].append({**entry, "name": f"{name}-http2", "origin": http2, "http2": "on"})
        match = {"anthropic": "h2-claude*", "plain": "h2-plain*", "vertex": "h2-gemini*"}[name]
        lanes["routes"].insert(0, {"name": match[:-1], "match": {"models": [match]}, "to": f"{name}-http2"})
    lanes["routes"].insert(0, {"name": "renamed", "match": {"models": ["old-*"]}, "to": "plain", "model": "plain-x"})
    path.write_text(yaml.safe_dump(lanes | config))
    env = {
        **SECRETS,
        "VELOX_CONFIG": str(path),
        "VELOX_WORKERS": "1",
        "VELOX_RATE_LIMIT_RPM": "0",
        "VELOX_LISTEN_HTTP2": "on",
    }
    with VeloxProcess(env, launcher=timed(folder)) as velox:
        yield velox


def main(words: Sequence[str]) -> None:
    is_accounted = "--accounted" in words
    words = [word for word in words if word != "--accounted"]
    with tempfile.TemporaryDirectory() as folder, running(folder, accounted=is_accounted) as velox:
        (worker,) = velox.worker_pids()
        for name, way in ways():
            if words and not any(word in name for word in words):
                continue
            with contextlib.suppress(httpx.HTTPError, OSError):
                way(velox, 0)  # modules, connections
            row, seen, said = [], "", ""
            for n in SIZES:
                times = []
                for _ in range(_TIMES):
                    longest(worker, folder)
                    try:
                        said = way(velox, n)
                    except (httpx.HTTPError, OSError) as exc:
                        said = type(exc).__name__
                    times.append(longest(worker, folder))
                found = min(times, key=lambda each: each.ms)
                row.append(found.ms)
                seen = found.seen if found.ms > 5 else seen
            print(f"{name:50} {said:12} " + " ".join(f"{ms:7.1f}" for ms in row) + f"  {seen[:150]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
