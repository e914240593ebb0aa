"""Reads the few fields of a multipart form that Velox acts on, and changes its model; files in it pass unread.

    read_form()        model, stream, n and more of a form, as BodyReader does of JSON
    with_form_model()  the form with another model; adding_form_model(): with one where it names none
    split_form()       where its parts stand

A form is read as servers read it that differ in nothing but their patience: each part begins behind a whole line with
the boundary, and the boundary stands nowhere else (RFC 7578, RFC 2046 §5.1.1). What could be read in two ways is
refused. The order of the fields is free; a file of any size may stand before the model.

Knows: parts, and which of their names count. Does not know: routes, policies, or which models a key may use
(named_models.py reads forms for these, and takes less).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Final, NamedTuple

from velox.errors import Reason, VeloxError
from velox.protocol.json.edit import spliced
from velox.types import FormFields

__all__ = [
    "FormError",
    "FormPart",
    "adding_form_model",
    "form_texts",
    "read_form",
    "split_form",
    "with_form_model",
    "with_form_model_in_steps",
]

_SLICE_BYTES: Final = 1024 * 1024  # of a search between two turns of the loop: 0.1 ms
_HEAD_BYTES: Final = 4096
_MOST_PARTS: Final = 1000
_PARTS_PER_TURN: Final = 100
_BOUNDARY: Final = re.compile(
    rb'multipart/form-data[ \t]*;(?:[^"]*;)?[ \t]*boundary=(?:"([^"\\]{1,70})"|([^\s;"]{1,70}))', re.I
)
# RFC 6266 §4.1: a token, or a quoted string. Most clients quote; .NET's does not.
_PARAMETER: Final = re.compile(rb';[ \t]*([a-z-]+\*?)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*+)"|([^\s;"]+))[ \t]*', re.I)
_DISPOSITION: Final = b"content-disposition"
_ENCODING: Final = b"content-transfer-encoding"
_PLAIN: Final = frozenset({b"7bit", b"8bit", b"binary"})
_TRUE: Final = frozenset({"true", "1"})
_MODEL_CHARS: Final = 256
_VALUE_BYTES: Final = 1024
_COUNT: Final = re.compile(r"[0-9]{1,6}")
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MODEL: Final = "model"
_READ: Final = frozenset({_MODEL, "stream", "n", "response_format", "quality", "size", "seconds"})
# Formats of a transcription whose replies say what is billed: JSON has it in `usage`, texts have no place for it.
# https://platform.openai.com/docs/api-reference/audio/createTranscription
_TELLING: Final = frozenset({"", "json", "verbose_json", "diarized_json", "b64_json", "url"})


class FormError(ValueError):
    """A form that can't be read, or in two ways. The text says why."""


class FormPart(NamedTuple):
    """One part: its head begins at `begin`, its content stands from `start` to `end`. is_file: it has a file's name."""

    name: str
    is_file: bool
    begin: int
    start: int
    end: int


def split_form(
    boundary: bytes, body: bytes | bytearray, read_head: Callable[[bytes], tuple[str, bool]]
) -> Generator[None, None, list[FormPart]]:
    """Return the parts of a form; yields between slices of the work. Raises FormError.

    read_head: returns the name of a part by its head, and whether it is a file.
    """
    line = b"--" + boundary
    if not body.startswith(line + b"\r\n"):
        raise FormError("the form does not begin with its boundary")
    parts: list[FormPart] = []
    at = len(line) + 2
    while True:
        head_end = body.find(b"\r\n\r\n", at, at + _HEAD_BYTES)
        if head_end < 0 or len(parts) >= _MOST_PARTS:
            raise FormError("the form has a part without a head, or too many parts")
        name, is_file = read_head(bytes(body[at:head_end]))
        start = head_end + 4
        # A reader that takes a lone line feed, or any boundary that it sees, finds the same end.
        end = yield from _find(body, line, start)
        if end < start + 2 or body[end - 2 : end] != b"\r\n":
            raise FormError("the form has its boundary at a place where no part ends")
        parts.append(FormPart(name, is_file, at, start, end - 2))
        at = end + len(line)
        rest = bytes(body[at : at + 5])
        if rest in (b"--", b"--\r\n"):
            return parts
        if rest[:2] != b"\r\n":
            raise FormError("the form has its boundary at a place where no part ends")
        at += 2
        if not len(parts) % _PARTS_PER_TURN:
            yield


def _find(body: bytes | bytearray, what: bytes, at: int) -> Generator[None, None, int]:
    while True:
        end = at + _SLICE_BYTES
        found = body.find(what, at, end + len(what))
        if found >= 0 or end >= len(body):
            return found
        at = end
        yield


def read_form(content_type: bytes, body: bytes | bytearray) -> Generator[None, None, FormFields]:
    """Return what Velox acts on; yields between slices of the work. The body is not changed.

    Raises VeloxError: BAD_REQUEST for a form that can't be read, DUPLICATE_KEY for a second model.
    """
    found = _BOUNDARY.match(content_type)
    if found is None:
        raise _refused("its boundary does not stand in Content-Type")
    boundary = found[1] or found[2]
    try:
        parts = yield from split_form(boundary, body, _part_head)
    except FormError as exc:
        raise _refused(str(exc)) from None
    fields = FormFields(boundary=boundary)
    seen: set[str] = set()
    for part in parts:
        if part.is_file:
            fields.n_file += part.end - part.start
        else:
            fields.n_text += part.end - part.start
        if part.name not in _READ:
            continue
        if part.name in seen:
            raise VeloxError(Reason.DUPLICATE_KEY, f"the form has the field {part.name} twice", param=part.name)
        seen.add(part.name)
        if part.is_file or part.end - part.start > _VALUE_BYTES:
            raise VeloxError(Reason.BAD_REQUEST, f"{part.name} must be a short text", param=part.name)
        _take(fields, part, bytes(body[part.start : part.end]))
    return fields


def form_texts(
    content_type: bytes, body: bytes | bytearray, text: str, file: str
) -> Generator[None, None, tuple[list[str], list[tuple[int, int]]]]:
    """Return the values of the field `text`, and where the contents of `file` stand; none of a form that can't be read.

    Yields between slices of the work.
    """
    found = _BOUNDARY.match(content_type)
    try:
        parts = [] if found is None else (yield from split_form(found[1] or found[2], body, _part_head))
    except FormError:
        return [], []
    texts = [bytes(body[part.start : min(part.end, part.start + _VALUE_BYTES)]) for part in parts if part.name == text]
    return [each.decode("utf-8", "replace") for each in texts], [
        (part.start, part.end) for part in parts if part.name == file
    ]


def _take(fields: FormFields, part: FormPart, value: bytes) -> None:
    """Take over one field."""
    text = value.decode("utf-8", "replace")
    if part.name == _MODEL:
        if not 1 <= len(text) <= _MODEL_CHARS or _UNFIT.search(text):
            rule = f"must have 1 to {_MODEL_CHARS} characters, none of them a control character"
            raise VeloxError(Reason.BAD_REQUEST, f"model {rule}", param=_MODEL)
        fields.model, fields.model_at, fields.model_end = text, part.begin, part.end
    elif part.name == "stream":
        fields.stream = text.strip().lower() in _TRUE
    elif part.name == "n":
        fields.n = int(text) if _COUNT.fullmatch(text) else 1
    elif part.name == "quality":
        fields.quality = text
    elif part.name == "size":
        fields.size = text
    elif part.name == "seconds":
        fields.seconds = text
    else:
        fields.tells = text.strip().lower() in _TELLING


def _part_head(head: bytes) -> tuple[str, bool]:
    """Return the name of a part, and whether it is a file. Raises FormError."""
    name, is_file = None, False
    for field in head.split(b"\r\n"):
        key, colon, value = field.partition(b":")
        if not colon or not key.strip() or key[:1] in b" \t" or b"\n" in field or b"\r" in field:
            raise FormError("the form has a part whose head is no list of fields")
        key = key.lower()
        if key == _ENCODING and value.strip().lower() not in _PLAIN:
            raise FormError("the form has a part in another Content-Transfer-Encoding than binary")
        if key != _DISPOSITION:
            continue
        parameters = _parameters(value)
        if name is not None or b"name" not in parameters:
            raise FormError("the form has a part without a name, or with two")
        name = parameters[b"name"].decode("utf-8", "replace")
        is_file = not parameters.keys().isdisjoint((b"filename", b"filename*"))
    if name is None:
        raise FormError("the form has a part without a name, or with two")
    return name, is_file


def _parameters(value: bytes) -> dict[bytes, bytes]:
    """Return the parameters of a Content-Disposition. Raises FormError."""
    kind, semicolon, _ = value.partition(b";")
    found: dict[bytes, bytes] = {}
    at = len(kind)
    while semicolon and at < len(value):
        match = _PARAMETER.match(value, at)
        if match is None or match[1].lower() in found:
            raise FormError("the form has a part whose Content-Disposition can't be read")
        found[match[1].lower()] = match[3] if match[2] is None else match[2]
        at = match.end()
    if kind.strip().lower() != b"form-data":
        raise FormError("the form has a part that is no form-data")
    return found


def _refused(why: str) -> VeloxError:
    return VeloxError(
        Reason.BAD_REQUEST, f"this path takes a form (multipart/form-data), and this one can't be read: {why}"
    )


def with_form_model(body: bytes | bytearray, fields: FormFields, model: str) -> bytes:
    """Return a form that names a model with another one in its place. fields: as read_form() has read it.

    The part of the model is written anew, as its head may tell its length. The body is not changed.
    """
    with memoryview(body) as view:
        return b"".join((view[: fields.model_at], _model_part(model), view[fields.model_end :]))


def with_form_model_in_steps(
    body: bytes | bytearray, fields: FormFields, model: str
) -> Generator[None, None, bytearray]:
    """Do what with_form_model() does; yields between slices of the work."""
    return spliced(body, fields.model_at, fields.model_end, _model_part(model))


def adding_form_model(body: bytes | bytearray, fields: FormFields, model: str) -> bytes:
    """Return a form that names no model with this one. fields: as read_form() has read it; they name it, too, then."""
    begin, part = b"--" + fields.boundary + b"\r\n", _model_part(model)
    fields.model, fields.model_at, fields.model_end = model, len(begin), len(begin) + len(part)
    return b"".join((begin, part, b"\r\n", body))


def _model_part(model: str) -> bytes:
    return b'Content-Disposition: form-data; name="model"\r\n\r\n' + model.encode("utf-8")
