"""Answers that are given again: which request gets which, over all workers, and what is told and recorded of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.raw_http import RawReply
from tests.e2e.recording import JSON, Call, RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.test_reload import reload
from tests.e2e.tools import covers, run_velox
from tests.patience import PATIENCE_S
from velox.ledger.record import Flag

KEYS: Final = {"a": "sk-key-of-a-0001", "b": "sk-key-of-b-0002", "c": "sk-key-of-c-0003"}
PATH: Final = "/v1/chat/completions"
SSE: Final = [("content-type", "text/event-stream")]


def asked(text: str = "Hello.", **fields: object) -> bytes:
    """A request for the likeliest answer."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
    return json.dumps(body).encode()


def chat(n: int, finish: str = "stop") -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": f"answer {n}"}, "finish_reason": finish}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    return json.dumps(
        {"id": f"chatcmpl-{n}", "object": "chat.completion", "choices": [choice], "usage": usage}
    ).encode()


def events(n: int) -> list[bytes]:
    deltas = [{"role": "assistant", "content": ""}, {"content": f"answer {n}"}, {}]
    found = []
    for delta in deltas:
        choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}
        chunk = {"id": f"chatcmpl-{n}", "object": "chat.completion.chunk", "choices": [choice]}
        found.append(b"data: %b\n\n" % json.dumps(chunk).encode())
    return [*found, b"data: [DONE]\n\n"]


class Model:
    """Answers each call with its number. finish: how answers end. cuts: streams have no end.

    status: of answers. more: behind each that is no stream. may_answer: set, but while calls are to wait.
    """

    def __init__(self) -> None:
        self.finish = "stop"
        self.cuts = False
        self.status = 200
        self.more = ""
        self.may_answer = threading.Event()
        self.may_answer.set()

    async def __call__(self, call: Call) -> None:
        n = len(call.upstream.calls)
        await asyncio.to_thread(self.may_answer.wait, PATIENCE_S)
        if self.status != 200:
            await call.reply(self.status, JSON, b'{"error": {"message": "no"}}')
        elif not json.loads(call.body).get("stream"):
            await call.reply(200, JSON, chat(n, self.finish) + self.more.encode())
        else:
            await call.head(200, SSE)
            for event in events(n):
                if self.cuts and event.endswith(b"[DONE]\n\n"):
                    call.cut()
                    return
                await call.data(event)
            await call.end()


@pytest.fixture
def model() -> Model:
    """What the upstream does."""
    return Model()


@pytest.fixture
def upstream(model: Model) -> Iterator[RecordingUpstream]:
    """Counts what gets there."""
    with RecordingUpstream(script=model) as running:
        yield running


def config(upstream: RecordingUpstream, **rule: object) -> dict[str, object]:
    teams = {"a": "red", "b": "red", "c": "blue"}
    return {
        "upstreams": [{"name": "up", "origin": upstream.upstream.url}],
        "routes": [{"name": "all", "to": "up", "cache": {"ttl": "10m", **rule}}],
        "api_keys": [{"name": name, "key": key, "team": teams[name]} for name, key in KEYS.items()],
    }


def ask(velox: VeloxProcess, body: bytes | None = None, key: str = "a", **headers: str) -> RawReply:
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return velox.request(
        "POST", PATH, asked() if body is None else body, {"authorization": f"Bearer {KEYS[key]}", **more}
    )


def told(reply: RawReply) -> str:
    assert reply.status == 200, reply.body
    return (reply.header("x-velox-cache") or "").partition(";")[0]


def test_equal_request_gets_the_answer_again_from_any_worker(upstream: RecordingUpstream) -> None:
    """Byte for byte, at no upstream; in another spelling of the same body, too."""
    with routed(config(upstream), workers="2", access_log="all") as velox:
        first = ask(velox)
        assert told(first) == "stored"
        for _ in range(8):  # of both workers
            again = ask(velox, b" " + asked(user="somebody"))
            assert (told(again), again.body) == ("hit", first.body)
            assert again.header("content-type") == first.header("content-type")
            assert (again.header("x-velox-cache") or "").startswith("hit; age=")
            assert again.header("x-velox-upstream") is None
        assert len(upstream.calls) == 1

        assert told(ask(velox, asked("Other."))) == "stored"
        assert told(ask(velox, anthropic_beta="x")) == "stored"
        assert len(upstream.calls) == 3
        found = velox.metrics()
        assert found['velox_cache_requests_total{result="hit"}'] == 8
        assert found['velox_cache_requests_total{result="miss"}'] == 3
        assert found["velox_cache_stored_total"] == 3
        line = velox.wait_access(lambda line: line["cache"] == "hit")
        assert (line["attempts"], line["upstream"]) == (0, None)


def test_stream_is_given_again_as_it_came(upstream: RecordingUpstream, model: Model) -> None:
    """Event by event. Its head goes before its end, so it says that nothing was found. A cut one is not kept."""
    with routed(config(upstream)) as velox:
        model.cuts = True
        body = asked(stream=True)
        with pytest.raises(ConnectionError):
            ask(velox, body)
        model.cuts = False
        first = ask(velox, body)
        assert told(first) == "miss"
        assert first.body == b"".join(events(2))
        again = ask(velox, body)
        assert (told(again), again.body) == ("hit", first.body)
        assert (again.header("content-type") or "").startswith("text/event-stream")
        assert told(ask(velox)) == "stored", "it is no stream: another request"
        chunks = list(
            velox.openai(api_key=KEYS["a"]).chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Hello."}], temperature=0, stream=True
            )
        )
        assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "answer 2", None]
        assert len(upstream.calls) == 3


@pytest.mark.parametrize(("scope", "n_calls"), [("key", 3), ("team", 2), ("all", 1)])
def test_scope_is_whose_answers_are_shared(upstream: RecordingUpstream, scope: str, n_calls: int) -> None:
    with routed(config(upstream, scope=scope)) as velox:
        for key in KEYS:
            ask(velox, key=key)
        for key in KEYS:
            assert told(ask(velox, key=key)) == "hit"
        assert len(upstream.calls) == n_calls


def test_other_query_of_an_upstream_is_another_account(upstream: RecordingUpstream, tmp_path: Path) -> None:
    """A tenant may stand there: after a reload that changes it, no answer of the one before is given."""
    file = tmp_path / "velox.yaml"

    def write(tenant: str) -> None:
        origin = {"name": "up", "origin": upstream.upstream.url, "query": {"tenant": tenant}}
        file.write_text(yaml.safe_dump({**config(upstream), "upstreams": [origin]}))

    write("red")
    with VeloxProcess({"VELOX_CONFIG": str(file), "VELOX_WORKERS": "1", "VELOX_RATE_LIMIT_RPM": "0"}) as velox:
        assert [told(ask(velox)) for _ in range(2)] == ["stored", "hit"]
        write("blue")
        done = reload(velox)
        assert done.returncode == 0, done.stderr
        assert [told(ask(velox)) for _ in range(2)] == ["stored", "hit"]


def test_what_is_never_kept(upstream: RecordingUpstream, model: Model) -> None:
    with routed(config(upstream)) as velox:
        model.finish = "content_filter"
        assert [told(ask(velox, asked("filtered"))) for _ in range(2)] == ["miss", "miss"]
        model.finish = "stop"
        model.status = 400
        assert [ask(velox, asked("refused")).status for _ in range(2)] == [400, 400]
        model.status = 200
        for fields in ({"temperature": 0.7}, {"store": True}, {"tools": [{"type": "web_search"}]}):
            assert [told(ask(velox, asked(**fields))) for _ in range(2)] == ["bypass", "bypass"]
        long = asked("x" * 70_000)
        assert [told(ask(velox, long)) for _ in range(2)] == ["bypass", "bypass"]
        assert len(upstream.calls) == 12


def test_what_a_client_asks_of_the_cache(upstream: RecordingUpstream) -> None:
    """RFC 9111 §5.2.1: no-store, no-cache, max-age, only-if-cached."""
    with routed(config(upstream)) as velox:
        refused = ask(velox, cache_control="only-if-cached")
        assert (refused.status, refused.header("x-velox-reason")) == (504, "not_cached")
        assert not upstream.calls
        assert told(ask(velox, cache_control="no-store")) == "bypass"
        assert told(ask(velox)) == "stored", "nothing was kept"
        assert told(ask(velox, cache_control="only-if-cached")) == "hit"
        assert told(ask(velox, cache_control="max-age=600")) == "hit"
        assert told(ask(velox, cache_control="no-store")) == "bypass"
        newer = ask(velox, cache_control="no-cache")
        assert told(newer) == "stored"
        assert ask(velox).body == newer.body, "it took the place of the one before"
        assert told(ask(velox, cache_control="max-age=0")) == "stored"


def test_answer_costs_nothing_and_counts_as_a_request(upstream: RecordingUpstream, tmp_path: Path) -> None:
    """Of limits on tokens it takes none. In the ledger it is a call of no upstream."""
    given = config(upstream)
    given["limits"] = [{"per": "key", "rpm": 4, "tpm": 100_000}]
    with routed(given, ledger=str(tmp_path / "ledger"), rate_limit_max_wait="0s") as velox:
        assert told(ask(velox)) == "stored"
        # Its client has the whole answer before its tokens are settled.
        until(lambda: velox.metric("velox_ledger_records_total") >= 1, "the first call is recorded, and settled")
        hits = [ask(velox, x_velox_cost="true") for _ in range(3)]
        assert [told(hit) for hit in hits] == ["hit"] * 3
        assert hits[-1].header("x-velox-cost") == "0.000000000"
        left = [int(hit.header("x-ratelimit-remaining-tokens") or "0") for hit in hits]
        assert min(left[1:]) >= left[0] - 10, "what each took in advance came back whole"
        assert ask(velox).status == 429
        until(lambda: velox.metric("velox_ledger_records_total") >= 4, "all calls are recorded")
        # The ledger's process has its file some time after that, and says so until then.
        until(lambda: len(velox.admin("/api/v1/calls").json().get("data", ())) >= 4, "all calls are in the ledger")
        calls = velox.admin("/api/v1/calls").json()["data"]
        assert isinstance(calls, list)
        assert sorted((call["upstream"], call["flags"]) for call in calls)[:3] == [("", "cached")] * 3
    assert Flag.CACHED == 4096


def test_route_without_a_cache_says_nothing_of_one(upstream: RecordingUpstream) -> None:
    given = config(upstream)
    given["routes"] = [{"name": "all", "to": "up"}]
    with routed(given) as velox:
        assert [ask(velox, cache_control="only-if-cached").header("x-velox-cache") for _ in range(2)] == [None, None]
        assert len(upstream.calls) == 2


def kept(velox: VeloxProcess, n: int) -> int:
    """Ask so many questions, then for what is kept of them; return how many are."""
    for each in range(n):
        assert ask(velox, asked(f"question {each}")).status == 200
    again = [ask(velox, asked(f"question {each}"), cache_control="only-if-cached") for each in range(n)]
    return sum(reply.status == 200 for reply in again)


@covers("VELOX_CACHE_BYTES", "VELOX_CACHE_ANSWERS", "VELOX_CACHE_SHARE")
@pytest.mark.parametrize(
    ("settings", "least", "most"),
    [
        ({}, 100, 100),
        ({"cache_bytes": "8KiB", "cache_share": "100"}, 5, 30),  # an answer takes some 300 bytes
        ({"cache_bytes": "8KiB", "cache_share": "25"}, 3, 8),  # what came first is kept
        ({"cache_answers": "64", "cache_share": "100"}, 60, 100),
    ],
)
def test_cache_has_bounds(upstream: RecordingUpstream, settings: dict[str, str], least: int, most: int) -> None:
    with routed(config(upstream), **settings) as velox:
        assert least <= kept(velox, 100) <= most


@covers("VELOX_CACHE_BYTES", "VELOX_CACHE_ANSWER_BYTES")
def test_without_memory_or_with_a_longer_answer_nothing_is_kept(upstream: RecordingUpstream, model: Model) -> None:
    with routed(config(upstream), cache_bytes="0") as velox:
        assert [ask(velox).header("x-velox-cache") for _ in range(2)] == [None, None]
    model.more = " " * 2000
    with routed(config(upstream), cache_answer_bytes="1KiB") as velox:
        assert [told(ask(velox)) for _ in range(2)] == ["miss", "miss"]
    with routed(config(upstream)) as velox:
        assert [told(ask(velox)) for _ in range(2)] == ["stored", "hit"]


TOKEN: Final = "token-of-an-admin-0001"


def run_purge(velox: VeloxProcess, *options: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    """Run `velox cache purge`."""
    given = {"VELOX_ADMIN_TOKEN": token} if token else {}
    return run_velox(given, "cache", "purge", "--admin", velox.admin_url.removeprefix("http://"), *options)


def purge(velox: VeloxProcess, *options: str) -> str:
    """Purge, and return what is printed."""
    done = run_purge(velox, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def is_kept(velox: VeloxProcess, text: str = "Hello.", key: str = "a") -> bool:
    """Say whether there is an answer; all workers must agree."""
    replies = [ask(velox, asked(text), key, cache_control="only-if-cached").status for _ in range(8)]
    assert len(set(replies)) == 1, replies
    return replies[0] == 200


def two_routes(upstream: RecordingUpstream) -> dict[str, object]:
    """Route `evals` for model m, and `rest` for all others."""
    given, cache = config(upstream), {"ttl": "10m"}
    evals = {"name": "evals", "match": {"models": ["m"]}, "to": "up", "cache": cache}
    return {**given, "routes": [evals, {"name": "rest", "to": "up", "cache": cache}]}


def other(velox: VeloxProcess, key: str = "a", **headers: str) -> RawReply:
    """Ask on the other route."""
    return ask(velox, asked(model="another"), key, **headers)


def test_purge_takes_out_what_is_named_at_all_workers(upstream: RecordingUpstream) -> None:
    """By route, key, age, or all. It is counted, and logged with who did it; other answers stay."""
    with routed(two_routes(upstream), workers="2", admin_token=TOKEN) as velox:
        for key in KEYS:
            assert (told(ask(velox, key=key)), told(other(velox, key))) == ("stored", "stored")
        assert all(is_kept(velox, key=key) for key in KEYS)

        assert purge(velox, "--key", "b", "--route", "evals") == "1 answer purged"
        assert [is_kept(velox, key=key) for key in KEYS] == [True, False, True]
        assert told(other(velox, "b")) == "hit"
        assert purge(velox, "--key", hashlib.sha256(KEYS["c"].encode()).hexdigest()[:16]) == "2 answers purged"
        assert [is_kept(velox, key=key) for key in KEYS] == [True, False, False]
        assert purge(velox, "--route", "evals") == "1 answer purged"
        assert not is_kept(velox)
        assert [told(other(velox, key)) for key in "ab"] == ["hit", "hit"]
        assert purge(velox, "--older-than", "10m") == "0 answers purged"
        assert purge(velox, "--key", "a", "--older-than", "10m") == "0 answers purged"
        assert told(ask(velox)) == "stored"
        assert json.loads(purge(velox, "--json")) == {"purged": 3}
        assert not is_kept(velox)
        assert [other(velox, key, cache_control="only-if-cached").status for key in KEYS] == [504] * 3
        assert told(ask(velox)) == "stored", "what is asked for after a purge is kept"

        page = velox.admin("/metrics", {"authorization": f"Bearer {TOKEN}"}).body.decode()
        assert "velox_cache_purges_total 6.0" in page
        assert "velox_cache_purged_total 7.0" in page
        velox.wait_log(lambda line: "1 answers were purged by admin: route 'evals', key 'b'" in line)
        assert KEYS["b"] not in "".join(velox.stderr.lines)


def test_answer_that_was_asked_for_before_a_purge_is_not_kept(upstream: RecordingUpstream, model: Model) -> None:
    """Streams too. Answers of other routes and keys that are under way are."""
    with routed(two_routes(upstream), workers="2", admin_token=TOKEN) as velox, ThreadPoolExecutor(4) as pool:
        model.may_answer.clear()
        plain = pool.submit(ask, velox)
        stream = pool.submit(ask, velox, asked(stream=True))
        of_route, of_key = pool.submit(other, velox), pool.submit(ask, velox, None, "b")
        upstream.wait(lambda: len(upstream.calls) == 4, "all are under way")
        assert purge(velox, "--key", "a", "--route", "evals") == "0 answers purged"
        model.may_answer.set()
        assert [told(each.result()) for each in (plain, stream, of_route, of_key)] == [
            "miss",
            "miss",
            "stored",
            "stored",
        ]
        assert not is_kept(velox)
        assert ask(velox, asked(stream=True), cache_control="only-if-cached").status == 504
        assert told(other(velox)) == told(ask(velox, key="b")) == "hit"
        assert told(ask(velox)) == "stored"


def test_killed_worker_brings_nothing_back(upstream: RecordingUpstream) -> None:
    """The one in its place finds what is kept, and nothing that was purged."""
    with routed(two_routes(upstream), workers="2", admin_token=TOKEN) as velox:
        for _ in range(4):  # so that each worker has kept one
            ask(velox, cache_control="no-cache")
        assert told(other(velox)) == "stored"
        pids = velox.worker_pids()
        os.kill(pids[0], signal.SIGKILL)
        assert purge(velox, "--route", "evals") != "0 answers purged"
        until(lambda: len(velox.worker_pids()) == 2 and pids[0] not in velox.worker_pids(), "another one is there")
        assert not is_kept(velox)
        assert told(other(velox)) == "hit"


def test_purge_that_can_not_be_is_refused_and_says_why(upstream: RecordingUpstream) -> None:
    def refused(velox: VeloxProcess, *options: str, token: str = TOKEN) -> tuple[int, str]:
        done = run_purge(velox, *options, token=token)
        assert not done.stdout
        return done.returncode, done.stderr

    with routed(config(upstream), admin_token=TOKEN) as velox:
        assert told(ask(velox)) == "stored"
        for options, code, why in (
            (("--route", "nope"), 1, "there is no route 'nope'"),
            (("--key", "nobody"), 1, "there is no key 'nobody'"),
            (("--key", ""), 1, "key: expected a name"),
            (("--older-than", "soon"), 2, "'soon': expected a time such as"),
        ):
            assert refused(velox, *options)[0] == code
            assert why in refused(velox, *options)[1]
        assert refused(velox, token="")[0] == 2
        assert refused(velox, token=KEYS["a"])[0] == 2
        assert is_kept(velox)
    with routed({**config(upstream), "routes": [{"name": "all", "to": "up"}]}, admin_token=TOKEN) as velox:
        assert "no route has a cache" in refused(velox)[1]
    with routed(config(upstream), admin_token=TOKEN, cache_bytes="0") as velox:
        assert "set VELOX_CACHE_BYTES" in refused(velox)[1]


def test_purge_holds_over_an_upgrade(upstream: RecordingUpstream, model: Model) -> None:
    """An answer that the version before was asked for, and keeps while the next one serves, is not found by that."""
    with routed(config(upstream), launcher=("env",), admin_token=TOKEN) as velox, ThreadPoolExecutor(1) as pool:
        assert told(ask(velox, asked("before"))) == "stored"
        model.may_answer.clear()
        late = pool.submit(ask, velox)
        upstream.wait(lambda: len(upstream.calls) == 2, "it is under way")
        done = run_velox({"VELOX_ADMIN_TOKEN": TOKEN}, "upgrade", "--admin", velox.admin_url.removeprefix("http://"))
        assert done.returncode == 0, done.stderr
        assert is_kept(velox, "before"), "the memory is the same"
        assert purge(velox) == "1 answer purged"
        model.may_answer.set()
        assert told(late.result()) == "miss"
        assert not is_kept(velox)
        assert not is_kept(velox, "before")
        assert told(ask(velox)) == "stored"
