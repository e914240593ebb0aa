"""What a client sees while upstreams fail: another one's answer, and the way that it took."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from typing import Any

import openai
import pytest

from tests.e2e.harness import until
from tests.e2e.recording import JSON, SSE, Call, Fields, RecordingUpstream, Script, healthy
from tests.e2e.routed import Entry, ask, ask_stream, crowd, named, nobody, routed, shares
from tests.e2e.upstreams import chat_chunk


def answers(status: int, fields: Fields = ()) -> Script:
    """Script: each chat gets this status."""

    async def script(call: Call) -> None:
        await call.reply(status, [*JSON, *fields], b'{"error":{"message":"mine","type":"theirs"}}')

    return script


async def says_nothing(call: Call) -> None:
    """Script: the request is taken, and that is all."""
    await call.silence()


async def loses(call: Call) -> None:
    """Script: the connection is reset instead of an answer."""
    call.lose()


async def begins_and_breaks(call: Call) -> None:
    """Script: a head and an event, and then no more."""
    await call.head(200, SSE)
    await call.data(chat_chunk("Hel"))
    await call.step()
    call.cut()


@pytest.fixture(scope="module")
def backup() -> Iterator[Entry]:
    """A simulator that works."""
    with named("backup") as sims:
        yield sims["backup"]


@pytest.fixture
def broken() -> Iterator[RecordingUpstream]:
    """An upstream that does what its script says."""
    with RecordingUpstream() as upstream:
        yield upstream


def config(origin: str, backup: Entry, **more: object) -> Mapping[str, object]:
    """Return a file with one route: first the upstream at `origin`, then the backup, with a model of its own."""
    first = {"name": "first", "origin": origin, "timeouts": {"first_byte": "400ms"}, **more}
    target = {"upstream": "backup", "model": "model-of-backup"}
    return {"upstreams": [first, backup], "routes": [{"name": "all", "to": "first", "fallback": [target]}]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("script", "tried"),
    [
        (answers(500), "first=500"),
        (answers(503), "first=503"),
        (answers(429), "first=429"),
        (answers(429, [("retry-after", "30")]), "first=429"),
        (says_nothing, "first=upstream_ttfb_timeout"),
        (loses, "first=upstream_reset"),
    ],
    ids=["500", "503", "429", "429-retry-after", "silence", "reset"],
)
def test_fallback_answers_with_its_own_model(
    broken: RecordingUpstream, backup: Entry, script: Script, tried: str, stream: bool
) -> None:
    """Within one request of the client, which sees whose answer it is, and how many were asked."""
    with routed(config(broken.upstream.url, backup)) as velox, broken.playing(script):
        answer = (ask_stream if stream else ask)(velox.openai(), "gpt-4o")

        assert (answer.sim, answer.upstream, answer.model) == ("backup", "backup", "model-of-backup")
        assert set(answer.tried.split(", ")) == {tried}
        # After a reset, or a single 500, the same is asked once more.
        assert answer.attempts == 1 + len(answer.tried.split(", ")) <= 3
        assert b'"gpt-4o"' in broken.wait_call().body
        assert answer.text


def test_fallback_answers_while_nobody_listens(backup: Entry) -> None:
    """A connection that can't be made costs nothing: every request is answered, and soon nobody tries any more."""
    with nobody() as origin, routed(config(origin, backup)) as velox:
        found = [ask(velox.openai()) for _ in range(20)]

        assert {answer.sim for answer in found} == {"backup"}
        assert {answer.tried for answer in found} <= {"", "first=upstream_connect"}
        assert found[-1].attempts == 1


def test_fallbacks_are_tried_in_their_order(broken: RecordingUpstream) -> None:
    """First, then the second, then the third; each with the model that stands there."""
    with named("second", "third", second="--error-rate 1") as sims, broken.playing(answers(500)):
        route = {"name": "all", "to": "first", "fallback": [{"upstream": "second", "model": "b"}, "third"]}
        upstreams = [{"name": "first", "origin": broken.upstream.url}, *sims.values()]
        with routed({"upstreams": upstreams, "routes": [route]}, retries="2") as velox:
            answer = ask(velox.openai(), "a")

        assert (answer.sim, answer.model, answer.attempts) == ("third", "a", 4)
        assert answer.tried == "first=500, first=500, second=500", "the second has another model: once more the first"


def test_error_of_the_last_one_is_what_the_client_sees(broken: RecordingUpstream) -> None:
    """When all have failed, the reply is the last one's, unchanged."""
    with named("second", second="--error-rate 1") as sims, broken.playing(answers(500)):
        upstreams = [{"name": "first", "origin": broken.upstream.url}, *sims.values()]
        route = {"name": "all", "to": "first", "fallback": ["second"]}
        with routed({"upstreams": upstreams, "routes": [route]}) as velox:
            with pytest.raises(openai.InternalServerError) as caught:
                ask(velox.openai())

            reply = caught.value.response
            assert "simulated" in caught.value.message
            assert (reply.headers["x-velox-upstream"], reply.headers["x-velox-attempts"]) == ("second", "2")


@pytest.mark.parametrize("status", [400, 404, 422])
def test_answer_about_the_request_is_no_reason_to_ask_another(
    broken: RecordingUpstream, backup: Entry, status: int
) -> None:
    """What is wrong with the request would be wrong there, too."""
    with routed(config(broken.upstream.url, backup)) as velox, broken.playing(answers(status)):
        with pytest.raises(openai.APIStatusError) as caught:
            ask(velox.openai())

        assert caught.value.status_code == status
        assert caught.value.response.headers["x-velox-upstream"] == "first"
        assert caught.value.response.headers["x-velox-attempts"] == "1"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_upstream_without_the_model_leaves_the_next_its_turn(backup: Entry, stream: bool, coding: str) -> None:
    """404 `model_not_found` of the first and of the second: the third one answers."""
    body = b'{"error":{"message":"The model `gpt-4o` does not exist","type":"invalid_request_error","code":"%b"}}'
    text = body % b"model_not_found"

    async def script(call: Call) -> None:
        fields = [*JSON, ("content-encoding", coding)]
        await call.reply(404, fields, gzip.compress(text) if coding == "gzip" else text)

    with RecordingUpstream() as one, RecordingUpstream() as two, one.playing(script), two.playing(script):
        upstreams = [{"name": "one", "origin": one.upstream.url}, {"name": "two", "origin": two.upstream.url}, backup]
        route = {"name": "all", "to": "one", "fallback": ["two", {"upstream": "backup", "model": "m-of-backup"}]}
        with routed({"upstreams": upstreams, "routes": [route]}) as velox:
            answer = (ask_stream if stream else ask)(velox.openai(), "gpt-4o")

            assert (answer.sim, answer.model, answer.attempts) == ("backup", "m-of-backup", 3)
            assert answer.tried == "one=404, two=404"
            velox.wait_metric('velox_retries_total{cause="unknown_model"}', lambda n: n == 2)


def test_stream_that_has_begun_is_not_begun_anew(broken: RecordingUpstream, backup: Entry) -> None:
    """The client has a token: what comes is an error, never another upstream's beginning."""
    with routed(config(broken.upstream.url, backup)) as velox, broken.playing(begins_and_breaks):
        raw = velox.openai().chat.completions.with_raw_response.create(model="m", messages=[], stream=True)
        chunks = iter(raw.parse())
        assert next(chunks).choices[0].delta.content == "Hel"
        broken.step()
        with pytest.raises(openai.APIError):
            list(chunks)
        assert raw.headers["x-velox-upstream"] == "first"


def test_attempts_are_in_the_access_log(broken: RecordingUpstream, backup: Entry) -> None:
    """Who answered, and who was asked before."""
    with (
        routed(config(broken.upstream.url, backup), access_log="all") as velox,
        broken.playing(answers(500)),
    ):
        ask(velox.openai())
        line = velox.wait_access(lambda line: line.get("upstream") == "backup")

        assert line["attempts"] == 3, "a single 500: once more at the same"
        assert "first=500" in str(line)


def test_metrics_count_by_upstream(broken: RecordingUpstream, backup: Entry) -> None:
    """Each attempt where it was made: what failed at the first, and what the other one answered."""
    with routed(config(broken.upstream.url, backup)) as velox, broken.playing(answers(500)):
        found = [ask(velox.openai()) for _ in range(6)]
        n_failed = sum(answer.tried.count("first=500") for answer in found)
        attempts = "velox_upstream_requests_total"
        velox.wait_metric(f'{attempts}{{outcome="ok",upstream="backup"}}', lambda n: n == 6)

        assert n_failed >= 1
        velox.wait_metric(f'{attempts}{{outcome="status_5xx",upstream="first"}}', lambda n: n == n_failed)
        assert velox.metric(f'{attempts}{{outcome="ok",upstream="first"}}') == 0


GROUPS = {"failing": "--error-rate 1", "down": "--flap 0s,1h --flap-as refuse", "busy": "--flap 0s,1h --flap-as 503"}


@pytest.mark.parametrize("kind", GROUPS)
def test_fallback_is_reached_past_a_group_in_which_all_fail(kind: str, backup: Entry) -> None:
    """However many there are in `to`: the first request is answered, too, and a second fallback is reached as well."""
    names = ("a", "b", "c", "d")
    with named(*names, "e", **dict.fromkeys((*names, "e"), GROUPS[kind])) as sims:
        route = {"name": "all", "to": list(names), "fallback": ["e", "backup"]}
        with routed({"upstreams": [*sims.values(), backup], "routes": [route]}) as velox:
            found = [ask(velox.openai()) for _ in range(3)]  # more would be more than the budget of retries

    assert {answer.sim for answer in found} == {"backup"}
    assert found[0].attempts <= 4  # `retries` is 1: of the group no more than two are asked, and each fallback once


def test_canary_that_fails_is_not_seen(backup: Entry) -> None:
    """Its part goes on to where it would have gone without it."""
    with named("next", next="--error-rate 1") as sims:
        route = {"name": "all", "to": "backup", "canary": {"to": "next", "percent": 100, "model": "new"}}
        with routed({"upstreams": [backup, *sims.values()], "routes": [route]}) as velox:
            found = [ask(velox.openai(), "old") for _ in range(5)]

    assert {(answer.sim, answer.model) for answer in found} == {("backup", "old")}
    assert found[0].tried == "next=500"


# -- keys -------------------------------------------------------------------------------------------

KEYS = {"UPSTREAM_KEY_1": "sk-upstream-key-one-1", "UPSTREAM_KEY_2": "sk-upstream-key-two-2"}


def keyed(origin: str) -> Mapping[str, Any]:
    """Return a file with one upstream that has two keys."""
    return {"upstreams": [{"name": "up", "origin": origin, "keys": [f"env:{name}" for name in KEYS]}]}


def key_of(call: Call) -> str:
    return (call.header("authorization") or "").removeprefix("Bearer ")


def chats(upstream: RecordingUpstream) -> list[Call]:
    return [call for call in upstream.calls if "chat/completions" in call.target]


def test_keys_take_turns(broken: RecordingUpstream) -> None:
    """Each key has its part of the requests; the client's own never goes up."""
    with routed(keyed(broken.upstream.url), **KEYS) as velox, broken.playing(healthy):
        for _ in range(40):
            ask(velox.openai())

        used = [key_of(call) for call in chats(broken)]
        assert set(used) == set(KEYS.values())
        assert all(used.count(key) >= 5 for key in KEYS.values())


def test_key_that_is_refused_rests_as_long_as_it_was_told(broken: RecordingUpstream) -> None:
    """429 with Retry-After: 2: the request is answered with the other key, and so are all others for two seconds."""
    resting, other = KEYS.values()
    refused: list[Call] = []

    async def script(call: Call) -> None:
        if key_of(call) == resting and not refused:
            refused.append(call)
            await call.reply(429, [*JSON, ("retry-after", "2")], b'{"error":{"message":"slow down"}}')
        else:
            await healthy(call)

    with routed(keyed(broken.upstream.url), **KEYS) as velox, broken.playing(script):
        sdk = velox.openai()
        until(lambda: ask(sdk).attempts == 2 or bool(refused), "a key is refused")
        assert refused
        until(lambda: bool(ask(sdk)) and key_of(chats(broken)[-1]) == resting, "it is used again")

        later = [call for call in chats(broken) if call.came_s > refused[0].came_s]
        back = next(call for call in later if key_of(call) == resting)
        assert back.came_s - refused[0].ended_s >= 1.95
        assert {key_of(call) for call in later if call.came_s < back.came_s} == {other}


def test_all_keys_rest_is_told_with_the_time(broken: RecordingUpstream) -> None:
    """When no key is left, the client hears 429, and when to come again."""
    with (
        routed(keyed(broken.upstream.url), **KEYS) as velox,
        broken.playing(answers(429, [("retry-after", "30")])),
    ):
        sdk = velox.openai()
        for _ in range(4):
            with pytest.raises(openai.RateLimitError) as caught:
                ask(sdk)
        n_asked = len(chats(broken))

        assert n_asked <= 4
        assert 20 < float(caught.value.response.headers["retry-after"]) <= 30


def test_key_that_is_not_taken_any_more_is_not_used(broken: RecordingUpstream) -> None:
    """401 for one of two keys: its request goes with the other one, it is told in the metrics, and left out."""
    revoked, other = KEYS.values()

    async def script(call: Call) -> None:
        if key_of(call) == revoked:
            await call.reply(401, JSON, b'{"error":{"message":"revoked"}}')
        else:
            await healthy(call)

    with routed(keyed(broken.upstream.url), **KEYS) as velox, broken.playing(script):
        sdk = velox.openai()
        found = [ask(sdk) for _ in range(30)]

        assert sum(answer.attempts for answer in found) <= 30 + 3
        assert [key_of(call) for call in chats(broken)][-10:] == [other] * 10
        velox.wait_metric('velox_upstream_keys_unused{state="out",upstream="up"}', lambda n: n == 1)


@pytest.mark.parametrize("status", [401, 403, 429])
def test_account_that_a_client_names_puts_no_key_out(broken: RecordingUpstream, status: int) -> None:
    """One client's mistake in a field that may pass is its own to hear of, and no other client's."""

    async def script(call: Call) -> None:
        if call.header("openai-organization") is not None:
            await call.reply(status, [*JSON, ("retry-after", "60")], b'{"error":{"message":"no such organization"}}')
        else:
            await healthy(call)

    settings = {**KEYS, "upstream_account_headers": "pass"}
    with routed(keyed(broken.upstream.url), **settings) as velox, broken.playing(script):
        wrong = velox.openai().with_options(organization="org-wrong")
        for _ in range(8):
            with pytest.raises(openai.APIStatusError) as caught:
                ask(wrong)
            assert caught.value.status_code == status
        asked = len(chats(broken))

        assert [ask(velox.openai()).attempts for _ in range(20)] == [1] * 20
        assert asked <= 8 * (2 if status == 429 else 1), "none is tried with every key"
        assert velox.metric('velox_upstream_keys_unused{state="out",upstream="up"}') == 0
        assert velox.metric('velox_upstream_keys_unused{state="resting",upstream="up"}') == 0


def test_account_that_a_client_names_puts_no_key_of_a_mirror_out(broken: RecordingUpstream, backup: Entry) -> None:
    """Its copies go up with the account, too, and clients of other routes may need the keys."""
    upstreams = [*keyed(broken.upstream.url)["upstreams"], backup]
    route = {"name": "all", "to": "backup", "mirror": {"to": "up", "percent": 100}}
    settings = {**KEYS, "upstream_account_headers": "pass"}
    with (
        routed({"upstreams": upstreams, "routes": [route]}, **settings) as velox,
        broken.playing(answers(401)),
    ):
        wrong = velox.openai().with_options(organization="org-wrong")
        for n in range(1, 13):
            assert ask(wrong).sim == "backup"
            until(lambda n=n: len(chats(broken)) == n, "the copy")
        assert len(chats(broken)) == 12
        assert velox.metric('velox_upstream_keys_unused{state="out",upstream="up"}') == 0

        for _ in range(12):  # of a client that names none, they tell of the key
            ask(velox.openai())
        velox.wait_metric('velox_upstream_keys_unused{state="out",upstream="up"}', lambda n: n == 2)


def test_keys_with_something_left_are_used_more(broken: RecordingUpstream) -> None:
    """By x-ratelimit-remaining-requests: the key with a thousand left gets nearly all, the one with ten hardly any."""
    left = dict(zip(KEYS.values(), ("1000", "10"), strict=True))

    async def script(call: Call) -> None:
        fields = [("x-ratelimit-remaining-requests", left[key_of(call)]), ("x-ratelimit-reset-requests", "60s")]
        await call.reply(200, [*JSON, *fields, ("x-ratelimit-limit-requests", "1000")], HELLO)

    with routed(keyed(broken.upstream.url), **KEYS) as velox, broken.playing(script):
        for _ in range(80):
            ask(velox.openai())

        used = [key_of(call) for call in chats(broken)][20:]
        assert used.count(KEYS["UPSTREAM_KEY_1"]) > 45


HELLO = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Hello"},"finish_reason":"stop","logprobs":null}]}'
)

# -- one bad upstream of four ------------------------------------------------------------------------

BAD: dict[str, str] = {
    "down": "--flap 0s,1h --flap-as refuse",
    "resetting": "--flap 0s,1h --flap-as reset",
    "unavailable": "--flap 0s,1h --flap-as 503",
    "failing": "--error-rate 1",
    "failing-some": "--error-rate 0.3 --seed 1",
    "flapping": "--flap 200ms,200ms --flap-as refuse",
    "stalling": "--stall-rate 1",
}


@pytest.mark.parametrize(
    ("kind", "balance"),
    [
        *((kind, "round_robin") for kind in BAD),
        *(("failing-some", balance) for balance in ("least_inflight", "peak_ewma")),
        ("resetting", "least_inflight"),  # who fails at once has nothing in flight
    ],
)
@pytest.mark.more
def test_one_bad_upstream_of_four_is_not_seen(kind: str, balance: str) -> None:
    """Hundreds of requests, streamed and plain, through two workers: each is answered, and most by the first asked."""
    with named("one", "two", "three", "bad", bad=BAD[kind]) as sims:
        for entry in sims.values():
            entry["timeouts"] = {"first_byte": "500ms"}
        config = {
            "upstreams": list(sims.values()),
            "routes": [{"name": "all", "to": list(sims), "balance": balance}],
        }
        with routed(config, workers="2") as velox:
            sdk = velox.openai()

            def call(n: int) -> Any:
                return (ask_stream if n % 2 else ask)(sdk, f"m{n}")

            found = crowd(300, call)

        assert len(found) == 300
        assert all(answer.text for answer in found)
        assert sum(answer.attempts for answer in found) < 300 * 1.3
        assert len(shares(found)) >= 3
