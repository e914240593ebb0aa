"""What docs/keys.md and docs/admin.md show is run, or read, as it stands there."""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.e2e.harness import REPOSITORY, VeloxProcess
from tests.markdown import ROOT, blocks, commands
from velox.settings import load
from velox.settings.parse import host_names

KEYS, ADMIN = ROOT / "docs/keys.md", ROOT / "docs/admin.md"
TOKEN = "token-of-the-page"


def shell(command: str, folder: Path, **env: str) -> str:
    """Run a command in a folder of its own; return what it printed."""
    python = f"{sys.executable} -m velox"
    done = subprocess.run(
        ["bash", "-c", command.replace(".venv/bin/velox", python)],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_key_commands_make_a_key_and_its_entry(tmp_path: Path) -> None:
    """`key new` prints what the page shows; `key hash` gives the same entry for that key."""
    new, of_stdin = (command for command in commands(KEYS) if ".venv" in command)
    shown = blocks(KEYS, "text")[0]

    printed = shell(new, tmp_path)

    words = [line.split() for line in printed.splitlines()]
    assert [line[0] for line in words] == [line.split()[0] for line in shown.splitlines()] == ["key", "entry"]
    key, entry = words[0][1], words[1][1]
    assert entry == f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"
    assert len(key) == len(shown.split()[1]) and shell(new, tmp_path) != printed
    (tmp_path / "key.txt").write_text(f"{key}\n")
    assert shell(of_stdin, tmp_path) == f"{entry}\n"


def test_key_shown_has_the_entry_shown() -> None:
    """The example's two lines belong together."""
    key, entry = (line.split()[1] for line in blocks(KEYS, "text")[0].splitlines())

    assert entry == f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def test_files_shown_are_taken(tmp_path: Path) -> None:
    """Both forms of a file of keys, and the list in VELOX_CONFIG."""
    lines, pages, listed, config, limited, endpoints = blocks(KEYS, "text")[1], *blocks(KEYS, "yaml")
    (tmp_path / "file").write_text(pages)
    assert load({"VELOX_CONFIG": str(tmp_path / "file"), "VELOX_API_KEYS": "vk-docs-0000"}, cores=1).cors_origins
    found = []
    for content, variable in (
        (lines, "VELOX_API_KEYS_FILE"),
        (listed, "VELOX_API_KEYS_FILE"),
        (config, "VELOX_CONFIG"),
        (limited, "VELOX_API_KEYS_FILE"),
        (endpoints, "VELOX_API_KEYS_FILE"),
    ):
        (tmp_path / "file").write_text(content)
        settings = load({variable: str(tmp_path / "file")}, cores=1)
        found.append([(key.name, len(key.terms.models)) for key in settings.api_keys])

    assert found == [
        [("", 0)] * 2,
        [("web-shop", 2), ("web-shop", 2), ("", 0)],
        [("nightly", 0)],
        [("web-shop", 0)],
        [("reports", 0)],
    ]
    assert settings.api_keys[0].terms.endpoints == ("inference", "files", "/v1/batches*")


def test_admin_commands_work_with_the_token(tmp_path: Path) -> None:
    """Metrics and a profile in a file, each for who has the token and for nobody else."""
    with VeloxProcess({"VELOX_WORKERS": "1", "VELOX_ADMIN_TOKEN": TOKEN}, ("serve", "--sim")) as velox:
        metrics, profile = (
            command.replace("http://127.0.0.1:6060", velox.admin_url).replace("seconds=10", "seconds=1")
            + " --fail --silent --show-error"
            for command in commands(ADMIN)
            if "$TOKEN" in command
        )
        assert "velox_worker_up" in shell(metrics, tmp_path, TOKEN=TOKEN)
        shell(profile, tmp_path, TOKEN=TOKEN)
        assert gzip.decompress((tmp_path / "cpu.pb.gz").read_bytes())
        assert velox.admin("/metrics").status == 401


def test_scrape_that_is_shown_asks_for_a_name_that_the_setting_allows() -> None:
    """The target of the example is the name that VELOX_ADMIN_HOSTS gets beside it."""
    (scrape,) = yaml.safe_load(blocks(ADMIN, "yaml")[0])["scrape_configs"]
    target = scrape["static_configs"][0]["targets"][0]
    text = ADMIN.read_text().partition("VELOX_ADMIN_HOSTS=")[2].partition("`")[0]

    assert host_names(text) == {target.partition(":")[0]}
    assert list(scrape["authorization"]) == ["credentials_file"]
