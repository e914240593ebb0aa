"""What README and the pages show is run as it stands there, with other ports and shorter times."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Wall
from tests.e2e.harness import REPOSITORY, VeloxProcess
from tests.e2e.recording import JSON, SSE, Call, healthy
from tests.e2e.upstreams import chat_chunk
from tests.markdown import PAGES, ROOT, blocks, commands
from velox.build import BUILD, DESCRIPTION

README = ROOT / "README.md"
NODE_MODULES = REPOSITORY / "tests/e2e/node/node_modules"
CURL = sorted(
    {command for page in PAGES for command in commands(page) if command.startswith("curl ") and "$" not in command}
)
BASE_ENV = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}


@pytest.fixture(scope="module")
def velox() -> Iterator[VeloxProcess]:
    """`velox serve --sim`."""
    with VeloxProcess(args=("serve", "--sim")) as process:
        yield process


def aimed(text: str, velox: VeloxProcess) -> str:
    """Return an example with the gateway's real addresses, and one second for a profile."""
    text = text.replace("http://127.0.0.1:8080", velox.base_url).replace("http://127.0.0.1:6060", velox.admin_url)
    return text.replace("seconds=10", "seconds=1")


def run(words: list[str], folder: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder of its own; it must end well."""
    done = subprocess.run(
        words, cwd=folder, env={**BASE_ENV, **(env or {})}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
def test_python_snippet_prints_an_answer(velox: VeloxProcess, tmp_path: Path, sdk: str) -> None:
    """The snippet streams some text through `velox serve --sim`."""
    (snippet,) = [each for each in blocks(README, "python") if f"from {sdk} import" in each]

    done = run([sys.executable, "-c", aimed(snippet, velox)], tmp_path)

    assert len(done.stdout.split()) > 5


def test_file_of_the_readme_is_served(tmp_path: Path) -> None:
    """`velox serve --config FILE` takes the file that is shown; its one key may use one model."""
    (example,) = [each for each in blocks(README, "yaml") if "routes:" in each]
    file = tmp_path / "velox.yaml"
    digest = f"sha256:{hashlib.sha256(b'key-of-team-a').hexdigest()}"
    file.write_text(
        re.sub(r"sha256:\w+", digest, re.sub(r"https?://[^\s,\"]+", "http://127.0.0.1:9", example, count=1))
    )

    with VeloxProcess({"OPENAI_API_KEY": "k"}, ("serve", "--config", str(file))) as velox:
        command = f"curl -s -o body -w %{{http_code}} {velox.base_url}/v1/chat/completions -H x-api-key:key-of-team-a"
        asked = [*command.split(), "-H", "content-type: application/json", "-d", '{"model": "llama-3", "messages": []}']
        assert run(asked, tmp_path).stdout == "403"


@pytest.mark.skipif(
    shutil.which("node") is None or not NODE_MODULES.is_dir(), reason="no Node with its SDK: tests/install-tools.sh"
)
def test_node_snippet_prints_an_answer(velox: VeloxProcess, tmp_path: Path) -> None:
    """The same with the SDK for Node."""
    (snippet,) = blocks(README, "js")
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    (tmp_path / "snippet.mjs").write_text(aimed(snippet, velox))

    done = run(["node", "snippet.mjs"], tmp_path)

    assert len(done.stdout.split()) > 5


@pytest.mark.parametrize("command", CURL)
def test_curl_command_works(velox: VeloxProcess, tmp_path: Path, command: str) -> None:
    """Each curl command is answered by what its page says."""
    done = run([*shlex.split(aimed(command, velox)), "--fail", "--silent", "--show-error"], tmp_path)

    if "-o cpu.pb.gz" in command:
        assert b"cpu" in gzip.decompress((tmp_path / "cpu.pb.gz").read_bytes())
    elif "chat/completions" in command:
        assert done.stdout.startswith("data: {") and done.stdout.rstrip().endswith("data: [DONE]")
    elif "reload" in command:
        assert '"result":"ok"' in done.stdout
    elif "/debug/pprof/" in command:
        assert any(says in done.stdout for says in ("requests run", "connections are open", "turns of an event loop"))
    elif "readyz" in command:
        assert '"ready":true' in done.stdout
    else:
        assert "velox_worker_up" in done.stdout


def test_go_tool_pprof_command_works(velox: VeloxProcess, tmp_path: Path) -> None:
    """`go tool pprof` reads the profile at the address that admin.md shows."""
    (command,) = [command for command in commands(ROOT / "docs/admin.md") if command.startswith("go tool pprof")]

    done = run(shlex.split(aimed(command, velox)), tmp_path, {"HOME": str(tmp_path), "PPROF_TMPDIR": str(tmp_path)})

    assert "Type: cpu" in done.stdout


def test_simulator_command_answers(tmp_path: Path) -> None:
    """`velox sim` with the options of development.md says where it listens, and leaves at SIGTERM."""
    (command,) = [command for command in commands(ROOT / "docs/development.md") if " sim " in command]
    words = shlex.split(command.replace(":9000", ":0"))[1:]
    process = subprocess.Popen(
        [sys.executable, "-m", "velox", *words], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, env=BASE_ENV
    )
    try:
        assert process.stdout is not None
        assert re.match(r"velox sim listening on http://127\.0\.0\.1:\d+", process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def test_make_run_streams_an_answer() -> None:
    """U1: the simulator's answer, printed by the SDK, also beside keys. `make run` is this program, in its .venv."""
    assert "deploy/demo.py" in (ROOT / "Makefile").read_text()

    env = {
        "PYTHONPATH": str(REPOSITORY),
        "OPENAI_API_KEY": "sk-in-the-shell",
        "ANTHROPIC_API_KEY": "sk-ant-in-the-shell",
    }
    done = run([sys.executable, "deploy/demo.py"], REPOSITORY, env)

    assert f"This is Velox {DESCRIPTION}." in done.stdout
    assert ("make -C .compiled run" in done.stdout) == (BUILD == "plain")
    assert "built-in simulator" in done.stdout
    assert re.search(
        r"ready after \d+\.\d s\n.+first token after \d+ ms, whole answer after \d+ ms", done.stdout, re.DOTALL
    )
    (curl,) = [line for line in done.stdout.partition("Next:")[2].splitlines() if line.startswith("  curl ")]
    assert json.loads(shlex.split(curl)[-1])["model"] == "velox-sim" and ".venv/bin/velox init" in done.stdout


def test_make_run_sends_nothing_that_may_cost(wall: Wall) -> None:
    """U1: an upstream that is named gets the HEAD that warms a connection, and no call of a model."""
    env = {**wall.upstream.env(), "OPENAI_API_KEY": "sk-of-the-upstream", "PYTHONPATH": str(REPOSITORY)}
    with wall.upstream.playing(healthy) as upstream:
        done = run([sys.executable, "deploy/demo.py"], REPOSITORY, env)

    assert "No request was sent, as this upstream may charge for one: `make run KEY=yes` sends one." in done.stdout
    assert upstream.calls == []


def test_make_run_with_a_key_asks_the_origin(wall: Wall) -> None:
    """With a key and an origin set, and KEY=yes: the same through that origin, with that key."""

    async def answer(call: Call) -> None:
        if call.method == "GET":
            await call.reply(200, JSON, b'{"object":"list","data":[{"id":"far","object":"model"}]}')
            return
        await call.head(200, SSE)
        await call.data(chat_chunk("Because.") + b"data: [DONE]\n\n")
        await call.end()

    env = {**wall.upstream.env(), "OPENAI_API_KEY": "sk-of-the-upstream", "PYTHONPATH": str(REPOSITORY)}
    env["VELOX_DEMO_PAYS"] = "yes"
    assert "VELOX_DEMO_PAYS=$(KEY)" in (ROOT / "Makefile").read_text()
    with wall.upstream.playing(answer) as upstream:
        done = run([sys.executable, "deploy/demo.py"], REPOSITORY, env)
        call = upstream.wait_call()

    assert "Because." in done.stdout
    assert call.header("authorization") == "Bearer sk-of-the-upstream"
