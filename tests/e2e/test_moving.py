"""A dump of LiteLLM's database moves in: its clients' keys work, its limits hold, and its spend goes on."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import KEY, VeloxProcess, until
from tests.e2e.priced import Priced
from velox.cli import main

TOKEN = "admin-token-of-the-test"
ROOT = Path(__file__).parents[2]
DUMP = ROOT / "tests/migrate/dumps/copy.sql"
SHOP, LAB, SPENT = "sk-shop-0123456789abcdef", "sk-lab-0123456789abcdefg", "sk-spent-0123456789abcde"
BLOCKED, UNKNOWN = "sk-rotated-0123456789abc", "sk-nobody-0123456789abcd"


def ask(velox: VeloxProcess, key: str, model: str = "gpt-4o") -> tuple[int, Any]:
    body = json.dumps({"model": model, "messages": [], "max_tokens": 100}).encode()
    reply = velox.request("POST", "/v1/chat/completions", body, {"authorization": f"Bearer {key}"})
    return reply.status, json.loads(reply.body)


def test_keys_of_a_dump_work_and_their_spend_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the commands of the page: a dry run, the import, a gateway; then the import once more beside it."""
    page = (ROOT / "docs/moving-in.md").read_text()
    commands = [line for line in page.splitlines() if "import litellm-db" in line and line.startswith("VELOX_LEDGER")]
    assert len(commands) == 2
    dump = tmp_path / "litellm.sql"
    dump.write_text(DUMP.read_text())
    environ = {"VELOX_LEDGER": str(tmp_path / "ledger"), "VELOX_API_KEYS": KEY}
    for command in commands:
        arguments = [str(dump) if word == "litellm.sql" else word for word in command.split()[2:]]
        assert main(arguments, environ) == 0, capsys.readouterr().err
    told = capsys.readouterr().err
    assert "keys: 5 made" in told

    with Priced(tmp_path).running([], workers=2, managed_keys="on") as velox:
        assert ask(velox, SHOP)[0] == 200
        assert ask(velox, LAB)[0] == 200
        status, error = ask(velox, SHOP, "o1")
        assert (status, error["error"]["param"]) == (403, "model")  # not among its models
        assert ask(velox, BLOCKED)[0] == ask(velox, UNKNOWN)[0] == 401
        status, error = ask(velox, SPENT)
        assert (status, error["error"]["code"]) == (429, "insufficient_quota")
        assert main(["import", "litellm-db", str(dump)], environ) == 0
        assert "keys: 5 the same" in capsys.readouterr().err

    assert main(["usage", "--since", "2026-01-01", "--by", "key", "--format", "jsonl"], environ) == 0
    spent = {row["key"].partition(" ")[2]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert spent["spent"]["cost_usd"] == "1.250000000"
    assert spent["gone"]["cost_usd"] == "0.000000240"
    assert spent["lab"]["calls"] == 13


def test_scripts_of_litellm_work(tmp_path: Path) -> None:
    """The page's commands against a gateway: a key is made, used, read and taken away, by the header of their own."""
    page = (ROOT / "docs/moving-in.md").read_text()
    commands = [line for line in page.splitlines() if line.startswith("curl ")]
    assert len(commands) == 3
    with Priced(tmp_path).running([], managed_keys="on", admin_token=TOKEN) as velox:

        def run(command: str, **values: str) -> Any:
            for name, value in {"MASTER": TOKEN, "http://127.0.0.1:6060": velox.admin_url, **values}.items():
                command = command.replace(f"${name}", value).replace(name, value)
            done = subprocess.run(shlex.split(command), capture_output=True, check=True, timeout=30)
            return json.loads(done.stdout)

        made = run(commands[0])
        assert made["max_budget"] == 20 and made["budget_duration"] == "30d"
        until(lambda: ask(velox, made["key"])[0] == 200, "it is active")
        until(lambda: run(commands[1], KEY=made["key"])["info"]["spend"] > 0, "its spend is recorded")
        assert ask(velox, made["key"], "o1")[0] == 403
        assert run(commands[2])["results"][0]["metrics"]["api_requests"] >= 1
        assert velox.admin("/model/info", headers={"x-litellm-api-key": TOKEN}).status == 200
