"""Errors as the OpenAI SDK sees them: its own exception classes, code and param, and how often it tries again."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator

import openai
import pytest
from openai._types import RequestOptions
from openai.types.chat import ChatCompletion

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import JSON, Call, RecordingUpstream
from tests.e2e.upstreams import Certificates

AS_JSON: RequestOptions = {"headers": {"content-type": "application/json"}}
ONE_WORKER = {"VELOX_WORKERS": "1", "VELOX_ACCESS_LOG": "all"}


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingUpstream]:
    """A scripted HTTP/1.1 upstream."""
    with RecordingUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def velox(upstream: RecordingUpstream) -> Iterator[VeloxProcess]:
    """A gateway with tight limits on bodies, paths and patience."""
    limits = {"VELOX_MAX_BODY": "2000", "VELOX_PATHS": "/v1/chat,/v1/models,/v1/files"}
    patience = {"VELOX_UPSTREAM_FIRST_BYTE_TIMEOUT": "300ms", "VELOX_RATE_LIMIT_RPM": "0"}
    with VeloxProcess({**upstream.env(), **ONE_WORKER, **limits, **patience}) as running:
        yield running


@pytest.fixture(autouse=True)
def alive_after(velox: VeloxProcess) -> Iterator[None]:
    """After each test the shared gateway serves."""
    yield
    assert velox.request("GET", "/v1/models").status == 200


def ask(sdk: openai.OpenAI) -> ChatCompletion:
    """Ask for a plain chat completion."""
    return sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])


def n_requests(velox: VeloxProcess, reason: str) -> int:
    """Return how many requests the gateway has answered with a reason."""
    found = velox.metrics().items()
    return int(sum(n for sample, n in found if sample.startswith("velox_requests_total") and f'"{reason}"' in sample))


# -- the upstream's own errors --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (409, openai.ConflictError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
def test_upstreams_error_reaches_the_sdk_unchanged(
    velox: VeloxProcess, upstream: RecordingUpstream, status: int, kind: type[openai.APIStatusError]
) -> None:
    """The SDK raises what it would raise without a gateway, with the provider's message, code, param and request id."""
    error = {"message": "from afar", "type": "some_type", "param": "messages", "code": "context_length_exceeded"}

    async def answer(call: Call) -> None:
        await call.reply(status, [*JSON, ("x-request-id", "req_afar")], json.dumps({"error": error}).encode())

    with upstream.playing(answer), pytest.raises(kind) as caught:
        ask(velox.openai())

    assert caught.type is kind
    assert (caught.value.status_code, caught.value.code, caught.value.param) == (status, error["code"], "messages")
    assert caught.value.body == error
    assert caught.value.request_id == "req_afar"
    assert len(upstream.calls) == (2 if status in (429, 500, 503) else 1)  # VELOX_RETRY_STATUSES


@pytest.mark.parametrize(("should_retry", "n_attempts"), [("false", 1), ("true", 4)])
def test_retries_of_the_sdk_and_of_velox_do_not_multiply(
    velox: VeloxProcess, upstream: RecordingUpstream, should_retry: str, n_attempts: int
) -> None:
    """The provider's x-should-retry and retry-after-ms reach the SDK, which obeys; its two retries add to Velox's one.

    Three attempts of the SDK with one retry of Velox for each would be six.
    """

    async def answer(call: Call) -> None:
        advice = [("x-should-retry", should_retry), ("retry-after-ms", "5")]
        await call.reply(500, [*JSON, *advice], b'{"error":{"message":"no"}}')

    with upstream.playing(answer), pytest.raises(openai.InternalServerError):
        ask(velox.openai(max_retries=2))

    assert len(upstream.calls) == n_attempts


# -- Velox's own ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "code", "param"),
    [
        (b'{"model":"m","messages":[}', "invalid_json", None),
        (b"", "invalid_json", None),
        (b"[]", "invalid_json", None),
        (b'{"model":"m","model":"n"}', "duplicate_key", "model"),
        (b'{"model":1}', "bad_request", "model"),
        (b'{"model":"m","stream":"yes"}', "bad_request", "stream"),
        (b'{"model":"m","max_tokens":-1}', "bad_request", "max_tokens"),
    ],
)
def test_bad_body_is_a_bad_request_error(
    velox: VeloxProcess, upstream: RecordingUpstream, content: bytes, code: str, param: str | None
) -> None:
    """What is wrong with a body is told as OpenAI would: code, param, and a message that says where."""
    with upstream.playing(never), pytest.raises(openai.BadRequestError) as caught:
        velox.openai(max_retries=2).post("/chat/completions", cast_to=object, content=content, options=AS_JSON)

    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.type == "invalid_request_error"
    check_headers(caught.value, code, should_retry="false")
    assert upstream.calls == []


async def never(call: Call) -> None:
    """A request that must not come up."""
    raise AssertionError(f"{call} came up")


def check_headers(error: openai.APIStatusError, code: str, *, should_retry: str | None) -> None:
    """An error of Velox's own says so in its headers: reason, own id, advice on retries."""
    headers = error.response.headers
    assert headers["x-velox-reason"] == code
    assert headers["x-request-id"] == headers["x-velox-request-id"] == error.request_id
    assert headers.get("x-should-retry") == should_retry


def test_path_that_is_not_served_is_a_not_found_error(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """404, unknown_route."""
    with upstream.playing(never), pytest.raises(openai.NotFoundError) as caught:
        velox.openai().embeddings.create(model="m", input="x")

    assert caught.value.code == "unknown_route"
    check_headers(caught.value, "unknown_route", should_retry="false")


@pytest.mark.parametrize("n_bytes", [3_000, 20_000_000])
def test_body_over_the_limit_is_a_413(velox: VeloxProcess, upstream: RecordingUpstream, n_bytes: int) -> None:
    """A body over VELOX_MAX_BODY is answered though the client still sends; the SDK reads that and does not repeat."""
    with upstream.playing(never), pytest.raises(openai.APIStatusError) as caught:
        velox.openai(max_retries=2).chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x" * n_bytes}]
        )

    assert (caught.value.status_code, caught.value.code) == (413, "body_too_large")
    check_headers(caught.value, "body_too_large", should_retry="false")


def test_wrong_key_is_an_authentication_error(upstream: RecordingUpstream) -> None:
    """401 for a wrong key, and the SDK's key works once it is the right one."""
    with VeloxProcess({**upstream.env(), **ONE_WORKER, "VELOX_API_KEYS": "vk-right"}) as velox:
        with upstream.playing(never), pytest.raises(openai.AuthenticationError) as caught:
            ask(velox.openai(api_key="vk-wrong", max_retries=2))

        assert caught.value.code == "auth_invalid"
        assert caught.value.type == "authentication_error"
        check_headers(caught.value, "auth_invalid", should_retry="false")
        assert "vk-" not in caught.value.response.text
        assert ask(velox.openai(api_key="vk-right")).choices


def test_empty_bucket_is_a_rate_limit_error_and_the_sdk_waits_as_told(upstream: RecordingUpstream) -> None:
    """429 with the exact time: an SDK that may retry waits that long and passes."""
    limit = {"VELOX_RATE_LIMIT_RPM": "60", "VELOX_RATE_LIMIT_BURST": "1", "VELOX_RATE_LIMIT_MAX_WAIT": "0s"}

    with VeloxProcess({**upstream.env(), **ONE_WORKER, **limit}) as velox:
        sdk = velox.openai()
        with pytest.raises(openai.RateLimitError) as caught:
            for _ in range(10):
                ask(sdk)

        headers = caught.value.response.headers
        assert caught.value.code == "rate_limited"
        assert caught.value.type == "rate_limit_error"
        check_headers(caught.value, "rate_limited", should_retry=None)
        assert headers["retry-after"] == "1" and 0 < int(headers["retry-after-ms"]) <= 1000
        assert headers["x-ratelimit-limit-requests"] == "1"
        assert ask(velox.openai(max_retries=1)).choices
        assert n_requests(velox, "rate_limited") == 2


def test_upstream_that_refuses_is_a_502_worth_a_retry() -> None:
    """Nobody listens there: no work was done, so the SDK is told to try again, and does."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    with VeloxProcess({"VELOX_UPSTREAM_ORIGIN": f"http://127.0.0.1:{port}", **ONE_WORKER}) as velox:
        with pytest.raises(openai.InternalServerError) as caught:
            ask(velox.openai(max_retries=1))

        assert (caught.value.status_code, caught.value.code) == (502, "upstream_connect")
        assert caught.value.type == "upstream_error"
        check_headers(caught.value, "upstream_connect", should_retry="true")
        assert n_requests(velox, "upstream_connect") == 2


def test_upstream_with_a_foreign_certificate_is_a_502(certificates: Certificates) -> None:
    """Signed by nobody we trust: no request goes out, and plain text is no way round (F-6)."""
    with (
        RecordingUpstream(certificates=certificates) as foreign,
        foreign.playing(never),
        VeloxProcess({"VELOX_UPSTREAM_ORIGIN": foreign.upstream.url, **ONE_WORKER}) as velox,
        pytest.raises(openai.InternalServerError, match="certificate") as caught,
    ):
        ask(velox.openai())

    assert (caught.value.status_code, caught.value.code) == (502, "upstream_tls")
    assert foreign.n_warmups == 0


def test_silent_upstream_is_a_504_and_not_repeated(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """The model may be at work: an SDK that would repeat every 504 is told not to, and the upstream sees one call."""

    async def silent(call: Call) -> None:
        await call.silence()

    with upstream.playing(silent), pytest.raises(openai.InternalServerError) as caught:
        ask(velox.openai(max_retries=2))

    assert (caught.value.status_code, caught.value.code) == (504, "upstream_ttfb_timeout")
    assert caught.value.type == "timeout_error"
    check_headers(caught.value, "upstream_ttfb_timeout", should_retry="false")
    upstream.wait_left(upstream.wait_call())
    assert len(upstream.calls) == 1


def test_stalled_stream_raises_in_the_sdk(upstream: RecordingUpstream) -> None:
    """A stream that stops without an end raises after the idle time-out; the upstream is let go (F-18)."""

    async def stall(call: Call) -> None:
        await call.head(200, [("content-type", "text/event-stream")])
        await call.data(b'data: {"choices":[]}\n\n')
        await call.silence()

    env = {**upstream.env(), **ONE_WORKER, "VELOX_UPSTREAM_IDLE_TIMEOUT": "300ms"}
    with VeloxProcess(env) as velox, upstream.playing(stall):
        with pytest.raises(openai.APIError) as caught:
            list(velox.openai().chat.completions.create(model="m", messages=[], stream=True))

        assert caught.value.code == "upstream_idle_timeout"
        upstream.wait_left(upstream.wait_call())


def test_full_queue_is_a_503_worth_a_retry(upstream: RecordingUpstream) -> None:
    """No room, no work done: 503 at once, with the advice to come back, which the SDK takes."""

    async def wait(call: Call) -> None:
        await call.step()
        await call.reply(200, JSON, b"{}")

    room = {"VELOX_MAX_INFLIGHT": "1", "VELOX_QUEUE_DEPTH": "1", "VELOX_QUEUE_TIMEOUT": "10s"}
    with VeloxProcess({**upstream.env(), **ONE_WORKER, **room}) as velox, upstream.playing(wait), occupied(velox, 2):
        upstream.wait_call()
        velox.wait_metric('velox_queue_depth{class="normal"}', lambda n: n == 1)
        with pytest.raises(openai.InternalServerError) as caught:
            ask(velox.openai())
        upstream.step(2)

    assert (caught.value.status_code, caught.value.code) == (503, "queue_full")
    assert caught.value.type == "overloaded_error"
    check_headers(caught.value, "queue_full", should_retry="true")
    assert caught.value.response.headers["retry-after"] == "1"


def test_late_in_the_queue_is_a_503_and_the_sdk_tries_again(upstream: RecordingUpstream) -> None:
    """A request that waited too long is refused, unsent; the SDK's next try finds room."""

    async def wait(call: Call) -> None:
        if call.method == "GET":
            await call.step()
        await call.reply(200, JSON, b'{"id":"x","choices":[],"object":"chat.completion","created":1,"model":"m"}')

    room = {"VELOX_MAX_INFLIGHT": "1", "VELOX_QUEUE_TIMEOUT": "200ms"}
    with VeloxProcess({**upstream.env(), **ONE_WORKER, **room}) as velox, upstream.playing(wait), occupied(velox, 1):
        upstream.wait_call()
        answers: list[ChatCompletion] = []
        sdk = velox.openai(max_retries=2)
        asking = threading.Thread(target=lambda: answers.append(ask(sdk)))
        asking.start()
        velox.wait_access(lambda line: line["reason"] == "queue_timeout")
        upstream.step()
        asking.join(20)

        assert answers and answers[0].id == "x"
        assert n_requests(velox, "queue_timeout") == 1
        assert [call.method for call in upstream.calls] == ["GET", "POST"]


@contextlib.contextmanager
def occupied(velox: VeloxProcess, n: int) -> Iterator[None]:
    """Hold `n` requests in the gateway, which the upstream's script answers when it likes."""
    with contextlib.ExitStack() as stack:
        for _ in range(n):
            sock = stack.enter_context(velox.connect())
            sock.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        yield
