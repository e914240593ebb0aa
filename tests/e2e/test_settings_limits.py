"""Settings of limits, as a client meets them: whom each limit is for, and what it counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.harness import RawReply, VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.tools import CHAT, Client, covers, reason
from tests.e2e.watching import until

pytestmark = pytest.mark.more

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingUpstream]:
    """An upstream that records."""
    with RecordingUpstream() as running:
        yield running


async def silent(call: Call) -> None:
    """Answer without a word of usage."""
    await call.reply(200, JSON, b'{"choices":[]}')


@pytest.fixture
def base(upstream: RecordingUpstream) -> Iterator[dict[str, str]]:
    """Settings of a gateway that limits nothing, and says no at once."""
    settings = {"VELOX_WORKERS": "1", "VELOX_RATE_LIMIT_RPM": "0", "VELOX_RATE_LIMIT_MAX_WAIT": "0"}
    with upstream.playing(silent):
        yield {**upstream.env(), **settings}


def chat(velox: VeloxProcess, key: str = "", model: str = "m", **fields: object) -> RawReply:
    """Send a chat completion."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = json.dumps({**BODY, "model": model, **fields}).encode()
    return velox.request("POST", "/v1/chat/completions", body, headers)


def passes(velox: VeloxProcess, most: int, key: str = "", model: str = "m", **fields: object) -> tuple[int, str]:
    """Return how many requests pass before the first 429, and its message."""
    for n in range(most):
        reply = chat(velox, key, model, **fields)
        if reply.status == 429:
            assert reason(reply) == "rate_limited"
            return n, str(reply.error()["message"])
        assert reply.status == 200
    return most, ""


@covers("VELOX_KEY_RPM", "VELOX_KEY_BURST")
def test_every_key_has_a_burst_of_its_own(base: Mapping[str, str], tmp_path: Path) -> None:
    """One key that has used its own up is in nobody's way; a key may have another limit than all others."""
    config = tmp_path / "velox.yaml"
    config.write_text("api_keys:\n  - k-one\n  - k-two\n  - {name: team, key: k-three, rpm: 2, burst: 1}\n")
    env = {**base, "VELOX_CONFIG": str(config), "VELOX_KEY_RPM": "3", "VELOX_KEY_BURST": "2"}
    with VeloxProcess(env) as velox:
        passed, message = passes(velox, 5, "k-one")

        assert passed == 2 and "VELOX_KEY_RPM" in message and "k-one" not in message
        assert passes(velox, 5, "k-two")[0] == 2
        assert passes(velox, 5, "k-three")[0] == 1


@covers("VELOX_LIMITS")
def test_list_of_limits_counts_keys_models_and_both(base: Mapping[str, str]) -> None:
    """Each rule has room for itself; the tightest one says no, by its place in the list."""
    rules = "[{per: model, models: [gpt-*], rpm: 3, burst: 3}, {per: key+model, models: [m*], rpm: 2, burst: 2}]"
    with VeloxProcess({**base, "VELOX_API_KEYS": "k-one,k-two", "VELOX_LIMITS": rules}) as velox:
        assert passes(velox, 2, "k-one", "gpt-a") == (2, "")
        passed, message = passes(velox, 5, "k-two", "gpt-a")
        assert passed == 1 and "limits[0].rpm" in message
        assert passes(velox, 5, "k-one", "gpt-b")[0] == 3
        assert [passes(velox, 5, key, model)[0] for key in ("k-one", "k-two") for model in ("m1", "m2")] == [2] * 4
        assert "limits[1].rpm" in passes(velox, 1, "k-one", "m1")[1]
        assert passes(velox, 9, "k-one", "other") == (9, "")


@pytest.mark.parametrize("buckets", [None, "64"])
@pytest.mark.more
def test_quiet_keys_are_never_refused_whatever_the_size_of_the_table(
    base: Mapping[str, str], tmp_path: Path, buckets: str | None
) -> None:
    """Two limits each, one request each, without max_tokens. A table that is too small is said and counted."""
    names = [f"vk-quiet-{n}" for n in range(300)]
    file = tmp_path / "keys.yaml"
    file.write_text("".join(f"- {{key: {name}, rpm: 60, tpm: 1000}}\n" for name in names))
    env = {**base, "VELOX_API_KEYS_FILE": str(file), **({"VELOX_LIMIT_BUCKETS": buckets} if buckets else {})}

    with VeloxProcess(env) as velox:
        assert [chat(velox, name).status for name in names] == [200] * len(names)
        overflown = velox.wait_metric("velox_limit_rows_overflow_total", lambda n: (n > 0) == bool(buckets))
        if buckets:
            velox.stderr.wait(lambda line: "rate limits: no free bucket" in line, 5.0)
        said = [line for line in velox.stderr.lines if "VELOX_LIMIT_BUCKETS" in line]

    assert (overflown > 0) == bool(buckets) == bool(said)
    assert len(said) == 2 * bool(buckets), "at the start, and when the first one found none"


def test_key_that_makes_up_models_is_in_nobodys_way(base: Mapping[str, str]) -> None:
    """It has its share of buckets, then one for all of its further models; others have their own."""
    rules = "[{per: key+model, rpm: 60, burst: 2}]"
    env = {**base, "VELOX_API_KEYS": "k-bad,k-good", "VELOX_LIMITS": rules, "VELOX_LIMIT_BUCKETS": "1024"}
    with VeloxProcess(env) as velox:
        statuses = [chat(velox, "k-bad", f"made-up-{n}").status for n in range(120)]
        assert statuses[:64] == [200] * 64 and statuses.count(429) > 40
        for model in ("m", "n"):
            passed, message = passes(velox, 9, "k-good", model)
            assert passed in (2, 3) and "limits[0]" in message
        velox.wait_metric("velox_limit_rows_over_share_total", lambda n: n > 40)
        assert velox.metric("velox_limit_rows_overflow_total") == 0


@covers(
    "VELOX_RATE_LIMIT_TPM",
    "VELOX_RATE_LIMIT_TPM_BURST",
    "VELOX_KEY_TPM",
    "VELOX_KEY_TPM_BURST",
    "VELOX_BYTES_PER_TOKEN",
    "VELOX_DEFAULT_MAX_TOKENS",
)
def test_tokens_are_counted_by_the_bytes_of_the_prompt_and_what_the_answer_may_be(base: Mapping[str, str]) -> None:
    """An answer that tells no usage costs the estimate: the gateway's burst is for three requests, a key's for two."""
    prompt = -(-len(json.dumps({**BODY, "max_tokens": 50})) // 2)
    env = {
        **base,
        "VELOX_API_KEYS": "k-one,k-two",
        "VELOX_BYTES_PER_TOKEN": "2",
        "VELOX_RATE_LIMIT_TPM": "400",
        "VELOX_RATE_LIMIT_TPM_BURST": str(3 * (prompt + 50) + 20),
        "VELOX_KEY_TPM": "300",
        "VELOX_KEY_TPM_BURST": str(2 * (prompt + 50) + 20),
        "VELOX_DEFAULT_MAX_TOKENS": "100k",
    }
    with VeloxProcess(env) as velox:
        never = chat(velox, "k-one", max_tokens=100_000)
        assert never.status == 429 and "can never pass" in str(never.error()["message"])
        passed, message = passes(velox, 5, "k-one", max_tokens=50)
        assert passed == 2 and "VELOX_KEY_TPM" in message
        passed, message = passes(velox, 5, "k-two", max_tokens=50)
        assert passed == 1 and "VELOX_RATE_LIMIT_TPM" in message
    with VeloxProcess({**env, "VELOX_RATE_LIMIT_TPM": "0"}) as velox:
        passed, message = passes(velox, 5, "k-one")
        assert passed == 1 and "this key's token limit is reached" in message, "100k are assumed; it takes all there is"


@covers("VELOX_RATE_LIMIT_CONCURRENCY", "VELOX_KEY_CONCURRENCY")
def test_concurrency_frees_a_slot_when_a_reply_has_ended(base: Mapping[str, str], upstream: RecordingUpstream) -> None:
    """One request of a key at a time, two of all keys."""
    env = {
        **base,
        "VELOX_API_KEYS": "k-one,k-two,k-three",
        "VELOX_RATE_LIMIT_CONCURRENCY": "2",
        "VELOX_KEY_CONCURRENCY": "1",
    }

    async def held(call: Call) -> None:
        await call.step()
        await silent(call)

    with VeloxProcess(env) as velox, upstream.playing(held), Client(velox) as first, Client(velox) as second:
        first.send("POST", "/v1/chat/completions", CHAT, {"authorization": "Bearer k-one"})
        upstream.wait_call(1)
        assert "VELOX_KEY_CONCURRENCY" in passes(velox, 1, "k-one")[1]
        second.send("POST", "/v1/chat/completions", CHAT, {"authorization": "Bearer k-two"})
        upstream.wait_call(2)
        assert "VELOX_RATE_LIMIT_CONCURRENCY" in passes(velox, 1, "k-three")[1]
        upstream.step(2)
        assert [first.read().status, second.read().status] == [200, 200]
        upstream.step(1)
        assert chat(velox, "k-one").status == 200


def test_limit_of_a_key_changes_with_the_file_and_keeps_what_is_used(base: Mapping[str, str], tmp_path: Path) -> None:
    """Without a restart, on the next request after the change was taken."""
    keys = tmp_path / "keys"
    keys.write_text("- {name: team, key: k-one, rpm: 1, burst: 1}\n")
    with VeloxProcess({**base, "VELOX_API_KEYS_FILE": str(keys)}) as velox:
        assert passes(velox, 3, "k-one")[0] == 1
        keys.write_text("- {name: team, key: k-one, rpm: 4, burst: 9}\n")

        until(lambda: chat(velox, "k-one").status == 200, "a limit with room again")

        # One used at 1 a minute is four of those at 4 a minute; one of the rest has passed above.
        assert 9 - 4 - 1 <= passes(velox, 9, "k-one")[0] < 9 - 1
