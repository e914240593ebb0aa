"""Arguments that come as a string, whatever a model or a client wrote there."""

from __future__ import annotations

import json

import pytest

from velox.dialects.arguments import custom_input, read_arguments
from velox.dialects.generate.client_stream import arguments_of
from velox.dialects.generate.wire import as_object

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
