"""Which paths pass, what they are called in metrics, and whose bodies are read."""

from __future__ import annotations

import pytest

from velox.errors import Reason, VeloxError
from velox.gateway.access.endpoints import Routes, dialect_of, reads_body
from velox.heads import Headers, RequestHead
from velox.types import ApiKind, Dialect, Endpoint


def head(method: bytes, path: bytes, headers: Headers | None = None, length: int | None = None) -> RequestHead:
    return RequestHead.of(method, path, headers or (), length)


JSON: Headers = [(b"content-type", b"application/json")]


@pytest.mark.parametrize(
    ("path", "model"),
    [
        (b"/openai/deployments/gpt-4o/chat/completions", "gpt-4o"),
        (b"/openai/deployments/gpt-4%6F/chat/completions", "gpt-4o"),
        (b"/deployment%73/gpt-4o/embeddings", "gpt-4o"),
        (b"/DEPLOYMENTS/m%C3%A9/chat/completions", "mé"),
        (b"/deployments/%FF/chat/completions", "�"),
        (b"/v1/engines/davinci/completions", "davinci"),
        (b"/openai/deployments//chat/completions", ""),
        (b"/openai/deployments/anthropic/claude-x/chat/completions", "anthropic/claude-x"),
        (b"/openai/deployments/anthropic%2Fclaude-x/chat/completions", "anthropic/claude-x"),
        (b"/deployments/accounts/f/models/llama/v1/completions", "accounts/f/models/llama"),
        (b"/openai/deployments/m/extensions/chat/completions", "m"),
        (b"/openai/deployments/whisper/audio/transcriptions", "whisper"),
        (b"/openai/deployments/m/something/new", "m"),
        (b"/openai/deployments/gpt-4o", None),
        (b"/v1/chat/completions", None),
    ],
)
def test_path_may_name_the_model(path: bytes, model: str | None) -> None:
    """Azure's paths, in every spelling that a server may read."""
    assert Routes(("*",)).facts(path).path_model == model


@pytest.mark.parametrize(
    ("path", "route", "reads"),
    [
        (b"/v1/chat/completions", Endpoint.CHAT, True),
        (b"/chat/completions", Endpoint.CHAT, True),
        (b"/openai/deployments/x/chat/completions", Endpoint.CHAT, True),
        (b"/v1/chat/completions/chatcmpl-1", Endpoint.CHAT, False),
        (b"/v1/chat/c%6Fmpletions", Endpoint.CHAT, True),  # else its model and its tokens would count for nothing
        (b"/v1%2fchat%2Fcompletions", Endpoint.CHAT, True),
        (b"/v1/Chat/Completions", Endpoint.CHAT, True),  # as Azure takes it
        (b"/v1/CHAT//completions", Endpoint.CHAT, True),
        (b"/v1/Embeddings/", Endpoint.EMBEDDINGS, True),
        (b"/v1/responses", Endpoint.RESPONSES, True),
        (b"/v1/responses/input_tokens", Endpoint.RESPONSES, True),
        (b"/v1/responses/compact", Endpoint.RESPONSES, True),
        (b"/v1/responses/resp_1/cancel", Endpoint.RESPONSES, False),
        (b"/v1/completions", Endpoint.COMPLETIONS, True),
        (b"/v1/embeddings", Endpoint.EMBEDDINGS, True),
        (b"/v1/moderations", Endpoint.MODERATIONS, True),
        (b"/v1/images/generations", Endpoint.IMAGES, True),
        (b"/v1/audio/speech", Endpoint.AUDIO, True),
        (b"/v1/audio/transcriptions", Endpoint.AUDIO, True),
        (b"/v1/videos", Endpoint.VIDEOS, True),
        (b"/v1/videos/video_1/remix", Endpoint.VIDEOS, False),
        (b"/v1/rerank", Endpoint.RERANK, True),
        (b"/v2/rerank", Endpoint.RERANK, True),
        (b"/rerank", Endpoint.RERANK, True),
        (b"/v1/models/rerank", Endpoint.MODELS, False),
        (b"/v1/threads/runs", Endpoint.OTHER, True),
        (b"/v1/threads/thread_1/runs", Endpoint.OTHER, True),
        (b"/v1/threads/thread_1/messages", Endpoint.MESSAGES, False),
        (b"/v1/messages", Endpoint.MESSAGES, True),
        (b"/v1/messages/count_tokens", Endpoint.MESSAGES, True),
        (b"/v1/models", Endpoint.MODELS, False),
        (b"/v1/models/completions", Endpoint.MODELS, False),
        (b"/v1/files/file-1/content", Endpoint.FILES, False),
        (b"/v1/batches", Endpoint.BATCHES, False),
        (b"/v1/vector_stores/vs_1/files", Endpoint.VECTOR_STORES, False),
        (b"/something/new", Endpoint.OTHER, False),
        (b"/", Endpoint.OTHER, False),
    ],
)
def test_path_is_named_and_read_as_its_endpoint(path: bytes, route: Endpoint, reads: bool) -> None:
    """A path's label and whether its body names a model follow from its last words, with or without /v1."""
    facts = Routes(("*",)).facts(path)

    assert (facts.endpoint, facts.reads_body) == (route, reads)


@pytest.mark.parametrize("path", [b"/metrics", b"/%6detrics", b"/debug/pprof/profile", b"/admin", b"/healthz"])
def test_admin_path_on_data_listener_is_unknown(path: bytes) -> None:
    """B-52: the data listener serves no admin page and forwards none."""
    with pytest.raises(VeloxError) as refused:
        Routes(("*",)).check(head(b"GET", path))

    assert refused.value.reason is Reason.UNKNOWN_ROUTE


@pytest.mark.parametrize("path", [b"/api/event_logging/batch", b"/favicon.ico"])
def test_what_clients_ask_of_any_server_is_not_passed_on(path: bytes) -> None:
    """C33: reports of Claude Code, and browsers' pictures, are no provider's business."""
    with pytest.raises(VeloxError) as refused:
        Routes(("*",)).check(head(b"POST", path, length=2))

    assert refused.value.reason is Reason.UNKNOWN_ROUTE


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS"])
def test_body_without_meaning_is_refused(method: bytes) -> None:
    """B-12: an upstream that skips the body of a GET would read it as the next request. A length of 0 is no body."""
    routes = Routes(("*",))
    routes.check(head(method, b"/v1/models"))
    routes.check(head(method, b"/v1/models", length=0))

    with pytest.raises(VeloxError) as refused:
        routes.check(head(method, b"/v1/models", length=1))

    assert (refused.value.reason, refused.value.close) == (Reason.BAD_REQUEST, True)
    routes.check(head(b"DELETE", b"/v1/models", length=1))


@pytest.mark.parametrize(
    ("path", "passes"),
    [(b"/v1/chat", True), (b"/v1/chat/completions", True), (b"/v1/chatx", False), (b"/v1/models", False)],
)
def test_prefix_passes_whole_segments_only(path: bytes, passes: bool) -> None:
    """VELOX_PATHS: a prefix ends at a slash or at the path's end."""
    assert Routes(("/v1/chat",)).facts(path).passes is passes


@pytest.mark.slow
def test_path_cache_stays_bounded() -> None:
    """10,000 different paths leave the cache within its bound."""
    routes = Routes(("*",))

    for n in range(10_000):
        routes.facts(b"/v1/files/file-%d" % n)

    assert len(routes._known) <= 2 * 1024  # a memo keeps twice its limit


@pytest.mark.parametrize(
    ("media", "accepted"),
    [
        (b"application/json", True),
        (b"Application/JSON; charset=UTF-8", True),
        (b"application/json;charset=utf-8", True),
        (b"application/vnd.api+json", True),
        (b"multipart/form-data; boundary=x", False),  # a server that reads it as JSON would run what is not counted
        (b"application/json; charset=utf-16", False),
        (b"text/plain", False),
        (b"application/x-www-form-urlencoded", False),
        (b"", False),
    ],
)
def test_body_that_is_read_must_be_json(media: bytes, accepted: bool) -> None:
    """B-41: other types are 415 on the paths whose bodies are read."""
    request = head(b"POST", b"/v1/chat/completions", [(b"content-type", media)] if media else [], length=2)

    if accepted:
        Routes(("*",)).check(request)
    else:
        with pytest.raises(VeloxError) as refused:
            Routes(("*",)).check(request)
        assert refused.value.reason is Reason.UNSUPPORTED_MEDIA


def test_body_of_other_path_may_be_anything() -> None:
    """The bodies of paths that name no model are not looked into."""
    request = head(b"POST", b"/v1/files", [(b"content-type", b"text/plain")], length=2)

    assert Routes(("*",)).check(request).reads_body is False


@pytest.mark.parametrize(
    ("coding", "accepted"), [(b"identity", True), (b"", True), (b"gzip", True), (b"zstd", True), (b"compress", False)]
)
def test_body_of_an_unknown_coding_is_refused(coding: bytes, accepted: bool) -> None:
    """B-42, C16, N6: with its head, before any of it is read."""
    request = head(b"POST", b"/v1/files", [(b"content-encoding", coding)], length=2)

    if accepted:
        Routes(("*",)).check(request)
    else:
        with pytest.raises(VeloxError) as refused:
            Routes(("*",)).check(request)
        assert refused.value.status == 415


@pytest.mark.parametrize(
    ("method", "media", "reads"),
    [
        (b"POST", b"application/json", True),
        (b"GET", b"application/json", False),
        (b"POST", b"multipart/form-data; boundary=x", False),
    ],
)
def test_only_json_posts_are_read(method: bytes, media: bytes, reads: bool) -> None:
    """A GET has no model, and a multipart body passes unread."""
    routes = Routes(("*",))
    request = head(method, b"/v1/images/edits", [(b"content-type", media)], length=2)

    assert reads_body(routes.facts(request.path), request) is reads


@pytest.mark.parametrize(
    ("call", "route", "client_api"),
    [
        (b"generateContent", Endpoint.GENERATE, ApiKind.GENERATE),
        (b"streamGenerateContent", Endpoint.GENERATE, ApiKind.GENERATE),
        (b"countTokens", Endpoint.GENERATE, ApiKind.COUNT_GENERATE),
        (b"batchEmbedContents", Endpoint.EMBEDDINGS, ApiKind.EMBED_CONTENTS),
        (b"embedContent", Endpoint.EMBEDDINGS, ApiKind.EMBED_CONTENT),
    ],
)
def test_calls_of_gemini_are_known_by_their_verb(call: bytes, route: Endpoint, client_api: ApiKind) -> None:
    """One text to embed is another API than several are, as it has another form."""
    facts = Routes(("/",)).facts(b"/v1beta/models/gemini-x:" + call)

    assert (facts.endpoint, facts.client_api) == (route, client_api)
    assert facts.named is not None and facts.named.model == "gemini-x"


@pytest.mark.parametrize(
    ("path", "field", "dialect"),
    [
        (b"/v1/models/gone", (b"anthropic-version", b"2023-06-01"), Dialect.ANTHROPIC),
        (b"/v1/messages/batches", (b"anthropic-version", b"2023-06-01"), Dialect.ANTHROPIC),
        (b"/v1/messages", (b"a", b"b"), Dialect.ANTHROPIC),
        (b"/v1/models/gone", (b"a", b"b"), Dialect.OPENAI),
        (b"/v1/models/gone", (b"x-goog-api-key", b"k"), Dialect.GOOGLE),
        (b"/v1beta/models/gone", (b"a", b"b"), Dialect.GOOGLE),
        (b"/v1beta/cachedContents", (b"a", b"b"), Dialect.GOOGLE),
        (b"/v1beta/openai/models", (b"a", b"b"), Dialect.OPENAI),
        (b"/v1/chat/completions", (b"anthropic-version", b"2023-06-01"), Dialect.OPENAI),
    ],
)
def test_errors_have_the_shape_that_the_client_knows(path: bytes, field: tuple[bytes, bytes], dialect: Dialect) -> None:
    """Also at paths that several vendors have, and at those that are never translated."""
    head = RequestHead.of(b"GET", path, [field])
    assert dialect_of(head, Routes(("*",)).facts(path)) is dialect
