"""The access log: who asked, what it took, and how it ended; and that no client can forge a line."""

from __future__ import annotations

import datetime
import gzip
import hashlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, SSE, RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.tools import covers, run_velox
from tests.e2e.upstreams import chat_chunk
from tests.markdown import ROOT
from tests.patience import PROMPT_S

KEY = "sk-client-0123456789"
USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 100,
    "prompt_tokens_details": {"cached_tokens": 400},
    "completion_tokens_details": {"reasoning_tokens": 60},
}


async def whole(call: Call) -> None:
    """Answer with a usage."""
    await call.reply(200, JSON, json.dumps({"object": "chat.completion", "choices": [], "usage": USAGE}).encode())


async def cut(call: Call) -> None:
    """Answer with half a stream."""
    await call.head(200, SSE)
    await call.data(chat_chunk("word "))
    await call.drain()
    call.cut()


@pytest.fixture
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as running:
        yield running


class House:
    """A gateway with one key that has tags, and records."""

    def __init__(self, folder: Path, upstream: RecordingUpstream) -> None:
        self.folder = folder
        self.upstream = upstream

    def settings(self, **more: str) -> dict[str, str]:
        prices, keys = self.folder / "prices.yaml", self.folder / "keys.yaml"
        prices.write_text("prices:\n  - {model: 'own*', input: 1, cached: 0.5, output: 10}\n")
        keys.write_text(f"- {{key: {KEY}, name: app, tags: [web, eu]}}\n")
        return {
            "access_log": "all",
            "api_keys_file": str(keys),
            "ledger": str(self.folder / "ledger"),
            "MODEL_KEY": "sk-model-0123456789",
            "prices": str(prices),
            "retries": "0",
            **more,
        }

    def config(self) -> dict[str, Any]:
        entry = {"name": "one", "provider": "openai", "origin": self.upstream.upstream.url, "key": "env:MODEL_KEY"}
        return {"upstreams": [entry]}


@pytest.fixture
def house(tmp_path: Path, upstream: RecordingUpstream) -> House:
    return House(tmp_path, upstream)


def ask(velox: VeloxProcess, body: dict[str, Any], **headers: str) -> int:
    """Ask for an answer; return its status."""
    fields = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    data = json.dumps({"messages": [], "max_tokens": 50, **body}).encode()
    return velox.request("POST", "/v1/chat/completions", data, fields).status


def line_of(velox: VeloxProcess, n: int = 0) -> dict[str, Any]:
    """Return a line of the log, once it is there."""
    velox.wait_access(lambda _: len(velox.stdout.lines) > n)
    return dict(velox.access_log()[n])


@covers("VELOX_TRUSTED_PROXIES")
def test_line_tells_who_asked_and_what_it_took(house: House) -> None:
    """U11: address, key, session, tags, tokens by kind and cost; what a trusted proxy says of the client."""
    with (
        house.upstream.playing(whole),
        routed(house.config(), **house.settings(trusted_proxies="127.0.0.0/8")) as velox,
    ):
        said = {"x_forwarded_for": "203.0.113.9, 198.51.100.4", "session_id": "s-1"}
        assert ask(velox, {"model": "own"}, **said) == 200
        line = line_of(velox)
        assert velox.request("POST", "/v1/chat/completions", b"{}", {"x-forwarded-for": "198.51.100.4"}).status == 401
        refused = line_of(velox, 1)
    assert (line["address"], line["forwarded_for"], line["session"]) == ("127.0.0.1", "198.51.100.4", "s-1")
    assert (line["caller"], line["key_id"]) == ("app", hashlib.sha256(KEY.encode()).hexdigest()[:16])
    assert (line["tags"], line["status"], line["sent_status"]) == ("web,eu", 200, 200)
    tokens = [line[f"{kind}_tokens"] for kind in ("input", "output", "cached", "cache_written", "reasoning")]
    assert tokens == [1000, 100, 400, None, 60]
    assert line["cost_usd"] == (600 + 400 * 0.5 + 100 * 10) / 1e6 and line["estimated"] is False
    assert line["time"].endswith("Z")
    ended = datetime.datetime.fromisoformat(line["time"])
    assert abs(datetime.datetime.now(datetime.UTC) - ended) < datetime.timedelta(minutes=5)
    assert (refused["address"], refused["forwarded_for"]) == ("127.0.0.1", "198.51.100.4")
    assert (refused["key_id"], refused["input_tokens"], refused["sent_status"]) == (None, None, 401)


def test_nobody_is_believed_who_is_no_trusted_proxy(house: House) -> None:
    """Else a client would choose its own address."""
    with house.upstream.playing(whole), routed(house.config(), **house.settings()) as velox:
        assert ask(velox, {"model": "own"}, x_forwarded_for="198.51.100.4") == 200
        line = line_of(velox)
    assert (line["address"], line["forwarded_for"]) == ("127.0.0.1", None)


def test_line_of_a_cut_stream_has_what_its_client_got_beside_what_ended_it(house: House) -> None:
    """The client saw 200; tokens are an estimate from what came."""
    with house.upstream.playing(cut), routed(house.config(), **house.settings()) as velox:
        with pytest.raises(ConnectionError):
            ask(velox, {"model": "own", "stream": True})
        line = line_of(velox)
    assert (line["status"], line["reason"], line["sent_status"]) == (502, "upstream_truncated", 200)
    assert line["output_tokens"] and line["cost_usd"] > 0 and line["estimated"] is True


def test_hostile_values_are_escaped_and_shortened_text_of_one_line(house: House) -> None:
    """A line break, a mark that turns the direction, an escape of a terminal, a name of 100 KB: one line of ASCII."""
    evil = 'own"}\n{"status": 200}\u202e\x1b[2J\u2028'
    long = "\u202e\U0001f30d"
    with house.upstream.playing(whole), routed(house.config(), **house.settings(max_body="1MiB")) as velox:
        ask(velox, {"model": evil, "prompt_cache_key": evil})
        ask(velox, {"model": long * 50_000})
        ask(velox, {"model": "own" + long * 50, "prompt_cache_key": long * 250})
        ask(velox, {"model": "own"}, session_id="x" * 10_000)
        lines = [line_of(velox, n) for n in range(4)]
        texts = velox.stdout.lines
    assert len(texts) == 4 and all(text.isascii() and text.isprintable() and len(text) < 4096 for text in texts)
    refused = [(line["status"], line["model"]) for line in lines[:2]]
    assert refused == [(400, None), (400, None)], "no provider has a model of such a name"
    assert lines[0]["session"] == evil
    assert lines[2]["model"] == "own" + long * 50
    assert lines[2]["session"] == long * 128 and lines[3]["session"] == "x" * 256


@covers("VELOX_ACCESS_LOG_SLOW", "VELOX_ACCESS_LOG_SAMPLE")
@pytest.mark.parametrize(("setting", "value"), [("VELOX_ACCESS_LOG_SLOW", "1h"), ("VELOX_ACCESS_LOG_SAMPLE", "0%")])
def test_of_what_ended_well_only_what_is_asked_for_is_logged(setting: str, value: str) -> None:
    """What failed is there whatever it took; the last line tells that the others are not late."""
    with VeloxProcess({"VELOX_ACCESS_LOG": "all", setting: value, "VELOX_WORKERS": "1"}, ("serve", "--sim")) as velox:
        assert velox.request("GET", "/v1/models").status == 200
        assert velox.request("POST", "/v1/chat/completions", b"{").status == 400
    assert [line["status"] for line in velox.access_log()] == [400]


@covers("VELOX_ACCESS_LOG_FORMAT")
def test_line_for_a_person(house: House) -> None:
    """On a terminal it is the usual form; here it is asked for."""
    with house.upstream.playing(whole), routed(house.config(), **house.settings(access_log_format="text")) as velox:
        assert ask(velox, {"model": "own"}) == 200
        line = velox.stdout.wait(bool, PROMPT_S)
    said = r"\d\d:\d\d:\d\d 200 POST /v1/chat/completions own app at one [0-9.]+ ms \(first byte [0-9.]+ ms\)"
    assert re.fullmatch(rf"{said} 1000\+100 tokens \$0\.001800", line), line


@covers("VELOX_ACCESS_LOG_FILE")
def test_logrotate_with_the_file_of_deploy_loses_no_line(tmp_path: Path) -> None:
    """Both workers go on in the new file at SIGUSR1 to the supervisor; all lines are in one of the files, once."""
    folder, state = tmp_path / "log", tmp_path / "state"
    folder.mkdir()
    path, n_asked = folder / "access.log", 0
    settings = {"VELOX_ACCESS_LOG": "all", "VELOX_ACCESS_LOG_FILE": str(path), "VELOX_WORKERS": "2"}
    with VeloxProcess(settings, ("serve", "--sim"), by_exec=True) as velox:
        config = tmp_path / "velox.logrotate"
        text = (ROOT / "deploy/velox.logrotate").read_text()
        text = text.replace("/var/log/velox/access.log", str(path)).replace("    su velox velox\n", "")
        text = text.replace('"$(systemctl show --property MainPID --value velox.service)"', str(velox.pid))
        config.write_text(text)
        for _ in range(3):
            before = path.stat().st_ino
            for _ in range(20):
                n_asked += velox.request("GET", "/v1/models").status == 200
            until(lambda n=n_asked: _n_lines(folder) == n, "the lines are there")
            subprocess.run(["logrotate", "--force", "--state", str(state), str(config)], check=True)
            until(lambda old=before: path.exists() and path.stat().st_ino != old, "there is a new file")
            until(lambda: _open_by(velox) == {path}, "both workers have it")
    assert n_asked == 60
    assert {each.name for each in folder.iterdir()} == {
        "access.log",
        "access.log.1",
        "access.log.2.gz",
        "access.log.3.gz",
    }
    assert _n_lines(folder) == 60 and not velox.stdout.lines


def _n_lines(folder: Path) -> int:
    """Return how many lines a log has over all of its files; each is whole."""
    n = 0
    for path in folder.iterdir():
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        n += len([json.loads(line)["id"] for line in data.splitlines()])
    return n


def _open_by(velox: VeloxProcess) -> set[Path]:
    """Return the files of a log that the workers have open."""
    links = [link for pid in velox.worker_pids() for link in Path(f"/proc/{pid}/fd").iterdir()]
    return {path for path in (Path(os.readlink(link)) for link in links) if path.name.startswith("access.log")}


def test_file_that_can_not_be_opened_is_a_problem_of_the_settings(tmp_path: Path) -> None:
    """At the start; while the gateway runs, the file before is written on, and the log says why."""
    refused = run_velox({"VELOX_ACCESS_LOG_FILE": str(tmp_path / "none" / "access.log")}, "serve", "--sim")
    assert (
        refused.returncode == 2
        and f"expected a file in a folder that is there: {tmp_path}/none is none" in refused.stderr
    )
    folder = tmp_path / "log"
    folder.mkdir()
    settings = {"VELOX_ACCESS_LOG": "all", "VELOX_ACCESS_LOG_FILE": str(folder / "access.log"), "VELOX_WORKERS": "1"}
    with VeloxProcess(settings, ("serve", "--sim")) as velox:
        folder.rename(tmp_path / "moved")
        os.kill(velox.pid, signal.SIGUSR1)
        velox.wait_log(lambda line: "can't be opened: No such file or directory" in line)
        assert velox.request("GET", "/v1/models").status == 200
    assert _n_lines(tmp_path / "moved") == 1
