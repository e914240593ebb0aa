"""What is kept of a WebSocket's messages for its trace takes room of its worker, from its begin to its end."""

from __future__ import annotations

import asyncio

import pytest

from tests.sockets.gateway.core_attempts import broken, run
from tests.sockets.gateway.core_gateway import FakeClient, gateway, request_head
from velox.errors import Reason, VeloxError
from velox.gateway.request.tunnels import Tunnels
from velox.gateway.websocket.tunnel import TunnelExchange, TunnelReply
from velox.heads import WebSocketOffer
from velox.observe.traces.socket_capture import CaptureRoom, SocketCapture
from velox.protocol.websocket.handshake import accept_value

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
SAID = b'{"type":"response.create","input":"Hi."}'


class SwitchingClient(FakeClient):
    """A client that takes what it is given."""

    def switch(self, headers: object, protocol: object) -> None:
        """Take a tunnel's end, whose client says nothing."""


class OpenTransport(asyncio.Transport):
    """The upstream's connection, which takes all that goes up."""

    def is_reading(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def set_protocol(self, protocol: object) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        pass


@pytest.mark.parametrize("accepts", [True, False], ids=["a tunnel", "no tunnel"])
def test_room_is_taken_by_a_tunnel_and_given_back_at_its_end(accepts: bool) -> None:
    """Not by a reply that becomes none: another one may be tried."""

    async def main() -> None:
        with gateway(broken()) as made:
            room, client, loop = CaptureRoom(), SwitchingClient(), asyncio.get_running_loop()
            capture = SocketCapture(64 * 1024, room)
            head = request_head(b"GET", b"/v1/realtime", offer=WebSocketOffer(KEY, (), b""))
            tunnel = TunnelExchange(made, client, head, None, made.plan(head))
            reply = TunnelReply(client, head, b"1", loop, made.parts.reply_fields, tunnels=Tunnels(), capture=capture)
            reply.offer = head.offer
            accept = accept_value(KEY) if accepts else b"wrong"
            fields = [(b"upgrade", b"websocket"), (b"connection", b"upgrade"), (b"sec-websocket-accept", accept)]
            reply.on_switch(fields, OpenTransport(), b"")
            if not accepts:
                assert room.n_bytes == 0
                return
            before = room.n_bytes
            assert reply.tunnel is not None and before > 0
            reply.tunnel.client._received(bytes((0x81, len(SAID))) + SAID)
            assert room.n_bytes > before + len(SAID)
            tunnel.reply = reply
            record = tunnel.content()
            assert record is not None and b"Hi." in record.asked
            tunnel._end(VeloxError(Reason.CLIENT_CLOSED, "the client left"))
            assert room.n_bytes == 0

    run(main)
