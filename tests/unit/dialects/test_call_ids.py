"""Ids of calls that other servers gave, as clients of Messages get them: Anthropic takes them, too."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import Answer, Block, ClientCall, Signature, Stop, StopReason, ToolResult, ToolUse
from velox.dialects.messages.words import given_id, shown_id
from velox.dialects.messages.write_reply import MessagesClient
from velox.dialects.streams.events import events_of

_CALL = ClientCall("vx0a1b2c", 1)
_TAKEN = re.compile(r"[a-zA-Z0-9_-]+")


@given(st.text(st.characters(), min_size=1))
def test_id_comes_back_as_it_was(call_id: str) -> None:
    shown = shown_id(call_id, _CALL.id)

    assert _TAKEN.fullmatch(shown) is not None
    assert given_id(shown) == call_id


@pytest.mark.parametrize(
    "call_id", ["call_1", "toolu_01", "vx0a1b2c_Y2FsbF8x", "vx0a1b2c_%", "vx1_A", "vx1__w", "", "a.b"]
)
def test_other_ids_are_none_of_ours(call_id: str) -> None:
    assert given_id(call_id) == call_id


@pytest.mark.parametrize("is_stream", [False, True])
def test_client_gets_an_id_that_claude_takes_and_the_server_its_own(is_stream: bool) -> None:
    """With the signature of the call, which stands in a block of its own."""
    theirs = "functions.Bash:0"
    blocks: list[Block] = [
        ToolUse(theirs, "Bash", b"{}", Signature("google", "R09P")),
        ToolUse("call_1", "Bash", b"{}"),
    ]
    answer = Answer("a", "m", blocks, Stop(StopReason.TOOLS))
    client = MessagesClient(_CALL, DroppedFields())
    writer = client.stream()
    written = b"".join(map(writer.write, events_of(answer))) if is_stream else client.answer(answer)

    ids = [text.decode() for text in re.findall(rb'"tool_use","id":"([^"]+)"', written)]
    assert len(ids) == 2 and _TAKEN.fullmatch(ids[0]) and ids[1] == "call_1"
    signature = re.search(rb'"signature":"(velox[^"]+)"', written)
    assert signature is not None
    history = [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "", "signature": signature[1].decode()},
                *({"type": "tool_use", "id": each, "name": "Bash", "input": {}} for each in ids),
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": each, "content": "r"} for each in ids]},
    ]
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": history}).encode()
    request = MessagesClient(_CALL, DroppedFields()).read(body)

    assert request.messages[1].blocks == blocks
    assert [block.id for block in request.messages[2].blocks if isinstance(block, ToolResult)] == [theirs, "call_1"]
