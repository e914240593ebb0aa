"""What a gateway asks its upstreams by itself, for health and for load, and the copies that it sends to a mirror."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recording import Call, RecordingUpstream, Script, healthy
from tests.e2e.routed import Entry, ask, ask_stream, crowd, named, nobody, routed, shares

pytestmark = pytest.mark.more

PROBE: dict[str, object] = {"path": "/health", "every": "100ms"}


@pytest.fixture(scope="module")
def sims() -> Iterator[dict[str, Entry]]:
    """Two simulators that are alike."""
    with named("one", "two") as running:
        yield running


@pytest.fixture
def upstream() -> Iterator[RecordingUpstream]:
    """One whose script is a test's."""
    with RecordingUpstream() as made:
        yield made


class Health:
    """A script: chats are answered, and /health with what a test says; None: not at all."""

    def __init__(self) -> None:
        self.status: int | None = 200

    async def __call__(self, call: Call) -> None:
        if not call.target.startswith("/health"):
            await healthy(call)
        elif self.status is None:
            await call.silence()
        else:
            await call.reply(self.status)


def pair(probed: RecordingUpstream, other: Entry, **more: object) -> dict[str, object]:
    """Return a file with one route to both in turn."""
    first = {"name": "probed", "origin": probed.upstream.url, "probe": PROBE, **more}
    return {"upstreams": [first, other], "routes": [{"name": "all", "to": ["probed", other["name"]]}]}


def went_to(velox: VeloxProcess, n: int = 8) -> set[str]:
    """Ask some times; return the upstreams that answered."""
    return {ask(velox.openai()).upstream for _ in range(n)}


@pytest.mark.parametrize("bad", [503, 404, None])
def test_upstream_whose_probes_fail_gets_no_requests_until_they_are_good(
    upstream: RecordingUpstream, sims: dict[str, Entry], bad: int | None
) -> None:
    """Though it answers them well; each turn is a line in the log. An answer that does not come is a bad one."""
    health = Health()
    with upstream.playing(health), routed(pair(upstream, sims["one"])) as velox:
        assert went_to(velox) == {"probed", "one"}
        health.status = bad
        velox.wait_log(lambda line: "probed" in line and "its probes fail" in line)
        assert went_to(velox, 20) == {"one"}
        health.status = 204
        velox.wait_log(lambda line: "probed" in line and "answers its probes again" in line)
        until(lambda: "probed" in went_to(velox), "it is used again")


def test_lone_upstream_is_asked_though_its_probes_fail(upstream: RecordingUpstream) -> None:
    """Where there is nobody else, a page of health is no reason to refuse clients."""
    health = Health()
    health.status = 500
    entry = {"name": "probed", "origin": upstream.upstream.url, "probe": PROBE}
    with upstream.playing(health), routed({"upstreams": [entry]}) as velox:
        velox.wait_log(lambda line: "its probes fail" in line)
        assert went_to(velox) == {"probed"}


def test_probe_goes_to_the_server_with_its_own_key(upstream: RecordingUpstream, sims: dict[str, Entry]) -> None:
    """The path counts from the server's root, and what all its requests carry goes with it; its key only there."""
    with RecordingUpstream() as other, upstream.playing(Health()), other.playing(Health()):
        first = {
            "name": "first",
            "origin": f"{upstream.upstream.url}/openai",
            "keys": ["env:KEY_OF_FIRST"],
            "headers": {"x-team": "platform"},
            "probe": {"path": "/health", "every": "100ms"},
        }
        second = {"name": "second", "origin": other.upstream.url, "keys": ["env:KEY_OF_SECOND"], "probe": PROBE}
        config = {"upstreams": [first, second]}
        with routed(config, workers="2", KEY_OF_FIRST="sk-first-000001", KEY_OF_SECOND="sk-second-000001"):
            upstream.wait(lambda: len(upstream.calls) >= 6, "six probes")
            other.wait(lambda: len(other.calls) >= 6, "six probes")
        probes = [call for call in upstream.calls if call.target.startswith("/health")]
        assert {(call.method, call.target) for call in upstream.calls} == {("GET", "/health")}
        assert {call.header("authorization") for call in probes} == {"Bearer sk-first-000001"}
        assert {call.header("x-team") for call in probes} == {"platform"}
        assert {call.header("authorization") for call in other.calls} == {"Bearer sk-second-000001"}
        # Each worker asks for itself.
        assert len({call.connection for call in probes}) >= 2


def test_reload_changes_who_is_asked(upstream: RecordingUpstream, sims: dict[str, Entry]) -> None:
    """One that is no longer named is asked no more; one that is new is; one that stays keeps what is known of it."""
    bad = Health()
    bad.status = 500
    with (
        RecordingUpstream() as stays,
        RecordingUpstream() as comes,
        upstream.playing(Health()),
        comes.playing(Health()),
    ):
        entries = [
            {"name": name, "origin": each.upstream.url, "probe": PROBE}
            for name, each in (("goes", upstream), ("stays", stays), ("comes", comes))
        ]
        with stays.playing(bad), routed({"upstreams": [sims["one"], *entries[:2]]}) as velox:
            velox.wait_log(lambda line: "stays" in line and "its probes fail" in line)
            upstream.wait_call()
            path = Path(velox.env["VELOX_CONFIG"])
            path.write_text(yaml.safe_dump({"upstreams": [sims["one"], *entries[1:]]}))
            velox.signal(signal.SIGHUP)
            velox.wait_log(lambda line: "configuration 2 is in use" in line)
            comes.wait_call()
            n_before = len(upstream.calls)
            stays.forget()
            stays.wait_call(5)
            assert len(upstream.calls) <= n_before + 1  # it was on its way
            until(lambda: went_to(velox) == {"one", "comes"}, "the new one is used")  # little by little
            assert sum("its probes fail" in line for line in velox.stderr.lines) == 1


def test_load_that_is_not_there_is_told_once(upstream: RecordingUpstream, sims: dict[str, Entry]) -> None:
    """`load: sglang` at a server without metrics: a line in the log, and it is used as any other."""
    entry = {"name": "mute", "origin": upstream.upstream.url, "load": "sglang"}
    config = {"upstreams": [entry, sims["one"]], "routes": [{"name": "all", "to": ["mute", "one"]}]}
    with routed(config) as velox:
        velox.wait_log(lambda line: "mute" in line and "can't be read" in line and "none of sglang's" in line)
        assert went_to(velox) == {"mute", "one"}
        assert sum("can't be read" in line for line in velox.stderr.lines) == 1


# -- mirrors ----------------------------------------------------------------------------------------


def mirrored(one: Entry, shadow: str, percent: float = 100, **more: object) -> dict[str, object]:
    """Return a file with one route to an upstream, and a mirror."""
    entry = {"name": "shadow", "origin": shadow, "timeouts": {"first_byte": "20s"}, **more}
    route = {"name": "all", "to": "one", "mirror": {"to": "shadow", "percent": percent}}
    return {"upstreams": [one, entry], "routes": [route]}


def copies(velox: VeloxProcess) -> dict[str, float]:
    """Return how many copies had which outcome."""
    found = velox.metrics()
    return {
        outcome: found.get(f'velox_mirrored_requests_total{{outcome="{outcome}"}}', 0.0)
        for outcome in ("answered", "failed", "dropped")
    }


def test_mirror_gets_its_share_over_all_workers(upstream: RecordingUpstream, sims: dict[str, Entry]) -> None:
    """A quarter, streams too; each request of a client is answered once, by the other one."""
    with upstream.playing(healthy), routed(mirrored(sims["one"], upstream.upstream.url, 25), workers="2") as velox:
        sdk = velox.openai()
        found = crowd(200, lambda n: (ask_stream if n % 2 else ask)(sdk, f"m{n}"))
        until(lambda: sum(copies(velox).values()) == len(upstream.calls), "each copy is counted")
        until(lambda: copies(velox)["answered"] == len(upstream.calls), "and answered")

    assert shares(found) == {"one": 200}
    assert 25 <= len(upstream.calls) <= 80
    models = [json.loads(call.body)["model"] for call in upstream.calls]
    assert len(set(models)) == len(models)
    assert {int(model[1:]) % 2 for model in models} == {0, 1}


async def _stalls(call: Call) -> None:
    await call.silence()


async def _begins_and_stalls(call: Call) -> None:
    await call.head(200, (("content-type", "text/event-stream"),))
    await call.data(b"data: {}\n\n")
    await call.silence()


async def _breaks(call: Call) -> None:
    call.lose()


async def _fails(call: Call) -> None:
    await call.reply(500, (), b"no")


@pytest.mark.parametrize("script", [_stalls, _begins_and_stalls, _breaks, _fails, None])
def test_mirror_in_trouble_is_none_of_the_clients(
    upstream: RecordingUpstream, sims: dict[str, Entry], script: Script | None
) -> None:
    """It stalls, breaks, fails, or is not there: all clients are answered at their first attempt, and none waits.

    What is under way is bounded, and at the end the gateway waits for none of it.
    """
    with nobody() as empty, upstream.playing(script or healthy):
        _mirror_in_trouble(upstream, sims["one"], empty if script is None else upstream.upstream.url, script)


def _mirror_in_trouble(upstream: RecordingUpstream, sim: Entry, origin: str, script: Script | None) -> None:
    with routed(mirrored(sim, origin)) as velox:
        sdk = velox.openai()
        found = crowd(150, lambda n: (ask_stream if n % 2 else ask)(sdk, timeout=10.0))
        assert shares(found) == {"one": 150}
        assert {answer.attempts for answer in found} == {1}
        if script in (_stalls, _begins_and_stalls):
            until(lambda: copies(velox)["dropped"] >= 86, "64 are under way at most")
            upstream.wait(lambda: len(upstream.calls) + copies(velox)["dropped"] == 150, "the others have come")
            assert copies(velox)["answered"] == copies(velox)["failed"] == 0
        else:
            until(lambda: sum(copies(velox).values()) == 150, "each copy is counted")
            assert copies(velox)["answered"] == 0
        velox.wait_metric("velox_inflight_requests", lambda n: n == 0)
        assert velox.stop(10.0) == 0
        if script in (_stalls, _begins_and_stalls):
            assert all(call.ended == "left" for call in upstream.calls)


def test_copies_go_on_through_a_drain_as_long_as_clients_do(
    upstream: RecordingUpstream, sims: dict[str, Entry]
) -> None:
    """Then they are given up."""

    async def after_a_step(call: Call) -> None:
        await call.step()
        await healthy(call)

    with upstream.playing(after_a_step), routed(mirrored(sims["one"], upstream.upstream.url)) as velox:
        for _ in range(3):
            ask(velox.openai())
        upstream.wait_call(3)
        upstream.step(2)
        until(lambda: copies(velox)["answered"] == 2, "two are answered")
        assert velox.stop(10.0) == 0
        assert sorted(call.ended for call in upstream.calls) == ["answered", "answered", "left"]


def test_copy_ends_on_the_tables_that_it_began_on(upstream: RecordingUpstream, sims: dict[str, Entry]) -> None:
    """A reload takes the mirror away while one is under way: it is answered all the same, and there are no others."""

    async def after_a_step(call: Call) -> None:
        await call.step()
        await healthy(call)

    alone = {"upstreams": [sims["one"]], "routes": [{"name": "all", "to": "one"}]}
    with upstream.playing(after_a_step), routed(mirrored(sims["one"], upstream.upstream.url)) as velox:
        ask(velox.openai())
        upstream.wait_call()
        Path(velox.env["VELOX_CONFIG"]).write_text(yaml.safe_dump(alone))
        velox.signal(signal.SIGHUP)
        velox.wait_metric('velox_worker_configuration{worker="0"}', lambda number: number == 2)
        ask(velox.openai())
        upstream.step()
        until(lambda: copies(velox)["answered"] == 1, "it is answered")
        assert len(upstream.calls) == 1
        upstream.wait(lambda: upstream.n_open == 0, "the connections of an upstream that is gone are closed")
