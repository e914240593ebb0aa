"""Pictures, sounds, films and documents as Converse takes them: bytes with a format, or a place in S3.

Knows: the formats of Bedrock's runtime, the rules for documents' names. Does not know: messages.
"""

from __future__ import annotations

import re
from typing import Final

from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import Audio, Document, Image, Media, MediaKind
from velox.dialects.json_text.text import quoted
from velox.dialects.media.file_types import is_text
from velox.protocol.slices import as_base64, concatenated, text_slices

__all__ = ["DocumentNames", "audio_block", "document_block", "image_block", "is_film"]

_IMAGES: Final = {"png": "png", "jpeg": "jpeg", "jpg": "jpeg", "pjpeg": "jpeg", "gif": "gif", "webp": "webp"}
_DOCUMENTS: Final = {
    "pdf": "pdf",
    "csv": "csv",
    "msword": "doc",
    "doc": "doc",
    "vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "docx": "docx",
    "vnd.ms-excel": "xls",
    "xls": "xls",
    "vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "xlsx": "xlsx",
    "html": "html",
    "htm": "html",
    "xhtml+xml": "html",
    "plain": "txt",
    "txt": "txt",
    "markdown": "md",
    "x-markdown": "md",
    "md": "md",
}
_AUDIO: Final = {
    each: each for each in ("mp3", "opus", "wav", "aac", "flac", "mp4", "ogg", "mkv", "m4a", "mpeg", "pcm", "webm")
} | {"x-wav": "wav", "wave": "wav", "x-m4a": "m4a", "pcm16": "pcm", "x-flac": "flac"}

_VIDEO: Final = {each: each for each in ("mkv", "mov", "mp4", "webm", "flv", "mpeg", "mpg", "wmv")} | {
    "quicktime": "mov",
    "x-matroska": "mkv",
    "x-flv": "flv",
    "x-ms-wmv": "wmv",
    "3gpp": "three_gp",
    "3gp": "three_gp",
}

# What a name may not have, and where one character would follow its like.
_OTHER: Final = re.compile(r"[^a-zA-Z0-9\-()\[\]\s]+")
_SPACES: Final = re.compile(r"\s+")
_MOST_NAME: Final = 190  # of 200; a number may follow
_LOOKED_AT: Final = 4096  # of a name: runs become one character


class DocumentNames:
    """The names of the documents of one request: each has one, and no two have the same."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: Final[dict[str, int]] = {}  # with the number that the next one of the name gets

    def fit(self, name: str | None) -> str:
        """Return the name as the service takes it; the same documents always have the same ones."""
        stem = (
            _SPACES.sub(" ", _OTHER.sub("-", (name or "")[:_LOOKED_AT])).strip(" -")[:_MOST_NAME].strip(" -")
            or "Document"
        )
        fitted, n = stem, self._taken.get(stem, 1)
        while fitted in self._taken:
            n += 1
            fitted = f"{stem} {n}"
        self._taken[stem] = n
        self._taken.setdefault(fitted, 1)
        return fitted


def image_block(image: Image, path: str) -> bytes:
    """Write a picture. path: of the message, for errors. Raises BadRequestError."""
    written = _source(image.source, "picture", path)
    form = _format(_IMAGES, image.source, None, "picture", path)
    return b'{"image":{"format":"%b","source":%b}}' % (form, written)


def audio_block(audio: Audio, path: str) -> bytes:
    """Write a sound. Raises BadRequestError."""
    written = _source(audio.source, "sound", path)
    form = _format(_AUDIO, audio.source, audio.format, "sound", path)
    return b'{"audio":{"format":"%b","source":%b}}' % (form, written)


def is_film(document: Document) -> bool:
    """True for a video, which other dialects have as a file."""
    return (document.source.type or "").startswith("video/")


def document_block(document: Document, names: DocumentNames, path: str) -> bytes:
    """Write a document, which may be a film. Raises BadRequestError."""
    source = document.source
    if is_film(document):
        written = _source(source, "video", path)
        return b'{"video":{"format":"%b","source":%b}}' % (_format(_VIDEO, source, None, "video", path), written)
    if source.kind is MediaKind.TEXT:
        form = b"txt"
        text = as_base64(concatenated(piece.encode("utf-8", "replace") for piece in text_slices(source.value)))
        written = b'{"bytes":"%b"}' % text.encode("ascii")
    else:
        extension = document.name.rpartition(".")[2].lower() if document.name else None
        written = _source(source, "document", path)
        if is_text(source.type) and _subtype(source) not in _DOCUMENTS:
            extension = "txt"
        form = _format(_DOCUMENTS, source, extension, "document", path)
    more = b""
    if document.context is not None:
        more += b',"context":' + document.context
    if document.citations:
        more += b',"citations":{"enabled":true}'
    name = quoted(names.fit(document.name))
    return b'{"document":{"format":"%b","name":%b,"source":%b%b}}' % (form, name, written, more)


def _format(known: dict[str, str], source: Media, said: str | None, what: str, path: str) -> bytes:
    """Return the format by the media type, else by what the client said of it, else by where it is."""
    subtype = _subtype(source)
    extension = source.value.rpartition(".")[2].lower() if source.kind is MediaKind.URL else ""
    form = known.get(subtype) or known.get(said or "") or known.get(extension)
    if form is None:
        formats = ", ".join(dict.fromkeys(known.values()))
        raise BadRequestError(f"the format of this {what} is not known to this model's API; it takes {formats}", path)
    return form.encode("ascii")


def _subtype(source: Media) -> str:
    return (source.type or "").partition(";")[0].strip().rpartition("/")[2].lower()


def _source(source: Media, what: str, path: str) -> bytes:
    match source.kind:
        case MediaKind.DATA:
            return b'{"bytes":%b}' % quoted(source.value)
        case MediaKind.URL if source.value.startswith("s3://"):
            return b'{"s3Location":{"uri":%b}}' % quoted(source.value)
        case MediaKind.URL:
            message = f"this model's API can't fetch a {what} by URL; send its data, or an s3:// URL"
            raise BadRequestError(message, path)
        case MediaKind.ID:
            raise BadRequestError(f"this model's API has no files; send the {what}'s data", path)
        case MediaKind.TEXT:
            raise BadRequestError(f"a {what} can't be plain text", path)
