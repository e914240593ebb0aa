"""One gateway, the servers behind it, and what a story does with them; all of it becomes a page.

A page has, in order: what upstreams will answer, what the client sends and gets, what each upstream gets, the lines of
the access log, the metrics that have changed, and the records of calls. Ids, times and ports are replaced, so that the
same story is always the same text.

    stage.plays("one", whole(ANSWER))          what the next call of upstream `one` is answered
    stage.ask("POST", CHATS, body)             a request on a connection of its own, read to its end

Knows: how a page is made. Does not know: the stories (stories.py, beside).
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import re
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tests.e2e.harness import RawReply, VeloxProcess, until
from tests.e2e.raw_http import read_reply
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, SSE, RecordingUpstream, Script
from tests.e2e.routed import nobody
from tests.e2e.websocket_upstreams import WebSocketUpstream
from tests.secret_watch import WATCH
from velox.accounts.service import Accounts
from velox.accounts.sqlite import SqliteAccounts
from velox.ledger.record import Call as Recorded
from velox.ledger.record import Tokens
from velox.ledger.sqlite import SqliteStore
from velox.ledger.store import UsageQuery
from velox.types import Endpoint

__all__ = ["APP", "Play", "Stage", "broken", "cut", "events", "held", "silent", "staged", "stream", "whole"]

# Keys of clients, by what is special about them.
APP: Final = "vk-app-00000001"
KEYS: Final[list[dict[str, object]]] = [
    {"name": "app", "key": APP, "team": "red", "user": "ada@example.com", "tags": ["web"]},
    {"name": "other", "key": "vk-other-0000002", "team": "blue"},
    {"name": "slow", "key": "vk-slow-00000003", "rpm": 1, "burst": 1},
    {"name": "poor", "key": "vk-poor-00000004", "budgets": ["0.000001 usd/total"]},
    {"name": "narrow", "key": "vk-narrow-000005", "models": ["gpt-4o"]},
    {"name": "thrifty", "key": "vk-thrifty-00006", "tpm": 2000, "tpm_burst": 2000},
]
_VARIABLES: Final = {
    **{name: f"sk-of-{name.lower()}-0001" for name in ("ONE", "TWO", "CLAUDE", "GEMINI", "SOCKET")},
    "VELOX_ACCESS_LOG": "all",
    "VELOX_CORS_ORIGINS": "https://app.example",
    "VELOX_LISTEN_HTTP2": "on",
    "VELOX_MANAGED_KEYS": "on",
    "VELOX_MAX_BODY": "16KiB",
    "VELOX_PUBLIC_URL": "https://velox.example",
    "VELOX_RATE_LIMIT_MAX_WAIT": "0s",
    "VELOX_RETRY_BEFORE_FALLBACK": "0s",
    "VELOX_USAGE_DRAIN": "all",
    "VELOX_WORKERS": "1",
}
_PRICES: Final = "prices:\n  - {model: '*', input: 1, output: 10}\n"
# What a request counts. Times, sizes and what connections do differ from run to run.
_COUNTED: Final = re.compile(
    r"velox_(?:requests|stream_end|shed|limit_decisions|tokens|upstream_attempts|retries|retries_denied|stream_error_events"
    r"|upstream_requests|upstream_tokens|hedges|mirrored_requests|translations|translation_dropped_fields|tunnel_bytes)_total"
    r"|(?:gen_ai_server|velox_queue_wait)\w+_count"
)
_LEFT_OUT: Final = frozenset({"time", "id", "process", "number", "started_us", "prices", "price"})
# Of each run, though they are there in each.
_RANDOM: Final = frozenset({"ttfb_ms", "total_ms", "first_byte_us", "duration_us", "key_id"})
# Velox asks for them when it likes.
_LISTS: Final = frozenset({"/v1/models", "/v1/models?limit=1000", "/v1beta/models?pageSize=1000"})
_LONG: Final = 120  # bytes of JSON that are shown on one line
ALWAYS: Final = UsageQuery(0, 253_402_214_400)


class Play(NamedTuple):
    """How a call is answered. tells: as the page has it. waits: its end comes when the client has got something."""

    tells: str
    script: Script
    waits: bool = False


def whole(body: object, status: int = 200, *more: tuple[str, str], content_type: str = "application/json") -> Play:
    """Answer with a whole body; what is no bytes as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    head = [("content-type", content_type), *more]

    async def script(call: Call) -> None:
        await call.reply(status, head, data)

    return Play(f"{status}\n{_fields(head)}\n{_shown(data)}", script)


def events(*datas: object, names: bool = False) -> list[bytes]:
    """Return the events of a stream; names: each has its `type` as a name, as Anthropic's."""
    lines = []
    for each in datas:
        text = each if isinstance(each, str) else json.dumps(each, separators=(",", ":"))
        name = f"event: {each['type']}\n" if names and isinstance(each, dict) else ""
        lines.append(f"{name}data: {text}\n\n".encode())
    return lines


def stream(pieces: Sequence[bytes]) -> Play:
    """Answer with a stream whose last piece comes when the client has got something: else all could be one write."""
    *first, last = pieces

    async def script(call: Call) -> None:
        await call.head(200, SSE)
        for each in first:
            await call.data(each)
        if first:
            await call.step()
        await call.data(last)
        await call.end()

    return Play(_streamed(pieces), script, bool(first))


def cut(pieces: Sequence[bytes]) -> Play:
    """Answer with a stream that ends as if the server had failed."""

    async def script(call: Call) -> None:
        await call.head(200, SSE)
        for each in pieces:
            await call.data(each)
        await call.drain()
        call.cut()

    return Play(_streamed(pieces) + "\n(and closes the connection)", script)


def held(first: Sequence[bytes], rest: Sequence[bytes]) -> Play:
    """Answer with a stream whose rest is sent at the test's step()."""

    async def script(call: Call) -> None:
        await call.head(200, SSE)
        for each in first:
            await call.data(each)
        await call.step()
        for each in rest:
            await call.data(each)
        await call.end()

    return Play(_streamed(first) + "\n(and, later)\n" + _lines(rest), script)


def silent() -> Play:
    """Answer nothing until the gateway leaves."""

    async def script(call: Call) -> None:
        await call.silence()

    return Play("(nothing, until Velox leaves)", script)


def broken() -> Play:
    """Reset the connection in place of an answer."""

    async def script(call: Call) -> None:
        call.lose()

    return Play("(resets the connection)", script)


def _streamed(pieces: Sequence[bytes]) -> str:
    return f"200\n{_fields(SSE)}\n{_lines(pieces)}"


def _lines(pieces: Sequence[bytes]) -> str:
    return b"".join(pieces).decode().replace("\r", "\\r").rstrip("\n")


def _fields(headers: Sequence[tuple[str, str]]) -> str:
    return "".join(f"{name}: {value}\n" for name, value in headers)


def _shown(body: bytes) -> str:
    """Return short JSON as it is, long one with a line for each value, a stream or a form as it is."""
    try:
        value = json.loads(body)
    except ValueError:
        pass
    else:
        return body.decode() if len(body) <= _LONG else json.dumps(value, indent=1, ensure_ascii=False)
    try:
        return body.decode().replace("\r", "\\r").rstrip("\n")
    except UnicodeDecodeError:
        return f"({len(body)} bytes that are no text)"


@dataclass
class Stage:
    """What a story acts on. plays(), ask() and tell() make the page, in the order of the calls."""

    velox: VeloxProcess
    folder: Path
    servers: Mapping[str, RecordingUpstream]
    queues: Mapping[str, collections.deque[Play]]
    parts: list[tuple[str, str]] = field(default_factory=list)
    n_logged: int = 0
    waiting: list[str] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)

    def plays(self, name: str, *plays: Play) -> None:
        """Have the next calls of an upstream answered so."""
        self.queues[name].extend(plays)
        self.waiting += [name for play in plays if play.waits]
        for play in plays:
            self.parts.append((f"upstream {name} will answer", play.tells))

    def ask(
        self,
        method: str,
        target: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        key: str = APP,
        *,
        n_logged: int = 1,
    ) -> RawReply:
        """Send a request on a connection of its own, and read the whole reply."""
        head, data = self.request(method, target, body, headers, key, n_logged=n_logged)
        with self.velox.connect() as sock:
            sock.sendall(head + data)
            sock.recv(1, socket.MSG_PEEK)
            for name in self.waiting:
                self.servers[name].step()
            reply = read_reply(sock)
        self.tell("the client gets", reply_text(reply))
        return reply

    def ask_cut(self, method: str, target: str, body: object) -> None:
        """Send a request whose reply is cut; read all that comes, with its framing, until the connection is closed."""
        head, data = self.request(method, target, body)
        with self.velox.connect() as sock:
            sock.sendall(head + data)
            got = b""
            while piece := sock.recv(65536):
                got += piece
        top, _, rest = got.partition(b"\r\n\r\n")
        body, end = _unchunked(rest)
        self.tell("the client gets", f"{top.decode().replace(chr(13), '')}\n\n{_shown(body)}\n({end})")

    def request(
        self,
        method: str,
        target: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        key: str = APP,
        *,
        n_logged: int = 1,
    ) -> tuple[bytes, bytes]:
        """Return a request's head and body, and tell of it. key: "" for none. n_logged: lines of the access log."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"host": "velox.test", **({"authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        WATCH.request(target, given, data or None)
        if body is not None:
            given.setdefault("content-type", "application/json")
            given.setdefault("content-length", str(len(data)))
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        head = f"{method} {target} HTTP/1.1\r\n{lines}\r\n"
        shown = _shown(data) if len(data) < 4 * 1024 else f"({len(data)} bytes)"
        self.tell("the client sends", f"{method} {target}\n{_fields(list(given.items()))}\n{shown}")
        self.n_logged += n_logged
        return head.encode(), data

    def tell(self, title: str, text: str) -> None:
        """Add a part to the page."""
        self.parts.append((title, text.strip("\n")))

    def call(self, name: str, n: int = 1) -> Call:
        """Wait for the `n`th call of an upstream in this story."""
        return self.servers[name].wait_call(n)

    def calls(self) -> Iterator[tuple[str, str]]:
        """Yield what the upstreams got."""
        for name, server in self.servers.items():
            for call in server.calls:
                if call.target in _LISTS:
                    continue
                how = "" if call.ended == "answered" else f"\n({call.ended})"
                text = f"{call.method} {call.target}\n{_fields(call.headers)}\n{_shown(call.body)}"
                yield f"upstream {name} gets", text.rstrip("\n") + how


def _unchunked(body: bytes) -> tuple[bytes, str]:
    """Return what the chunks of a body hold, and how they end."""
    found = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        n = int(size, 16)
        if n == 0:
            return found, "the last chunk"
        found, body = found + rest[:n], rest[n + 2 :]
    return found, "the connection is closed without the last chunk"


def reply_text(reply: RawReply) -> str:
    """Return a reply as a page has it."""
    return f"{reply.status}\n{_fields(reply.headers)}\n{_shown(reply.body)}"


class Page:
    """Plays stories on one stage; keeps what belongs to each until the logs and records are read."""

    def __init__(self, stage: Stage) -> None:
        self._stage: Final = stage
        self._parts: Final[dict[str, list[tuple[str, str]]]] = {}
        self._n_logged: Final[list[tuple[str, int]]] = []  # of stories, and "" of what comes before them
        self._counts: dict[str, float] = {}
        self._counts = self._counted(0)

    def play(self, name: str, story: Callable[[Stage], None], before: Callable[[Stage], None] | None) -> None:
        """Play one story; return when its requests and their calls are counted.

        before: makes what it needs, and is no part of the page.
        """
        stage = self._stage
        if before is not None:
            self._run("", before)
        changed = self._run(name, story)
        self._parts[name] = [
            ("", (story.__doc__ or "").strip()),
            *stage.parts,
            *stage.calls(),
            ("metrics", "\n".join(f"{sample} +{n:g}" for sample, n in sorted(changed.items()) if n) or "unchanged"),
        ]

    def _run(self, name: str, act: Callable[[Stage], None]) -> dict[str, float]:
        """Do something; return what it has counted."""
        stage = self._stage
        for server in stage.servers.values():
            server.forget()
        stage.parts, stage.waiting, stage.n_logged = [], [], 0
        act(stage)
        until(lambda: not any(stage.queues.values()), f"{name}: all is asked for: {stage.queues}")
        until(lambda: all(call.ended for each in stage.servers.values() for call in each.calls), f"{name}: ended")
        assert not any(each.failures for each in stage.servers.values()), name
        before, self._counts = self._counts, self._counted(len(list(stage.calls())))
        self._n_logged.append((name, stage.n_logged))
        return {sample: n - before.get(sample, 0.0) for sample, n in self._counts.items()}

    def _counted(self, n_calls: int) -> dict[str, float]:
        """Return what is counted, once the story's requests and calls are. Of a gateway that has ended: what was."""
        velox = self._stage.velox
        if velox.process.poll() is not None:
            return self._counts
        found: dict[str, float] = {}

        def has_all() -> bool:
            found.update({name: value for name, value in velox.metrics().items() if _COUNTED.match(name)})
            grown = collections.Counter[str]()
            for name, value in found.items():
                grown[name.partition("{")[0]] += int(value - self._counts.get(name, 0.0))
            return (
                grown["velox_requests_total"] >= self._stage.n_logged
                and grown["velox_upstream_requests_total"] >= n_calls
            )

        until(has_all, "all is counted")
        # The page may have been made while the worker counted: what it answers now, it answers when it has.
        assert velox.request("GET", "/health").status == 200
        has_all()
        return found

    def pages(self, records: Sequence[Recorded]) -> dict[str, str]:
        """Return each page, with the lines of the log and the records of its requests. The gateway has ended."""
        lines = iter(self._stage.velox.access_log())
        made = {}
        for name, n_logged in self._n_logged:
            logged = list(itertools.islice(lines, n_logged))
            if not name:
                continue
            ids = [line["id"] for line in logged]
            own = [each for each in records if each.id in ids]
            own.sort(key=lambda each: (ids.index(each.id), each.attempt))
            *parts, metrics = self._parts[name]
            parts += [("access log", _told(line)) for line in logged]
            parts.append(metrics)
            parts += [("record", _told(record._asdict())) for record in own]
            text = "\n".join(f"== {title}\n{text}\n" if title else f"{text}\n" for title, text in parts)
            for key, secret in self._stage.secrets.items():
                text = text.replace(secret, f"vk-of-{key}")
            made[name] = _plain(text)
        assert not list(lines), "each line of the log is a story's"
        return made


def _told(values: Mapping[str, Any]) -> str:
    lines = []
    for name, value in values.items():
        if name in _LEFT_OUT or value in (None, "", (), False):
            continue
        if name == "endpoint" and isinstance(value, int):  # of a record; the access log has its name
            value = Endpoint(value)
        elif isinstance(value, Tokens):
            value = " ".join(f"{kind}={n}" for kind, n in value._asdict().items() if n is not None)
        lines.append(f"{name} {'#' if name in _RANDOM else getattr(value, 'name', None) or value}")
    return "\n".join(line for line in lines if not line.endswith(" "))


def _plain(text: str) -> str:
    """Return a page without what differs from run to run."""
    found: dict[str, str] = {}

    def numbered(match: re.Match[str]) -> str:
        return found.setdefault(match[0], f"{match[1]}{len(found) + 1}")

    text = re.sub(r"(vx-)[0-9a-f]{8}-[0-9a-f]+", numbered, text)
    text = re.sub(r"((?:chatcmpl|resp|msg)_?-?vx)[0-9a-f]+", numbered, text)
    text = re.sub(r"^(key|account) (?:[0-9a-f]{16}|key_\w+)", r"\1 #", text, flags=re.MULTILINE)
    text = re.sub(
        r"((?:reset-requests|(?:reset|remaining)-tokens): |after-ms: |pass in )(?:1m0s|[.\d]+m?s?)\b", r"\1#", text
    )
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", text)
    # Whether the length of a changed reply is known depends on how many reads bring it.
    text = re.sub(r"^( *)(?:content-length: \d+|transfer-encoding: chunked)$", r"\1(framed)", text, flags=re.MULTILINE)
    text = re.sub(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", "DATE", text)
    text = re.sub(r'("created(?:_at)?": ?)\d+', r"\g<1>0", text)
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


@contextlib.contextmanager
def staged() -> Iterator[tuple[Stage, Page]]:
    """Run the gateway and its upstreams."""
    names = ("one", "two", "claude", "gemini")
    queues: Mapping[str, collections.deque[Play]] = {name: collections.deque() for name in names}

    async def play(name: str, call: Call) -> None:
        if call.target in _LISTS:
            await call.reply(200, JSON, b'{"object":"list","data":[]}')
            return
        assert queues[name], f"{name}: nobody expects {call}"
        await queues[name].popleft().script(call)

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {name: stack.enter_context(RecordingUpstream(script=partial(play, name))) for name in names}
        sockets = stack.enter_context(WebSocketUpstream())
        gone = stack.enter_context(nobody())
        (folder / "prices.yaml").write_text(_PRICES)
        (folder / "velox.yaml").write_text(yaml.safe_dump(_config(servers, sockets, gone), sort_keys=False))
        env = {
            **_VARIABLES,
            "VELOX_CONFIG": str(folder / "velox.yaml"),
            "VELOX_LEDGER": str(folder / "ledger"),
            "VELOX_PRICES": str(folder / "prices.yaml"),
        }
        velox = stack.enter_context(VeloxProcess(env))
        stage = Stage(velox, folder, servers, queues)
        yield stage, Page(stage)


def _config(servers: Mapping[str, RecordingUpstream], sockets: WebSocketUpstream, gone: str) -> dict[str, object]:
    def upstream(name: str, variable: str, server: str, **more: object) -> dict[str, object]:
        return {"name": name, "origin": servers[server].upstream.url, "key": f"env:{variable}", **more}

    soon = {"first_byte": "300ms", "thinking": "300ms"}
    return {
        "upstreams": [
            upstream("one", "ONE", "one"),
            upstream("two", "TWO", "two"),
            upstream("hasty", "ONE", "one", timeouts=soon),
            upstream("claude", "CLAUDE", "claude", provider="anthropic"),
            upstream("gemini", "GEMINI", "gemini", provider="gemini"),
            {"name": "socket", "origin": sockets.url, "key": "env:SOCKET"},
            {"name": "gone", "origin": gone, "key": "none"},
        ],
        "routes": [
            {"name": "renamed", "match": {"models": ["fast"]}, "to": "one", "model": "gpt-4o-mini"},
            {"name": "falls", "match": {"models": ["falls"]}, "to": "gone", "fallback": ["two"]},
            {"name": "turns", "match": {"models": ["turns"]}, "to": "one", "fallback": ["two"]},
            {"name": "lone", "match": {"models": ["lone"]}, "to": "gone"},
            {"name": "hasty", "match": {"models": ["hasty"]}, "to": "hasty"},
            {
                "name": "hedged",
                "match": {"models": ["hedged"]},
                "to": "one",
                "fallback": ["two"],
                "hedge": {"after": "50ms", "at_most": "100%"},
            },
            {"name": "copied", "match": {"models": ["copied"]}, "to": "one", "mirror": {"to": "two", "percent": 100}},
            {"name": "claude", "match": {"models": ["claude-*"]}, "to": "claude"},
            {"name": "gemini", "match": {"models": ["gemini-*"]}, "to": "gemini"},
            {"name": "talks", "match": {"models": ["gpt-realtime"]}, "to": "socket"},
            {"name": "plain", "match": {"models": ["gpt-*", "text-*", "whisper-1"]}, "to": "one"},
            {"name": "objects", "match": {"paths": ["/v1/files*", "/v1/batches*", "/v1/models*"]}, "to": "one"},
        ],
        "api_keys": KEYS,
    }


def managed_key(stage: Stage, name: str) -> None:
    """Make a key that works."""
    with contextlib.closing(SqliteAccounts(stage.folder / "ledger")) as store:
        _, stage.secrets[name] = Accounts(store).create_key({"name": name}, "stories")
    _wait_key(stage, name, 200)


def revoke_key(stage: Stage, name: str) -> None:
    """Delete it, and wait until it works no longer."""
    with contextlib.closing(SqliteAccounts(stage.folder / "ledger")) as store:
        accounts = Accounts(store)
        (key,) = [each for each in accounts.page("key", "", 10).items if each.name == name]
        accounts.delete("key", key.id, "stories")
    _wait_key(stage, name, 401)


def _wait_key(stage: Stage, name: str, wanted: int) -> None:
    headers = {"authorization": f"Bearer {stage.secrets[name]}"}

    def is_so() -> bool:
        stage.n_logged += 1
        return stage.velox.request("GET", "/v1/models", headers=headers).status == wanted

    until(is_so, f"the key {name} gets {wanted}")


def records(stage: Stage) -> list[Recorded]:
    """Return what was recorded. The gateway has ended."""
    with contextlib.closing(SqliteStore(stage.folder / "ledger", days=30, is_reader=True)) as store:
        return list(store.calls(ALWAYS))
