"""The table of endpoints: for each where its model stands, what it is called in metrics, and which keys may ask it.

    ROWS           what is posted to, and where that names a model
    WORDS          the words that paths of an API begin with: their group and their label
    OTHER_PATHS    paths of one kind of server only, at which nothing is kept

Routing, limits, budgets, records, checks of keys, the import and `velox check` read this one. Objects that outlive
their request are in api/objects.py, and Gemini's paths, which name the model themselves, in api/table.py.

Knows: paths, as words below the base of an API. Does not know: how a path is read (api/table.py), or bodies.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from velox.policy.api.groups import Group
from velox.types import Endpoint

__all__ = ["OTHER_PATHS", "ROWS", "WORDS", "ApiRow", "ModelPlace", "is_management", "names_lines", "row_at"]


class ModelPlace(enum.IntEnum):
    """Where an endpoint's model stands.

    NONE: nothing runs, or what a caller made before. BODY: the field `model` of a JSON body. BODY_OR_FORM: of that, or
    of a multipart form. QUERY: the parameter `model` of a WebSocket's URL, and each of its messages.
    MESSAGES: each message of a WebSocket names its own. FILE: the lines of an uploaded file. BATCH: the lines of a file
    that was uploaded before.
    UNKNOWN: it can't be told from the request. Of a row: a body may name one, but something else may choose what runs.
    """

    NONE = 0
    BODY = 1
    BODY_OR_FORM = 2
    QUERY = 3
    FILE = 4
    BATCH = 5
    UNKNOWN = 6
    MESSAGES = 7


class ApiRow(NamedTuple):
    """One endpoint. words: `*` is any one word.

    counts_tokens: tokens are what it is paid by, so that the length of a text tells something of its price. fills: a
    body that names no model lacks one: that of the route is put in. Elsewhere the server has its own for such a body.
    """

    words: tuple[str, ...]
    place: ModelPlace
    endpoint: Endpoint
    counts_tokens: bool = True
    fills: bool = True

    @property
    def reads_body(self) -> bool:
        """True if a JSON body is looked into for the model."""
        return self.place in _IN_BODY

    @property
    def reads_form(self) -> bool:
        """True if a multipart form is looked into for the model."""
        return self.place is ModelPlace.BODY_OR_FORM


_IN_BODY: Final = frozenset({ModelPlace.BODY, ModelPlace.BODY_OR_FORM, ModelPlace.UNKNOWN})
_BODY: Final = ModelPlace.BODY
_EITHER: Final = ModelPlace.BODY_OR_FORM
_NONE: Final = ModelPlace.NONE


def _row(path: str, place: ModelPlace, endpoint: Endpoint, *, tokens: bool = True, fills: bool = True) -> ApiRow:
    return ApiRow(tuple(path.split("/")), place, endpoint, tokens, fills)


def _rows(paths: str, place: ModelPlace, endpoint: Endpoint, *, fills: bool = False) -> tuple[ApiRow, ...]:
    """Return the rows of endpoints that are not paid by tokens, or not by those of their text."""
    return tuple(_row(path, place, endpoint, tokens=False, fills=fills) for path in paths.split())


ROWS: Final = (
    # OpenAI's, and of all who have its API.
    _row("chat/completions", _BODY, Endpoint.CHAT),
    _row("completions", _BODY, Endpoint.COMPLETIONS),
    _row("embeddings", _BODY, Endpoint.EMBEDDINGS),
    # The usual model of these is one for moderation.
    _row("moderations", _BODY, Endpoint.MODERATIONS, fills=False),
    _row("responses", _BODY, Endpoint.RESPONSES),
    _row("responses/compact", _BODY, Endpoint.RESPONSES),
    _row("responses/input_tokens", _BODY, Endpoint.RESPONSES),
    _row("images/generations", _BODY, Endpoint.IMAGES),
    _row("images/edits", _EITHER, Endpoint.IMAGES),
    _row("images/variations", _EITHER, Endpoint.IMAGES),
    _row("audio/speech", _BODY, Endpoint.AUDIO),
    _row("audio/transcriptions", _EITHER, Endpoint.AUDIO),
    _row("audio/translations", _EITHER, Endpoint.AUDIO),
    # Anthropic's.
    _row("messages", _BODY, Endpoint.MESSAGES),
    _row("messages/count_tokens", _BODY, Endpoint.MESSAGES),
    # Cohere's, Jina's, Voyage's and vLLM's. https://docs.cohere.com/reference/rerank,
    # https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
    *(
        _row(path, _BODY, Endpoint.RERANK)
        for path in ("rerank", "score", "classify", "pooling", "contextualizedembeddings", "multimodalembeddings")
    ),
    _row("embed", _BODY, Endpoint.EMBEDDINGS, fills=False),  # Cohere's; that of TEI has no model
    *_rows("tokenize detokenize", _BODY, Endpoint.TOKENIZE, fills=True),
    # Cohere's and Ollama's own, whose replies tell their tokens in other ways than are read.
    *_rows("chat generate api/chat api/generate api/embed api/embeddings api/show", _BODY, Endpoint.OTHER),
    # Mistral's. https://docs.mistral.ai/api
    _row("fim/completions", _BODY, Endpoint.COMPLETIONS),
    _row("agents/completions", ModelPlace.UNKNOWN, Endpoint.COMPLETIONS, fills=False),  # an agent chooses its model
    *_rows("ocr chat/moderations chat/classifications classifications", _BODY, Endpoint.OTHER, fills=True),
    # vLLM's for SageMaker, llama.cpp's own (its router reads `model`).
    *_rows("invocations completion infill embedding reranking apply-template", _BODY, Endpoint.OTHER),
    # Videos are paid by their seconds. https://platform.openai.com/docs/api-reference/videos,
    # https://docs.x.ai/docs/api-reference#video-generation
    *_rows("videos", _EITHER, Endpoint.VIDEOS, fills=True),
    *_rows("videos/generations", _BODY, Endpoint.VIDEOS, fills=True),
    # What runs later, or at another request: nobody knows its tokens by this one.
    *_rows("fine_tuning/jobs assistants", _BODY, Endpoint.OTHER, fills=True),
    *_rows("threads/runs threads/*/runs", _BODY, Endpoint.OTHER),  # without a model that of the assistant runs
    _row("files", ModelPlace.FILE, Endpoint.FILES),
    _row("batches", ModelPlace.BATCH, Endpoint.BATCHES),
    # Nothing runs that the caller did not ask for before.
    *_rows("threads threads/* threads/*/messages threads/*/messages/* threads/*/runs/*/cancel", _NONE, Endpoint.OTHER),
    *_rows("conversations conversations/* conversations/*/items containers containers/*/files", _NONE, Endpoint.OTHER),
    *_rows("vector_stores vector_stores/* vector_stores/*/search vector_stores/*/files", _NONE, Endpoint.VECTOR_STORES),
    *_rows("vector_stores/*/files/* vector_stores/*/file_batches", _NONE, Endpoint.VECTOR_STORES),
    *_rows("vector_stores/*/file_batches/*/cancel", _NONE, Endpoint.VECTOR_STORES),
    *_rows("chat/completions/*", _NONE, Endpoint.CHAT),
    *_rows("responses/*/cancel", _NONE, Endpoint.RESPONSES),
    *_rows("batches/*/cancel", _NONE, Endpoint.BATCHES),
    *_rows("fine_tuning/jobs/*/cancel fine_tuning/jobs/*/pause", _NONE, Endpoint.OTHER),
)

# By the first word of a path below its base, or of one in it. None: objects of a kind (api/objects.py) say it.
WORDS: Final[Mapping[str, tuple[Group | None, Endpoint]]] = MappingProxyType(
    {
        "chat": (Group.INFERENCE, Endpoint.CHAT),
        "responses": (None, Endpoint.RESPONSES),
        "completions": (Group.INFERENCE, Endpoint.COMPLETIONS),
        "embeddings": (Group.INFERENCE, Endpoint.EMBEDDINGS),
        "models": (Group.INFERENCE, Endpoint.MODELS),
        "moderations": (Group.INFERENCE, Endpoint.MODERATIONS),
        "images": (Group.INFERENCE, Endpoint.IMAGES),
        "audio": (Group.INFERENCE, Endpoint.AUDIO),
        "files": (None, Endpoint.FILES),
        "uploads": (None, Endpoint.FILES),
        "batches": (None, Endpoint.BATCHES),
        "vector_stores": (None, Endpoint.VECTOR_STORES),
        "messages": (Group.INFERENCE, Endpoint.MESSAGES),
        "realtime": (Group.INFERENCE, Endpoint.REALTIME),
        "rerank": (Group.INFERENCE, Endpoint.RERANK),
        "videos": (None, Endpoint.VIDEOS),
        "fine_tuning": (Group.FINE_TUNING, Endpoint.OTHER),
        "fine-tunes": (Group.FINE_TUNING, Endpoint.OTHER),
        **dict.fromkeys(
            (
                *("score", "classify", "pooling", "contextualizedembeddings", "multimodalembeddings", "embed"),
                *("tokenize", "detokenize", "generate", "ocr", "fim", "classifications", "decisions"),
                *("content_provenance_checks", "auth_tokens", "live", "engines", "publishers", "endpoints", "ws"),
            ),
            (Group.INFERENCE, Endpoint.OTHER),
        ),
    }
)

# Paths below no base, or of one kind of server only, at which nothing is kept.
OTHER_PATHS: Final[Mapping[tuple[str, ...], Group]] = MappingProxyType(
    {
        **{
            (word,): Group.INFERENCE
            for word in (
                *("apply-template", "completion", "embedding", "health", "infill", "invocations", "load", "ping"),
                *("props", "reranking", "slots", "version"),
            )
        },
        **{
            ("api", word): Group.INFERENCE
            for word in ("chat", "embed", "embeddings", "generate", "ps", "show", "tags", "version")
        },
        ("agents", "completions"): Group.INFERENCE,
        ("inference", "v1", "generate"): Group.INFERENCE,
    }
)

# What LiteLLM's management begins with, as its clients ask for it at the address of its models.
# https://docs.litellm.ai/docs/proxy/virtual_keys, https://docs.litellm.ai/docs/proxy/health
_MANAGEMENT: Final = frozenset({"key", "team", "user", "customer", "budget", "spend", "global"})
_MANAGEMENT_ENDS: Final = frozenset(
    {
        ("model", "info"),
        ("model_group", "info"),
        *(("health", word) for word in ("readiness", "liveliness", "liveness")),
    }
)
_BY_LAST: Final[Mapping[str, tuple[ApiRow, ...]]] = MappingProxyType(
    {
        last: tuple(sorted((row for row in ROWS if row.words[-1] == last), key=lambda row: -len(row.words)))
        for last in {row.words[-1] for row in ROWS} - {"*"}
    }
)


def row_at(words: list[str]) -> ApiRow | None:
    """Return the row of an endpoint whose body may name a model, by the last words of a path; None: it is of none.

    words: in lower case, below whatever base. The longest row counts: `threads/*/messages` is not Anthropic's. One word
    alone is an endpoint only where none of another stands before it: `models/completions` is a model.
    """
    for row in _BY_LAST.get(words[-1], ()):
        n = len(row.words)
        if n > len(words) or (n == 1 and len(words) > 1 and words[-2] in WORDS):
            continue
        if all(known in ("*", word) for known, word in zip(row.words, words[-n:], strict=True)):
            return row if row.reads_body else None
    return None


def names_lines(words: list[str]) -> bool:
    """Say whether what is posted to a path may be the lines of a batch: a file, or Anthropic's batch itself.

    words: in lower case, below whatever base.
    """
    return words[-1] == "files" or words[-2:] == ["messages", "batches"]


def is_management(path: bytes) -> bool:
    """Say whether a path is one of LiteLLM's management, which no provider of models has."""
    words = tuple(path.decode("latin-1").strip("/").split("/"))
    return (len(words) > 1 and words[0] in _MANAGEMENT) or words[-2:] in _MANAGEMENT_ENDS
