"""Put beside the packages of `make dist` what a release has besides: all of it but the upload.

    PYTHONPATH=.release python -m deploy.release FOLDER      as `make release` does

    velox-gateway-VERSION.cdx.json          what is in it: CycloneDX 1.6
    THIRD-PARTY-LICENSES.txt                the licences of all that it needs
    velox-gateway-VERSION.intoto.json       from which commit and lock it was built: SLSA provenance 1
    SHA256SUMS                              of all of these and the packages
    SHA256SUMS.sig                          signed, where RELEASE_KEY names a private key (Ed25519, PEM)

A compiled wheel gets the manylinux tag of the systems that it runs on, and its first name goes. docs/releasing.md has
the steps before and after.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from deploy.packages import build
from deploy.release.licences import LicenceError, licences_page
from deploy.release.lock import Locked, read_lock
from deploy.release.sbom import sbom
from deploy.sources import ROOT, source_date
from velox import __version__

__all__ = ["ReleaseError", "main", "release"]

_LOCK: Final = "requirements.lock"
_SUMS: Final = "SHA256SUMS"


class ReleaseError(Exception):
    """What a person has to see to before a release."""


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Return 0, or 2 with a reason."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the packages are")
    options = parser.parse_args(arguments)
    try:
        for path in release(options.folder.resolve(), os.environ if environ is None else environ):
            print(path.name)  # noqa: T201
    except (ReleaseError, LicenceError) as error:
        print(f"no release: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def release(folder: Path, environ: Mapping[str, str]) -> list[Path]:
    """Complete a release; return its files. Raises ReleaseError and LicenceError.

    What an earlier run has left in the folder and is none of these files is refused: it would be uploaded with them.
    """
    date = source_date(environ)
    names = {f"velox_gateway-{__version__}-py3-none-any.whl", f"velox_gateway-{__version__}.tar.gz"}
    _check_same_again(folder, names, date)
    for wheel in folder.glob(f"velox_gateway-{__version__}-cp*-linux_*.whl"):
        _tag(wheel, date)
    packages = read_lock((folder / _LOCK).read_text())
    bill = folder / f"velox-gateway-{__version__}.cdx.json"
    bill.write_text(sbom(packages, __version__, date))
    licences = folder / "THIRD-PARTY-LICENSES.txt"
    licences.write_text(licences_page(packages))
    built = [*sorted(folder.glob(f"velox_gateway-{__version__}*")), folder / _LOCK, folder / "requirements-core.lock"]
    origin = folder / f"velox-gateway-{__version__}.intoto.json"
    origin.write_text(_provenance([*built, bill, licences], packages, date, environ))
    files = [*built, bill, licences, origin]
    sums = folder / _SUMS
    sums.write_text("".join(f"{_sha256(path)}  {path.name}\n" for path in files))
    signature = folder / f"{_SUMS}.sig"
    signature.unlink(missing_ok=True)
    if key := environ.get("RELEASE_KEY", ""):
        _sign(sums, signature, key)
        files.append(signature)
    files.append(sums)
    others = {path.name for path in folder.iterdir()} - {path.name for path in files} - {"built"}
    if others:
        raise ReleaseError(f"{folder} has other files, too: {', '.join(sorted(others))}; remove them")
    return files


def _check_same_again(folder: Path, names: set[str], date: int) -> None:
    """Build the packages once more; raise ReleaseError unless they are the bytes that are there."""
    with tempfile.TemporaryDirectory(prefix="velox-release-") as temporary:
        again = build(Path(temporary), date)
        if {path.name for path in again} != names:
            raise ReleaseError(f"the sources make {sorted(path.name for path in again)}, not version {__version__}")
        for path in again:
            there = folder / path.name
            if not there.is_file() or there.read_bytes() != path.read_bytes():
                raise ReleaseError(f"{there} is not what these sources make: run `make dist` again")


def _tag(wheel: Path, date: int) -> None:
    """Give a wheel the manylinux tag of the oldest system that its modules run on: others may not take `linux_...`."""
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "--only-plat", "-w", str(wheel.parent)]
    tools = os.environ.get("PYTHONPATH", "").split(os.pathsep)[0]
    environment = {**os.environ, "PATH": f"{tools}/bin:{os.environ['PATH']}", "SOURCE_DATE_EPOCH": str(date)}
    done = subprocess.run([*command, str(wheel)], env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise ReleaseError(f"{wheel.name} gets no manylinux tag: {done.stderr.strip() or done.stdout.strip()}")
    wheel.unlink()


def _provenance(files: Sequence[Path], packages: Sequence[Locked], date: int, environ: Mapping[str, str]) -> str:
    """Return an in-toto statement: https://slsa.dev/spec/v1.0/provenance. It is signed by who attests to it.

    RELEASE_BUILDER in the environment names the builder as a URI, as a build service gives it.
    """
    commit = subprocess.run(  # noqa: S603
        ["git", "-c", f"safe.directory={ROOT}", "rev-parse", "HEAD"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    sources = [{"name": "sources", "digest": {"gitCommit": commit}}] if commit else []
    needed = [{"uri": f"pkg:pypi/{each.name}@{each.version}"} for each in packages]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": _sha256(path)}} for path in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:velox-gateway:make-release:1",
                "externalParameters": {"version": __version__, "SOURCE_DATE_EPOCH": date},
                "resolvedDependencies": [*sources, *needed],
            },
            "runDetails": {"builder": {"id": environ.get("RELEASE_BUILDER", "urn:velox-gateway:builder:local")}},
        },
    }
    return json.dumps(statement, indent=2) + "\n"


def _sign(file: Path, signature: Path, key: str) -> None:
    command = ["openssl", "pkeyutl", "-sign", "-inkey", key, "-rawin", "-in", str(file), "-out", str(signature)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        signature.unlink(missing_ok=True)
        raise ReleaseError(f"openssl does not sign with RELEASE_KEY={key}: {done.stderr.strip()}")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
