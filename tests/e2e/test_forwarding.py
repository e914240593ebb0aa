"""What goes up and what comes down: methods, paths, headers, credentials. Bodies are in test_forwarding_bodies.py."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.conftest import Wall
from tests.e2e.harness import KEY, VeloxProcess
from tests.e2e.recording import JSON, Call, RecordingUpstream
from tests.e2e.routed import routed
from velox.gateway.translation.dropped_headers import CREDENTIALS, DROPPED

CHAT = b'{"model":"m","messages":[]}'
# Everything the OpenAI API has a kind of: with and without /v1, with ids, queries, escapes, an empty query.
REQUESTS = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/org%2Fname"),
    ("DELETE", "/v1/models/ft:gpt-4o:acme::abc"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/chat/completions"),
    ("GET", "/v1/chat/completions/chatcmpl-1/messages?limit=2&order=asc"),
    ("POST", "/v1/responses"),
    ("DELETE", "/v1/responses/resp_1"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/moderations"),
    ("GET", "/v1/files?purpose=batch&limit=3"),
    ("GET", "/v1/files?"),
    ("GET", "/files/file-1/content"),
    ("DELETE", "/v1/files/file-1"),
    ("POST", "/v1/audio/speech"),
    ("POST", "/v1/images/generations"),
    ("POST", "/v1/batches/batch_1/cancel"),
    ("GET", "/v1/vector_stores/vs_1/files?filter=a%20b%26c&after=%C3%A9"),
    ("PUT", "/v1/anything/at/all"),
    ("PATCH", "/v1/anything/at/all?x=1"),
    ("OPTIONS", "/v1/models"),
    ("GET", "/some/thing/nobody/knows?a=b?c=d"),
]
KEYED = {"OPENAI_API_KEY": "sk-upstream-secret", "VELOX_WORKERS": "1"}


@pytest.fixture(scope="module")
def recorder() -> Iterator[RecordingUpstream]:
    """A scripted HTTP/1.1 upstream for gateways with settings of their own."""
    with RecordingUpstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def keyed(recorder: RecordingUpstream) -> Iterator[VeloxProcess]:
    """A gateway that has the upstream's key; its clients need none."""
    with VeloxProcess({**recorder.env(), **KEYED}) as velox:
        yield velox


@pytest.fixture(scope="module")
def below_base_path(recorder: RecordingUpstream) -> Iterator[VeloxProcess]:
    """A gateway whose origin has a path."""
    env = recorder.env() | {"VELOX_UPSTREAM_REQUEST_PATH": "/v1/special", "VELOX_WORKERS": "1"}
    env["VELOX_UPSTREAM_ORIGIN"] += "/openai/deployment"
    with VeloxProcess(env) as velox:
        yield velox


@pytest.mark.parametrize(("method", "target"), REQUESTS)
def test_method_path_and_query_go_up_as_they_came(wall: Wall, method: str, target: str) -> None:
    """Any method and any path of the API reach the upstream byte for byte."""
    body = CHAT if method in ("POST", "PUT", "PATCH") else None

    with wall.upstream.playing(anything):
        reply = wall.velox.request(method, target, body)
        call = wall.upstream.wait_call()

    assert reply.status == 200
    assert (call.method, call.target, call.body) == (method, target, body or b"")


async def anything(call: Call) -> None:
    """Answer any request with an empty object."""
    await call.reply(200, JSON, b"{}")


@pytest.mark.parametrize(
    ("target", "upstream_target"),
    [
        ("/v1/models?limit=1", "/openai/deployment/v1/models?limit=1"),
        ("/models", "/openai/deployment/models"),
        ("/v1/", "/openai/deployment/v1/"),
    ],
)
def test_get_goes_below_the_origins_path(
    below_base_path: VeloxProcess, recorder: RecordingUpstream, target: str, upstream_target: str
) -> None:
    """The origin's path is put before the client's; nothing else changes."""
    with recorder.playing(anything):
        assert below_base_path.request("GET", target).status == 200
        assert recorder.wait_call().target == upstream_target


@pytest.mark.parametrize(
    ("target", "upstream_target"),
    [
        ("/", "/openai/deployment/v1/special"),
        ("/?a=1", "/openai/deployment/v1/special?a=1"),
    ],
)
def test_bare_post_goes_to_the_request_path(
    below_base_path: VeloxProcess, recorder: RecordingUpstream, target: str, upstream_target: str
) -> None:
    """POST / goes to VELOX_UPSTREAM_REQUEST_PATH, below the origin's path; its query stays."""
    with recorder.playing(anything):
        assert below_base_path.request("POST", target, CHAT).status == 200
        call = recorder.wait_call()

    assert (call.target, call.body) == (upstream_target, CHAT)


def test_bare_post_goes_to_responses_by_default(keyed: VeloxProcess, recorder: RecordingUpstream) -> None:
    """Without a setting POST / is a call of the Responses API."""
    with recorder.playing(anything):
        assert keyed.request("POST", "/", CHAT).status == 200
        assert recorder.wait_call().target == "/v1/responses"


def test_client_headers_pass_and_claims_do_not(wall: Wall) -> None:
    """Headers go up unchanged but for hop-by-hop ones, forwarding claims, Velox's own and cookies."""
    passed = {
        "authorization": "Bearer sk-client",
        "openai-organization": "org-1",
        "openai-project": "proj_1",
        "openai-beta": "assistants=v2",
        "user-agent": "test/1.0",
        "x-stainless-lang": "python",
        "x-request-id": "my-own_ID-1",
        "accept": "application/json",
        "accept-encoding": "gzip, br",
        "idempotency-key": "k-1",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    dropped = {
        "x-forwarded-for": "10.0.0.1",
        "x-forwarded-host": "evil.example",
        "x-velox-request-id": "vx-mine",
        "x-velox-anything": "1",
        "forwarded": "for=10.0.0.1",
        "via": "1.1 other",
        "x-real-ip": "10.0.0.1",
        "cookie": "session=1",
        "proxy-authorization": "Basic eA==",
        "connection": "keep-alive, x-hop",
        "x-hop": "1",
        "keep-alive": "timeout=5",
        "te": "trailers",
        "with_underscore": "1",
    }

    with wall.upstream.playing(anything):
        assert wall.velox.request("GET", "/v1/models", headers=passed | dropped).status == 200
        call = wall.upstream.wait_call()

    names = {name for name, _ in call.headers}
    assert {name: call.header(name) for name in passed} == passed
    assert not names & set(dropped)
    assert names - set(passed) <= {"host"}


@pytest.mark.parametrize("client_http2", [False, True], ids=["http1", "http2"])
@pytest.mark.parametrize("upstream_http2", [False, True], ids=["up-http1", "up-http2"])
def test_fields_that_steer_servers_or_say_who_a_client_is_go_to_no_upstream(
    client_http2: bool, upstream_http2: bool
) -> None:
    """X15: unless the upstream's entry sets them. Google's servers make a DELETE of a POST that says so."""
    own = {"x-http-method-override": "GET", "ocp-apim-subscription-key": "ours"}
    never = {name.decode(): "theirs" for name in (DROPPED | CREDENTIALS) - {b"expect", b"content-encoding"}}
    del never["authorization"]  # a client's, which is its key here
    never |= {"x-forwarded-for": "10.0.0.1", "x-envoy-original-path": "/evil", "proxy-authorization": "Basic eA=="}
    with RecordingUpstream(http2=upstream_http2) as upstream, upstream.playing(anything):
        entry = {"name": "one", "origin": upstream.upstream.url, "key": "env:MODEL_KEY", "headers": own}
        http2 = "on" if upstream_http2 else "auto"
        more = {"MODEL_KEY": "sk-ours-0123456789", "upstream_http2": http2, "listen_http2": "on"}
        with (
            routed({"upstreams": [entry]}, **more) as velox,
            httpx.Client(http1=not client_http2, http2=client_http2, headers={"x-passes": "1"}) as client,
        ):
            never |= {"x-request-timeout-ms": "60000", "authorization": f"Bearer {KEY}"}
            sent = {**never, "content-type": "application/json"}
            assert client.post(f"{velox.base_url}/v1/chat/completions", content=CHAT, headers=sent).status_code == 200
            call = upstream.wait_call()

    got = dict(call.headers)
    assert got["authorization"] == "Bearer sk-ours-0123456789" and got["x-passes"] == "1"
    assert {name: got.get(name) for name in own} == own
    assert not [name for name, value in call.headers if value in ("theirs", "10.0.0.1", "/evil")]
    assert (call.method, call.target) == ("POST", "/v1/chat/completions")


def test_host_is_the_upstreams(wall: Wall) -> None:
    """The upstream is addressed by its own name, whatever the client calls the gateway."""
    with wall.upstream.playing(anything):
        assert wall.velox.request("GET", "/v1/models", headers={"host": "evil.example"}).status == 200
        call = wall.upstream.wait_call()

    pseudo = getattr(call, "pseudo", {":authority": call.header("host")})
    assert pseudo[":authority"] == f"127.0.0.1:{wall.upstream.port}"


@pytest.mark.parametrize("value", ["x" * 65, "a b", "a;b", "é"])
def test_request_id_that_is_no_id_is_dropped(wall: Wall, value: str) -> None:
    """A client's x-request-id goes up only when it is one (B-26)."""
    with wall.upstream.playing(anything):
        reply = wall.velox.request("GET", "/v1/models", headers={"x-request-id": value})
        if not value.isascii():
            assert reply.status == 400
            assert wall.upstream.calls == []
            return
        assert wall.upstream.wait_call().header("x-request-id") is None


def test_streamed_request_asks_for_no_compression(wall: Wall) -> None:
    """A stream is asked for uncompressed, so that its end can be watched."""
    body = b'{"model":"m","messages":[],"stream":true}'

    with wall.upstream.playing(anything):
        wall.velox.request("POST", "/v1/chat/completions", body, {"accept-encoding": "gzip"})
        assert wall.upstream.wait_call().header("accept-encoding") == "identity"


@pytest.mark.parametrize(
    "credential",
    [{}, {"authorization": "Bearer sk-client"}, {"x-api-key": "sk-client"}, {"api-key": "sk-client"}],
    ids=["none", "bearer", "x-api-key", "api-key"],
)
def test_own_key_replaces_the_clients(
    keyed: VeloxProcess, recorder: RecordingUpstream, credential: dict[str, str]
) -> None:
    """With OPENAI_API_KEY set the upstream sees that key and nothing of the client's, the account headers neither."""
    account = {"openai-organization": "org-1", "openai-project": "proj_1"}

    with recorder.playing(anything):
        assert keyed.request("GET", "/v1/models", headers=credential | account).status == 200
        call = recorder.wait_call()

    assert call.header("authorization") == "Bearer sk-upstream-secret"
    assert "sk-client" not in repr(call.headers)
    assert call.header("openai-organization") is None and call.header("openai-project") is None


def test_key_of_the_gateway_never_goes_up(recorder: RecordingUpstream) -> None:
    """Where clients present keys of Velox, the upstream sees no key at all unless Velox has one of its own."""
    env = {**recorder.env(), "VELOX_API_KEYS": "vk-one", "VELOX_WORKERS": "1"}

    with VeloxProcess(env) as velox, recorder.playing(anything):
        refused = velox.request("GET", "/v1/models", headers={"authorization": "Bearer wrong"})
        passed = velox.request("GET", "/v1/models", headers={"authorization": "Bearer vk-one"})

    assert (refused.status, passed.status) == (401, 200)
    assert [call.header("authorization") for call in recorder.calls] == [None]


@pytest.mark.parametrize("status", [200, 201, 202, 206, 400, 404, 409, 418, 422, 429, 500, 503, 529])
def test_status_and_headers_come_down_unchanged(wall: Wall, status: int) -> None:
    """An upstream's answer is passed on as it is, errors too."""
    fields = [
        ("content-type", "application/json; charset=utf-8"),
        ("x-request-id", "req_abc"),
        ("openai-processing-ms", "12"),
        ("openai-version", "2020-10-01"),
        ("x-ratelimit-remaining-requests", "99"),
        ("retry-after", "7"),
        ("x-should-retry", "false"),
        ("content-encoding", "br"),
        ("date", "Sat, 21 Nov 2026 11:17:44 GMT"),
        ("x-twice", "one"),
        ("x-twice", "two"),
    ]

    async def answer(call: Call) -> None:
        await call.reply(status, fields, b"not json \x00\xff")

    with wall.upstream.playing(answer):
        reply = wall.velox.request("POST", "/v1/chat/completions", CHAT)

    assert (reply.status, reply.body) == (status, b"not json \x00\xff")
    ours = [
        ("content-length", str(len(reply.body))),
        ("x-velox-request-id", reply.header("x-velox-request-id")),
        ("x-velox-upstream", "default"),
        ("x-velox-attempts", "1"),
    ]
    assert sorted(reply.headers) == sorted(fields + ours)
    assert re.fullmatch(r"vx-[0-9a-f]+-[0-9a-f]+", reply.header("x-velox-request-id") or "")
    assert len(wall.upstream.calls) == 1


def test_credentials_and_cookies_do_not_come_down(wall: Wall) -> None:
    """Hop-by-hop headers, cookies and anything like a credential stay with the gateway."""
    fields = [
        ("set-cookie", "__cf_bm=1"),
        ("set-cookie", "other=2"),
        ("server", "cloudflare"),
        ("alt-svc", 'h3=":443"'),
        ("authorization", "Bearer sk-upstream-secret"),
        ("x-api-key", "sk-upstream-secret"),
        ("x-goog-api-key", "sk-upstream-secret"),
        ("x-velox-reason", "internal"),
        ("x-velox-request-id", "not-mine"),
        ("x-velox-upstream", "not-mine"),
        ("x-velox-attempts", "not-mine"),
        ("x-velox-tried", "not-mine"),
        ("x-velox-anything", "not-mine"),
    ]
    if not wall.is_http2:
        fields += [("connection", "keep-alive, x-hop"), ("x-hop", "1"), ("keep-alive", "timeout=5")]

    async def answer(call: Call) -> None:
        await call.reply(200, [*JSON, *fields], b"{}")

    with wall.upstream.playing(answer):
        reply = wall.velox.request("GET", "/v1/models")

    names = sorted(name for name, _ in reply.headers)
    ours = ["x-velox-attempts", "x-velox-request-id", "x-velox-upstream"]
    assert names == ["content-length", "content-type", "date", *ours]
    assert "secret" not in repr(reply) and "not-mine" not in repr(reply)


def test_own_error_carries_own_id_twice(wall: Wall) -> None:
    """An error of Velox's own has its id as x-request-id too, which SDKs show; the log has the same id."""
    with wall.upstream.playing(anything):
        reply = wall.velox.request("POST", "/v1/chat/completions", b"{")

    own_id = reply.header("x-velox-request-id")
    assert reply.status == 400
    assert own_id and reply.header("x-request-id") == own_id
    assert reply.header("x-velox-reason") == reply.error()["code"] == "invalid_json"
    assert wall.velox.wait_access(lambda line: line["id"] == own_id)["reason"] == "invalid_json"
    assert wall.upstream.calls == []
