"""The packages that `make dist` makes, installed into empty environments: nothing of this clone is in reach.

With the packages of a lock only, for each version of Python that Velox runs on and that is here.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from packaging.markers import Marker

from deploy.packages import build
from deploy.sources import PACKAGES, ROOT
from tests.e2e.tools import free_port
from tests.e2e.watching import LineLog
from tests.markdown import commands
from velox import __version__

VERSIONS = ("3.11", "3.12", "3.13")
DATE = 1_700_000_000
# The most that a gateway without extras takes on disk, with its bytecode.
CORE_BYTES = 80_000_000
TOOLS = ROOT / ".release"

pytestmark = pytest.mark.more


def interpreter(version: str) -> str | None:
    """Return a Python of this version, None if there is none: on the PATH, or among those of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [
        shutil.which(f"python{version}"),
        *sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/python{version}"))),
    ]
    for each in filter(None, found):
        # A shim of pyenv is on the PATH whether or not it leads anywhere.
        done = subprocess.run([each, "-c", "import venv, sys; print(sys.version)"], capture_output=True, check=False)
        if done.returncode == 0:
            return each
    return None


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The plain wheel and the source distribution."""
    wheel, archive = build(tmp_path_factory.mktemp("dist"), DATE)
    return wheel, archive


def environment(folder: Path, python: str, lock: str, wheel: Path) -> Path:
    """Make an environment with the lock's packages and the wheel, and nothing else; return it."""
    env = folder / "env"
    subprocess.run([python, "-m", "venv", "--without-pip", str(env)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(env / "bin/python"), "-qq", "install", "--no-compile"]
    subprocess.run([*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(ROOT / lock)], check=True)
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    return env


def names_of_lock(lock: str, version: str) -> set[str]:
    """Return the names that a lock has for a version of Python."""
    here = {"python_version": ".".join(version.split(".")[:2]), "python_full_version": version}
    entries = re.findall(r"^([a-z0-9.-]+)==\S+(?: ; (.*?))? \\$", (ROOT / lock).read_text(), re.MULTILINE)
    return {name for name, marker in entries if not marker or Marker(marker).evaluate(here)}


def version_of(env: Path) -> str:
    program = "import platform; print(platform.python_version())"
    return subprocess.check_output([str(env / "bin/python"), "-c", program], text=True).strip()


def installed(env: Path) -> set[str]:
    """Return the names of what is installed, as locks write them."""
    program = "import importlib.metadata as m\nfor each in m.distributions(): print(each.metadata['Name'])"
    done = subprocess.run([str(env / "bin/python"), "-c", program], env={}, capture_output=True, text=True, check=True)
    return {re.sub(r"[-_.]+", "-", name).lower() for name in done.stdout.split()}


@contextlib.contextmanager
def gateway(command: list[str], folder: Path, more: Mapping[str, str] | None = None) -> Iterator[tuple[int, int]]:
    """Run `velox serve --sim` with next to nothing in its environment; yield the ports of clients and of the admin."""
    port, admin = free_port(), free_port()
    env = {"PATH": "/usr/bin:/bin", "VELOX_LISTEN": f"127.0.0.1:{port}", "VELOX_ADMIN_LISTEN": f"127.0.0.1:{admin}"}
    process = subprocess.Popen(
        [*command, "serve", "--sim"],
        cwd=folder,
        env={**env, **(more or {})},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None, "a pipe"
    log = LineLog(process.stderr, f"package-{port}")
    try:
        log.wait(lambda line: " ready in " in line, 60)
        yield port, admin
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0
    finally:
        process.kill()
        process.wait()
        log.close()


def page(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def streamed_answer(port: int) -> str:
    """Ask for a chat completion as a stream; return its text."""
    body = json.dumps({"model": "velox-sim", "stream": True, "messages": [{"role": "user", "content": "Hello"}]})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        reply = connection.getresponse()
        assert (reply.status, reply.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
        events = [line.removeprefix("data: ") for line in reply.read().decode().splitlines() if line]
    assert events.pop() == "[DONE]"
    deltas = [json.loads(event)["choices"] for event in events]
    return "".join(choices[0]["delta"].get("content") or "" for choices in deltas if choices)


def run_and_ask(env: Path, build_name: str, version: str, folder: Path) -> None:
    """Start the gateway of an environment, stream an answer, and see that each place tells which build it is."""
    full = version_of(env)
    said = f"{__version__} ({build_name}, Python {full})"
    assert full.startswith(f"{version}.")
    done = subprocess.run([str(env / "bin/velox"), "--version"], env={}, capture_output=True, text=True, check=True)
    assert done.stdout == f"velox {said}\n"
    with gateway([str(env / "bin/velox")], folder) as (port, admin):
        assert len(streamed_answer(port)) > 20
        assert f"Version {said}." in page(admin, "/")
        labels = f'build="{build_name}",python="{full}",version="{__version__}"'
        assert f"velox_build_info{{{labels}}} 1.0" in page(admin, "/metrics")


@pytest.mark.parametrize("version", VERSIONS)
def test_plain_wheel_runs_from_an_empty_environment(packages: tuple[Path, Path], tmp_path: Path, version: str) -> None:
    """U7: with the packages of the smaller lock and nothing else, in 80 MB; it streams an answer and ends well."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    env = environment(tmp_path, python, "requirements-core.lock", packages[0])

    assert installed(env) == names_of_lock("requirements-core.lock", version_of(env)) | {"velox-gateway"}
    run_and_ask(env, "plain", version, tmp_path)
    subprocess.run([str(env / "bin/python"), "-m", "compileall", "-q", str(env / "lib")], check=True, env={})
    size = sum(path.lstat().st_blocks * 512 for path in env.rglob("*"))
    assert size < CORE_BYTES, f"{size / 1e6:.0f} MB"


def test_compiled_wheel_runs_from_an_empty_environment(tmp_path: Path) -> None:
    """The one in dist/: with the packages of the lock of all extras, and nothing else."""
    wheels = [path for path in (ROOT / "dist").glob("*-cp*.whl") if is_of_these_sources(path)]
    if not wheels:
        pytest.skip("dist/ has no compiled wheel of these sources: `make wheel`")
    env = environment(tmp_path, sys.executable, "requirements.lock", wheels[0])

    assert installed(env) == names_of_lock("requirements.lock", version_of(env)) | {"velox-gateway"}
    run_and_ask(env, "compiled", ".".join(map(str, sys.version_info[:2])), tmp_path)


def is_of_these_sources(wheel: Path) -> bool:
    with zipfile.ZipFile(wheel) as packed:
        names = [name for name in packed.namelist() if name.endswith(".py")]
        return all((ROOT / name).is_file() and packed.read(name) == (ROOT / name).read_bytes() for name in names)


def test_same_sources_make_the_same_bytes(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """Whoever builds them, wherever and whenever."""
    program = (
        "import os, sys, pathlib\nos.umask(0o077)\nfrom deploy.packages import build\n"
        f"build(pathlib.Path(sys.argv[1]), {DATE})"
    )
    env = {**os.environ, "TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7", "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, env=env, check=True)

    assert [path.read_bytes() == (tmp_path / path.name).read_bytes() for path in packages] == [True, True]


def test_source_distribution_makes_the_same_wheel(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """It has all that its build needs, and nothing else of the clone."""
    wheel, archive = packages
    with tarfile.open(archive) as packed:
        tops = {member.name.split("/")[1] for member in packed.getmembers() if "/" in member.name}
    assert tops == {
        *PACKAGES, "LICENSE", "NOTICE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "velox_gateway.egg-info"
    }  # fmt: skip

    pip = [sys.executable, "-m", "pip", "-qq", "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*pip, str(archive)], env={**os.environ, "SOURCE_DATE_EPOCH": str(DATE)}, check=True)

    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(tmp_path / wheel.name) as theirs:
        assert sorted(ours.namelist()) == sorted(theirs.namelist())
        assert [name for name in ours.namelist() if ours.read(name) != theirs.read(name)] == []
        assert {f"velox_gateway-{__version__}.dist-info/licenses/{name}" for name in ("LICENSE", "NOTICE")} < set(
            ours.namelist()
        )


def commands_of(tool: str, wheel: Path) -> list[str]:
    """Return the page's command that runs the wheel with a tool, its words."""
    (shown,) = [each for each in commands(ROOT / "docs/deploy.md") if each.startswith(f"{tool} ")]
    return shown.replace(f"dist/{wheel.name}", str(wheel)).split()


@pytest.mark.parametrize("tool", ["uvx", "pipx"])
def test_wheel_is_run_without_being_installed(packages: tuple[Path, Path], tmp_path: Path, tool: str) -> None:
    """The page's commands: the tool makes an environment, with what the wheel's metadata asks for."""
    if not (TOOLS / "installed").exists():
        pytest.skip("uv and pipx are not here: `make release-tools`")
    words = commands_of(tool, packages[0])
    assert words[-2:] == ["serve", "--sim"]
    uvx, pipx = [str(TOOLS / "bin/uvx"), "--python", sys.executable], [sys.executable, "-m", "pipx"]
    kept = ("PATH", "PIP_CERT", "SSL_CERT_FILE", "PIP_FIND_LINKS", "PIP_INDEX_URL", "HTTPS_PROXY", "https_proxy")
    more = {name: os.environ[name] for name in kept if name in os.environ}
    more |= {"HOME": str(tmp_path), "PYTHONPATH": str(TOOLS) if tool == "pipx" else ""}
    began = time.monotonic()

    with gateway([*(uvx if tool == "uvx" else pipx), *words[1:-2]], tmp_path, more) as (port, _):
        assert len(streamed_answer(port)) > 20
    assert time.monotonic() - began < 120


def test_commands_of_the_page_install_the_service(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """U7: as shown for systemd, in another folder; the unit starts what they install."""
    shown = [each for each in commands(ROOT / "docs/deploy.md") if "/opt/velox" in each]
    wheel = packages[0].name
    for command in shown:
        words = command.replace("/opt/velox", str(tmp_path / "velox")).replace(f"dist/{wheel}", str(packages[0]))
        words = words.replace("dist/requirements.lock", str(ROOT / "requirements.lock"))
        program, *rest = words.split()
        python = program.replace("python3", sys.executable) if program == "python3" else program
        subprocess.run([python, *rest], cwd=tmp_path, check=True)

    unit = (ROOT / "deploy/velox.service").read_text()
    (start,) = re.findall(r"^ExecStart=(\S+) serve$", unit, re.MULTILINE)
    program = start.replace("/opt/velox", str(tmp_path / "velox"))
    with gateway([program], tmp_path) as (port, _):
        assert len(streamed_answer(port)) > 20
    assert len(shown) >= 3
    names = installed(tmp_path / "velox")
    assert "velox-gateway" in names and not names & {"pytest", "mypy", "matplotlib", "openai", "ruff"}
