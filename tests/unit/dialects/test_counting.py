"""Counting the tokens of a request whose client and model have different APIs for it."""

from __future__ import annotations

import base64
import json

import pytest
from anthropic.types import MessageTokensCount
from google.genai.types import CountTokensResponse

from tests.recorded import Exchange, recorded
from velox.dialects.as_sent.claude_wrapper import bedrock_body
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError
from velox.dialects.canonical.model import ClientCall, Image, Media, MediaKind, Message, Request, Role, Text
from velox.dialects.converse.read_reply import ConverseModel
from velox.dialects.counting import (
    Counting,
    cannot_count,
    count_request,
    estimated_tokens,
    generate_request,
    invoke_count_request,
    tokens_of,
    written_tokens,
)
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.generate.read_reply import GenerateModel
from velox.dialects.generate.write_reply import GenerateClient
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.messages.write_reply import MessagesClient
from velox.types import ApiKind

_CALL = ClientCall("0123abcd", 1_700_000_000, "gemini-2.5-flash")
_MESSAGES = (
    b'{"model":"claude","system":"Be brief.","messages":[{"role":"user","content":"Hi"}],'
    b'"tools":[{"name":"t","input_schema":{"type":"object","properties":{}}}]}'
)


def _of_messages(model_api: ApiKind, *, is_flat: bool = False) -> Counting:
    dropped = DroppedFields()
    models = {
        ApiKind.COUNT_GENERATE: GenerateModel,
        ApiKind.COUNT_CONVERSE: ConverseModel,
        ApiKind.COUNT_MESSAGES: MessagesModel,
    }
    model = models.get(model_api, MessagesModel)(ModelFacts(), dropped)
    client = MessagesClient(_CALL, dropped)
    return Counting(client, ApiKind.COUNT_MESSAGES, model, model_api, dropped, is_flat=is_flat)


def test_messages_are_counted_by_gemini() -> None:
    """AI Studio counts instructions and tools only in a whole request; Vertex takes them beside the contents."""
    studio = json.loads(_of_messages(ApiKind.COUNT_GENERATE).request(_MESSAGES, "gemini-3-pro"))
    vertex = json.loads(_of_messages(ApiKind.COUNT_GENERATE, is_flat=True).request(_MESSAGES, "gemini-3-pro"))

    whole = studio["generateContentRequest"]
    assert set(studio) == {"generateContentRequest"}
    assert whole["model"] == "models/gemini-3-pro"
    assert whole["contents"] == vertex["contents"] == [{"role": "user", "parts": [{"text": "Hi"}]}]
    assert whole["systemInstruction"] == vertex["systemInstruction"]
    assert vertex["tools"][0]["functionDeclarations"][0]["name"] == "t"


def test_messages_are_counted_by_converse() -> None:
    """The fields that it takes, in its wire wrapper."""
    found = json.loads(_of_messages(ApiKind.COUNT_CONVERSE).request(_MESSAGES, "nova"))["input"]["converse"]

    assert found["messages"] == [{"role": "user", "content": [{"text": "Hi"}]}]
    assert set(found) <= {"messages", "system", "toolConfig", "additionalModelRequestFields"}


@pytest.mark.parametrize("is_whole", [True, False])
def test_contents_are_counted_by_claude(is_whole: bool) -> None:
    """Gemini's clients ask with contents, or with a whole request; Anthropic takes nothing that tunes the answer."""
    body = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "generationConfig": {"temperature": 0.5}}
    dropped = DroppedFields()
    counting = Counting(
        GenerateClient(_CALL, dropped),
        ApiKind.COUNT_GENERATE,
        MessagesModel(ModelFacts(), dropped),
        ApiKind.COUNT_MESSAGES,
        dropped,
    )

    found = counting.request(json.dumps({"generateContentRequest": body} if is_whole else body).encode(), "claude")

    assert json.loads(found) == {
        "model": "claude",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    }
    reply = counting.answer(b'{"input_tokens":7}')
    assert CountTokensResponse.model_validate(json.loads(reply)).total_tokens == 7


@pytest.mark.parametrize("each", recorded("anthropic", "count_tokens"), ids=str)
def test_recorded_requests_to_count_come_back_as_they_were(each: Exchange) -> None:
    """Read by Messages' reader, written by its writer."""
    counting = _of_messages(ApiKind.COUNT_MESSAGES)

    found = json.loads(counting.request(each.body, each.json["model"]))

    system = each.json.get("system")
    if system is not None:
        assert found.pop("system") == [{"type": "text", "text": system}]
    assert found == {name: value for name, value in each.json.items() if name != "system"}
    assert json.loads(counting.answer(each.reply)) == json.loads(each.reply)


@pytest.mark.parametrize(("provider", "ending"), [("gemini", "countTokens"), ("openai", "input_tokens")])
def test_recorded_numbers_are_read(provider: str, ending: str) -> None:
    """Each API has its own name for the number."""
    for each in recorded(provider, ending):
        tokens = tokens_of(each.reply)
        assert tokens in json.loads(each.reply).values()
        assert json.loads(written_tokens(ApiKind.COUNT_RESPONSES, tokens))["object"] == "response.input_tokens"
        assert MessageTokensCount.model_validate_json(written_tokens(ApiKind.COUNT_MESSAGES, tokens)).input_tokens


@pytest.mark.parametrize("each", recorded("bedrock", "count-tokens", status=None), ids=str)
def test_bedrock_counts_bodies_for_invoke(each: Exchange) -> None:
    """They stand in base64, with the max_tokens that a request to count lacks."""
    invoked = each.json["input"].get("invokeModel")
    if invoked is not None:
        body = base64.b64decode(invoked["body"])
        assert json.loads(invoke_count_request(body)) == each.json
    found = json.loads(invoke_count_request(bedrock_body(_MESSAGES)))
    inner = json.loads(base64.b64decode(found["input"]["invokeModel"]["body"]))
    assert inner["max_tokens"] == 4096
    assert inner["anthropic_version"] == "bedrock-2023-05-31"


def test_bedrock_says_that_it_can_not_count() -> None:
    """By what it has been recorded to say; of a bad request it says another thing."""
    model = ConverseModel(ModelFacts(), DroppedFields())
    found = {
        each.reply: cannot_count(model.error(each.status, each.reply, each.headers))
        for each in recorded("bedrock", "count-tokens", status=400)
    }

    assert len(found) == 3
    for reply, is_unable in found.items():
        assert is_unable is (b"provided model" in reply), reply
    for name, status, is_unable in [
        ("AccessDeniedException", 403, True),
        ("InvalidSignatureException", 403, False),
        ("ResourceNotFoundException", 404, True),
        ("ThrottlingException", 429, False),
        ("ValidationException", 400, False),
    ]:
        body = b'{"message":"Input is too long for requested model."}'
        assert cannot_count(model.error(status, body, {"x-amzn-errortype": name})) is is_unable, name


def test_chat_has_an_estimate_that_says_so() -> None:
    """No API of Chat Completions counts."""
    counting = _of_messages(ApiKind.CHAT)

    found = json.loads(counting.estimate(_MESSAGES))

    assert 5 <= found["input_tokens"] <= 40


def test_estimate_grows_with_what_is_there() -> None:
    """Texts by their bytes, pictures by a fixed number."""
    text = Request("m", [Message(Role.USER, [Text(b'"' + b"a" * 400 + b'"')])])
    image = Request("m", [Message(Role.USER, [Image(Media(MediaKind.DATA, "A" * 100_000, "image/png"))])])

    assert estimated_tokens(text) == 104
    assert estimated_tokens(image) == 1504


def test_what_can_not_be_read_is_refused() -> None:
    """With the errors of dialects only."""
    with pytest.raises(BadRequestError):
        generate_request(ApiKind.COUNT_GENERATE, b"[")
    with pytest.raises(BadRequestError):
        count_request(ApiKind.COUNT_MESSAGES, b"[]")
    with pytest.raises(BadRequestError):
        _of_messages(ApiKind.CHAT).estimate(b'{"model":"m","messages":[]}')
    for body in (b"{}", b"", b'{"input_tokens":null}', b'{"input_tokens":-1}'):
        with pytest.raises(BrokenReplyError):
            tokens_of(body)
