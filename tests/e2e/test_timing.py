"""Who asks what took how long is told, with its reply, behind its stream and with its error; and nobody else is."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.raw_http import RawReply
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import named, nobody, routed
from tests.e2e.upstreams import start_sim

ASKED = {"x-velox-timing": "1"}
TO_END = {"x-velox-timing": "stream"}
STEPS = ["accept", "queue", "parse", "limit", "route", "translate", "connect", "first-byte", "total"]
KEYS = {name: f"sk-{name}-0123456789" for name in ("told", "untold")}


@pytest.fixture(scope="module")
def velox() -> Iterator[VeloxProcess]:
    """A model that takes 50 ms to its first token."""
    entries = [
        {
            "name": name,
            "key": f"sha256:{hashlib.sha256(key.encode()).hexdigest()}",
            "timing": "yes" if name == "told" else "no",
        }
        for name, key in KEYS.items()
    ]
    with named("one", one="--ttft 50ms") as sims, routed({"upstreams": [sims["one"]], "api_keys": entries}) as running:
        yield running


def post(
    velox: VeloxProcess, headers: dict[str, str], *, key: str = "told", n_more: int = 0, **more: object
) -> RawReply:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi" + "." * n_more}], "max_tokens": 3, **more}
    headers = {"authorization": f"Bearer {KEYS[key]}", **headers}
    return velox.request("POST", "/v1/chat/completions", json.dumps(body).encode(), headers)


def durations(text: str | None) -> dict[str, float]:
    """Return the milliseconds of each metric. Asserts that they have microseconds."""
    assert text is not None, "there is a header"
    found = re.findall(r"([a-z-]+);dur=([0-9]+\.[0-9]{3})(?:, |$)", text)
    assert ", ".join(f"{name};dur={ms}" for name, ms in found) == text
    return {name: float(ms) for name, ms in found}


def test_reply_tells_what_each_step_took(velox: VeloxProcess) -> None:
    """Each step is within the whole, and the model's time is in no other step."""
    reply = post(velox, ASKED)
    told = durations(reply.header("server-timing"))
    assert (reply.status, list(told)) == (200, STEPS)
    assert told["total"] >= told["first-byte"] >= 45
    steps = sum(ms for name, ms in told.items() if name not in ("accept", "total"))
    assert steps <= told["total"] + 0.01
    assert told["parse"] > 0 and told["route"] > 0


def test_large_request_is_read_in_steps_and_told_as_well(velox: VeloxProcess) -> None:
    told = durations(post(velox, ASKED, n_more=300_000).header("server-timing"))
    assert list(told) == STEPS
    assert told["parse"] > 0


@pytest.mark.parametrize("headers", [{}, {"x-velox-timing": "0"}])
def test_who_does_not_ask_is_not_told(velox: VeloxProcess, headers: dict[str, str]) -> None:
    reply = post(velox, headers)
    assert (reply.status, reply.header("server-timing")) == (200, None)


def test_key_may_be_told_nothing(velox: VeloxProcess) -> None:
    reply = post(velox, TO_END, key="untold", stream=True)
    assert (reply.status, reply.header("server-timing")) == (200, None)
    assert reply.body.endswith(b"data: [DONE]\n\n")


def test_value_that_means_nothing_is_refused(velox: VeloxProcess) -> None:
    reply = post(velox, {"x-velox-timing": "yes"})
    assert (reply.status, reply.error()["param"]) == (400, "x-velox-timing")


def test_stream_tells_the_rest_behind_its_last_event(velox: VeloxProcess) -> None:
    told, to_end = post(velox, ASKED, stream=True), post(velox, TO_END, stream=True)
    assert told.body.endswith(b"data: [DONE]\n\n")
    assert list(durations(told.header("server-timing"))) == STEPS

    events, _, comment = to_end.body.rpartition(b"data: [DONE]\n\n")
    assert events and comment.startswith(b": server-timing ") and comment.endswith(b"\n\n")
    rest = durations(comment.decode().removeprefix(": server-timing ").rstrip("\n"))
    at_head = durations(to_end.header("server-timing"))
    assert list(rest) == ["stream", "total"]
    assert rest["total"] >= at_head["total"] + rest["stream"] - 0.01


def test_sdk_reads_a_timed_stream(velox: VeloxProcess) -> None:
    client = velox.openai(api_key=KEYS["told"])
    stream = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], stream=True, extra_headers=TO_END, max_tokens=3
    )
    assert len([chunk for chunk in stream if chunk.choices and chunk.choices[0].delta.content]) == 3


async def busy(call: Call) -> None:
    await call.reply(503, JSON, b"{}")


def test_second_attempt_tells_of_the_first() -> None:
    """Up to where it began."""
    with RecordingUpstream() as failing, failing.playing(busy), named("two") as sims:
        upstreams = [{"name": "one", "origin": failing.upstream.url}, sims["two"]]
        routes = [{"name": "all", "to": ["one"], "fallback": ["two"]}]
        with routed({"upstreams": upstreams, "routes": routes}) as velox:
            reply = post(velox, ASKED)
            told = durations(reply.header("server-timing"))
            assert (reply.status, reply.header("x-velox-tried")) == (200, "one=503")
            assert list(told) == [*STEPS[:5], "retry", *STEPS[5:]]
            assert told["retry"] > 0


def test_error_of_velox_tells_how_far_the_request_came() -> None:
    with nobody() as origin, routed({"upstreams": [{"name": "one", "origin": origin}]}, retries="0") as velox:
        reply = post(velox, ASKED)
        told = durations(reply.header("server-timing"))
        assert reply.status == 502
        assert [each for each in told if each != "retry"] == [each for each in STEPS if each != "first-byte"]


def test_translated_reply_is_told_too() -> None:
    """The filter stands behind a translation that holds the head."""
    with start_sim() as sim:
        entry = {"name": "one", "provider": "anthropic", "origin": sim.url, "key": "env:MODEL_KEY"}
        with routed({"upstreams": [entry]}, MODEL_KEY="sk-model-0123456789") as velox:
            reply = post(velox, TO_END, stream=True)
            told = durations(reply.header("server-timing"))
            assert reply.status == 200 and told["translate"] > 0
            assert reply.body.rpartition(b"data: [DONE]\n\n")[2].startswith(b": server-timing stream;")


@pytest.mark.parametrize(("rule", "is_asking", "is_told"), [("all", False, True), ("off", True, False)])
def test_setting_says_who_is_told(rule: str, is_asking: bool, is_told: bool) -> None:
    with named("one") as sims, routed({"upstreams": [sims["one"]]}, server_timing=rule) as velox:
        reply = post(velox, ASKED if is_asking else {})
        assert (reply.status, reply.header("server-timing") is not None) == (200, is_told)
