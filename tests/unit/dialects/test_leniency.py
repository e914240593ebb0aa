"""What clients send that is not quite the API, and what a target can't take: fitted, or refused by its name."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.vendors import openai as openais
from velox.dialects.as_sent.known_values import with_known_values
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import (
    ClientCall,
    ClientSide,
    Message,
    ModelSide,
    Request,
    Role,
    Signature,
    Text,
    Thinking,
)
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.converse.read_reply import ConverseModel
from velox.dialects.facts.model_facts import UNKNOWN_MODEL, ModelFacts
from velox.dialects.generate.read_reply import GenerateModel
from velox.dialects.generate.write_reply import GenerateClient
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.messages.write_reply import MessagesClient
from velox.dialects.responses.read_reply import ResponsesModel
from velox.dialects.responses.write_reply import ResponsesClient
from velox.dialects.streams.events import events_of
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.types import ApiKind

_CALL: Final = ClientCall("abc", 7, "m")
_ASKED: Final = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
_HI: Final = Message(Role.USER, [Text(b'"Hi"')])


def _facts(provider: str, model: str) -> ModelFacts:
    return facts_of(PROVIDERS[provider], model)


def _read(client: ClientSide, **fields: Any) -> Request:
    return client.read(json.dumps(fields).encode())


def _chat(**fields: Any) -> Request:
    return _read(ChatClient(_CALL, DroppedFields()), **{**_ASKED, **fields})


def _body(model: ModelSide, request: Request) -> Any:
    return json.loads(model.write(request, "m").body)


# -- counts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "model", "most"),
    [("openai", "gpt-4o", 4), ("groq", "llama-4", 4), ("cohere", "command-r", 5), ("deepseek", "deepseek-chat", 16)],
)
def test_stop_strings_are_counted_for_chat(provider: str, model: str, most: int) -> None:
    """C68, W9: as many as the provider takes go up, each once; one more is refused before it is asked."""
    stops = [f"s{n}" for n in range(most)]

    def sent(stop: list[str]) -> Any:
        return _body(ChatModel(_facts(provider, model), DroppedFields(), provider), _chat(stop=stop))["stop"]

    assert sent(stops) == sent([*stops, *stops]) == stops
    with pytest.raises(BadRequestError) as caught:
        sent([*stops, "more"])
    assert (caught.value.param, str(most) in caught.value.message) == ("stop", True)


def test_stop_strings_are_counted_for_gemini() -> None:
    """W9: five there; the client reads the name of its own field."""
    model = GenerateModel(_facts("gemini", "gemini-3-pro-preview"), DroppedFields())
    client = MessagesClient(_CALL, DroppedFields())
    request = _read(client, **_ASKED, max_tokens=9, stop_sequences=list("abcdef"))

    with pytest.raises(BadRequestError) as caught:
        model.write(request, "m")

    assert client.own_path(caught.value.param) == "stop_sequences"
    request.stop.pop()
    assert len(_body(model, request)["generationConfig"]["stopSequences"]) == 5


def test_stop_strings_of_claude_are_not_limited() -> None:
    """W9: no limit is known there, nor of a server that nobody knows."""
    stops = [f"s{n}" for n in range(40)]
    claude = ModelFacts(thinking="budget")

    assert _body(MessagesModel(claude, DroppedFields()), _chat(stop=stops))["stop_sequences"] == stops
    assert _body(ConverseModel(claude, DroppedFields()), _chat(stop=stops))["inferenceConfig"]["stopSequences"] == stops
    assert _body(ChatModel(UNKNOWN_MODEL, DroppedFields()), _chat(stop=stops))["stop"] == stops


@pytest.mark.parametrize("side", [ChatModel, ResponsesModel])
def test_tools_are_counted(side: Any) -> None:
    """K1: OpenAI takes 128; another target of the route may take more."""
    tools = [{"type": "function", "function": {"name": f"f{n}"}} for n in range(129)]
    facts = _facts("openai", "gpt-4o")

    assert len(_body(side(facts, DroppedFields()), _chat(tools=tools[1:]))["tools"]) == 128
    with pytest.raises(BadRequestError, match="128") as caught:
        side(facts, DroppedFields()).write(_chat(tools=tools), "m")
    assert caught.value.param == "tools"


# -- reasoning that goes up ----------------------------------------------------------------------------------


def _thought(provider: str, value: str, item_id: str | None) -> Request:
    block = Thinking(b'"t"', Signature(provider, value, item_id))
    return Request("m", [_HI, Message(Role.ASSISTANT, [block, Text(b'"a"')]), _HI])


@pytest.mark.parametrize(
    ("provider", "model"),
    [("openai", "gpt-4o"), ("azure", "my"), ("foundry", "gpt-4o"), ("bedrock-mantle", "openai.gpt-oss-120b")],
)
def test_reasoning_of_responses_does_not_reach_chat(provider: str, model: str) -> None:
    """RS1: the provider is the same, the API has no field for it: none is sent, and it is named."""
    dropped = DroppedFields()

    body = _body(ChatModel(_facts(provider, model), dropped, provider), _thought(provider, "gAAAAAB", "rs_1"))

    assert "reasoning_details" not in json.dumps(body)
    assert provider == "bedrock-mantle" or not list(openais.problems("/v1/chat/completions", body))
    assert dropped.names == ("reasoning_signature",)


def test_reasoning_of_chat_goes_back_to_chat_alone() -> None:
    """RS1: of a provider that has both APIs; its value says in which it was made."""
    facts, request = _facts("openrouter", "m"), _thought("openrouter", "anthropic-claude-v1:U0lH", None)
    assert _body(ChatModel(facts, DroppedFields(), "openrouter"), request)["messages"][1]["reasoning_details"]

    dropped = DroppedFields()
    body = _body(ResponsesModel(facts, dropped, "openrouter"), request)

    assert "U0lH" not in json.dumps(body) and dropped.names == ("reasoning_signature",)


def test_reasoning_goes_to_responses_without_its_id() -> None:
    """RS2: with an id and `store: false` OpenAI wants the item that followed; the value alone is taken."""
    body = _body(ResponsesModel(_facts("openai", "gpt-5.2"), DroppedFields()), _thought("openai", "gAAAAAB", "rs_1"))

    assert body["store"] is False and not list(openais.problems("/v1/responses", body))
    (item,) = [item for item in body["input"] if item["type"] == "reasoning"]
    assert item == {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "t"}],
        "encrypted_content": "gAAAAAB",
    }


@pytest.mark.parametrize(("model", "field"), [("gpt-4o", ""), ("o3", ""), ("deepseek-v3", "reasoning_content")])
def test_foundry_takes_reasoning_of_its_other_models_only(model: str, field: str) -> None:
    """RS13: deployments of OpenAI's models refuse the field there as at OpenAI."""
    assert _facts("foundry", model).reasoning_field == field


# -- what clients write ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["functionDeclarations", "function_declarations"])
def test_geminis_tools_may_be_an_object(name: str) -> None:
    """RS7: Google takes the only item of a list in its place."""
    declaration = {"name": "f", "parametersJsonSchema": {"type": "object"}}
    for tools in ({name: [declaration]}, {name: declaration}, [{name: declaration}]):
        request = _read(GenerateClient(_CALL, DroppedFields()), contents=[{"parts": [{"text": "Hi"}]}], tools=tools)
        assert [tool.name for tool in request.tools] == ["f"]


@pytest.mark.parametrize(
    ("given", "openai", "groq"),
    [("on_demand", "default", "on_demand"), ("performance", "priority", "performance"), ("flex", "flex", "flex")],
)
def test_tiers_of_groq_are_those_of_openai(given: str, openai: str, groq: str) -> None:
    """RS10: each is asked in its own words."""
    asked = _chat(service_tier=given)
    assert _body(ResponsesModel(_facts("openai", "gpt-5.2"), DroppedFields()), asked)["service_tier"] == openai
    assert _body(ChatModel(_facts("groq", "llama-4"), DroppedFields(), "groq"), asked)["service_tier"] == groq
    of_responses = _read(ResponsesClient(_CALL, DroppedFields()), model="m", input="Hi", service_tier=given)
    assert of_responses.tier == openai


def test_effort_as_the_model_likes_says_nothing() -> None:
    """RS10: Groq's word "default"."""
    assert _chat(reasoning_effort="default").reasoning is None
    assert _chat(reasoning_effort="high").reasoning is not None


def test_tools_without_a_type_are_functions() -> None:
    """RS10: as Mistral takes them."""
    (tool,) = _chat(tools=[{"function": {"name": "f"}}]).tools
    assert tool.name == "f"


def test_body_of_the_other_api_is_told_its_path() -> None:
    """C37: Cursor's users read which path the request belongs to."""
    with pytest.raises(BadRequestError, match="/v1/responses") as caught:
        _read(ChatClient(_CALL, DroppedFields()), model="m", input="Hi")
    assert caught.value.param == "messages"
    with pytest.raises(BadRequestError, match="/v1/chat/completions") as caught:
        _read(ResponsesClient(_CALL, DroppedFields()), **_ASKED)
    assert caught.value.param == "input"
    with pytest.raises(BadRequestError, match="messages"):
        _read(ChatClient(_CALL, DroppedFields()), model="m")


def test_modalities_say_what_can_be_carried_over() -> None:
    """C42: pictures are asked of Gemini's models alone; no sound is carried over."""
    assert _chat(modalities=["text", "image"]).wants_pictures and not _chat(modalities=["text"]).wants_pictures
    with pytest.raises(BadRequestError, match="Velox carries only text") as caught:
        _chat(modalities=["text", "audio"])
    assert caught.value.param == "modalities"
    with pytest.raises(BadRequestError, match="not asked for pictures or sound"):
        config = {"responseModalities": ["IMAGE"]}
        _read(GenerateClient(_CALL, DroppedFields()), contents=[{"parts": [{"text": "a"}]}], generationConfig=config)


# -- functions, before there were tools -----------------------------------------------------------------------

_FUNCTIONS: Final = {"functions": [{"name": "f", "description": "d", "parameters": {"type": "object"}}]}
_OLD_HISTORY: Final = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a":1}'}},
    {"role": "function", "name": "f", "content": "r"},
]


@pytest.mark.parametrize(
    "model",
    [
        lambda: MessagesModel(ModelFacts(thinking="budget"), DroppedFields()),
        lambda: ConverseModel(ModelFacts(thinking="budget"), DroppedFields()),
        lambda: GenerateModel(UNKNOWN_MODEL, DroppedFields()),
        lambda: ResponsesModel(UNKNOWN_MODEL, DroppedFields()),
        lambda: ChatModel(UNKNOWN_MODEL, DroppedFields()),
    ],
)
def test_functions_are_tools_for_every_model(model: Any) -> None:
    """RS10: their calls and results in the history, too, which have no ids."""
    sent = json.dumps(_body(model(), _chat(**_FUNCTIONS, messages=_OLD_HISTORY, function_call={"name": "f"})))

    assert '"f"' in sent and '"d"' in sent and "functions" not in sent
    assert '"a"' in sent.replace("\\", "") and '"r"' in sent


@pytest.mark.parametrize(("word", "kind"), [("auto", "auto"), ("none", "none"), ({"name": "f"}, "tool")])
def test_function_call_is_a_choice(word: Any, kind: str) -> None:
    """RS10: one call at a time, as there was room for one."""
    request = _chat(**_FUNCTIONS, function_call=word)

    assert request.tool_choice is not None and request.tool_choice.choice.value == kind
    assert request.parallel_tools is False


def _claude_call(client: ChatClient) -> Any:
    model = MessagesModel(ModelFacts(thinking="budget"), DroppedFields())
    model.write(client.read(json.dumps({**_ASKED, **_FUNCTIONS}).encode()), "m")
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
    said = {"id": "msg_1", "type": "message", "role": "assistant", "model": "c", "stop_reason": "tool_use"}
    return model.answer(json.dumps({**said, "content": [use], "usage": {}}).encode())


def test_client_of_functions_gets_a_function_call() -> None:
    """RS10: plain, as its SDK reads it."""
    client = ChatClient(_CALL, DroppedFields())

    choice = json.loads(client.answer(_claude_call(client)))["choices"][0]

    assert choice["message"]["function_call"] == {"name": "f", "arguments": '{"a": 1}'}
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "function_call"


def test_client_of_functions_gets_a_function_call_in_chunks() -> None:
    """RS10: streamed, too."""
    client = ChatClient(_CALL, DroppedFields())
    answer = _claude_call(client)
    writer = client.stream()

    said = b"".join(writer.write(event) for event in events_of(answer))

    chunks = [json.loads(line[6:])["choices"][0] for line in said.split(b"\n\n") if line.startswith(b"data: {")]
    calls = [call for chunk in chunks if (call := chunk["delta"].get("function_call")) is not None]
    assert calls[0] == {"name": "f", "arguments": ""}
    assert "".join(call["arguments"] for call in calls) == '{"a": 1}'
    assert chunks[-1]["finish_reason"] == "function_call" and b"tool_calls" not in said


def test_function_of_the_history_needs_its_name() -> None:
    """RS10: it says whose result a message is."""
    with pytest.raises(BadRequestError) as caught:
        _chat(messages=[*_OLD_HISTORY[:2], {"role": "function", "content": "r"}])
    assert caught.value.param == "messages[2].name"


# -- as sent ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client_api", [ApiKind.CHAT, ApiKind.RESPONSES])
@pytest.mark.parametrize(
    ("provider", "detail", "tier"),
    [("groq", "high", "on_demand"), ("xai", "high", "default"), ("openai", "original", "default")],
)
def test_values_that_a_provider_does_not_know_are_others_as_sent(
    client_api: ApiKind, provider: str, detail: str, tier: str
) -> None:
    """C10, RS10: the API is the client's own, the provider is another; texts stay."""
    text = '"detail":"original" "service_tier":"on_demand"'
    given = {"service_tier": "on_demand", "x": [{"text": text}, {"image_url": {"detail": "original"}}]}
    for body in (json.dumps(given).encode(), bytearray(json.dumps(given, separators=(",", ":")).encode())):
        found = json.loads(with_known_values(body, client_api, _facts(provider, "m"), PROVIDERS[provider].traits))
        assert found == {"service_tier": tier, "x": [{"text": text}, {"image_url": {"detail": detail}}]}


def test_other_bodies_are_not_touched_as_sent() -> None:
    """C10: of other APIs, and those without the words."""
    body = b'{"detail": "original"}'
    assert with_known_values(body, ApiKind.MESSAGES, UNKNOWN_MODEL, PROVIDERS["xai"].traits) is body
    body = b'{"detail": "low", "service_tier": "flex"}'
    assert with_known_values(body, ApiKind.CHAT, UNKNOWN_MODEL, PROVIDERS["xai"].traits) is body


@pytest.mark.parametrize(("provider", "is_known"), [("openai", False), ("vllm", False), ("mistral", True)])
def test_prefix_that_says_nothing_is_left_out_where_it_is_not_known(provider: str, is_known: bool) -> None:
    """Mistral's SDK sends it with each message of the assistant, and OpenAI answers 400; `true` means something."""
    says = {"role": "assistant", "content": "Hi", "prefix": False}
    begins = {"role": "assistant", "content": "Hi", "prefix": True}
    asks = {"role": "user", "content": 'the word "prefix": false'}
    schema = {"type": "object", "properties": {"prefix": False}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    body = json.dumps({"messages": [asks, says, asks, begins], "tools": tools}).encode()

    found = with_known_values(body, ApiKind.CHAT, _facts(provider, "m"), PROVIDERS[provider].traits)

    said = says if is_known else {"role": "assistant", "content": "Hi"}
    assert json.loads(found) == {"messages": [asks, said, asks, begins], "tools": tools}
    for other in (b'{"messages": 5, "x": "prefix"}', b'{"messages": ["prefix"]}', b'{"messages": [{"prefix": true}]}'):
        assert with_known_values(other, ApiKind.CHAT, _facts(provider, "m"), PROVIDERS[provider].traits) is other


def test_answer_that_is_to_go_on_with_a_text_is_named_as_lost() -> None:
    """No other API has the word."""
    dropped = DroppedFields()
    for prefix, names in ((False, ()), (True, ("prefix",))):
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho", "prefix": prefix}]
        ChatClient(ClientCall("a", 1), dropped).read(json.dumps({"model": "m", "messages": messages}).encode())
        assert dropped.names == names
