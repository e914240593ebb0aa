"""A ledger on a disk that hangs: a file system of its own, which is frozen. Needs root, and a loop device."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.test_ledger import usage
from tests.e2e.tools import CHAT, Client, covers, wait_warm

pytestmark = pytest.mark.more

_IMAGE_BYTES = 64 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that is a file system of its own."""
    if os.geteuid() or not all(map(shutil.which, ("mkfs.ext4", "fsfreeze", "mount"))):
        pytest.skip("only root may mount a file system, with mkfs.ext4 and fsfreeze")
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no loop device: {mounted.stderr.decode(errors='replace').strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(folder)], check=False, capture_output=True)
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@covers("VELOX_LEDGER_RINGS")
def test_requests_are_served_while_the_disk_hangs(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With rings in memory. With one in that file system a worker waits at its first record. All are recorded then."""
    ledger = disk / "ledger"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as rings:
        env = {"VELOX_WORKERS": "2", "VELOX_LEDGER": str(ledger), "VELOX_LEDGER_RINGS": f"{rings}/velox"}
        with VeloxProcess(env, ("serve", "--sim")) as velox, Client(velox) as client:
            wait_warm(velox)
            assert client.ask("POST", "/v1/chat/completions", CHAT).status == 200
            until(lambda: velox.metric("velox_ledger_waiting_records") == 0, "it has opened its store")
            workers = velox.worker_pids()
            subprocess.run(["fsfreeze", "--freeze", str(disk)], check=True)
            for _ in range(10):
                assert client.ask("POST", "/v1/chat/completions", CHAT).status == 200
            assert velox.admin("/readyz").status == 200
            assert velox.metric("velox_ledger_waiting_records") > 0
            subprocess.run(["fsfreeze", "--unfreeze", str(disk)], check=True)
            until(lambda: velox.metric("velox_ledger_waiting_records") == 0, "what waited is kept")
            assert velox.worker_pids() == workers
        (row,) = usage(ledger, capsys, "--since", "1h")
        assert row["calls"] == 11
