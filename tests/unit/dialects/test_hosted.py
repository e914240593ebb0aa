"""Tools that a provider runs itself: a search of the web is asked for elsewhere, another one that is forced refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import ClientCall, ClientSide, ModelSide
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.converse.read_reply import ConverseModel
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.generate.read_reply import GenerateModel
from velox.dialects.generate.write_reply import GenerateClient
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.messages.write_reply import MessagesClient
from velox.dialects.responses.read_reply import ResponsesModel
from velox.dialects.responses.write_reply import ResponsesClient
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS

_CALL: Final = ClientCall("abc", 7, "m")
_SCHEMA: Final = {"type": "object"}


def _facts(provider: str, model: str) -> ModelFacts:
    return facts_of(PROVIDERS[provider], model)


_MODELS: Final[Mapping[str, Callable[[DroppedFields], ModelSide]]] = {
    "claude": lambda dropped: MessagesModel(_facts("anthropic", "claude-opus-4-8"), dropped),
    "gpt": lambda dropped: ResponsesModel(_facts("openai", "gpt-5.2"), dropped),
    "gemini": lambda dropped: GenerateModel(_facts("gemini", "gemini-3-pro-preview"), dropped),
    "gpt by chat": lambda dropped: ChatModel(_facts("openai", "gpt-4o"), dropped),
    "vllm": lambda dropped: ChatModel(_facts("vllm", "qwen3"), dropped, "vllm"),
    "bedrock": lambda dropped: ConverseModel(_facts("bedrock", "eu.anthropic.claude-sonnet-4-5"), dropped),
    "mantle": lambda dropped: MessagesModel(_facts("bedrock-mantle", "claude-opus-4-8"), dropped),
}
_WITHOUT: Final = ("gpt by chat", "vllm", "bedrock", "mantle")
_CHAT_CHOICE: Final = {"type": "function", "function": {"name": "f"}}

# Of each client: a request, its search, another tool of the provider's, its function, and how a choice is said.
_Fields = dict[str, Any]
_CLIENTS: Final[
    Mapping[str, tuple[Callable[[DroppedFields], ClientSide], _Fields, Any, Any, Any, Mapping[str, _Fields]]]
] = {
    "messages": (
        lambda dropped: MessagesClient(_CALL, dropped),
        {"model": "m", "max_tokens": 9000, "messages": [{"role": "user", "content": "Hi"}]},
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "mcp_toolset", "mcp_server_name": "m"},
        {"name": "f", "input_schema": _SCHEMA},
        {
            "search": {"tool_choice": {"type": "tool", "name": "web_search"}},
            "any": {"tool_choice": {"type": "any"}},
        },
    ),
    "responses": (
        lambda dropped: ResponsesClient(_CALL, dropped),
        {"model": "m", "input": "Hi"},
        {"type": "web_search"},
        {"type": "mcp", "server_label": "m", "server_url": "https://m.example"},
        {"type": "function", "name": "f", "parameters": _SCHEMA},
        {"search": {"tool_choice": {"type": "web_search"}}, "any": {"tool_choice": "required"}},
    ),
    "generate": (
        lambda dropped: GenerateClient(_CALL, dropped),
        {"contents": [{"parts": [{"text": "Hi"}]}]},
        {"googleSearch": {}},
        {"codeExecution": {}},
        {"functionDeclarations": [{"name": "f", "parametersJsonSchema": _SCHEMA}]},
        {"any": {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}},
    ),
    "chat": (
        lambda dropped: ChatClient(_CALL, dropped),
        {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
        {"type": "web_search"},
        {"type": "image_generation"},
        {"type": "function", "function": {"name": "f", "parameters": _SCHEMA}},
        {"search": {"tool_choice": {"type": "web_search"}}, "any": {"tool_choice": "required"}},
    ),
}


def _crossed(client: str, model: str, tools: list[str], choice: str = "") -> tuple[Any, tuple[str, ...]]:
    """Return what goes up, and what is dropped. tools: "search", "other", "function"."""
    dropped = DroppedFields()
    make, fields, search, other, function, choices = _CLIENTS[client]
    named = {"search": search, "other": other, "function": function}
    given = {**fields, "tools": [named[tool] for tool in tools], **(choices[choice] if choice else {})}
    request = make(dropped).read(json.dumps(given).encode())
    return json.loads(_MODELS[model](dropped).write(request, "m").body), dropped.names


def _is_asked(model: str, body: Any) -> bool:
    return {
        "claude": {"type": "web_search_20250305", "name": "web_search"},
        "gpt": {"type": "web_search"},
        "gemini": {"googleSearch": {}},
    }[model] in body["tools"]


@pytest.mark.parametrize("choice", ["search", "any"])
@pytest.mark.parametrize("model", ["claude", "gpt", "gemini"])
@pytest.mark.parametrize("client", _CLIENTS)
def test_forced_search_is_asked_of_the_models_provider(client: str, model: str, choice: str) -> None:
    """C35, RC9: where both sides have one. Gemini can't be made to search, which is told."""
    if choice not in _CLIENTS[client][-1]:
        return
    body, dropped = _crossed(client, model, ["search"], choice)

    assert _is_asked(model, body)
    if model == "claude":
        assert body["tool_choice"] == {"type": "tool", "name": "web_search"}
    if model == "gpt":
        assert body["tool_choice"] == {"type": "web_search"}
    assert dropped == (("tool_choice",) if model == "gemini" else ())


@pytest.mark.parametrize("model", ["claude", "gpt", "gemini"])
@pytest.mark.parametrize("client", _CLIENTS)
def test_search_that_is_the_only_tool_is_asked_for(client: str, model: str) -> None:
    """C35: the request is about searching, forced or not."""
    body, dropped = _crossed(client, model, ["search"])

    assert _is_asked(model, body) and "tool_choice" not in body and dropped == ()


@pytest.mark.parametrize("model", _MODELS)
@pytest.mark.parametrize("client", _CLIENTS)
def test_search_beside_functions_is_left_out(client: str, model: str) -> None:
    """Agents declare it with their own tools; that is told, and nothing is searched that nobody asked for."""
    body, dropped = _crossed(client, model, ["search", "function"])

    assert "search" not in json.dumps(body).lower()
    assert dropped == (("server_tools",) if client == "messages" else ("tools.hosted",))


@pytest.mark.parametrize("model", ["claude", "gpt"])
@pytest.mark.parametrize("client", ["messages", "responses", "chat"])
def test_search_is_forced_beside_functions(client: str, model: str) -> None:
    """C35: the functions stay."""
    body, dropped = _crossed(client, model, ["function", "search"], "search")

    assert _is_asked(model, body) and len(body["tools"]) == 2 and dropped == ()
    assert "web_search" in json.dumps(body["tool_choice"])


@pytest.mark.parametrize("client", ["messages", "responses", "chat"])
def test_search_beside_functions_is_none_of_geminis_requests(client: str) -> None:
    """C35: it can't be said there."""
    with pytest.raises(BadRequestError) as caught:
        _crossed(client, "gemini", ["function", "search"], "search")
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize("choice", ["search", "any"])
@pytest.mark.parametrize("model", _WITHOUT)
@pytest.mark.parametrize("client", _CLIENTS)
def test_forced_search_is_refused_where_there_is_none(client: str, model: str, choice: str) -> None:
    """C35: an answer from memory would pass for what was found; another target may be asked."""
    if choice not in _CLIENTS[client][-1]:
        return
    with pytest.raises(BadRequestError) as caught:
        _crossed(client, model, ["search"], choice)
    assert caught.value.param == "tool_choice"
    _, dropped = _crossed(client, model, ["search"])
    assert dropped == (("server_tools",) if client == "messages" else ("tools.hosted",))


@pytest.mark.parametrize("model", _MODELS)
@pytest.mark.parametrize("client", _CLIENTS)
def test_required_call_of_other_hosted_tools_is_refused(client: str, model: str) -> None:
    """C36: nothing could be called; unforced they are left out, which is told."""
    with pytest.raises(BadRequestError) as caught:
        _crossed(client, model, ["other"], "any")
    assert caught.value.param in ("tool_choice", "toolConfig.functionCallingConfig.mode")

    _, dropped = _crossed(client, model, ["other"])
    assert dropped == (("server_tools",) if client == "messages" else ("tools.hosted",))
    body, _ = _crossed(client, model, ["other", "function"], "any")
    assert '"f"' in json.dumps(body), "a call of the function is required then"


@pytest.mark.parametrize(
    ("client", "fields"),
    [
        (
            "messages",
            {
                "tools": [{"type": "computer_20250124", "name": "computer"}],
                "tool_choice": {"type": "tool", "name": "computer"},
            },
        ),
        ("responses", {"tools": [{"type": "image_generation"}], "tool_choice": {"type": "image_generation"}}),
        (
            "responses",
            {
                "tools": [{"type": "function", "name": "f"}, {"type": "mcp", "server_label": "m"}],
                "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]},
            },
        ),
        ("responses", {"tools": [{"type": "web_search", "external_web_access": False}], "tool_choice": "required"}),
        ("messages", {"tools": [{"name": "f", "input_schema": _SCHEMA}], "tool_choice": {"type": "tool", "name": "g"}}),
    ],
)
def test_named_tool_that_is_not_there_is_refused(client: str, fields: _Fields) -> None:
    """C35: of a computer, of pictures, of MCP, of what OpenAI has kept of the web; and one that was never declared."""
    make, asked, *_ = _CLIENTS[client]
    with pytest.raises(BadRequestError) as caught:
        make(DroppedFields()).read(json.dumps({**asked, **fields}).encode())
    assert caught.value.param.startswith("tool_choice")


def test_allowed_search_is_forced() -> None:
    """C35: among tools of the provider alone; where none must be called, no function is."""
    make, asked, search, _, function, _ = _CLIENTS["responses"]
    for mode, forced in (("required", True), ("auto", False)):
        choice = {"type": "allowed_tools", "mode": mode, "tools": [search]}
        given = {**asked, "tools": [search, function], "tool_choice": choice}
        request = make(DroppedFields()).read(json.dumps(given).encode())
        assert (request.web_search is not None and request.web_search.is_forced) == forced


def test_what_a_search_may_find_is_carried_over() -> None:
    """Domains and the place of the user; what has no counterpart is named."""
    place = {"type": "approximate", "city": "Oslo", "country": "NO"}
    make, asked, search, *_ = _CLIENTS["messages"]
    tool = {**search, "allowed_domains": ["a.example"], "max_uses": 3, "user_location": place}
    body = json.dumps({**asked, "tools": [tool]}).encode()
    dropped = DroppedFields()

    sent = json.loads(_MODELS["gpt"](dropped).write(make(DroppedFields()).read(body), "m").body)

    assert sent["tools"] == [
        {"type": "web_search", "filters": {"allowed_domains": ["a.example"]}, "user_location": place}
    ]
    assert (sent["max_tool_calls"], dropped.names) == (3, ())
    dropped = DroppedFields()
    _MODELS["gemini"](dropped).write(make(DroppedFields()).read(body), "m")
    assert dropped.names == ("web_search.allowed_domains", "web_search.max_uses", "web_search.user_location")

    make, asked, *_ = _CLIENTS["responses"]
    tool = {"type": "web_search", "filters": {"allowed_domains": ["a.example"]}, "user_location": place}
    request = make(DroppedFields()).read(json.dumps({**asked, "tools": [tool]}).encode())
    sent = json.loads(_MODELS["claude"](DroppedFields()).write(request, "m").body)
    assert sent["tools"] == [
        {
            "type": "web_search_20250305",
            "name": "web_search",
            "allowed_domains": ["a.example"],
            "user_location": place,
        }
    ]


def test_answer_of_a_search_is_read() -> None:
    """RC9: what was found is in the text; how, is named as lost."""
    dropped = DroppedFields()
    model = _MODELS["gpt"](dropped)
    item = {"type": "message", "content": [{"type": "output_text", "text": "Found", "annotations": [{"type": "u"}]}]}
    reply = {"id": "r", "model": "m", "status": "completed", "output": [{"type": "web_search_call", "id": "w"}, item]}

    answer = model.answer(json.dumps(reply).encode())

    assert [getattr(block, "text", None) for block in answer.blocks] == [b'"Found"']
    assert set(answer.lost) == {"answer.tools.hosted", "answer.citations"}


def test_function_of_the_name_cant_stand_beside_anthropics() -> None:
    """Two tools of one name are a 400 there."""
    make, asked, search, _, function, choices = _CLIENTS["responses"]
    given = {**asked, "tools": [search, {**function, "name": "web_search"}], **choices["search"]}
    with pytest.raises(BadRequestError) as caught:
        _MODELS["claude"](DroppedFields()).write(make(DroppedFields()).read(json.dumps(given).encode()), "m")
    assert caught.value.param == "tools"
