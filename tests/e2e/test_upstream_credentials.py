"""How an upstream is asked that wants its credential elsewhere: Basic, any header, a parameter of the query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import RecordingUpstream

KEY = "u53r:pa55w0rd-of-the-upstream"
CLIENT = "client-key-7Qz2mXr9kLw4TnV8"
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()


def asked(tmp_path: Path, fields: dict[str, Any], headers: dict[str, str], target: str, **environ: str) -> Call:
    """Return what an upstream with these fields gets for a request with these headers; Velox says no secret of it."""
    with RecordingUpstream() as upstream:
        file = tmp_path / "velox.yaml"
        entry = {"name": "u", "origin": f"http://127.0.0.1:{upstream.port}", "connections": 1, **fields}
        file.write_text(json.dumps({"upstreams": [entry]}))
        env = {"VELOX_CONFIG": str(file), "VELOX_WORKERS": "1", "SECRET": KEY, **environ}
        with VeloxProcess(env) as velox:
            velox.wait_warm()
            reply = velox.request("POST", target, CHAT, headers)
            assert reply.status == 200
            told = "\n".join((*velox.stderr.lines, *velox.stdout.lines))
            assert KEY not in told and "dTUzcjpwYTU1dzByZC" not in told
        (call,) = [each for each in upstream.calls if each.method == "POST"]
        return call


@pytest.mark.parametrize(
    ("auth", "header"),
    [
        ("basic", ("authorization", "Basic dTUzcjpwYTU1dzByZC1vZi10aGUtdXBzdHJlYW0=")),
        ("bearer", ("authorization", f"Bearer {KEY}")),
        ("X-Team-Key", ("x-team-key", KEY)),
    ],
)
def test_key_is_presented_as_the_upstream_wants_it(tmp_path: Path, auth: str, header: tuple[str, str]) -> None:
    """And only so; the client's own goes nowhere."""
    fields = {"keys": ["env:SECRET"], "auth": auth}
    call = asked(tmp_path, fields, {"authorization": f"Bearer {CLIENT}", "x-team-key": CLIENT}, "/v1/chat/completions")
    assert [each for each in call.headers if each[0] in ("authorization", header[0])] == [header]


def test_header_of_a_file_is_the_upstreams_credential(tmp_path: Path) -> None:
    """Then no key of the client's goes up beside it, in whichever header it comes."""
    (tmp_path / "token").write_text(f"Token {KEY}\n")
    fields = {"headers": {"authorization": f"file:{tmp_path / 'token'}"}}
    call = asked(tmp_path, fields, {"x-api-key": CLIENT}, "/v1/chat/completions")
    assert dict(call.headers)["authorization"] == f"Token {KEY}" and CLIENT not in str(call.headers)


def test_query_goes_with_each_request(tmp_path: Path) -> None:
    """Also with warm-ups; a client can't say another value."""
    fields = {"query": {"api-version": "2025-01-01", "code": "env:SECRET"}}
    call = asked(tmp_path, fields, {}, "/v1/chat/completions?a=1&code=mine&API-Version=x")
    assert call.target == "/v1/chat/completions?a=1&api-version=2025-01-01&code=u53r%3Apa55w0rd-of-the-upstream"
