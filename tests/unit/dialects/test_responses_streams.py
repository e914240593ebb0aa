"""Responses: what a client gets, plain and streamed, and what is read of a model's stream."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.recorded import Exchange, recorded
from tests.unit.dialects.assembling import assembled, events_of, normal
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError, ReplyError
from velox.dialects.canonical.model import (
    Answer,
    ApiError,
    Block,
    ClientCall,
    Close,
    Delta,
    End,
    ErrorKind,
    Event,
    Failed,
    Finish,
    Kind,
    Open,
    Refusal,
    Sign,
    Signature,
    Start,
    Stop,
    StopReason,
    Text,
    Thinking,
    ToolUse,
    Usage,
    Used,
)
from velox.dialects.facts.model_facts import UNKNOWN_MODEL
from velox.dialects.responses.read_reply import ResponsesModel
from velox.dialects.responses.write_reply import ResponsesClient
from velox.dialects.streams.events import events_of as told

_CODEX = Path(__file__).with_name("codex_request.json").read_bytes()
_PLAIN = [
    each
    for each in recorded("openai", "/v1/responses", stream=False)
    if each.body and each.path.endswith("/responses") and b"previous_response_id" not in each.body
]
_STREAMS = [
    *recorded("openai", "/v1/responses", stream=True),
    *recorded("bedrock-mantle", "/responses", stream=True),
    *recorded("deepseek", "/responses", stream=True),
    *recorded("openrouter", "/responses", stream=True),
]
# Requests with these are refused.
_ONLY_OPENAI = (b"compaction", b"conversation", b"background", b"moderation", b"logprobs")
_USAGE = Usage(10, 20, 3, 1, None, 5)


def _client(body: bytes = b'{"model":"m","input":"Hi","stream":true}') -> ResponsesClient:
    client = ResponsesClient(ClientCall("abc", 1_790_000_000), DroppedFields())
    client.read(body)
    return client


def _events(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(block.split(b"\ndata: ", 1)[1]) for block in text.split(b"\n\n") if block]


def _written(events: list[Event], client: ResponsesClient | None = None) -> list[dict[str, Any]]:
    writer = (client or _client()).stream()
    return _events(b"".join(writer.write(event) for event in events))


def _answered(blocks: list[Block], stop: Stop | None = None) -> Answer:
    return Answer("", "claude", blocks, stop or Stop(StopReason.END), _USAGE)


# -- writing ------------------------------------------------------------------------------------------


def test_pitfall_39_every_item_is_added_before_it_is_done_under_one_id() -> None:
    """Ids are the same in events and in the whole answer; the sequence has no gap."""
    blocks: list[Block] = [Thinking(b'"So."', Signature("anthropic", "s")), Text(b'"Hi"'), ToolUse("c", "f", b"{}")]
    seen = _written(told(_answered(blocks)))

    assert [each["sequence_number"] for each in seen] == list(range(len(seen)))
    assert [each["type"].removeprefix("response.") for each in seen] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    done = [each["item"] for each in seen if each["type"] == "response.output_item.done"]
    assert seen[-1]["response"]["output"] == done
    assert [item["id"] for item in done] == ["rs_abc0", "msg_abc1", "fc_abc2"]
    assert {each["response"]["id"] for each in seen if "response" in each} == {"resp_abc"}


@pytest.mark.parametrize("reason", list(StopReason))
@pytest.mark.parametrize("last", [Text(b'"Hel"'), ToolUse("d", "exec_command", b'{"cmd":"l')])
def test_item_that_was_cut_says_so(last: Block, reason: StopReason) -> None:
    """The last one alone, where the model had no room for more; its events and the whole answer agree."""
    blocks: list[Block] = [Text(b'"Hi"'), ToolUse("c", "f", b"{}"), last]
    answer = _answered(blocks, Stop(reason))
    seen = _written(told(answer))

    is_cut = reason in (StopReason.LENGTH, StopReason.CONTEXT)
    done = [each["item"]["status"] for each in seen if each["type"] == "response.output_item.done"]
    assert done == ["completed", "completed", "incomplete" if is_cut else "completed"]
    assert [item["status"] for item in seen[-1]["response"]["output"]] == done
    plain = json.loads(_client().answer(answer))
    assert [item["status"] for item in plain["output"]] == done


def test_item_that_never_ended_is_cut_with_its_answer() -> None:
    """Chat Completions have no end of a block: its stop comes while two calls are open."""
    events = [Open(0, Kind.TOOL, "c", "f"), Open(1, Kind.TOOL, "d", "f"), Finish(Stop(StopReason.LENGTH)), End()]
    seen = _written(list(events))
    done = [each["item"]["status"] for each in seen if each["type"] == "response.output_item.done"]
    assert done == ["completed", "incomplete"]


def test_streamed_answer_is_the_plain_one() -> None:
    """Items, ids, usage, all of it."""
    blocks: list[Block] = [
        Thinking(b'"So."', Signature("anthropic", "s")),
        Thinking(b'""', Signature("anthropic", "r"), is_redacted=True),
        Text(b'"Hi \\ud83d\\ude00"'),
        ToolUse("c", "exec_command", b'{"cmd":"ls"}', Signature("google", "g")),
        ToolUse("d", "apply_patch", b'{"input":"*** \\u00e9\\n"}'),
        ToolUse("e", "mcp__tracker__get_issue", b'{"id":1}'),
        ToolUse("f", "local_shell", b'{"command":["ls"]}'),
        ToolUse("g", "tool_search", b'{"query":"x"}'),
        Refusal(b'"No."'),
    ]
    answer = _answered(blocks, Stop(StopReason.TOOLS))
    plain = json.loads(_client(_CODEX).answer(answer))
    streamed = _written(told(answer), _client(_CODEX))[-1]["response"]

    key = [(item["type"], item.get("name"), item.get("namespace")) for item in plain["output"]]
    assert key == [
        ("reasoning", None, None),
        ("reasoning", None, None),
        ("message", None, None),
        ("function_call", "exec_command", None),
        ("reasoning", None, None),
        ("custom_tool_call", "apply_patch", None),
        ("function_call", "get_issue", "mcp__tracker"),
        ("local_shell_call", None, None),
        ("tool_search_call", None, None),
        ("message", None, None),
    ]
    assert streamed == plain
    assert plain["output"][5]["input"] == "*** é\n"
    assert plain["output"][7]["action"] == {"type": "exec", "env": {}, "command": ["ls"]}
    assert plain["output"][8]["arguments"] == {"query": "x"}
    assert plain["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 1},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 30,
    }


@pytest.mark.parametrize(
    "blocks",
    [
        [Thinking(b'"So."', Signature("anthropic", "s.+/=")), ToolUse("c", "f", b'{"a":1}')],
        [Thinking(b'""', Signature("anthropic", "s")), Text(b'"a"')],
        [Thinking(b'""', Signature("anthropic", "data"), is_redacted=True), Text(b'"a"')],
        [Thinking(b'"a"'), Text(b'"b"')],
        [Thinking(b'""', Signature("openai", "gAAA", "rs_1")), Text(b'"b"')],
        [ToolUse("c", "f", b"{}", Signature("google", "g")), ToolUse("d", "f", b"{}")],
        [Text(b'"a"', signature=Signature("google", "g"))],
        [Text(b'""', signature=Signature("google", "g"))],
        [Thinking(b'"t"'), Text(b'"a"'), ToolUse("c", "f", b"{}", Signature("google", "g"))],
        [Thinking(b'"t"', Signature("openrouter", "a:b", "id.1")), ToolUse("c", "f", b"{}")],
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_pitfalls_10_11_13_signatures_come_back_with_the_history(blocks: list[Block], stream: bool) -> None:
    """A client sends the items of the answer as it got them."""
    answer = _answered(blocks)
    if stream:
        output = _written(told(answer))[-1]["response"]["output"]
    else:
        output = json.loads(_client().answer(answer))["output"]
    request = ResponsesClient(ClientCall("b", 1), DroppedFields()).read(
        json.dumps({"model": "m", "input": output}).encode()
    )

    said = [block for message in request.messages for block in message.blocks]
    assert [block for block in said if not (isinstance(block, Text) and block.text == b'""' and stream)] == [
        block for block in blocks if not (isinstance(block, Text) and block.text == b'""' and stream)
    ]


def test_parallel_calls_may_overlap() -> None:
    """Each has its own item; their parts may come mixed."""
    seen = _written(
        [
            Start("", "m"),
            Open(0, Kind.TOOL, "a", "f"),
            Open(1, Kind.TOOL, "b", "g"),
            Delta(0, b'"{\\"x\\""'),
            Delta(1, b'"{\\"y\\""'),
            Delta(0, b'":1}"'),
            Delta(1, b'":2}"'),
            Close(0),
            Close(1),
            Finish(Stop(StopReason.TOOLS)),
            End(),
        ]
    )
    output = seen[-1]["response"]["output"]
    assert [(item["call_id"], item["name"], item["arguments"]) for item in output] == [
        ("a", "f", '{"x":1}'),
        ("b", "g", '{"y":2}'),
    ]


def test_pitfall_13_item_of_a_signature_stands_behind_the_signed_one_not_inside() -> None:
    """OpenAI's items follow one another: LangChain splits a call in two where another item begins inside."""
    events: list[Event] = [
        *(Open(0, Kind.TOOL, "call_1", "f"), Sign(0, Signature("google", "x")), Delta(0, b'"{}"'), Close(0)),
        *(Open(1, Kind.TEXT), Delta(1, b'"a"'), Sign(1, Signature("google", "y")), Close(1)),
        *(Finish(Stop(StopReason.END)), End()),
    ]
    written = _written(events)

    marks = [
        (event["type"].rpartition(".")[2], event["output_index"]) for event in written if "output_item" in event["type"]
    ]
    assert marks == [(mark, n) for n in range(4) for mark in ("added", "done")]
    kinds = [item["type"] for item in written[-1]["response"]["output"]]
    assert kinds == ["function_call", "reasoning", "message", "reasoning"]


def test_pitfall_03_a_call_without_arguments_is_an_empty_object() -> None:
    """In the deltas, too."""
    seen = _written([Open(0, Kind.TOOL, "a", "f"), Close(0), Finish(Stop(StopReason.TOOLS)), End()])
    deltas = [each["delta"] for each in seen if each["type"] == "response.function_call_arguments.delta"]
    assert deltas == ["{}"]
    assert seen[-1]["response"]["output"][0]["arguments"] == "{}"


def test_custom_input_is_one_delta_of_plain_text() -> None:
    """It is inside the arguments, which have to be whole."""
    events: list[Event] = [
        Open(0, Kind.TOOL, "a", "apply_patch"),
        Delta(0, b'"{\\"input\\":"'),
        Delta(0, b'"\\"a\\\\nb\\"}"'),
        Close(0),
        Finish(Stop(StopReason.TOOLS)),
        End(),
    ]
    seen = _written(events, _client(_CODEX))
    assert [(each["type"], each.get("delta"), each.get("input")) for each in seen if "custom" in each["type"]] == [
        ("response.custom_tool_call_input.delta", "a\nb", None),
        ("response.custom_tool_call_input.done", None, "a\nb"),
    ]
    item = seen[-1]["response"]["output"][0]
    assert item["id"].startswith("ctc_")
    assert (item["name"], item["input"], item["call_id"]) == ("apply_patch", "a\nb", "a")


@pytest.mark.parametrize("arguments", [b'""', b'"{ }"', b'"{\\"command\\":[\\"l"', b'" [1]"', b'"null"'])
@pytest.mark.parametrize("name", ["local_shell", "tool_search", "apply_patch", "exec_command"])
def test_arguments_that_are_no_json_never_break_an_event(name: str, arguments: bytes) -> None:
    """A model may stop within them."""
    events: list[Event] = [
        Open(0, Kind.TOOL, "a", name),
        Delta(0, arguments),
        Close(0),
        Finish(Stop(StopReason.LENGTH)),
        End(),
    ]
    (item,) = _written(events, _client(_CODEX))[-1]["response"]["output"]
    assert item["call_id"] == "a"


@pytest.mark.parametrize(
    ("reason", "status", "details"),
    [
        (StopReason.END, "completed", None),
        (StopReason.TOOLS, "completed", None),
        (StopReason.STOP_STRING, "completed", None),
        (StopReason.PAUSE, "completed", None),
        (StopReason.LENGTH, "incomplete", {"reason": "max_output_tokens"}),
        (StopReason.CONTEXT, "incomplete", {"reason": "max_output_tokens"}),
        (StopReason.FILTER, "incomplete", {"reason": "content_filter"}),
    ],
)
def test_stop_reasons(reason: StopReason, status: str, details: object) -> None:
    """The last event has the status's name."""
    last = _written(told(_answered([Text(b'"a"')], Stop(reason))))[-1]
    assert last["type"] == f"response.{status}"
    assert (last["response"]["status"], last["response"]["incomplete_details"]) == (status, details)


def test_pitfall_38_the_words_of_a_refusal_are_told() -> None:
    """As a refusal, beside the reason content_filter."""
    stop = Stop(StopReason.FILTER, explanation=b'"Not this."')
    for answer in (
        json.loads(_client().answer(_answered([], stop))),
        _written(told(_answered([], stop)))[-1]["response"],
    ):
        assert answer["output"][0]["content"] == [{"type": "refusal", "refusal": "Not this."}]


def test_pitfall_36_an_error_in_the_stream_is_a_failed_answer() -> None:
    """What was whole stays; nothing follows."""
    error = ApiError(ErrorKind.OVERLOADED, 529, "Overloaded")
    seen = _written(
        [Start("", "m"), Open(0, Kind.TEXT), Delta(0, b'"a"'), Close(0), Open(1, Kind.TEXT), Failed(error), End()]
    )
    last = seen[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "Overloaded"}
    assert len(last["response"]["output"]) == 1
    assert last["response"]["status"] == "failed"


def test_pitfall_37_a_cut_stream_has_no_last_event() -> None:
    """Blocks that are open stay so."""
    seen = _written([Start("", "m"), Open(0, Kind.TEXT), Delta(0, b'"a"')])
    assert seen[-1]["type"] == "response.output_text.delta"


def test_texts_are_kept_up_to_a_bound() -> None:
    """The last event would repeat them."""
    writer = _client().stream()
    writer.write(Open(0, Kind.TEXT))
    part = b'"' + b"a" * 1024 * 1024 + b'"'
    for _ in range(3):
        writer.write(Delta(0, part))
    with pytest.raises(BrokenReplyError):
        writer.write(Delta(0, part))


def test_answer_repeats_what_was_asked() -> None:
    """As OpenAI's does: clients look at it."""
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}, {"type": "web_search"}]
    body = {
        "model": "m",
        "input": "Hi",
        "instructions": "Be kind.",
        "tools": tools,
        "tool_choice": "required",
        "temperature": 0.5,
        "parallel_tool_calls": False,
    }
    answer = json.loads(_client(json.dumps(body).encode()).answer(_answered([Text(b'"a"')])))
    assert answer["tools"] == [{**tools[0], "description": None, "strict": None}, tools[1]]
    assert (answer["instructions"], answer["tool_choice"]) == ("Be kind.", "required")
    assert (answer["temperature"], answer["parallel_tool_calls"]) == (0.5, False)
    assert (answer["model"], answer["created_at"], answer["store"]) == ("claude", 1_790_000_000, False)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_request_of_many_lines_does_not_break_an_event(end: bytes) -> None:
    """An event repeats the tools as they came; its data is one line."""
    client = _client(json.dumps(json.loads(_CODEX), indent=2).encode().replace(b"\n", end))
    events = told(_answered([ToolUse("a", "local_shell", b'{\n"command": ["ls"]\n}')]))
    writer = client.stream()
    for block in b"".join(writer.write(event) for event in events).split(b"\n\n"):
        assert b"\r" not in block
        assert block.count(b"\n") == (1 if block else 0)
    assert len(_written(events, client)[-1]["response"]["tools"]) == 8


# -- reading ------------------------------------------------------------------------------------------


def _reader() -> Any:
    return ResponsesModel(UNKNOWN_MODEL, DroppedFields()).stream()


@pytest.mark.parametrize("exchange", _STREAMS, ids=str)
def test_recorded_stream_is_its_own_answer(exchange: Exchange) -> None:
    """What the events tell is what the last one repeats."""
    answer = assembled(events_of(_reader(), exchange.reply))
    last = next(
        json.loads(line[6:])["response"]
        for line in reversed(exchange.reply.replace(b"\r\n", b"\n").split(b"\n"))
        if line.startswith(b"data: {")
    )
    whole = ResponsesModel(UNKNOWN_MODEL, DroppedFields()).answer(json.dumps(last).encode())

    assert [type(block) for block in answer.blocks] == [type(block) for block in whole.blocks]
    for one, other in zip(answer.blocks, whole.blocks, strict=True):
        if isinstance(one, Text | Refusal) and isinstance(other, Text | Refusal):
            assert json.loads(one.text) == json.loads(other.text)
        if isinstance(one, ToolUse):
            assert one == other
    assert (answer.id, answer.stop, answer.usage) == (whole.id, whole.stop, whole.usage)


@pytest.mark.slow
@pytest.mark.parametrize("exchange", _STREAMS, ids=str)
def test_pitfall_45_cuts_change_nothing_and_never_end(exchange: Exchange) -> None:
    """Byte by byte, in random pieces; and less than all of it has no End."""
    chance = random.Random(exchange.name)
    expected = normal(events_of(_reader(), exchange.reply))
    assert normal(events_of(_reader(), exchange.reply, [1] * len(exchange.reply))) == expected
    sizes = [chance.randint(1, 300) for _ in range(len(exchange.reply))]
    assert normal(events_of(_reader(), exchange.reply, sizes)) == expected

    last = exchange.reply.rfind(b'"response.completed"')
    for at in [0, 1, last, *(chance.randrange(last) for _ in range(50))]:
        assert End() not in events_of(_reader(), exchange.reply[:at])


@pytest.mark.parametrize("exchange", _PLAIN, ids=str)
def test_recorded_request_round_trip(exchange: Exchange) -> None:
    """Read and written back, messages, calls and results are the same, but for what only OpenAI has."""
    dropped = DroppedFields()
    asked = exchange.json
    try:
        request = ResponsesClient(ClientCall("abc", 7), dropped).read(exchange.body)
    except BadRequestError:
        assert any(word in exchange.body for word in _ONLY_OPENAI)
        return
    body = json.loads(ResponsesModel(UNKNOWN_MODEL, dropped).write(request, asked["model"]).body)

    assert body["model"] == asked["model"]
    assert _plain_items(body) == _plain_items(asked)
    functions = [tool for tool in asked.get("tools") or () if tool["type"] == "function"]
    written = {tool["name"]: tool for tool in body.get("tools", ())}
    for tool in functions:
        assert written[tool["name"]]["parameters"] == tool["parameters"]


def _plain_items(body: Any) -> list[tuple[Any, ...]]:
    """Return what is said, in one form: instructions are a system message; a search is a call of a function."""
    items = body["input"]
    found: list[tuple[Any, ...]] = [("system", body["instructions"])] if body.get("instructions") else []
    if isinstance(items, str):
        return [*found, ("user", items)]
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            content = item["content"]
            if isinstance(content, list) and len(content) == 1 and "text" in content[0]:
                content = content[0]["text"]
            if isinstance(content, list):
                content = [(part["type"], part.get("text") or part.get("image_url")) for part in content]
            if content != "":
                found.append((item["role"], str(content)))
        elif kind == "function_call":
            found.append(("call", item["call_id"], json.loads(item["arguments"] or "{}")))
        elif kind == "tool_search_call" and item["execution"] == "client":
            found.append(("call", item["call_id"], item["arguments"]))
        elif kind == "function_call_output":
            output = item["output"]
            found.append(("result", item["call_id"], json.loads(output) if output[:2] == "[{" else output))
        elif kind == "tool_search_output" and item["execution"] == "client":
            found.append(("result", item["call_id"], item["tools"] or "[]"))
        elif kind == "reasoning" and item.get("encrypted_content"):
            found.append((kind, item["encrypted_content"]))
    return found


def test_errors_in_a_stream() -> None:
    """Each way to say it; nothing after it is read."""
    for text in (
        b'data: {"type":"error","code":"rate_limit_exceeded","message":"Slow","param":null,"sequence_number":1}\n\n',
        b'event: error\ndata: {"error":{"code":"rate_limit_exceeded","message":"Slow"}}\n\n',
        b'data: {"error":{"code":"rate_limit_exceeded","message":"Slow"}}\n\n',
        b'data: {"type":"response.failed","response":{"id":"resp_1","status":"failed","error":'
        b'{"code":"rate_limit_exceeded","message":"Slow"}}}\n\n',
    ):
        events = events_of(_reader(), text + b'data: {"type":"response.completed","response":{"output":[]}}\n\n')
        (failed,) = events
        assert isinstance(failed, Failed)
        assert (failed.error.kind, failed.error.message) == (ErrorKind.RATE_LIMIT, "Slow")


def test_pitfall_35_unknown_events_are_passed_over() -> None:
    """Comments, too, and items of tools that nobody asked for."""
    text = (
        b": ping\n\n"
        b'data: {"type":"response.created","response":{"id":"resp_1","model":"m"}}\n\n'
        b'data: {"type":"response.shiny.delta","delta":{"a":1},"output_index":0}\n\n'
        b'data: {"type":"response.output_item.added","output_index":0,"item":{"type":"web_search_call","id":"w"}}\n\n'
        b'data: {"type":"response.output_text.delta","output_index":1,"content_index":0,"delta":"Hi"}\n\n'
        b'data: {"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":1}}}\n\n'
    )
    answer = assembled(events_of(_reader(), text))
    assert answer.blocks == [Text(b'"Hi"')]
    assert answer.usage.input == 1


def test_a_server_that_sends_the_last_event_only() -> None:
    """The whole answer is in it."""
    body = {"id": "resp_1", "model": "m", "status": "completed"}
    output = [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}]
    text = b"data: " + json.dumps({"type": "response.completed", "response": {**body, "output": output}}).encode()
    assert assembled(events_of(_reader(), text + b"\n\n")).blocks == [Text(b'"Hi"')]


def _item(index: int, **item: Any) -> bytes:
    event = {"type": "response.output_item.done", "output_index": index, "item": item}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


_COMPLETED = b'data: {"type":"response.completed","response":{"status":"completed","output":[]}}\n\n'


def test_message_that_came_without_deltas_is_read_from_its_end() -> None:
    """Beside other items: what a server leaves out, the end of each item repeats."""
    texts = [{"type": "output_text", "text": "Hi"}, {"type": "output_text", "text": ""}]
    parts = [*texts, {"type": "refusal", "refusal": "No"}]
    reasoning = _item(0, type="reasoning", summary=[{"type": "summary_text", "text": "Hm"}])

    events = events_of(_reader(), reasoning + _item(1, type="message", content=parts) + _COMPLETED)

    assert assembled(events).blocks == [Thinking(b'"Hm"'), Text(b'"Hi"'), Refusal(b'"No"')]


@pytest.mark.parametrize("has_end", [True, False])
def test_message_that_came_in_deltas_is_not_told_again(has_end: bool) -> None:
    """Whether or not its part has an end of its own."""
    delta = b'data: {"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"Hi"}\n\n'
    end = b'data: {"type":"response.content_part.done","output_index":0,"content_index":0,"part":{}}\n\n'
    message = _item(0, type="message", content=[{"type": "output_text", "text": "Hi"}])

    answer = assembled(events_of(_reader(), delta + (end if has_end else b"") + message + _COMPLETED))

    assert answer.blocks == [Text(b'"Hi"')]


def test_too_many_items_without_an_end_are_refused() -> None:
    """128 is the bound, also where the parts of each have one."""
    form = (
        'data: {"type":"response.output_text.delta","output_index":%d,"content_index":0,"delta":"a"}\n\n'
        'data: {"type":"response.content_part.done","output_index":%d,"content_index":0}\n\n'
    )
    reader = _reader()
    with pytest.raises(BrokenReplyError):
        reader.feed("".join(form % (n, n) for n in range(200)).encode())


def test_pitfall_44_half_a_surrogate_pair_in_a_delta_is_kept() -> None:
    """JavaScript servers cut characters."""
    text = b'data: {"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"\\ud83d"}\n\n'
    assert Delta(0, b'"\\ud83d"') in events_of(_reader(), text)


def test_too_many_open_items_are_refused() -> None:
    """128 is the bound."""
    form = (
        'data: {"type":"response.output_item.added","output_index":%d,'
        '"item":{"type":"function_call","call_id":"c","name":"f"}}\n\n'
    )
    reader = _reader()
    with pytest.raises(BrokenReplyError):
        reader.feed("".join(form % n for n in range(200)).encode())


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_failed_answer_is_an_error(status: str) -> None:
    """Inside a 200."""
    with pytest.raises(ReplyError):
        ResponsesModel(UNKNOWN_MODEL, DroppedFields()).answer(json.dumps({"status": status, "output": []}).encode())


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{}", b'{"status":"queued","output":[]}', b"<html>"])
def test_what_is_no_answer_is_broken(body: bytes) -> None:
    """A clear error, never an empty answer."""
    with pytest.raises(BrokenReplyError):
        ResponsesModel(UNKNOWN_MODEL, DroppedFields()).answer(body)


def test_usage_and_signs_are_told() -> None:
    """The signature comes before the end of its block."""
    text = (
        b'data: {"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","id":"rs_1",'
        b'"summary":[{"type":"summary_text","text":"a"},{"type":"summary_text","text":"b"}],"encrypted_content":"x"}}\n\n'
        b'data: {"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":'
        b'{"reason":"max_output_tokens"},"usage":{"input_tokens":1,"output_tokens":2}}}\n\n'
    )
    assert events_of(_reader(), text) == [
        Start("", ""),
        Open(0, Kind.THINKING),
        Delta(0, b'"a\\n\\nb"'),
        Sign(0, Signature("openai", "x", "rs_1")),
        Close(0),
        Used(Usage(1, 2)),
        Finish(Stop(StopReason.LENGTH)),
        End(),
    ]
