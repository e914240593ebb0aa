"""What a search of the web has found: its pages, and the words that they are the source of, in every dialect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from google.genai.types import GenerateContentResponse
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from velox.dialects.as_sent.foreign_history import without_foreign
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import Citation, ClientCall, ClientSide, ModelSide, Source
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.generate.read_reply import GenerateModel
from velox.dialects.generate.write_reply import GenerateClient
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.messages.write_reply import MessagesClient
from velox.dialects.responses.read_reply import ResponsesModel
from velox.dialects.responses.write_reply import ResponsesClient
from velox.dialects.streams.citations import bytes_to_characters, cited_pieces
from velox.gateway.translation.translators import GenerationTranslator
from velox.providers.rows import PROVIDERS
from velox.types import ApiKind

_FACTS: Final = ModelFacts(web_search="web_search", thinking="none")
_CALL: Final = ClientCall("vx1", 7, "m")
_A, _B = "https://a.example/x", "https://b.example/y"
# Its letters have one to four bytes; its words are cited for pages A, B and both.
_BEGINNING, _FIRST, _BETWEEN, _SECOND = "Øl 🍺: ", "Żywiec is old", ", and ", "Tyskie, too 🍻."
_TEXT: Final = _BEGINNING + _FIRST + _BETWEEN + _SECOND
_CITED: Final = {(_FIRST, _A), (_SECOND, _A), (_SECOND, _B)}
_QUERY: Final = "polish beer"


def _span(words: str) -> dict[str, int]:
    at = _TEXT.index(words)
    return {"start_index": at, "end_index": at + len(words)}


def _page(url: str) -> dict[str, Any]:
    return {"url": url, "title": f"At {url[8:9]}"}


_ANNOTATIONS: Final = [
    {"type": "url_citation", **_span(words), **_page(url)}
    for words, url in sorted(_CITED, key=lambda each: _TEXT.index(each[0]))
]


def _location(url: str) -> dict[str, Any]:
    return {"type": "web_search_result_location", **_page(url), "cited_text": "Quoted", "encrypted_index": "E"}


_CLAUDES_BLOCKS: Final[list[dict[str, Any]]] = [
    {"type": "server_tool_use", "id": "srvtoolu_01", "name": "web_search", "input": {"query": _QUERY}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_01",
        "content": [{"type": "web_search_result", **_page(url), "encrypted_content": "E"} for url in (_A, _B)],
    },
    {"type": "text", "text": _BEGINNING},
    {"type": "text", "text": _FIRST, "citations": [_location(_A)]},
    {"type": "text", "text": _BETWEEN},
    {"type": "text", "text": _SECOND, "citations": [_location(_A), _location(_B)]},
]
_USED: Final = {"input_tokens": 1, "output_tokens": 1}
_MESSAGE: Final = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "usage": _USED}


def _bytes(words: str) -> dict[str, Any]:
    first = len(_TEXT[: _TEXT.index(words)].encode())
    return {"startIndex": first, "endIndex": first + len(words.encode()), "text": words}


_GROUNDING: Final = {
    "webSearchQueries": [_QUERY],
    "groundingChunks": [{"web": {"uri": url, "title": f"At {url[8:9]}"}} for url in (_A, _B)],
    "groundingSupports": [
        {"segment": _bytes(_FIRST), "groundingChunkIndices": [0]},
        {"segment": _bytes(_SECOND), "groundingChunkIndices": [0, 1]},
    ],
}
_SEARCH_CALL: Final = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {
        "type": "search",
        "query": _QUERY,
        "queries": [_QUERY],
        "sources": [{"type": "url", "url": url} for url in (_A, _B)],
    },
}


def _sse(*events: Any) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in events)


def _generated(parts: list[Any], **more: Any) -> dict[str, Any]:
    return {"responseId": "g", "modelVersion": "m", "candidates": [{"content": {"parts": parts}, "index": 0, **more}]}


def _output(annotations: list[Any]) -> list[Any]:
    part = {"type": "output_text", "text": _TEXT, "annotations": annotations, "logprobs": []}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    return [_SEARCH_CALL, message]


def _reply(status: str, output: list[Any]) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "model": "m", "status": status, "output": output}


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


_CHAT_ANNOTATIONS: Final = [
    {"type": "url_citation", "url_citation": {name: value for name, value in each.items() if name != "type"}}
    for each in _ANNOTATIONS
]


def _claude_stream() -> Iterator[Any]:
    yield {"type": "message_start", "message": {**_MESSAGE, "content": []}}
    for index, block in enumerate(_CLAUDES_BLOCKS):
        begun, deltas = dict(block), []
        if block["type"] == "server_tool_use":
            begun["input"] = {}
            text = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": each} for each in (text[:6], text[6:])]
        elif block["type"] == "text":
            begun = {"type": "text", "text": ""}
            text = block["text"]
            deltas = [{"type": "citations_delta", "citation": each} for each in block.get("citations", ())]
            deltas += [{"type": "text_delta", "text": each} for each in (text[:4], text[4:])]
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": _USED}
    yield {"type": "message_stop"}


def _openai_stream() -> Iterator[Any]:
    yield {"type": "response.created", "response": _reply("in_progress", [])}
    yield {"type": "response.output_item.added", "output_index": 0, "item": {**_SEARCH_CALL, "status": "in_progress"}}
    yield {"type": "response.output_item.done", "output_index": 0, "item": _SEARCH_CALL}
    at = {"output_index": 1, "content_index": 0, "item_id": "msg_1"}
    yield {"type": "response.content_part.added", **at, "part": {"type": "output_text", "text": "", "annotations": []}}
    said = 0
    for n, each in enumerate(_ANNOTATIONS):
        end = each["end_index"]
        if end > said:
            yield {"type": "response.output_text.delta", **at, "delta": _TEXT[said:end]}
            said = end
        yield {"type": "response.output_text.annotation.added", **at, "annotation_index": n, "annotation": each}
    item = _output(_ANNOTATIONS)[1]
    yield {"type": "response.content_part.done", **at, "part": item["content"][0]}
    yield {"type": "response.output_item.done", "output_index": 1, "item": item}
    yield {"type": "response.completed", "response": _reply("completed", _output(_ANNOTATIONS))}


# Each model's API: what asks it, a plain reply, and the same as a stream.
_MODELS: Final[Mapping[str, tuple[Callable[[DroppedFields], ModelSide], Any, bytes]]] = {
    "messages": (
        lambda dropped: MessagesModel(_FACTS, dropped),
        {**_MESSAGE, "content": _CLAUDES_BLOCKS, "stop_reason": "end_turn", "stop_sequence": None},
        _sse(*_claude_stream()),
    ),
    "responses": (
        lambda dropped: ResponsesModel(_FACTS, dropped),
        _reply("completed", _output(_ANNOTATIONS)),
        _sse(*_openai_stream()),
    ),
    "chat": (
        lambda dropped: ChatModel(_FACTS, dropped, "openrouter"),
        {
            "id": "c",
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": _TEXT, "annotations": _CHAT_ANNOTATIONS},
                    "finish_reason": "stop",
                }
            ],
        },
        _sse(
            *(_chunk({"content": each}) for each in (_TEXT[:9], _TEXT[9:])),
            _chunk({"content": "", "annotations": _CHAT_ANNOTATIONS}),
            _chunk({}, "stop"),
        ),
    ),
    "generate": (
        lambda dropped: GenerateModel(ModelFacts(web_search="googleSearch"), dropped),
        _generated([{"text": _TEXT}], finishReason="STOP", groundingMetadata=_GROUNDING),
        _sse(
            _generated([{"text": _TEXT[:9]}]),
            _generated([{"text": _TEXT[9:], "thoughtSignature": "AA=="}]),
            _generated([{"text": ""}], finishReason="STOP", groundingMetadata=_GROUNDING),
        ),
    ),
}
_ASK: Final[Mapping[str, Any]] = {
    "messages": {
        "model": "m",
        "max_tokens": 99,
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
    },
    "responses": {
        "model": "m",
        "input": "Hi",
        "tools": [{"type": "web_search"}],
        "include": ["web_search_call.action.sources"],
    },
    "chat": {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "web_search"}]},
    "generate": {"contents": [{"parts": [{"text": "Hi"}]}], "tools": [{"googleSearch": {}}]},
}
_CLIENTS: Final[Mapping[str, Callable[[DroppedFields], ClientSide]]] = {
    "messages": lambda dropped: MessagesClient(_CALL, dropped),
    "responses": lambda dropped: ResponsesClient(_CALL, dropped),
    "chat": lambda dropped: ChatClient(_CALL, dropped),
    "generate": lambda dropped: GenerateClient(_CALL, dropped),
}
_EVENT: Final[TypeAdapter[Any]] = TypeAdapter(RawMessageStreamEvent)
_RESPONSES_EVENT: Final[TypeAdapter[Any]] = TypeAdapter(ResponseStreamEvent)


def _crossed(client: str, model: str, *, stream: bool, n_bytes: int = 0) -> tuple[bytes, DroppedFields]:
    """Return what the client gets. n_bytes: of each read of a stream; 0: all at once."""
    dropped = DroppedFields()
    make, plain, streamed = _MODELS[model]
    translator = GenerationTranslator(_CLIENTS[client](dropped), make(dropped), dropped)
    translator.request(json.dumps(_ASK[client]).encode(), "m")
    if not stream:
        return translator.answer(json.dumps(plain).encode()), dropped
    translated = translator.stream()
    size = n_bytes or len(streamed)
    told = b"".join(translated.feed(streamed[at : at + size], False) for at in range(0, len(streamed), size))
    return told + translated.feed(b"", True), dropped


def _events(body: bytes) -> list[Any]:
    lines = [line[6:] for line in body.splitlines() if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


class _Read:
    """What a client's SDK reads: the text, (words, url) of citations, and pages and queries of searches."""

    def __init__(self) -> None:
        self.text = ""
        self.cited: set[tuple[str, str]] = set()
        self.pages: set[str] = set()
        self.queries: set[str] = set()


def _read_message(message: Message) -> _Read:
    read = _Read()
    for block in message.content:
        if block.type == "text":
            read.text += block.text
            for each in block.citations or ():
                assert each.type == "web_search_result_location"
                assert each.title
                read.cited.add((block.text, each.url))
        elif block.type == "server_tool_use":
            read.queries.add(str(block.input["query"]))
        elif block.type == "web_search_tool_result":
            assert isinstance(block.content, list)
            read.pages |= {page.url for page in block.content}
    return read


def _read_response(response: Response) -> _Read:
    read = _Read()
    for item in response.output:
        if item.type == "web_search_call":
            assert item.action.type == "search"
            read.queries |= set(item.action.queries or ())
            read.pages |= {str(getattr(page, "url", "")) for page in item.action.sources or ()}
        elif item.type == "message":
            for part in item.content:
                assert part.type == "output_text"
                read.text += part.text
                for each in part.annotations:
                    assert each.type == "url_citation"
                    read.cited.add((part.text[each.start_index : each.end_index], each.url))
    return read


def _read_google(texts: str, grounding: Any) -> _Read:
    read = _Read()
    read.text = texts
    read.queries = set(grounding.web_search_queries)
    pages = [chunk.web.uri for chunk in grounding.grounding_chunks]
    read.pages = set(pages)
    for support in grounding.grounding_supports:
        segment = support.segment
        words = texts.encode()[segment.start_index or 0 : segment.end_index].decode()
        assert segment.text == words
        read.cited |= {(words, pages[index]) for index in support.grounding_chunk_indices}
    return read


def _read(client: str, body: bytes, *, stream: bool) -> _Read:
    if client == "messages":
        if not stream:
            return _read_message(Message.model_validate_json(body))
        snapshot: Any = None
        buffers: dict[int, bytes] = {}
        for event in _events(body):
            parsed = _EVENT.validate_python(event)
            snapshot = accumulate_event(event=parsed, current_snapshot=snapshot, json_bufs=buffers)
        return _read_message(snapshot)
    if client == "responses":
        if not stream:
            return _read_response(Response.model_validate_json(body))
        events = [_RESPONSES_EVENT.validate_python(event) for event in _events(body)]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        whole = _read_response(events[-1].response)
        added = [event.annotation for event in events if event.type == "response.output_text.annotation.added"]
        assert {each.url for each in added} == {url for _, url in whole.cited}
        return whole
    if client == "chat":
        read = _Read()
        annotations: list[Any] = []
        if stream:
            for event in _events(body):
                for choice in ChatCompletionChunk.model_validate(event).choices:
                    read.text += choice.delta.content or ""
                    annotations += getattr(choice.delta, "annotations", None) or ()
        else:
            message = ChatCompletion.model_validate_json(body).choices[0].message
            read.text = message.content or ""
            annotations = [each.model_dump() for each in message.annotations or ()]
        for each in annotations:
            page = each["url_citation"]
            read.cited.add((read.text[page["start_index"] : page["end_index"]], page["url"]))
        return read
    if not stream:
        reply = GenerateContentResponse.model_validate_json(body)
        candidate = (reply.candidates or [])[0]
        found = _Read()
        parts = [part.text or "" for part in (candidate.content and candidate.content.parts) or ()]
        grounding: Any = candidate.grounding_metadata
        pages = [chunk.web.uri for chunk in grounding.grounding_chunks]
        for support in grounding.grounding_supports:
            part = parts[support.segment.part_index or 0].encode()
            words = part[support.segment.start_index or 0 : support.segment.end_index].decode()
            assert support.segment.text == words
            found.cited |= {(words, pages[index]) for index in support.grounding_chunk_indices}
        found.text, found.pages, found.queries = "".join(parts), set(pages), set(grounding.web_search_queries)
        return found
    replies = [GenerateContentResponse.model_validate(event) for event in _events(body)]
    texts = "".join(part.text or "" for reply in replies for part in reply.candidates[0].content.parts)  # type: ignore[index,union-attr]
    return _read_google(texts, replies[-1].candidates[0].grounding_metadata)  # type: ignore[index]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", _MODELS)
@pytest.mark.parametrize("client", _CLIENTS)
def test_citations_reach_every_client(client: str, model: str, stream: bool) -> None:
    """What a search found is in the client's own form, as its SDK reads it: words, pages, and the search itself."""
    body, dropped = _crossed(client, model, stream=stream)

    read = _read(client, body, stream=stream)

    assert read.text == _TEXT
    if client == "messages" and stream and model != "messages":
        # A block that has gone out can't be cut any more: its citations are of all that it has said.
        assert {url for _, url in read.cited} == {_A, _B}
    else:
        assert read.cited == _CITED
    if client == "chat":
        assert ("answer.tools.hosted" in dropped.names) == (model != "chat")
    elif model != "chat":
        assert (read.queries, read.pages, dropped.names) == ({_QUERY}, {_A, _B}, ())


@pytest.mark.parametrize("model", _MODELS)
@pytest.mark.parametrize("client", _CLIENTS)
def test_cuts_of_a_stream_change_no_citation(client: str, model: str) -> None:
    """Citations stand where they do however the bytes of a stream are cut, also within a character."""
    whole = _read(client, _crossed(client, model, stream=True)[0], stream=True)
    for size in (1, 7):
        cut = _read(client, _crossed(client, model, stream=True, n_bytes=size)[0], stream=True)
        assert (cut.text, cut.cited, cut.pages) == (whole.text, whole.cited, whole.pages)


@pytest.mark.parametrize("model", ["responses", "chat", "generate"])
def test_blocks_of_other_searches_never_reach_anthropic(model: str) -> None:
    """Anthropic refuses results that it has not encrypted: they are taken out of the history that goes to it."""
    answer = json.loads(_crossed("messages", model, stream=False)[0])
    asked = {
        **_ASK["messages"],
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": answer["content"]}],
    }
    dropped = DroppedFields(strict=True)

    sent = json.loads(
        without_foreign(json.dumps(asked).encode(), ApiKind.MESSAGES, _FACTS, PROVIDERS["anthropic"].traits)
    )
    request = MessagesClient(_CALL, dropped).read(json.dumps(asked).encode())

    blocks = sent["messages"][1]["content"]
    assert "".join(block["text"] for block in blocks) == _TEXT
    assert all(not block.get("citations") for block in blocks)
    assert len(request.messages[1].blocks) == len(blocks)


def test_citations_of_anthropics_own_stay_in_its_history() -> None:
    """What Anthropic has encrypted goes back to it byte for byte."""
    body = json.dumps({**_ASK["messages"], "messages": [{"role": "assistant", "content": _CLAUDES_BLOCKS}]}).encode()
    assert without_foreign(body, ApiKind.MESSAGES, _FACTS, PROVIDERS["anthropic"].traits) is body


def test_search_of_ours_never_reaches_openai() -> None:
    """OpenAI looks for an item under its id: one that was made here is taken out, also of a strict route."""
    answer = json.loads(_crossed("responses", "messages", stream=False)[0])
    body = json.dumps({**_ASK["responses"], "input": answer["output"]}).encode()
    dropped = DroppedFields(strict=True)

    sent = json.loads(without_foreign(body, ApiKind.RESPONSES, _FACTS, PROVIDERS["openai"].traits))
    ResponsesClient(_CALL, dropped).read(body)

    assert {item["type"] for item in sent["input"]} == {"message"}
    own = json.dumps({"input": [{**_SEARCH_CALL, "id": "ws_0a1b"}]}).encode()
    assert without_foreign(own, ApiKind.RESPONSES, _FACTS, PROVIDERS["openai"].traits) is own


def test_pages_of_a_search_are_asked_for() -> None:
    """OpenAI tells the pages of a search only to those that ask for them."""
    dropped = DroppedFields()
    request = MessagesClient(_CALL, dropped).read(json.dumps(_ASK["messages"]).encode())
    assert json.loads(ResponsesModel(_FACTS, dropped, lists_sources=True).write(request, "m").body)["include"] == [
        "web_search_call.action.sources"
    ]
    request = MessagesClient(_CALL, dropped).read(json.dumps(_ASK["messages"]).encode())
    assert "include" not in json.loads(ResponsesModel(_FACTS, dropped, "xai").write(request, "m").body)


def test_citations_without_a_page_are_named() -> None:
    """What has no place in the client's dialect is a loss with a name: documents, and files."""
    text = {
        "type": "text",
        "text": "Hi",
        "citations": [{"type": "char_location", "cited_text": "x", "document_index": 0}],
    }
    dropped = DroppedFields()
    translator = GenerationTranslator(_CLIENTS["responses"](dropped), _MODELS["messages"][0](dropped), dropped)
    translator.request(json.dumps(_ASK["responses"]).encode(), "m")
    translator.answer(json.dumps({**_MESSAGE, "content": [text], "stop_reason": "end_turn"}).encode())
    assert dropped.names == ("answer.citations",)


def test_link_is_cited_with_the_words_before_it() -> None:
    """OpenAI's indexes are those of a link in the text: Anthropic's block has the words that it is for."""
    text = "It rains ([a](https://a.example/x)). More."
    start = text.index("(")
    cited = Citation(Source(_A), start, text.index(".", start + 30))
    assert cited_pieces(text, [cited]) == [(text[: cited.end], (cited,)), (". More.", ())] or cited_pieces(
        text, [cited]
    )[0][1] == (cited,)


@given(st.text(max_size=40), st.lists(st.tuples(st.integers(-3, 45), st.integers(-3, 45)), max_size=6))
def test_pieces_are_the_text(text: str, bounds: list[tuple[int, int]]) -> None:
    """However citations overlap, the pieces are the text, and no citation gets lost."""
    cited = [Citation(Source(f"https://{n}.example/"), *each) for n, each in enumerate(bounds)]
    pieces = cited_pieces(text, cited)
    assert "".join(words for words, _ in pieces) == text
    assert sorted(each.source.url for _, found in pieces for each in found) == sorted(each.source.url for each in cited)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30), st.integers(0, 30))
def test_bytes_and_characters_agree(text: str, at: int) -> None:
    """An offset in bytes is that of the same character."""
    at = min(at, len(text))
    assert bytes_to_characters(text, len(text[:at].encode())) == at
