"""Build the image of the Dockerfile without a container engine, run it as one would, and write an archive.

    python -m deploy.image FOLDER                    FOLDER/velox.oci.tar, and what was seen of it
    python -m deploy.image FOLDER --build plain      with plain modules
    python -m deploy.image FOLDER --base ROOT        on a file system that is there, in place of the one of debootstrap
    python -m deploy.image FOLDER -- OPTIONS         OPTIONS of `buildah bud`: --volume for certificates of a registry

It needs root on Debian, buildah, skopeo and debootstrap (all of Debian), no daemon, and a mirror of Debian. In place of
python:3.11-slim the image stands on Debian 12 with its own Python 3.11: the Dockerfile's steps are the same.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from deploy.sources import ROOT

__all__ = ["main", "needed_stages"]

_PACKAGES: Final = "python3.11,python3.11-venv,python3-pip,ca-certificates"
_BASE: Final = "localhost/velox-base"
_IMAGE: Final = "localhost/velox"
_START_S: Final = 60.0
_STOP_S: Final = 40.0
# In mount and process namespaces of its own: a tree that nothing can write to but what a container has to write to.
_CONTAINER: Final = """
set -eu
root=$1 user=$2
shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
exec chroot --userspec="$user:$user" "$root" "$@"
"""


class _ImageError(Exception):
    """What a person has to see to."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, or 2 with a reason."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    more = words[words.index("--") + 1 :] if "--" in words else []
    parser = argparse.ArgumentParser(prog="python -m deploy.image", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--build", choices=("compiled", "plain"), default="compiled")
    parser.add_argument("--base", type=Path, metavar="ROOT")
    options = parser.parse_args(words[: len(words) - len(more) - 1] if "--" in words else words)
    try:
        _make(options.folder.resolve(), options.build, options.base and options.base.resolve(), more)
    except _ImageError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    return 0


def needed_stages(dockerfile: str, build: str) -> str:
    """Return a Dockerfile without the stages that its last one does not need.

    BuildKit leaves them out by itself; older builders run the compiler for an image that has nothing compiled.
    """
    head, *stages = re.split(r"(?m)^(?=FROM )", dockerfile)
    names = {match[1]: at for at, text in enumerate(stages) if (match := re.match(r"FROM \S+ AS (\S+)", text))}
    wanted, queue = set[int](), [len(stages) - 1]
    while queue:
        at = queue.pop()
        wanted.add(at)
        text = stages[at].replace("${BUILD}", build)
        used = re.findall(r"(?m)^FROM (\S+)|--from=(\S+)", text)
        queue += [names[name] for pair in used for name in pair if name in names and names[name] not in wanted]
    return head + "".join(text for at, text in enumerate(stages) if at in wanted)


def _make(folder: Path, build: str, base: Path | None, more: Sequence[str]) -> None:
    if missing := [tool for tool in ("buildah", "skopeo", "debootstrap") if shutil.which(tool) is None]:
        raise _ImageError(f"missing: {', '.join(missing)}. On Debian: apt-get install {' '.join(missing)}")
    if os.geteuid() != 0:
        raise _ImageError("only root can make file systems of other users: run it as root")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="velox-image-") as temporary:
        place = Path(temporary)
        buildah = [
            "buildah",
            "--storage-driver",
            "vfs",
            "--root",
            str(place / "storage"),
            "--runroot",
            str(place / "run"),
        ]
        began = time.monotonic()
        _import_base(buildah, base or _bootstrapped(place / "base"))
        _say(f"base: {time.monotonic() - began:.0f} s")
        dockerfile = place / "Dockerfile"
        dockerfile.write_text(needed_stages((ROOT / "Dockerfile").read_text(), build))
        began = time.monotonic()
        given = [f"BASE={_BASE}", f"BUILD={build}", f"REVISION={_revision()}"]
        arguments = [word for each in given for word in ("--build-arg", each)]
        # The format of Docker: that of OCI has no health check.
        command = [*buildah, "bud", "--isolation", "chroot", "--format", "docker", "--pull-never", "-t", _IMAGE]
        _run([*command, *arguments, *more, "-f", str(dockerfile), str(ROOT)])
        _say(f"image: {time.monotonic() - began:.0f} s")
        config = _write(buildah, folder / "velox.oci.tar")
        container = _output([*buildah, "from", "--pull-never", _IMAGE])
        root = Path(_output([*buildah, "mount", container]))
        try:
            _say(f"unpacked: {_size(root)}; of it Velox and its packages: {_size(root / 'opt/velox')}")
            _try(root, config, folder)
        finally:
            _run([*buildah, "rm", container])


def _bootstrapped(root: Path) -> Path:
    """Return a small Debian 12 with Python 3.11, pip, and their usual names."""
    _run(["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root)])
    return root


def _import_base(buildah: Sequence[str], root: Path) -> None:
    """Make an image of a file system, where `python` and `pip` are as in python:3.11-slim."""
    (root / "usr/local/bin/python").unlink(missing_ok=True)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3.11")
    # Debian's pip refuses to install beside its own packages: here no others come.
    (root / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink(missing_ok=True)
    container = _output([*buildah, "from", "scratch"])
    _run([*buildah, "copy", "--quiet", container, str(root), "/"])
    _run([*buildah, "config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container])
    _run([*buildah, "commit", "--quiet", "--rm", container, _BASE])


def _write(buildah: Sequence[str], archive: Path) -> dict[str, Any]:
    """Write the image as an OCI archive; return its configuration, as skopeo reads it there."""
    archive.unlink(missing_ok=True)
    _run([*buildah, "push", "--quiet", "--format", "oci", _IMAGE, f"oci-archive:{archive}:velox"])
    inspected = json.loads(_output(["skopeo", "inspect", "--config", f"oci-archive:{archive}:velox"]))
    config: dict[str, Any] = inspected["config"]
    _say(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB, {inspected['os']}/{inspected['architecture']}")
    _say(json.dumps({name: config.get(name) for name in ("User", "Entrypoint", "Cmd", "Labels")}, indent=2))
    return config


def _try(root: Path, config: dict[str, Any], folder: Path) -> None:
    """Run the image as any user on a tree that can't be written; ask it; stop it. Raises _ImageError."""
    user = str(random.randrange(20_000, 60_000))
    env = [*config["Env"], "VELOX_AUTH=none", "VELOX_LISTEN=127.0.0.1:18080", "VELOX_ADMIN_LISTEN=127.0.0.1:16060"]
    inside = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _CONTAINER, "sh", str(root), user]
    inside += ["/usr/bin/env", "-i", *env]
    log = folder / "velox.log"
    began = time.monotonic()
    with log.open("wb") as errors:
        process = subprocess.Popen([*inside, *config["Entrypoint"], "serve", "--sim"], stderr=errors)  # noqa: S603
    try:
        while b" ready in " not in log.read_bytes():
            if process.poll() is not None or time.monotonic() - began > _START_S:
                raise _ImageError(f"the image did not start: see {log}")
            time.sleep(0.05)
        _say(f"ready after {time.monotonic() - began:.1f} s, as user {user}, on a read-only tree")
        _say(_output([*inside, "velox", "--version"]))
        _run([*inside, "velox", "health"])
        # A folder that anybody may write to, were it not for the tree.
        touch = [*inside, "touch", "/tmp/x"]  # noqa: S108
        if subprocess.run(touch, capture_output=True, check=False).returncode == 0:  # noqa: S603
            raise _ImageError("the tree of the image can be written")
        _say(f"an answer of {len(_answer(18080))} characters was streamed")
        began = time.monotonic()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        # The first process of the container, as `docker stop` finds it.
        os.kill(int(children[0]), signal.SIGTERM)
        code = process.wait(_STOP_S)
        _say(f"stopped {time.monotonic() - began:.1f} s after SIGTERM, with {code}")
        if code:
            raise _ImageError(f"the image ended with {code} after SIGTERM: see {log}")
    finally:
        process.kill()
        process.wait()


def _answer(port: int) -> str:
    """Return the text of a streamed chat completion. Raises _ImageError."""
    body = {"model": "velox-sim", "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    text = connection.getresponse().read().decode()
    connection.close()
    if not text.endswith("data: [DONE]\n\n"):
        raise _ImageError(f"no whole answer: {text[-200:]!r}")
    return "".join(re.findall(r'"content":"([^"]+)"', text))


def _revision() -> str:
    command = ["git", "-c", f"safe.directory={ROOT}", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603


def _size(root: Path) -> str:
    n_bytes = sum(path.lstat().st_blocks * 512 for path in root.rglob("*"))
    return f"{n_bytes / 1e6:.0f} MB"


def _run(command: Sequence[str]) -> None:
    # Standard output is for what was seen.
    done = subprocess.run(command, stdout=sys.stderr, check=False)  # noqa: S603
    if done.returncode:
        raise _ImageError(f"{' '.join(command[:8])} ... ended with {done.returncode}")


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise _ImageError(f"{' '.join(command[:8])} ... ended with {done.returncode}")
    return done.stdout.strip()


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
