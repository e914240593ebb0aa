"""A conversation that is to become short: a summary by any model, in the item that Codex goes on from."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.dialects.test_reported_tokens import sse
from velox.dialects.as_sent.foreign_history import without_foreign
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError
from velox.dialects.canonical.model import ClientCall, ClientSide
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.responses.compact_client import CompactClient
from velox.dialects.responses.write_reply import ResponsesClient
from velox.gateway.translation.translators import GenerationTranslator
from velox.providers.rows import PROVIDERS
from velox.types import ApiKind

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
SAID: list[dict[str, Any]] = [
    {"role": "user", "content": "Mend the test"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]},
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "red"},
]
FIELDS: dict[str, Any] = {
    "model": "m",
    "tools": [TOOL],
    "tool_choice": "auto",
    "text": {"format": {"type": "json_object"}},
}
TRIGGER = {"type": "compaction_trigger"}
SUMMARY = 'They want "green".\nNext: run it.'


def translator_of(client: Callable[[ClientCall, DroppedFields], ClientSide] = ResponsesClient) -> GenerationTranslator:
    dropped = DroppedFields()
    return GenerationTranslator(client(ClientCall("vx1", 7), dropped), ChatModel(ModelFacts(), dropped), dropped)


def asked(translator: GenerationTranslator, **fields: Any) -> Any:
    return json.loads(translator.request(json.dumps({**FIELDS, **fields}).encode(), "m"))


def chat_answer(text: str | None) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 90, "completion_tokens": 9, "total_tokens": 99}
    return json.dumps({"id": "chatcmpl-1", "model": "m", "choices": [choice], "usage": usage}).encode()


def chat_stream(*texts: str) -> bytes:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    return sse(*(chunk({"content": text}) for text in texts), chunk({}, "stop")) + b"data: [DONE]\n\n"


def test_c13_trigger_asks_for_a_summary() -> None:
    """C13: the model reads all of the conversation, and what it is to write; it can't call, and needs no format."""
    sent = asked(translator_of(), input=[*SAID, TRIGGER])

    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool", "user"]
    assert sent["messages"][-1]["content"].startswith("Write a summary")
    assert (sent["tool_choice"], "response_format" in sent) == ("none", False)
    assert len(sent["tools"]) == 1  # they are a part of what a cache has


def test_c13_answer_is_one_compaction_item() -> None:
    """C13: Codex ends with a fatal error unless there is exactly one; it comes back as what the user says."""
    translator = translator_of()
    asked(translator, input=[*SAID, TRIGGER])
    answer = json.loads(translator.answer(chat_answer(SUMMARY)))

    assert [item["type"] for item in answer["output"]] == ["compaction"]
    assert answer["usage"]["total_tokens"] == 99

    back = asked(translator_of(), input=[SAID[0], answer["output"][0], {"role": "user", "content": "Go on"}])
    texts = [message["content"] for message in back["messages"]]
    assert (texts[0], texts[1].endswith(SUMMARY), texts[2]) == ("Mend the test", True, "Go on")


def test_c13_streamed_answer_is_one_compaction_item() -> None:
    """C13: it is told when it is whole, with the events of an item, and in the last event."""
    translator = translator_of()
    asked(translator, input=[*SAID, TRIGGER], stream=True)
    stream = translator.stream()
    events = [
        json.loads(line[6:])
        for line in stream.feed(chat_stream("They want ", "green."), True).split(b"\n")
        if line[:6] == b"data: "
    ]

    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress", "output_item.added", "output_item.done", "completed"),
    ]
    item = events[3]["item"]
    assert (item["type"], item["encrypted_content"]) == ("compaction", "velox.summary..They want green.")
    assert events[-1]["response"]["output"] == [item]
    assert [event["sequence_number"] for event in events] == list(range(5))


def test_c13_answer_without_a_text_is_an_error() -> None:
    """C13: an empty item would lose the conversation."""
    translator = translator_of()
    asked(translator, input=[*SAID, TRIGGER])
    with pytest.raises(BrokenReplyError, match="no summary"):
        translator.answer(chat_answer(None))

    translator = translator_of()
    asked(translator, input=[*SAID, TRIGGER], stream=True)
    assert b"response.failed" in translator.stream().feed(chat_stream(), True)


def test_c13_trigger_stands_at_the_end() -> None:
    """C13: in another place nobody could say what is meant."""
    with pytest.raises(BadRequestError) as info:
        asked(translator_of(), input=[TRIGGER, *SAID])
    assert info.value.param == "input[0]"


@pytest.mark.parametrize("kind", ["ghost_snapshot", "no_such_item", "compaction_triggers"])
def test_c13_unknown_item_is_refused_by_its_name(kind: str) -> None:
    """C13: it may be what the answer depends on."""
    with pytest.raises(BadRequestError, match=kind) as info:
        asked(translator_of(), input=[*SAID, {"type": kind}])
    assert info.value.param == "input[4].type"


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary", "context_compaction"])
def test_c13_summary_that_only_its_provider_can_read_is_refused(kind: str) -> None:
    """C13: OpenAI's, at another model."""
    for sealed in ("gAAAA", None, "velox.anthropic..x"):
        with pytest.raises(BadRequestError, match="provider only"):
            asked(translator_of(), input=[{"type": kind, "encrypted_content": sealed}])


def test_c13_summary_of_ours_goes_to_openai_as_a_message() -> None:
    """C13: a conversation goes on at another provider, which could not read it."""
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "velox.summary..Green."}
    body = json.dumps({"model": "gpt-5", "input": [SAID[0], item]}).encode()
    sent = json.loads(without_foreign(body, ApiKind.RESPONSES, ModelFacts(), PROVIDERS["openai"].traits))

    assert sent["input"][0] == SAID[0]
    assert (sent["input"][1]["role"], sent["input"][1]["content"].endswith("\n\nGreen.")) == ("user", True)

    own = json.dumps({"model": "gpt-5", "input": [{**item, "encrypted_content": "gAAAA"}]}).encode()
    assert without_foreign(own, ApiKind.RESPONSES, ModelFacts(), PROVIDERS["openai"].traits) is own


@pytest.mark.parametrize("given", ["Mend the test", SAID])
def test_c14_conversation_is_compacted_by_any_model(given: Any) -> None:
    """C14: `/v1/responses/compact` answers with what the user said, and the item."""
    translator = translator_of(CompactClient)
    sent = asked(translator, input=given, instructions="Be brief")
    assert sent["messages"][-1]["content"].startswith("Write a summary")
    answer = json.loads(translator.answer(chat_answer(SUMMARY)))

    assert (answer["object"], answer["usage"]["input_tokens"]) == ("response.compaction", 90)
    said, item = answer["output"]
    assert (said["type"], said["role"], said["content"]) == ("message", "user", "Mend the test")
    assert (item["type"], item["encrypted_content"].endswith(SUMMARY)) == ("compaction", True)


def test_c14_what_the_user_said_last_stays_up_to_a_bound() -> None:
    """C14: the older messages are in the summary alone."""
    translator = translator_of(CompactClient)
    asked(translator, input=[{"role": "user", "content": letter * 100_000} for letter in "abc"])
    answer = json.loads(translator.answer(chat_answer(SUMMARY)))
    assert [item.get("content", "s")[0] for item in answer["output"]] == ["b", "c", "s"]
