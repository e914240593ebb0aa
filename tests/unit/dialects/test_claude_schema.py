"""Strict tools at Claude: a request over the API's limits sends its tools without `strict`, in place of a 400."""

from __future__ import annotations

import json
from typing import Any

import pytest

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import Format, Message, Request, Role, Text, Tool
from velox.dialects.converse.read_reply import ConverseModel
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.tools.claude_schema import are_strict_taken

_FACTS = ModelFacts(thinking="adaptive")
_NULLABLE = {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}]}


def _schema(properties: dict[str, Any], required: list[str] | None = None) -> bytes:
    return json.dumps({"type": "object", "properties": properties, "required": required or [*properties]}).encode()


def _of(n: int, value: dict[str, Any]) -> dict[str, Any]:
    return {f"p{at}": value for at in range(n)}


_NESTED = {"type": "array", "items": {"type": "object", "properties": {"a": {"type": ["string", "null"]}, "b": {}}}}


@pytest.mark.parametrize(
    ("tools", "answer", "is_taken"),
    [
        ([_schema({})] * 20, None, True),
        ([_schema({})] * 21, None, False),
        ([_schema(_of(8, _NULLABLE))] * 2, None, True),
        ([_schema(_of(8, _NULLABLE))] * 2, _schema(_of(1, _NULLABLE)), False),
        ([_schema(_of(17, {"type": ["string", "null"]}))], None, False),
        ([_schema(_of(24, {}), ["other"])], None, True),
        ([_schema(_of(25, {}), ["other"])], None, False),
        ([_schema(_of(12, _NESTED))], None, True),
        ([_schema(_of(13, _NESTED))], None, False),
        ([b"{", b'{"properties":1,"anyOf":{},"items":[]}'], b"1", True),
    ],
)
def test_limits_are_those_of_all_schemas(tools: list[bytes], answer: bytes | None, is_taken: bool) -> None:
    """20 tools, 16 unions, 24 optional parameters, also inside of others; whatever the schemas are."""
    assert are_strict_taken(tools, answer) is is_taken


@pytest.mark.parametrize("side", [MessagesModel, ConverseModel])
def test_tools_over_a_limit_are_not_strict(side: type[MessagesModel | ConverseModel]) -> None:
    """Then their schemas are their own."""

    def written(n: int, dropped: DroppedFields, form: Format | None = None) -> list[dict[str, Any]]:
        tools = [Tool(f"f{at}", None, schema, strict=True) for at in range(n)]
        request = Request("m", [Message(Role.USER, [Text(b'"a"')])], max_tokens=9, tools=tools, format=form)
        body = json.loads(side(_FACTS, dropped).write(request, "m").body)
        return body["tools"] if "tools" in body else [each["toolSpec"] for each in body["toolConfig"]["tools"]]

    schema = _schema(_of(1, _NULLABLE))
    dropped = DroppedFields()
    assert all(tool["strict"] for tool in written(16, dropped)) and dropped.names == ()
    for n, form in ((17, None), (16, Format(schema))):
        dropped = DroppedFields()
        for tool in written(n, dropped, form):
            sent = tool.get("input_schema") or tool["inputSchema"]["json"]
            assert "strict" not in tool and sent == json.loads(schema)
        assert dropped.names == ("strict",)
