"""The flame graph in a real browser: it is drawn, it says what ran, and its script works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.test_admin import load, simulated
from velox.build import BUILD, UNSEEN_BY_PROFILES

CHROMIUM = shutil.which("chromium")
# No network beyond this machine, no sandbox (the tests may run as root), nothing kept.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1400,900",
]


@pytest.mark.skipif(CHROMIUM is None and os.environ.get("CI") != "true", reason="chromium is not installed")
@pytest.mark.more
def test_profile_under_load_is_a_flame_graph_in_a_browser(tmp_path: Path) -> None:
    """/debug/pprof/profile opened in Chromium: a picture of the running code, worker by worker."""
    assert CHROMIUM is not None, "tests/install-tools.sh installs chromium"
    picture = tmp_path / "flame.png"
    with simulated() as velox, load(velox):
        url = f"{velox.admin_url}/debug/pprof/profile?seconds=2"
        command = [
            CHROMIUM,
            *FLAGS,
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--screenshot={picture}",
            "--dump-dom",
            url,
        ]
        shown = subprocess.run(command, capture_output=True, timeout=60, check=True).stdout.decode()

    assert "<svg" in shown
    seen = {"plain": ("Exchange._run", "data_received"), "compiled": ("velox.runtime.worker.", UNSEEN_BY_PROFILES)}
    for name in ("worker 0", "worker 1", *seen[BUILD]):
        assert re.search(rf"<(?:text|title)[^>]*>[^<]*{re.escape(name)}", shown), f"{name} is not in the picture"
    assert picture.stat().st_size > 10_000
