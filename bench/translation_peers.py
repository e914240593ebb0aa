"""What a translating gateway uses of CPU time: Velox beside LiteLLM and smg, doing the same.

    python -m bench.peers install LiteLLM smg    # once
    python -m bench.translation_peers            # minutes; fills docs/benchmarks/translation.md, but with --dry
    python -m bench.translation_peers --smoke    # seconds; Velox only, fills nothing

Clients speak Chat Completions, the upstream speaks Anthropic's Messages: the simulator, as a process of its own. The
CPU time of all of a gateway's processes is divided by the requests that it answered meanwhile. Rounds rotate, and
ratios are taken within a round. Velox also passes the same requests on untranslated, for comparison.

Knows: who is asked, and for what. Does not know: how a peer is installed.
"""

from __future__ import annotations

import argparse
import http.client
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, Literal

import orjson

from bench import peers
from bench.machine import Cores, describe, pick_cores
from bench.payloads import API_KEY, CHAT_PATH
from bench.peers import Origin, PeerError
from bench.peers.starting import chat_status
from bench.rounds import Figures, Measure, ratios, run_rounds, spread
from bench.servers import Server, Servers, answers, free_port
from bench.traffic import KEYS
from bench.translation import chat_request
from docs.tables import fill

__all__ = ["main"]

_PAGE: Final = Path(__file__).parents[1] / "docs" / "benchmarks" / "translation.md"
_VELOX: Final = "Velox"
_UNTRANSLATED: Final = "Velox, the same untranslated"
_CONNECTIONS: Final = 4
_TOKENS: Final = 64
# A model that every gateway knows the price of; the simulator answers for any.
_MODEL: Final = "claude-sonnet-4-5"
_CONFIG: Final = """upstreams:
  - {{name: up, provider: {api}, origin: "http://127.0.0.1:{port}", key: env:BENCH_UPSTREAM_KEY}}
"""


def main() -> int:
    """Measure, print, and fill the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--dry", action="store_true", help="write no page")
    parser.add_argument("--smoke", action="store_true", help="Velox only, one short round, no page")
    given = parser.parse_args()
    if given.smoke:
        given.rounds, given.seconds, given.dry = 1, 0.3, True
    load_before = os.getloadavg()[0]
    text = compare(given.rounds, given.seconds, others=() if given.smoke else ("LiteLLM", "smg"))
    print(text)
    if not given.dry:
        page = fill(_PAGE.read_text(), "peers run", f"{_about(load_before)}\n")
        _PAGE.write_text(fill(page, "peers", f"{text}\n"))
    return 0


def compare(n_rounds: int, seconds: float, others: tuple[str, ...]) -> str:
    """Return the table. others: the peers, of which those that do not translate, or are not there, get a line."""
    cores, notes = pick_cores(), list[str]()
    with tempfile.TemporaryDirectory() as folder, Servers(Path(folder), cores) as servers:
        port = _simulator(servers, cores, Path(folder))
        gateways = {
            _VELOX: _velox(servers, Path(folder), port, "anthropic"),
            _UNTRANSLATED: _velox(servers, Path(folder), port, "openai"),
        }
        for name in others:
            try:
                server = peers.start(
                    name, servers, Origin(port), streaming=True, api="anthropic", statuses=(200, 404, 501)
                )
            except PeerError as error:
                notes.append(f"{name} was not measured: {error}")
                continue
            status = chat_status(server.port)
            if status == 200:
                gateways[name] = server
            else:
                notes.append(
                    f"{name} does not translate: before Anthropic's API it answers a Chat request with {status}."
                )
                server.stop()
        plain = run_rounds(_measures(gateways, stream=False), n_rounds, seconds)
        streamed = run_rounds(_measures(gateways, stream=True), n_rounds, seconds)
    lines = [
        f"| µs of CPU | a plain request | ÷ Velox | a streamed answer of {_TOKENS} tokens | ÷ Velox |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {name} | {_cells(plain, name)} | {_cells(streamed, name)} |" for name in gateways]
    return "\n".join(lines) + "".join(f"\n\n{note}" for note in notes)


def _cells(figures: Figures, name: str) -> str:
    found = spread([each["cpu_us"] for each in figures[name]])
    ratio = ratios(figures, name, _VELOX, "cpu_us").median
    return f"{found.median:,.0f} ({found.least:,.0f} to {found.greatest:,.0f}) | {ratio:.2f}"


# -- servers ------------------------------------------------------------------------------------------


def _simulator(servers: Servers, cores: Cores, folder: Path) -> int:
    port = free_port()
    command = [sys.executable, "-m", "velox", "sim", "--listen", f"127.0.0.1:{port}", "--ttft", "0ms"]
    command += ["--token-rate", "0", "--tokens", str(_TOKENS), "--grace", "0s", "--seed", "1"]
    server = servers.start(command, port, {}, folder / "simulator.log", lambda: answers(port, "/v1/models"))
    for pid in server.pids:
        os.sched_setaffinity(pid, {cores.rest})
    return port


def _velox(servers: Servers, folder: Path, upstream: int, api: Literal["anthropic", "openai"]) -> Server:
    port, admin = free_port(), free_port()
    config = folder / f"velox-{api}.yaml"
    config.write_text(_CONFIG.format(api=api, port=upstream))
    settings = {
        "VELOX_CONFIG": str(config),
        "VELOX_LISTEN": f"127.0.0.1:{port}",
        "VELOX_ADMIN_LISTEN": f"127.0.0.1:{admin}",
        "VELOX_WORKERS": "1",
        "VELOX_RATE_LIMIT_RPM": "60000000",
        "VELOX_RATE_LIMIT_BURST": "1000000",
        "VELOX_API_KEYS": ",".join((API_KEY, *KEYS)),
        "VELOX_ACCESS_LOG": "off",
        "BENCH_UPSTREAM_KEY": "sk-bench-upstream",
    }
    command = [sys.executable, "-m", "velox", "serve"]
    return servers.start(command, port, settings, folder / f"velox-{api}.log", lambda: answers(admin, "/readyz"))


# -- load ---------------------------------------------------------------------------------------------


def _measures(gateways: Mapping[str, Server], *, stream: bool) -> dict[str, Measure]:
    body = chat_request(_MODEL, stream=stream)
    return {name: partial(_measure, server, body) for name, server in gateways.items()}


def _measure(server: Server, body: bytes, seconds: float) -> dict[str, float]:
    """Ask on a few connections for so long; return the gateway's CPU time for a request."""
    until_s = time.monotonic() + seconds
    before_s = server.cpu_s()
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        n_answers = sum(pool.map(lambda _: _ask(server.port, body, until_s), range(_CONNECTIONS)))
    server.check()
    return {"cpu_us": (server.cpu_s() - before_s) * 1e6 / n_answers, "answers": n_answers}


def _ask(port: int, body: bytes, until_s: float) -> int:
    """Ask one request after the other on one connection; return how many were answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30.0)
    headers = {"authorization": f"Bearer {API_KEY}", "content-type": "application/json"}
    wanted = b"chat.completion.chunk" if orjson.loads(body)["stream"] else b'"chat.completion"'
    n_answers = 0
    try:
        while not n_answers or time.monotonic() < until_s:
            connection.request("POST", CHAT_PATH, body, headers)
            reply = connection.getresponse()
            content = reply.read()
            if reply.status != 200 or wanted not in content:
                raise RuntimeError(f"a gateway answered {reply.status}: {content[:300]!r}")
            n_answers += 1
    finally:
        connection.close()
    return n_answers


def _about(load_before: float) -> str:
    """Return when and where it was measured, and how busy the machine was before."""
    machine = describe()
    return (
        f"{time.strftime('%Y-%m-%d')}: {machine['cpu']}, {machine['cores']} cores, CPython {machine['python']}, commit"
        f" {machine['commit']}{', changed since' if machine['modified'] else ''}; load average before the run"
        f" {load_before:.1f}: other work of the machine raises all figures of a round alike."
    )


if __name__ == "__main__":
    sys.exit(main())
