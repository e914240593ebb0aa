"""`make release`: what it puts beside the packages, what it refuses, and that the page's commands check it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.packages import build
from deploy.release.lock import read_lock
from deploy.sources import ROOT
from tests.markdown import commands
from velox import __version__

DATE = 1_700_000_000
TOOLS = ROOT / ".release"
PAGE = ROOT / "docs/releasing.md"

pytestmark = [
    pytest.mark.more,
    pytest.mark.skipif(not (TOOLS / "installed").exists(), reason="no CycloneDX library: `make release-tools`"),
]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` makes, but for the compiled wheel."""
    folder = tmp_path_factory.mktemp("packages")
    build(folder, DATE)
    for name in ("requirements.lock", "requirements-core.lock"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture
def dist(packages: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packages, tmp_path / "dist"))


def release(dist: Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(TOOLS), "SOURCE_DATE_EPOCH": str(DATE), **more}
    command = [sys.executable, "-m", "deploy.release", str(dist)]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def run_shown(word: str, folder: Path) -> None:
    """Run the page's commands that begin with a word."""
    shown = [each.split() for each in commands(PAGE) if each.startswith(word)]
    assert shown
    for words in shown:
        subprocess.run(words, cwd=folder, check=True, capture_output=True)


def test_release_is_whole_and_can_be_checked_as_shown(dist: Path) -> None:
    """The bill names what the lock does; the digests are signed; a changed byte is found."""
    run_shown("openssl genpkey", dist.parent)
    run_shown("openssl pkey ", dist.parent)

    done = release(dist, RELEASE_KEY=str(dist.parent / "release.pem"), RELEASE_BUILDER="https://ci.example.com/run/1")

    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {path.name for path in dist.iterdir()}
    bill = json.loads((dist / f"velox-gateway-{__version__}.cdx.json").read_text())
    locked = read_lock((ROOT / "requirements.lock").read_text())
    assert {(each["name"], each["version"]) for each in bill["components"]} == {(p.name, p.version) for p in locked}
    needs = {each["ref"]: set(each.get("dependsOn", ())) for each in bill["dependencies"]}
    assert (
        "httpcore" in needs["httpx"] and "uvloop" in needs["velox-gateway"] and "httpcore" not in needs["velox-gateway"]
    )
    licences = (dist / "THIRD-PARTY-LICENSES.txt").read_text()
    assert all(f"{each.name} {each.version}: " in licences for each in locked)
    statement = json.loads((dist / f"velox-gateway-{__version__}.intoto.json").read_text())
    assert statement["predicate"]["runDetails"]["builder"]["id"] == "https://ci.example.com/run/1"
    assert {each["name"] for each in statement["subject"]} > {f"velox_gateway-{__version__}.tar.gz"}

    shutil.copy(dist.parent / "release.pub", dist)
    run_shown("openssl pkeyutl", dist)
    run_shown("sha256sum", dist)
    (dist / "THIRD-PARTY-LICENSES.txt").write_text(licences + " ")
    with pytest.raises(subprocess.CalledProcessError):
        run_shown("sha256sum", dist)


def test_release_is_the_same_again(dist: Path, tmp_path: Path) -> None:
    """Nothing in it tells when or where it was made."""
    again = Path(shutil.copytree(dist, tmp_path / "again"))
    for folder, zone in ((dist, "Asia/Tokyo"), (again, "UTC")):
        assert release(folder, TZ=zone).returncode == 0

    assert (dist / "SHA256SUMS").read_text() == (again / "SHA256SUMS").read_text()


def test_wheel_that_is_not_of_these_sources_is_refused(dist: Path) -> None:
    """It would be published under their name."""
    wheel = dist / f"velox_gateway-{__version__}-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes() + b"\0")

    done = release(dist)

    assert done.returncode == 2
    assert done.stderr == f"no release: {wheel} is not what these sources make: run `make dist` again\n"


def test_file_of_another_version_is_refused(dist: Path) -> None:
    """What lies in the folder is uploaded with the rest."""
    (dist / "velox_gateway-0.0.9.tar.gz").touch()

    done = release(dist)

    assert done.returncode == 2
    assert "has other files, too: velox_gateway-0.0.9.tar.gz; remove them" in done.stderr


def test_key_that_signs_nothing_stops_the_release(dist: Path) -> None:
    """An unsigned release must not be taken for a signed one."""
    done = release(dist, RELEASE_KEY="/nowhere/release.pem")

    assert done.returncode == 2 and "does not sign with RELEASE_KEY=/nowhere/release.pem" in done.stderr
    assert not (dist / "SHA256SUMS.sig").exists()
