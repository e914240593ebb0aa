"""A provider of every API that lanes go to, in a process of its own: right answers, and what else providers do.

    python -m tests.soak.provider        prints "listening on ORIGIN", then serves until it is killed

A request asks for a fault by the name of its model, in the body or in the path: `soak-NAME` (FAULTS). What it names no
fault for is answered as the real provider did (tests/recordings), plain, streamed, or in the frames of Bedrock.

Knows: what each fault is. Does not know: HTTP (tests/outlets.py), gateways, or which lane a request came by.
"""

from __future__ import annotations

import asyncio
import enum
import json
import re
import resource
import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import uvloop

from tests.e2e.bedrock_frames import frames
from tests.e2e.upstreams import CHAT_JSON, CHAT_SSE
from tests.outlets import Asked, Http1Link, Outlet
from tests.recorded import Exchange, recorded
from velox.protocol.websocket.frames import frame
from velox.protocol.websocket.handshake import accept_value

__all__ = ["Fault", "Given", "answer", "give"]

_FRAMES: Final = "application/vnd.amazon.eventstream"
_JSON: Final = "application/json"
_SSE: Final = "text/event-stream"
_PIECES: Final = 4
_PIECE_BYTES: Final = 1 << 20
_PAUSE_S: Final = 0.05
_CLOSE: Final = 8
_HUGE_BYTES: Final = 33 * 1024 * 1024
_LARGE_BYTES: Final = 900 * 1024
_BACKLOG: Final = 4096
_FAULT: Final = re.compile(rb"soak-([a-z]+[0-9]*)")


class Fault(enum.StrEnum):
    """What a provider does beside answering."""

    NONE = "none"
    E400 = "e400"
    E401 = "e401"
    E429 = "e429"
    E500 = "e500"
    E503 = "e503"
    E529 = "e529"
    RESET = "reset"  # the connection, before a byte of the reply
    CLOSED = "closed"  # the same in good order
    CUT = "cut"  # closes in the middle of the reply
    LOST = "lost"  # resets in the middle of the reply
    SLOW = "slow"  # a pause between pieces
    STALL = "stall"  # silence after the first piece
    SILENT = "silent"  # before the head
    GARBAGE = "garbage"  # no HTTP
    NONSENSE = "nonsense"  # a reply of status 200 that has nothing of the API
    ERROR = "error"  # a reply of status 200 with an error in it
    HUGE = "huge"  # one event, or one answer, that is over every bound
    LARGE = "large"  # an answer, or its first event, that is put into another API beside the loop


class Given(NamedTuple):
    """One reply. form: its content type."""

    body: bytes
    form: str = _JSON
    status: int = 200


def _one(provider: str, ending: str, *, stream: bool, without: bytes = b" no such text ") -> Exchange:
    return next(e for e in recorded(provider, ending, stream=stream) if without not in e.reply)


_CLAUDE: Final = _one("anthropic", "/v1/messages", stream=False, without=b'"tool_use"').reply
_CLAUDE_STREAM: Final = _one("anthropic", "/v1/messages", stream=True, without=b'"tool_use"').reply
_GEMINI: Final = _one("gemini", ":generateContent", stream=False, without=b'"functionCall"').reply
_GEMINI_STREAM: Final = _one("gemini", ":streamGenerateContent", stream=True, without=b'"functionCall"').reply
_RESPONSES: Final = _one("openai", "v1/responses", stream=False, without=b'"function_call"').reply
_RESPONSES_STREAM: Final = _one("openai", "v1/responses", stream=True, without=b'"function_call"').reply
_CONVERSE: Final = _one("bedrock", "/converse", stream=False, without=b'"toolUse"').reply
_CONVERSE_STREAM: Final = _one("bedrock", "/converse-stream", stream=True).reply
_VECTOR: Final = [0.25, -0.5, 0.125]


def _openai_vectors(body: bytes) -> bytes:
    asked = json.loads(body)["input"]
    n = len(asked) if isinstance(asked, list) else 1
    data = [{"object": "embedding", "index": k, "embedding": _VECTOR} for k in range(n)]
    usage = {"prompt_tokens": n, "total_tokens": n}
    return json.dumps({"object": "list", "data": data, "model": "m", "usage": usage}).encode()


def _google_vectors(body: bytes) -> bytes:
    n = len(json.loads(body)["requests"])
    return json.dumps({"embeddings": [{"values": _VECTOR}] * n}).encode()


def _vertex_vectors(body: bytes) -> bytes:
    n = len(json.loads(body)["instances"])
    vector = {"embeddings": {"values": _VECTOR, "statistics": {"token_count": 1, "truncated": False}}}
    return json.dumps({"predictions": [vector] * n}).encode()


def _invoked(body: bytes) -> bytes:
    if b'"SINGLE_EMBEDDING"' in body:
        return json.dumps({"embeddings": [{"embeddingType": "TEXT", "embedding": _VECTOR}]}).encode()
    if b'"inputText"' in body:
        return json.dumps({"embedding": _VECTOR, "inputTextTokenCount": 1}).encode()
    return _CLAUDE


_Answer = bytes | Callable[[bytes], bytes]
# By what a path ends with; the first that does counts.
_ANSWERS: Final[Mapping[str, tuple[_Answer, Given | None]]] = {
    "/chat/completions": (CHAT_JSON, Given(CHAT_SSE, _SSE)),
    "/messages/count_tokens": (b'{"input_tokens":12}', None),
    "/messages": (_CLAUDE, Given(_CLAUDE_STREAM, _SSE)),
    "/responses/input_tokens": (b'{"object":"response.input_tokens","input_tokens":12}', None),
    "/responses": (_RESPONSES, Given(_RESPONSES_STREAM, _SSE)),
    "/embeddings": (_openai_vectors, None),
    ":generateContent": (_GEMINI, None),
    ":streamGenerateContent": (_GEMINI, Given(_GEMINI_STREAM, _SSE)),
    ":countTokens": (b'{"totalTokens":12}', None),
    ":embedContent": (json.dumps({"embedding": {"values": _VECTOR}}).encode(), None),
    ":batchEmbedContents": (_google_vectors, None),
    ":predict": (_vertex_vectors, None),
    "count-tokens:rawPredict": (b'{"input_tokens":12}', None),
    ":rawPredict": (_CLAUDE, None),
    ":streamRawPredict": (_CLAUDE, Given(_CLAUDE_STREAM, _SSE)),
    "/converse": (_CONVERSE, None),
    "/converse-stream": (_CONVERSE, Given(_CONVERSE_STREAM, _FRAMES)),
    "/invoke": (_invoked, None),
    "/invoke-with-response-stream": (_CLAUDE, Given(frames(_CLAUDE_STREAM), _FRAMES)),
    "/count-tokens": (b'{"inputTokens":12}', None),
    "/audio/transcriptions": (b'{"text":"hello","usage":{"type":"duration","seconds":1}}', None),
    "/batches": (b'{"id":"batch_1","object":"batch","status":"validating","input_file_id":"file-1"}', None),
    "/files": (b'{"id":"file-1","object":"file","bytes":3,"filename":"a.jsonl","purpose":"batch"}', None),
}
_LIST: Final = Given(b'{"object":"list","data":[{"id":"m","object":"model"}]}')


def answer(path: str, body: bytes) -> Given:
    """Return the right reply to a request. path: without its query."""
    for ending, (plain, stream) in _ANSWERS.items():
        if path.endswith(ending):
            is_streamed = stream is not None and (
                "stream" in path.lower() or re.search(rb'"stream": ?true', body) is not None
            )
            if stream is not None and is_streamed:
                return stream
            return Given(plain if isinstance(plain, bytes) else plain(body))
    return _LIST


def _failed(path: str, status: int) -> Given:
    """Return an error as the API of a path has it."""
    error: dict[str, object] = {"message": "not now", "type": "soak", "code": status}
    if "/models/" in path:
        error = {"message": "not now", "status": "UNAVAILABLE", "code": status}
    if "/model/" in path:
        return Given(b'{"message":"not now"}', status=status)
    told: dict[str, object] = {"error": error}
    if "/messages" in path or "awPredict" in path:
        told = {"type": "error", "error": {"type": "api_error", "message": "not now"}}
    return Given(json.dumps(told).encode(), status=status)


def _inside(path: str, right: Given) -> Given:
    """Return a reply of status 200 that is an error."""
    told = _failed(path, 503).body
    if right.form == _SSE:
        return Given(b"event: error\ndata: %b\n\n" % told, _SSE)
    return Given(told, _JSON)


def _huge(right: Given) -> bytes:
    """Return a reply whose one event, or whose one text, has no end."""
    if right.form == _SSE:
        return b'data: {"x":"' + b"x" * _HUGE_BYTES
    if right.form == _FRAMES:
        return struct.pack(">II", 0x7FFFFFFF, 16) + bytes(_HUGE_BYTES)
    return b'{"x":"' + b"x" * 2 * _HUGE_BYTES


def _large(right: Given) -> bytes:
    """Return a reply whose text is preceded by megabytes of blanks."""
    if right.form == _FRAMES:
        return right.body  # no frame may be so long
    at = right.body.index(b"{") + 1
    return right.body[:at] + b" " * _LARGE_BYTES + right.body[at:]


class Provider:
    """Answers as a lane's provider does, or with the fault that is asked for: see Player."""

    def __init__(self) -> None:
        self._tasks: Final[set[asyncio.Task[None]]] = set()

    def opened(self, n: int) -> None:
        """See Player."""

    def play(self, asked: Asked, outlet: Outlet) -> None:
        """See Player."""
        if (key := asked.fields.get(b"sec-websocket-key")) is not None:
            head = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            outlet.tunnel(head + b"sec-websocket-accept: %b\r\n\r\n" % accept_value(key), _echo)
            return
        task = asyncio.get_running_loop().create_task(self._answer(asked, outlet))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()

    async def _answer(self, asked: Asked, outlet: Outlet) -> None:
        target, body = asked.target, asked.body
        path = target.partition("?")[0]
        named = _FAULT.search(target.encode() if "soak-" in target else body)
        fault = Fault.NONE if named is None or asked.method == "HEAD" else Fault(named[1].decode())
        right = answer(path, body)
        match fault:
            case Fault.RESET:
                outlet.lose()
            case Fault.CLOSED:
                outlet.cut()
            case Fault.GARBAGE:
                outlet.raw(b"\x16\x03\x01 this is no HTTP at all\r\n\r\n")
                outlet.cut()
            case Fault.SILENT:
                await outlet.left.wait()
            case Fault.E400 | Fault.E401 | Fault.E429 | Fault.E500 | Fault.E503 | Fault.E529:
                await give(asked, outlet, _failed(path, int(fault[1:])))
            case Fault.NONSENSE:
                await give(asked, outlet, Given(b"<html>a page</html>", right.form))
            case Fault.ERROR:
                await give(asked, outlet, _inside(path, right))
            case Fault.LARGE:
                await give(asked, outlet, Given(_large(right), right.form))
            case Fault.HUGE:
                await give(asked, outlet, Given(_huge(right), right.form))
            case _:
                await give(asked, outlet, right, fault)


def _echo(outlet: Outlet, data: bytes) -> None:
    """Answer each read with one message; a close with a close."""
    if data[0] & 15 == _CLOSE:
        outlet.raw(frame(b"\x03\xe8", _CLOSE))
        outlet.cut()
    else:
        outlet.raw(frame(b'{"type":"session.updated"}'))


async def give(asked: Asked, outlet: Outlet, given: Given, fault: Fault = Fault.NONE) -> None:
    """Give an answer, in pieces where it is long or has a fault."""
    is_streamed = given.form in (_SSE, _FRAMES)
    outlet.head(given.status, {"content-type": given.form}, None if is_streamed else len(given.body))
    if asked.method == "HEAD":
        outlet.end()
        return
    n = _PIECES if fault is not Fault.NONE else 1 + len(given.body) // _PIECE_BYTES
    size = max(1, -(-len(given.body) // n))
    for n, at in enumerate(range(0, len(given.body), size)):
        if n == 1 and fault in (Fault.CUT, Fault.LOST, Fault.STALL):
            await _strike(outlet, fault)
            return
        outlet.send(given.body[at : at + size])
        await outlet.drained()
        if fault is Fault.SLOW:
            await asyncio.sleep(_PAUSE_S)
    outlet.end()


async def _strike(outlet: Outlet, fault: Fault) -> None:
    await asyncio.sleep(_PAUSE_S)  # what was written is on its way first, as from a server that dies later
    if fault is Fault.STALL:
        await outlet.left.wait()
    elif fault is Fault.CUT:
        outlet.cut()
    else:
        outlet.lose()


async def main() -> None:
    """Listen, say where, and go on."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    provider = Provider()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Http1Link(provider), "127.0.0.1", 0, backlog=_BACKLOG)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
