"""Chat Completions, requests: what a client may send, what is refused or dropped, and what is written to a server."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import (
    Audio,
    Block,
    CacheMark,
    Choice,
    ClientCall,
    Document,
    Format,
    Image,
    Media,
    MediaKind,
    Message,
    Reasoning,
    Request,
    Role,
    Signature,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
    Written,
)
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.facts.model_facts import UNKNOWN_MODEL, ModelFacts
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS

_HELLO = {"role": "user", "content": "Hello"}
_MARKS = ModelFacts(renamed=(("prompt_cache_breakpoint", "cache_control"),))


def _read(*, dropped: DroppedFields | None = None, **fields: Any) -> Request:
    body = {"model": "m", "messages": [_HELLO], **fields}
    return ChatClient(ClientCall("id", 1), dropped or DroppedFields()).read(json.dumps(body).encode())


def _refused(**fields: Any) -> str:
    with pytest.raises(BadRequestError) as caught:
        _read(**fields)
    assert caught.value.message
    return caught.value.param


def _message(**fields: Any) -> Message:
    return _read(messages=[fields]).messages[0]


NO_PARAMETERS = {"type": "object", "properties": {}}
CLOSED = {**NO_PARAMETERS, "additionalProperties": False}


def _write(
    request: Request, facts: ModelFacts = UNKNOWN_MODEL, dropped: DroppedFields | None = None
) -> tuple[Any, Written]:
    written = ChatModel(facts, dropped or DroppedFields(), "openai").write(request, "up")
    return json.loads(written.body), written


def _written_message(message: Message, facts: ModelFacts = UNKNOWN_MODEL) -> Any:
    body, _ = _write(Request("m", [message]), facts)
    return body["messages"][0]


# -- what is wrong ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", ""),
        (b"{", ""),
        (b"[]", ""),
        (b'{"messages":1}', "messages"),
        (b'{"messages":[]', ""),
        (b'{"messages":[{"role":"user","content":"\xff"}]}', ""),
        (b'{"messages":[{"role":5}]}', "messages[0].role"),
        (b'{"messages":[{"role":"assistant","tool_calls":[{"id":1}]}]}', "messages[0].tool_calls[0].id"),
        (b'{"messages":[{"role":"king","content":""}]}', "messages[0].role"),
        (b'{"messages":[{"role":"user"}]}', "messages[0].content"),
        (b'{"messages":[{"role":"user","content":5}]}', "messages[0].content"),
        (b'{"messages":[{"role":"user","content":[{"type":"text"}]}]}', "messages[0].content[0].text"),
        (b'{"messages":[{"role":"user","content":[{"type":"poem"}]}]}', "messages[0].content[0].type"),
        (b'{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}', "messages[0].content[0].image_url"),
        (b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":1}}]}]}',
         "messages[0].content[0].image_url.url"),
        (b'{"messages":[{"role":"tool","content":"x"}]}', "messages[0].tool_call_id"),
        (b'{"messages":[],"max_tokens":"5"}', "max_tokens"),
        (b'{"messages":[],"stop":[5]}', "stop[0]"),
        (b'{"messages":[],"stop":5}', "stop"),
        (b'{"messages":[],"tool_choice":5}', "tool_choice"),
        (b'{"messages":[],"tool_choice":"maybe"}', "tool_choice"),
        (b'{"messages":[],"tools":[{"type":"function"}]}', "tools[0].function"),
        (b'{"messages":[],"response_format":{"type":"xml"}}', "response_format.type"),
        (b'{"messages":[],"response_format":{"type":"json_schema","json_schema":{"name":"a"}}}',
         "response_format.json_schema.schema"),
        (b'{"messages":[],"reasoning_effort":"very"}', "reasoning_effort"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b',"messages":[]}', ""),
    ],
)  # fmt: skip
def test_pitfall_44_wrong_requests_say_where(body: bytes, param: str) -> None:
    """JSON, types and values: a clear error with the field's path."""
    with pytest.raises(BadRequestError) as caught:
        ChatClient(ClientCall("id", 1), DroppedFields()).read(body)
    assert caught.value.param == param
    assert len(caught.value.message) > 10


def test_pitfall_44_odd_json_is_kept() -> None:
    """Escapes, half surrogate pairs and integers of 20 digits are not touched; of duplicate keys the last counts."""
    body = (
        rb'{"model":"a","model":"b","messages":[{"role":"user","content":"\u00e9\/\ud83d\ude00 \ud83d x \\ud83d"},'
        rb'{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":'
        rb'"{\"n\":12345678901234567890,\"s\":\"\\ud800\"}"}}]}],'
        rb'"tools":[{"type":"function","function":{"name":"f","parameters":{"maximum":12345678901234567890}}}]}'
    )

    request = ChatClient(ClientCall("id", 1), DroppedFields()).read(bytearray(body))

    assert request.model == "b"
    assert request.messages[0].blocks == [Text(rb'"\u00e9\/\ud83d\ude00 \ud83d x \\ud83d"')]
    assert request.messages[1].blocks == [ToolUse("c", "f", rb'{"n":12345678901234567890,"s":"\ud800"}')]
    assert request.tools[0].parameters == b'{"maximum":12345678901234567890}'
    written = ChatModel(UNKNOWN_MODEL, DroppedFields()).write(request, "b").body
    assert rb'"\u00e9\/\ud83d\ude00 \ud83d x \\ud83d"' in written
    assert json.loads(json.loads(written)["messages"][1]["tool_calls"][0]["function"]["arguments"])["s"] == "\ud800"


@pytest.mark.parametrize(
    "field",
    [
        {"n": 2}, {"n": 0}, {"logprobs": True}, {"top_logprobs": 3}, {"web_search_options": {}},
        {"audio": {"voice": "alloy", "format": "wav"}}, {"moderation": {"model": "x"}},
    ],
)  # fmt: skip
def test_what_changes_an_answers_meaning_is_refused(field: dict[str, Any]) -> None:
    """And the error names the field."""
    assert _refused(**field) == next(iter(field))


def test_audio_output_is_refused() -> None:
    """Asking for text is not."""
    assert _refused(modalities=["text", "audio"]) == "modalities"
    assert _read(modalities=["text"], n=1, logprobs=False, store=False, logit_bias=None).model == "m"


def test_what_tunes_an_answer_is_dropped() -> None:
    """And counted, each by its name; on a strict route it is refused."""
    dropped = DroppedFields()

    _read(dropped=dropped, logit_bias={"1": 2}, prediction={}, metadata={"a": "b"}, store=True, min_p=0.5)

    assert set(dropped.names) == {"logit_bias", "prediction", "metadata", "store", "unknown"}
    with pytest.raises(BadRequestError) as caught:
        _read(dropped=DroppedFields(strict=True), min_p=0.5)
    assert caught.value.param == "min_p"


# -- messages ---------------------------------------------------------------------------------------


def test_pitfall_21_later_system_message_stays_in_place() -> None:
    """Hoisting it would change the prompt from its start, and no cache would fit."""
    given = [_HELLO, {"role": "developer", "content": "Be brief."}, _HELLO]

    request = _read(messages=given)

    assert [message.role for message in request.messages] == [Role.USER, Role.SYSTEM, Role.USER]
    body, _ = _write(request)
    assert [message["role"] for message in body["messages"]] == ["user", "system", "user"]


def test_parts_are_read() -> None:
    """Pictures and files by URL and as data, sounds."""
    data = base64.b64encode(b"x").decode()
    message = _message(
        role="user",
        name="ann",
        content=[
            {"type": "image_url", "image_url": {"url": f"data:image/PNG;base64,{data}", "detail": "low"}},
            {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
            {"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}},
            {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{data}", "filename": "a.pdf"}},
            {"type": "file", "file": {"file_id": "file-1"}},
            {"type": "file", "file": {"file_data": data}},
        ],
    )

    assert message.name == "ann"
    assert message.blocks == [
        Image(Media(MediaKind.DATA, data, "image/png"), "low"),
        Image(Media(MediaKind.URL, "https://a.example/b.png")),
        Audio(Media(MediaKind.DATA, data, "audio/mp3"), "mp3"),
        Document(Media(MediaKind.DATA, data, "application/pdf"), "a.pdf"),
        Document(Media(MediaKind.ID, "file-1")),
        Document(Media(MediaKind.DATA, data, "text/plain")),
    ]


def test_parts_of_mistral_are_read() -> None:
    """Documents by URL, and pictures whose URL is no object."""
    message = _message(
        role="user",
        content=[
            {"type": "document_url", "document_url": "https://a.example/b.pdf", "document_name": "b"},
            {"type": "document_url", "document_url": "data:;base64,eA=="},
            {"type": "image_url", "image_url": "https://a.example/b.png"},
        ],
    )
    assert message.blocks == [
        Document(Media(MediaKind.URL, "https://a.example/b.pdf"), "b"),
        Document(Media(MediaKind.DATA, "eA==", "text/plain")),
        Image(Media(MediaKind.URL, "https://a.example/b.png")),
    ]
    with pytest.raises(BadRequestError) as caught:
        _message(role="user", content=[{"type": "document_url"}])
    assert caught.value.param == "messages[0].content[0].document_url"


@pytest.mark.parametrize(
    ("url", "kind", "content"),
    [
        ("data:image/svg+xml,%3Csvg%2F%3E", "image/svg+xml", b"<svg/>"),
        ("data:image/svg+xml;utf8,<svg>\u00e9</svg>", "image/svg+xml", "<svg>\u00e9</svg>".encode()),
        ("DATA:text/plain;charset=utf-8,a%20b,c", "text/plain", b"a b,c"),
        ("data:,A%00%FF%", "text/plain", b"A\x00\xff%"),
        ("data:image/png;name=x.png;BASE64,eA%3D%3D", "image/png", b"x"),
    ],
)
def test_data_urls_of_any_kind_are_read_as_base64(url: str, kind: str, content: bytes) -> None:
    """RFC 2397: without `;base64` they are text with escapes, and without a type plain text."""
    (block,) = _message(role="user", content=[{"type": "image_url", "image_url": {"url": url}}]).blocks
    assert isinstance(block, Image if kind.startswith("image/") else Document)
    assert block.source.type == kind and base64.b64decode(block.source.value, validate=True) == content


def test_pitfall_19_cache_marks_of_all_kinds_are_read() -> None:
    """On parts, messages beside a string, results, calls, tools and the whole; OpenAI's and Anthropic's."""
    mark = {"type": "ephemeral", "ttl": "1h"}
    request = _read(
        cache_control={"type": "ephemeral"},
        tools=[{"type": "function", "function": {"name": "f"}, "cache_control": mark}],
        messages=[
            {"role": "system", "content": "a", "cache_control": mark},
            {
                "role": "user",
                "content": [{"type": "text", "text": "b", "prompt_cache_breakpoint": {"mode": "explicit"}}],
            },
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}, "cache_control": mark}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "d", "cache_control": mark},
        ],
    )

    hour = CacheMark("1h")
    assert request.cache == CacheMark()
    assert request.tools[0].cache == hour
    assert [message.blocks[0] for message in request.messages] == [
        Text(b'"a"', hour),
        Text(b'"b"', CacheMark()),
        ToolUse("c", "f", b"{}", cache=hour),
        ToolResult("c", [Text(b'"d"')], cache=hour),
    ]
    body, _ = _write(request, _MARKS)
    assert json.dumps(body).count('"cache_control"') == 6
    dropped = DroppedFields()
    body, _ = _write(request, dropped=dropped)
    assert dropped.names == ("cache",)
    assert "cache" not in json.dumps(body)


def test_openais_own_marks_keep_their_lifetimes() -> None:
    """Of 12 hours and 30 minutes, the canonical model has an hour and the default."""
    facts = ModelFacts(renamed=(("prompt_cache_breakpoint", "prompt_cache_breakpoint"),))
    for ttl in ({}, {"ttl": "12h"}):
        part = {"type": "text", "text": "b", "prompt_cache_breakpoint": {"mode": "explicit", **ttl}}
        body, _ = _write(_read(messages=[{"role": "user", "content": [part]}]), facts)
        assert body["messages"][0]["content"] == [part]


@pytest.mark.parametrize(
    ("given", "object_"),
    [
        ('""', b"{}"), ("null", b"{}"), ('"null"', b"{}"), ('" "', b"{}"), ('"{}"', b"{}"),
        (r'"{\"a\":1, \"b\":\"\\u00e9\"}"', rb'{"a":1, "b":"\u00e9"}'),
        ('{"a":1}', b'{"a":1}'),
        (r'"[1]"', b'{"_invalid_arguments":"[1]"}'),
        (r'"{\"a\":"', rb'{"_invalid_arguments":"{\"a\":"}'),
        (r'"{}{}"', b'{"_invalid_arguments":"{}{}"}'),
    ],
)  # fmt: skip
def test_pitfall_3_arguments_in_history_are_an_object(given: str, object_: bytes) -> None:
    """A valid object is spliced byte by byte; nothing is an empty one; anything else is wrapped."""
    call = b'{"id":"c","type":"function","function":{"name":"f","arguments":%b}}' % given.encode()
    body = b'{"model":"m","messages":[{"role":"assistant","tool_calls":[%b]}]}' % call

    request = ChatClient(ClientCall("id", 1), DroppedFields()).read(body)

    assert request.messages[0].blocks == [ToolUse("c", "f", object_)]


def test_reasoning_of_other_gateways_is_read() -> None:
    """DeepSeek's text, OpenRouter's entries, LiteLLM's blocks, Google's signatures: each with whose it is."""
    call = {"id": "c1__thought__AAA=", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    google = {**call, "id": "c2", "extra_content": {"google": {"thought_signature": "BBB"}}}
    assert _message(role="assistant", content="x", reasoning_content="why").blocks[0] == Thinking(b'"why"')
    assert _message(role="assistant", content="x", reasoning="why").blocks[0] == Thinking(b'"why"')
    assert _message(role="assistant", tool_calls=[call, google]).blocks == [
        ToolUse("c1", "f", b"{}", Signature("google", "AAA=")),
        ToolUse("c2", "f", b"{}", Signature("google", "BBB")),
    ]
    assert _message(role="tool", tool_call_id="c1__thought__AAA=", content="r").blocks == [
        ToolResult("c1", [Text(b'"r"')])
    ]
    details = [
        {"type": "reasoning.text", "text": "a", "signature": "S", "format": "anthropic-claude-v1", "index": 0},
        {"type": "reasoning.summary", "summary": "b", "format": "openai-responses-v1", "index": 1},
        {"type": "reasoning.encrypted", "data": "E", "id": "rs_1", "format": "openai-responses-v1", "index": 1},
        {"type": "reasoning.encrypted", "data": "F", "id": "c2", "format": "google-gemini-v1", "index": 2},
    ]
    blocks = _message(role="assistant", content="x", reasoning_details=details, tool_calls=[google]).blocks
    assert blocks[:2] == [
        Thinking(b'"a"', Signature("anthropic", "S")),
        Thinking(b'"b"', Signature("openai", "E", "rs_1")),
    ]
    litellm = [
        {"type": "thinking", "thinking": "a", "signature": "S"},
        {"type": "redacted_thinking", "data": "D"},
    ]
    assert _message(role="assistant", content="x", thinking_blocks=litellm).blocks[:2] == [
        Thinking(b'"a"', Signature("anthropic", "S")),
        Thinking(b'""', Signature("anthropic", "D"), is_redacted=True),
    ]


def test_pitfall_14_signatures_of_others_are_not_sent() -> None:
    """They would be a 400. Reasoning of nobody's goes in the server's own field; where it has none, it is left out."""
    blocks: list[Block] = [Thinking(b'"a"', Signature("anthropic", "S")), Thinking(b'"b"'), Text(b'"c"')]
    dropped = DroppedFields()

    body, _ = _write(Request("m", [Message(Role.ASSISTANT, blocks)]), dropped=dropped)

    assert body["messages"] == [{"role": "assistant", "content": "c", "reasoning_content": "b"}]
    assert dropped.names == ("reasoning_signature",)
    assert _written_message(Message(Role.ASSISTANT, blocks), ModelFacts(reasoning_field="")) == {
        "role": "assistant",
        "content": "c",
    }
    assert _written_message(Message(Role.ASSISTANT, blocks), ModelFacts(reasoning_field="thinking"))["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "b"}]},
        {"type": "text", "text": "c"},
    ]


def test_own_signatures_come_back_as_they_were() -> None:
    """OpenRouter's entries, and Google's on calls."""
    reply = {
        "choices": [
            {
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "reasoning_details": [
                        {"type": "reasoning.text", "text": "a", "signature": "S", "format": "f:1", "index": 0},
                        {"type": "reasoning.encrypted", "data": "D", "id": "rs_1", "format": "g", "index": 1},
                    ],
                    "tool_calls": [
                        {
                            "id": "c",
                            "type": "function",
                            "function": {"name": "f", "arguments": "{}"},
                            "extra_content": {"google": {"thought_signature": "T"}},
                        }
                    ],
                },
            }
        ]
    }
    message: dict[str, Any] = reply["choices"][0]["message"]  # type: ignore[assignment]
    message["reasoning_details"][0]["format"] = "anthropic-claude-v1"
    model = ChatModel(UNKNOWN_MODEL, DroppedFields(), "openrouter")

    answer = model.answer(json.dumps(reply).encode())

    written = json.loads(model.write(Request("m", [Message(Role.ASSISTANT, answer.blocks)]), "m").body)
    assert written["messages"] == [{**message, "content": None}]


def test_results_are_messages_of_their_own_and_files_move() -> None:
    """All results come first; pictures and other parts of the turn follow in one message of the user."""
    picture = Image(Media(MediaKind.DATA, "eA==", "image/png"))
    blocks: list[Block] = [
        ToolResult("c1", [Text(b'"one"'), Text(b'"two"')]),
        Text(b'"and"'),
        ToolResult("c2", [picture], is_error=True),
    ]
    dropped = DroppedFields()

    body, _ = _write(Request("m", [Message(Role.USER, blocks)]), dropped=dropped)

    assert body["messages"] == [
        {"role": "tool", "tool_call_id": "c1", "content": "one\ntwo"},
        {"role": "tool", "tool_call_id": "c2", "content": "The files of this result are in the next message."},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}},
                {"type": "text", "text": "and"},
            ],
        },
    ]
    assert dropped.names == ("is_error",)


@pytest.mark.parametrize(
    "block",
    [
        Image(Media(MediaKind.ID, "f")),
        Image(Media(MediaKind.URL, "gs://a/b.png")),
        Image(Media(MediaKind.URL, "s3://a/b.png")),
        Document(Media(MediaKind.URL, "https://a.example/b.pdf")),
        Document(Media(MediaKind.ID, "f")),
        Audio(Media(MediaKind.URL, "https://a.example/b.mp3")),
    ],
)
def test_pitfall_27_what_can_not_be_fetched_is_refused(block: Image | Document | Audio) -> None:
    """With its place."""
    with pytest.raises(BadRequestError) as caught:
        _write(Request("m", [Message(Role.USER, [Text(b'"x"'), block])]))
    assert caught.value.param == "messages[0].content[1]"


def test_text_parts_are_joined_where_a_server_takes_strings_only() -> None:
    """DeepSeek does."""
    message = Message(Role.USER, [Text(b'"a"'), Text(b'"b"')])
    assert _written_message(message)["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert _written_message(message, ModelFacts(text_parts=False))["content"] == "a\n\nb"
    assert _written_message(Message(Role.USER, []))["content"] == ""


def test_prefill_is_refused_where_a_model_has_none() -> None:
    """Elsewhere it is sent."""
    request = Request("m", [Message(Role.USER, [Text(b'"a"')]), Message(Role.ASSISTANT, [Text(b'"b"')])])
    with pytest.raises(BadRequestError) as caught:
        _write(request, ModelFacts(prefill=False))
    assert caught.value.param == "messages[1]"
    assert _write(request)[0]["messages"][1] == {"role": "assistant", "content": "b"}


def test_pitfall_23_calls_of_two_messages_are_one() -> None:
    """Each call is followed by its results, and by nothing else before them; plain messages stay as they are."""
    calls: list[list[Block]] = [[ToolUse("a", "f", b"{}")], [ToolUse("b", "f", b"{}")]]
    results: list[list[Block]] = [[ToolResult("a", []), Text(b'"x"')], [ToolResult("b", [])]]
    messages = [*(Message(Role.ASSISTANT, each) for each in calls), *(Message(Role.USER, each) for each in results)]
    messages += [Message(Role.USER, [Text(b'"y"')]), Message(Role.USER, [Text(b'"z"')])]

    body, _ = _write(Request("m", messages))

    assert [message["role"] for message in body["messages"]] == ["assistant", "tool", "tool", "user", "user", "user"]
    assert [call["id"] for call in body["messages"][0]["tool_calls"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("kinds", "roles"),
    [
        ("uasr", "user assistant tool system"),
        ("uArsr", "user assistant tool tool system"),
        ("uAsrsr", "user assistant tool tool system system"),
        ("uasuru", "user assistant tool user system user"),
        ("uasars", "user assistant tool system system"),
        ("uarsu", "user assistant tool system user"),
        ("suasrsasr", "system user assistant tool system system assistant tool system"),
        ("uasra", "user assistant tool system assistant"),
        ("uas", "user assistant system"),
        ("uAsra", "user assistant tool system assistant"),
        ("uas" + "u" * 3, "user assistant user user user system"),
        ("uauur", "user assistant tool user"),
        ("uAurur", "user assistant tool tool user"),
        ("uArurus", "user assistant tool tool user user system"),
        ("uAruusr", "user assistant tool tool user system"),
    ],
)
def test_system_message_among_calls_and_results_comes_after_them(kinds: str, roles: str) -> None:
    """Servers answer 400 to anything else between the two. Agents put notes there, which no other API minds."""
    blocks: dict[str, list[Block]] = {
        "s": [Text(b'"s"')],
        "u": [Text(b'"u"')],
        "a": [ToolUse("1", "f", b"{}")],
        "A": [ToolUse("1", "f", b"{}"), ToolUse("2", "f", b"{}")],
        "r": [ToolResult("1", [Text(b'"r"')])],
    }
    said = {"s": Role.SYSTEM, "a": Role.ASSISTANT, "A": Role.ASSISTANT}

    body, _ = _write(Request("m", [Message(said.get(each, Role.USER), blocks[each]) for each in kinds]))

    assert " ".join(message["role"] for message in body["messages"]) == roles


# -- names and ids ----------------------------------------------------------------------------------


def test_pitfall_29_tool_names_are_made_to_fit_and_are_restored() -> None:
    """Dots, spaces, more than 64 characters, none at all; the same in tools, choice and history."""
    names = ["a.b", "x" * 65, "", "ok_name-1"]
    request = Request(
        "m",
        [Message(Role.ASSISTANT, [ToolUse("c", name, b"{}") for name in names])],
        tools=[Tool(name) for name in names],
        tool_choice=ToolChoice(Choice.TOOL, "a.b"),
    )

    body, written = _write(request)

    theirs = [tool["function"]["name"] for tool in body["tools"]]
    assert theirs == [call["function"]["name"] for call in body["messages"][0]["tool_calls"]]
    assert body["tool_choice"]["function"]["name"] == theirs[0]
    assert [written.names.get(name, name) for name in theirs] == names
    assert theirs[3] == "ok_name-1"
    assert all(0 < len(name) <= 64 for name in theirs)


def test_pitfall_30_mistral_gets_ids_of_nine_letters_and_digits() -> None:
    """The same for a call and its result; other servers get them as they are, up to OpenAI's 40 characters."""
    blocks = [ToolUse("toolu_0123", "f", b"{}"), ToolUse("x" * 41, "f", b"{}"), ToolUse("abcdef123", "f", b"{}")]
    results = [ToolResult(block.id, [Text(b'"r"')]) for block in blocks]
    request = Request("m", [Message(Role.ASSISTANT, [*blocks]), Message(Role.USER, [*results])])

    body, written = _write(request, ModelFacts(call_ids="mistral"))
    other, _ = _write(request)

    theirs = [call["id"] for call in body["messages"][0]["tool_calls"]]
    assert theirs == [message["tool_call_id"] for message in body["messages"][1:]]
    assert all(len(each) == 9 and each.isalnum() for each in theirs)
    assert [written.ids.get(each, each) for each in theirs] == [block.id for block in blocks]
    assert [call["id"][:6] for call in other["messages"][0]["tool_calls"]] == [
        "toolu_",
        "call_" + other["messages"][0]["tool_calls"][1]["id"][5],
        "abcdef",
    ]
    assert all(len(call["id"]) <= 40 for call in other["messages"][0]["tool_calls"])


@pytest.mark.parametrize(
    ("kinds", "roles"),
    [
        ("uAru", "user assistant tool tool assistant user"),
        ("uArs", "user assistant tool tool assistant user"),
        ("uAr", "user assistant tool tool"),
        ("uAraru", "user assistant tool tool assistant tool tool assistant user"),
    ],
)
def test_mistral_gets_a_message_of_the_assistants_between_results_and_the_users(kinds: str, roles: str) -> None:
    """Claude Code puts notes behind results, and users stop a call to say something else: else it answers 400."""
    results: list[Block] = [ToolResult("1", [Text(b'"r"')]), ToolResult("2", [Text(b'"r"')])]
    calls: list[Block] = [ToolUse("1", "f", b"{}"), ToolUse("2", "f", b"{}")]
    messages = {
        "u": Message(Role.USER, [Text(b'"u"')]),
        "s": Message(Role.SYSTEM, [Text(b'"s"')]),
        "A": Message(Role.ASSISTANT, calls),
        "a": Message(Role.ASSISTANT, calls),
        "r": Message(Role.USER, results),
    }
    facts = facts_of(PROVIDERS["mistral"], "mistral-medium-latest")

    body, _ = _write(Request("m", [messages[each] for each in kinds]), facts)
    assert " ".join(message["role"] for message in body["messages"]) == roles
    one_turn = [messages["u"], messages["A"], Message(Role.USER, [*results, Text(b'"u"')])]
    body, _ = _write(Request("m", one_turn), facts)
    assert [message["role"] for message in body["messages"][-2:]] == ["assistant", "user"]
    other, _ = _write(Request("m", one_turn))
    assert [message["role"] for message in other["messages"][-2:]] == ["tool", "user"]


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ("ssu", "system:s|s user:u"),
        ("sussu", "system:s user:u user:s user:s user:u"),
        ("u", "user:u"),
        ("us", "user:u user:s"),
        ("suars", "system:s user:u assistant tool user:s"),
        ("suasr", "system:s user:u assistant tool user:s"),
    ],
)
def test_qwen_gets_one_system_message_at_the_beginning(kinds: str, said: str) -> None:
    """Its template refuses others with 400. Codex begins with two: its instructions, and what the user may do."""
    messages = {
        "u": Message(Role.USER, [Text(b'"u"')], None, b'"u"'),
        "s": Message(Role.SYSTEM, [Text(b'"s"')], None, b'"s"'),
        "a": Message(Role.ASSISTANT, [ToolUse("1", "f", b"{}")]),
        "r": Message(Role.USER, [ToolResult("1", [Text(b'"r"')])]),
    }
    facts = facts_of(PROVIDERS["vllm"], "Qwen/Qwen3.6-27B")

    def shown(request: Request, facts: ModelFacts) -> str:
        found = []
        for each in _write(request, facts)[0]["messages"]:
            content = each["content"] if each["role"] in ("user", "system") else None
            text = "|".join(part["text"] for part in content) if isinstance(content, list) else content
            found.append(each["role"] if text is None else f"{each['role']}:{text}")
        return " ".join(found)

    request = Request("m", [messages[each] for each in kinds])
    assert shown(request, facts) == said
    request.format = Format(b'{"type":"object"}')
    noted = shown(request, msgspec.structs.replace(facts, json_schema=False))
    assert noted.count("system:") == 1 and "JSON schema" in noted.partition(" user:")[0]


def test_calls_without_ids_get_some_and_their_results_the_same() -> None:
    """Gemini's clients have none: results belong to the calls of their name, in order."""
    calls = [ToolUse("", "f", b"{}"), ToolUse("", "g", b"{}"), ToolUse("", "f", b"{}")]
    results = [ToolResult("", [], name) for name in ("g", "f", "f")]

    body, _ = _write(Request("m", [Message(Role.ASSISTANT, [*calls]), Message(Role.USER, [*results])]))

    ids = [call["id"] for call in body["messages"][0]["tool_calls"]]
    assert len(set(ids)) == 3
    assert [message["tool_call_id"] for message in body["messages"][1:]] == [ids[1], ids[0], ids[2]]


# -- other fields -----------------------------------------------------------------------------------


def test_facts_of_a_model_decide_names_and_refusals() -> None:
    """Names that differ, and fields that get a 400."""
    request = _read(
        max_completion_tokens=9,
        seed=5,
        temperature=1.5,
        top_k=3,
        user="u",
        stop="x",
        messages=[{**_HELLO, "name": "ann"}],
    )
    dropped = DroppedFields()
    facts = ModelFacts(
        max_tokens_name="max_tokens", renamed=(("seed", "random_seed"),), refused=("top_k", "name"), sampling=True
    )

    body, _ = _write(request, facts, dropped)

    assert body == {
        "model": "up",
        "messages": [_HELLO],
        "max_tokens": 9,
        "temperature": 1.5,
        "random_seed": 5,
        "stop": ["x"],
        "user": "u",
    }
    assert dropped.names == ("name", "top_k")
    dropped = DroppedFields()
    assert "temperature" not in _write(request, ModelFacts(sampling=False), dropped)[0]
    assert dropped.names == ("temperature", "top_k")


def test_streams_ask_for_the_usage() -> None:
    """It is shown to a client only that asked for it."""
    request = _read(stream=True)
    assert _write(request)[0]["stream_options"] == {"include_usage": True}
    assert "stream_options" not in _write(request, ModelFacts(refused=("stream_options",)))[0]


@pytest.mark.parametrize(
    ("fields", "reasoning", "written"),
    [
        ({"reasoning_effort": "high"}, Reasoning("high"), {"reasoning_effort": "high"}),
        (
            {"reasoning": {"effort": "low", "exclude": True}},
            Reasoning("low", summary="omitted"),
            {"reasoning_effort": "low"},
        ),
        ({"reasoning": {"max_tokens": 5000}}, Reasoning(budget_tokens=5000), {"reasoning_effort": "medium"}),
        ({"thinking": {"type": "enabled"}}, Reasoning(enabled=True), {}),
        ({"thinking": {"type": "disabled"}}, Reasoning(enabled=False), {}),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, Reasoning(budget_tokens=0, enabled=True), {}),
        ({}, None, {}),
    ],
)
def test_reasoning_is_an_effort(fields: dict[str, Any], reasoning: Reasoning | None, written: dict[str, Any]) -> None:
    """By whichever field it is said."""
    request = _read(**fields)
    assert request.reasoning == reasoning
    body, _ = _write(request)
    assert {name: value for name, value in body.items() if name not in ("model", "messages")} == written


def test_reasoning_is_switched_where_a_server_has_a_switch() -> None:
    """DeepSeek and Z.ai reason unless told not to."""
    for kind in ("enabled", "disabled"):
        body, _ = _write(_read(thinking={"type": kind}), ModelFacts(thinking="toggle"))
        assert body["thinking"] == {"type": kind}


@pytest.mark.parametrize(
    ("fields", "effort", "lost"),
    [
        ({"reasoning_effort": "low"}, "default", ("reasoning",)),
        ({"reasoning_effort": "none"}, "none", ()),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "default", ()),
        ({"thinking": {"type": "disabled"}}, "none", ()),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "none", ()),
        ({}, None, ()),
    ],
)
def test_effort_is_a_switch_for_some(fields: dict[str, Any], effort: str | None, lost: tuple[str, ...]) -> None:
    """Of Qwen at Groq reasoning is on or off: it takes no other words."""
    dropped = DroppedFields()
    body, _ = _write(_read(**fields), ModelFacts(thinking="switch"), dropped)

    assert (body.get("reasoning_effort"), dropped.names, "thinking" in body) == (effort, lost, False)


def test_structured_output_is_written_with_its_schema() -> None:
    """Byte by byte; where a server has no schemas, the model is told."""
    schema = b'{"type":"object","properties":{"a":{"const":12345678901234567890}}}'
    request = Request("m", [Message(Role.SYSTEM, [Text(b'"s"')]), Message(Role.USER, [Text(b'"u"')])])
    request.format = Format(schema, "my name", None, True)

    written = ChatModel(UNKNOWN_MODEL, DroppedFields()).write(request, "m").body
    told, _ = _write(request, ModelFacts(json_schema=False))

    assert b'"schema":' + schema in written
    assert json.loads(written)["response_format"]["json_schema"]["name"] == "my_name"
    assert told["response_format"] == {"type": "json_object"}
    assert [message["role"] for message in told["messages"]] == ["system", "system", "user"]
    assert schema.decode() in told["messages"][1]["content"]
    assert _read(response_format={"type": "json_object"}).format == Format()
    assert _read(response_format={"type": "text"}).format is None


def test_tool_choices_are_read_and_written() -> None:
    """Words, one tool, some tools."""
    function = {"name": "f", "parameters": CLOSED, "strict": True, "description": "d"}
    tools = [{"type": "function", "function": function}]
    one = {"type": "function", "function": {"name": "f"}}
    some = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [one]}}
    for choice in ("auto", "none", "required", one, some):
        request = _read(tools=tools, tool_choice=choice, parallel_tool_calls=False)
        body, _ = _write(request, ModelFacts(allowed_tools=True))
        assert (body["tools"], body["tool_choice"], body["parallel_tool_calls"]) == (tools, choice, False)
    assert _read(tool_choice="any").tool_choice == ToolChoice(Choice.REQUIRED)


def test_choice_among_tools_is_one_among_those_that_are_sent() -> None:
    """Only OpenAI knows that choice; elsewhere it is a 400."""
    tools = [{"type": "function", "function": {"name": name, "parameters": NO_PARAMETERS}} for name in "abc"]
    allowed = [{"type": "function", "function": {"name": name}} for name in "ca"]

    def written(names: list[Any], mode: str) -> Any:
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": names}}
        return _write(_read(tools=tools, tool_choice=choice), ModelFacts())[0]

    for mode in ("auto", "required"):
        body = written(allowed, mode)
        assert (body["tools"], body["tool_choice"]) == ([tools[0], tools[2]], mode)
    with pytest.raises(BadRequestError, match="not among the tools"):
        written([{"type": "function", "function": {"name": "d"}}], "auto")


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({}, NO_PARAMETERS),
        ({"type": "object"}, NO_PARAMETERS),
        ({"properties": {"a": {}}}, {"type": "object", "properties": {"a": {}}}),
        ({"type": ["object", "null"], "$defs": {}}, {"type": "object", "properties": {}, "$defs": {}}),
        ({"type": None, "properties": {}}, NO_PARAMETERS),
    ],
)
def test_schema_of_a_tool_says_what_openai_needs(schema: Any, written: Any) -> None:
    """That it is of an object, and has properties: servers of MCP leave both out, and Anthropic takes it so."""
    request = _read(tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}])
    assert _write(request)[0]["tools"][0]["function"]["parameters"] == written


def test_schema_of_a_tool_that_is_of_no_object_is_refused() -> None:
    """By every API."""
    request = _read(tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}])
    with pytest.raises(BadRequestError, match="object"):
        _write(request)


def test_hosted_tools_are_dropped_and_custom_ones_stand_as_functions() -> None:
    """A custom tool takes a text: a function with one string stands for it."""
    dropped = DroppedFields()
    request = _read(dropped=dropped, tools=[{"type": "web_search"}, {"type": "custom", "custom": {"name": "sh"}}])
    assert [tool.name for tool in request.tools] == ["sh"]
    assert dropped.names == ("tools.hosted",)


@pytest.mark.parametrize(
    ("kept", "signatures"), [("First.\n\nThen.", ["S", "T"]), ("First.", ["S", None]), ("st.", [None, None])]
)
def test_reasoning_that_came_back_in_part_has_no_signature(kept: str, signatures: list[str | None]) -> None:
    """Helpers of SDKs keep the last piece of a field that they don't know; its provider would refuse the signature."""
    details = [
        {"type": "reasoning.text", "signature": value, "length": length, "format": "anthropic-claude-v1", "index": n}
        for n, (value, length) in enumerate([("S", 6), ("T", 5)])
    ]
    blocks = _message(role="assistant", content="x", reasoning_content=kept, reasoning_details=details).blocks

    thoughts = [block for block in blocks if isinstance(block, Thinking)]
    assert [block.signature and block.signature.value for block in thoughts] == signatures
