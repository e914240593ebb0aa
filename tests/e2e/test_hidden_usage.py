"""Clients that would keep from the gateway what their answers cost: by the way they ask, and by the time they leave.

The upstream thinks for 20,000 tokens and says ten words. It tells its usage behind them, if it is asked to.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sqlite3
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.harness import KEY, VeloxProcess, until
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, SSE, RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.tools import covers
from tests.e2e.upstreams import chat_chunk
from tests.patience import PROMPT_S
from velox.cli import main

Row = dict[str, Any]
N_WORDS, N_THOUGHT, N_PROMPT = 10, 19_990, 1000
# $2 and $8 a million, as of o3: what an answer really costs, in nano-dollars.
COST_NANO = N_PROMPT * 2000 + (N_WORDS + N_THOUGHT) * 8000
WORDS = b"".join(chat_chunk(f"word{n} ") for n in range(N_WORDS))
USAGE = (
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[],"usage":%b}\n\n'
    % json.dumps({"prompt_tokens": N_PROMPT, "completion_tokens": N_WORDS + N_THOUGHT}).encode()
)
DONE = b"data: [DONE]\n\n"


class Thinker:
    """Answers as a model that reasons. waits: with its usage, for the test's step. goes_on: with words, for ever."""

    def __init__(self) -> None:
        self.waits = False
        self.goes_on = False

    async def answer(self, call: Call) -> None:
        asked = json.loads(call.body)
        await call.head(200, SSE)
        await call.data(WORDS)
        while self.goes_on:
            await call.data(WORDS * 20)
            await call.step()
        if self.waits:
            await call.step()
        if (asked.get("stream_options") or {}).get("include_usage") is True:
            await call.data(USAGE)
        await call.data(DONE)
        await call.end()


class House:
    """A gateway before a Thinker, with a ledger, prices and budgets."""

    def __init__(self, folder: Path, *, http2: bool = False) -> None:
        self.ledger = folder / "ledger"
        self.prices = folder / "prices.yaml"
        self.prices.write_text(
            "prices:\n  - {model: 'o3*', input: 2, output: 8}\n  - {model: quick, input: 2, output: 8}\n"
        )
        self.thinker = Thinker()
        self.upstream = RecordingUpstream(http2=http2)

    @contextlib.contextmanager
    def running(self, *budgets: Row, **more: str) -> Iterator[VeloxProcess]:
        with self.upstream, self.upstream.playing(self.thinker.answer):
            entry = {"name": "one", "origin": self.upstream.upstream.url, "key": "env:MODEL_KEY"}
            config = {"upstreams": [entry], "budgets": list(budgets)}
            common = {"MODEL_KEY": "sk-model-0123456789", "prices": str(self.prices), "ledger": str(self.ledger)}
            env = {name: value for name, value in self.upstream.env().items() if name == "VELOX_UPSTREAM_HTTP2"}
            with routed(config, **common, **env, **more) as velox:
                yield velox

    def rows(self, n: int, capsys: pytest.CaptureFixture[str]) -> list[Row]:
        """Return the records of calls, once there are `n`."""
        until(lambda: _n_kept(self.ledger) == n, "all are recorded")
        capsys.readouterr()
        environ = {"VELOX_LEDGER": str(self.ledger), "VELOX_API_KEYS": KEY}
        assert main(["usage", "--format", "jsonl", "--calls"], environ) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def _n_kept(folder: Path) -> int:
    n = 0
    for path in folder.glob("calls-*.db"):
        with (
            contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db,
            contextlib.suppress(sqlite3.OperationalError),  # it is being made
        ):
            n += db.execute("SELECT count(*) FROM call").fetchone()[0]
    return n


def asking(options: str = "null", model: str = "o3", prefix: str = "") -> bytes:
    rest = f'"model":"{model}","messages":[],"max_tokens":20100,"stream":true,"stream_options":{options}'
    return f"{{{prefix}{rest}}}".encode()


def spent(velox: VeloxProcess) -> float:
    return next(n for name, n in velox.metrics().items() if name.startswith("velox_budget_spent"))


STRICT = {"per": "gateway", "usd": "0.5", "window": "day", "strict": True}
# A value in brackets, an object, an escape, and much before them.
HIDING = [
    ('{"include_\\u006fbfuscation":false}', ""),
    ('{"include_usag\\u0065":false,"x":[1,{}]}', ""),
    ('{"include_usage":false}', '"user":"%s",' % ("x" * 1_100_000)),
    ('{"include_usage":true,"include_usage":false}', ""),
]


@pytest.mark.parametrize(("options", "prefix"), HIDING)
def test_strict_budget_is_not_passed_by_the_way_a_stream_is_asked_for(house: House, options: str, prefix: str) -> None:
    """Three answers cost $0.486; a fourth does not fit into what is left of $0.54."""
    with house.running({**STRICT, "usd": "0.54"}, bytes_per_token="64") as velox:
        statuses = [
            velox.request("POST", "/v1/chat/completions", asking(options, prefix=prefix)).status for _ in range(5)
        ]

        assert statuses == [200, 200, 200, 429, 429]
        until(lambda: spent(velox) == pytest.approx(3 * COST_NANO / 1e9), "they are settled as they cost")


def test_options_that_are_no_object_are_refused_where_tokens_are_counted(house: House) -> None:
    with house.running(STRICT) as velox:
        reply = velox.request("POST", "/v1/chat/completions", asking("[]"))

        assert reply.status == 400 and json.loads(reply.body)["error"]["param"] == "stream_options"


@contextlib.contextmanager
def reader(velox: VeloxProcess, http2: bool) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=velox.base_url.removesuffix("/v1"),
        http1=not http2,
        http2=http2,
        headers={"authorization": f"Bearer {KEY}", "content-type": "application/json"},
    ) as client:
        yield client


def leave_after_the_last_word(client: httpx.Client, model: str = "o3") -> None:
    with client.stream("POST", "/v1/chat/completions", content=asking(model=model)) as reply:
        seen = b""
        for piece in reply.iter_raw():
            seen += piece
            if f"word{N_WORDS - 1}".encode() in seen:
                break
    client.close()


@covers("VELOX_USAGE_DRAIN")
@pytest.mark.parametrize("upstream_http2", [False, True])
@pytest.mark.parametrize("client_http2", [False, True])
def test_client_that_leaves_after_the_last_word_pays_for_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], client_http2: bool, upstream_http2: bool
) -> None:
    """M3: the upstream is read on to its usage, of a model that reasons; its client is gone meanwhile."""
    house = House(tmp_path, http2=upstream_http2)
    house.thinker.waits = True
    with house.running(STRICT, listen_http2="on") as velox:
        with reader(velox, client_http2) as client:
            leave_after_the_last_word(client)
        call = house.upstream.wait_call()
        velox.wait_metric("velox_inflight_requests", lambda n: n == 1)
        until(lambda: velox.metric("velox_client_connections") == 0, "the client is gone")
        assert not call.left_s
        house.upstream.step()
        (row,) = house.rows(1, capsys)
        until(lambda: spent(velox) == pytest.approx(COST_NANO / 1e9), "it costs what it did")

    assert sorted(row["flags"].split("|")) == ["aborted", "drained", "stream"]
    assert (row["output_tokens"], row["reason"], call.left_s) == (N_WORDS + N_THOUGHT, "client_closed", 0.0)


@pytest.mark.parametrize("when", ["off", "reasoning"])
def test_stream_that_is_not_read_on_is_cancelled_at_once(
    house: House, capsys: pytest.CaptureFixture[str], when: str
) -> None:
    """Where it is off, and of a model that does not reason. A strict budget counts what was held."""
    house.thinker.waits = True
    model = "o3" if when == "off" else "quick"
    with house.running(STRICT, usage_drain=when) as velox:
        began_s = time.monotonic()
        with reader(velox, http2=False) as client:
            leave_after_the_last_word(client, model)
            began_s = time.monotonic()
        took_s = house.upstream.wait_left(house.upstream.wait_call()) - began_s
        assert took_s < PROMPT_S
        (row,) = house.rows(1, capsys)
        until(lambda: spent(velox) > 20_100 * 8000 / 1e9, "it counts as it was held")

    assert sorted(row["flags"].split("|")) == ["aborted", "estimated", "stream"]
    assert row["output_tokens"] == (20_100 if when == "off" else N_WORDS)


@covers("VELOX_USAGE_DRAIN_TIMEOUT", "VELOX_USAGE_DRAIN_BYTES", "VELOX_USAGE_DRAINS")
@pytest.mark.parametrize(
    "bound", [{"usage_drain_timeout": "100ms"}, {"usage_drain_bytes": "4KiB"}, {"usage_drains": "0"}]
)
def test_drain_has_bounds_beyond_which_the_hold_counts(
    house: House, capsys: pytest.CaptureFixture[str], bound: dict[str, str]
) -> None:
    """In time, in bytes, and in their number."""
    house.thinker.goes_on = "usage_drain_bytes" in bound
    house.thinker.waits = True
    with house.running(STRICT, usage_drain="all", **bound) as velox:
        with reader(velox, http2=False) as client:
            leave_after_the_last_word(client)
        call = house.upstream.wait_call()
        if house.thinker.goes_on:
            house.upstream.step(3)
        house.upstream.wait_left(call)
        (row,) = house.rows(1, capsys)
        until(lambda: spent(velox) > 20_100 * 8000 / 1e9, "it counts as it was held")

    assert sorted(row["flags"].split("|")) == ["aborted", "estimated", "stream"]


def test_drain_holds_its_place_in_limits_of_concurrency_until_it_is_over(house: House) -> None:
    """As the upstream works for it."""
    house.thinker.waits = True
    with house.running(STRICT, rate_limit_concurrency="1", access_log="all") as velox:
        with reader(velox, http2=False) as client:
            leave_after_the_last_word(client)
        until(lambda: velox.metric("velox_client_connections") == 0, "the client is gone")
        body = json.dumps({"model": "quick", "messages": []}).encode()
        assert velox.request("POST", "/v1/chat/completions", body).status == 429
        house.upstream.step()
        line = velox.wait_access(lambda line: line["reason"] == "client_closed")
        house.thinker.waits = False
        assert velox.request("POST", "/v1/chat/completions", body).status == 200

    assert line["phase"] == "drain" and line["status"] == 499
    assert line["bytes_out"] == len(WORDS) and isinstance(line["bytes_in"], int) and line["bytes_in"] > 0


def test_drain_ends_with_the_worker(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    """A stop does not wait for a stream that nobody reads, and records it."""
    house.thinker.waits = True
    with house.running(STRICT, usage_drain_timeout="1h", drain_timeout="1h") as velox:
        with reader(velox, http2=False) as client:
            leave_after_the_last_word(client)
        until(lambda: velox.metric("velox_client_connections") == 0, "the client is gone")
        velox.signal(signal.SIGTERM)
        assert velox.wait() == 0
    (row,) = house.rows(1, capsys)

    assert sorted(row["flags"].split("|")) == ["aborted", "estimated", "stream"]


def test_nothing_is_read_on_where_nobody_counts(house: House) -> None:
    """Without records, budgets and limits of tokens."""
    house.thinker.waits = True
    with (
        house.upstream,
        house.upstream.playing(house.thinker.answer),
        routed({"upstreams": [{"name": "one", "origin": house.upstream.upstream.url}]}, usage_drain="all") as velox,
    ):
        with reader(velox, http2=False) as client:
            leave_after_the_last_word(client)
            began_s = time.monotonic()
        assert house.upstream.wait_left(house.upstream.wait_call()) - began_s < PROMPT_S


class Gemini:
    """Answers as Google does: of an answer for which parts are asked, or that is to be in another form, no usage."""

    def __init__(self) -> None:
        self.hides = re.compile(r"(?i)fields|alt=(?!sse|json)|callback|\\$|%24")

    async def answer(self, call: Call) -> None:
        told: Row = {"candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}, "finishReason": "STOP"}]}
        query = urllib.parse.unquote(call.target.partition("?")[2])
        if not self.hides.search(query) and call.header("x-goog-fieldmask") is None:
            told["usageMetadata"] = {"promptTokenCount": 10, "candidatesTokenCount": 20_000, "totalTokenCount": 20_010}
        if "streamGenerateContent" in call.target:
            await call.head(200, SSE)
            await call.data(b"data: %b\n\n" % json.dumps(told).encode())
            await call.end()
        else:
            await call.reply(200, JSON, json.dumps(told).encode())


GOOGLES = [
    "fields=candidates",
    "$fields=candidates",
    "%24fields=candidates",
    "f%69elds=candidates",
    "alt=proto",
    "callback=f",
    "$callback=f",
    "%61lt=media",
]


@pytest.mark.parametrize("provider", ["gemini", ""])
@pytest.mark.parametrize("verb", ["generateContent", "streamGenerateContent"])
def test_system_parameters_of_googles_apis_take_no_usage_away(tmp_path: Path, provider: str, verb: str) -> None:
    """X6: with and without a provider that says whose the upstream is. The client is told what was dropped."""
    prices = tmp_path / "prices.yaml"
    prices.write_text("prices:\n  - {model: '*', input: 1, output: 1}\n")
    budget = {"per": "gateway", "tokens": (len(GOOGLES) + 2) * 20_010, "window": "day"}
    with RecordingUpstream() as upstream, upstream.playing(Gemini().answer):
        entry = {"name": "one", "origin": upstream.upstream.url, "key": "env:MODEL_KEY"}
        entry |= {"provider": provider} if provider else {}
        more = {"MODEL_KEY": "sk-model-0123456789", "prices": str(prices), "ledger": str(tmp_path / "ledger")}
        with routed({"upstreams": [entry], "budgets": [budget]}, **more) as velox:
            path = f"/v1beta/models/gemini-3-flash:{verb}?"
            path += "alt=sse&" if verb.startswith("stream") else ""
            for query in GOOGLES:
                reply = velox.request("POST", path + query, b'{"contents":[{"parts":[{"text":"hi"}]}]}')
                assert reply.status == 200 and reply.header("x-velox-dropped"), query
            mask = {"x-goog-fieldmask": "candidates"}
            assert velox.request("POST", path + "a=b", b'{"contents":[{"parts":[{"text":"hi"}]}]}', mask).status == 200
            n_spent = (len(GOOGLES) + 1) * 20_010
            until(lambda: spent(velox) == n_spent, "all of it was counted")
