"""Records of calls: what the SDKs were told is what is kept, whoever is killed."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.harness import KEY, VeloxProcess, until
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import MESSAGES, named, routed
from tests.e2e.tools import covers
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

    rows = {row["model"]: row for row in usage(folder, capsys, "--calls")}
    assert rows["own"]["cost_usd"] == "0.001560000"
    # 600 tokens at 2.50 $ a million, 400 of the cache at 1.25, 10 at 10.
    assert rows["gpt-4o"]["cost_usd"] == "0.002100000"
    assert rows["nobody-knows-it"]["cost_usd"] is None
    assert {row["cached_tokens"] for row in rows.values()} == {400}
    (day,) = usage(folder, capsys)
    assert (day["unpriced"], day["cost_usd"]) == (1, "0.003660000")


def test_what_did_no_work_is_not_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_client_that_leaves_is_recorded_by_what_came(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize("who", ["worker", "ledger", "supervisor"])
def test_no_record_is_lost_or_doubled_when_a_process_is_killed(
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


def test_store_that_fails_holds_no_request_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The log says why, readiness stays, and all is kept when it can be."""
    folder = tmp_path / "ledger"
    folder.mkdir()
    (folder / "ledger.db").write_bytes(b"this is no database" * 1000)
    with recording(folder) as velox:
        for _ in range(3):
            ask(velox)
        velox.wait_log(lambda line: "records can't be kept" in line)
        assert velox.admin("/readyz").status == 200
        (folder / "ledger.db").unlink()
        until(lambda: n_kept(folder) == 3, "they are kept")
    assert len(usage(folder, capsys, "--calls")) == 3


@covers("VELOX_LEDGER_RING")
def test_full_ring_keeps_sums_and_holds_no_request_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the database away longer than the ring holds: what no record tells stands in the sums."""
    folder = tmp_path / "ledger"
    folder.mkdir()
    (folder / "ledger.db").write_bytes(b"this is no database" * 1000)
    ring = RecordRing(folder / "0.ring", (1 << 20) // RECORD_BYTES)
    ring.begin()
    while ring.head < ring.n_records - 20:  # so many wait already
        (body,) = name_bodies(ring.next_name(), "waits")
        ring.put(body)
    with recording(folder, ledger_ring="1MiB", workers="1") as velox:
        assert (folder / "1.ring").stat().st_size == (folder / "0.ring").stat().st_size
        velox.wait_log(lambda line: "records can't be kept" in line)
        for _ in range(30):
            ask(velox)
        until(lambda: ring.n_dropped > 0, "some found no room")
        (folder / "ledger.db").unlink()
        until(lambda: n_kept(folder) > 0, "the others are kept")
    assert sum(row["calls"] for row in usage(folder, capsys)) == 30
    by_key = usage(folder, capsys, "--by", "key")
    assert "(not recorded)" in {row["key"] for row in by_key}


@covers("VELOX_LEDGER_DAYS")
def test_old_calls_are_dropped_with_their_file(tmp_path: Path) -> None:
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


def test_nothing_is_recorded_without_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And `velox usage` says so."""
    read: Callable[[], int] = lambda: main(["usage"], {"VELOX_API_KEYS": KEY})  # noqa: E731
    assert read() == 1
    assert "VELOX_LEDGER names no folder" in capsys.readouterr().err


def test_commands_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each, but for the folder: what they print is of the call that was made."""
    folder = tmp_path / "ledger"
    with recording(folder) as velox:
        ask(velox, model="shown")
    page = (Path(__file__).parents[2] / "docs/ledger.md").read_text()
    commands = [line.partition("#")[0].split()[1:] for line in page.splitlines() if line.startswith("velox usage")]
    assert len(commands) == 3
    for arguments in commands:
        capsys.readouterr()
        assert main(arguments, {"VELOX_LEDGER": str(folder), "VELOX_API_KEYS": KEY}) == 0
        head, *rows = capsys.readouterr().out.splitlines()
        assert len(rows) == ("jsonl" not in arguments)
        assert ("shown" in "".join((head, *rows))) == (arguments != ["usage"])
