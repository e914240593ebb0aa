"""How long the longest turn of a worker's loop takes by the size of what is sent: requests, replies, messages.

    python -m tests.canary.slopes [--accounted] [WORD ...]     those ways whose names have one of the words; all without

With --accounted: with keys for some models, budgets, a ledger, and costs that clients are told.

Each row is a way through the gateway: milliseconds of the loop's own thread in the longest turn, at each size, and
where a long turn was mostly seen. A turn is to take 5 ms at most, whatever the size.

Knows: which ways there are, and sizes. Does not know: how a turn is timed (turns.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx
import websockets.sync.client
import yaml

from tests.canary.turns import longest, timed
from tests.e2e.harness import VeloxProcess
from tests.soak.lanes import LANES, SECRETS, Lane, configuration
from tests.soak.provider import answer
from tests.untrusting import NO_TRUST

MIB: Final = 1 << 20
SIZES: Final = (1, 5, 20)
_KEY: Final = "sk-of-a-client-0123456789"
_FIELDS: Final = {"authorization": f"Bearer {_KEY}", "x-velox-cost": "true"}
_SSE: Final = "text/event-stream"
Way = Callable[[VeloxProcess, int], str]


class Provider:
    """Answers as the soak's does (provider.py); of a model named `large-N` with so many MiB more of a text.

    values: these are small objects in place of a text.
    """

    def __init__(self) -> None:
        self._loop: Final = asyncio.new_event_loop()
        self.origin = ""

    def start(self) -> None:
        ready = threading.Event()

        async def serve() -> None:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            ready.set()
            await server.serve_forever()

        def run() -> None:
            with contextlib.suppress(RuntimeError):
                self._loop.run_until_complete(serve())

        threading.Thread(target=run, daemon=True).start()
        ready.wait(20)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *lines = head.split(b"\r\n")
                fields = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
                body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
                method, target, _ = first.split(b" ")
                await self._answer(writer, method, target.decode(), body)

    async def _answer(self, writer: asyncio.StreamWriter, method: bytes, target: str, body: bytes) -> None:
        given = answer(target.partition("?")[0], body)
        text = given.body
        start = body[:300] + target.encode()
        if b"large-" in start and given.form in (_SSE, "application/json"):
            n = int(start.partition(b"large-")[2].partition(b"-")[0])
            unit, at = (b'{"a":1},', text.index(b"{") + 1)
            if b"-values" in start:
                more = b'"x":[%b{}],' % (unit * min(60_000, n * MIB // len(unit)))
            else:
                more = b'"x":"%b",' % (b"a word " * (n * MIB // 7))
            text = text[:at] + more + text[at:]
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
            % (given.status, given.form.encode(), len(text))
        )
        if method != b"HEAD":
            writer.write(text)
        await writer.drain()


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


def upload(velox: VeloxProcess, n: int) -> str:
    """Upload a batch file of small lines."""
    line = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"plain-x"}}\n'
    files = {"purpose": (None, "batch"), "file": ("b.jsonl", line * (n * MIB // len(line)), "application/jsonl")}
    with httpx.Client(timeout=60, verify=NO_TRUST, headers=_FIELDS) as client:
        return str(client.post(f"{velox.base_url}/v1/files", files=files).status_code)


def ways() -> Iterator[tuple[str, Way]]:
    for lane in LANES:
        if "hedged" in lane.name or lane.form != "application/json":
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
    yield "upload of a batch file", upload
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
        key = {"name": "a", "key": _KEY, "endpoints": ["all"], "models": ["*-x*", "gpt*"]}
        config = {
            "api_keys": [key, {"name": "b", "key": "sk-of-another-0123456789"}],
            "budgets": [{"per": "key", "usd": 100000, "window": "month", "unpriced": "allow"}],
            "ledger": str(Path(folder, "ledger")),
            "prices": str(prices),
        }
    provider = Provider()
    provider.start()
    path = Path(folder, "velox.yaml")
    lanes = configuration({}, provider.origin)
    lanes["routes"].insert(0, {"name": "renamed", "match": {"models": ["old-*"]}, "to": "plain", "model": "plain-x"})
    path.write_text(yaml.safe_dump(lanes | config))
    env = {**SECRETS, "VELOX_CONFIG": str(path), "VELOX_WORKERS": "1", "VELOX_RATE_LIMIT_RPM": "0"}
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
                longest(worker, folder)
                try:
                    said = way(velox, n)
                except (httpx.HTTPError, OSError) as exc:
                    said = type(exc).__name__
                found = longest(worker, folder)
                row.append(found.ms)
                seen = found.seen if found.ms > 5 else seen
            print(f"{name:50} {said:12} " + " ".join(f"{ms:7.1f}" for ms in row) + f"  {seen[:150]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
