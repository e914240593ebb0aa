"""The API of a running gateway: what it changes holds for clients, who see what is their own; the page's commands."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.routed import MESSAGES, named, routed
from tests.e2e.tls_clients import TlsFiles

JSON = {"content-type": "application/json"}
TOKEN = "admin-token-of-the-test"
PAGE = Path(__file__).parents[2] / "docs/admin-api.md"


@contextlib.contextmanager
def managed(folder: Path, **more: str) -> Iterator[VeloxProcess]:
    settings = {"ledger": str(folder / "ledger"), "managed_keys": "on", "admin_token": TOKEN, **more}
    with named("sim", sim="--ttft 0 --token-rate 0") as sims:
        config = {"upstreams": [sims["sim"]], "routes": [{"name": "all", "to": "sim"}]}
        with routed(config, **settings) as velox:
            yield velox


def call(
    velox: VeloxProcess, method: str, path: str, body: object = None, *, token: str = TOKEN, **more: Any
) -> tuple[int, dict[str, Any]]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {token}", **JSON}
    request = urllib.request.Request(velox.admin_url + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20, **more) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, json.load(exc)


def status_of(velox: VeloxProcess, key: str) -> int:
    """Return what a client with this key gets."""
    body = json.dumps({"model": "m", "messages": MESSAGES}).encode()
    request = urllib.request.Request(
        f"{velox.base_url}/v1/chat/completions", body, {"authorization": f"Bearer {key}", **JSON}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code


def test_what_the_api_changes_holds_for_clients(tmp_path: Path) -> None:
    """A key is made, used, seen in the usage by its own client, rotated, and blocked; in all workers."""
    with managed(tmp_path, VELOX_WORKERS="2") as velox:
        status, made = call(velox, "POST", "/api/v1/keys", {"name": "shop", "tags": ["eu"]})
        assert status == 201
        until(lambda: all(status_of(velox, made["key"]) == 200 for _ in range(4)), "it is active")
        calls = lambda: call(velox, "GET", "/api/v1/usage?by=tag", token=made["key"])[1]["data"]  # noqa: E731
        until(lambda: calls() and calls()[0]["tag"] == "eu" and calls()[0]["calls"] >= 4, "its client sees its usage")
        assert call(velox, "GET", "/api/v1/changes", token=made["key"])[0] == 403

        status, rotated = call(velox, "POST", f"/api/v1/keys/{made['id']}/rotate", {"grace_s": 0})
        assert status == 200
        until(lambda: status_of(velox, rotated["key"]) == 200, "the new secret is active")
        until(lambda: status_of(velox, made["key"]) == 401, "the old one is not")
        assert len(call(velox, "GET", "/api/v1/usage?by=key")[1]["data"]) == 1, "it is one key in the records"

        assert call(velox, "POST", f"/api/v1/keys/{made['id']}/block")[1]["blocked"]
        until(lambda: all(status_of(velox, rotated["key"]) == 401 for _ in range(4)), "it is blocked")
        assert call(velox, "GET", "/api/v1/keys", token="wrong")[0] == 401
        log = "".join(velox.stderr.lines)
        assert made["key"] not in log and rotated["key"] not in log


def test_team_manages_its_keys(tmp_path: Path) -> None:
    """With a key that the admin gave a role: what it makes holds for clients; others' keys are none for it."""
    with managed(tmp_path) as velox:
        for team in ("red", "blue"):
            assert call(velox, "POST", "/api/v1/teams", {"id": team})[0] == 201
        theirs = call(velox, "POST", "/api/v1/keys", {"id": "theirs", "team": "blue"})[1]
        boss = call(velox, "POST", "/api/v1/keys", {"id": "boss", "team": "red", "role": "team_admin"})[1]["key"]
        status, made = call(velox, "POST", "/api/v1/keys", {"rpm": 600}, token=boss)
        assert (status, made["team"]) == (201, "red")
        until(lambda: status_of(velox, made["key"]) == 200, "it is active")
        for id_ in ("theirs", "no-such-key"):
            assert call(velox, "DELETE", f"/api/v1/keys/{id_}", token=boss)[0] == 404
        assert call(velox, "POST", "/api/v1/keys", {"team": "blue"}, token=boss)[0] == 403
        assert call(velox, "POST", "/api/v1/keys", {"name": "a"}, token=made["key"])[0] == 403
        assert call(velox, "POST", f"/api/v1/keys/{made['id']}/block", token=boss)[0] == 200
        until(lambda: status_of(velox, made["key"]) == 401, "it is blocked")
        assert status_of(velox, theirs["key"]) == 200
        actors = [each["actor"] for each in call(velox, "GET", f"/api/v1/changes?id={made['id']}")[1]["data"]]
        assert actors == ["boss", "boss"]


def test_new_key_is_shown_over_tls(tmp_path: Path) -> None:
    """And the listener's other pages go on beside the API."""
    files = TlsFiles(tmp_path)
    more = {"admin_tls_cert": str(files.cert), "admin_tls_key": str(files.key)}
    with managed(tmp_path, **more) as velox:
        velox.admin_url = velox.admin_url.replace("http://", "https://")
        context = ssl.create_default_context()
        files.authority.configure_trust(context)
        assert call(velox, "POST", "/api/v1/keys", {"name": "a"}, context=context)[0] == 201


def test_api_is_off_without_a_ledger() -> None:
    """And says what to set."""
    with named("sim") as sims, routed({"upstreams": [sims["sim"]]}, admin_token=TOKEN) as velox:
        for path, wanted in (("/api/v1/keys", "VELOX_MANAGED_KEYS"), ("/api/v1/usage", "VELOX_LEDGER")):
            status, answer = call(velox, "GET", path)
            assert (status, answer["error"]["code"]) == (404, "off") and wanted in answer["error"]["message"]


def test_commands_of_the_page(tmp_path: Path) -> None:
    """Each runs as it is shown, but for the address; none is refused."""
    with managed(tmp_path) as velox:
        page = PAGE.read_text()
        commands = "\n".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).replace("\\\n", "")
        lines = [line for line in commands.splitlines() if line.startswith("curl ")]
        assert len(lines) >= 5
        for line in lines:
            shown = line.replace("http://127.0.0.1:6060", velox.admin_url).replace("$TOKEN", TOKEN)
            run = subprocess.run(
                [*shlex.split(shown), "-sS", "--fail-with-body"],
                check=False,
                capture_output=True,
                text=True,
                timeout=30,
            )
            assert run.returncode == 0, (line, run.stdout, run.stderr)
            assert json.loads(run.stdout)
