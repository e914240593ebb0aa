"""Every place of a request at which some server may read a model: bodies, forms, queries, messages, lines of files.

Knows: which names are a model's to a server that is lenient (with letter case, separators, width, duplicates), and what
stands there. Does not know: which models are allowed, or endpoints. What can't be told is a `DoubtError`.

A body is read strictly: each field whose name comes near to `model` is found, and one that is not exactly `model` is
doubtful, because some server reads it and another one does not.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Final
from urllib.parse import unquote_to_bytes

import simdjson

from velox.protocol.forms import FormError, FormPart, split_form
from velox.protocol.json.skim import Check, skim
from velox.protocol.json.text_free import text_free
from velox.protocol.json.value_count import has_over, has_over_in_steps

__all__ = [
    "DoubtError",
    "JsonScan",
    "Pairs",
    "body_fields",
    "chooses",
    "folded",
    "form_fields",
    "form_models",
    "form_text",
    "is_models",
    "line_models",
    "lines_of",
    "message_models",
    "parseable",
    "query_models",
    "response_models",
]

# Parts of a name by which providers let a request choose what runs.
_OF_MODELS: Final = ("model", "engine", "deployment", "fallback")
# Fields of the API whose names have such a part and that choose nothing.
_HARMLESS: Final = frozenset({"modelcontextprotocol"})
# Fields by which a server chooses a model that the request does not name (folded): presets of Perplexity and OpenRouter
# say which one, an adapter is another one.
_CHOOSERS: Final = frozenset({"preset", "presets", "adapter", "adapters", "adapterid", "adaptername", "adaptersource"})
_LORA: Final = "lora"
_MODEL: Final = "model"
_TOOLS: Final = "tools"
_PLUGINS: Final = "plugins"
# Objects that name models of their own, at any depth: a fine-tuning's graders, Azure's data sources with their
# embedding deployment, what plugins and tools of OpenRouter run. All their fields are looked at.
_INNER: Final = frozenset({"method", "grader", "graders", "testingcriteria", "datasource", "datasources", "parameters"})
_OPEN: Final = _INNER | {_PLUGINS}
# OpenRouter's that run no model. The others (a router, a panel of models) run some that need not be named.
_PLAIN_PLUGINS: Final = frozenset({"web", "file-parser", "response-healing", "context-compression", "moderation"})
_OPENROUTER: Final = "openrouter:"
_PLAIN_TOOLS: Final = frozenset(
    _OPENROUTER + name for name in ("web_search", "web_fetch", "datetime", "apply_patch", "files")
)
_SEARCH: Final = "engine"  # of these: who searches
_TYPE: Final = "type"
# Google's: a list of requests that are answered together, and one whose tokens are counted.
_REQUESTS: Final = "requests"
_COUNTED: Final = "generatecontentrequest"
_SCHEMAS: Final = frozenset({"parameters", "inputschema", "outputschema", "schema", "jsonschema"})
_TOO_DEEP: Final = "the body is nested too deeply"
_TOO_MANY: Final = "the body has too many fields and values to be looked through"
_OF_BATCH: Final = frozenset({"url", "method", "body"})  # of each line
_DEEPEST: Final = 32
_MOST_FIELDS: Final = 100
_WORD: Final = re.compile(r"[^a-z0-9]+")
_BLANKS: Final = re.compile(rb"[ \t\r\n]*+")
_RETURN: Final = "a line of the file has a carriage return in it"
_LONG_LINE: Final = 256 * 1024  # of a file
_FOUND_BYTES: Final = 256 * 1024  # that are searched at once
_BLANK_BYTES: Final = 512 * 1024  # of a file's empty lines that are passed over at once, in half a millisecond
_PLAIN_NAME: Final = re.compile(rb"[A-Za-z0-9_.\[\]-]*")
_PLAIN_VALUE: Final = re.compile(r"[!-~]*")
_BOUNDARY: Final = re.compile(
    rb'multipart/form-data; ?boundary=(?:"([!#-\[\]-~]{1,70})"|([0-9A-Za-z\'()+_./:=?-]{1,70}))', re.I
)
_DISPOSITION: Final = re.compile(
    rb'content-disposition: ?form-data; ?name="([A-Za-z0-9_.\[\]-]{1,128})"(?:; ?filename="([^"\r\n\\]*)")?', re.I
)
_DECODINGS: Final = 3
_BRACKET: Final = re.compile(rb"%5[bBdD]")
_SPLITS: Final = re.compile(rb"[&;]")
# As in body.py.
_KEPT_BYTES: Final = 8 * 1024 * 1024
_TOLERANT_BYTES: Final = 1024 * 1024
_SHORT_BYTES: Final = 16 * 1024
_MODEL_BYTES: Final = 1024
_TOLERANT_VALUES: Final = 20_000
# Names and values of one document that are looked at, each for some tenths of a microsecond in which no other request
# moves. Those of clients have some hundreds.
_MOST_LOOKS: Final = 20_000
_NEW_NAME: Final = 8  # looks that a name takes which has not been seen in the document
# A document with more is not parsed at once: that takes 5 to 8 ms. A list of tokens has 300,000 at most (OpenAI).
_MOST_VALUES: Final = 400_000
# A document with more bytes has all strings left out that are longer than any model's name; with more than 3 MiB then,
# it is not parsed: each takes a millisecond or two.
_MANY_BYTES: Final = 1024 * 1024
_SHORT_STRING: Final = 256
_MOST_BYTES: Final = 3 * 1024 * 1024
# The parser looks through all fields of an object for each: so many cost as much as a look.
_FIELDS_OF_LOOK: Final = 512
_NAME_CHARS: Final = 1024  # no server takes a longer one for any that counts


class DoubtError(Exception):
    """Some server may read a model here that another one does not. The text says where."""


class Pairs(list[tuple[str, object]]):
    """An object with every field, the second one of a name too."""


_DECODER: Final = json.JSONDecoder(object_pairs_hook=Pairs)


def folded(name: str) -> str:
    """Return a name as the most lenient server compares it."""
    if name.isascii():
        return _WORD.sub("", name.lower())
    return _WORD.sub("", unicodedata.normalize("NFKC", name).casefold())


def is_models(name: str) -> bool:
    """Say whether a server may take a model from a field of this name (folded)."""
    return any(part in name for part in _OF_MODELS) and name not in _HARMLESS


def chooses(name: str) -> bool:
    """Say whether a server may choose a model by a field of this name (folded), though it is none's name."""
    return name in _CHOOSERS or name.startswith(_LORA)


class JsonScan:
    """Reads the fields of JSON bodies; one per worker, whose parser's buffers are used again."""

    __slots__ = ("_parser",)

    def __init__(self) -> None:
        self._parser = simdjson.Parser()

    def models(self, data: bytes | bytearray) -> list[str]:
        """Return every model that a JSON body names. Raises DoubtError. data: see parseable()."""
        return body_models(self.fields(data, _may_choose))

    def fields(self, data: bytes | bytearray, wants: Callable[[str], bool]) -> Pairs:
        """Return the fields whose folded names are wanted, of inner objects too.

        Raises DoubtError, also if one of the document's own is there twice.
        """
        found = _read(self._parser if len(data) <= _KEPT_BYTES else simdjson.Parser(), data, wants)
        seen: set[str] = set()
        for name, _ in found:
            word = folded(name)
            if word in seen:
                raise DoubtError(f"the body has the field {_shown(word)} twice, or in two spellings")
            seen.add(word)
        return found


def _passes(_data: bytes, _offset: int) -> None:
    """Take every string's content as it is."""


def parseable(body: bytes | bytearray, check: Check = _passes) -> Generator[None, None, bytes | bytearray]:
    """Return a document as it can be parsed at once: a large one without the contents of its long strings.

    check: of these contents; nothing is to be checked where that was done before. Yields between slices of the work.
    Raises DoubtError for a document that is too much even so.
    """
    data = (yield from skim(body, check)).data if len(body) > _MANY_BYTES else body
    if (yield from has_over_in_steps(data, _MOST_VALUES)):
        raise DoubtError(_TOO_MANY)
    if len(data) > _MANY_BYTES:
        # What stands between short quotes has been checked by nobody: where there are so many, only their outline was.
        strictly = partial(_check_content, simdjson.Parser())
        rest = yield from text_free(data, strictly, _SHORT_STRING, _MOST_BYTES)
        if rest is None:
            raise DoubtError(_TOO_MANY)
        return rest
    return data


class _Looks:
    """What may still be looked at of a document, and why it can't be read; "": it can."""

    __slots__ = ("_known", "left", "problem")

    def __init__(self) -> None:
        self.left = _MOST_LOOKS
        self.problem = ""
        self._known: Final[dict[tuple[str, Callable[[str], bool]], bool]] = {}

    def wants(self, name: str, wants: Callable[[str], bool]) -> bool:
        """Say whether the value of a field is wanted, and take a look; False, too, where there are none left."""
        if not self.take():
            return False
        found = self._known.get((name, wants))
        if found is None:
            found = self.take(_NEW_NAME) and len(name) <= _NAME_CHARS and wants(folded(name))
            self._known[name, wants] = found
        return found

    def take(self, n: int = 1) -> bool:
        """Take one or more; False: no further."""
        self.left -= n
        if self.left < 0:
            self.problem = _TOO_MANY
        return not self.problem


def _read(parser: simdjson.Parser, data: bytes | bytearray, wants: Callable[[str], bool]) -> Pairs:
    """Return the fields of a document whose folded names are wanted, of inner objects too. Raises DoubtError.

    As in body.py none of the parser's objects may outlive it, not even in the context of an error: so nothing is
    raised below, or where an error of the parser is caught.
    """
    looks, found = _Looks(), None
    is_strict = True
    try:
        found = _plain(parser.parse(data), wants, looks)
    except KeyError:
        looks.problem = "the body has a field whose name can't be read"  # it has a NUL
    except RecursionError:
        looks.problem = _TOO_DEEP
    except (ValueError, RuntimeError):
        is_strict = False
    if not is_strict:  # as most upstreams read it (body.py)
        if len(data) > _TOLERANT_BYTES or has_over(data, _TOLERANT_VALUES):
            raise DoubtError("the body is no strict JSON")
        document = body_fields(data)
        try:
            found = _plain(document, wants, looks)
        except RecursionError:
            looks.problem = _TOO_DEEP
    if looks.problem:
        raise DoubtError(looks.problem)
    if not isinstance(found, Pairs):
        raise DoubtError("the body is no JSON object")
    return found


def _plain(value: object, wants: Callable[[str], bool], looks: _Looks) -> object:
    """Return a value without the parser's objects, and of objects what is wanted."""
    if type(value) is simdjson.Array or type(value) is list:
        items = []
        for inner in value:
            if not looks.take():
                break
            items.append(_plain(inner, wants, looks))
        return items
    if type(value) is Pairs:
        wanted = [(name, inner) for name, inner in value if looks.wants(name, wants)]
        return Pairs([(name, _plain(inner, _inside(name, wants), looks)) for name, inner in wanted])
    if type(value) is not simdjson.Object:
        return value
    names, n_fields = [], 0
    for name in value:
        n_fields += 1
        if looks.wants(name, wants):
            names.append(name)
        elif looks.problem:
            return Pairs()
    twice = next((name for name, n in Counter(names).items() if n > 1), None) if len(names) > 1 else None
    if twice is not None:  # the parser gives the first one, and servers take the last
        looks.problem = f"the body has the field {_shown(twice)} twice"
    if not looks.take(len(names) * n_fields // _FIELDS_OF_LOOK):
        return Pairs()
    return Pairs([(name, _plain(value[name], _inside(name, wants), looks)) for name in names])


def _inside(name: str, wants: Callable[[str], bool]) -> Callable[[str], bool]:
    """Return what is wanted of the value of a field: of what may name models at any depth, all."""
    return _any if wants in (_may_choose, _may_be_of_batch) and folded(name) in _OPEN else wants


def _any(_name: str) -> bool:
    return True


def _may_choose(name: str) -> bool:
    return name in (_TOOLS, _REQUESTS, _COUNTED, _TYPE) or name in _OPEN or is_models(name) or chooses(name)


def _may_be_of_batch(name: str) -> bool:
    return name in _OF_BATCH or _may_choose(name)


def body_fields(data: bytes | bytearray) -> Pairs:
    """Return the fields of a JSON object. Raises DoubtError when it is none."""
    try:
        document = _DECODER.decode(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise DoubtError("the body is no JSON that every server reads the same way") from None
    if not isinstance(document, Pairs):
        raise DoubtError("the body is no JSON object")
    return document


def body_models(fields: Iterable[tuple[str, object]]) -> list[str]:
    """Return every model that a JSON body names, the one of `model` included. Raises DoubtError."""
    models: list[str] = []
    seen = False
    for name, value in fields:
        word = folded(name)
        if name == _MODEL:
            if seen:
                raise DoubtError("the body has the field model twice")
            seen = True
            models.append(_text(name, value))
        elif is_models(word):
            raise DoubtError(f"the body has the field {_shown(name)}, which some servers take for the model")
        elif chooses(word):
            raise DoubtError(f"the body has the field {_shown(name)}, by which some servers choose the model")
        elif word == _TOOLS:
            models += _tool_models(value)
        elif word == _PLUGINS:
            models += _plugin_models(value)
        elif word in _INNER:
            models += _inner_models(value)
        elif word in (_REQUESTS, _COUNTED):
            for inner in (value,) if isinstance(value, Pairs) else value if isinstance(value, list) else ():
                models += body_models(inner) if isinstance(inner, Pairs) else ()
    return models


def _tool_models(tools: object) -> list[str]:
    """Return the models that tools name: an image generator's, an advisor's. Their schemas may say what they like."""
    if not isinstance(tools, list):
        return []
    models = []
    for tool in (tools,) if isinstance(tools, Pairs) else tools:
        if not isinstance(tool, Pairs):
            continue
        kind = next((value for name, value in tool if folded(name) == _TYPE), None)
        is_run_there = isinstance(kind, str) and kind.lower().startswith(_OPENROUTER)
        if is_run_there and kind not in _PLAIN_TOOLS:
            raise DoubtError("a tool runs models that the request need not name")
        for name, value in tool:
            word = folded(name)
            if is_models(word):
                models.append(_text(name, value))
            elif is_run_there and word in _INNER:
                models += _inner_models(value, harmless=_SEARCH)
    return models


def _plugin_models(plugins: object) -> list[str]:
    """Return the models that OpenRouter's plugins name. Raises DoubtError for one that runs others."""
    models = []
    for plugin in (plugins,) if isinstance(plugins, Pairs) else plugins if isinstance(plugins, list) else ():
        ids = [value for name, value in plugin if folded(name) == "id"] if isinstance(plugin, Pairs) else []
        if len(ids) != 1 or ids[0] not in _PLAIN_PLUGINS:
            raise DoubtError("a plugin runs models that the request need not name")
        models += _inner_models(plugin, harmless=_SEARCH)
    return models


def _inner_models(value: object, depth: int = 0, harmless: str = "") -> list[str]:
    """Return every model that is named in a value, at any depth. Raises DoubtError. harmless: a name that is none's."""
    if depth > _DEEPEST:
        raise DoubtError(_TOO_DEEP)
    models: list[str] = []
    if isinstance(value, Pairs):
        for name, inner in value:
            word = folded(name)
            if chooses(word):
                raise DoubtError(f"the body has the field {_shown(name)}, by which some servers choose the model")
            if not is_models(word) or word == harmless or isinstance(inner, Pairs):
                models += _inner_models(inner, depth + 1, harmless)
            elif isinstance(inner, list):
                models += [_text(name, each) for each in inner]
            elif inner is not None:
                models.append(_text(name, inner))
    elif isinstance(value, list):
        for inner in value:
            models += _inner_models(inner, depth + 1, harmless)
    return models


def message_models(data: bytes) -> list[str]:
    """Return every model that one message of a WebSocket names, at any depth but in a tool's schema.

    Raises DoubtError: it is no JSON object, or a name is not written plainly.
    """
    models: list[str] = []
    _walk(_document(data, _is_no_schema), models, 0)
    return models


def _document(data: bytes | bytearray, wants: Callable[[str], bool]) -> Pairs:
    """Return the fields of one of many documents, of inner objects too: at least those that are wanted."""
    # Of a short one the standard library's parser makes objects in half the time.
    return body_fields(data) if len(data) <= _SHORT_BYTES else _read(simdjson.Parser(), data, wants)


def _is_no_schema(name: str) -> bool:
    return name not in _SCHEMAS


def response_models(data: bytes) -> list[str]:
    """Return every model that a message names that asks for a response. Raises DoubtError, also if it says no own one.

    Its own stands where a request by HTTP has it, or inside `response`.
    """
    document = _document(data, _is_no_schema)
    own = [value for name, value in document if name == _MODEL]
    own += [
        inner
        for outer, value in document
        if outer == "response" and isinstance(value, Pairs)
        for name, inner in value
        if name == _MODEL
    ]
    if not own or not all(isinstance(value, str) for value in own):
        raise DoubtError("a message names no model")
    inner = [field for outer, value in document if outer == "response" and isinstance(value, Pairs) for field in value]
    body_models(field for field in (*document, *inner) if not is_models(folded(field[0])))
    models: list[str] = []
    _walk(document, models, 0)
    return models


def _walk(value: object, models: list[str], depth: int) -> None:
    if depth > _DEEPEST:
        raise DoubtError("the message is nested too deeply")
    if isinstance(value, Pairs):
        for name, inner in value:
            word = folded(name)
            if is_models(word):
                if name != word:
                    raise DoubtError(f"the message has the field {_shown(name)}, which some servers take for the model")
                if inner is not None:
                    models.append(_text(name, inner))
            elif word not in _SCHEMAS:
                _walk(inner, models, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _walk(inner, models, depth + 1)


def line_models(line: bytes | bytearray, *, is_batch: bool) -> tuple[str, list[str]]:
    """Return the path that a line of a file asks ("" unless is_batch), and every model that it names.

    Raises DoubtError. Of a batch each line is a request: its `body` is one of the API. Other files hold examples.
    """
    if not is_batch:
        return "", body_models(_document(line, _may_choose))
    named: dict[str, object] = {}
    for name, value in _document(line, _may_be_of_batch):
        word = folded(name)
        if word in _OF_BATCH:
            if name != word or word in named:
                raise DoubtError(f"a line has the field {_shown(name)} twice, or not written plainly")
            named[word] = value
        elif is_models(word):
            raise DoubtError(f"a line has the field {_shown(name)} beside its body")
    url, body = named.get("url"), named.get("body")
    if not isinstance(url, str) or not isinstance(body, Pairs) or named.get("method", "POST") != "POST":
        raise DoubtError("a line is no request with method POST, url and body")
    models = body_models(body)
    if not models:
        raise DoubtError("a line names no model")
    return url, models


def query_models(query: bytes) -> list[str]:
    """Return every model that a query names. Raises DoubtError for one that servers read in different ways."""
    if not query:
        return []
    fields = query.split(b"&")
    if b";" in query or len(fields) > _MOST_FIELDS:
        raise DoubtError("the query has a `;`, which some servers take for `&`, or too many fields")
    models: list[str] = []
    names: set[str] = set()
    for field in fields:
        raw, _, value = field.partition(b"=")
        raw = _BRACKET.sub(lambda found: unquote_to_bytes(found[0]), raw)  # `include[]`, as SDKs write it
        if not _PLAIN_NAME.fullmatch(raw):
            raise DoubtError("the query has a name that is not written plainly")
        name = raw.decode("ascii")
        word = folded(name)
        if chooses(word):
            raise DoubtError(f"the query has {_shown(name)}, by which some servers choose the model")
        if not is_models(word):
            continue
        if name not in (_MODEL, "deployment") or name in names:
            raise DoubtError(f"the query has {_shown(name)} twice, or in another spelling")
        names.add(name)
        models.append(_decoded(value))
    for _ in range(_DECODINGS):
        # A server that decodes a query before it splits it finds more fields.
        decoded = unquote_to_bytes(query)
        if decoded == query:
            break
        query = decoded
        found = (field.partition(b"=")[0].decode("latin-1") for field in _SPLITS.split(query))
        if sum(is_models(folded(name)) for name in found) != len(models):
            raise DoubtError("the query names a model behind a separator that is percent-encoded")
    return models


def _decoded(value: bytes) -> str:
    text = unquote_to_bytes(value).decode("latin-1")
    if b"+" in value or "%" in text or "+" in text or not _PLAIN_VALUE.fullmatch(text):
        raise DoubtError("the query's model is not written plainly")
    return text


def form_fields(content_type: bytes, body: bytes | bytearray) -> Generator[None, None, list[FormPart]]:
    """Return the parts of a multipart form that every server reads the same way; yields between slices of the work.

    Raises DoubtError for any other.
    """
    found = _BOUNDARY.fullmatch(content_type)
    if found is None:
        raise DoubtError("the form's boundary is not written plainly in Content-Type")
    try:
        return (yield from split_form(found[1] or found[2], body, _part_head))
    except FormError as exc:
        raise DoubtError(str(exc)) from None


def _part_head(head: bytes) -> tuple[str, bool]:
    """Return the name of a part, and whether it is a file."""
    found: list[tuple[str, bool]] = []
    for field in head.split(b"\r\n"):
        name = field.partition(b":")[0].lower()
        if name == b"content-disposition":
            match = _DISPOSITION.fullmatch(field)
            if match is None:
                raise DoubtError("the form has a part whose Content-Disposition is not written plainly")
            found.append((match[1].decode("ascii"), match[2] is not None))
        elif name != b"content-type" or b"\n" in field or b"\r" in field:
            raise DoubtError("the form has a part with a field that is not Content-Disposition or Content-Type")
    if len(found) != 1:
        raise DoubtError("the form has a part without a name, or with two")
    return found[0]


def form_models(parts: Sequence[FormPart], body: bytes | bytearray) -> list[str]:
    """Return every model that a form names. Raises DoubtError."""
    models: list[str] = []
    for part in parts:
        word = folded(part.name)
        if chooses(word):
            raise DoubtError(f"the form has the field {_shown(part.name)}, by which some servers choose the model")
        if part.name != _MODEL and not is_models(word):
            continue
        if part.name != _MODEL or part.is_file or models or part.end - part.start > _MODEL_BYTES:
            raise DoubtError(f"the form has the field {_shown(part.name)} twice, or in another spelling")
        text = bytes(body[part.start : part.end]).decode("utf-8", "replace")
        if not _PLAIN_VALUE.fullmatch(text):
            raise DoubtError("the form's model is not written plainly")
        models.append(text)
    return models


def form_text(parts: Sequence[FormPart], body: bytes | bytearray, wanted: str) -> str:
    """Return the one field of this name, "" if there is none. Raises DoubtError for a second one, however written."""
    found = [part for part in parts if folded(part.name) == wanted]
    if not found:
        return ""
    if len(found) > 1 or found[0].name != wanted or found[0].is_file:
        raise DoubtError(f"the form has the field {wanted} twice, or in another spelling")
    return bytes(body[found[0].start : found[0].end]).decode("utf-8", "replace")


def lines_of(body: bytes | bytearray, part: FormPart) -> Generator[bytes | bytearray | None, None, None]:
    """Return the lines of a file that are not empty. Raises DoubtError for what some readers take for a line's end.

    None stands for a slice of the work: its reader may let others run. A long line comes without the contents of its
    long strings.
    """
    at = part.start
    while at < part.end:
        blank = _BLANKS.match(body, at, min(part.end, at + _BLANK_BYTES))
        assert blank is not None, "it matches nothing, too"
        at = blank.end()
        if at == part.end:
            return
        if at - blank.start() == _BLANK_BYTES:
            yield None
            continue
        end = yield from _find(body, b"\n", at, part.end)
        if end - at <= _LONG_LINE:
            line = bytes(body[at:end]).rstrip(b" \t\r")
            if b"\r" in line:
                raise DoubtError(_RETURN)
            yield line
        else:
            yield (yield from _long_line(body, at, end))
        at = end + 1


def _find(body: bytes | bytearray, byte: bytes, at: int, end: int) -> Generator[None, None, int]:
    """Return where a byte stands next; `end` if it does not."""
    while at < end:
        stop = min(end, at + _FOUND_BYTES)
        found = body.find(byte, at, stop)
        if found >= 0:
            return found
        at = stop
        if at < end:
            yield
    return end


def _long_line(body: bytes | bytearray, at: int, end: int) -> Generator[None, None, bytes | bytearray]:
    line = bytearray()
    for start in range(at, end, _FOUND_BYTES):
        line += body[start : min(end, start + _FOUND_BYTES)]
        yield
    while line[-1:].strip(b" \t\r") != line[-1:]:
        last = line[-_FOUND_BYTES:]
        del line[len(line) - len(last) + len(last.rstrip(b" \t\r")) :]
        yield
    if (yield from _find(line, b"\r", 0, len(line))) < len(line):
        raise DoubtError(_RETURN)
    return (yield from parseable(line, partial(_check_content, simdjson.Parser())))


def _check_content(parser: simdjson.Parser, data: bytes, _offset: int) -> None:
    """Raise DoubtError for what may not stand between two quotes."""
    try:
        parser.parse(b'["%b"]' % data)
    except (ValueError, RuntimeError):
        pass
    else:
        return
    raise DoubtError("the body is no strict JSON")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise DoubtError(f"the field {_shown(name)} is no string")
    return value


def _shown(name: str) -> str:
    """Return a name for a message: short, and without what a client may have hidden in it."""
    return name if name.isidentifier() and name.isascii() and len(name) <= 32 else "(a spelling of it)"
