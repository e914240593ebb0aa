"""Conversations of Responses WebSockets (gateway/websocket/sockets.py): how much a worker keeps of them."""

from __future__ import annotations

import json

from velox.dialects.canonical.model import ClientCall
from velox.dialects.responses.socket import SocketMessages, prepared_messages
from velox.gateway.websocket.sockets import forget_oldest


class Connection:
    """One that has asked for something of so many bytes."""

    def __init__(self, moved_s: float, n_bytes: int) -> None:
        self.moved_s = moved_s
        self.messages = SocketMessages()
        message = {"type": "response.create", "model": "m", "input": "a" * n_bytes, "generate": False}
        asked = self.messages.asked(json.dumps(message).encode())
        prepared_messages(self.messages, asked, ClientCall("a", 1, "", stream=True))


def test_longest_silent_are_forgotten_first() -> None:
    """As many as it takes, and none where there is room."""
    old, middle, new = (Connection(moved_s, 1000) for moved_s in (1.0, 2.0, 3.0))
    each = new.messages.kept_bytes
    assert each > 1000
    forget_oldest([new, old, middle], 3 * each)
    assert old.messages.kept_bytes == each
    forget_oldest([new, old, middle], 2 * each)
    assert [one.messages.kept_bytes for one in (old, middle, new)] == [0, each, each]
    forget_oldest([new, old, middle], 0)
    assert new.messages.kept_bytes == 0
