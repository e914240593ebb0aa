"""Pictures of the page of the admin listener and of `velox top`, of a gateway that is under load and not all well.

    python -m tests.e2e.screenshots FOLDER

Three upstreams, one of which is down; clients that stream all the time; a key whose budget is nearly used up. Pictures
are taken in light, dark and at the width of a phone, by Chromium and Playwright as in the tests of the page, and a
terminal's text by tmux. They are for whoever changes the page: nothing compares them.

Knows: what is to be seen. Does not know: how the page is driven (node/screenshots.mjs).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

from tests.e2e.harness import REPOSITORY, VeloxProcess
from tests.e2e.routed import nobody
from tests.e2e.test_cors import CHROMIUM
from tests.e2e.upstreams import start_sim

__all__ = ["main"]

_TOKEN: Final = "an-admin-token-for-pictures"
_KEYS: Final = {"shop": "sk-shop-0123456789", "lab": "sk-lab-0123456789", "support": "sk-support-0123456789"}
_PROGRAMS: Final = ("claude-cli/2.1.0 (external, cli)", "codex_cli_rs/0.60.1 (Linux)", "OpenAI/Python 2.9.0")
_MODELS: Final = ("gpt-4o", "gpt-4o-mini", "gpt-4.1-nano")
_N_CLIENTS: Final = 12
_NODE: Final = Path(__file__).parent / "node"


def _config(usual: str, slow: str, gone: str) -> dict[str, object]:
    def upstream(name: str, origin: str) -> dict[str, str]:
        return {"name": name, "provider": "openai", "key": "env:MODEL_KEY", "origin": origin}

    keys = [{"name": name, "key": key, "team": f"team-{name}"} for name, key in _KEYS.items()]
    routes = [
        {"name": "mini", "match": {"models": ["gpt-4o-mini"]}, "to": ["slow"]},
        {"name": "gone", "match": {"models": ["gpt-4.1-nano"]}, "to": ["gone"]},
        {"name": "rest", "to": ["usual"]},
    ]
    budgets = [
        {"per": "team", "tokens": 150_000, "window": "month"},
        {"per": "gateway", "usd": "100", "window": "month"},
    ]
    upstreams = [upstream("usual", usual), upstream("slow", slow), upstream("gone", gone)]
    return {"upstreams": upstreams, "routes": routes, "api_keys": keys, "budgets": budgets}


class _Load:
    """Clients that stream all the time."""

    def __init__(self, velox: VeloxProcess) -> None:
        self._velox: Final = velox
        self._over: Final = threading.Event()
        self._threads: Final = [threading.Thread(target=self._ask, args=(n,)) for n in range(_N_CLIENTS)]

    def __enter__(self) -> _Load:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    def _ask(self, n: int) -> None:
        name, turn = list(_KEYS)[n % len(_KEYS)], n
        headers = {"authorization": f"Bearer {_KEYS[name]}", "content-type": "application/json"}
        while not self._over.is_set():
            turn += 1
            model = _MODELS[2] if turn % 20 == 0 else _MODELS[turn % 2]
            said = [{"role": "user", "content": "Why is the sky blue? " * 40}]
            body = json.dumps({"model": model, "messages": said, "max_tokens": 60, "stream": turn % 3 > 0}).encode()
            with contextlib.suppress(OSError, AssertionError, ValueError, IndexError):
                agent = {"user-agent": _PROGRAMS[turn % len(_PROGRAMS)]}
                self._velox.request("POST", "/v1/chat/completions", body, headers | agent)


@contextlib.contextmanager
def _gateway(folder: Path) -> Iterator[VeloxProcess]:
    env = {
        "VELOX_CONFIG": str(folder / "velox.yaml"),
        "MODEL_KEY": "sk-model-0123456789",
        "VELOX_RATE_LIMIT_RPM": "0",
        "VELOX_LEDGER": str(folder / "ledger"),
        "VELOX_MANAGED_KEYS": "on",
        "VELOX_ADMIN_TOKEN": _TOKEN,
        "VELOX_WORKERS": "2",
        "VELOX_BUDGET_METRICS": "gateway,team",
    }
    usually = ("--ttft", "120ms", "--token-rate", "120", "--tokens", "60")
    slowly = ("--ttft", "700ms", "--token-rate", "40", "--tokens", "60")
    with start_sim(*usually) as usual, start_sim(*slowly) as slow, nobody() as gone:
        (folder / "velox.yaml").write_text(yaml.safe_dump(_config(usual.url, slow.url, gone)))
        with VeloxProcess(env) as velox:
            yield velox


def _terminal(velox: VeloxProcess, file: Path) -> None:
    """Keep what a terminal shows of `velox top`."""
    tmux = ["tmux", "-L", f"velox-{os.getpid()}"]
    address = velox.admin_url.removeprefix("http://")
    shown = f"VELOX_ADMIN_LISTEN={address} VELOX_ADMIN_TOKEN={_TOKEN} {sys.executable} -m velox top"
    subprocess.run([*tmux, "new-session", "-d", "-x", "120", "-y", "45", shown], cwd=REPOSITORY, check=True)
    try:
        drawn = ""
        while "/s failed" not in drawn:  # rates come with the second reading
            time.sleep(0.5)
            drawn = subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout
        file.write_text(drawn)
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)


def main() -> int:
    """Take the pictures; return the exit code."""
    if len(sys.argv) != 2 or CHROMIUM is None or shutil.which("node") is None or shutil.which("tmux") is None:
        print("usage: python -m tests.e2e.screenshots FOLDER, with Chromium, Node and tmux", file=sys.stderr)
        return 2
    pictures = Path(sys.argv[1])
    pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, _gateway(Path(folder)) as velox, _Load(velox):
        command = ["node", "screenshots.mjs", CHROMIUM, velox.admin_url, _TOKEN, _KEYS["lab"], str(pictures.resolve())]
        done = subprocess.run(command, cwd=_NODE, check=False)
        _terminal(velox, pictures / "top.txt")
    print("\n".join(sorted(str(path) for path in pictures.iterdir())))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
