"""A real engine, llama.cpp's server with a tiny model, and a gateway in front of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from tests.e2e.harness import REPOSITORY, VeloxProcess, until
from tests.e2e.routed import routed
from tests.e2e.tools import free_port
from tests.e2e.upstreams import accepts
from tests.engine import tiny_model

INSTALLED: Final = REPOSITORY / ".engine"


class Engine:
    """llama.cpp's server as a process; a context manager. It keeps its port when it is started again."""

    def __init__(self, model: Path, *, embeds: bool = False) -> None:
        self.port: Final = free_port()
        self._model: Final = model
        self._embeds: Final = embeds
        self._log: Final = model.with_name(f"{self.port}.log")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()

    @property
    def origin(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; return when it serves. Raises AssertionError with what it wrote."""
        more = ["embeddings"] if self._embeds else []
        script = str(Path(__file__).with_name("llama_server.py"))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, script, str(self._model), str(self.port), *more],
                env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(INSTALLED)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if not accepts(self.port, self._process):
            raise AssertionError("the engine does not start:\n" + self._log.read_text(errors="replace")[-5000:])
        until(lambda: self.metric("requests_processing") == 0, "the engine has its model")

    def kill(self) -> None:
        """SIGKILL it, if it runs."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def metric(self, name: str) -> float:
        """Return a value of its metrics page; -1 while it has none."""
        try:
            with urllib.request.urlopen(f"{self.origin}/metrics", timeout=20) as reply:
                page = reply.read().decode()
        except OSError:
            return -1.0
        found = re.search(rf"^llamacpp:{name} (\S+)$", page, re.MULTILINE)
        return float(found.group(1)) if found else -1.0


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's file."""
    if not (INSTALLED / "installed").exists():
        pytest.skip("no llama.cpp in .engine: `make engine-tools` could not install it on this machine")
    path = tmp_path_factory.mktemp("engine") / "tiny.gguf"
    tiny_model.make(path.with_name("calls.gguf"), calls=True)
    tiny_model.make(path)
    return path


@pytest.fixture(scope="module")
def engine(model_file: Path) -> Iterator[Engine]:
    """The engine for chat."""
    with Engine(model_file) as running:
        yield running


@pytest.fixture(scope="module")
def velox(engine: Engine, model_file: Path) -> Iterator[VeloxProcess]:
    """A gateway. Model `tiny` is asked in Chat, translated where needed; `native` in each API that the engine has."""
    with Engine(model_file, embeds=True) as embedder, Engine(model_file.with_name("calls.gguf")) as caller:
        config = {
            "upstreams": [
                {"name": "chat", "provider": "llamacpp", "origin": engine.origin},
                {
                    "name": "native",
                    "provider": "llamacpp",
                    "origin": engine.origin,
                    "apis": ["chat", "responses", "messages", "count_messages"],
                },
                {"name": "embedder", "provider": "llamacpp", "origin": embedder.origin},
                {"name": "caller", "provider": "llamacpp", "origin": caller.origin},
            ],
            "routes": [
                {"name": "native", "match": {"models": ["native"]}, "to": "native"},
                {"name": "embedder", "match": {"models": ["embedder"]}, "to": "embedder"},
                {"name": "caller", "match": {"models": ["caller"]}, "to": "caller"},
                {"name": "rest", "to": "chat"},
            ],
        }
        with routed(config) as running:
            yield running
