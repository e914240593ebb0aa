"""Clients of LiteLLM's proxy, where that is on: what they ask for is done, and replies tell what they read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.raw_http import RawReply
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import named, nobody, routed

KEYS = {name: f"sk-{name}-0123456789" for name in ("told", "untold")}
PRICES = "prices:\n  - {model: own, input: 1.5, output: 6}\n"


@pytest.fixture(scope="module")
def velox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VeloxProcess]:
    """A model that takes 50 ms to its first token, with a price."""
    folder: Path = tmp_path_factory.mktemp("ledger")
    (folder / "prices.yaml").write_text(PRICES)
    entries = [
        {
            "name": name,
            "key": f"sha256:{hashlib.sha256(key.encode()).hexdigest()}",
            "timing": "yes" if name == "told" else "no",
        }
        for name, key in KEYS.items()
    ]
    more = {"ledger": str(folder / "ledger"), "prices": str(folder / "prices.yaml"), "litellm_headers": "on"}
    with (
        named("one", one="--ttft 50ms") as sims,
        routed({"upstreams": [sims["one"]], "api_keys": entries}, **more) as found,
    ):
        yield found


def post(
    velox: VeloxProcess, headers: dict[str, str] | None = None, *, key: str = "told", model: str = "own", **more: object
) -> RawReply:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, **more}
    headers = {"authorization": f"Bearer {KEYS[key]}", **(headers or {})}
    return velox.request("POST", "/v1/chat/completions", json.dumps(body).encode(), headers)


def told(reply: RawReply) -> dict[str, str]:
    return {name.removeprefix("x-litellm-"): value for name, value in reply.headers if name.startswith("x-litellm-")}


def test_answer_tells_where_it_is_from_and_what_it_took(velox: VeloxProcess) -> None:
    """Its cost too: that of `x-velox-cost`. The model's time is no overhead."""
    reply = post(velox, {"x-velox-cost": "true"})
    plain = post(velox)
    for each in (reply, plain):
        found = told(each)
        assert (each.status, found.pop("call-id")) == (200, each.header("x-velox-request-id"))
        assert found.pop("model-id") == "own@one" and found.pop("model-api-base").startswith("http://127.0.0.1:")
        assert (found.pop("attempted-retries"), found.pop("attempted-fallbacks")) == ("0", "0")
        total, overhead = float(found.pop("response-duration-ms")), float(found.pop("overhead-duration-ms"))
        assert total >= 45 and 0 < overhead <= total - 45
        assert found == {"response-cost": reply.header("x-velox-cost")} and float(found["response-cost"]) > 0
    assert plain.header("x-velox-cost") is None


def test_stream_tells_what_is_known_at_its_head(velox: VeloxProcess) -> None:
    reply = post(velox, stream=True)
    assert reply.status == 200 and reply.body.endswith(b"data: [DONE]\n\n")
    assert told(reply).keys() == {
        *("call-id", "model-id", "model-api-base", "attempted-retries", "attempted-fallbacks"),
        *("response-duration-ms", "overhead-duration-ms"),
    }


def test_cost_that_nobody_knows_is_not_told(velox: VeloxProcess) -> None:
    reply = post(velox, model="unpriced")
    assert reply.status == 200 and "response-cost" not in told(reply) and told(reply)["model-id"] == "unpriced@one"


def test_key_without_timing_is_told_no_times(velox: VeloxProcess) -> None:
    found = told(post(velox, key="untold"))
    assert "call-id" in found and not [name for name in found if "duration" in name]


def test_model_of_another_text_is_no_field(velox: VeloxProcess) -> None:
    reply = post(velox, model="a\r\nx-evil: 1")
    assert reply.header("x-evil") is None and "model-id" not in told(reply)


def test_sdk_reads_the_fields(velox: VeloxProcess) -> None:
    raw = velox.openai(api_key=KEYS["told"]).chat.completions.with_raw_response.create(
        model="own", messages=[{"role": "user", "content": "hi"}], max_tokens=3
    )
    assert float(raw.headers["x-litellm-response-cost"]) > 0 and raw.parse().choices


async def busy(call: Call) -> None:
    await call.reply(503, [*JSON, ("x-litellm-key-spend", "9")], b"{}")


async def broken(call: Call) -> None:
    await call.reply(500, JSON, b"{}")


async def refuses(call: Call) -> None:
    await call.reply(400, JSON, b"{}")


async def silent(call: Call) -> None:
    await call.left.wait()


def test_attempts_are_counted_and_bounded_by_the_client() -> None:
    """Without retries the request goes to the fallback at once; a larger number is not the client's to say."""
    with RecordingUpstream() as failing, failing.playing(busy), named("two") as sims:
        upstreams = [{"name": "one", "origin": failing.upstream.url}, sims["two"]]
        routes = [{"name": "all", "to": ["one"], "fallback": ["two"]}]
        with routed({"upstreams": upstreams, "routes": routes}, litellm_headers="on") as velox:
            reply = post(velox, {"x-litellm-num-retries": "0"})
            found = told(reply)
            assert (reply.status, reply.header("x-velox-tried")) == (200, "one=503")
            assert (found["attempted-retries"], found["attempted-fallbacks"]) == ("0", "1")
            assert found["model-id"] == "own@two"
        alone = {"upstreams": upstreams[:1]}
        with routed(alone, litellm_headers="on", retries="2", retry_budget_min="100") as velox:
            for asked, n_calls in (("0", 1), ("1", 2), ("9", 3)):
                failing.forget()
                reply = post(velox, {"x-litellm-num-retries": asked})
                assert (reply.status, len(failing.calls)) == (503, n_calls)
                found = told(reply)
                assert (found["attempted-retries"], found.get("key-spend")) == (str(n_calls - 1), None)
        routes[0]["fallback"] = [{"upstream": "two", "model": "another"}]
        with routed({"upstreams": upstreams, "routes": routes}, litellm_headers="on") as velox:
            failing.forget()
            with failing.playing(broken):  # which is asked again before another model is, but not then
                assert (post(velox, {"x-litellm-num-retries": "0"}).status, len(failing.calls)) == (200, 1)


def test_refusal_of_a_fallback_is_no_retry() -> None:
    """The client hears of the first failure, and that a fallback was asked once."""
    with (
        RecordingUpstream() as failing,
        failing.playing(busy),
        RecordingUpstream() as refusing,
        refusing.playing(refuses),
    ):
        ups = [{"name": "one", "origin": failing.upstream.url}, {"name": "two", "origin": refusing.upstream.url}]
        routes = [{"name": "all", "to": ["one"], "fallback": [{"upstream": "two", "model": "another"}]}]
        settings = {"litellm_headers": "on", "retry_before_fallback": "0s"}
        with routed({"upstreams": ups, "routes": routes}, **settings) as velox:
            reply = post(velox)
            found = told(reply)
            assert (reply.status, reply.header("x-velox-tried")) == (503, "one=503, two=400")
            assert (found["attempted-retries"], found["attempted-fallbacks"]) == ("0", "1")


def test_each_request_has_its_own_time_out() -> None:
    """A field that has another value each time is remembered as such; these count all the same."""
    with named("one") as sims, routed({"upstreams": [sims["one"]]}, litellm_headers="on") as velox:
        for n in range(1, 13):
            assert post(velox, {"x-litellm-timeout": str(n), "x-litellm-num-retries": str(n)}).status == 200
        assert post(velox, {"x-litellm-timeout": "soon", "x-litellm-num-retries": "13"}).status == 400


def test_path_of_an_upstream_is_not_told() -> None:
    """It may name an account."""
    with RecordingUpstream() as upstream, upstream.playing(busy):
        entry = {"name": "one", "origin": f"{upstream.upstream.url}/account-17"}
        with routed({"upstreams": [entry]}, litellm_headers="on", retries="0") as velox:
            assert told(post(velox))["model-api-base"] == upstream.upstream.url


def test_time_out_of_the_client_holds() -> None:
    with RecordingUpstream() as hanging, hanging.playing(silent):
        entry = {"name": "one", "origin": hanging.upstream.url}
        with routed({"upstreams": [entry]}, litellm_headers="on") as velox:
            reply = post(velox, {"x-litellm-timeout": "0.2"})
            assert (reply.status, reply.error()["code"]) == (504, "upstream_ttfb_timeout")
            assert told(reply)["attempted-retries"] == "0" and float(told(reply)["response-duration-ms"]) >= 200
            assert float(told(reply)["overhead-duration-ms"]) < 150
            bad = post(velox, {"x-litellm-timeout": "soon"})
            assert (bad.status, bad.error()["param"]) == (400, "x-litellm-timeout")


def test_tags_of_the_client_choose_its_route() -> None:
    with named("plain", "tagged") as sims:
        routes = [
            {"name": "tagged", "match": {"tags": ["eu"]}, "to": ["tagged"]},
            {"name": "all", "to": ["plain"]},
        ]
        config = {"upstreams": list(sims.values()), "routes": routes}
        for setting, place in (("on", "tagged"), ("off", "plain")):
            with routed(config, litellm_headers=setting) as velox:
                reply = post(velox, {"x-litellm-tags": "us,eu"})
                assert (reply.status, reply.header("x-velox-upstream")) == (200, place)


def test_error_of_velox_tells_too() -> None:
    with nobody() as origin, routed({"upstreams": [{"name": "one", "origin": origin}]}, litellm_headers="on") as velox:
        reply = post(velox)
        found = told(reply)
        assert (reply.status, found["call-id"]) == (502, reply.header("x-velox-request-id"))
        assert found["model-api-base"] == origin


def test_nothing_is_told_or_read_by_default() -> None:
    with named("one") as sims, routed({"upstreams": [sims["one"]]}) as velox:
        reply = post(velox, {"x-litellm-timeout": "soon", "x-litellm-num-retries": "x"})
        assert (reply.status, told(reply)) == (200, {})


def test_traced_answers_tell_as_well() -> None:
    """Nobody takes the traces here."""
    with nobody() as collector, named("one") as sims:
        more = {"litellm_headers": "on", "OTEL_EXPORTER_OTLP_ENDPOINT": collector}
        with routed({"upstreams": [sims["one"]]}, **more) as velox:
            reply = post(velox)
            assert reply.status == 200 and told(reply)["model-id"] == "own@one"
