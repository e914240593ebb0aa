"""The page of the admin listener in a real browser: sign in, keys, each view in both themes and on a phone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.test_cors import CHROMIUM
from tests.e2e.upstreams import start_sim

TOKEN: Final = "an-admin-token-of-a-test"
NODE: Final = Path(__file__).parent / "node"
_IS_HERE: Final = CHROMIUM is not None and (NODE / "node_modules/playwright-core").is_dir()
_MOST_BYTES: Final = 120_000
_CONFIG: Final = """
upstreams:
  - {{name: default, provider: openai, key: env:MODEL_KEY, origin: "{usual}"}}
  - {{name: slow, provider: openai, key: env:MODEL_KEY, origin: "{slow}"}}
routes:
  - {{name: slow, match: {{models: [gpt-4o-mini]}}, to: [slow]}}
  - {{name: rest, to: [default]}}
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the browser saw, in one run."""
    folder = tmp_path_factory.mktemp("page")
    config = folder / "velox.yaml"
    env = {
        "VELOX_CONFIG": str(config),
        "MODEL_KEY": "sk-model-0123456789",
        "VELOX_RATE_LIMIT_RPM": "0",
        "VELOX_LIMITS": '[{"per": "key", "rpm": 100000}]',
        "VELOX_LEDGER": str(folder / "ledger"),
        "VELOX_MANAGED_KEYS": "on",
        "VELOX_ADMIN_TOKEN": TOKEN,
        "VELOX_WORKERS": "1",  # so that a change holds for the next request
    }
    # An answer of the slow one takes two minutes: it is there as long as anybody looks.
    usually = ("--ttft", "50ms", "--token-rate", "100", "--tokens", "64")
    with start_sim(*usually) as usual, start_sim("--token-rate", "0.5", "--tokens", "64") as slow:
        config.write_text(_CONFIG.format(usual=usual.url, slow=slow.url))
        found: dict[str, Any] = look(folder, env)
    return found


def look(folder: Path, env: dict[str, str]) -> dict[str, Any]:
    """Return what a browser sees of a gateway."""
    with VeloxProcess(env) as velox:
        node, chromium = shutil.which("node"), CHROMIUM
        assert node is not None and chromium is not None
        command = [node, "admin_page.mjs", chromium, velox.admin_url, velox.base_url, TOKEN, str(folder)]
        done = subprocess.run(
            command, cwd=NODE, env=os.environ, capture_output=True, text=True, timeout=240, check=False
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


pytestmark = [
    pytest.mark.more,
    pytest.mark.skipif(
        not _IS_HERE and os.environ.get("CI") != "true", reason="no Chromium or Playwright: tests/install-tools.sh"
    ),
]


def test_key_that_is_made_by_the_page_works_until_it_blocks_it(seen: dict[str, Any]) -> None:
    """What the buttons say is what happens."""
    assert (seen["made"], seen["blocked"], seen["unblocked"]) == (200, 401, 200)


def test_wrong_token_is_told_and_signing_out_ends_the_session(seen: dict[str, Any]) -> None:
    """The cookie that the browser had opens nothing afterwards."""
    assert "neither the admin token nor the viewer token" in seen["wrong"]
    assert seen["after"] == 401


def test_every_view_is_for_keyboards_readers_and_phones(seen: dict[str, Any]) -> None:
    """Axe finds nothing, in light and dark; nothing is wider than the screen."""
    assert len(seen["views"]) == 22
    assert seen["running"] == {"axe": [], "overflow": 0}
    assert seen["form"] == {"axe": [], "overflow": 0}
    assert {name: found for name, found in seen["views"].items() if found != {"axe": [], "overflow": 0}} == {}


def test_page_fetches_nothing_from_elsewhere_and_fails_nowhere(seen: dict[str, Any]) -> None:
    """No error in a console, also under the page's own policy; small enough for a slow line."""
    assert seen["errors"] == [] and seen["elsewhere"] == []
    assert 20_000 < seen["loaded"] < _MOST_BYTES


def test_running_request_is_ended_by_its_button(seen: dict[str, Any]) -> None:
    """Its client gets an error event and no clean end."""
    assert "ended_by_admin" in seen["ended"] and "[DONE]" not in seen["ended"]


def test_configuration_shows_where_settings_are_from_and_no_secret(seen: dict[str, Any]) -> None:
    """Those that are set; the token is one of them."""
    assert seen["settings"]["VELOX_WORKERS"] == ["1", "environment"]
    assert seen["settings"]["VELOX_ADMIN_TOKEN"] == ["hidden", "environment"]
    assert TOKEN not in json.dumps(seen["settings"])


def test_processes_are_shown_with_their_ids(seen: dict[str, Any]) -> None:
    """As the process list has them."""
    rows = {name: (pid, memory) for name, pid, _, memory in seen["processes"]}
    assert {"supervisor", "admin", "worker-0", "ledger"} <= rows.keys()
    assert all(pid.isdecimal() and memory.endswith("MiB") for pid, memory in rows.values())


def test_names_of_clients_are_text(seen: dict[str, Any]) -> None:
    """A model's name that is a script is shown, and runs nowhere."""
    assert seen["hostile"] in (200, 400, 403, 404)
    assert not seen["harmed"]


def test_usage_is_saved_as_csv(seen: dict[str, Any]) -> None:
    """A line for each row, with all columns."""
    lines = seen["csv"].split("\r\n")
    assert lines[0].startswith('"key","calls"') and any("shop" in line for line in lines[1:])


def test_limits_are_shown_with_what_they_decided(seen: dict[str, Any]) -> None:
    """Each kind that has counted a request."""
    assert [row[:2] for row in seen["limits"]] == [["key", "requests"]]
    assert int(seen["limits"][0][2]) > 0 and seen["limits"][0][3:] == ["0", "0", "0"]


def test_costs_by_program_are_shown_by_the_names_that_are_known(seen: dict[str, Any]) -> None:
    """Whatever a client calls itself; every cell of a row says something, also on a phone."""
    wide, narrow = seen["programs"], seen["programsOnPhone"]
    calls = {row[0]: int(row[2]) for row in wide["rows"]}
    assert {"claude-code": 1, "codex": 1, "openai-python": 1}.items() <= calls.items() and calls["other"] >= 1
    assert not any("script" in cell for row in wide["rows"] for cell in row)
    assert all(all(row) for row in (*wide["rows"], *narrow["rows"]))
    assert (wide["axe"], wide["overflow"]) == (narrow["axe"], narrow["overflow"]) == ([], 0)


def test_playground_streams_an_answer_and_says_what_it_took(seen: dict[str, Any]) -> None:
    """Through the gateway, with a client's key: its limits count, and so does a key that is none."""
    streamed, plain = seen["played"]["true"], seen["played"]["false"]
    assert streamed["text"] and streamed["text"] == plain["text"]
    for answer in (streamed, plain):
        assert answer["Tokens out"] == "12" and answer["Upstream"] == "default"
        assert re.fullmatch("[0-9.]+ (ms|s)", answer["First token"])
    assert "key" in seen["refused"]
