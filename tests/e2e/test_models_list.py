"""`GET /v1/models` of a gateway with several upstreams: what the caller may use, as the real SDK sees it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recording import JSON, Call, RecordingUpstream, Script
from tests.e2e.routed import Entry, routed
from tests.e2e.tools import free_port
from tests.untrusting import NO_TRUST

KEYS = {"everything": "sk-key-of-everything-1", "some": "sk-key-of-some-000001", "few": "sk-key-of-few-0000001"}
VLLM = {"id": "llama", "object": "model", "created": 7, "owned_by": "vllm", "root": "/l", "max_model_len": 4096}
OPENAI = [{"id": name, "object": "model", "created": 5, "owned_by": "system"} for name in ("gpt-4o", "gpt-5", "tts")]
ROUTES: list[Entry] = [
    {"name": "alias", "match": {"models": ["fast"]}, "to": "vllm", "model": "llama"},
    {"name": "team", "match": {"keys": ["some"], "models": ["team-*", "own"]}, "to": "vllm"},
    {"name": "chat", "match": {"models": ["gpt-*"], "paths": ["/v1/chat/*"]}, "to": "openai", "fallback": ["named"]},
    {"name": "rest", "match": {"models": ["llama*", "m*"]}, "to": ["vllm", "named"]},
]


def listing(*models: Entry) -> Script:
    """Return an upstream that lists these models."""

    async def answer(call: Call) -> None:
        await call.reply(200, JSON, json.dumps({"object": "list", "data": models}).encode())

    return answer


def entry(name: str, upstream: RecordingUpstream, **more: Any) -> Entry:
    return {"name": name, "origin": upstream.upstream.url, **more}


@pytest.fixture(scope="module")
def upstreams() -> Iterator[dict[str, RecordingUpstream]]:
    with RecordingUpstream(script=listing(VLLM)) as vllm, RecordingUpstream(script=listing(*OPENAI)) as other:
        yield {"vllm": vllm, "openai": other}


@pytest.fixture(scope="module")
def velox(upstreams: dict[str, RecordingUpstream]) -> Iterator[VeloxProcess]:
    """Two upstreams that tell their models, and one that is not there."""
    keys = [{"name": name, "key": key} for name, key in KEYS.items()]
    keys[2] |= {"models": ["gpt-*", "fast"], "rpm": 3}  # type: ignore[dict-item]
    config = {
        "upstreams": [
            entry("vllm", upstreams["vllm"], headers={"x-team": "platform"}),
            entry("openai", upstreams["openai"], models=["gpt-*"], keys=["env:UPSTREAM_KEY"]),
            {"name": "named", "origin": f"http://127.0.0.1:{free_port()}", "models": ["mistral", "gpt-4o"]},
        ],
        "routes": ROUTES,
        "api_keys": keys,
    }
    with routed(config, access_log="all", UPSTREAM_KEY="sk-of-the-upstream") as running:
        yield running


def test_sdk_lists_what_a_caller_may_use(velox: VeloxProcess) -> None:
    """Aliases, the settings' names and the upstreams' own, sorted; each with what its upstream says of it."""
    listed = velox.openai(api_key=KEYS["everything"]).models.list().data

    assert [model.id for model in listed] == ["fast", "gpt-4o", "gpt-5", "llama", "mistral"]
    by_name = {model.id: model.model_dump(exclude_unset=True) for model in listed}
    assert by_name["llama"] == VLLM
    assert by_name["fast"] == {**VLLM, "id": "fast"}
    assert by_name["gpt-4o"] == OPENAI[0]
    assert by_name["mistral"] == {"id": "mistral", "object": "model", "created": 0, "owned_by": "named"}


def test_sdk_lists_by_key(velox: VeloxProcess) -> None:
    """What routes give to a key, and what a key is limited to."""
    some = velox.openai(api_key=KEYS["some"]).models.list().data

    assert [model.id for model in some] == ["fast", "gpt-4o", "gpt-5", "llama", "mistral", "own"]


def test_other_sdks_list_and_retrieve_in_their_own_shape(velox: VeloxProcess) -> None:
    """Anthropic's and Google's: the same models, pages and fields as they know them; and their own error for none."""
    key, names = KEYS["everything"], ["fast", "gpt-4o", "gpt-5", "llama", "mistral"]
    http = anthropic.DefaultHttpxClient(verify=NO_TRUST, trust_env=False, timeout=20.0)
    with anthropic.Anthropic(base_url=velox.base_url, auth_token=key, max_retries=0, http_client=http) as claude:
        listed = list(claude.models.list())
        assert [(model.id, model.type) for model in listed] == [(name, "model") for name in names]
        assert all(model.display_name and model.created_at for model in listed)
        assert claude.models.retrieve("gpt-4o").id == "gpt-4o"
        with pytest.raises(anthropic.NotFoundError) as gone:
            claude.models.retrieve("tts")
        assert gone.value.body == {**_dict(gone.value.body), "type": "error"}

    options = types.HttpOptions(base_url=velox.base_url)
    google = genai.Client(api_key=key, http_options=options)
    found = [model.name for model in google.models.list()]
    assert found == [f"models/{name}" for name in names]
    assert google.models.get(model="gpt-4o").name == "models/gpt-4o"
    with pytest.raises(genai.errors.ClientError) as none:
        google.models.get(model="tts")
    assert (none.value.code, none.value.status) == (404, "NOT_FOUND")


def _dict(body: object) -> dict[str, object]:
    assert isinstance(body, dict)
    return body


def test_sdk_retrieves_one_model(velox: VeloxProcess) -> None:
    """One that is there, and two that are not: of nobody, and of somebody else."""
    sdk = velox.openai(api_key=KEYS["everything"])

    assert sdk.models.retrieve("fast").model_dump(exclude_unset=True) == {**VLLM, "id": "fast"}
    for name in ("tts", "own"):
        with pytest.raises(openai.NotFoundError) as caught:
            sdk.models.retrieve(name)
        assert (caught.value.code, caught.value.param, caught.value.type) == (
            *("unknown_model", "model"),
            "invalid_request_error",
        )


def test_sdk_retrieves_a_model_that_no_list_has() -> None:
    """Of the first upstream that says it has it, asked with its own key; 404 where none has it."""

    async def answer(call: Call) -> None:
        if call.target == "/v1/models/ft%3Agpt-4o":
            await call.reply(200, JSON, b'{"id":"ft:gpt-4o","object":"model","created":9,"owned_by":"org"}')
        elif call.target == "/v1/models":
            await listing(*OPENAI)(call)
        else:
            await call.reply(404, JSON, b'{"error":{"message":"no such model"}}')

    with (
        RecordingUpstream(script=listing(VLLM)) as vllm,
        RecordingUpstream(script=answer) as other,
        routed(
            {"upstreams": [entry("vllm", vllm), entry("openai", other, keys=["env:UPSTREAM_KEY"])]},
            UPSTREAM_KEY="sk-of-the-upstream",
        ) as velox,
    ):
        reply = velox.request("GET", "/v1/models/ft%3Agpt-4o", None, {"authorization": "Bearer sk-of-the-client"})
        sdk = velox.openai()
        assert json.loads(reply.body) == {"id": "ft:gpt-4o", "object": "model", "created": 9, "owned_by": "org"}
        assert sdk.models.retrieve("gpt-5").id == "gpt-5"
        with pytest.raises(openai.NotFoundError):
            sdk.models.retrieve("gpt-6")

        keys = {call.header("authorization") for call in other.calls if call.method == "GET"}
        assert keys == {"Bearer sk-of-the-upstream"}


def test_limits_count_these_requests(velox: VeloxProcess) -> None:
    """They are answered here, and are requests all the same."""
    sdk = velox.openai(api_key=KEYS["few"], max_retries=0)

    for left in (2, 1, 0):
        raw = sdk.models.with_raw_response.list()
        assert raw.headers["x-ratelimit-remaining-requests"] == str(left)
        assert [model.id for model in raw.parse().data] == ["fast", "gpt-4o", "gpt-5"]
    with pytest.raises(openai.RateLimitError):
        sdk.models.list()
    with pytest.raises(openai.AuthenticationError):
        velox.openai(api_key="sk-of-nobody").models.list()


def test_upstreams_are_asked_once_and_by_their_own_keys(
    velox: VeloxProcess, upstreams: dict[str, RecordingUpstream]
) -> None:
    """A client's key goes no further, and neither does anything else of its request."""
    for _ in range(3):
        reply = velox.request(
            "GET",
            "/v1/models?limit=3",
            None,
            {"authorization": f"Bearer {KEYS['everything']}", "x-mine": "1", "accept-encoding": "gzip"},
        )
        assert reply.status == 200 and reply.header("content-type") == "application/json"
        assert reply.header("x-velox-request-id") and reply.header("x-velox-upstream") is None

    (of_openai,) = [call for call in upstreams["openai"].calls if call.method == "GET"]
    (of_vllm,) = [call for call in upstreams["vllm"].calls if call.method == "GET"]
    assert (of_openai.target, of_openai.header("authorization")) == ("/v1/models", "Bearer sk-of-the-upstream")
    assert (of_vllm.header("authorization"), of_vllm.header("x-team")) == (None, "platform")
    for call in (of_openai, of_vllm):
        assert (call.header("x-mine"), call.header("accept-encoding")) == (None, "identity")


def test_head_has_no_body(velox: VeloxProcess) -> None:
    headers = {"authorization": f"Bearer {KEYS['everything']}"}
    whole = velox.request("GET", "/v1/models", None, headers)

    reply = velox.request("HEAD", "/v1/models", None, headers)

    assert (reply.status, reply.body) == (200, b"")
    assert reply.header("content-length") == str(len(whole.body))


def test_list_stands_in_the_access_log_and_in_the_metrics(velox: VeloxProcess) -> None:
    """As a request that went to nobody."""
    series = 'velox_requests_total{class="2xx",reason="ok",route="models"}'
    raw = velox.openai(api_key=KEYS["everything"]).models.with_raw_response.list()
    request_id = raw.headers["x-velox-request-id"]

    line = json.loads(velox.stdout.wait(lambda line: request_id in line, 10.0))
    assert (line["path"], line["status"], line["attempts"]) == ("/v1/models", 200, 0)
    before = velox.metrics()[series]  # a request stands in the log when it has been counted
    velox.openai(api_key=KEYS["everything"]).models.list()
    velox.wait_metric(series, lambda n: n == before + 1)


def test_upstream_that_is_not_there_is_told_of_once(velox: VeloxProcess) -> None:
    """An operator hears why some models are missing."""
    velox.openai(api_key=KEYS["everything"]).models.list()

    line = velox.wait_log(lambda line: "the models of upstream named can't be read: " in line)
    assert len([each for each in velox.stderr.lines if "can't be read" in each]) == 1, line


def test_member_that_does_not_answer_leaves_it_to_the_next() -> None:
    """An upstream of several servers is asked as long as one of them works."""
    with RecordingUpstream(script=listing(VLLM)) as upstream:
        dead = f"http://127.0.0.1:{free_port()}"
        config = {"upstreams": [{"name": "two", "origin": [dead, upstream.upstream.url]}]}
        with routed(config) as velox:
            assert [model.id for model in velox.openai().models.list().data] == ["llama"]


def test_models_of_gemini_are_listed_as_routes_and_clients_name_them() -> None:
    """Its own list in OpenAI's shape says models/gemini-9."""
    with RecordingUpstream(script=listing({"id": "models/gemini-9", "object": "model"})) as upstream:
        gemini = {"provider": "gemini", "origin": upstream.upstream.url, "key": "env:GEMINI_API_KEY"}
        routes = [{"name": "google", "match": {"models": ["gemini-*"]}, "to": "gemini"}]
        with routed({"upstreams": [gemini], "routes": routes}, GEMINI_API_KEY="upstream-key-1") as velox:
            assert [model.id for model in velox.openai().models.list().data] == ["gemini-9"]
            options = types.HttpOptions(base_url=velox.base_url, timeout=20_000)
            google = genai.Client(api_key="x", http_options=options)
            assert [model.name for model in google.models.list()] == ["models/gemini-9"]


def test_gateway_of_one_upstream_passes_the_list_through() -> None:
    """Without a file nothing changes: every byte is the upstream's."""
    body = b'{"object": "list",  "data": [ {"id": "x"} ], "more": 1}'

    async def answer(call: Call) -> None:
        await call.reply(200, [*JSON, ("x-of-upstream", "1")], body)

    with RecordingUpstream(script=answer) as upstream, VeloxProcess(upstream.env()) as velox:
        reply = velox.request("GET", "/v1/models?a=b")

        assert (reply.body, reply.header("x-of-upstream")) == (body, "1")
        assert upstream.calls[-1].target == "/v1/models?a=b"


def test_route_for_the_path_passes_the_list_through() -> None:
    """Who wants an upstream's own list says so."""
    with (
        RecordingUpstream(script=listing(*OPENAI)) as upstream,
        routed(
            {
                "upstreams": [entry("a", upstream, models=["gpt-4o"]), entry("b", upstream)],
                "routes": [
                    {"name": "models", "match": {"paths": ["/v1/models*"]}, "to": "b"},
                    {"name": "rest", "to": "a"},
                ],
            }
        ) as velox,
    ):
        assert [model.id for model in velox.openai().models.list().data] == ["gpt-4o", "gpt-5", "tts"]


async def silent(call: Call) -> None:
    if call.method == "HEAD":
        await call.reply(200)
    else:
        await call.silence()


def test_silent_upstream_holds_nobody_up_for_long() -> None:
    """Who gives up before is told so; the others get what there is; and from then on nobody waits."""
    with (
        RecordingUpstream(script=silent) as dumb,
        RecordingUpstream(script=listing(VLLM)) as upstream,
        routed({"upstreams": [entry("dumb", dumb, models=["fixed"]), entry("vllm", upstream)]}) as velox,
    ):
        hasty = velox.request("GET", "/v1/models", None, {"x-request-timeout-ms": "100"})
        assert (hasty.status, hasty.header("x-velox-reason")) == (503, "queue_timeout")

        sdk = velox.openai(max_retries=0)
        for timeout_s in (20.0, 1.0):
            listed = sdk.with_options(timeout=timeout_s).models.list().data
            assert [model.id for model in listed] == ["fixed", "llama"]
        assert len([call for call in dumb.calls if call.method == "GET"]) == 1
        velox.wait_log(lambda line: "the models of upstream dumb can't be read: " in line)


def test_other_configuration_has_other_models(upstreams: dict[str, RecordingUpstream]) -> None:
    """With the next request, without a word to those that are the same."""
    config = {
        "upstreams": [entry("vllm", upstreams["vllm"]), entry("openai", upstreams["openai"])],
        "routes": [{"name": "one", "match": {"models": ["llama", "new"]}, "to": "vllm"}],
    }
    with routed(config) as velox:
        sdk = velox.openai()
        assert [model.id for model in sdk.models.list().data] == ["llama", "new"]
        n_asked = len(upstreams["vllm"].calls)

        path = Path(velox.env["VELOX_CONFIG"])
        path.write_text(path.read_text().replace("- new", "- newer\n    - llama-*"))
        velox.signal(signal.SIGHUP)
        until(lambda: [model.id for model in sdk.models.list().data] == ["llama", "newer"], "the other list")
        assert len(upstreams["vllm"].calls) == n_asked


def test_lists_tell_what_the_tables_know() -> None:
    """RC11, C15: context, longest answer and prices, in each dialect's shape; embedding models say that they embed."""
    models = [{"id": name, "object": "model"} for name in ("gpt-4o", "text-embedding-3-small")]
    with RecordingUpstream(script=listing(*models)) as upstream:
        openai_entry = entry("openai", upstream, provider="openai", key="env:KEY")
        with routed({"upstreams": [openai_entry]}, KEY="k" * 20) as velox:
            plain = json.loads(velox.request("GET", "/v1/models").body)
            gpt = next(each for each in plain["data"] if each["id"] == "gpt-4o")
            assert (gpt["context_length"], gpt["max_completion_tokens"]) == (128_000, 16_384)
            assert gpt["pricing"]["prompt"] == "0.0000025"
            codex = json.loads(velox.request("GET", "/v1/models?client_version=0.99.0").body)
            assert codex["models"] == [] and codex["data"] == plain["data"]

            google = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=velox.base_url))
            listed = {each.name: each for each in google.models.list()}
            assert listed["models/gpt-4o"].input_token_limit == 128_000
            assert listed["models/gpt-4o"].output_token_limit == 16_384
            assert listed["models/text-embedding-3-small"].supported_actions == ["embedContent", "batchEmbedContents"]
            assert google.models.get(model="gpt-4o").input_token_limit == 128_000

            claude = anthropic.Anthropic(api_key="k", base_url=velox.base_url).models.retrieve("gpt-4o")
            assert claude.model_dump()["max_input_tokens"] == 128_000
