"""Clients that make a gateway work as hard as they can.

    python -m tests.canary.attackers NAME PORT SECONDS

Knows: what each sends. Does not know: what it does to the gateway, or to others.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

__all__ = ["ATTACKERS", "KEY", "NICE"]

NICE: Final = 10  # of attackers and floods, once they have started: a tenth of the weight of what is measured

MIB: Final = 1 << 20
_CROWD: Final = 64
KEY: Final = "sk-of-the-attack-0123456789"  # where keys are asked for: one for some models
_KEY: Final = {"authorization": f"Bearer {KEY}"}
_JSON: Final = {"content-type": "application/json", **_KEY}


def _post(port: int, path: str, body: bytes, until_s: float, fields: Mapping[str, str] = _JSON) -> None:
    """Send a request again and again, and read what comes of each."""
    while time.monotonic() < until_s:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=max(0.1, until_s - time.monotonic()))
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("POST", path, body, dict(fields))
            reply = connection.getresponse()
            while time.monotonic() < until_s and reply.read1(MIB):
                pass
        connection.close()


def _chat(content: object, **more: object) -> bytes:
    return json.dumps({"model": "attack", "messages": [{"role": "user", "content": content}], **more}).encode()


def _chats(content: object, **more: object) -> Callable[[int, float], None]:
    return _posts(_chat(content, **more))


def _posts(body: bytes) -> Callable[[int, float], None]:
    return lambda port, until_s: _post(port, "/v1/chat/completions", body, until_s)


def _crowd(body: bytes) -> Callable[[int, float], None]:
    """Send a request from many connections at once, again and again."""

    def run(port: int, until_s: float) -> None:
        target = partial(_post, port, "/v1/chat/completions", body, until_s)
        threads = [threading.Thread(target=target) for _ in range(_CROWD)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


def _bursts(request: bytes, n: int, wait_s: float = 0.05) -> Callable[[int, float], None]:
    """Connect often, send the same over all connections at once, read what comes, and close all; again and again.

    b"": nothing is sent.
    """

    def run(port: int, until_s: float) -> None:
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                socks = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 5)) for _ in range(n)]
                for sock in socks:
                    sock.sendall(request)
                time.sleep(wait_s)
                for sock in socks if request else ():
                    sock.recv(MIB)

    return run


def _in_bytes(body: bytes) -> bytes:
    """Return a request whose body comes in chunks of one byte, as many as are taken."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
    head += "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    text = body + b" " * (3_000 - len(body))
    return head.encode() + b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n"


def _in_quotes(content: bytes) -> bytes:
    """Return a request whose text is written so."""
    return _chat("TEXT").replace(b"TEXT", content)


def _conversation(n: int, text: str) -> bytes:
    return json.dumps({"model": "attack", "messages": [{"role": "user", "content": text}] * n}).encode()


def _picture(url: str) -> list[object]:
    return [{"type": "image_url", "image_url": {"url": url}}]


def _gets(path: str) -> Callable[[int, float], None]:
    """Ask for a path again and again on one connection."""
    request = f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer unknown\r\n\r\n".encode()

    def run(port: int, until_s: float) -> None:
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as sock:
                while time.monotonic() < until_s:
                    sock.sendall(request)
                    if not sock.recv(MIB):
                        break

    return run


def _frame(payload: bytes, opcode: int = 1, *, is_last: bool = True) -> bytes:
    """Return a frame of a client (RFC 6455 §5.2), with a mask of zeros."""
    n_bytes = len(payload)
    if n_bytes < 126:
        size = bytes([0x80 | n_bytes])
    else:
        size = struct.pack(">BH", 0xFE, n_bytes) if n_bytes < 1 << 16 else struct.pack(">BQ", 0xFF, n_bytes)
    return bytes([(0x80 if is_last else 0) | opcode]) + size + bytes(4) + payload


def _websocket(frames: bytes) -> Callable[[int, float], None]:
    """Send frames on a WebSocket of the Responses API as fast as they are taken, and read what comes."""
    block = frames * max(1, 64 * 1024 // len(frames))

    def run(port: int, until_s: float) -> None:
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as sock:
                key = base64.b64encode(os.urandom(16)).decode()
                sock.sendall(
                    f"GET /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
                    f"authorization: Bearer {KEY}\r\n"
                    f"sec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n\r\n".encode()
                )
                assert b" 101 " in sock.recv(4096)

                def read(sock: socket.socket = sock) -> None:
                    with contextlib.suppress(OSError):
                        while sock.recv(MIB):
                            pass

                reader = threading.Thread(target=read, daemon=True)
                reader.start()
                while time.monotonic() < until_s and reader.is_alive():
                    sock.sendall(block)

    return run


def _upload(line: bytes, n_bytes: int) -> Callable[[int, float], None]:
    """Upload a batch file again and again."""
    part = b'--x\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
    file = line * (n_bytes // len(line))
    body = part % (b"purpose", b"", b"batch") + part % (b"file", b'; filename="a.jsonl"', file) + b"--x--\r\n"
    fields = {"content-type": "multipart/form-data; boundary=x", **_KEY}
    return lambda port, until_s: _post(port, "/v1/files", body, until_s, fields)


def _asking(**fields: object) -> bytes:
    return json.dumps({"type": "response.create", "model": "attack", **fields}).encode()


_TOOL: Final = {"type": "function", "function": {"name": "f", "description": " " * (8 * MIB), "parameters": {}}}
_LINE: Final = (
    b'{"custom_id":"1","method":"POST","url":"/v1/chat/completions",'
    b'"body":{"model":"attack","messages":[{"role":"user","content":"%b"}]}}\n'
)
_GET: Final = f"GET /v1/nowhere HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n\r\n".encode()
_UNKNOWN: Final = json.dumps({"type": "response.create", "model": "none", "input": "x"}).encode()
ATTACKERS: Final[Mapping[str, Callable[[int, float], None]]] = {
    "a stream": _chats("hi", stream=True),
    "a plain request": _chats("hi"),
    "a text of blanks": _chats(" " * (16 * MIB)),
    "a text of line ends": _chats("\n" * (8 * MIB)),
    "a tool's description of blanks": _chats("hi", tools=[_TOOL]),
    "escapes in a data URL": _chats(_picture("data:image/png;base64," + "%41" * (8 * MIB))),
    "a data URL of letters": _chats(_picture("data:image/png;base64," + "A" * (16 * MIB))),
    "a media type of megabytes": _chats(_picture("data:" + "a" * (8 * MIB) + ";base64,AAAA")),
    "half surrogates": _chats("\ud83d" * (1 * MIB)),
    "a tool's name of megabytes": _chats("hi", tools=[{"type": "function", "function": {"name": "n" * (8 * MIB)}}]),
    "many messages": _posts(_conversation(60_000, "x")),
    "many short texts": _posts(_conversation(40_000, "a" * 900)),
    "a text without a letter of ASCII": _posts(_in_quotes("\N{HIRAGANA LETTER A}".encode() * (8 * MIB))),
    "a text of escapes": _posts(_in_quotes(rb"\u0041" * (4 * MIB))),
    "a text of quotes": _posts(_in_quotes(rb"\"" * (12 * MIB))),
    "numbers of megabytes": _posts(b'{"model":"attack","messages":%b}' % (b"1" * (20 * MIB))),
    "many bodies at once": _crowd(_chat("a word " * 28_000)),
    "many bodies of small messages at once": _crowd(_conversation(180, "x")),
    "uploads at once": _crowd(_chat("a word " * (2 * MIB // 7))),
    "bodies in chunks of a byte": _bursts(_in_bytes(_chat("x")), 30),
    "requests of many connections": _bursts(_GET, 900),
    "connections that come and leave at once": _bursts(b"", 900),
    "a path of models": _gets("/v1beta/" + "models/" * 1000),
    "a path of models and colons": _gets("/v1beta/" + "models/" * 570 + ":a" * 1980),
    "a path of completions": _gets("/v1/;chat/" + "completions" * 650 + "%3bcompletions"),
    "empty WebSocket messages": _websocket(_frame(b"")),
    "WebSocket messages that are no JSON": _websocket(_frame(b"x")),
    "WebSocket pings": _websocket(_frame(b"", 9)),
    "WebSocket pongs": _websocket(_frame(b"", 10)),
    "WebSocket fragments of a byte": _websocket(_frame(b"{", is_last=False) + _frame(b" ", 0, is_last=False) * 5000),
    "WebSocket requests for no model": _websocket(_frame(_UNKNOWN)),
    "WebSocket messages of megabytes": _websocket(_frame(_asking(input=" " * (12 * MIB)))),
    "WebSocket messages of many items": _websocket(_frame(_asking(input=[{"role": "user", "content": "x"}] * 50_000))),
    "WebSocket messages of megabytes that are not answered": _websocket(
        _frame(_asking(input="a" * (6 * MIB), generate=False))
    ),
    "WebSocket messages of megabytes that go on with nothing": _websocket(
        _frame(_asking(input="a" * (12 * MIB), previous_response_id="resp_none"))
    ),
    "WebSocket messages of megabytes that are refused": _websocket(
        _frame(_asking(input="a" * (12 * MIB), stream_id=5))
    ),
    "a batch file of line ends": _upload(b"\n", 30 * MIB),
    "a batch file of lines": _upload(_LINE % b"", 30 * MIB),
    "a batch file of one line": _upload(_LINE % (b"a" * (9 * MIB)), 10 * MIB),
}


if __name__ == "__main__":
    os.nice(NICE)
    print("ready", flush=True)
    ATTACKERS[sys.argv[1]](int(sys.argv[2]), time.monotonic() + float(sys.argv[3]))
