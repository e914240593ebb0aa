"""A slow first token, and another upstream that is asked, too: what the client sees, what both upstreams see."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.routed import Answer, Entry, ask, ask_stream, crowd, named, routed, shares
from tests.e2e.tools import CHAT_STREAM, Client

# With 100 % each request has earned its own second try: none is saved, none is denied.
ALWAYS = {"after": "100ms", "at_most": "100%"}


def config(sims: dict[str, Entry], hedge: object = ALWAYS, **more: object) -> dict[str, object]:
    """Return a file with one route: the first of `sims`, and the second while that has not answered."""
    first, second = sims
    route = {"name": "all", "to": [first], "fallback": [second], "hedge": hedge}
    return {"upstreams": [{**sims[first], **more}, {**sims[second], **more}], "routes": [route]}


@pytest.fixture(scope="module")
def sims() -> Iterator[dict[str, Entry]]:
    """One that takes half a minute to the first token, and one that does not."""
    with named("slow", "fast", slow="--slow-rate 1 --slow-by 30s") as running:
        yield running


def running_at(sim: Entry) -> float:
    """Return how many answers a simulator is making."""
    page = httpx.get(f"{sim['origin']}/metrics").text
    values = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith("vllm:num_requests_running")]
    return float(values[0])


def outcomes(velox: VeloxProcess) -> dict[str, float]:
    """Return what came of second tries."""
    prefix = 'velox_hedges_total{outcome="'
    found = velox.metrics().items()
    return {name.removeprefix(prefix)[:-2]: value for name, value in found if name.startswith(prefix) and value}


@pytest.mark.parametrize("http2", ["off", "on"])
def test_faster_upstream_answers_and_the_slow_one_stops(sims: dict[str, Entry], http2: str) -> None:
    """The SDK reads one whole stream. The slow one is told at once: over HTTP/2 by RST_STREAM, its connection stays."""
    with routed(config(sims, http2=http2), access_log="all") as velox:
        answer = ask_stream(velox.openai())

        assert (answer.sim, answer.upstream, answer.attempts, answer.tried) == ("fast", "fast", 2, "slow=hedged")
        assert answer.text
        until(lambda: running_at(sims["slow"]) == 0, "the slow one has stopped")
        until(lambda: outcomes(velox) == {"won": 1.0}, "it is counted")
        n_ended = 0.0 if http2 == "on" else 1.0
        velox.wait_metric('velox_upstream_connections_ended_total{cause="cancelled"}', lambda n: n == n_ended)
        line = velox.wait_access(lambda line: line["upstream"] == "fast")
        assert (line["attempts"], line["tried"], line["status"]) == (2, "slow=hedged", 200)


def test_client_that_leaves_ends_both(sims: dict[str, Entry]) -> None:
    """Neither goes on for nobody."""
    both = {"slow": sims["slow"], "same": {"name": "same", "origin": sims["slow"]["origin"]}}
    with routed(config(both)) as velox:
        with Client(velox) as client:
            client.send_chat(CHAT_STREAM)
            until(lambda: running_at(sims["slow"]) == 2, "both are asked")

        line = velox.wait_access(lambda line: line["attempts"] == 2)
        assert line["tried"] == "same=hedged"
        until(lambda: running_at(sims["slow"]) == 0, "both have stopped")
        until(lambda: outcomes(velox) == {"lost": 1.0}, "it is counted")


def test_request_that_is_no_stream_waits(sims: dict[str, Entry]) -> None:
    """Its first byte comes when all of it is there: that says how long the answer is, not how slow the server."""
    with routed(config(sims)) as velox:
        # Velox is told that the client waits a second, ten times as long as a stream would.
        with pytest.raises(openai.InternalServerError):
            ask(velox.openai(), extra_headers={"x-stainless-read-timeout": "1"})

        assert velox.wait_access(lambda line: line["upstream"] == "slow")["attempts"] == 1
        assert outcomes(velox) == {}


def test_client_pays_once(sims: dict[str, Entry]) -> None:
    """Its limit of requests counts what it has asked, not how often Velox did."""
    with routed(config(sims), rate_limit_rpm="60") as velox:
        left = [int(ask_stream(velox.openai()).headers["x-ratelimit-remaining-requests"]) for _ in range(3)]

        assert left[0] - left[2] <= 2
        until(lambda: outcomes(velox) == {"won": 3.0}, "they are counted")


def test_budget_bounds_what_is_asked_twice(sims: dict[str, Entry]) -> None:
    """Ten in a hundred: the first nine slow ones have to wait, the tenth is hedged."""
    hedge = {"after": "20ms", "at_most": "10%"}
    with named("late", "other", late="--slow-rate 1 --slow-by 1s") as two, routed(config(two, hedge)) as velox:
        found: list[Answer] = []
        for _ in range(2):
            found += crowd(9, lambda _: ask_stream(velox.openai()), at_once=9)
            assert [answer.attempts for answer in found[-9:]] == [1] * 9
            found.append(ask_stream(velox.openai()))

        assert [answer.attempts for answer in found].count(2) == 2
        assert shares(found) == {"late": 18, "other": 2}
        until(lambda: outcomes(velox) == {"won": 2.0, "denied": 18.0}, "they are counted")


@pytest.mark.more
def test_percentile_of_what_was_measured_finds_the_slow_ones() -> None:
    """Two upstreams, each late now and then: all answers are whole, and nothing is left running."""
    late = "--slow-rate 0.05 --slow-by 2s --ttft 20ms --seed 3"
    hedge = {"after": "p90", "at_most": "100%"}
    with named("one", "two", one=late, two=late) as two:
        route = {"name": "all", "to": ["one", "two"], "hedge": hedge}
        with routed({"upstreams": list(two.values()), "routes": [route]}) as velox:
            # Few at a time: where all wait for the processor, the nine fastest of ten are as slow as the tenth.
            found: list[Answer] = []
            for _ in range(6):
                found += crowd(50, lambda _: ask_stream(velox.openai(timeout_s=60.0)), at_once=4)
                if any(answer.attempts == 2 for answer in found):
                    break
            assert len({answer.text for answer in found}) == 1
            assert {answer.attempts for answer in found} == {1, 2}
            until(lambda: running_at(two["one"]) + running_at(two["two"]) == 0, "nothing runs for nobody")
            velox.wait_metric("velox_inflight_requests", lambda n: n == 0.0)
