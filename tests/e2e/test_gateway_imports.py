"""What the processes of a gateway import: what their configuration needs, before they are forked, and no more.

What one imports by itself is memory of its own, and a pause of its loop. What none of them needs would be resident in
all. Python tells of each import (the audit event "import"), and a module that it runs at its start writes them down.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import MESSAGES
from tests.e2e.test_reload import reload
from tests.e2e.tools import CHAT, CHAT_STREAM
from velox.build import VERSION

_WATCH: Final = """
import os, sys

_log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)


def _note(event, values):
    if event == "import":
        os.write(_log, f"{{os.getpid()}} {{values[0]}}\\n".encode())


sys.addaudithook(_note)
"""
# What a gateway with one upstream, and settings from variables, has no use for: with all that is below it.
_NEEDLESS: Final = re.compile(
    r"velox_(?:migrate|sim)\b|velox\.(?:admin\.(?:api|call|health_call|reload_call)|providers\.(?:aws|google|entra|oauth|s3|snapshot)"
    r"|dialects\.(?:chat|converse|messages|responses|as_sent|cache_marks|counting|embeddings|media|tools)"
    r"|dialects\.generate\.(?!json_items)|gateway\.answers\.(?:kept_answers|background)|gateway\.websocket\.responses_socket"
    r"|gateway\.translation\.(?:adapter|translators|translated_reply|batch_split)"
    r"|profiling\.(?:folded|pprof)|accounts\.(?:service|sqlite|postgres)|ledger\.(?:sqlite|postgres|totals)"
    r"|runtime\.(?:admin_api|commands|http_client|ledger\.(?:ledger_process|alerts|webhook)|leases\.lease_(?:manager|redis)"
    r"|shared\.(?!object_memory)\w+|signing\.(?:chains|sign_in)|upstreams\.dialects)|settings\.(?:yaml\.nodes|show)"
    r"|protocol\.http2\.h2_engine)\b"
    r"|(?:anyio|asyncpg|botocore|configparser|difflib|google|h11|h2|hpack|httpcore|httpx|multiprocessing|redis|sqlite3"
    r"|xml|yaml|zoneinfo)\b"
)
_ANSWER: Final = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [{"type": "text", "text": "Here."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 1},
}


async def claude(call: Call) -> None:
    """As Anthropic does."""
    await call.reply(200, JSON, json.dumps(_ANSWER).encode())


class Watch:
    """Notes what the processes of one gateway import. env: what its variables have besides."""

    def __init__(self, folder: Path) -> None:
        self._log: Final = folder / "imports"
        (folder / "sitecustomize.py").write_text(_WATCH.format(log=str(self._log)))
        self.env: Final = {"PYTHONPATH": str(folder)}

    def imports(self) -> dict[int, list[str]]:
        """Return the modules by process."""
        found = defaultdict(list)
        for line in self._log.read_text().splitlines():
            pid, name = line.split(" ", 1)
            found[int(pid)].append(name)
        return found


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    """Note the imports of a gateway."""
    folder = tmp_path / "site"
    folder.mkdir()
    return Watch(folder)


def test_plain_gateway_imports_what_it_needs_before_it_forks(watch: Watch) -> None:
    with RecordingUpstream() as upstream, VeloxProcess({**upstream.env(), "VELOX_WORKERS": "1", **watch.env}) as velox:
        assert velox.request("POST", "/v1/chat/completions", CHAT).status == 200
        assert velox.request("POST", "/v1/chat/completions", CHAT_STREAM).status == 200
        for path in ("/", "/metrics", "/readyz"):
            assert velox.admin(path).status == 200

        found = watch.imports()

        assert not [name for name in found[velox.pid] if _NEEDLESS.match(name)]
        assert found.keys() == {velox.pid}, "no process imports anything once it is forked"


def test_translation_is_imported_before_the_fork_where_an_upstream_needs_it(watch: Watch, tmp_path: Path) -> None:
    with RecordingUpstream(script=claude) as upstream:
        file = tmp_path / "velox.yaml"
        file.write_text(_claude(upstream))
        env = {"VELOX_CONFIG": str(file), "VELOX_WORKERS": "1", "CLAUDE_KEY": "sk-ant-0123456789", **watch.env}
        with VeloxProcess(env) as velox:
            reply = velox.openai().chat.completions.create(model="claude-x", messages=MESSAGES)

            assert reply.choices[0].message.content == "Here."
            assert set(velox.worker_pids()).isdisjoint(watch.imports())


def test_reload_brings_what_it_needs(watch: Watch, tmp_path: Path) -> None:
    with RecordingUpstream(script=claude) as upstream:
        file = tmp_path / "velox.yaml"
        file.write_text(f"upstreams:\n  - {{name: plain, origin: {upstream.upstream.url}}}\n")
        env = {"VELOX_CONFIG": str(file), "VELOX_WORKERS": "1", "CLAUDE_KEY": "sk-ant-0123456789", **watch.env}
        with VeloxProcess(env) as velox:
            (worker,) = velox.worker_pids()
            file.write_text(_claude(upstream))
            done = reload(velox, "--force")
            assert done.returncode == 0, done.stderr
            velox.wait_metric('velox_worker_configuration{worker="0"}', lambda number: number > 1)
            imported = list(watch.imports()[worker])

            reply = velox.openai().chat.completions.create(model="claude-x", messages=MESSAGES)

            assert reply.choices[0].message.content == "Here."
            assert "velox.dialects.messages.wire" in imported
            assert watch.imports()[worker] == imported, "all of it before the first request"


def test_records_are_made_without_an_import(watch: Watch, tmp_path: Path) -> None:
    env = {"VELOX_LEDGER": str(tmp_path / "ledger"), "VELOX_WORKERS": "1", **watch.env}
    with RecordingUpstream() as upstream, VeloxProcess({**upstream.env(), **env}) as velox:
        assert velox.request("POST", "/v1/chat/completions", CHAT).status == 200
        until(lambda: velox.admin("/api/v1/usage").status == 200, "the ledger has made its database")

        assert set(velox.worker_pids()).isdisjoint(watch.imports())


def test_credentials_are_fetched_without_an_import(watch: Watch, tmp_path: Path) -> None:
    """The client that fetches them is one of the larger libraries."""

    async def container(call: Call) -> None:
        await call.reply(
            200, JSON, b'{"AccessKeyId":"A","SecretAccessKey":"s","Token":"t","Expiration":"2100-01-01T00:00:00Z"}'
        )

    with RecordingUpstream(script=container) as cloud:
        file = tmp_path / "velox.yaml"
        file.write_text("upstreams:\n  - {name: aws, provider: bedrock, region: eu-central-1}\n")
        env = {"VELOX_CONFIG": str(file), "VELOX_WORKERS": "1", "VELOX_READY_REQUIRES_UPSTREAM": "off", **watch.env}
        env |= {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{cloud.upstream.url}/role", "HOME": str(tmp_path)}
        with VeloxProcess(env) as velox:
            call = cloud.wait_call()
            cloud.wait(lambda: bool(call.ended), "it was answered")
            until(lambda: velox.admin("/readyz").status == 200, "it serves")

            assert (call.target, call.header("user-agent")) == ("/role", f"velox/{VERSION}")
            assert set(velox.worker_pids()).isdisjoint(watch.imports())


def _claude(upstream: RecordingUpstream) -> str:
    fields = f"name: claude, provider: anthropic, origin: {upstream.upstream.url}, key: env:CLAUDE_KEY"
    return f"upstreams:\n  - {{{fields}}}\n"
