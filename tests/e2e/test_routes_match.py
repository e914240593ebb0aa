"""Which upstream a request goes to: by model, path, header, key or tag; and what is changed on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.harness import REPOSITORY, VeloxProcess
from tests.e2e.recording import JSON, Call, RecordingUpstream
from tests.e2e.routed import Entry, ask, ask_stream, named, nobody, routed

KEYS = {"team-a": "sk-key-of-team-a-0001", "team-b": "sk-key-of-team-b-0002"}
ROUTES: list[Entry] = [
    {"name": "tenant", "match": {"headers": {"x-tenant": "acme"}, "models": ["gpt-*"]}, "to": "one"},
    {"name": "tag", "match": {"tags": ["eu"]}, "to": "two"},
    {"name": "team", "match": {"keys": ["team-b"], "models": ["gpt-*"]}, "to": "three"},
    {"name": "path", "match": {"paths": ["/v1/embeddings"]}, "to": "three"},
    {"name": "exact", "match": {"models": ["gpt-4o"]}, "to": "one"},
    {"name": "wildcard", "match": {"models": ["gpt-4o-*", "o*"]}, "to": "two"},
    {"name": "alias", "match": {"models": ["fast"]}, "to": "three", "model": "llama-3.1-8b"},
    {
        "name": "both",
        "match": {"models": ["pair"]},
        "to": ["one", {"upstream": "two", "model": "pair-of-two"}],
        "model": "pair-of-one",
    },
]


@pytest.fixture(scope="module")
def velox() -> Iterator[VeloxProcess]:
    """A gateway of two workers with the routes above."""
    keys = [{"name": name, "key": key} for name, key in KEYS.items()]
    with named("one", "two", "three") as sims:
        config = {"upstreams": list(sims.values()), "routes": ROUTES, "api_keys": keys}
        with routed(config, workers="2") as running:
            yield running


@pytest.mark.parametrize(
    ("model", "more", "sim"),
    [
        ("gpt-4o", {}, "one"),
        ("gpt-4o-mini", {}, "two"),
        ("o1", {}, "two"),
        ("fast", {}, "three"),
        ("gpt-4o-mini", {"extra_headers": {"X-Tenant": "acme"}}, "one"),
        ("gpt-4o-mini", {"extra_headers": {"x-tenant": "other"}}, "two"),
        ("o1", {"extra_headers": {"x-tenant": "acme"}}, "two"),
        ("gpt-4o", {"extra_headers": {"x-velox-tag": "us, eu"}}, "two"),
        ("gpt-4o", {"extra_headers": {"x-velox-tag": "us"}}, "one"),
    ],
)
def test_request_goes_where_its_route_leads(velox: VeloxProcess, model: str, more: dict[str, Any], sim: str) -> None:
    """The first route that is for it, streamed or not; the reply says which upstream it was."""
    sdk = velox.openai(api_key=KEYS["team-a"])
    expected = "llama-3.1-8b" if model == "fast" else model

    for answer in (ask(sdk, model, **more), ask_stream(sdk, model, **more)):
        assert (answer.sim, answer.upstream, answer.attempts, answer.tried) == (sim, sim, 1, "")
        assert answer.model == expected
        assert answer.text


def test_key_of_a_caller_decides(velox: VeloxProcess) -> None:
    """team-b has an upstream of its own for some models; for others it is like everybody."""
    sdk = velox.openai(api_key=KEYS["team-b"])

    assert ask(sdk, "gpt-4o").sim == "three"
    assert ask(sdk, "o1").sim == "two"
    assert ask(sdk, "gpt-4o", extra_headers={"x-tenant": "acme"}).sim == "one"


def test_path_decides(velox: VeloxProcess) -> None:
    """Embeddings of any model go elsewhere than its chats."""
    raw = velox.openai(api_key=KEYS["team-a"]).embeddings.with_raw_response.create(model="gpt-4o", input="x")

    assert raw.headers["x-velox-upstream"] == raw.headers["x-sim-name"] == "three"
    assert raw.parse().data[0].embedding


def test_model_of_a_target_stands_before_that_of_its_route(velox: VeloxProcess) -> None:
    """Each upstream is asked for the model by the name that it has there."""
    sdk = velox.openai(api_key=KEYS["team-a"])

    found = {(answer.sim, answer.model) for answer in (ask(sdk, "pair") for _ in range(8))}

    assert found == {("one", "pair-of-one"), ("two", "pair-of-two")}


def test_model_without_a_route_is_not_found(velox: VeloxProcess) -> None:
    """404 as the SDK knows it, with the parameter that was wrong; nobody was asked."""
    sdk = velox.openai(api_key=KEYS["team-a"])
    for stream in (False, True):
        with pytest.raises(openai.NotFoundError) as caught:
            sdk.chat.completions.create(model="claude-x", messages=[], stream=stream)

        error = caught.value
        assert (error.status_code, error.type, error.param) == (404, "invalid_request_error", "model")
        assert error.code == "unknown_model" and "model" in error.message
        assert "x-velox-upstream" not in error.response.headers


ODD = (
    '{"messages" : [{"role":"user","content":"the \\"model\\": \\"fast\\" \\u00e9 é 東京"}],\n\t'
    '"metadata":{"model":"fast", "n": 1.0, "big": 123456789012345678901234567890}, %s ,"top_p":1.50,"stream":false }'
)


@pytest.mark.parametrize(
    ("member", "padding"),
    [
        ('"model":"fast"', ""),
        ('"model" :\t"f\\u0061st"', ""),
        ('"mod\\u0065l": "fast"', ""),
        ('"model": "fast"', "x" * 600_000),  # in steps
    ],
    ids=["plain", "spaced", "escaped", "large"],
)
def test_alias_changes_the_model_and_not_another_byte(member: str, padding: str) -> None:
    """Spaces, escapes, numbers and their order stay; so does the same word elsewhere. The length is the new one."""
    with RecordingUpstream() as upstream:
        config = {
            "upstreams": [{"name": "up", "origin": upstream.upstream.url}],
            "routes": [{"name": "alias", "match": {"models": ["fast"]}, "to": "up", "model": 'org/"llama"'}],
        }
        with routed(config) as velox:
            odd = ODD.replace("東京", "東京" + padding)
            reply = velox.request("POST", "/v1/chat/completions", (odd % member).encode())

            assert reply.status == 200, reply
            call = upstream.wait_call()
            name, colon, _ = member.partition(":")
            spaces = member[len(name) + 1 : member.index('"', len(name))]
            assert call.body == (odd % f'{name}{colon}{spaces}"org/\\"llama\\""').encode()
            assert call.header("content-length") == str(len(call.body))
            assert json.loads(call.body)["model"] == 'org/"llama"'


def test_body_without_an_alias_passes_as_it_came() -> None:
    """A route without `model` changes nothing, whatever the body looks like."""
    with RecordingUpstream() as upstream:
        config = {
            "upstreams": [{"name": "up", "origin": upstream.upstream.url, "models": ["fa*"]}],
            "routes": [{"name": "plain", "match": {"models": ["fast"]}, "to": "up"}],
        }
        with routed(config) as velox:
            body = (ODD % '"model" : "fast"').encode()
            assert velox.request("POST", "/v1/chat/completions", body).status == 200
            assert upstream.wait_call().body == body


def test_header_rules_change_request_and_reply() -> None:
    """Removed, then set: on the way up those of the upstream, then those of the route; on the way down the route's."""

    async def answer(call: Call) -> None:
        await call.reply(200, [*JSON, ("x-internal", "secret-of-ours"), ("x-kept", "1"), ("x-old", "a")], b"{}")

    with RecordingUpstream(script=answer) as upstream:
        entry = {"name": "up", "origin": upstream.upstream.url, "headers": {"x-team": "platform", "x-cost": "1"}}
        rules = {
            "request_headers": {"set": {"x-cost": "42", "x-new": "n"}, "remove": ["x-drop", "user-agent"]},
            "response_headers": {"set": {"x-old": "b", "x-served-by": "velox"}, "remove": ["x-internal"]},
        }
        config = {"upstreams": [entry], "routes": [{"name": "all", "to": "up", **rules}]}
        with routed(config) as velox:
            given = {"x-drop": "1", "X-Cost": "0", "user-agent": "test", "x-stays": "yes"}
            reply = velox.request("POST", "/v1/chat/completions", b'{"model":"m","messages":[]}', given)

            call = upstream.wait_call()
            up = {name: value for name, value in call.headers if name.startswith("x-") or name == "user-agent"}
            assert {
                name: up.get(name) for name in ("x-team", "x-cost", "x-new", "x-stays", "x-drop", "user-agent")
            } == {
                "x-team": "platform",
                "x-cost": "42",
                "x-new": "n",
                "x-stays": "yes",
                "x-drop": None,
                "user-agent": None,
            }
            assert call.header("x-cost") == "42"  # once
            down = [(name, value) for name, value in reply.headers if name in ("x-old", "x-served-by", "x-kept")]
            assert sorted(down) == [("x-kept", "1"), ("x-old", "b"), ("x-served-by", "velox")]
            assert reply.header("x-internal") is None


def test_header_rules_hold_for_streams_and_for_errors_of_the_upstream() -> None:
    """What must not be seen is not seen in any reply of an upstream."""
    with named("ok", "bad", bad="--error-rate 1") as sims, nobody() as gone:
        hidden = {"response_headers": {"remove": ["x-sim-name"], "set": {"x-served-by": "velox"}}}
        config = {
            "upstreams": [*sims.values(), {"name": "gone", "origin": gone}],
            "routes": [
                {"name": name, "match": {"models": [name]}, "to": name, **hidden} for name in ("ok", "bad", "gone")
            ],
        }
        with routed(config) as velox:
            sdk = velox.openai()
            answer = ask_stream(sdk, "ok")
            assert answer.sim == "" and answer.headers["x-served-by"] == "velox"
            with pytest.raises(openai.InternalServerError) as caught:
                ask(sdk, "bad")
            assert "x-sim-name" not in caught.value.response.headers
            assert caught.value.response.headers["x-served-by"] == "velox"
            with pytest.raises(openai.InternalServerError) as caught:
                ask(sdk, "gone")
            assert caught.value.status_code == 502


def test_large_body_and_usage_of_a_limit_go_with_an_alias() -> None:
    """Read in slices, and asked for its usage on behalf of a limit: the model is the alias's, all else as it came."""
    with RecordingUpstream() as upstream:
        config = {
            "upstreams": [{"name": "up", "origin": upstream.upstream.url}],
            "routes": [{"name": "alias", "match": {"models": ["fast"]}, "to": "up", "model": "other"}],
            "limits": [{"per": "model", "models": ["*"], "tpm": 10_000_000}],
        }
        with routed(config) as velox:
            long = '{"messages":[{"role":"user","content":"%s"}],"model":"fast"}' % ("x" * 3_000_000)
            assert velox.request("POST", "/v1/chat/completions", long.encode()).status == 200
            assert upstream.wait_call().body == long.replace('"fast"', '"other"').encode()

            upstream.forget()
            reply = velox.request(
                "POST", "/v1/chat/completions", b'{"model":"fast","stream":true,"messages":[]}', {"x-velox-tag": "a"}
            )
            call = upstream.wait_call()
            assert json.loads(call.body) == {
                "model": "other",
                "stream": True,
                "messages": [],
                "stream_options": {"include_usage": True},
            }
            assert reply.body.endswith(b"data: [DONE]\n\n")
            assert not [name for name, _ in call.headers if name.startswith("x-velox")]


def test_tag_that_is_another_in_each_request_decides_for_its_own(velox: VeloxProcess) -> None:
    """However many heads came before that differ in nothing else: what is kept for them is not their route."""
    sdk = velox.openai(api_key=KEYS["team-a"])
    for n in range(60):
        tag, sim = ("eu", "two") if n % 5 == 4 else (f"t{n}", "one")
        headers = {"x-velox-tags": f"{tag},{n}", "x-velox-session": f"s{n}"}
        assert ask(sdk, "gpt-4o", extra_headers=headers).sim == sim


def test_routes_hold_over_http2_too() -> None:
    """A client that speaks HTTP/2: matched, aliased, and told of the way as over HTTP/1.1."""
    with RecordingUpstream() as upstream:
        config = {
            "upstreams": [{"name": "up", "origin": upstream.upstream.url}],
            "routes": [
                {"name": "tag", "match": {"tags": ["x"]}, "to": "up", "model": "tagged"},
                {"name": "tenant", "match": {"headers": {"X-Tenant": "a*"}}, "to": "up", "model": "tenants"},
            ],
        }
        with (
            routed(config, listen_http2="on") as velox,
            httpx.Client(http1=False, http2=True, trust_env=False, base_url=velox.base_url) as client,
        ):
            for headers in ({"x-velox-tag": "x"}, {"x-tenant": "acme"}):
                reply = client.post("/v1/chat/completions", json={"model": "fast", "messages": []}, headers=headers)
                assert (reply.http_version, reply.status_code) == ("HTTP/2", 200)
                assert (reply.headers["x-velox-upstream"], reply.headers["x-velox-attempts"]) == ("up", "1")
            refused = client.post("/v1/chat/completions", json={"model": "fast", "messages": []})
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_model")

        assert [json.loads(call.body)["model"] for call in upstream.calls] == ["tagged", "tenants"]


@pytest.mark.parametrize(
    ("model", "headers", "key"),
    [
        ("gpt-4o", {}, "team-a"),
        ("gpt-4o", {}, "team-b"),
        ("gpt-4o-mini", {"x-tenant": "acme"}, "team-b"),
        ("o1", {"x-velox-tag": "eu"}, "team-a"),
        ("fast", {"x-tenant": "acme"}, "team-a"),
    ],
)
def test_check_says_where_a_request_goes(velox: VeloxProcess, model: str, headers: dict[str, str], key: str) -> None:
    """`velox check --model ...` with the same file: the upstream that it names is the one that answers."""
    words = ["check", "--config", velox.env["VELOX_CONFIG"], "--model", model, "--key", key]
    for name, value in headers.items():
        words += ["--header", f"{name}: {value}"]
    done = subprocess.run(
        [sys.executable, "-m", "velox", *words],
        cwd=REPOSITORY,
        env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    answer = ask(velox.openai(api_key=KEYS[key]), model, extra_headers=headers)

    assert done.returncode == 0, done.stderr
    (first,) = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("  first ")]
    assert first == answer.sim
