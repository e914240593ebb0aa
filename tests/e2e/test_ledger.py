"""Records of calls: what the SDKs were told is what is kept, whoever is killed."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import random
import re
import resource
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import openai
import pytest

from tests.e2e.harness import KEY, VeloxProcess, until
from tests.e2e.raw_http import RawReply
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import MESSAGES, named, routed
from tests.e2e.tools import covers
from tests.recorded import Exchange, recorded
from velox.cli import main
from velox.ledger.record import name_bodies
from velox.shm.record_ring import RECORD_BYTES, RecordRing

Row = dict[str, Any]


@contextlib.contextmanager
def recording(folder: Path, *, sim: str = "--ttft 0 --token-rate 0", **more: str) -> Iterator[VeloxProcess]:
    with named("sim", sim=sim) as sims:
        config = {"upstreams": [sims["sim"]], "routes": [{"name": "all", "to": "sim"}]}
        with routed(config, ledger=str(folder), **more) as running:
            yield running


def usage(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[Row]:
    """Return what `velox usage` prints."""
    capsys.readouterr()
    environ = {"VELOX_LEDGER": str(folder), "VELOX_API_KEYS": KEY}
    assert main(["usage", "--format", "jsonl", *arguments], environ) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def n_kept(folder: Path) -> int:
    n = 0
    for path in folder.glob("calls-*.db"):
        with (
            contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db,
            contextlib.suppress(sqlite3.OperationalError),  # it is being made
        ):
            n += db.execute("SELECT count(*) FROM call").fetchone()[0]
    return n


def ask(velox: VeloxProcess, model: str = "m", **more: Any) -> openai.types.CompletionUsage:
    answer = velox.openai().chat.completions.create(model=model, messages=MESSAGES, **more)
    assert answer.usage is not None
    return answer.usage


def ledger_pid(velox: VeloxProcess) -> int:
    """Return the process that has the store open."""

    def found() -> list[int]:
        return [pid for pid in velox.child_pids() if any("ledger.db" in name for name in open_files(pid))]

    until(lambda: bool(found()), "the ledger has its store open")
    return found()[0]


def open_files(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                yield os.readlink(fd)


@covers("VELOX_LEDGER")
def test_calls_are_recorded_as_the_sdk_was_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens by key, upstream and model; streams, too, whose usage the client did not ask for."""
    folder = tmp_path / "ledger"
    with recording(folder) as velox:
        told = [ask(velox, model=f"m-{n % 2}") for n in range(6)]
        stream = velox.openai().chat.completions.create(model="m-s", messages=MESSAGES, stream=True)
        n_chunks = sum(bool(chunk.choices[0].delta.content) for chunk in stream)
        until(lambda: n_kept(folder) == 7, "all are kept while it runs")

    rows = usage(folder, capsys, "--calls")
    assert sum(row["input_tokens"] for row in rows if row["model"] != "m-s") == sum(each.prompt_tokens for each in told)
    assert sum(row["output_tokens"] for row in rows if row["model"] != "m-s") == sum(
        each.completion_tokens for each in told
    )
    (streamed,) = [row for row in rows if row["model"] == "m-s"]
    assert (streamed["flags"], streamed["output_tokens"]) == ("stream", n_chunks)
    facts = {(row["upstream"], row["route"], row["status"], row["reason"]) for row in rows}
    assert facts == {("sim", "all", 200, "ok")}
    assert len({row["key"] for row in rows}) == 1 and KEY not in str(rows)
    assert [row["calls"] for row in usage(folder, capsys, "--by", "model")] == [3, 3, 1]
    (day,) = usage(folder, capsys)
    assert (day["calls"], day["unpriced"], day["cost_usd"]) == (7, 7, None)


def test_calls_count_for_team_user_and_tags_of_their_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the file of keys names them."""
    folder, keys = tmp_path / "ledger", tmp_path / "keys.yaml"
    keys.write_text(
        "- {name: ci, key: vk-ci, team: red, user: ada@example.com, tags: [batch, eu]}\n- {key: vk-plain}\n"
    )
    with recording(folder, api_keys_file=str(keys)) as velox:
        for key, n in (("vk-ci", 2), ("vk-plain", 1)):
            for _ in range(n):
                velox.openai(api_key=key).chat.completions.create(model="m", messages=MESSAGES)

    for by, groups in (
        ("team", {"red": 2, "": 1}),
        ("user", {"ada@example.com": 2, "": 1}),
        ("tag", {"batch": 2, "eu": 2}),
    ):
        assert {row[by]: row["calls"] for row in usage(folder, capsys, "--by", by)} == groups
    (by_day,) = usage(folder, capsys, "--team", "red", "--tag", "eu")
    assert by_day["calls"] == 2
    rows = usage(folder, capsys, "--calls", "--user", "ada@example.com")
    assert [(row["team"], row["tags"]) for row in rows] == [("red", "batch,eu")] * 2


def counted(velox: VeloxProcess, tag: str) -> dict[str, int]:
    """Return the calls under a tag, as the admin API has them."""
    shown: Any = velox.admin(f"/api/v1/usage?by=tag&tag={quote(tag)}").json()["data"]
    return {row["tag"]: row["calls"] for row in shown}


@covers("VELOX_REQUEST_TAGS")
def test_calls_count_under_what_their_requests_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the tags of their keys, which budgets go by alone; not where the setting does not name it."""
    folder, keys = tmp_path / "ledger", tmp_path / "keys.yaml"
    keys.write_text("- {name: ci, key: vk-ci, tags: [eu]}\n- {name: night, key: vk-night, tags: [nightly]}\n")
    budgets = '[{"per": "tag", "tags": ["nightly"], "tokens": 1, "window": "day"}]'
    more = {"api_keys_file": str(keys), "request_tags": "tags,user", "budgets": budgets}
    with recording(folder, **more) as velox:
        for user, headers in (
            ("ada", {"x-velox-tags": "nightly, <b>,x", "x-velox-session": "s1"}),
            ("bob", {"x-velox-tags": "nightly"}),
            ("ada", {}),
        ):
            velox.openai(api_key="vk-ci").chat.completions.create(
                model="m", messages=MESSAGES, user=user, extra_headers=headers
            )
        until(lambda: counted(velox, "user: ada") == {"user: ada": 2}, "the sums are kept while it runs")
    found = {row["tag"]: row["calls"] for row in usage(folder, capsys, "--by", "tag")}
    of_requests = {"request: nightly": 2, "request: <b>": 1, "request: x": 1, "user: ada": 2, "user: bob": 1}
    assert found == {"eu": 3, **of_requests}
    rows = usage(folder, capsys, "--calls", "--tag", "user: bob")
    assert [row["tags"] for row in rows] == ["eu,request: nightly,user: bob"]
    with recording(folder, **more) as velox:
        assert velox.admin("/api/v1/budgets").json()["data"] == []
        velox.openai(api_key="vk-night").chat.completions.create(model="m", messages=MESSAGES)


def test_calls_cost_what_their_prices_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To the nano-dollar, by the user's own price and by that of the table; one without a price is counted as such."""
    folder, prices = tmp_path / "ledger", tmp_path / "prices.yaml"
    prices.write_text("prices:\n  - {model: own, input: 1.5, output: 6}\n")
    told = {"prompt_tokens": 1000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 400}}
    reply = json.dumps({"choices": [], "usage": told}).encode()

    async def answer(call: Call) -> None:
        await call.reply(200, JSON, reply)

    with RecordingUpstream() as upstream, upstream.playing(answer):
        entry = {"name": "one", "provider": "openai", "origin": upstream.upstream.url, "key": "env:MODEL_KEY"}
        more = {"ledger": str(folder), "prices": str(prices)}
        with routed({"upstreams": [entry]}, MODEL_KEY="sk-model-0123456789", **more) as velox:
            for model in ("own", "gpt-4o", "nobody-knows-it"):
                body = json.dumps({"model": model, "messages": []}).encode()
                assert velox.request("POST", "/v1/chat/completions", body).status == 200

            metrics = velox.metrics()
    assert metrics['velox_upstream_cost_usd_total{upstream="one"}'] == pytest.approx(0.00366)
    assert metrics['velox_upstream_unpriced_calls_total{upstream="one"}'] == 1
    told = {"input": 3000, "output": 30, "cached": 1200}
    for kind, n in told.items():
        assert metrics[f'velox_upstream_tokens_total{{kind="{kind}",upstream="one"}}'] == n
    assert (metrics["velox_ledger_dropped_calls_total"], metrics["velox_ledger_unprotected_calls_total"]) == (0, 0)
    assert metrics["velox_ledger_records_total"] + metrics["velox_ledger_waiting_records"] >= 3

    rows = {row["model"]: row for row in usage(folder, capsys, "--calls")}
    assert rows["own"]["cost_usd"] == "0.001560000"
    # 600 tokens at 2.50 $ a million, 400 of the cache at 1.25, 10 at 10.
    assert rows["gpt-4o"]["cost_usd"] == "0.002100000"
    assert rows["nobody-knows-it"]["cost_usd"] is None
    assert {row["cached_tokens"] for row in rows.values()} == {400}
    (day,) = usage(folder, capsys)
    assert (day["unpriced"], day["cost_usd"]) == (1, "0.003660000")


def test_case_14_what_did_no_work_is_not_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refusals of Velox's own, errors of the upstream, questions that are no model's; of two attempts the one that
    answered."""
    folder = tmp_path / "ledger"
    n_calls = 0

    async def fails_first(call: Call) -> None:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 1:
            await call.reply(503, JSON, b'{"error":{"message":"busy"}}')
        else:
            await call.reply(200, JSON, b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}')

    with RecordingUpstream() as upstream:
        entry = {"name": "one", "origin": upstream.upstream.url}
        with routed({"upstreams": [entry]}, ledger=str(folder)) as velox:
            with upstream.playing(fails_first):
                assert velox.request("POST", "/v1/chat/completions", b'{"model":"m","messages":[]}').status == 200
            assert velox.request("POST", "/v1/chat/completions", b"{").status == 400
            velox.request("GET", "/v1/models")

    (row,) = usage(folder, capsys, "--calls")
    assert (row["attempt"], row["input_tokens"], row["output_tokens"], row["flags"]) == (2, 3, 4, "")


def test_calls_of_one_attempt_that_were_answered_are_recorded_though_it_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts for a model of one text a call: the third is refused."""
    folder = tmp_path / "ledger"

    async def embed(call: Call) -> None:
        if json.loads(call.body)["inputText"] == "2":
            await call.reply(400, (*JSON, ("x-amzn-errortype", "ValidationException")), b'{"message":"no"}')
        else:
            await call.reply(200, JSON, b'{"embedding":[1],"inputTextTokenCount":1000}')

    with RecordingUpstream() as upstream, upstream.playing(embed):
        entry = {"name": "one", "provider": "bedrock", "region": "us-east-1", "origin": upstream.upstream.url}
        entry = {**entry, "key": "env:MODEL_KEY", "concurrency": 1}
        with routed({"upstreams": [entry]}, ledger=str(folder), MODEL_KEY="bedrock-key-0123456789") as velox:
            body = {"model": "amazon.titan-embed-text-v2:0", "input": ["0", "1", "2", "3"]}
            assert velox.request("POST", "/v1/embeddings", json.dumps(body).encode()).status == 400
        assert len(upstream.calls) == 3

    (row,) = usage(folder, capsys, "--calls")
    assert (row["status"], row["flags"]) == (400, "estimated|lost")
    assert (row["input_tokens"], row["output_tokens"], row["cost_usd"]) == (2000, 0, "0.000040000")


def test_case_12_client_that_left_pays_for_what_came(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The flags say that it is a guess, and why."""
    folder = tmp_path / "ledger"
    with recording(folder, sim="--ttft 0 --token-rate 50") as velox:
        with velox.openai().chat.completions.create(model="m", messages=MESSAGES, stream=True) as stream:
            next(iter(stream))
            next(iter(stream))
        until(lambda: n_kept(folder) == 1, "it is kept")

    (row,) = usage(folder, capsys, "--calls")
    assert row["reason"] == "client_closed" and row["flags"] == "stream|estimated|aborted"
    assert row["output_tokens"] >= 1


def test_case_12_cut_and_silent_replies_are_estimated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stream that breaks counts by its events, an answer that tells nothing by the estimate. The flags say so."""
    folder = tmp_path / "ledger"

    async def answer(call: Call) -> None:
        if b"cut" in call.body:
            await call.head(200, (("content-type", "text/event-stream"),))
            for _ in range(3):
                await call.data(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
            call.lose()
        else:
            await call.reply(200, JSON, b'{"choices":[]}')

    with RecordingUpstream() as upstream, upstream.playing(answer):
        entry = {"name": "one", "origin": upstream.upstream.url}
        with routed({"upstreams": [entry]}, ledger=str(folder)) as velox:
            with contextlib.suppress(openai.APIError, httpx.HTTPError):
                for _ in velox.openai().chat.completions.create(model="cut", messages=MESSAGES, stream=True):
                    pass
            assert velox.request("POST", "/v1/chat/completions", b'{"model":"silent","max_tokens":9}').status == 200

    cut, silent = sorted(usage(folder, capsys, "--calls"), key=lambda row: row["model"])
    assert (cut["flags"], cut["output_tokens"], cut["status"]) == ("stream|estimated|cut", 3, 502)
    assert (silent["flags"], silent["output_tokens"], silent["reason"]) == ("estimated", 9, "ok")


def test_case_13_ids_of_rows_are_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of clients and of upstreams repeat, or are null: no row is lost by it."""
    folder = tmp_path / "ledger"

    async def answer(call: Call) -> None:
        told = "null" if b"null" in call.body else '"chatcmpl-1"'
        await call.reply(200, JSON, f'{{"id":{told},"choices":[],"usage":{{"prompt_tokens":1}}}}'.encode())

    with RecordingUpstream() as upstream, upstream.playing(answer):
        entry = {"name": "one", "origin": upstream.upstream.url}
        with routed({"upstreams": [entry]}, ledger=str(folder)) as velox:
            told = []
            for model in ("m", "m", "null", "null"):
                body = json.dumps({"model": model, "messages": []}).encode()
                reply = velox.request("POST", "/v1/chat/completions", body, {"x-request-id": "the-same"})
                told.append(reply.header("x-velox-request-id"))

    rows = usage(folder, capsys, "--calls")
    assert [row["id"] for row in rows] == told and len(set(told)) == 4


def test_case_14_attempts_that_worked_are_linked_and_each_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that was given up may have worked: its prompt counts. The one that answered counts as it tells."""
    folder = tmp_path / "ledger"

    async def stalls(call: Call) -> None:
        await call.silence()

    with named("two", two="--ttft 0 --token-rate 0") as sims, RecordingUpstream() as upstream, upstream.playing(stalls):
        one = {"name": "one", "origin": upstream.upstream.url, "timeouts": {"first_byte": "200ms"}}
        route = {"name": "all", "to": "one", "fallback": ["two"]}
        config = {"upstreams": [one, sims["two"]], "routes": [route]}
        with routed(config, ledger=str(folder)) as velox:
            told = ask(velox, max_tokens=5)

    lost, answered = sorted(usage(folder, capsys, "--calls"), key=lambda row: row["attempt"])
    assert lost["id"] == answered["id"]
    assert [(row["attempt"], row["upstream"]) for row in (lost, answered)] == [(1, "one"), (2, "two")]
    assert (lost["flags"], lost["output_tokens"]) == ("estimated|lost", 0) and lost["input_tokens"] > 0
    assert (answered["flags"], answered["output_tokens"]) == ("", told.completion_tokens)


def test_costs_are_summed_by_the_programs_of_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever one writes there: few families. In the command, the admin API, and each call's record."""
    folder = tmp_path / "ledger"
    body = json.dumps({"model": "own", "messages": MESSAGES, "max_tokens": 5}).encode()
    with recording(folder) as velox:
        ask(velox, max_tokens=5)
        for agent in (
            "claude-cli/2.1.119 (external, cli)",
            "codex_cli_rs/0.125.0",
            "codex_exec/0.63.0",
            "my own/1",
            None,
        ):
            headers = {} if agent is None else {"user-agent": agent}
            assert velox.request("POST", "/v1/chat/completions", body, headers).status == 200
        until(lambda: n_kept(folder) == 6, "all are kept while it runs")
        shown = velox.admin("/api/v1/usage?by=agent&agent=codex").json()["data"]
        both = velox.admin("/api/v1/usage?by=agent&tag=eu")
        calls = velox.admin("/api/v1/calls?agent=claude-code").json()["data"]
    assert isinstance(shown, list) and [(row["agent"], row["calls"]) for row in shown] == [("codex", 2)]
    assert (both.status, both.error()["field"]) == (400, "by")
    assert isinstance(calls, list) and [call["agent"] for call in calls] == ["claude-code"]

    rows = usage(folder, capsys, "--by", "agent")
    assert {row["agent"]: row["calls"] for row in rows} == {
        "claude-code": 1,
        "codex": 2,
        "openai-python": 1,
        "other": 2,
    }
    assert [row["agent"] for row in usage(folder, capsys, "--calls", "--agent", "codex")] == ["codex"] * 2
    environ = {"VELOX_LEDGER": str(folder), "VELOX_API_KEYS": KEY}
    assert main(["usage", "--by", "agent,tag"], environ) == 2
    assert "expected tag or agent" in capsys.readouterr().err


def test_client_that_asks_is_told_what_its_answer_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the head of an answer, behind a stream: what the record says. Who does not ask gets no such header."""
    folder, prices = tmp_path / "ledger", tmp_path / "prices.yaml"
    prices.write_text("prices:\n  - {model: own, input: 1.5, output: 6}\n")
    asking = {"x-velox-cost": "true"}
    with recording(folder, prices=str(prices)) as velox:

        def post(headers: dict[str, str], **more: object) -> RawReply:
            body = {"model": "own", "messages": MESSAGES, "max_tokens": 5, **more}
            return velox.request("POST", "/v1/chat/completions", json.dumps(body).encode(), headers)

        assert post({}).header("x-velox-cost") is None
        whole, streamed, unpriced = post(asking), post(asking, stream=True), post(asking, model="free")
        assert post({"x-velox-cost": "yes"}).status == 400
        sdk = velox.openai().chat.completions.create(
            model="own", messages=MESSAGES, stream=True, extra_headers=asking, max_tokens=5
        )
        assert len([chunk for chunk in sdk if chunk.choices and chunk.choices[0].delta.content]) == 5

    rows = usage(folder, capsys, "--calls")
    assert rows[1]["cost_usd"] == whole.header("x-velox-cost")
    assert float(rows[1]["cost_usd"]) > 0 and json.loads(whole.body)["usage"]["completion_tokens"] == 5
    assert streamed.header("x-velox-cost") is None
    assert streamed.body.endswith(f"data: [DONE]\n\n: x-velox-cost {rows[2]['cost_usd']}\n\n".encode())
    assert unpriced.header("x-velox-cost") == "unknown"


def test_client_that_asks_is_told_what_a_translated_answer_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the tokens of the upstream's own words."""
    folder, prices = tmp_path / "ledger", tmp_path / "prices.yaml"
    prices.write_text("prices:\n  - {model: own, input: 1000, output: 2000, cached: 100}\n")
    used = {"input_tokens": 10, "output_tokens": 3, "cache_read_input_tokens": 5}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "own",
        "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "hi"}],
        "usage": used,
    }

    async def answer(call: Call) -> None:
        await call.reply(200, JSON, json.dumps(message).encode())

    with RecordingUpstream() as upstream, upstream.playing(answer):
        entry = {"name": "one", "provider": "anthropic", "origin": upstream.upstream.url, "key": "env:MODEL_KEY"}
        more = {"ledger": str(folder), "prices": str(prices)}
        with routed({"upstreams": [entry]}, MODEL_KEY="sk-model-0123456789", **more) as velox:
            body = json.dumps({"model": "own", "messages": [{"role": "user", "content": "hi"}]}).encode()
            reply = velox.request("POST", "/v1/chat/completions", body, {"x-velox-cost": "true"})

    assert (reply.status, json.loads(reply.body)["choices"][0]["message"]["content"]) == (200, "hi")
    # 10 tokens at 1000 $ a million, 5 of the cache at 100, 3 at 2000.
    assert reply.header("x-velox-cost") == "0.016500000"
    (row,) = usage(folder, capsys, "--calls")
    assert row["cost_usd"] == "0.016500000"


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("provider", "path"), [("gemini", "enerateContent"), ("bedrock", "/converse")])
def test_copy_that_is_translated_is_recorded_as_its_answer_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], provider: str, path: str, is_stream: bool
) -> None:
    """In the words of its upstream's own API; the client's call as ever."""
    told = next(each for each in recorded(provider, path, stream=is_stream) if b"thoughtsToken" not in each.reply)
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
    own = {**chunk, "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}}

    async def answer(call: Call) -> None:
        kind = told.headers.get("content-type", "text/event-stream" if is_stream else "application/json")
        await call.reply(200, (("content-type", kind),), told.reply)

    async def serve(call: Call) -> None:
        body = b"data: %b\n\ndata: [DONE]\n\n" if is_stream else b"%b"
        kind = "text/event-stream" if is_stream else "application/json"
        await call.reply(200, (("content-type", kind),), body % json.dumps(own).encode())

    folder = tmp_path / "ledger"
    with RecordingUpstream() as main_one, RecordingUpstream() as shadow:
        more = {"region": "eu-central-1"} if provider == "bedrock" else {}
        config = {
            "upstreams": [
                {"name": "one", "provider": "openai", "origin": main_one.upstream.url, "key": "env:MODEL_KEY"},
                {"name": "two", "provider": provider, "origin": shadow.upstream.url, "key": "env:MODEL_KEY", **more},
            ],
            "routes": [{"name": "all", "to": "one", "mirror": {"to": "two", "percent": 100}}],
        }
        with (
            main_one.playing(serve),
            shadow.playing(answer),
            routed(config, ledger=str(folder), MODEL_KEY="sk-model-0123456789") as velox,
        ):
            body = {"model": "gemini-own", "messages": MESSAGES, "stream": is_stream}
            assert velox.request("POST", "/v1/chat/completions", json.dumps(body).encode()).status == 200
            until(lambda: n_kept(folder) == 2, "both are recorded")

    copy, call = sorted(usage(folder, capsys, "--calls"), key=lambda row: int(row["attempt"]))
    assert (call["input_tokens"], call["output_tokens"], call["flags"]) == (5, 3, "stream" if is_stream else "")
    assert (copy["input_tokens"], copy["output_tokens"]) == tokens_of(told)
    assert copy["flags"] == ("stream|mirror" if is_stream else "mirror")


def tokens_of(told: Exchange) -> tuple[int, int]:
    """Return those of prompt and answer, as a reply of Google's or Bedrock's tells them last, in plain cases."""
    found = re.findall(rb'"(?:promptTokenCount|inputTokens)": ?(\d+)', told.reply)
    made = re.findall(rb'"(?:candidatesTokenCount|outputTokens)": ?(\d+)', told.reply)
    return int(found[-1]), int(made[-1])


@pytest.mark.parametrize("who", ["worker", "ledger", "supervisor"])
@pytest.mark.more
def test_case_15_no_record_is_lost_or_doubled_when_a_process_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], who: str
) -> None:
    """Killed again and again under load: what the clients were answered is recorded once each; what a killed worker had
    open is there, too, as estimated."""
    folder = tmp_path / "ledger"
    answered: list[int] = []
    chance = random.Random(7)
    for _ in range(2 if who == "supervisor" else 1):
        with recording(folder, sim="--ttft 5ms --token-rate 0", workers="2") as velox, Load(velox, answered) as load:
            for _ in range(6 if who != "supervisor" else 1):
                reached = len(answered) + chance.randrange(20, 60)
                load.until_answered(reached)
                if who == "worker":
                    os.kill(chance.choice(velox.worker_pids()), signal.SIGKILL)
                elif who == "ledger":
                    os.kill(ledger_pid(velox), signal.SIGKILL)
                else:
                    load.stop()
                    velox.kill()
            if who != "supervisor":
                load.until_answered(len(answered) + 20)
    with recording(folder, workers="2"):
        pass  # what a killed gateway left in its rings is kept when it ends

    rows = usage(folder, capsys, "--calls")
    assert len({(row["id"], row["attempt"]) for row in rows}) == len(rows)
    # A process may die between the last byte of an answer and its record: then the estimate is what there is.
    assert len(answered) <= len(rows) <= len(answered) + 40, "some were on their way when a process died"
    assert all("estimated" in row["flags"] for row in rows if row["reason"] == "killed")
    assert sum(row["calls"] for row in usage(folder, capsys)) == len(rows)
    assert sum(row["output_tokens"] for row in usage(folder, capsys)) == sum(row["output_tokens"] for row in rows)


class Load:
    """Four threads that ask all the time. answered: gets the output tokens of each answer that came whole."""

    def __init__(self, velox: VeloxProcess, answered: list[int]) -> None:
        self._velox = velox
        self._answered = answered
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(4)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def until_answered(self, n: int) -> None:
        until(lambda: len(self._answered) >= n, f"{n} answers", 30.0)

    def _ask(self) -> None:
        while not self._stopped.is_set():
            with contextlib.suppress(openai.APIError, OSError):
                self._answered.append(ask(self._velox, max_tokens=5).completion_tokens)


def no_database(path: Path) -> None:
    path.write_bytes(b"this is no database" * 1000)


def newer_schema(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (no_database, "file is not a database"),
        (newer_schema, "has schema 99, written by a newer Velox"),
        (Path.mkdir, "unable to open database file"),
    ],
)
def test_case_17_store_that_fails_holds_no_request_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], None], told: str
) -> None:
    """The log says why, readiness stays, and all is kept when it can be."""
    folder = tmp_path / "ledger"
    folder.mkdir()
    spoil(folder / "ledger.db")
    with recording(folder) as velox:
        for _ in range(3):
            ask(velox)
        velox.wait_log(lambda line: "records can't be stored" in line and told in line)
        assert velox.admin("/readyz").status == 200
        assert velox.metric("velox_ledger_waiting_records") >= 3
        (folder / "ledger.db").rename(folder / "spoilt")
        until(lambda: n_kept(folder) == 3, "they are kept")
    assert len(usage(folder, capsys, "--calls")) == 3


def test_case_17_full_disk_loses_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While the ledger's process can write nothing: requests are served, records wait. It goes on by itself."""
    folder = tmp_path / "ledger"
    with recording(folder) as velox:
        ask(velox)
        until(lambda: n_kept(folder) == 1, "there is room")
        pid = ledger_pid(velox)
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
        for _ in range(5):
            ask(velox)
        velox.wait_log(lambda line: "records can't be stored" in line)
        assert velox.admin("/readyz").status == 200
        assert velox.metric("velox_ledger_waiting_records") >= 5
        assert velox.metric("velox_ledger_dropped_calls_total") == 0
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        velox.wait_log(lambda line: "ledger: records can be stored again" in line)
        until(lambda: n_kept(folder) == 6, "they are kept")
        assert ledger_pid(velox) == pid
    assert sum(row["calls"] for row in usage(folder, capsys)) == 6


def nearly_full(folder: Path, n_free: int) -> RecordRing:
    """Make a ring in which so many records wait already, and a database that can't be used."""
    folder.mkdir()
    (folder / "ledger.db").write_bytes(b"this is no database" * 1000)
    ring = RecordRing(folder / "0.ring", (1 << 20) // RECORD_BYTES)
    ring.begin()
    while ring.head < ring.n_records - n_free:
        (body,) = name_bodies(ring.next_name(), "waits")
        ring.put(body)
    return ring


@covers("VELOX_LEDGER_FULL")
def test_full_ring_refuses_where_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As soon as a call could not be recorded: nothing is dropped, and what needs no record is answered. It passes."""
    folder = tmp_path / "ledger"
    ring = nearly_full(folder, 90)
    with recording(folder, ledger_ring="1MiB", workers="1", ledger_full="refuse") as velox:
        velox.wait_log(lambda line: "records can't be stored" in line)
        n_answered = 0
        with pytest.raises(openai.InternalServerError) as caught:
            for _ in range(100):
                velox.openai(max_retries=0).chat.completions.create(model="m", messages=MESSAGES)
                n_answered += 1
        assert caught.value.status_code == 503 and caught.value.code == "ledger_full"
        assert 1 <= n_answered < 90 and ring.n_dropped == 0
        assert velox.admin("/readyz").status == 200
        (folder / "ledger.db").unlink()
        until(lambda: n_kept(folder) == n_answered, "they are kept")
        ask(velox)
    assert len(usage(folder, capsys, "--calls")) == n_answered + 1


@covers("VELOX_LEDGER_RING")
def test_full_ring_keeps_sums_and_holds_no_request_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the database away longer than the ring holds: what no record tells stands in the sums."""
    folder = tmp_path / "ledger"
    ring = nearly_full(folder, 20)
    with recording(folder, ledger_ring="1MiB", workers="1") as velox:
        assert (folder / "1.ring").stat().st_size == (folder / "0.ring").stat().st_size
        velox.wait_log(lambda line: "records can't be stored" in line)
        for _ in range(30):
            ask(velox)
        until(lambda: ring.n_dropped > 0, "some found no room")
        assert velox.metric("velox_ledger_dropped_calls_total") == ring.dropped[0] > 0
        assert velox.metric("velox_ledger_waiting_records") >= ring.n_records
        (folder / "ledger.db").unlink()
        until(lambda: n_kept(folder) > 0, "the others are kept")
    assert sum(row["calls"] for row in usage(folder, capsys)) == 30
    by_key = usage(folder, capsys, "--by", "key")
    assert "(not recorded)" in {row["key"] for row in by_key}


@covers("VELOX_LEDGER_DAYS")
def test_case_19_old_calls_are_dropped_with_their_file(tmp_path: Path) -> None:
    """Once an hour, the first time at the start."""
    folder = tmp_path / "ledger"
    folder.mkdir()
    old, new = datetime.date.today() - datetime.timedelta(days=5), datetime.date.today() - datetime.timedelta(days=2)
    for day in (old, new):
        (folder / f"calls-{day}.db").touch()
    with recording(folder, ledger_days="3"):
        until(lambda: not (folder / f"calls-{old}.db").exists(), "the old file is gone")
        assert (folder / f"calls-{new}.db").exists()


def test_folder_of_another_gateway_is_refused(tmp_path: Path) -> None:
    """Two would write into the same rings."""
    folder = tmp_path / "ledger"
    with recording(folder) as _:
        config: dict[str, object] = {"upstreams": [{"name": "one", "origin": "http://127.0.0.1:9"}]}
        with pytest.raises(AssertionError, match="another gateway uses it"), routed(config, ledger=str(folder)):
            pass


def test_ring_that_is_none_is_not_written_over(tmp_path: Path) -> None:
    """The gateway does not start, and says which file it is: there may be records in it."""
    folder = tmp_path / "ledger"
    folder.mkdir(mode=0o700)
    (folder / "0.ring").write_bytes(b"this is no ring" * 1000)
    config: dict[str, object] = {"upstreams": [{"name": "one", "origin": "http://127.0.0.1:9"}]}
    with pytest.raises(AssertionError, match=r"0\.ring: it is no ring of records"), routed(config, ledger=str(folder)):
        pass
    assert (folder / "0.ring").read_bytes() == b"this is no ring" * 1000


def test_database_of_a_newer_velox_is_left_alone_and_records_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a downgrade: requests are served, the log says why, and the newer one finds all records."""
    folder = tmp_path / "ledger"
    folder.mkdir(mode=0o700)
    with contextlib.closing(sqlite3.connect(folder / "ledger.db")) as db:
        db.execute("PRAGMA user_version = 99")
    before = (folder / "ledger.db").read_bytes()
    with recording(folder) as velox:
        ask(velox)
        velox.wait_log(lambda line: "ledger.db has schema 99, written by a newer Velox" in line)
        assert velox.admin("/readyz").status == 200
        assert velox.metric("velox_ledger_waiting_records") >= 1
    assert (folder / "ledger.db").read_bytes() == before
    (folder / "ledger.db").unlink()
    with recording(folder):
        until(lambda: n_kept(folder) == 1, "it is kept")
    assert len(usage(folder, capsys, "--calls")) == 1


def test_nothing_is_recorded_without_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And `velox usage` says so."""
    read: Callable[[], int] = lambda: main(["usage"], {"VELOX_API_KEYS": KEY})  # noqa: E731
    assert read() == 1
    assert "VELOX_LEDGER is not set" in capsys.readouterr().err


def test_commands_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each, but for the folder: what they print is of the call that was made."""
    folder = tmp_path / "ledger"
    with recording(folder) as velox:
        ask(velox, model="shown")
    page = (Path(__file__).parents[2] / "docs/ledger.md").read_text()
    commands = [line.partition("#")[0].split()[1:] for line in page.splitlines() if line.startswith("velox usage")]
    # tests/sockets/test_export.py, tests/unit/ledger/test_damage.py
    commands = [each for each in commands if "--to" not in each and "--rebuild" not in each]
    assert len(commands) == 5
    for arguments in commands:
        capsys.readouterr()
        assert main(arguments, {"VELOX_LEDGER": str(folder), "VELOX_API_KEYS": KEY}) == 0
        head, *rows = capsys.readouterr().out.splitlines()
        assert len(rows) == ("jsonl" not in arguments)
        names_models = "--calls" in arguments or "key,model" in arguments
        assert ("shown" in "".join((head, *rows))) == names_models
