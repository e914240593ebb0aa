"""Where a fault stands that the writer for a model found, in the words of the client (own_paths.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import ClientCall
from velox.dialects.canonical.own_paths import GENERATE_NAMES, MESSAGES_NAMES, RESPONSES_NAMES, own_path
from velox.gateway.translation.translators import GenerationTranslator
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind

TABLE = dialect_table()
NOVA = ("bedrock", "amazon.nova-2-lite-v1:0", ApiKind.CONVERSE)
GPT = ("openai", "gpt-5.2", ApiKind.RESPONSES)
CLAUDE = ("anthropic", "claude-sonnet-4-5", ApiKind.MESSAGES)
MANTLE = ("bedrock-mantle", "anthropic.claude-sonnet-4-5", ApiKind.MESSAGES)
GEMINI = ("gemini", "gemini-2.5-pro", ApiKind.GENERATE)
URL = "https://example.test/a.png"
IMAGES: dict[ApiKind, Any] = {
    ApiKind.CHAT: {"type": "image_url", "image_url": {"url": URL}},
    ApiKind.MESSAGES: {"type": "image", "source": {"type": "url", "url": URL}},
    ApiKind.RESPONSES: {"type": "input_image", "image_url": URL},
    ApiKind.GENERATE: {"fileData": {"mimeType": "image/png", "fileUri": URL}},
}


def request(api: ApiKind, *, image: bool = False, stop: bool = False, system: bool = True) -> dict[str, Any]:
    """Return a request of that dialect: maybe a system message, a message, an answer, and one that may be wrong."""
    seen = [IMAGES[api]] if image else []
    if api is ApiKind.GENERATE:
        said = [{"role": role, "parts": [{"text": "a"}]} for role in ("user", "model")]
        found: dict[str, Any] = {"contents": [*said, {"role": "user", "parts": [{"text": "b"}, *seen]}]}
        found |= {"systemInstruction": {"parts": [{"text": "s"}]}} if system else {}
        return found | ({"generationConfig": {"stopSequences": ["x"]}} if stop else {})
    kind = "input_text" if api is ApiKind.RESPONSES else "text"
    said = [{"role": role, "content": "a"} for role in ("user", "assistant")]
    said.append({"role": "user", "content": [{"type": kind, "text": "b"}, *seen]})
    if api is ApiKind.RESPONSES:
        return {"model": "m", "input": said, **({"instructions": "s"} if system else {})}
    if api is ApiKind.CHAT:
        before = [{"role": "system", "content": "s"}] if system else []
        return {"model": "m", "messages": [*before, *said], **({"stop": "x"} if stop else {})}
    more = {"system": "s"} if system else {}
    return {"model": "m", "max_tokens": 9, "messages": said, **more, **({"stop_sequences": ["x"]} if stop else {})}


def refused(
    client_api: ApiKind, asked: tuple[str, str, ApiKind], body: dict[str, Any], *, is_strict: bool = False
) -> str:
    """Return the path of the field that is refused."""
    provider, model, api = asked
    dropped = DroppedFields(strict=is_strict)
    client = TABLE.clients[client_api](ClientCall("a", 1, "m"), dropped)
    written = TABLE.models[api](facts_of(PROVIDERS[provider], model), dropped, provider)
    with pytest.raises(BadRequestError) as raised:
        GenerationTranslator(client, written, dropped).request(json.dumps(body).encode(), model)
    return raised.value.param


@pytest.mark.parametrize("system", [False, True])
@pytest.mark.parametrize(
    ("api", "path"),
    [
        (ApiKind.CHAT, "messages[{}].content[1]"),
        (ApiKind.MESSAGES, "messages[2]"),
        (ApiKind.RESPONSES, "input"),
        (ApiKind.GENERATE, "contents"),
    ],
)
def test_message_is_the_one_of_the_client(api: ApiKind, path: str, system: bool) -> None:
    """With its own number, also behind a system message; or the list, where that is not sure."""
    wanted = path.format(2 + system) if api is ApiKind.CHAT else path
    assert refused(api, NOVA, request(api, image=True, system=system)) == wanted


@pytest.mark.parametrize(
    ("api", "path"),
    [
        (ApiKind.CHAT, "stop"),
        (ApiKind.MESSAGES, "stop_sequences"),
        (ApiKind.GENERATE, "generationConfig.stopSequences"),
    ],
)
def test_field_is_called_as_the_client_calls_it(api: ApiKind, path: str) -> None:
    """By a model that takes no stop strings."""
    assert refused(api, GPT, request(api, stop=True)) == path


DOCX = {"type": "file", "file": {"filename": "plan.docx", "file_data": "UEsDBAo="}}
OTHERS_FILE = {"type": "file", "file": {"file_id": "file-abc"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
TIFF = {"type": "image_url", "image_url": {"url": "data:image/tiff;base64,SUkqAA=="}}
DETAILED = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "high"}}


@pytest.mark.parametrize("is_system_first", [False, True])
@pytest.mark.parametrize(
    ("asked", "part", "is_strict"),
    [
        (CLAUDE, DOCX, False),
        (CLAUDE, OTHERS_FILE, False),
        (CLAUDE, SOUND, False),
        (CLAUDE, TIFF, False),
        (CLAUDE, DETAILED, True),
        (MANTLE, {"type": "image_url", "image_url": {"url": URL}}, False),
        (GEMINI, OTHERS_FILE, False),
        (GEMINI, DETAILED, True),
    ],
)
def test_part_is_named_where_a_writer_makes_one_turn_of_several_messages(
    asked: tuple[str, str, ApiKind], part: dict[str, Any], is_strict: bool, is_system_first: bool
) -> None:
    """C12: Claude and Gemini get the third and the fourth message as one."""
    before = [{"role": "system", "content": "s"}] if is_system_first else []
    said = [{"role": role, "content": "a"} for role in ("user", "assistant", "user")]
    parts = [{"type": "text", "text": "b"}, {"type": "text", "text": ""}, part]
    body = {"model": "m", "messages": [*before, *said, {"role": "user", "content": parts}]}

    wanted = f"messages[{len(before) + 3}].content[2]"
    assert refused(ApiKind.CHAT, asked, body, is_strict=is_strict) == wanted


@pytest.mark.parametrize("asked", [CLAUDE, GEMINI])
def test_part_of_a_tools_result_is_named(asked: tuple[str, str, ApiKind]) -> None:
    """C12: where it stands in the message of the tool."""
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    parts = [{"type": "text", "text": "b"}, OTHERS_FILE]
    said = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": parts},
    ]

    assert refused(ApiKind.CHAT, asked, {"model": "m", "messages": said}) == "messages[2].content[1]"


def test_what_has_the_same_name_keeps_it() -> None:
    """And what is no path at all."""
    assert own_path("tools[1].name", MESSAGES_NAMES, 1) == "tools"
    assert own_path("messages[0].content[0]", MESSAGES_NAMES, 1) == "system"
    assert own_path("messages[0]", RESPONSES_NAMES) == "input"
    assert own_path("temperature", GENERATE_NAMES) == "generationConfig.temperature"
    assert own_path("", MESSAGES_NAMES, 0) == ""
