"""Open WebUI's backend: a chat of its pages, with a tool that it runs itself, on each kind of upstream."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.farm import KEY, KINDS, MODEL_NAMES, Farm
from tests.clients.running import CLIENTS
from tests.clients.shown import variables
from tests.clients.workers import PLAN

# As an administrator writes a tool in its pages.
TOOLS = '''
class Tools:
    def look(self, city: str) -> str:
        """
        Look at the weather of a city.
        :param city: Its name.
        """
        return {"Oslo": "cold", "Rome": "warm", "Lima": "grey"}[city]
'''
START_S = 300.0  # it makes its database first
LONGEST_S = 60.0


class OpenWebui:
    """One that runs. origin: its own. token: of the user whom it has without signing in."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.token = ""

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return what it answers. Raises OSError."""
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.origin + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read())

    def chat(self, model: str, text: str) -> str:
        """Ask in a new chat as its page does; return the text of the answer that it keeps at the end."""
        asked, answer = str(uuid.uuid4()), str(uuid.uuid4())
        user = {"id": asked, "parentId": None, "role": "user", "content": text, "models": [model]}
        said = self.ask(
            "POST",
            "/api/chat/completions",
            {
                "model": model,
                "messages": [{"role": "user", "content": text}],
                "stream": True,  # without that it leaves calls of tools to its caller
                "tool_ids": ["weather"],
                "id": answer,
                "parent_id": None,
                "user_message": user,
                "session_id": "page",
                "background_tasks": {"title_generation": True},
            },
        )
        ends_s = time.monotonic() + LONGEST_S
        while time.monotonic() < ends_s:
            chat = self.ask("GET", f"/api/v1/chats/{said['chat_id']}")
            message = chat["chat"]["history"]["messages"][answer]
            if message.get("done"):
                assert not message.get("error"), message["error"]
                return str(message["content"])
            time.sleep(0.1)
        raise AssertionError(f"no end of the answer: {message}")


@pytest.fixture(scope="module")
def webui(velox_farm: Farm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenWebui]:
    """It has the gateway for its OpenAI, and the tool."""
    program = CLIENTS / "python/openwebui/bin/open-webui"
    if not program.exists():
        pytest.skip("Open WebUI is not installed: make test-clients")
    folder: Path = tmp_path_factory.mktemp("openwebui")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = f"{velox_farm.velox.base_url}/v1"
    env = {
        "HOME": str(folder),
        "PATH": "/usr/bin:/bin",
        "DATA_DIR": str(folder / "data"),
        "WEBUI_SECRET_KEY": "0123456789abcdef",
        "WEBUI_AUTH": "False",
        "OFFLINE_MODE": "true",
        "HF_HUB_OFFLINE": "1",
        "ENABLE_OLLAMA_API": "false",
        **variables("Open WebUI", velox_farm, ""),
        "RAG_EMBEDDING_ENGINE": "openai",  # else it loads a model
        "RAG_OPENAI_API_BASE_URL": base,
        "RAG_OPENAI_API_KEY": KEY,
    }
    with (folder / "log").open("wb") as log:
        command = [str(program), "serve", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        made = OpenWebui(f"http://127.0.0.1:{port}")
        ends_s = time.monotonic() + START_S
        while True:
            try:
                made.ask("GET", "/health")
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < ends_s, (folder / "log").read_text()[-6000:]
                time.sleep(0.5)
        made.token = made.ask("POST", "/api/v1/auths/signin", {"email": "", "password": ""})["token"]
        about = {"id": "weather", "name": "weather", "content": TOOLS, "meta": {"description": "Weather"}}
        made.ask("POST", "/api/v1/tools/create", about)
        yield made
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_models(webui: OpenWebui) -> None:
    """The list of its pages has all of them."""
    assert {each["id"] for each in webui.ask("GET", "/api/models")["data"]} >= set(MODEL_NAMES.values())


@pytest.mark.parametrize("kind", KINDS)
def test_tool_loop(velox_farm: Farm, webui: OpenWebui, kind: str) -> None:
    """Two calls at once, one more, and the model's last text is at the end of what the page shows."""
    with velox_farm.playing(kind, PLAN):
        said = webui.chat(MODEL_NAMES[kind], "How is the weather in Oslo and Rome?")
    assert said.endswith(str(PLAN.final))
