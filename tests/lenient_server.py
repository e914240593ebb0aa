"""A reference for what an upstream may make of a request: every model that some lenient server would run for it.

It reads as servers do that mean well: paths in any case, decoded twice, with dot segments and `;` parameters; queries
with `&` and `;`; the first and the last of two fields; names of fields without case, separators and width; forms with
any line end. It answers with all readings at once: a request may pass a gateway only if no reading is forbidden.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from urllib.parse import unquote_to_bytes

__all__ = ["DEFAULT", "models_run"]

# What a server runs that was not told a model.
DEFAULT = "the-default"
_NAMES = {
    *("model", "models", "modelid", "modelname", "modelids", "deployment", "deploymentid", "deploymentname"),
    *("engine", "engineid", "fallbackmodel", "fallbacks", "fallbackmodels", "targetmodel", "modeloverride"),
}
_RUNNING = {
    *("completions", "embeddings", "responses", "moderations", "generations", "edits", "variations", "speech"),
    *("transcriptions", "translations", "messages", "rerank", "realtime"),
}
_OVERRIDES = {b"x-original-url", b"x-rewrite-url"}
_READ_ONLY = {b"user_data", b"assistants", b"vision", b"evals"}
_METHODS = {b"x-http-method-override", b"x-http-method", b"x-method-override"}
_PART_NAME = re.compile(rb"name\*?=(?:utf-8'')?\"?([^\";\r\n]*)\"?", re.I)


def _folded(name: str) -> str:
    return re.sub("[^a-z0-9]", "", unicodedata.normalize("NFKC", name).casefold())


def _decodings(value: bytes) -> Iterator[bytes]:
    for _ in range(3):
        yield value
        yield value.replace(b"+", b" ")
        value = unquote_to_bytes(value)


class _Pairs(list):  # type: ignore[type-arg]
    """An object with all of its fields."""


def models_run(
    method: bytes, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes, messages: Sequence[bytes] = ()
) -> set[str]:
    """Return all models that a lenient server could run, without case and blanks around them."""
    found: set[str] = set()
    methods = {method.upper()} | {value.strip().upper() for name, value in headers if name.lower() in _METHODS}
    targets = [target, *(value for name, value in headers if name.lower() in _OVERRIDES)]
    is_socket = method == b"GET" and any(name.lower() == b"upgrade" for name, _ in headers)
    if not is_socket and methods <= {b"GET", b"HEAD", b"OPTIONS", b"DELETE"}:
        return found
    runs = False
    for each in targets:
        path, _, query = each.partition(b"?")
        for words in _paths(path):
            folded = [word.lower() for word in words]
            runs |= not _RUNNING.isdisjoint(folded) and folded[-1] not in ("cancel", "items") and "files" not in folded
            for at, word in enumerate(folded[:-1]):
                if word in ("deployments", "engines"):
                    found.add(words[at + 1])
        found |= set(_of_query(query))
    found |= {value.decode("latin-1") for name, value in headers if _folded(name.decode("latin-1")) in _HEADERS}
    found |= set(_of_body(headers, body))
    for message in messages:
        found |= set(_of_json(message, deep=True))
    return {model.strip().casefold() for model in found} or ({DEFAULT} if runs else set())


_HEADERS = {"xmodel", "azuremlmodeldeployment", "heliconemodeloverride", "xengine", "xdeployment", "model"}


def _paths(path: bytes) -> Iterator[list[str]]:
    for decoded in _decodings(path):
        words = [word for word in re.split(rb"[/\\]", decoded) if word not in (b"", b".")]
        yield [word.decode("latin-1") for word in words]
        yield [word.partition(b";")[0].strip().decode("latin-1") for word in words]
        resolved: list[str] = []
        for word in words:
            if word == b"..":
                resolved = resolved[:-1]
            else:
                resolved.append(word.decode("latin-1"))
        yield resolved or [""]


def _of_query(query: bytes) -> Iterator[str]:
    for whole in _decodings(query):
        for field in re.split(b"[&;]", whole):
            name, _, value = field.partition(b"=")
            if any(_folded(each.decode("latin-1")) in _NAMES for each in _decodings(name)):
                yield from (each.decode("latin-1") for each in _decodings(value))


def _of_body(headers: Sequence[tuple[bytes, bytes]], body: bytes) -> Iterator[str]:
    yield from _of_json(body)
    types = [value for name, value in headers if name.lower() == b"content-type"]
    if any(b"urlencoded" in value.lower() for value in types):
        yield from _of_query(body)
    for value in types:
        boundary = re.search(rb'boundary\s*=\s*"?([^";]+)"?', value, re.I)
        if b"multipart" in value.lower() and boundary:
            yield from _of_form(body, boundary[1].strip())


def _of_form(body: bytes, boundary: bytes) -> Iterator[str]:
    parts: list[tuple[set[str], bool, bytes]] = []
    for part in body.split(b"--" + boundary):
        head, found, content = part.replace(b"\r\n", b"\n").partition(b"\n\n")
        if found:
            names = {_folded(unquote_to_bytes(name).decode("utf-8", "replace")) for name in _PART_NAME.findall(head)}
            parts.append((names, b"filename" in head.lower(), content))
    purposes = {content.strip() for names, _, content in parts if "purpose" in names}
    for names, is_file, content in parts:
        if not _NAMES.isdisjoint(names):
            yield content.strip().decode("utf-8", "replace")
        # A file for reading can't become a batch's input: that is asked when the batch is made.
        if is_file and not (purposes and purposes <= _READ_ONLY):
            for line in re.split(b"[\r\n]", content):
                yield from _of_line(line)


def _of_line(line: bytes) -> Iterator[str]:
    document = _parsed(line)
    if isinstance(document, _Pairs):
        yield from _of_pairs(document)
        for name, value in document:
            if _folded(name) == "body" and isinstance(value, _Pairs):
                yield from _of_pairs(value)
            if _folded(name) == "url" and isinstance(value, str):
                for words in _paths(value.encode("utf-8", "replace")):
                    folded = [word.lower() for word in words]
                    yield from (
                        words[at + 1] for at, word in enumerate(folded[:-1]) if word in ("deployments", "engines")
                    )


def _parsed(data: bytes) -> object:
    try:
        text = data.decode(json.detect_encoding(data), "surrogatepass")
        return json.JSONDecoder(object_pairs_hook=_Pairs, strict=False).raw_decode(text.lstrip("\ufeff \t\r\n"))[0]
    except (ValueError, RecursionError):
        return None


def _of_json(data: bytes, *, deep: bool = False) -> Iterator[str]:
    document = _parsed(data)
    if isinstance(document, _Pairs):
        yield from _of_deep(document) if deep else _of_pairs(document)


def _of_pairs(fields: _Pairs) -> Iterator[str]:
    for name, value in fields:
        if _folded(name) in _NAMES:
            yield from _texts(value)
        elif _folded(name) == "tools" and isinstance(value, list):
            for tool in value:
                if isinstance(tool, _Pairs):
                    yield from (text for key, inner in tool if _folded(key) in _NAMES for text in _texts(inner))


def _of_deep(value: object) -> Iterator[str]:
    if isinstance(value, _Pairs):
        for name, inner in value:
            if _folded(name) in _NAMES:
                yield from _texts(inner)
            else:
                yield from _of_deep(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _of_deep(inner)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
        yield from value.split(",")
    elif isinstance(value, _Pairs):
        for name, inner in value:
            yield name
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
