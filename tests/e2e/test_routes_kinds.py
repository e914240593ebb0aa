"""Upstreams of different kinds beside each other: HTTP/1.1, HTTP/2, with and without TLS, several servers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from openai.types.chat import ChatCompletion

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import RecordingUpstream
from tests.e2e.routed import MESSAGES, Answer, Entry, ask, ask_stream, crowd, named, nobody, routed
from tests.e2e.upstreams import Certificates, Upstream, start_nginx, start_sim


@pytest.fixture(scope="module")
def kinds(nginx_tls: Upstream, nghttpd: Upstream) -> Iterator[VeloxProcess]:
    """A gateway of two workers before a simulator, one over HTTP/2, nginx with TLS, and nghttpd for one path."""
    with named("plain", "h2c") as sims:
        upstreams: list[Entry] = [
            sims["plain"],
            {**sims["h2c"], "http2": "on"},
            {"name": "tls", "origin": nginx_tls.url, "ca_file": nginx_tls.ca_file},
            {"name": "files", "origin": nghttpd.url, "ca_file": nghttpd.ca_file, "http2": "auto"},
        ]
        routes: list[Entry] = [
            {"name": "files", "match": {"paths": ["/v1/chat/completions.json"]}, "to": "files"},
            {"name": "rest", "to": ["plain", "h2c", "tls"]},
        ]
        with routed({"upstreams": upstreams, "routes": routes}, workers="2") as velox:
            yield velox


def test_each_kind_has_its_turn(kinds: VeloxProcess) -> None:
    """Streamed and plain, one after another and at once: the same text from each."""
    sdk = kinds.openai()

    def call(n: int) -> Answer:
        return (ask_stream if n % 2 else ask)(sdk)

    found = crowd(60, call)

    assert Counter(answer.upstream for answer in found).keys() == {"plain", "h2c", "tls"}
    assert len({answer.text for answer in found}) == 1
    assert {answer.attempts for answer in found} == {1}


def test_path_leads_to_a_server_of_its_own(kinds: VeloxProcess) -> None:
    """nghttpd has this one file; the others would say 404."""
    body = {"model": "m", "messages": MESSAGES}

    reply = kinds.openai().post("/chat/completions.json", cast_to=ChatCompletion, body=body)

    assert reply.choices[0].message.content == "Hello from afar."


def test_upstream_has_its_own_authorities(nginx_tls: Upstream) -> None:
    """A certificate that nobody signed for us is no upstream's; the one that knows its authority is used instead."""
    known = {"name": "known", "origin": nginx_tls.url, "ca_file": nginx_tls.ca_file}
    unknown = {"name": "unknown", "origin": nginx_tls.url}
    route = {"name": "all", "to": "unknown", "fallback": ["known"]}
    with routed({"upstreams": [unknown, known], "routes": [route]}) as velox:
        answer = ask(velox.openai())

    assert answer.upstream == "known"
    assert answer.tried in ("", "unknown=upstream_tls")


@pytest.mark.more
def test_servers_of_one_upstream_share_its_requests() -> None:
    """Several origins are several members with one name; one where nobody listens is not seen."""
    with named("a", "b") as sims, nobody() as gone:
        origins = [sims["a"]["origin"], gone, sims["b"]["origin"]]
        with routed({"upstreams": [{"name": "both", "origin": origins}]}) as velox:
            found = crowd(60, lambda n: ask(velox.openai()))

    assert {answer.upstream for answer in found} == {"both"}
    counts = Counter(answer.sim for answer in found)
    assert counts.keys() == {"a", "b"} and min(counts.values()) >= 20


@pytest.mark.more
def test_upstream_that_ends_under_load_is_not_seen(certificates: Certificates) -> None:
    """nginx is killed between two halves of a load, and another server is put in its place; no request fails."""
    with start_sim() as behind, named("stays") as sims, contextlib.ExitStack() as nginx:
        front = nginx.enter_context(start_nginx(behind.url, certificates))
        leaves = {"name": "leaves", "origin": front.url, "ca_file": front.ca_file}
        with routed({"upstreams": [leaves, sims["stays"]]}, workers="2") as velox:
            sdk = velox.openai()
            found = crowd(60, lambda n: ask(sdk))
            assert {answer.upstream for answer in found} == {"leaves", "stays"}

            nginx.close()
            later = crowd(200, lambda n: (ask_stream if n % 2 else ask)(sdk))

    assert {answer.upstream for answer in later} == {"stays"}
    assert later[-1].attempts == 1


def test_credentials_go_to_their_own_upstream_only() -> None:
    """Each upstream's key, and never another's; the client's own where an upstream has none."""
    keys = {"KEY_OF_ONE": "sk-key-of-one-000001", "KEY_OF_TWO": "sk-key-of-two-000002"}
    with RecordingUpstream() as one, RecordingUpstream() as two, RecordingUpstream() as three:
        upstreams: list[Entry] = [
            {"name": "one", "origin": one.upstream.url, "keys": ["env:KEY_OF_ONE"]},
            {"name": "two", "origin": two.upstream.url, "keys": ["env:KEY_OF_TWO"]},
            {"name": "three", "origin": three.upstream.url},
        ]
        with routed({"upstreams": upstreams}, **keys) as velox:
            for _ in range(9):
                ask(velox.openai(api_key="sk-of-this-client-03"))

        def sent(upstream: RecordingUpstream) -> set[str | None]:
            return {call.header("authorization") for call in upstream.calls}

        assert sent(one) == {"Bearer sk-key-of-one-000001"}
        assert sent(two) == {"Bearer sk-key-of-two-000002"}
        assert sent(three) == {"Bearer sk-of-this-client-03"}


def test_upstreams_without_routes_take_what_they_have() -> None:
    """Each request goes to one of those with its model; a model that nobody has is not found."""
    with named("gpt", "llama") as sims:
        upstreams: list[Entry] = [
            {**sims["gpt"], "models": ["gpt-*"]},
            {**sims["llama"], "models": ["llama-*", "gpt-oss"]},
        ]
        with routed({"upstreams": upstreams}) as velox:
            sdk = velox.openai()
            assert {ask(sdk, "gpt-4o").sim for _ in range(6)} == {"gpt"}
            assert {ask(sdk, "llama-3").sim for _ in range(6)} == {"llama"}
            assert {ask(sdk, "gpt-oss").sim for _ in range(12)} == {"gpt", "llama"}
            reply = httpx.post(f"{velox.base_url}/v1/chat/completions", json={"model": "claude", "messages": []})
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_model")
