"""The memory of a worker over many requests that are translated, with its collector off.

    python -m tests.soak.translated [--requests 100000] [--body 20KiB] [--from chat] [--to anthropic]

The collector frees reference cycles, and practically never runs in a gateway. Here it is off altogether: what a request
leaves in a cycle stays, and is seen. Exit code 1: memory has grown by over a byte for each ten of one request's body.

Knows: the command line, one lane, one worker. Does not know: what a translation is.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import yaml

from tests.e2e.collecting import uncollected
from tests.e2e.harness import VeloxProcess
from tests.e2e.tools import request_bytes
from tests.soak.ground import start_provider
from tests.soak.lanes import LANES, SECRETS, configuration
from velox.settings.parse import size

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_WARM: Final = 2_000
_CLIENTS: Final = 8
_STEPS: Final = 10


def resident(pid: int) -> int:
    """Return a process's resident memory in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


async def ask(port: int, asked: bytes, n: int) -> None:
    """Ask so often, some at a time, each client on one connection. Raises AssertionError for an answer that is none."""
    left = iter(range(n))

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in left:
            writer.write(asked)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
        writer.close()

    await asyncio.gather(*(work() for _ in range(_CLIENTS)))


def main() -> int:
    """Read the command line, ask, print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.translated", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--body", type=size(1, 1 << 30), default="20KiB", help="bytes of each")
    parser.add_argument("--from", dest="asking", default="chat", help="chat, messages, responses, generate")
    parser.add_argument("--to", default="anthropic", help="the API of the model, as in tests/soak/lanes.py")
    given = parser.parse_args()
    lane = next(each for each in LANES if each.name == f"{given.asking} to {given.to}")
    request = lane.request("a word " * (given.body // 7), stream=False)
    asked = request_bytes("POST", request.path, request.body, request.headers)
    with start_provider() as origin, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "velox.yaml")
        path.write_text(yaml.safe_dump(configuration({}, origin)))
        env = {**SECRETS, "VELOX_CONFIG": str(path), "VELOX_WORKERS": "1", "VELOX_RATE_LIMIT_RPM": "0"}
        # Shared tables of many rows: each new answer uses a page of them for the first time, until all are.
        env |= {"VELOX_OBJECT_ROWS": "1024", "VELOX_KEPT_BYTES": "0"}
        with VeloxProcess(env, launcher=uncollected(folder)) as velox:
            (worker,) = velox.worker_pids()
            asyncio.run(ask(velox.port, asked, min(_WARM, given.requests)))
            before, began_s = resident(worker), time.monotonic()
            print(f"{lane.name}, {len(request.body):,} bytes each, warm: {before / 2**20:.1f} MiB", flush=True)
            for step in range(1, _STEPS + 1):
                asyncio.run(ask(velox.port, asked, given.requests // _STEPS))
                now, n = resident(worker), step * given.requests // _STEPS
                print(f"{n:8,} requests, {time.monotonic() - began_s:4.0f} s: {now / 2**20:.1f} MiB", flush=True)
            grown = resident(worker) - before
    a_request = grown / given.requests
    print(f"grown by {grown / 2**20:.1f} MiB: {a_request:.1f} bytes a request")
    return 1 if a_request > len(request.body) / 10 else 0


if __name__ == "__main__":
    sys.exit(main())
