"""The gateways that Velox is measured beside: their catalogue, files and page agree; nginx does what is measured."""

import re
import shutil
from pathlib import Path

import pytest

from bench.machine import pick_cores
from bench.peers import PEERS, Origin, PeerError, install, packages, start
from bench.peers.__main__ import PAGE, table
from bench.peers.checking import check
from bench.peers.installing import program_path, programs
from bench.peers.starting import filled
from bench.servers import Servers
from docs.tables import fill

HERE = Path(__file__).parents[2] / "bench" / "peers"
NAMES = [each.name for each in PEERS]


def test_page_says_what_the_catalogue_says() -> None:
    """docs/benchmarks/peers.md has the table of today; `python -m bench.peers table` writes it."""
    page = PAGE.read_text()
    assert page == fill(page, "peers", table())


def test_every_gateway_of_the_issue_is_there() -> None:
    """None is left out in silence."""
    assert set(NAMES) == {"nginx", "HAProxy", "Envoy", "vllm-router", "sglang-router", "smg", "Portkey", "LiteLLM"}


def test_every_file_of_configs_is_of_a_peer_and_uses_known_marks() -> None:
    """A configuration that nothing reads, or a mark that nothing fills, is a mistake."""
    known = {
        "port",
        "spare_port",
        "folder",
        "keys_map",
        "keys_list",
        "keys_regex",
        "upstream",
        "origin_port",
        "http1_port",
        "http2_port",
        "tls_port",
    }
    known |= {"api", "base", "scheme", "authority", "buffering", "no_if_whole", "user"}
    starting = (HERE / "starting.py").read_text()
    for path in (HERE / "configs").iterdir():
        assert f'"{path.name}"' in starting
        assert set(re.findall(r"@([a-z0-9_]+)@", path.read_text())) <= known


@pytest.mark.parametrize(
    "each", [each for each in PEERS if not each.package.startswith("Debian")], ids=lambda p: p.name
)
def test_locks_pin_the_version_that_the_catalogue_names(each: object) -> None:
    """What is installed is what the table says: the lock has this very version, with hashes."""
    way, name, version = re.fullmatch(r"(\S+) (\S+) (\S+)", each.package).groups()  # type: ignore[attr-defined, union-attr]
    folder = each.name.lower()  # type: ignore[attr-defined]
    if way == "npm":
        assert f'"{name}": "{version}"' in (HERE / "locks" / folder / "package.json").read_text()
        lock = (HERE / "locks" / folder / "package-lock.json").read_text()
        assert "integrity" in lock
    else:
        lock = (HERE / "locks" / f"{folder}.txt").read_text()
        assert f"{name.partition('[')[0]}=={version} \\\n    --hash=sha256:" in lock
    # No machine's own registry.
    assert "://" not in re.sub(r'"(url|funding)": "[^"]*"', "", lock)


def test_filled_refuses_an_unknown_mark() -> None:
    """A mark that is misspelt never gets into a configuration."""
    assert filled("listen @port@ # $host user@example.org", {"port": "1"}) == "listen 1 # $host user@example.org"
    with pytest.raises(KeyError):
        filled("@prot@", {"port": "1"})


def test_peer_that_is_not_installed_says_how(tmp_path: Path) -> None:
    """Neither an unknown name nor a missing installation is taken for a peer."""
    with pytest.raises(PeerError, match="install smg"):
        programs("smg", tmp_path)
    with pytest.raises(PeerError, match="no peer is called"):
        install("caddy", tmp_path, print)
    assert packages("smg", tmp_path) == []


def test_installation_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    """Without the stamp of its lock, what lies there may be half of it, or an older version."""
    (tmp_path / "smg" / "venv" / "bin").mkdir(parents=True)
    with pytest.raises(PeerError):
        programs("smg", tmp_path)


@pytest.mark.skipif(shutil.which("nginx", path=program_path()) is None, reason="nginx is not installed")
class TestNginx:
    def test_does_what_is_measured(self) -> None:
        """Bodies to 2 MB, events as they come, over both kinds of upstream; no one without the key."""
        found = check("nginx", pick_cores())
        assert set(found) == {"http1", "tls", "wrong key"}
        assert found["wrong key"] == "refused: 401"

    def test_upstream_that_it_has_not_is_refused(self, tmp_path: Path) -> None:
        """nginx speaks no HTTP/2 to upstreams; and no upstream can be had where there is none."""
        with Servers(tmp_path, pick_cores()) as servers, pytest.raises(PeerError, match="http2"):
            start("nginx", servers, Origin(http1=1, http2=1), upstream="http2", streaming=False)
