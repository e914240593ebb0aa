"""What a file is that a client sends: by its media type, else by the extension of its name, else by its first bytes.

Documents of text, for models that take only texts, are one text: the title and the context of a document go first.

Clients send office files and texts as bare base64, or as "application/octet-stream", with a name or without
(maximhq/bifrost#5472); and PDFs where pictures stand, which others take (BerriAI/litellm). Where nothing tells, it is a
PDF, which most such files are.

Source: IANA's registry of media types; the signatures of the formats' own specifications.

Knows: types, extensions, first bytes. Does not know: any dialect, or which types a target takes.
"""

from __future__ import annotations

import codecs
import re
from types import MappingProxyType
from typing import Final

from velox.dialects.canonical.model import CacheMark, Document, Image, JsonText, Media, MediaKind
from velox.dialects.json_text.text import is_blank, joined, quoted
from velox.protocol.slices import SLICE_BYTES, from_base64, joined_text, text_slices

__all__ = ["EXTENSIONS", "PDF", "data_text", "document_text", "file_text", "is_text", "pictured", "typed"]

PDF: Final = "application/pdf"
_PLAIN: Final = "text/plain"
_OFFICE: Final = "application/vnd.openxmlformats-officedocument."
# Names of types that say nothing.
_UNKNOWN: Final = frozenset(
    {None, "", "application/octet-stream", "binary/octet-stream", "application/x-download", "application/unknown"}
)

EXTENSIONS: Final = MappingProxyType(
    {
        "pdf": PDF,
        "doc": "application/msword",
        "docx": f"{_OFFICE}wordprocessingml.document",
        "xls": "application/vnd.ms-excel",
        "xlsx": f"{_OFFICE}spreadsheetml.sheet",
        "ppt": "application/vnd.ms-powerpoint",
        "pptx": f"{_OFFICE}presentationml.presentation",
        "rtf": "application/rtf",
        "txt": _PLAIN,
        "md": "text/markdown",
        "csv": "text/csv",
        "html": "text/html",
        "htm": "text/html",
        "json": "application/json",
        "xml": "application/xml",
        "png": "image/png",
        "jpg": "image/jpeg",
        "jpeg": "image/jpeg",
        "webp": "image/webp",
        "gif": "image/gif",
        "heic": "image/heic",
        "heif": "image/heif",
        "wav": "audio/wav",
        "mp3": "audio/mp3",
        "flac": "audio/flac",
        "ogg": "audio/ogg",
        "mp4": "video/mp4",
        "mov": "video/quicktime",
        "webm": "video/webm",
        **dict.fromkeys(
            (
                *(
                    "log",
                    "tsv",
                    "yaml",
                    "yml",
                    "toml",
                    "ini",
                    "cfg",
                    "conf",
                    "env",
                    "tex",
                    "rst",
                    "srt",
                    "diff",
                    "patch",
                ),
                *("py", "js", "mjs", "ts", "tsx", "jsx", "css", "java", "kt", "c", "h", "cc", "cpp", "hpp", "cs", "go"),
                *("rs", "rb", "php", "pl", "lua", "r", "scala", "swift", "sh", "bash", "ps1", "sql", "ipynb", "jsonl"),
            ),
            _PLAIN,
        ),
    }
)
# What nearly all pictures are.
_PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})
# How files begin. Of those that are archives more must be looked at.
_SIGNATURES: Final = (
    (b"%PDF", PDF),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"{\\rtf", "application/rtf"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/msword"),  # of all of Microsoft's older formats
    (b"ID3", "audio/mp3"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
)
_ZIP: Final = b"PK\x03\x04"
# Folders in Microsoft's newer formats, which are archives: their names stand before their contents.
_IN_ZIP: Final = ((b"word/", "docx"), (b"xl/", "xlsx"), (b"ppt/", "pptx"))
_RIFF: Final = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_HTML: Final = re.compile(rb"\s*(?:<!doctype html|<html)", re.IGNORECASE)
# Of what is decoded: the first folder of an office file comes within its first entries.
_LOOKED_AT: Final = 16 * 1024
_STANDARD: Final = str.maketrans("-_", "+/")
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CONTROLS: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_TEXTS: Final = frozenset(
    {
        *("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml"),
        *("application/javascript", "application/x-javascript", "application/x-typescript", "application/ecmascript"),
        *("application/sql", "application/x-sh", "application/x-python-code", "application/jsonl", "application/csv"),
        *("application/x-ndjson", "application/graphql", "application/x-ipynb+json", "application/ld+json"),
    }
)


def typed(source: Media, name: str | None = None) -> Media:
    """Return a file that has a media type, unless it is given by an address or an id. name: the client's, of a file."""
    if source.kind is not MediaKind.DATA or _bare(source.type) not in _UNKNOWN:
        return source
    extension = name.rpartition(".")[2].lower() if name else ""
    return Media(source.kind, source.value, EXTENSIONS.get(extension) or _by_bytes(source.value) or PDF)


def pictured(source: Media, detail: str | None = None, cache: CacheMark | None = None) -> Image | Document:
    """Return what stands in the place of a picture: one, or a file where its type says so. type: by its bytes, too."""
    if source.type in _PICTURES or source.kind is not MediaKind.DATA:
        return Image(source, detail, cache)
    source = typed(source)
    kind = _bare(source.type)
    if kind is None or kind.startswith("image/"):
        return Image(source, detail, cache)
    return Document(source, cache=cache)


def is_text(kind: str | None) -> bool:
    """True for the media type of a text, which any model reads as one."""
    bare = _bare(kind) or ""
    return bare.startswith("text/") or bare in _TEXTS or (bare.endswith(("+json", "+xml")) and bare[:6] != "image/")


def file_text(source: Media) -> str | None:
    """Return what a file says that is a text, as data; None: it is no base64, or no text in UTF-8 or UTF-16."""
    try:
        data = _decoded(source.value)
        encoding = next((encoding for mark, encoding in _BOMS if data.startswith(mark)), "utf-8")
        decoder = codecs.getincrementaldecoder(encoding)()
        pieces = [decoder.decode(data[at : at + SLICE_BYTES]) for at in range(0, len(data), SLICE_BYTES)]
        return "".join((*pieces, decoder.decode(b"", True)))
    except ValueError:
        return None


def _decoded(data: str) -> bytes:
    """Return what base64 says, in lines or not, of either alphabet. Raises ValueError: it is none."""
    try:
        return from_base64(data)
    except ValueError:
        return from_base64(joined_text("".join(piece.split()).translate(_STANDARD) for piece in text_slices(data)))


def _bare(kind: str | None) -> str | None:
    return None if kind is None else kind.partition(";")[0].strip().lower()


def _by_bytes(data: str) -> str | None:
    """Return the media type that the first bytes tell. data: base64."""
    begin = "".join(data[:_LOOKED_AT].split())
    try:
        found = _decoded(begin[: len(begin) // 4 * 4] if len(data) > _LOOKED_AT else begin)
    except ValueError:
        return None
    for signature, kind in _SIGNATURES:
        if found.startswith(signature):
            return kind
    if found.startswith(_ZIP):
        return next((EXTENSIONS[extension] for folder, extension in _IN_ZIP if folder in found), "application/zip")
    if found.startswith(b"RIFF"):
        return _RIFF.get(found[8:12])
    if found[4:8] == b"ftyp":
        return "video/mp4"
    if _HTML.match(found):
        return EXTENSIONS["html"]
    return _PLAIN if _is_plain(found) else None


def _is_plain(data: bytes) -> bool:
    """Tell whether bytes are a text, of which the last character may be cut."""
    if not data or data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return bool(data)
    if _CONTROLS.search(data) is not None:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return False
    return True


# -- documents of text -------------------------------------------------------------------------------


def document_text(document: Document) -> JsonText:
    """Return a document whose source is text as one text."""
    return _whole(document, document.source.value)


def data_text(document: Document) -> JsonText | None:
    """Return a document whose source is data of a text as one text; None: it can't be read as one."""
    text = file_text(document.source) if document.source.kind is MediaKind.DATA else None
    return None if text is None else _whole(document, text)


def _whole(document: Document, text: str) -> JsonText:
    title = [quoted(document.name)] if document.name else []
    context = [document.context] if document.context is not None and not is_blank(document.context) else []
    return joined([*title, *context, quoted(text)])
