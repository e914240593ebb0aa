"""What the image's Dockerfile makes, without a container: its command, in an environment as poor as a container's.

As process 1, with nothing in the environment but what the image sets, in the root folder, without a home; as another
user, too, where that one may read this installation.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.tools import free_port
from tests.e2e.watching import LineLog

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
IMAGE_USER = 10001
AS_PROCESS_1 = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.fixture
def bin_folder() -> Iterator[Path]:
    """What stands for /opt/velox/bin: the command as pip writes it, with a python that finds this installation."""
    # Not pytest's, which nobody else may enter.
    folder = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    folder.chmod(0o755)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (folder / "velox").write_text(f"#!{python}\nimport sys\nfrom velox.cli import main\nsys.exit(main())\n")
    (folder / "velox").chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return what the image sets, and what `docker run -e` adds; no HOME, and no folder for temporary files."""
    (line,) = re.findall(r"^ENV (.*)$", DOCKERFILE.replace("\\\n", " "), re.MULTILINE)
    image = dict(word.split("=", 1) for word in line.split())
    path = image.pop("PATH").replace("/opt/velox/bin", str(folder)).replace("$PATH", "/usr/bin:/bin")
    return {**image, "PATH": path, "TMPDIR": "/nonexistent", **more}


def can_run_as(user: int) -> bool:
    """Say whether another user may run the interpreter of these tests and read the code."""
    if os.geteuid() != 0:
        return False
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); import velox.cli"]
    with contextlib.suppress(OSError):
        return subprocess.run(command, user=user, group=user, extra_groups=[], cwd="/", check=False).returncode == 0
    return False


def unshares() -> bool:
    return bool(shutil.which("unshare")) and not subprocess.run([*AS_PROCESS_1, "true"], check=False).returncode


@contextlib.contextmanager
def container(
    env: dict[str, str], arguments: Sequence[str], launcher: Sequence[str] = (), user: int | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], LineLog]]:
    """Run `velox serve` as a container would; yield the process and its log."""
    more = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    process = subprocess.Popen(
        [*launcher, "velox", "serve", *arguments],
        env=env,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        **more,  # type: ignore[call-overload]
    )
    assert process.stderr is not None, "a pipe"
    log = LineLog(process.stderr, "image-stderr")
    try:
        log.wait(lambda line: " ready in " in line, 20)
        yield process, log
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        log.close()


def run(env: dict[str, str], *command: str, user: int | None = None) -> subprocess.CompletedProcess[str]:
    """Do what `docker exec` does."""
    more = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False, **more)  # type: ignore[call-overload,no-any-return]


def admin_of(log: LineLog) -> str:
    """Return where the admin listener is."""
    line = log.wait(lambda line: " ready in " in line, 1)
    found = re.search(r"admin on http://(\S+?),", json.loads(line)["message"])
    assert found is not None, line
    return found.group(1)


def test_entry_point_is_the_command_on_the_path(bin_folder: Path) -> None:
    """`docker run IMAGE check` and `docker exec CONTAINER velox ...` are the same program."""
    assert re.search(r'^ENTRYPOINT \["tini", "--", "velox"\]$', DOCKERFILE, re.MULTILINE)
    assert stat.S_IMODE((bin_folder / "velox").stat().st_mode) == 0o755
    env = environment(bin_folder, VELOX_AUTH="none")
    assert run(env, "velox", "--version").stdout.startswith("velox ")
    checked = run(env, "velox", "check")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert run(environment(bin_folder), "velox", "check").returncode == 2, "open to all, and without keys"


@pytest.mark.parametrize("is_process_1", [False, True])
def test_velox_reload_works_in_a_container(bin_folder: Path, is_process_1: bool) -> None:
    """By the variables of the container alone; also as process 1, and as the image's user where that can be tried."""
    if is_process_1 and not unshares():
        pytest.skip("no process namespace can be made here")
    user = IMAGE_USER if not is_process_1 and can_run_as(IMAGE_USER) else None
    file = bin_folder / "velox.yaml"
    file.write_text("upstreams: [{name: a, origin: 'http://127.0.0.1:9'}]\n")
    env = environment(
        bin_folder,
        VELOX_AUTH="none",
        VELOX_CONFIG=str(file),
        VELOX_LISTEN="0.0.0.0:0",
        VELOX_ADMIN_LISTEN="127.0.0.1:0",
        VELOX_WORKERS="1",
        VELOX_ACCESS_LOG="off",
    )
    with container(env, (), AS_PROCESS_1 if is_process_1 else (), user) as (process, log):
        # A fixed port could be taken on the machine of a test; in a container the default is free.
        env["VELOX_ADMIN_LISTEN"] = admin_of(log)
        same = run(env, "velox", "reload", user=user)
        assert (same.returncode, same.stderr) == (0, ""), same
        file.write_text(
            "upstreams: [{name: a, origin: 'http://127.0.0.1:9'}, {name: b, origin: 'http://127.0.0.1:9'}]\n"
        )
        changed = run(env, "velox", "reload", user=user)
        assert changed.returncode == 0 and "configuration 2 is in use" in changed.stdout, changed
        if not is_process_1:  # a signal to unshare is none to process 1 inside
            process.send_signal(signal.SIGTERM)
            assert process.wait(15) == 0


@pytest.mark.parametrize("place", ["file", "unix", "empty"])
def test_health_check_of_the_image_finds_the_admin_listener(bin_folder: Path, place: str) -> None:
    """Its port stands in the file, it is a socket file, or its variable is empty; without a gateway it fails."""
    (words,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    file = bin_folder / "velox.yaml"
    socket = f"unix:{bin_folder / 'admin.sock'}"
    admin = f"127.0.0.1:{free_port()}"
    file.write_text("workers: 1\nupstream_origin: http://127.0.0.1:9\n")
    if place != "unix":
        file.write_text(f"{file.read_text()}admin_listen: {admin}\n")
    env = environment(bin_folder, VELOX_AUTH="none", VELOX_CONFIG=str(file), VELOX_LISTEN="127.0.0.1:0")
    env |= {"file": {}, "unix": {"VELOX_ADMIN_LISTEN": socket}, "empty": {"VELOX_ADMIN_LISTEN": ""}}[place]

    with container(env, ()):
        found = run(env, *json.loads(words))
    gone = run(env, *json.loads(words))

    assert (found.returncode, found.stdout, found.stderr) == (0, "healthy\n", "")
    assert gone.returncode == 1 and "can't be reached at" in gone.stderr, gone


def test_reload_that_finds_nobody_says_what_it_needs(bin_folder: Path) -> None:
    """As after `serve --config FILE`, where the file puts the admin listener elsewhere."""
    env = environment(bin_folder, VELOX_ADMIN_LISTEN="127.0.0.1:1")
    found = run(env, "velox", "reload")
    assert found.returncode == 2 and "--config" in found.stderr and "can't be reached at 127.0.0.1:1" in found.stderr
