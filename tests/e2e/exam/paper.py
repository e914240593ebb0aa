"""The exam of the books: a gateway, an upstream that answers as a case says, and what the ledger recorded of it.

Knows: cases, how they are sent, what of a record is compared with the bookkeeper's bill. Does not know: how a usage is
written (bookkeeper.py), or which cases there are (replies.py for the ways to write a reply, requests.py for the ways to
write a request and to leave).

    Case("tier behind the usage", answer=plain(b'{"usage":{...},"service_tier":"flex"}'))
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.e2e.exam.bookkeeper import Bill, bill_of, price_file
from tests.e2e.harness import KEY, VeloxProcess, read_reply, until
from tests.e2e.recording import Call, RecordingUpstream
from tests.e2e.routed import routed
from velox.cli import main

__all__ = ["DIALECTS", "Answer", "Case", "Dialect", "Ends", "Exam", "plain", "stream"]

_MOST_EVENT: Final = 4096


class Ends(enum.Enum):
    """How a case may end.

    REAL: recorded are the tokens and the cost of the bill. UNKNOWN: the tokens are, and the cost is unknown.
    REFUSED: the client got an error, and the upstream no request. REAL_OR_REFUSED: either. AT_LEAST: what is recorded
    costs as much as the bill, or more: the upstream told nothing, or the client was gone.
    """

    REAL = enum.auto()
    UNKNOWN = enum.auto()
    REFUSED = enum.auto()
    REAL_OR_REFUSED = enum.auto()
    AT_LEAST = enum.auto()


@dataclass(frozen=True)
class Dialect:
    """An API of a vendor's. path: of a plain request. reads: how the bookkeeper reads its replies."""

    path: str
    stream_path: str
    model: str
    reads: str
    body: dict[str, object]


_MESSAGES: Final = [{"role": "user", "content": "hi"}]
DIALECTS: Final = {
    "chat": Dialect("/v1/chat/completions", "", "exam", "openai", {"messages": _MESSAGES}),
    "completions": Dialect("/v1/completions", "", "exam", "openai", {"prompt": "hi"}),
    "responses": Dialect("/v1/responses", "", "exam", "openai", {"input": "hi"}),
    "embeddings": Dialect("/v1/embeddings", "", "exam", "openai", {"input": "hi"}),
    "images": Dialect("/v1/images/generations", "", "exam", "openai", {"prompt": "a cat"}),
    "messages": Dialect("/v1/messages", "", "cla-exam", "anthropic", {"messages": _MESSAGES, "max_tokens": 100}),
    "generate": Dialect(
        "/v1beta/models/gem-exam:generateContent",
        "/v1beta/models/gem-exam:streamGenerateContent?alt=sse",
        "gem-exam",
        "google",
        {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
    ),
    # Asked in Chat, answered by others in their own words.
    "converse": Dialect("/v1/chat/completions", "", "bed-exam", "converse", {"messages": _MESSAGES}),
    "claude for chat": Dialect("/v1/chat/completions", "", "cla-exam", "anthropic", {"messages": _MESSAGES}),
    "gemini for chat": Dialect("/v1/chat/completions", "", "gem-exam", "google", {"messages": _MESSAGES}),
}


@dataclass(frozen=True)
class Answer:
    """What the upstream sends. pieces: of the body, each written by itself.

    bill: what the vendor charges; None: what the bookkeeper reads in the body.
    """

    pieces: tuple[bytes, ...]
    content_type: str = "application/json"
    status: int = 200
    bill: Bill | None = None

    def cut(self, size: int) -> Answer:
        """Return the same body in pieces of this size."""
        body = b"".join(self.pieces)
        return dataclasses.replace(self, pieces=tuple(body[at : at + size] for at in range(0, len(body), size)))


def plain(body: bytes | dict[str, Any], **more: Any) -> Answer:
    """Return an answer that is one JSON body. A dict is written compactly."""
    text = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    return Answer((text,), **more)


def stream(*events: bytes | dict[str, Any], **more: Any) -> Answer:
    """Return an answer that is an event stream, each event in a piece of its own. Bytes are sent as they are."""
    pieces = (
        each if isinstance(each, bytes) else b"data: %b\n\n" % json.dumps(each, separators=(",", ":")).encode()
        for each in events
    )
    return Answer(tuple(pieces), "text/event-stream", **more)


@dataclass(frozen=True)
class Case:
    """One way to write a request and its reply. The name says what is special about it.

    answer: what the upstream sends, or what makes it of the request's body as it came there. is_stream: a stream is
    asked for. body, path: of the request; None: the dialect's usual ones. leaves_at: the client closes its connection
    once it has read this text; None: it reads all.
    """

    name: str
    answer: Answer | Callable[[bytes], Answer]
    dialect: str = "chat"
    is_stream: bool = False
    ends: Ends = Ends.REAL
    body: bytes | None = None
    path: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    leaves_at: bytes | None = None

    def __str__(self) -> str:
        return f"{self.dialect}{' stream' if self.is_stream else ''}: {self.name}"

    def request(self) -> tuple[str, bytes]:
        """Return the path and the body."""
        dialect = DIALECTS[self.dialect]
        usual = {"model": dialect.model, **dialect.body}
        if self.is_stream and not dialect.stream_path:
            usual["stream"] = True
        if self.is_stream and self.dialect == "chat":
            usual["stream_options"] = {"include_usage": True}
        path = self.path or (dialect.stream_path if self.is_stream and dialect.stream_path else dialect.path)
        return path, json.dumps(usual).encode() if self.body is None else self.body


@dataclass
class _Sat:
    """A case that was taken. id: of the request. bill: of what the upstream sent; None: it got no request."""

    case: Case
    status: int
    id: str
    bill: Bill | None


class Exam:
    """One gateway with a ledger and a price list, in front of an upstream that answers as the case says."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._sat: Final[list[_Sat]] = []
        self._case: Case | None = None
        self._bill: Bill | None = None

    def problems(self, cases: Sequence[Case], **settings: str) -> list[str]:
        """Take all cases, one after the other; return a line for each whose record is not what its bill says."""
        with self._running(**settings) as (velox, upstream):
            for case in cases:
                self._case, self._bill = case, None
                upstream.forget()
                status, ident = _asked(velox, case)
                if case.leaves_at is not None:
                    until(lambda: velox.metric("velox_client_connections") == 0, "the client is gone")
                    upstream.step()
                    until(lambda: velox.metric("velox_inflight_requests") == 0, "the call is over")
                self._sat.append(_Sat(case, status, ident, self._bill))
        rows = {row["id"]: row for row in self._rows()}
        found = ((each.case, _problem(each, rows.get(each.id))) for each in self._sat)
        return [f"{case}: {problem}" for case, problem in found if problem]

    @contextlib.contextmanager
    def _running(self, **settings: str) -> Iterator[tuple[VeloxProcess, RecordingUpstream]]:
        prices = self._folder / "prices.yaml"
        prices.write_text(price_file())
        with RecordingUpstream() as upstream, upstream.playing(self._answer):
            common = {"origin": upstream.upstream.url, "key": "env:MODEL_KEY"}
            providers = {"anthropic": "cla-*", "gemini": "gem-*", "bedrock": "bed-*", "openai": "*"}
            config = {
                "upstreams": [
                    {"name": name, "provider": name, **common, **({"region": "us-east-1"} if name == "bedrock" else {})}
                    for name in providers
                ],
                "routes": [
                    {"name": name, "match": {"models": [pattern]}, "to": name} for name, pattern in providers.items()
                ],
            }
            more = {"ledger": str(self._folder / "ledger"), "prices": str(prices), "MODEL_KEY": "sk-exam-0123456789"}
            with routed(config, **more, **settings) as velox:
                yield velox, upstream

    async def _answer(self, call: Call) -> None:
        case = self._case
        assert case is not None, "a call that no case asked for"
        answer = case.answer(call.body) if callable(case.answer) else case.answer
        self._bill = answer.bill
        if answer.bill is None and answer.status < 400:
            dialect = DIALECTS[case.dialect]
            self._bill = bill_of(b"".join(answer.pieces), dialect=dialect.reads, model=dialect.model)
        n_bytes = sum(map(len, answer.pieces))
        is_stream = answer.content_type == "text/event-stream"
        length = () if is_stream else (("content-length", str(n_bytes)),)
        await call.head(answer.status, (("content-type", answer.content_type), *length))
        for piece in answer.pieces:
            await call.data(piece)
            await call.drain()
            if case.leaves_at is not None and case.leaves_at in piece:
                await call.step()  # the client is gone
        await call.end()

    def _rows(self) -> list[dict[str, Any]]:
        environ = {"VELOX_LEDGER": str(self._folder / "ledger"), "VELOX_API_KEYS": KEY}
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(["usage", "--calls", "--format", "jsonl"], environ) == 0
        return [json.loads(line) for line in printed.getvalue().splitlines()]


def _asked(velox: VeloxProcess, case: Case) -> tuple[int, str]:
    """Send a request, and read its reply, or as much as the case wants; return the status and the id."""
    path, body = case.request()
    fields = {"host": "velox.test", "content-type": "application/json", "content-length": str(len(body))}
    fields |= dict(case.headers)
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    with velox.connect(30.0) as sock:
        sock.sendall(head.encode("latin-1") + b"\r\n" + body)
        if case.leaves_at is None:
            reply = read_reply(sock)
            return reply.status, reply.header("x-velox-request-id") or ""
        came = b""
        while case.leaves_at not in came or b"\r\n\r\n" not in came:
            piece = sock.recv(65536)
            assert piece, f"{case}: ended before {case.leaves_at!r} came: {came[-_MOST_EVENT:]!r}"
            came += piece
        until(lambda: velox.metric("velox_client_connections") > 0, "the gateway counts the client")
    lines = came.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    told = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    return int(lines[0].split()[1]), told["x-velox-request-id"]


def _problem(sat: _Sat, row: dict[str, Any] | None) -> str | None:
    """Return what is wrong with the record of a case; None: nothing."""
    ends, bill = sat.case.ends, sat.bill
    if bill is None:
        may_refuse = ends in (Ends.REFUSED, Ends.REAL_OR_REFUSED) and sat.status >= 400 and row is None
        return None if may_refuse else f"the upstream was not asked; status {sat.status}, recorded {row}"
    if ends is Ends.REFUSED:
        return f"was sent to the upstream; status {sat.status}"
    if row is None:
        return f"is not recorded; status {sat.status}, real {bill}"
    recorded = None if row["cost_usd"] is None else round(float(row["cost_usd"]) * 1e9)
    if ends is Ends.AT_LEAST:
        is_enough = recorded is not None and bill.nano is not None and recorded >= bill.nano
        return None if is_enough else f"recorded {recorded} nano-dollars of {bill.nano}; {row}"
    told = {name: row[f"{name}_tokens"] or 0 for name in ("input", "output", "cached", "reasoning")}
    real = {name: getattr(bill, name) for name in told}
    cost = None if ends is Ends.UNKNOWN else bill.nano
    assert ends is Ends.UNKNOWN or cost is not None, f"{sat.case}: a bill without a price: {bill}"
    if told != real or recorded != cost or "estimated" in row["flags"]:
        return f"recorded {told}, {recorded} nano-dollars, flags {row['flags']!r}; real {real}, {cost}; {bill}"
    return None
