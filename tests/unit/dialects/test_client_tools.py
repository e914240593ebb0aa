"""Tools that the client runs and other dialects have no type for; and names without their namespaces."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.dialects.test_compaction import asked, translator_of
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import Choice, ClientCall, ToolChoice, ToolUse
from velox.dialects.responses.write_reply import ResponsesClient

SHELL = {"commands": ["ls", "pwd"], "timeout_ms": 5, "max_output_length": None}
PATCH = {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"}


def called(name: str, arguments: dict[str, Any]) -> bytes:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    choice = {"index": 0, "message": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"}
    return json.dumps({"id": "x", "model": "m", "choices": [choice]}).encode()


@pytest.mark.parametrize(("kind", "field", "given"), [("shell", "action", SHELL), ("apply_patch", "operation", PATCH)])
def test_n4_tools_that_the_client_runs_are_functions(kind: str, field: str, given: dict[str, Any]) -> None:
    """N4: a call comes back as the item that the client knows, and goes up again as the same function."""
    translator = translator_of()
    sent = asked(translator, input="Hi", tools=[{"type": kind}], tool_choice={"type": kind}, text=None)
    assert [tool["function"]["name"] for tool in sent["tools"]] == [kind]
    assert sent["tool_choice"]["function"]["name"] == kind
    assert translator.dropped == ()

    item = json.loads(translator.answer(called(kind, given)))["output"][0]
    assert (item["type"], item["call_id"], item[field]) == (f"{kind}_call", "c1", given)

    output = {"type": f"{kind}_call_output", "call_id": "c1", "output": [{"stdout": "a.py"}]}
    back = asked(translator_of(), input=[{"role": "user", "content": "Hi"}, item, output], tools=[{"type": kind}])
    call = back["messages"][1]["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == (kind, given)
    assert "a.py" in back["messages"][2]["content"]


def test_n4_call_has_all_fields_that_clients_read() -> None:
    """N4: a model leaves some of them out."""
    translator = translator_of()
    asked(translator, input="Hi", tools=[{"type": "shell"}, {"type": "apply_patch"}])
    assert json.loads(translator.answer(called("shell", {"commands": ["ls"]})))["output"][0]["action"] == {
        "commands": ["ls"],
        "timeout_ms": None,
        "max_output_length": None,
    }
    made = json.loads(translator.answer(called("apply_patch", {"type": "delete_file", "path": "a"})))["output"][0]
    assert made["operation"] == {"type": "delete_file", "path": "a", "diff": ""}


def test_n4_shell_in_a_container_of_openais_is_hosted() -> None:
    """N4: no client could run it."""
    translator = translator_of()
    tools = [{"type": "shell", "environment": {"type": "container_auto"}}]
    assert "tools" not in asked(translator, input="Hi", tools=tools, tool_choice=None)
    assert translator.dropped == ("tools.hosted",)


def namespace(name: str, *tools: str) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "tools": [{"type": "function", "name": tool} for tool in tools]}


def read(tools: list[dict[str, Any]], *calls: dict[str, Any], **fields: Any) -> Any:
    client = ResponsesClient(ClientCall("a", 1), DroppedFields())
    items = [{"type": "function_call", "call_id": str(n), "arguments": "{}", **call} for n, call in enumerate(calls)]
    body = {"model": "m", "tools": tools, "input": [{"role": "user", "content": "Hi"}, *items], **fields}
    return client, client.read(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("tools", "call", "function"),
    [
        ([namespace("mcp__docs", "search")], {"name": "search"}, "mcp__docs__search"),
        ([namespace("mcp__docs", "search")], {"name": "mcp__docs__search"}, "mcp__docs__search"),
        ([namespace("a", "search"), namespace("b", "search")], {"name": "search"}, "search"),
        ([{"type": "function", "name": "search"}, namespace("a", "search")], {"name": "search"}, "search"),
        ([namespace("a", "search")], {"name": "other"}, "other"),
        ([namespace("a", "search")], {"name": "search", "namespace": "b"}, "b__search"),
    ],
)
def test_c64_call_without_its_namespace_is_of_the_one_tool_of_its_name(
    tools: list[dict[str, Any]], call: dict[str, Any], function: str
) -> None:
    """C64, N9: the history, and a forced choice. Of two such tools nobody can say which is meant."""
    _, request = read(tools, call, tool_choice={"type": "function", **call})
    block = request.messages[1].blocks[0]
    assert isinstance(block, ToolUse)
    assert block.name == function
    assert request.tool_choice == ToolChoice(Choice.TOOL, function)


def test_c64_answer_without_the_namespace_is_told_with_it() -> None:
    """C64: Codex does not know a tool by less than both names."""
    client, _ = read([namespace("mcp__docs", "search"), namespace("a", "twice"), namespace("b", "twice")])
    tools = client.reader.tools
    assert (tools.origin("search").name, tools.origin("search").namespace) == ("search", "mcp__docs")
    assert tools.origin("twice").namespace is None
    assert tools.origin("a__twice").namespace == "a"


def test_c2_reference_to_what_stands_in_the_request_is_left_out() -> None:
    """C2: the item itself is there, before or after it; nothing needs to be kept for that."""
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": "Hello"}
    for reference in ({"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}):
        sent = asked(
            translator_of(), input=[{"role": "user", "content": "Hi"}, item, reference], tools=[], tool_choice=None
        )
        assert [message["content"] for message in sent["messages"]] == ["Hi", "Hello"]
