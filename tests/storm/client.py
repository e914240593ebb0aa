"""The storm's clients: each keeps one connection to the gateway, asks, reads exactly, leaves when its plan says so.

Knows: HTTP/1.1 as a client that trusts nothing, and what each reply's end means. Does not know: what upstreams do.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import re
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Final

from tests.storm.plan import DONE, Plan

__all__ = ["BAD", "Client", "Outcome", "Result"]

# Far above every time-out of the gateway that is under test: who waits so long was forgotten.
_PATIENCE_S: Final = 60.0
_ERROR_EVENT: Final = b'data: {"error":'
_MARK: Final = re.compile(rb'"mark":"([0-9a-z]+)"')


class Outcome(enum.StrEnum):
    """How an exchange ended for its client."""

    WHOLE = "whole"
    TOLD = "cut and told"
    REFUSED = "refused with reason"
    PASSED = "upstream's own error"
    CANCELLED = "cancelled"
    # Never to be seen:
    WRONG = "LOOKS WHOLE AND IS NOT"
    CROSSED = "ANOTHER'S ANSWER"
    MUTE = "CUT AND NOT TOLD"
    HUNG = "NO END"


BAD: Final = (Outcome.WRONG, Outcome.CROSSED, Outcome.MUTE, Outcome.HUNG)


@dataclass(slots=True)
class Result:
    """What a client saw. left_s: when it left, monotonic, 0.0: it stayed; left_wall_s: the same since the epoch.

    is_second: its kept connection was closed before a byte of a reply, so it asked again on a new one, as clients do: a
    reply whose bytes are all there is whole for its client though the upstream never ended it, and nothing follows it.
    """

    plan: Plan
    outcome: Outcome
    reason: str = ""
    status: int = 0
    n_bytes: int = 0
    left_s: float = 0.0
    left_wall_s: float = 0.0
    is_second: bool = False
    note: str = ""


@dataclass(slots=True)
class _Reply:
    """What came so far. is_framed: the body came to the end that its framing tells."""

    status: int = 0
    fields: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    is_framed: bool = False


class _LeftError(Exception):
    """This client has what it wanted."""


class Client:
    """One connection at a time; a new one when the last one is over."""

    def __init__(self, port: int, path: str = "/v1/chat/completions") -> None:
        self._port: Final = port
        self._path: Final = path
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, plan: Plan) -> Result:
        """Make one exchange."""
        was_kept = self._writer is not None
        reply = _Reply()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._exchange(plan, reply)
        except _LeftError:
            return self._leave(plan, reply)
        except TimeoutError:
            self.close()
            return Result(plan, Outcome.HUNG, status=reply.status, n_bytes=len(reply.body))
        except (ConnectionError, asyncio.IncompleteReadError):
            self.close()
            if was_kept and not reply.status:
                result = await self.ask(plan)
                result.is_second = True
                return result
        if reply.is_framed and reply.fields.get("connection") == "close":
            self.close()
        return judge(plan, reply.status, reply.fields, bytes(reply.body), is_framed=reply.is_framed)

    def close(self) -> None:
        """Close the connection, if there is one."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    # -- inside -----------------------------------------------------------------------------------

    def _leave(self, plan: Plan, reply: _Reply) -> Result:
        writer, self._writer = self._writer, None
        assert writer is not None, "it has asked"
        if hash(plan.mark) % 2:  # half of them leave by a reset
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        result = Result(plan, Outcome.CANCELLED, status=reply.status, n_bytes=len(reply.body))
        if not plan.answer().startswith(bytes(reply.body)) and reply.status == 200 and _ERROR_EVENT not in reply.body:
            result.outcome = Outcome.CROSSED
        # The kernel sends FIN or RST inside transport.abort()'s close, one turn of this loop later.
        writer.transport.abort()
        result.left_s, result.left_wall_s = time.monotonic(), time.time()
        return result

    async def _exchange(self, plan: Plan, reply: _Reply) -> None:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 17)
        body = plan.request_body()
        path = self._path.replace("{mark}", plan.mark)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self._writer.write(f"{head}\r\n".encode() + body)
        if plan.leaves_after == 0:
            try:
                async with asyncio.timeout(plan.leaves_s):
                    await self._read(plan, reply)
            except TimeoutError:
                raise _LeftError from None
        else:
            await self._read(plan, reply)

    async def _read(self, plan: Plan, reply: _Reply) -> None:
        head = (await self._reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
        reply.status = int(head[0].split(" ")[1])
        for line in head[1:]:
            name, _, value = line.partition(":")
            reply.fields[name.lower()] = value.strip()
        if plan.lazy_s:
            await asyncio.sleep(plan.lazy_s)
        if "content-length" in reply.fields:
            await self._take(plan, reply, int(reply.fields["content-length"]))
        else:
            assert reply.fields.get("transfer-encoding") == "chunked", reply.fields
            while size := int((await self._reader.readuntil(b"\r\n"))[:-2], 16):
                await self._take(plan, reply, size)
                await self._reader.readexactly(2)
            await self._reader.readexactly(2)
        reply.is_framed = True

    async def _take(self, plan: Plan, reply: _Reply, n_bytes: int) -> None:
        while n_bytes:
            piece = await self._reader.read(min(n_bytes, 1 << 16))
            if not piece:
                raise ConnectionError("closed early")
            reply.body += piece
            n_bytes -= len(piece)
            if 0 < plan.leaves_after <= len(reply.body):
                raise _LeftError


def judge(plan: Plan, status: int, fields: dict[str, str], body: bytes, *, is_framed: bool) -> Result:
    """Say what a reply was. is_framed: it came to the end that its framing tells."""
    result = Result(plan, Outcome.WRONG, status=status, n_bytes=len(body))
    reason = fields.get("x-velox-reason", "")
    whose = fields.get("x-storm-mark", plan.mark)
    if {whose.encode(), *_MARK.findall(body)} != {plan.mark.encode()}:
        result.outcome, result.note = Outcome.CROSSED, f"from {whose}"
    elif not status:
        result.outcome, result.note = Outcome.MUTE, "no reply at all"
    elif reason:
        if is_framed and json.loads(body)["error"]["code"] == reason:
            result.outcome, result.reason = Outcome.REFUSED, reason
    elif status >= 400:
        if body == plan.error_body(status) and is_framed:
            result.outcome, result.reason = Outcome.PASSED, str(status)
    elif is_framed:
        if body == plan.answer():
            result.outcome = Outcome.WHOLE
    else:
        _judge_cut(plan, fields, body, result)
    if result.outcome in BAD and not result.note:
        result.note = repr(body[-200:])
    return result


def _judge_cut(plan: Plan, fields: dict[str, str], body: bytes, result: Result) -> None:
    """A reply that was cut: what came is the answer's beginning, and events are followed by one that tells."""
    whole = plan.answer()
    is_told_by_event = plan.stream and "content-length" not in fields
    cut_at = body.rfind(_ERROR_EVENT)
    if not is_told_by_event:
        is_told, came = True, body  # by a length that was not reached, or a last chunk that never came
    elif cut_at < 0:
        is_told, came = False, body
    else:
        event, came = body[cut_at:], body[:cut_at]
        # Between two events, or it would be read as a part of the one that was torn (F-14).
        is_told = event.endswith(b"\n\n") and (not came or came.endswith(b"\n\n"))
        with contextlib.suppress(ValueError):
            result.reason = json.loads(event[6:])["error"]["code"]
        came = came if whole.startswith(came) else came.removesuffix(b"\n\n")
    if not whole.startswith(came) or (is_told_by_event and DONE in body and came != whole):
        result.outcome = Outcome.WRONG
    else:
        result.outcome = Outcome.TOLD if is_told else Outcome.MUTE
