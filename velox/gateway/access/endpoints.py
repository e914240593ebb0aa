"""What a path is for: its kind of endpoint, whether its body names a model, and whether it passes at all.

Knows: the paths of the OpenAI API, of Anthropic's messages and of Gemini's models. Does not know: upstreams. The same
path value that is looked at here is the one that goes up.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from velox.errors import Reason, VeloxError
from velox.heads import RequestHead
from velox.memo import Memo
from velox.policy.api.rows import WORDS, ApiRow, names_lines, row_at
from velox.policy.api.table import endpoint_length, google_call
from velox.protocol.content_coding import coding_of
from velox.types import ApiKind, BodyFields, Dialect, Endpoint

__all__ = ["WITHOUT_CONTENT", "PathFacts", "Routes", "dialect_of", "has_content"]

_LABELS: Final = {word.encode("ascii"): label for word, (_, label) in WORDS.items() if label is not Endpoint.OTHER}
# How the paths end at which the API takes a WebSocket, `*` for any one segment.
_WEBSOCKETS: Final[tuple[tuple[bytes, ...], ...]] = (
    (b"realtime",),
    (b"realtime", b"translations"),
    (b"responses",),
    (b"live", b"sessions"),
    (b"live", b"sessions", b"*", b"attach"),
    (b"live", b"sessions", b"*", b"fork"),
)
_ANY: Final = b"*"
# What stands before a model in a path.
_OF_MODELS: Final = frozenset({b"deployments", b"engines"})
# What may stand between it and the endpoint.
_BEFORE_ENDPOINTS: Final = frozenset({"v1", "extensions"})
# Asked of the data listener these are a mistake or a probe; they are never forwarded (B-52).
_ADMIN_WORDS: Final = frozenset({b"metrics", b"debug", b"admin", b"healthz", b"livez", b"readyz"})
# What Claude Code and browsers ask of any server: no provider's business.
_TELEMETRY: Final = (b"/api/event_logging", b"/favicon.ico")
# The APIs that can be put into another dialect, below whatever prefix. Anthropic's and Google's clients know other
# errors than OpenAI's.
_API_KINDS: Final[dict[tuple[bytes, ...], tuple[ApiKind, Dialect]]] = {
    (b"chat", b"completions"): (ApiKind.CHAT, Dialect.OPENAI),
    (b"responses",): (ApiKind.RESPONSES, Dialect.OPENAI),
    (b"responses", b"input_tokens"): (ApiKind.COUNT_RESPONSES, Dialect.OPENAI),
    (b"responses", b"compact"): (ApiKind.COMPACT, Dialect.OPENAI),
    (b"embeddings",): (ApiKind.EMBEDDINGS, Dialect.OPENAI),
    (b"v1", b"messages"): (ApiKind.MESSAGES, Dialect.ANTHROPIC),
    (b"v1", b"messages", b"count_tokens"): (ApiKind.COUNT_MESSAGES, Dialect.ANTHROPIC),
}
# The same of Anthropic's where a client leaves its version out, which only a whole path tells: OpenAI's threads have
# messages, too.
_UNVERSIONED: Final[dict[tuple[bytes, ...], tuple[ApiKind, Dialect]]] = {
    (*before, *words[1:]): api
    for words, api in _API_KINDS.items()
    if words[0] == b"v1"
    for before in ((), (b"anthropic",))
}
# What a Gemini client asks of a model that the path names; True: the answer is a stream.
_GOOGLE_CALLS: Final[dict[bytes, tuple[ApiKind, bool]]] = {
    b"generateContent": (ApiKind.GENERATE, False),
    b"streamGenerateContent": (ApiKind.GENERATE, True),
    b"countTokens": (ApiKind.COUNT_GENERATE, False),
    b"embedContent": (ApiKind.EMBED_CONTENT, False),
    b"batchEmbedContents": (ApiKind.EMBED_CONTENTS, False),
}
_EMBEDS: Final = (ApiKind.EMBED_CONTENT, ApiKind.EMBED_CONTENTS)
_GOOGLE_PATHS: Final = (b"/v1beta/", b"/v1alpha/", b"/upload/v1")
_KEPT_PATHS: Final = 1024
# A word of an API in a path; behind one of these stands a name.
_PLAIN_WORD: Final = re.compile(rb"[a-z][a-z_-]{0,31}|[Vv][0-9]{1,2}[a-z0-9]{0,8}|[a-z]{1,24}:[A-Za-z]{1,32}")
_BEFORE_NAMES: Final = frozenset(
    {b"deployments", b"engines", b"model", b"models", b"publishers", b"projects", b"locations"}
)
_MOST_WORDS: Final = 10
# RFC 9110 §9.3: content of these has no meaning. An upstream that skips it, as some do, would take it for the next
# request on a connection that other clients share.
WITHOUT_CONTENT: Final = frozenset({b"GET", b"HEAD", b"OPTIONS"})


class PathFacts(NamedTuple):
    """What is known of a path. reads_body: its body names a model. upgrades: it may become a WebSocket.

    dialect: which API's clients ask there. client_api: which API it is, of those that can be put into
    another dialect. named: model and stream, where the path names them and not the body. path_model: the model alone,
    whatever the body names. family: the path with `*` for ids and names, for records. row: of the table of endpoints,
    where its body names a model. names_lines: its body may be the lines of a batch, each of which names one.
    """

    endpoint: Endpoint
    reads_body: bool
    passes: bool
    upgrades: bool
    dialect: Dialect = Dialect.OPENAI
    client_api: ApiKind | None = None
    named: BodyFields | None = None
    path_model: str | None = None
    family: str = ""
    row: ApiRow | None = None
    names_lines: bool = False


def dialect_of(head: RequestHead, facts: PathFacts) -> Dialect:
    """Return which API's client sent a request: where several have its path, its headers tell. facts: of the path."""
    if facts.dialect is not Dialect.OPENAI or facts.client_api is not None:
        return facts.dialect
    is_google = head.path.startswith(_GOOGLE_PATHS) and b"/openai/" not in head.path
    if is_google or head.header(b"x-goog-api-key") is not None:
        return Dialect.GOOGLE
    return Dialect.OPENAI if head.header(b"anthropic-version") is None else Dialect.ANTHROPIC


class Routes:
    """The table of one gateway.

    prefixes: what may pass; ("*",) is everything. websockets: more paths that take one, `*` for any one segment; ("*",)
    is every path.
    """

    def __init__(self, prefixes: tuple[str, ...], websockets: tuple[str, ...] = ()) -> None:
        self._all: Final = "*" in prefixes
        self._prefixes: Final = tuple(prefix.rstrip("/").encode() for prefix in prefixes)
        self._upgrades_all: Final = "*" in websockets
        self._websockets: Final = tuple(tuple(path.strip("/").encode().split(b"/")) for path in websockets)
        self._known: Final[Memo[bytes, PathFacts]] = Memo(_KEPT_PATHS)

    def facts(self, path: bytes) -> PathFacts:
        """Look a path up."""
        return self._known.get(path) or self._known.put(path, self._look_at(path))

    def check(self, head: RequestHead) -> PathFacts:
        """Return the facts of a request's path. Raises VeloxError when the request can't pass."""
        facts = self.facts(head.path)
        if not facts.passes:
            raise VeloxError(Reason.UNKNOWN_ROUTE, _not_served(head.path))
        if head.offer is not None and not facts.upgrades:
            message = "no WebSocket begins at this path; VELOX_WEBSOCKET_PATHS allows more than the API's own"
            raise VeloxError(Reason.BAD_REQUEST, message, close=True)
        if not head.has_body:
            return facts
        if head.content_length and head.method in WITHOUT_CONTENT:
            raise has_content()
        coding_of(head)  # which refuses those that are not decoded here
        if facts.row is not None and head.method == b"POST":
            _check_media(head, facts.row)
        return facts

    def _look_at(self, path: bytes) -> PathFacts:
        # As the upstream will read it: most servers decode a path, also its slashes, before they look what it names.
        words = unquote_to_bytes(path).strip(b"/").split(b"/")
        # Some take letters of either case, or several slashes for one: what they run is read, and counted.
        known = [word.lower() for word in words if word] or [b""]
        texts = [word.decode("utf-8", "replace") for word in known]
        row = row_at(texts)
        endpoint = (
            next((_LABELS[word] for word in known if word in _LABELS), Endpoint.OTHER) if row is None else row.endpoint
        )
        passes = (
            words[0] not in _ADMIN_WORDS
            and not path.startswith(_TELEMETRY)
            and (self._all or any(path == prefix or path.startswith(prefix + b"/") for prefix in self._prefixes))
        )
        upgrades = (
            self._upgrades_all
            or any(_is_like(words[-len(end) :], end) for end in _WEBSOCKETS)
            or any(_is_like(words, each) for each in self._websockets)
        )
        if upgrades and endpoint is Endpoint.OTHER:
            endpoint = Endpoint.REALTIME
        client_api, dialect = _client_api_of(known)
        found = PathFacts(endpoint, row is not None, passes, upgrades, dialect, client_api)
        found = found._replace(path_model=_path_model(words), family=_family(path, words), row=row)
        found = found._replace(names_lines=names_lines(texts))
        return _google_facts(path, found)


def _not_served(path: bytes) -> str:
    """Say why a path does not pass."""
    if path.strip(b"/").split(b"/")[0] in _ADMIN_WORDS:
        return "this path is the admin listener's (VELOX_ADMIN_LISTEN), and is not served here"
    if path.startswith(_TELEMETRY):
        return "what clients report of themselves is not passed on"
    return "this path is not served here (VELOX_PATHS lists those that are)"


def _client_api_of(words: list[bytes]) -> tuple[ApiKind | None, Dialect]:
    """Return which API a path is of; the dialect of errors is known for other paths, too."""
    whole = _UNVERSIONED.get(tuple(words))
    if whole is not None:
        return whole
    for n in (3, 2, 1):
        client_api = _API_KINDS.get(tuple(words[-n:]))
        if client_api is not None:
            return client_api
    return None, Dialect.OPENAI


def _family(path: bytes, words: list[bytes]) -> str:
    """Return a path without what differs from call to call: `*` stands for ids, and for names of models.

    Words of APIs have no digits, but for versions. Of a path that is none of an API's, the beginning is enough.
    """
    asked, end = google_call(path), ""
    if asked is not None:
        end = f":{asked[1].decode('ascii')}"
        before = path[1 : len(path) - len(asked[0]) - len(end) - 1].removesuffix(b"/models")
        words, end = before.split(b"/"), f"/models/*{end}"
    shown = []
    for at, word in enumerate(words[:_MOST_WORDS]):
        is_name = at > 0 and words[at - 1] in _BEFORE_NAMES
        shown.append(word.decode("ascii") if _PLAIN_WORD.fullmatch(word) and not is_name else "*")
    return f"/{'/'.join(shown)}{end}"


def _path_model(words: list[bytes]) -> str | None:
    """Return the model of /deployments/NAME/... (Azure's) or /engines/NAME/...: it runs, whatever the body names.

    Its name may have slashes, as SDKs write it as it is: it ends where an endpoint of the API begins.
    """
    for at in range(len(words) - 2):
        if words[at].lower() in _OF_MODELS:
            rest = [word.decode("utf-8", "replace") for word in words[at + 1 :]]
            name = rest[: -endpoint_length(rest) or None]
            if len(name) == len(rest):
                name = rest[:1]
            elif len(name) > 1 and name[-1] in _BEFORE_ENDPOINTS:
                name.pop()
            return "/".join(name)
    return None


def _google_facts(path: bytes, facts: PathFacts) -> PathFacts:
    """Return the facts of a path that may name a model as Gemini's clients do."""
    asked = google_call(path)
    if asked is None:
        return facts
    try:
        model = unquote_to_bytes(asked[0]).decode()
    except UnicodeDecodeError:
        return facts
    call = _GOOGLE_CALLS.get(asked[1])
    if call is None:  # `:predict` and others, whose bodies and answers pass as they came
        return facts._replace(path_model=model)
    client_api, is_stream = call
    endpoint = Endpoint.EMBEDDINGS if client_api in _EMBEDS else Endpoint.GENERATE
    named = BodyFields(model=model, stream=is_stream)
    return facts._replace(
        endpoint=endpoint, reads_body=False, row=None, dialect=Dialect.GOOGLE, client_api=client_api, named=named
    )


def _is_like(words: list[bytes], pattern: tuple[bytes, ...]) -> bool:
    """Say whether segments of a path are those of a pattern."""
    return len(words) == len(pattern) and all(
        word == wanted or (wanted == _ANY and word != b"") for word, wanted in zip(words, pattern, strict=True)
    )


def has_content() -> VeloxError:
    """Return the refusal of a body that one of WITHOUT_CONTENT came with."""
    message = "a GET, HEAD or OPTIONS request can't have a body here; send it without one"
    return VeloxError(Reason.BAD_REQUEST, message, close=True)


def reads_body(facts: PathFacts, head: RequestHead) -> bool:
    """True when the body of this request is JSON that names a model."""
    return facts.reads_body and head.method == b"POST" and not _is_form(head)


def reads_form(facts: PathFacts, head: RequestHead) -> bool:
    """True when the body of this request is a form that names a model."""
    return facts.row is not None and facts.row.reads_form and head.method == b"POST" and _is_form(head)


def _is_form(head: RequestHead) -> bool:
    media = head.header(b"content-type")
    return media is not None and media.lower().startswith(b"multipart/")


def _check_media(head: RequestHead, row: ApiRow) -> None:
    """Refuse a body whose type is not one that is read (B-41)."""
    value = (head.header(b"content-type") or b"").lower()
    if value == b"application/json":
        return
    media, _, parameters = value.partition(b";")
    media = media.strip()
    if media == b"multipart/form-data" and row.reads_form:
        return
    charset = parameters.partition(b"charset=")[2].strip(b' "')
    is_json = media == b"application/json" or (media.startswith(b"application/") and media.endswith(b"+json"))
    if not is_json or (charset and charset.split(b";")[0].strip(b' "') not in (b"utf-8", b"utf8", b"us-ascii")):
        message = "this path takes a JSON body; send Content-Type: application/json (in UTF-8)"
        raise VeloxError(Reason.UNSUPPORTED_MEDIA, message)
