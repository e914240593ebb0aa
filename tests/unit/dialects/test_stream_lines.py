"""Streams of every client's dialect: an event's data is one line, however the model wrote its arguments."""

from __future__ import annotations

import json

import pytest

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import Answer, ClientCall, Stop, StopReason, ToolUse
from velox.dialects.streams.events import events_of
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind

TABLE = dialect_table()


@pytest.mark.parametrize("client", sorted(TABLE.clients), ids=lambda client: client.name.lower())
def test_arguments_of_many_lines_do_not_break_an_event(client: ApiKind) -> None:
    """Models pretty-print them."""
    arguments = b'{\n  "a": 1,\r\n  "b": "x\\ny"\n}'
    writer = TABLE.clients[client](ClientCall("abc", 7, "m", True), DroppedFields()).stream()
    answer = Answer("", "m", [ToolUse("c", "f", arguments)], Stop(StopReason.TOOLS))
    text = b"".join(writer.write(event) for event in events_of(answer))

    assert b"\r\n  " not in text
    for block in text.replace(b"\r\n", b"\n").split(b"\n\n"):
        for line in block.split(b"\n"):
            assert line == b"" or line.startswith((b"event: ", b"data: "))
            if line.startswith(b"data: {"):
                json.loads(line[6:])
