"""What files are that clients send without a type, or in the place of pictures; and the detail of pictures."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import ClientCall, ClientSide, Document, Image, Media, MediaKind, ModelSide
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.converse.read_reply import ConverseModel
from velox.dialects.facts.model_facts import UNKNOWN_MODEL, ModelFacts
from velox.dialects.generate.read_reply import GenerateModel
from velox.dialects.media.file_types import file_text, is_text, pictured, typed
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.messages.write_reply import MessagesClient
from velox.dialects.responses.read_reply import ResponsesModel
from velox.dialects.responses.write_reply import ResponsesClient
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS

_CALL: Final = ClientCall("abc", 7, "m")
_PDF: Final = b"%PDF-1.7 \xe2\xe3"
_PNG: Final = b"\x89PNG\r\n\x1a\n\x00\x00"
_CSV: Final = b"a,b\n1,2\n"


def _office(folder: str) -> bytes:
    """Return an office file: an archive whose first entry is the list of its types, compressed."""
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>" * 50)
        archive.writestr("_rels/.rels", "<r/>")
        archive.writestr(f"{folder}/document.xml", "<d/>")
    return found.getvalue()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _typed(data: bytes, name: str | None = None, kind: str | None = None) -> str | None:
    return typed(Media(MediaKind.DATA, _base64(data), kind), name).type


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (_PDF, "application/pdf"),
        (_PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8", "image/webp"),
        (b"RIFF\x00\x00\x00\x00WAVEfmt", "audio/wav"),
        (_office("word"), "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        (_office("xl"), "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
        (_office("ppt"), "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
        (_office("other"), "application/zip"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\x00", "application/msword"),
        (b" <!DOCTYPE html><p>", "text/html"),
        (_CSV, "text/plain"),
        ("größe".encode(), "text/plain"),
        ("größe".encode("utf-16"), "text/plain"),
        (b"\x00\x01\x02\x03", "application/pdf"),
        (b"\xff\xfe", "text/plain"),
        (b"", "application/pdf"),
    ],
)
def test_first_bytes_tell_a_file_without_a_type(data: bytes, kind: str) -> None:
    """C12: a PDF last, where nothing tells."""
    assert _typed(data) == kind
    assert _typed(data, "no extension") == kind
    assert _typed(data, None, "application/octet-stream") == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("plan.docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        ("a.b.XLSX", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
        ("a.csv", "text/csv"),
        ("a.md", "text/markdown"),
        ("a.html", "text/html"),
        ("main.py", "text/plain"),
    ],
)
def test_type_then_name_then_bytes(name: str, kind: str) -> None:
    """C12: what the client says counts before what is there."""
    assert _typed(_PDF, name) == kind
    assert _typed(_PDF, name, "application/octet-stream") == kind
    assert _typed(_PDF, name, "text/x-own") == "text/x-own"


def test_addresses_and_ids_stay() -> None:
    """Nothing is known of what is elsewhere."""
    for kind in (MediaKind.URL, MediaKind.ID):
        source = Media(kind, "https://a.example/a")
        assert typed(source, "a.pdf") is source
        assert pictured(source) == Image(source)


@given(st.binary(max_size=40), st.sampled_from([0, 1, 2, 3]))
def test_anything_has_a_type(data: bytes, cut: int) -> None:
    """Also what is no base64, or is cut."""
    text = _base64(data)
    assert typed(Media(MediaKind.DATA, text[: len(text) - cut])).type
    assert typed(Media(MediaKind.DATA, "?" + text)).type == "application/pdf"


@given(st.text())
def test_texts_of_files_are_read_in_their_encoding(text: str) -> None:
    """UTF-8 and UTF-16, with their marks."""
    text = text.lstrip("\ufeff")
    for encoding in ("utf-8-sig", "utf-16"):
        assert file_text(Media(MediaKind.DATA, _base64(text.encode(encoding, "replace")))) == text.encode(
            "utf-16", "replace"
        ).decode("utf-16")


@pytest.mark.parametrize("kind", ["text/csv", "application/json; charset=utf-8", "application/ld+json", "text/x-c"])
def test_types_of_texts(kind: str) -> None:
    assert is_text(kind) and not is_text("application/pdf") and not is_text("image/svg+xml") and not is_text(None)


# -- crossed ----------------------------------------------------------------------------------------------


def _chat(*parts: Any) -> tuple[ClientSide, bytes]:
    given = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, *parts]}]}
    return ChatClient(_CALL, DroppedFields()), json.dumps(given).encode()


def _responses(*parts: Any) -> tuple[ClientSide, bytes]:
    given = {"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}, *parts]}]}
    return ResponsesClient(_CALL, DroppedFields()), json.dumps(given).encode()


def _sent(model: ModelSide, client: ClientSide, body: bytes) -> Any:
    return json.loads(model.write(client.read(body), "m").body)


def _claude() -> ModelSide:
    return MessagesModel(ModelFacts(thinking="budget"), DroppedFields())


def _file(name: str | None, data: str) -> dict[str, Any]:
    return {"type": "file", "file": {"file_data": data, **({"filename": name} if name else {})}}


def _input_file(name: str | None, data: str) -> dict[str, Any]:
    return {"type": "input_file", "file_data": data, **({"filename": name} if name else {})}


_FileRequest = Callable[[str | None, str], tuple[ClientSide, bytes]]
_FILES: Final[list[_FileRequest]] = [
    lambda name, data: _chat(_file(name, data)),
    lambda name, data: _responses(_input_file(name, data)),
]


@pytest.mark.parametrize("request_of", _FILES)
@pytest.mark.parametrize(
    ("name", "data", "form"),
    [
        ("plan.docx", _base64(_office("word")), "docx"),
        (None, _base64(_office("xl")), "xlsx"),
        ("a.csv", _base64(_CSV), "csv"),
        ("a.md", _base64(_CSV), "md"),
        ("a.html", _base64(_CSV), "html"),
        (None, _base64(_CSV), "txt"),
        ("a.json", _base64(b"{}"), "txt"),
        (None, "data:application/octet-stream;base64," + _base64(_PDF), "pdf"),
        (None, "data:;base64," + _base64(_PDF), "pdf"),
    ],
)
def test_converse_is_told_the_format(request_of: _FileRequest, name: str | None, data: str, form: str) -> None:
    """C12: from a bare base64, or one without a useful type."""
    body = _sent(ConverseModel(ModelFacts(thinking="budget"), DroppedFields()), *request_of(name, data))

    assert body["messages"][0]["content"][1]["document"]["format"] == form


@pytest.mark.parametrize("request_of", _FILES)
@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.csv", "a.json", "a.py", None])
def test_claude_gets_texts_as_texts(request_of: _FileRequest, name: str | None) -> None:
    """C12: they are no PDFs."""
    body = _sent(_claude(), *request_of(name, _base64(_CSV)))

    source = body["messages"][0]["content"][1]["source"]
    assert source == {"type": "text", "media_type": "text/plain", "data": _CSV.decode()}


@pytest.mark.parametrize("request_of", _FILES)
def test_claude_gets_a_pdf_that_is_called_a_stream_of_bytes(request_of: _FileRequest) -> None:
    """C12: by its name, and by its first bytes."""
    for name in ("a.pdf", None):
        body = _sent(_claude(), *request_of(name, "data:application/octet-stream;base64," + _base64(_PDF)))

        source = body["messages"][0]["content"][1]["source"]
        assert source == {"type": "base64", "media_type": "application/pdf", "data": _base64(_PDF)}


def test_office_files_are_refused_where_they_are_not_read() -> None:
    """C12: Claude has no such documents, so another target may be asked."""
    with pytest.raises(BadRequestError, match="wordprocessing"):
        _sent(_claude(), *_chat(_file("plan.docx", _base64(_office("word")))))


def test_texts_are_parts_of_text_for_chat() -> None:
    """C12: most servers know no files at all, and OpenAI's API takes only PDFs so."""
    body = _sent(ChatModel(UNKNOWN_MODEL, DroppedFields()), *_responses(_input_file("a.csv", _base64(_CSV))))

    assert body["messages"][0]["content"][1] == {"type": "text", "text": "a.csv\n\na,b\n1,2\n"}


def test_texts_are_sent_where_no_files_are_taken() -> None:
    """C12: Perplexity's Responses refuses the part, not what it says."""
    model = ResponsesModel(facts_of(PROVIDERS["perplexity"], "sonar"), DroppedFields(), "perplexity")

    body = _sent(model, *_chat(_file("a.csv", _base64(_CSV))))

    assert "a,b\\n1,2" in json.dumps(body)


def _pdf_as_picture(kind: str) -> tuple[ClientSide, bytes]:
    url = "data:application/pdf;base64," + _base64(_PDF)
    if kind == "chat":
        return _chat({"type": "image_url", "image_url": {"url": url}})
    if kind == "responses":
        return _responses({"type": "input_image", "image_url": url})
    source = {"type": "base64", "media_type": "application/pdf", "data": _base64(_PDF)}
    given = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}],
    }
    return MessagesClient(_CALL, DroppedFields()), json.dumps(given).encode()


@pytest.mark.parametrize("client", ["chat", "responses", "messages"])
def test_pdf_in_the_place_of_a_picture_is_a_file(client: str) -> None:
    """C11: as others take it; its type is said."""
    assert _sent(_claude(), *_pdf_as_picture(client))["messages"][0]["content"][-1]["type"] == "document"
    converse = ConverseModel(ModelFacts(thinking="budget"), DroppedFields())
    assert "document" in json.dumps(_sent(converse, *_pdf_as_picture(client)))
    gemini = _sent(GenerateModel(UNKNOWN_MODEL, DroppedFields()), *_pdf_as_picture(client))
    assert gemini["contents"][0]["parts"][-1]["inlineData"]["mimeType"] == "application/pdf"
    chat = _sent(ChatModel(UNKNOWN_MODEL, DroppedFields()), *_pdf_as_picture(client))
    assert chat["messages"][0]["content"][-1]["type"] == "file"


def test_text_in_the_place_of_a_picture_is_a_text() -> None:
    """C11: and a picture without a type is one by its bytes."""
    picture, text = pictured(Media(MediaKind.DATA, _base64(_PNG))), pictured(Media(MediaKind.DATA, _base64(_CSV)))

    assert isinstance(picture, Image) and picture.source.type == "image/png"
    assert isinstance(text, Document) and text.source.type == "text/plain"
    assert pictured(Media(MediaKind.DATA, _base64(_CSV), "image/png")) == Image(
        Media(MediaKind.DATA, _base64(_CSV), "image/png")
    )


@pytest.mark.parametrize(
    ("provider", "model", "asked", "taken", "is_dropped"),
    [
        ("openai", "gpt-4o", "original", "high", True),
        ("openai", "gpt-4o", "low", "low", False),
        ("openai", "gpt-5.6", "original", "original", False),
        ("vllm", "qwen3", "original", "high", True),
        ("vllm", "qwen3", "closest", None, True),
        ("perplexity", "sonar", "high", None, True),
    ],
)
def test_details_of_pictures_are_those_that_are_taken(
    provider: str, model: str, asked: str, taken: str | None, is_dropped: bool
) -> None:
    """C10: the next lower one of a closed list, in both of OpenAI's APIs; what is none of them is left out."""
    facts = facts_of(PROVIDERS[provider], model)
    given = _responses({"type": "input_image", "image_url": "https://a.example/a.png", "detail": asked})
    for side in (ChatModel, ResponsesModel):
        dropped = DroppedFields()
        sent = _sent(side(facts, dropped, provider), *given)
        part = (sent.get("messages") or sent["input"])[0]["content"][1]
        found = part["image_url"].get("detail") if side is ChatModel else part.get("detail")
        assert (found, dropped.names) == (taken, ("detail",) if is_dropped else ())


def test_detail_is_named_where_it_has_no_counterpart() -> None:
    """C10: also at Gemini, which has none for a part."""
    dropped = DroppedFields()
    given = _chat({"type": "image_url", "image_url": {"url": "https://a.example/a.png", "detail": "high"}})

    _sent(GenerateModel(UNKNOWN_MODEL, dropped), *given)

    assert dropped.names == ("detail",)


def test_base64_in_lines_and_of_the_other_alphabet_is_read() -> None:
    """C12: as mail has it, and addresses."""
    text = b"\xc3\xbf?" * 40 + _CSV
    for data in (base64.encodebytes(text).decode(), base64.urlsafe_b64encode(text).decode()):
        assert typed(Media(MediaKind.DATA, data)).type == "text/plain"
        assert file_text(Media(MediaKind.DATA, data)) == text.decode()


def test_files_are_refused_where_a_server_knows_none() -> None:
    """K1: Groq's messages have texts and pictures; a text is sent as one."""
    facts = facts_of(PROVIDERS["groq"], "llama-4")
    with pytest.raises(BadRequestError, match="no files"):
        _sent(ChatModel(facts, DroppedFields(), "groq"), *_chat(_file("a.pdf", _base64(_PDF))))
    body = _sent(ChatModel(facts, DroppedFields(), "groq"), *_chat(_file("a.txt", _base64(_CSV))))
    assert body["messages"][0]["content"][1]["type"] == "text"
