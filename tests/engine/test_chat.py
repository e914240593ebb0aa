"""Official SDKs on a real engine: each API, native or translated, plain and streamed, says the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types
from openai.types.chat import ChatCompletionUserMessageParam

from tests.e2e.harness import KEY, VeloxProcess
from tests.engine.conftest import Engine

MESSAGES: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Say something."}]
# Greedy: the same question has the same answer.
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
COLOUR = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def sdk(velox: VeloxProcess) -> openai.OpenAI:
    return velox.openai(timeout_s=60.0)


@pytest.fixture(scope="module")
def claude(velox: VeloxProcess) -> Iterator[anthropic.Anthropic]:
    http = anthropic.DefaultHttpxClient(trust_env=False, timeout=60.0)
    with anthropic.Anthropic(base_url=velox.base_url, api_key=KEY, max_retries=0, http_client=http) as client:
        yield client


@pytest.fixture(scope="module")
def gemini(velox: VeloxProcess) -> genai.Client:
    return genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=velox.base_url, timeout=60_000))


@pytest.fixture(scope="module")
def said(engine: Engine) -> str:
    """What the model answers, asked without a gateway."""
    with openai.OpenAI(base_url=f"{engine.origin}/v1", api_key=KEY, max_retries=0) as direct:
        reply = direct.chat.completions.create(model="tiny", messages=MESSAGES, **GREEDY)
    text = reply.choices[0].message.content
    assert text and len(text.split()) == 24
    return text


def test_chat_says_what_the_engine_says(sdk: openai.OpenAI, said: str) -> None:
    reply = sdk.chat.completions.create(model="tiny", messages=MESSAGES, **GREEDY)

    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (said, "length")
    assert reply.usage is not None and reply.usage.completion_tokens == 24


@pytest.mark.parametrize("has_usage", [True, False])
def test_chat_stream_has_usage_where_it_was_asked_for(sdk: openai.OpenAI, said: str, has_usage: bool) -> None:
    more: dict[str, Any] = {"stream_options": {"include_usage": True}} if has_usage else {}

    chunks = list(sdk.chat.completions.create(model="tiny", messages=MESSAGES, stream=True, **more, **GREEDY))

    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == said
    assert sum(bool(text) for text in texts) == 24
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    assert counts == ([24] if has_usage else [])


@pytest.mark.parametrize("model", ["tiny", "native"])
def test_stop_sequence_ends_an_answer(
    sdk: openai.OpenAI, claude: anthropic.Anthropic, gemini: genai.Client, said: str, model: str
) -> None:
    """In each API; the text before it is the same."""
    stop = said.split()[4]
    before = said.partition(stop)[0]

    chat = sdk.chat.completions.create(model=model, messages=MESSAGES, stop=[stop], **GREEDY)
    message = claude.messages.create(model=model, messages=[*MESSAGES], stop_sequences=[stop], **_claude())
    config = types.GenerateContentConfig(temperature=0, max_output_tokens=24, stop_sequences=[stop])
    generated = gemini.models.generate_content(model=model, contents="Say something.", config=config)

    assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == (before, "stop")
    assert (message.content[0].text, message.stop_reason) in [(before, "end_turn"), (before, "stop_sequence")]  # type: ignore[union-attr]
    assert generated.text == before
    assert generated.candidates is not None and generated.candidates[0].finish_reason == types.FinishReason.STOP


@pytest.mark.parametrize("model", ["tiny", "native"])
def test_responses_say_the_same_plain_and_streamed(sdk: openai.OpenAI, said: str, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "input": "Say something.", "temperature": 0, "max_output_tokens": 24}

    plain = sdk.responses.create(**asked)
    events = list(sdk.responses.create(**asked, stream=True))

    assert plain.output_text == said
    assert plain.usage is not None and plain.usage.output_tokens == 24
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == said
    # llama.cpp's own Responses API calls an answer completed that ran into its limit.
    assert plain.status == ("incomplete" if model == "tiny" else "completed")
    assert events[-1].type == f"response.{plain.status}"


@pytest.mark.parametrize("model", ["tiny", "native"])
def test_messages_say_the_same_plain_and_streamed(claude: anthropic.Anthropic, said: str, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "messages": MESSAGES, **_claude()}

    plain = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()

    for message in (plain, streamed):
        assert [block.text for block in message.content if block.type == "text"] == [said]
        assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 24)


def test_gemini_client_reads_the_same_plain_and_streamed(gemini: genai.Client, said: str) -> None:
    config = types.GenerateContentConfig(temperature=0, max_output_tokens=24)
    asked: dict[str, Any] = {"model": "tiny", "contents": "Say something.", "config": config}

    plain = gemini.models.generate_content(**asked)
    chunks = list(gemini.models.generate_content_stream(**asked))

    assert plain.text == said
    assert "".join(chunk.text or "" for chunk in chunks) == said
    for last in (plain, chunks[-1]):
        assert last.candidates is not None and last.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS
        assert last.usage_metadata is not None and last.usage_metadata.candidates_token_count == 24


def test_structured_output_fits_its_schema(sdk: openai.OpenAI, gemini: genai.Client) -> None:
    """The engine's grammar makes even a random model write what the schema allows."""
    form: Any = {"type": "json_schema", "json_schema": {"name": "c", "strict": True, "schema": COLOUR}}
    chat = sdk.chat.completions.create(
        model="tiny", messages=MESSAGES, response_format=form, temperature=0, max_tokens=200
    )
    config = types.GenerateContentConfig(
        temperature=0, max_output_tokens=200, response_mime_type="application/json", response_json_schema=COLOUR
    )
    generated = gemini.models.generate_content(model="tiny", contents="Say something.", config=config)
    text: Any = {"format": {"type": "json_schema", "name": "c", "strict": True, "schema": COLOUR}}
    responded = sdk.responses.create(model="tiny", input="Say something.", text=text, temperature=0)

    for answer in (chat.choices[0].message.content, generated.text, responded.output_text):
        assert json.loads(answer or "")["colour"] in ("red", "blue")


def test_tool_is_called_by_each_client(sdk: openai.OpenAI, claude: anthropic.Anthropic, gemini: genai.Client) -> None:
    """Plain and streamed: its name and arguments that fit its schema."""
    tool = {"name": "pick", "description": "Pick a colour.", "parameters": COLOUR}
    more: Any = {"tools": [{"type": "function", "function": tool}], "tool_choice": "required", "temperature": 0}
    responses: Any = {
        "tools": [{"type": "function", **tool, "strict": False}],
        "tool_choice": "required",
        "temperature": 0,
    }
    messages: Any = {
        "tools": [{"name": "pick", "description": "Pick a colour.", "input_schema": COLOUR}],
        "tool_choice": {"type": "any"},
        "max_tokens": 300,
        "extra_body": {"temperature": 0},
    }
    functions = types.Tool(
        function_declarations=[types.FunctionDeclaration(name="pick", parameters_json_schema=COLOUR)]
    )
    calling = types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.ANY)
    config = types.GenerateContentConfig(
        temperature=0, tools=[functions], tool_config=types.ToolConfig(function_calling_config=calling)
    )
    called: list[tuple[str | None, object]] = []

    reply = sdk.chat.completions.create(model="caller", messages=MESSAGES, **more)
    with sdk.chat.completions.stream(model="caller", messages=MESSAGES, **more) as stream:
        final = stream.get_final_completion()
    for choice in (reply.choices[0], final.choices[0]):
        assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
        function = choice.message.tool_calls[0].function  # type: ignore[union-attr]
        called.append((function.name, json.loads(function.arguments)))
    plain = sdk.responses.create(model="caller", input="hi", **responses)
    with sdk.responses.stream(model="caller", input="hi", **responses) as events:
        streamed = events.get_final_response()
    for response in (plain, streamed):
        assert response.status == "completed"
        called += [(e.name, json.loads(e.arguments)) for e in response.output if e.type == "function_call"]
    message = claude.messages.create(model="caller", messages=[*MESSAGES], **messages)
    with claude.messages.stream(model="caller", messages=[*MESSAGES], **messages) as blocks:
        final_message = blocks.get_final_message()
    for answer in (message, final_message):
        assert answer.stop_reason == "tool_use"
        called += [(block.name, block.input) for block in answer.content if block.type == "tool_use"]
    asked: Any = {"model": "caller", "contents": "hi", "config": config}
    for chunk in (gemini.models.generate_content(**asked), *gemini.models.generate_content_stream(**asked)):
        called += [(call.name, call.args) for call in chunk.function_calls or []]

    assert called == [("pick", {"colour": "red"})] * 8


def test_tokens_are_counted_by_the_engine(claude: anthropic.Anthropic) -> None:
    assert claude.messages.count_tokens(model="native", messages=[*MESSAGES]).input_tokens > 10


def test_embeddings(sdk: openai.OpenAI) -> None:
    reply = sdk.embeddings.create(model="embedder", input=["one", "two"])

    assert [len(item.embedding) for item in reply.data] == [64, 64]


def test_long_prompt(sdk: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    """Each character is a token, so the prompt fills a good part of the context."""
    long: Any = [{"role": "user", "content": "ab " * 1500}]

    chat = sdk.chat.completions.create(model="tiny", messages=long, **GREEDY)
    message = claude.messages.create(model="tiny", messages=long, **_claude())

    assert chat.usage is not None and chat.usage.prompt_tokens > 4000
    # Claude's clients count what was read from a cache beside the rest.
    counts = message.usage
    assert counts.input_tokens + (counts.cache_read_input_tokens or 0) == chat.usage.prompt_tokens
    assert [block.text for block in message.content if block.type == "text"] == [chat.choices[0].message.content]


def test_sixteen_streams_at_once(sdk: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    """Half of them translated. Each is whole."""

    def chat(_: int) -> int:
        chunks = sdk.chat.completions.create(model="tiny", messages=MESSAGES, stream=True, **GREEDY)
        return sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks)

    def messages(_: int) -> int:
        with claude.messages.stream(model="tiny", messages=[*MESSAGES], **_claude()) as stream:
            return stream.get_final_message().usage.output_tokens

    with ThreadPoolExecutor(16) as clients:
        counts = [clients.submit(chat if n % 2 else messages, n) for n in range(16)]
        assert [count.result() for count in counts] == [24] * 16


def _claude() -> dict[str, Any]:
    """The settings, as Claude's clients send them."""
    return {"max_tokens": 24, "extra_body": {"temperature": 0}}
