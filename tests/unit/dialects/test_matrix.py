"""Every recorded reply of every provider, in every dialect of clients, read by that dialect's official SDK.

A plain reply is read whole. A stream is given to the SDK's own accumulator; what that has at the end is what the same
answer says when it is not streamed. However the upstream's bytes are cut, the client gets the same bytes, and a stream
that is not whole never ends as one that is.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anthropic
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from google import genai
from openai import omit
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types import responses as openai_responses
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from tests.recorded import Exchange, recorded
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BrokenReplyError, ReplyError
from velox.dialects.canonical.model import ClientCall, ClientSide, Event, ModelSide
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.streams.events import answer_of, events_of
from velox.gateway.translation.translators import GenerationTranslator
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind

pytestmark = pytest.mark.slow

TABLE = dialect_table()
# Each provider, the API that its path is of, and what its paths have in them.
SOURCES = [
    ("openai", ApiKind.CHAT, "/chat/completions"),
    ("groq", ApiKind.CHAT, "/chat/completions"),
    ("openrouter", ApiKind.CHAT, "/chat/completions"),
    ("deepseek", ApiKind.CHAT, "/chat/completions"),
    ("mistral", ApiKind.CHAT, "/chat/completions"),
    ("cerebras", ApiKind.CHAT, "/chat/completions"),
    ("ollama", ApiKind.CHAT, "/chat/completions"),
    ("zai", ApiKind.CHAT, "/chat/completions"),
    ("openai", ApiKind.RESPONSES, "/v1/responses"),
    ("azure", ApiKind.RESPONSES, "/responses"),
    ("openrouter", ApiKind.RESPONSES, "/responses"),
    ("deepseek", ApiKind.RESPONSES, "/responses"),
    ("bedrock-mantle", ApiKind.RESPONSES, "/responses"),
    ("anthropic", ApiKind.MESSAGES, "/v1/messages"),
    ("gemini", ApiKind.GENERATE, "enerateContent"),
    ("vertex", ApiKind.GENERATE, "enerateContent"),
    ("bedrock", ApiKind.CONVERSE, "/converse"),
]
CLIENTS = sorted(TABLE.clients)
RESPONSE_EVENTS: TypeAdapter[openai_responses.ResponseStreamEvent] = TypeAdapter(openai_responses.ResponseStreamEvent)
EVENTS: TypeAdapter[anthropic.types.RawMessageStreamEvent] = TypeAdapter(anthropic.types.RawMessageStreamEvent)
ASKS: dict[ApiKind, dict[str, Any]] = {
    ApiKind.CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    ApiKind.MESSAGES: {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    ApiKind.GENERATE: {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
    ApiKind.RESPONSES: {"model": "m", "input": "hi"},
}


def is_answer(exchange: Exchange) -> bool:
    """False for what else is asked below the path of an API."""
    return exchange.method == "POST" and exchange.path.endswith(tuple(ending for _, _, ending in SOURCES))


PLAIN = [
    (provider, api, each)
    for provider, api, ending in SOURCES
    for each in recorded(provider, ending, stream=False)
    if is_answer(each)
]
STREAMS = [
    (provider, api, each) for provider, api, ending in SOURCES for each in recorded(provider, ending, stream=True)
]
ERRORS = [
    (provider, api, each)
    for provider, api, ending in SOURCES
    for each in recorded(provider, ending, status=None)
    if each.status >= 400
]


def translator_of(client: ApiKind, api: ApiKind, provider: str, *, stream: bool = False) -> GenerationTranslator:
    """Return a translator whose request has been written."""
    dropped = DroppedFields()
    made = TABLE.clients[client](ClientCall("0a1b2c", 1_790_000_000, "m", stream), dropped)
    translator = GenerationTranslator(made, TABLE.models[api](ModelFacts(), dropped, provider), dropped)
    asked = ASKS[client]
    if stream and client is not ApiKind.GENERATE:
        asked = {**asked, "stream": True}
    if stream and client is ApiKind.CHAT:
        asked["stream_options"] = {"include_usage": True}
    translator.request(json.dumps(asked).encode(), "m")
    return translator


def model_side(api: ApiKind, provider: str) -> ModelSide:
    return TABLE.models[api](ModelFacts(), DroppedFields(), provider)


def client_side(client: ApiKind) -> ClientSide:
    made = TABLE.clients[client](ClientCall("0a1b2c", 1_790_000_000, "m", True), DroppedFields())
    asked = ASKS[client] if client is ApiKind.GENERATE else {**ASKS[client], "stream": True}
    made.read(json.dumps(asked).encode())
    return made


# -- what the SDKs make of it ---------------------------------------------------------------------------


def events(text: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of a stream as every SDK reads them: name, data."""
    found = []
    for block in text.replace(b"\r\n", b"\n").split(b"\n\n"):
        name, data = "", b""
        for line in block.split(b"\n"):
            if line.startswith(b"event: "):
                name = line[7:].decode()
            elif line.startswith(b"data: "):
                data += line[6:]
        if data and data != b"[DONE]":
            found.append((name, json.loads(data)))
    return found


@dataclass(frozen=True)
class Said:
    """What an answer says, however it came."""

    text: str
    thought: str
    calls: tuple[tuple[str, str], ...]
    stop: str | None
    n_output: int | None


def of_chat(answer: ChatCompletion) -> Said:
    (choice,) = answer.choices
    message = choice.message
    calls = tuple(
        (call.function.name, json.dumps(json.loads(call.function.arguments or "{}")))
        for call in message.tool_calls or ()
        if call.type == "function"
    )
    thought = getattr(message, "reasoning_content", None) or ""
    text = (message.content or "") + (message.refusal or "")
    n_output = None if answer.usage is None else answer.usage.completion_tokens
    return Said(text, thought, calls, choice.finish_reason, n_output)


def chat_plain(body: bytes) -> Said:
    return of_chat(ChatCompletion.model_validate_json(body))


def chat_stream(text: bytes) -> Said:
    assert text.endswith(b"data: [DONE]\n\n")
    chunks = [ChatCompletionChunk.model_validate(data) for _, data in events(text)]
    state = ChatCompletionStreamState()
    thought = ""
    for chunk in chunks:
        for choice in chunk.choices:
            thought += getattr(choice.delta, "reasoning_content", None) or ""
        state.handle_chunk(chunk)
    said = of_chat(ChatCompletion.model_validate(state.current_completion_snapshot.model_dump(warnings=False)))
    return Said(said.text, thought, said.calls, said.stop, said.n_output)


def of_message(message: anthropic.types.Message) -> Said:
    text = "".join(block.text for block in message.content if block.type == "text")
    thought = "".join(block.thinking for block in message.content if block.type == "thinking")
    calls = tuple((block.name, json.dumps(block.input)) for block in message.content if block.type == "tool_use")
    return Said(text, thought, calls, message.stop_reason, message.usage.output_tokens)


def messages_plain(body: bytes) -> Said:
    return of_message(anthropic.types.Message.model_validate_json(body))


def messages_stream(text: bytes) -> Said:
    snapshot = None
    buffers: dict[int, bytes] = {}
    seen = events(text)
    assert [name for name, _ in seen] == [data["type"] for _, data in seen]
    assert (seen[0][0], seen[-1][0]) == ("message_start", "message_stop")
    for _, data in seen:
        if data["type"] != "ping":
            snapshot = accumulate_event(
                event=EVENTS.validate_python(data), current_snapshot=snapshot, json_bufs=buffers
            )
    assert snapshot is not None
    return of_message(anthropic.types.Message.model_validate(snapshot.model_dump(warnings=False)))


def of_generated(answers: list[genai.types.GenerateContentResponse]) -> Said:
    parts = [
        part
        for answer in answers
        for candidate in answer.candidates or ()
        if candidate.content is not None
        for part in candidate.content.parts or ()
    ]
    reasons = [candidate.finish_reason for answer in answers for candidate in answer.candidates or ()]
    last = next((reason for reason in reversed(reasons) if reason is not None), None)
    usages = [answer.usage_metadata for answer in answers if answer.usage_metadata is not None]
    counts = [usage.candidates_token_count for usage in usages if usage.candidates_token_count is not None]
    calls = tuple(
        (part.function_call.name or "", json.dumps(part.function_call.args or {}))
        for part in parts
        if part.function_call is not None
    )
    return Said(
        "".join(part.text or "" for part in parts if not part.thought),
        "".join(part.text or "" for part in parts if part.thought),
        calls,
        None if last is None else last.value,
        counts[-1] if counts else None,
    )


def generate_plain(body: bytes) -> Said:
    return of_generated([genai.types.GenerateContentResponse.model_validate_json(body)])


def generate_stream(text: bytes) -> Said:
    return of_generated([genai.types.GenerateContentResponse.model_validate(data) for _, data in events(text)])


def of_response(response: openai_responses.Response) -> Said:
    items = response.output
    texts = [part for item in items if item.type == "message" for part in item.content]
    text = "".join(part.text if part.type == "output_text" else part.refusal for part in texts)
    thoughts = [item for item in items if item.type == "reasoning"]
    thought = "".join(part.text for item in thoughts for part in item.summary)
    calls = tuple((item.name, json.dumps(json.loads(item.arguments))) for item in items if item.type == "function_call")
    reason = None if response.incomplete_details is None else response.incomplete_details.reason
    n_output = None if response.usage is None else response.usage.output_tokens
    return Said(text, thought, calls, f"{response.status} {reason}", n_output)


def responses_plain(body: bytes) -> Said:
    return of_response(openai_responses.Response.model_validate_json(body))


def responses_stream(text: bytes) -> Said:
    seen = events(text)
    assert [name for name, _ in seen] == [data["type"] for _, data in seen]
    assert [data["sequence_number"] for _, data in seen] == list(range(len(seen)))
    made = [RESPONSE_EVENTS.validate_python(data) for _, data in seen]
    last = made[-1]
    assert last.type in ("response.completed", "response.incomplete")
    opened = {event.item.id for event in made if event.type == "response.output_item.added"}
    closed = [event.item for event in made if event.type == "response.output_item.done"]
    assert opened == {item.id for item in closed} == {item.id for item in last.response.output}
    deltas = "".join(e.delta for e in made if e.type in ("response.output_text.delta", "response.refusal.delta"))
    said = of_response(last.response)
    assert deltas == said.text
    state = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in made:
        state.handle_event(event)
    snapshot = state._ResponseStreamState__current_snapshot  # type: ignore[attr-defined]
    accumulated = openai_responses.Response.model_validate(snapshot.model_dump(warnings=False))
    assert accumulated.output_text == last.response.output_text  # it does not add up refusals
    assert of_response(accumulated).calls == said.calls
    return said


PLAIN_READERS: dict[ApiKind, Callable[[bytes], Said]] = {
    ApiKind.CHAT: chat_plain,
    ApiKind.MESSAGES: messages_plain,
    ApiKind.GENERATE: generate_plain,
    ApiKind.RESPONSES: responses_plain,
}
STREAM_READERS: dict[ApiKind, Callable[[bytes], Said]] = {
    ApiKind.CHAT: chat_stream,
    ApiKind.MESSAGES: messages_stream,
    ApiKind.GENERATE: generate_stream,
    ApiKind.RESPONSES: responses_stream,
}
CLIENTS = [client for client in CLIENTS if client in PLAIN_READERS]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name.lower())
@pytest.mark.parametrize(("provider", "api", "exchange"), PLAIN, ids=str)
def test_plain_reply_is_read_by_the_sdk(client: ApiKind, provider: str, api: ApiKind, exchange: Exchange) -> None:
    """And a stream of the same answer says the same."""
    translator = translator_of(client, api, provider)
    try:
        body = translator.answer(exchange.reply)
    except (ReplyError, BrokenReplyError) as exc:
        assert b'"error"' in exchange.reply or b"promptFeedback" in exchange.reply, exc
        return
    said = PLAIN_READERS[client](body)

    answer = model_side(api, provider).answer(exchange.reply)
    writer = client_side(client).stream()
    stream = b"".join(writer.write(event) for event in events_of(answer))
    streamed = STREAM_READERS[client](stream)
    if client is ApiKind.CHAT:  # the usage of its streams is sent only where it was asked for
        streamed = Said(streamed.text, streamed.thought, streamed.calls, streamed.stop, said.n_output)
    assert streamed == said


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name.lower())
@pytest.mark.parametrize(("provider", "api", "exchange"), STREAMS, ids=str)
def test_stream_is_read_by_the_sdk(client: ApiKind, provider: str, api: ApiKind, exchange: Exchange) -> None:
    """The accumulated stream is the answer that its events tell."""
    translator = translator_of(client, api, provider, stream=True)
    stream = translator.stream()
    text = stream.feed(exchange.reply, True)
    if stream.failed is not None or not stream.is_whole:
        pytest.skip("recorded as it failed, or was left")
    said = STREAM_READERS[client](text)

    reader = model_side(api, provider).stream()
    told: list[Event] = [*reader.feed(exchange.reply), *reader.end()]
    plain = PLAIN_READERS[client](translator_of(client, api, provider)._client.answer(answer_of(told)))
    assert said == plain


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name.lower())
@pytest.mark.parametrize(("provider", "api", "exchange"), STREAMS, ids=str)
def test_cut_anywhere_is_the_same_and_never_an_end(
    client: ApiKind, provider: str, api: ApiKind, exchange: Exchange
) -> None:
    """Pitfalls 37 and 45: the bytes do not depend on how they came; a part of them is no whole."""
    whole = translator_of(client, api, provider, stream=True).stream()
    expected = whole.feed(exchange.reply, True)
    chance = random.Random(exchange.name)
    for most in (1, 3, 50, 1000):
        stream = translator_of(client, api, provider, stream=True).stream()
        written, at = b"", 0
        while at < len(exchange.reply):
            n = chance.randint(1, most)
            written += stream.feed(exchange.reply[at : at + n], at + n >= len(exchange.reply))
            at += n
        assert written == expected
    if not whole.is_whole:
        return
    last = exchange.reply.rstrip().rfind(b"\n" if api is not ApiKind.CONVERSE else b"messageStop")
    for at in sorted({chance.randrange(max(1, last)) for _ in range(40)}):
        stream = translator_of(client, api, provider, stream=True).stream()
        cut = stream.feed(exchange.reply[:at], True)
        if stream.is_whole:
            # Everything of the answer had come: what is missing is the mark that some servers never send.
            assert api in (ApiKind.CHAT, ApiKind.GENERATE, ApiKind.CONVERSE)
            continue
        assert b"[DONE]" not in cut and b"message_stop" not in cut and b"response.completed" not in cut


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name.lower())
@pytest.mark.parametrize(("provider", "api", "exchange"), ERRORS, ids=str)
def test_error_is_one_of_the_client(client: ApiKind, provider: str, api: ApiKind, exchange: Exchange) -> None:
    """With the upstream's words and a status of its kind."""
    translator = translator_of(client, api, provider)
    headers = [(name.encode(), value.encode()) for name, value in exchange.headers.items()]
    error = translator.read_error(exchange.status, headers, exchange.reply)
    body = json.loads(translator.error(error))

    assert error.status == exchange.status and error.message
    if client is ApiKind.MESSAGES:
        assert (body["type"], body["error"]["message"]) == ("error", error.message)
    else:
        assert body["error"]["message"] == error.message
    if client is ApiKind.GENERATE:
        assert body["error"]["code"] == error.status and body["error"]["status"].isupper()
