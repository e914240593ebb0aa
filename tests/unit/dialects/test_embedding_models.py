"""Embeddings of OpenAI's API by models of Vertex AI and Bedrock (dialects/embeddings/other_models.py)."""

from __future__ import annotations

import base64
import json
import re
import struct
from typing import Any

import pytest
from openai.types import CreateEmbeddingResponse

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError
from velox.dialects.canonical.model import ClientCall
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.converse.read_reply import ConverseModel
from velox.dialects.embeddings.gemini_clients import GoogleEmbeddings
from velox.dialects.embeddings.other_models import EmbeddingForm, ModelEmbeddings
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.generate.write_reply import GenerateClient
from velox.protocol.usage.token_usage import TokenUsage

PREDICT, CONTENT, TITAN, NOVA, COHERE = EmbeddingForm
ONE: dict[EmbeddingForm, Any] = {
    PREDICT: {"predictions": [{"embeddings": {"values": [0.5, 2], "statistics": {"token_count": 3}}}]},
    CONTENT: {"embedding": {"values": [0.5, 2]}, "usageMetadata": {"promptTokenCount": 3}},
    TITAN: {"embedding": [0.5, 2], "inputTextTokenCount": 3},
    NOVA: {"embeddings": [{"embeddingType": "TEXT", "embedding": [0.5, 2]}]},
    COHERE: {"embeddings": {"float": [[0.5, 2]]}, "response_type": "embeddings_by_type"},
}
WRITTEN: dict[EmbeddingForm, Any] = {
    PREDICT: {"instances": [{"content": "a"}], "parameters": {"autoTruncate": False, "outputDimensionality": 256}},
    CONTENT: {"content": {"parts": [{"text": "a"}]}, "outputDimensionality": 256},
    TITAN: {"inputText": "a", "dimensions": 256},
    NOVA: {
        "taskType": "SINGLE_EMBEDDING",
        "singleEmbeddingParams": {
            "embeddingPurpose": "GENERIC_INDEX",
            "embeddingDimension": 256,
            "text": {"truncationMode": "NONE", "value": "a"},
        },
    },
    COHERE: {
        "texts": ["a"],
        "input_type": "search_document",
        "embedding_types": ["float"],
        "truncate": "NONE",
        "output_dimension": 256,
    },
}


def translator_of(form: EmbeddingForm, dropped: DroppedFields | None = None) -> ModelEmbeddings:
    dropped = dropped or DroppedFields()
    return ModelEmbeddings(ChatClient(ClientCall("a", 1), dropped), ConverseModel(ModelFacts(), dropped), dropped, form)


def asked(text: Any = "a", **more: Any) -> bytes:
    return json.dumps({"model": "m", "input": text, **more}).encode()


@pytest.mark.parametrize("form", EmbeddingForm)
def test_request_has_the_text_and_the_size(form: EmbeddingForm) -> None:
    """As each provider has them; a text is never cut there."""
    for text in ("a", ["a"]):
        assert [json.loads(each) for each in translator_of(form).requests(asked(text, dimensions=256), "m")] == [
            WRITTEN[form]
        ]
    assert b"imension" not in translator_of(form).requests(asked(), "m")[0]


@pytest.mark.parametrize("form", EmbeddingForm)
@pytest.mark.parametrize("encoding", [None, "float", "base64"])
def test_answer_is_one_of_openai(form: EmbeddingForm, encoding: str | None) -> None:
    """Numbers as they stood, or in base64; the usage from the body, or from the header."""
    made = translator_of(form)
    made.requests(asked(**({} if encoding is None else {"encoding_format": encoding})), "m")
    made.note_head([(b"content-type", b"application/json"), (b"x-amzn-bedrock-input-token-count", b"3")])
    answer = json.loads(made.answer(json.dumps(ONE[form]).encode()))

    vector = answer["data"][0]["embedding"]
    if encoding == "base64":
        assert struct.unpack("<2f", base64.b64decode(vector)) == (0.5, 2.0)
        answer["data"][0]["embedding"] = [0.5, 2.0]
    else:
        assert vector == [0.5, 2]
    read = CreateEmbeddingResponse.model_validate(answer, strict=True)
    assert (read.model, read.usage.prompt_tokens, read.usage.total_tokens) == ("m", 3, 3)
    assert (made.tokens.input, made.tokens.output) == (3, 0)


def test_several_texts_keep_their_order() -> None:
    """Where the model takes several."""
    made = translator_of(PREDICT)
    assert len(json.loads(made.requests(asked(["a", "b"]), "m")[0])["instances"]) == 2
    told = {"predictions": [{"embeddings": {"values": [n]}} for n in (1, 2)]}
    answer = json.loads(made.answer(json.dumps(told).encode()))
    assert [(each["index"], each["embedding"]) for each in answer["data"]] == [(0, [1]), (1, [2])]
    assert "usage" not in answer and made.tokens.input is None  # nobody has counted
    cohere = translator_of(COHERE)
    cohere.requests(asked(["a", "b"], input_type="search_query"), "m")
    assert len(json.loads(cohere.answer(b'{"embeddings":[[1],[2]]}'))["data"]) == 2


@pytest.mark.parametrize(
    ("form", "body", "param"),
    [
        (TITAN, asked(["a", ""]), "input"),
        (NOVA, asked(["a", 1]), "input"),
        (COHERE, asked(["a"] * 2049), "input"),
        (PREDICT, asked([1, 2]), "input"),
        (PREDICT, asked([[1, 2]]), "input"),
        (PREDICT, asked([]), "input"),
        (PREDICT, asked(""), "input"),
        (PREDICT, asked(None), "input"),
        (PREDICT, b'{"model":"m"}', "input"),
        (PREDICT, asked({"a": 1}), "input"),
        (TITAN, asked(dimensions=0), "dimensions"),
        (TITAN, asked(dimensions="x"), "dimensions"),
        (TITAN, asked(encoding_format="int8"), "encoding_format"),
        (TITAN, b"{", ""),
        (TITAN, b'{"input":"\xff"}', ""),
    ],
)
def test_what_can_not_be_embedded_is_refused(form: EmbeddingForm, body: bytes, param: str) -> None:
    """With the field's name."""
    with pytest.raises(BadRequestError) as refused:
        translator_of(form).requests(body, "m")
    assert refused.value.param == param


@pytest.mark.parametrize(("form", "sizes"), [(CONTENT, [1] * 200), (TITAN, [1] * 200), (COHERE, [96, 96, 8])])
def test_more_texts_than_a_call_takes_are_several_calls(form: EmbeddingForm, sizes: list[int]) -> None:
    """Their vectors come in the order of the texts, whichever call is answered first; their tokens are added up."""
    made = translator_of(form)
    bodies = made.requests(asked([f"text {n}" for n in range(200)]), "m")
    assert [len(set(re.findall(rb"text \d+", body))) for body in bodies] == sizes
    for number in reversed(range(len(sizes))):
        first = sum(sizes[:number])
        vectors = [[n] for n in range(first, first + sizes[number])]
        reply: dict[EmbeddingForm, Any] = {
            CONTENT: {"embedding": {"values": vectors[0]}},
            TITAN: {"embedding": vectors[0]},
            COHERE: {"embeddings": {"float": vectors}},
        }
        made.take(number, [(b"x-amzn-bedrock-input-token-count", b"2")], json.dumps(reply[form]).encode())
    answer = CreateEmbeddingResponse.model_validate(json.loads(made.answer(b"")), strict=True)

    assert [(each.index, each.embedding) for each in answer.data] == [(n, [n]) for n in range(200)]
    assert answer.usage.total_tokens == made.tokens.input == 2 * len(sizes)


def test_tokens_that_a_call_does_not_tell_are_no_sum() -> None:
    """It would pass for all of them."""
    made = translator_of(TITAN)
    made.requests(asked(["a", "b"]), "m")
    made.take(0, [], b'{"embedding":[1],"inputTextTokenCount":3}')
    made.take(1, [], b'{"embedding":[2]}')

    assert "usage" not in json.loads(made.answer(b"")) and made.tokens.input is None


def test_calls_that_were_answered_are_told_though_others_fail() -> None:
    """Nothing, if none was; and no sum that lacks some."""
    made = translator_of(TITAN)
    made.requests(asked(["a", "b", "c"]), "m")
    assert made.usage_so_far() is None
    made.take(2, [], b'{"embedding":[1],"inputTextTokenCount":3}')
    made.take(0, [], b'{"embedding":[1],"inputTextTokenCount":4}')
    assert made.usage_so_far() == TokenUsage(7, 0)
    made.take(1, [], b'{"embedding":[2]}')
    assert made.usage_so_far() == TokenUsage()


def test_what_is_left_out_is_counted() -> None:
    """And refused where the route is strict."""
    dropped = DroppedFields()
    translator_of(TITAN, dropped).requests(asked(user="u", input_type="search_query", other=1), "m")
    assert dropped.names == ("user", "input_type", "unknown")
    with pytest.raises(BadRequestError):
        translator_of(TITAN, DroppedFields(strict=True)).requests(asked(user="u"), "m")


@pytest.mark.parametrize("form", EmbeddingForm)
@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{}", b"[]", b'{"embedding":[]}', b'{"predictions":[]}', b'{"embeddings":[]}', b'{"embeddings":{}}'),
        *(b'{"embedding":["x"]}', b'{"embeddings":[["x"]]}', b'{"embeddings":{"float":[[]]}}', b'{"embeddings":null}'),
    ],
)
def test_reply_without_a_vector_is_broken(form: EmbeddingForm, body: bytes) -> None:
    """Never an answer that looks whole."""
    made = translator_of(form)
    made.requests(asked(), "m")
    with pytest.raises(BrokenReplyError):
        made.answer(body)


def test_number_that_is_too_large_for_base64_is_broken() -> None:
    """It would be infinite."""
    made = translator_of(TITAN)
    made.requests(asked(encoding_format="base64"), "m")
    with pytest.raises(BrokenReplyError):
        made.answer(b'{"embedding":[1e39]}')


def test_clients_of_gemini_get_their_own_shape() -> None:
    """Their requests go by OpenAI's form to the model's."""
    dropped = DroppedFields()
    sides = GenerateClient(ClientCall("a", 1, "m"), dropped), ConverseModel(ModelFacts(), dropped)
    made = ModelEmbeddings(*sides, dropped, COHERE, GoogleEmbeddings(*sides, dropped))
    request = {"content": {"parts": [{"text": "a"}]}, "outputDimensionality": 256}
    bodies = made.requests(json.dumps({"requests": [request]}).encode(), "m")
    assert [json.loads(each) for each in bodies] == [WRITTEN[COHERE]]
    made.note_head([(b"x-amzn-bedrock-input-token-count", b"3")])
    assert json.loads(made.answer(json.dumps(ONE[COHERE]).encode())) == {"embeddings": [{"values": [0.5, 2]}]}
    assert (made.tokens.input, made.tokens.output) == (3, 0)


@pytest.mark.parametrize("form", [EmbeddingForm.PREDICT, EmbeddingForm.CONTENT])
def test_shortened_vectors_of_google_have_the_length_1(form: EmbeddingForm) -> None:
    """C53: as OpenAI's have, whose clients compare them so; others stay as they came."""
    reply: dict[str, Any] = {"predictions": [{"embeddings": {"values": [3, 4]}}]}
    if form is EmbeddingForm.CONTENT:
        reply = {"embedding": {"values": [3, 4]}}
    for dimensions, expected in ((2, [0.6, 0.8]), (None, [3, 4])):
        made = translator_of(form)
        made.requests(asked("a", **({} if dimensions is None else {"dimensions": dimensions})), "m")
        vector = json.loads(made.answer(json.dumps(reply).encode()))["data"][0]["embedding"]
        assert vector == pytest.approx(expected)


def test_lists_of_tokens_are_refused_with_the_clients_option() -> None:
    """C53: LangChain sends them by itself."""
    with pytest.raises(BadRequestError, match="check_embedding_ctx_length=False"):
        translator_of(EmbeddingForm.PREDICT).requests(asked([[1, 2]]), "m")
