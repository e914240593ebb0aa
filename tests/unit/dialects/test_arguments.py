"""Arguments that come as a string, whatever a model or a client wrote there."""

from __future__ import annotations

import json

import pytest

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import ToolUse
from velox.dialects.converse.read_reply import ConverseModel
from velox.dialects.facts.model_facts import UNKNOWN_MODEL
from velox.dialects.generate.wire import as_object
from velox.dialects.generate.write_stream import arguments_of
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.tools.arguments import custom_input, read_arguments

# A string may hold what no decoder takes: only the body around it was checked.
_DEEP = '{"a":' + "[" * 2000 + "]" * 2000 + "}"


def test_arguments_that_are_nested_too_deeply_are_told_as_a_text() -> None:
    """To a model, to a client of Gemini, and to a custom tool."""
    text = json.dumps(_DEEP).encode()

    assert read_arguments(text) == b'{"_invalid_arguments":' + text + b"}"
    assert arguments_of(text) == b'{"_invalid_arguments":' + text + b"}"
    assert as_object(_DEEP) is None
    assert custom_input(_DEEP.encode()) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(b'{"input":"ls"}', b'"ls"'), (b'{"cmd":"ls"}', b'"ls"'), (b"{}", b'"{}"'), (b'{"a":1}', b'"{\\"a\\":1}"')],
)
def test_input_of_a_custom_tool_is_the_only_text_or_all_there_is(arguments: bytes, text: bytes) -> None:
    assert custom_input(arguments) == text


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        (None, {}),
        ("", {}),
        ('{"a":1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ([1], {"_invalid_arguments": "[1]"}),
        ("ls", {"_invalid_arguments": "ls"}),
    ],
)
def test_arguments_of_an_answer_are_an_object(given: object, arguments: dict[str, object]) -> None:
    """Also where the model's API has objects: what a model wrote there may be none, and no SDK reads that."""
    call = {"type": "tool_use", "id": "t", "name": "f", "input": given}
    claudes = {"type": "message", "id": "m", "model": "m", "content": [call], "stop_reason": "tool_use"}
    use = {"toolUseId": "t", "name": "f", "input": given}
    bedrocks = {"output": {"message": {"role": "assistant", "content": [{"toolUse": use}]}}, "stopReason": "tool_use"}

    for model, answer in ((MessagesModel, claudes), (ConverseModel, bedrocks)):
        (block,) = model(UNKNOWN_MODEL, DroppedFields()).answer(json.dumps(answer).encode()).blocks
        assert isinstance(block, ToolUse) and json.loads(block.arguments) == arguments
    assert json.loads(read_arguments(json.dumps(given).encode())) == arguments
