"""The table of the API: for each endpoint its group, what may be made there, and where the model stands.

Knows: paths as bytes, written plainly or in any other way that some server takes. Does not know: keys, bodies,
upstreams. Endpoints that stand in the table are known; all others are not allowed to a key that is limited.

Two readings of a path. `call_of` is strict: a path in its plain spelling (no percent-encoding, no empty or dot segment,
known words in lower case) is one row of the table. `loose_words` is lenient: the words that any server could read in
it. A limited key may use what the strict reading knows; what is refused to a key is refused by the lenient one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from velox.policy.api.groups import ALL_ENDPOINTS, GROUPS, Group
from velox.policy.api.objects import CHAT, KINDS, ObjectKind, id_at, kind_at, without_verb
from velox.policy.api.rows import OTHER_PATHS, ROWS, WORDS, ModelPlace

__all__ = [
    "ALL_ENDPOINTS",
    "GROUPS",
    "ApiCall",
    "Group",
    "ModelPlace",
    "call_of",
    "endpoint_length",
    "google_call",
    "is_endpoint_anyhow",
    "is_organizations",
    "is_word",
    "loose_words",
    "may_name_objects",
    "plain_words",
]


# The endpoint of a server of models at its root (SageMaker), and what an agent's automation has.
_OF_AUTOMATIONS: Final = "invocations"


class ApiCall(NamedTuple):
    """One request, as its method and its plainly written path tell.

    group: None for a path that the table does not know. path_model: the model that the path itself names (Azure's
    deployment, an engine). words: below the base. collection: where the object stands that the path names, or that is
    made or listed; "" for none. object_id: of that object; "" where the path names the collection itself. kind: of the
    collection.
    """

    group: Group | None
    place: ModelPlace
    path_model: str | None
    words: tuple[str, ...]
    collection: str
    object_id: str
    kind: ObjectKind | None = None


# What the path of the API begins with at the providers. NAME stands for a model.
_NAME: Final = "NAME"
_BASES: Final = tuple(
    sorted(
        (
            tuple(base.split("/")[1:])
            for base in (
                "",
                "/v1",
                "/v2",
                "/openai",
                "/openai/v1",
                "/api/v1",
                "/api/openai/v1",
                "/inference/v1",
                "/compatible-mode/v1",
                "/v1beta/openai",
                "/anthropic/v1",
                "/openai/deployments/NAME",
                "/deployments/NAME",
                "/openai/deployments/NAME/v1",
                "/v1/engines/NAME",
                "/engines/NAME",
            )
        ),
        key=len,
        reverse=True,
    )
)
_ENDS: Final = frozenset(row.words for row in ROWS if row.place is not ModelPlace.NONE and "*" not in row.words)
_LONGEST_END: Final = max(map(len, _ENDS))
_SOCKETS: Final = {
    ("realtime",): ModelPlace.QUERY,
    ("realtime", "translations"): ModelPlace.QUERY,
    ("responses",): ModelPlace.MESSAGES,
}
# Where a POST to the collection itself is the usual request: the path of an object goes on behind these.
_ENDS_ALL: Final = (b"", b";", b" ")
_OF_ORGANIZATION: Final = frozenset({"organization", "organizations", "dashboard", "billing", "usage", "certificates"})
# Words of which a server may know another spelling: in a plain path they are in lower case.
_KNOWN: Final = frozenset(
    {word for row in ROWS for word in row.words}
    | {word for kind in KINDS for word in kind.path}
    | {word for base in _BASES for word in base}
    | WORDS.keys()
    | _OF_ORGANIZATION
) - {"*", _NAME}
_FOLDED: Final = frozenset(word.lower() for word in _KNOWN)
# What Google's API begins with. An upload stands below a word of its own.
_GOOGLE_VERSIONS: Final = frozenset({"v1beta", "v1alpha", "v1beta1"})
_UPLOAD: Final = "upload"
_OPENAI: Final = "openai"
_VERTEX: Final = ("projects", "locations")
_OPERATIONS: Final = "operations"
# What is asked of one of Google's models and makes an object: its kind.
_MAKING_VERBS: Final = {
    "batchGenerateContent": "batches",
    "asyncBatchEmbedContent": "batches",
    "predictLongRunning": "operations",
}
_KIND_OF: Final = {kind.collection: kind for kind in KINDS}
_ORGANIZATIONS: Final = tuple(
    frozenset(word.lower() for word in kind.path) for kind in KINDS if kind.group is Group.ORGANIZATION
)
_OWNED: Final = tuple(
    frozenset(word.lower() for word in kind.path)
    for kind in KINDS
    if kind.path != CHAT and kind.group is not Group.ORGANIZATION
)
_GOOGLE_BASES: Final = frozenset({b"/v1", b"/v1alpha", b"/v1beta", b"/v1beta1"})
_BEFORE_NAME: Final = b"/models/"
_PLAIN: Final = re.compile(rb"(?:/[A-Za-z0-9_.:@~-]+)+/?")
_READS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS"})
_MODELS: Final = "models"
# What Gemini's clients ask of a model, as `models/NAME:VERB`.
_VERBS: Final = frozenset(
    {b"generateContent", b"streamGenerateContent", b"countTokens", b"embedContent", b"batchEmbedContents"}
)
_NO_WORDS: Final = frozenset({b"", b".", b".."})
# What may stand below a version there that is no model's name, in lower case.
_COLLECTIONS: Final = frozenset(
    {kind.path[0].lower().encode("ascii") for kind in KINDS}
    | {b"models", b"publishers", b"locations", b"endpoints", b"dynamic"}
)

_DECODINGS: Final = 4
_SEPARATORS: Final = re.compile(rb"[/\\]+")


def plain_words(path: bytes) -> tuple[str, ...] | None:
    """Return the words of a path that all servers read alike; None if it is written in another way."""
    if not _PLAIN.fullmatch(path):
        return None
    words = tuple(path.decode("ascii").strip("/").split("/"))
    for word in words:
        if word in (".", "..") or (word not in _KNOWN and word.lower() in _FOLDED):
            return None
    return words


def is_word(text: str) -> bool:
    """Say whether a text is a word of paths, as `files` or `cancel`, and no id: those have a sign or a digit."""
    return text in _KNOWN or (text.isalpha() and text.islower())


def loose_words(path: bytes) -> frozenset[str]:
    """Return every word, in lower case, that some server may read in a path."""
    found: set[bytes] = set()
    for each in _decodings(path):
        for word in _SEPARATORS.split(each.lower()):
            found |= {word.strip(), *(part.strip() for part in word.split(b";"))}
    return frozenset(word.decode("latin-1") for word in found)


def endpoint_length(words: Sequence[str]) -> int:
    """Return how many of the last words of a path are an endpoint at which a model works; 0: none is."""
    for length in range(min(_LONGEST_END, len(words)), 0, -1):
        if tuple(word.lower() for word in words[-length:]) in _ENDS:
            return length
    return 0


def call_of(method: bytes, path: bytes, *, is_websocket: bool = False) -> ApiCall | None:
    """Look a request up, strictly; None for a path that is not written plainly."""
    words = plain_words(path)
    if words is None:
        words = _model_words(path)
        if words is None:
            return None
    if method == b"POST" and (named := _model_of_verb(path, words)) is not None:
        return ApiCall(Group.INFERENCE, ModelPlace.BODY, named, words, "", "")
    model, rest = _below_base(words)
    found, group, object_id = _found(words, rest)
    if method == b"POST" and (made := _made_by_verb(words)) is not None:
        found, group, object_id = made, made.group, ""
    below = _below_version(words)
    if not _OF_ORGANIZATION.isdisjoint(words) or (method not in _READS and _is_shared_model(method, rest, below)):
        group = Group.ORGANIZATION
    elif group is None:
        group = OTHER_PATHS.get(rest) or _group(rest[0]) or (_group(below[0]) if below else None)
    place = _place(method, rest, group, is_websocket=is_websocket)
    return ApiCall(group, place, model, rest, found.collection if found else "", object_id, found)


def is_organizations(method: bytes, path: bytes) -> bool:
    """Say whether some server may read a path as one of the organisation's, or the deletion of a shared model."""
    words = loose_words(path)
    if not words.isdisjoint(_OF_ORGANIZATION):
        return True
    plain = plain_words(path)
    if method == b"DELETE" and _MODELS in words and (plain is None or not _operation_at(_below(plain))):
        return True
    if plain is not None:
        return _found(plain, _below_base(plain)[1])[1] is Group.ORGANIZATION
    if is_endpoint_anyhow(path) and _OF_AUTOMATIONS not in words:
        return False  # /deployments/NAME/chat/completions
    words |= {without_verb(word) for word in words}
    return any(words.issuperset(each) for each in _ORGANIZATIONS)


def may_name_objects(method: bytes, path: bytes) -> bool:
    """Say whether some server may read a path as one of objects that outlive their request."""
    words = {without_verb(word) for word in loose_words(path)}
    if any(words.issuperset(each) for each in _OWNED):
        return True
    if not words.issuperset(CHAT):
        return False
    return method != b"POST" or any(map(_goes_on_behind_chat, _decodings(path)))


def _goes_on_behind_chat(path: bytes) -> bool:
    """Say whether a word follows one that is, or has in it, the last one of the endpoint."""
    words = _SEPARATORS.split(path.lower())
    return any(b"completions" in word and then[:1] not in _ENDS_ALL for word, then in pairwise(words))


def is_endpoint_anyhow(path: bytes) -> bool:
    """Say of a path that is not written plainly whether it ends as one at which a model works, or asks for models."""
    words = [word for word in _SEPARATORS.split(unquote_to_bytes(path).lower()) if word]
    text = [word.decode("utf-8", "replace") for word in words]
    return not text or endpoint_length(text) > 0 or _MODELS in text[:-1] or text[-1] == _MODELS


def _decodings(path: bytes) -> Iterator[bytes]:
    """Yield a path, and what servers make of it that decode it once or more often."""
    for _ in range(_DECODINGS):
        yield path
        decoded = unquote_to_bytes(path)
        if decoded == path:
            return
        path = decoded


def _model_words(path: bytes) -> tuple[str, ...] | None:
    """Return the words of a question for one model, whose name may be percent-encoded once: `/v1/models/ORG%2FNAME`."""
    head, found, name = path.partition(b"/models/")
    words = plain_words(head + b"/models") if found else None
    if words is None or _below_base(words)[1] != (_MODELS,):
        return None
    decoded = unquote_to_bytes(name)
    plain = plain_words(b"/" + decoded)
    return None if plain is None or b"%" in decoded else (*words, *plain)


def google_call(path: bytes) -> tuple[bytes, bytes] | None:
    """Return the model and the verb of `/v1beta/models/NAME:VERB`, as Gemini's clients ask; None: another path.

    A name may have slashes and colons, and is as the path spells it. Whoever asks what such a path names asks here: two
    readings of one path would let a key have another model than its own. Google's own SDK for JavaScript and
    @ai-sdk/google leave `models/` away before a name with a slash, which they take for a whole path.
    """
    rest, _, verb = path.rpartition(b":")
    base = rest.find(b"/", 1)
    if not verb.isalpha() or rest[: max(base, 0)] not in _GOOGLE_BASES or b"::" in rest or rest.endswith(b":"):
        return None
    # The last place before which no colon stands, and behind which a name does.
    at = rest.rfind(_BEFORE_NAME, base, len(rest.partition(b":")[0]) - 1)
    if at >= 0:
        return rest[at + len(_BEFORE_NAME) :], verb
    name = rest[base + 1 :]
    return (name, verb) if verb in _VERBS and _is_own_name(name) else None


def _is_own_name(name: bytes) -> bool:
    """Say of what stands below the version in one of Google's paths whether it is a model's name: `vllm/qwen3`.

    What begins with one of Google's own collections is none, nor what a server may read as another path.
    """
    words = name.split(b"/")
    if len(words) < 2 or words[0].lower() in _COLLECTIONS or b":" in words[0]:
        return False
    return not any(odd in name for odd in (b"%", b"/:", b"/models/")) and _NO_WORDS.isdisjoint(words)


def _model_of_verb(path: bytes, words: tuple[str, ...]) -> str | None:
    """Return the model of a plainly written path of Gemini's; None: it is none, or could be read in two ways."""
    call = google_call(path)
    if call is None or call[1] not in _VERBS or words.count(_MODELS) != (b"/models/" in path):
        return None
    return call[0].decode("ascii")


def _below_base(words: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """Return the model that the base names, and the words below it."""
    for base in _BASES:
        n = len(base)
        if len(words) > n and all(known in (_NAME, word) for known, word in zip(base, words, strict=False)):
            return words[base.index(_NAME)] if _NAME in base else None, words[n:]
    return None, words


def _below_version(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words below what Google's API begins with; none: it is another API."""
    rest = words[1:] if words[:1] == (_UPLOAD,) else words
    is_google = bool(rest) and (rest[0] in _GOOGLE_VERSIONS or (rest is not words and rest[0] == "v1"))
    if not is_google or rest[1:2] == (_OPENAI,):
        return ()
    return rest[5:] if (*rest[1:2], *rest[3:4]) == _VERTEX else rest[1:]


def _operation_at(words: tuple[str, ...]) -> int:
    """Return where it stands in words below a version what one of Google's models works on: models/NAME/operations/ID.

    A name may have slashes. 0: nowhere.
    """
    at = words.index(_OPERATIONS, 2) if words[:1] == (_MODELS,) and _OPERATIONS in words[2:] else 0
    return at if at and len(words) <= at + 2 else 0


def _below(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words below the base of whichever API they are of."""
    return _below_version(words) or _below_base(words)[1]


def _found(words: tuple[str, ...], rest: tuple[str, ...]) -> tuple[ObjectKind | None, Group | None, str]:
    """Return the kind of object that a path names, its group and the object's id. rest: the words below the base."""
    if rest in OTHER_PATHS:
        return None, OTHER_PATHS[rest], ""
    where = _below_version(words) or rest
    where = where[_operation_at(where) :]
    found = kind_at(where)
    return (None, None, "") if found is None else (found[0], found[0].group, id_at(where, found[1]))


def _made_by_verb(words: tuple[str, ...]) -> ObjectKind | None:
    """Return the kind of object that a question for one of Google's models makes; None: it makes none."""
    name, _, verb = words[-1].rpartition(":")
    made = _MAKING_VERBS.get(verb) if name and _MODELS in words[:-1] else None
    return None if made is None else _KIND_OF[made]


def _is_shared_model(method: bytes, rest: tuple[str, ...], below: tuple[str, ...]) -> bool:
    """Say whether a path names a model of the account itself, and not what is asked of one."""
    words = below or rest
    is_asked = method == b"POST" and ":" in words[-1]
    return words[:1] == (_MODELS,) and not is_asked and not _operation_at(words)


def _group(word: str) -> Group | None:
    """Return the group of paths that begin with a word."""
    found = WORDS.get(word)
    return None if found is None else found[0]


def _place(method: bytes, words: tuple[str, ...], group: Group | None, *, is_websocket: bool) -> ModelPlace:
    if is_websocket:
        return _SOCKETS.get(words, ModelPlace.UNKNOWN)
    if method in _READS or (method == b"DELETE" and group not in (None, Group.ORGANIZATION)):
        return ModelPlace.NONE
    if method == b"POST":
        for row in ROWS:
            if len(row.words) == len(words) and all(
                known in ("*", word) for known, word in zip(row.words, words, strict=True)
            ):
                return row.place
    return ModelPlace.UNKNOWN
