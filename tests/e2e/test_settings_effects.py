"""Every setting does what the table says: those of listeners, callers, logs and files; and that none is missed.

A test says by @covers which settings it shows. Others are in test_settings_upstream.py, test_settings_client.py, and
where their subject is tested: test_bucket.py, test_admission.py, test_processes_*.py.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.harness import RawReply, VeloxProcess
from tests.e2e.recording import RecordingUpstream, healthy
from tests.e2e.tools import covers, free_port, reason, run_velox
from tests.e2e.websocket_upstreams import WebSocketUpstream, raw_handshake, read_head
from velox.settings.model import VARIABLES

pytestmark = pytest.mark.more


def test_every_setting_has_a_test_that_shows_its_effect() -> None:
    """A variable that nobody saw at work is a promise; one that is gone from the table needs no test any more."""
    shown: set[str] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        if "@covers(" in path.read_text():
            module = importlib.import_module(f"tests.e2e.{path.stem}")
            for test in vars(module).values():
                shown.update(getattr(test, "covers", ()))
    assert shown == {variable.name for variable in VARIABLES}


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingUpstream]:
    """An upstream that records; healthy."""
    with RecordingUpstream() as running:
        yield running


def ask(velox: VeloxProcess, headers: Mapping[str, str] | None = None) -> RawReply:
    """Send the plainest request there is."""
    return velox.request("GET", "/v1/models", headers=headers)


# -- listeners ----------------------------------------------------------------------------------------------


@covers("VELOX_LISTEN", "VELOX_ADMIN_LISTEN")
def test_listen_addresses_are_where_it_listens() -> None:
    """Data and admin listener are at the addresses given, on TCP."""
    data, admin = free_port(), free_port()
    settings = {"VELOX_LISTEN": f"127.0.0.1:{data}", "VELOX_ADMIN_LISTEN": f"127.0.0.1:{admin}"}
    with VeloxProcess({**settings, "VELOX_WORKERS": "1"}, ("serve", "--sim")) as velox:
        assert velox.base_url == f"http://127.0.0.1:{data}"
        assert velox.admin_url == f"http://127.0.0.1:{admin}"
        assert ask(velox).status == 200
        assert velox.admin("/healthz").status == 200


@covers("VELOX_LISTEN")
def test_listen_on_a_unix_socket_serves_there(tmp_path: Path) -> None:
    """A sidecar's clients need no port; all workers share the one socket."""
    path = tmp_path / "velox.sock"
    with VeloxProcess({"VELOX_LISTEN": f"unix:{path}", "VELOX_WORKERS": "2"}, ("serve", "--sim")) as velox:
        assert {ask(velox).status for _ in range(10)} == {200}
    assert not path.exists()


@covers("VELOX_ADMIN_LISTEN")
def test_admin_listen_off_starts_no_admin_process() -> None:
    """Simulator and worker are all there is."""
    with VeloxProcess({"VELOX_ADMIN_LISTEN": "off", "VELOX_WORKERS": "1"}, ("serve", "--sim")) as velox:
        assert velox.admin_url == ""
        assert len(velox.child_pids()) == 2
        assert ask(velox).status == 200


# -- callers ------------------------------------------------------------------------------------------------


@covers("VELOX_API_KEYS", "VELOX_API_KEYS_FILE")
def test_api_keys_let_in_who_presents_one(upstream: RecordingUpstream, tmp_path: Path) -> None:
    """Keys from the variable and the file, plain or as digests; and a key of ours is not shown to the upstream."""
    file = tmp_path / "keys"
    file.write_text("# the third team\nsk-three\n")
    digest = hashlib.sha256(b"sk-two").hexdigest()
    settings = {"VELOX_API_KEYS": f"sk-one,sha256:{digest}", "VELOX_API_KEYS_FILE": str(file)}
    with VeloxProcess({**upstream.env(), **settings, "VELOX_WORKERS": "1"}) as velox, upstream.playing(healthy):
        missing = ask(velox)
        assert (missing.status, reason(missing)) == (401, "auth_invalid")
        for wrong in ("sk-four", digest, "# the third team"):
            refused = ask(velox, {"authorization": f"Bearer {wrong}"})
            assert (refused.status, reason(refused)) == (401, "auth_invalid"), wrong
        for key in ("sk-one", "sk-two", "sk-three"):
            assert ask(velox, {"authorization": f"Bearer {key}"}).status == 200, key
        assert [call.header("authorization") for call in upstream.calls] == [None] * 3


@covers("VELOX_AUTH")
def test_auth_none_is_needed_to_serve_others_without_keys() -> None:
    """Beyond loopback it starts with keys, or when it is told to let everybody in."""
    settings = {"VELOX_LISTEN": "0.0.0.0:0", "VELOX_WORKERS": "1"}
    refused = run_velox(settings, "serve", "--sim")
    assert refused.returncode == 2 and "VELOX_AUTH" in refused.stderr
    with VeloxProcess({**settings, "VELOX_AUTH": "none"}, ("serve", "--sim")) as velox:
        assert ask(velox).status == 200
        velox.wait_log(lambda line: "VELOX_AUTH=none" in line)


@covers("OPENAI_API_KEY")
def test_openai_api_key_goes_up_instead_of_the_clients_own(upstream: RecordingUpstream) -> None:
    """With it the client's credential is replaced, without it the client's passes; it is in no line that is printed."""
    seen = []
    for settings in ({}, {"OPENAI_API_KEY": "sk-of-the-gateway"}):
        env = {**upstream.env(), **settings, "VELOX_WORKERS": "1"}
        with VeloxProcess(env) as velox, upstream.playing(healthy):
            assert ask(velox, {"authorization": "Bearer sk-of-the-client"}).status == 200
            seen.append(upstream.calls[0].header("authorization"))
        assert not any("sk-of-the" in line for line in velox.stderr.lines + velox.stdout.lines)
    assert seen == ["Bearer sk-of-the-client", "Bearer sk-of-the-gateway"]


# -- what passes --------------------------------------------------------------------------------------------


@covers("VELOX_PATHS")
def test_paths_narrow_what_passes(upstream: RecordingUpstream) -> None:
    """The prefixes pass, at whole segments; all else is 404 unknown_route and never goes up."""
    settings = {"VELOX_PATHS": "/v1/models,/v1/chat/", "VELOX_WORKERS": "1"}
    with VeloxProcess({**upstream.env(), **settings}) as velox, upstream.playing(healthy):
        for path in ("/v1/models", "/v1/models/m", "/v1/chat/x"):
            assert velox.request("GET", path).status == 200, path
        for path in ("/v1/modelsx", "/v1/files", "/v1"):
            refused = velox.request("GET", path)
            assert (refused.status, reason(refused)) == (404, "unknown_route"), path
        assert len(upstream.calls) == 3


@covers("VELOX_WEBSOCKET_PATHS")
def test_websocket_paths_allow_more() -> None:
    """A path that takes no WebSocket by itself does then; others don't."""
    with WebSocketUpstream() as upstream:
        for settings, status in (({}, 400), ({"VELOX_WEBSOCKET_PATHS": "/agents/*/socket"}, 101)):
            with VeloxProcess({**upstream.env(), **settings}) as velox, velox.connect() as sock:
                sock.sendall(raw_handshake("/agents/a1/socket"))
                assert read_head(sock).startswith(b"HTTP/1.1 %d " % status)
                with velox.connect() as other:
                    other.sendall(raw_handshake("/agents/socket"))
                    assert read_head(other).startswith(b"HTTP/1.1 400 ")


@covers("VELOX_HOSTS")
def test_url_with_a_name_of_ours_is_a_target() -> None:
    """RFC 9112 §3.2.2: absolute-form is understood where its host is us; another one is refused, and never goes up."""
    with RecordingUpstream() as upstream, upstream.playing(healthy):
        settings = {"VELOX_HOSTS": "llm.example.com", "VELOX_WORKERS": "1"}
        with VeloxProcess({**upstream.env(), **settings}) as velox:
            for host, status in (("llm.example.com", 200), ("other.example.com", 400)):
                with velox.connect() as sock:
                    sock.sendall(b"GET http://%b/v1/models HTTP/1.1\r\nHost: x\r\n\r\n" % host.encode())
                    assert read_head(sock).startswith(b"HTTP/1.1 %d " % status), host
            assert [call.target for call in upstream.calls] == ["/v1/models"]


# -- logs and files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "logged"), [("off", []), ("errors", [400]), ("all", [200, 400])])
@covers("VELOX_ACCESS_LOG")
def test_access_log_says_what_it_is_told_to(level: str, logged: list[int]) -> None:
    """One good and one bad request; what has been logged at the end is all there is."""
    settings = {"VELOX_ACCESS_LOG": level, "VELOX_WORKERS": "1"}
    with VeloxProcess(settings, ("serve", "--sim")) as velox:
        assert ask(velox).status == 200
        assert velox.request("POST", "/v1/chat/completions", b"{").status == 400
    assert [json.loads(line)["status"] for line in velox.stdout.lines] == logged


@covers("VELOX_CONFIG")
def test_config_file_gives_what_the_environment_does_not(upstream: RecordingUpstream, tmp_path: Path) -> None:
    """The file beats the default, the environment beats the file; a mistake in it is named by file and line."""
    file = tmp_path / "velox.yaml"
    file.write_text("workers: 2\npaths: [/v1/models]\napi_keys:\n  - sk-file\n")
    settings = {**upstream.env(), "VELOX_CONFIG": str(file), "VELOX_WORKERS": "1"}
    with VeloxProcess(settings) as velox:
        assert len(velox.worker_pids()) == 1
        key = {"authorization": "Bearer sk-file"}
        assert reason(ask(velox)) == "auth_invalid"
        assert ask(velox, key).status == 200
        assert reason(velox.request("GET", "/v1/files", headers=key)) == "unknown_route"
    file.write_text("workers: 2\nworkerz: 3\n")
    refused = run_velox({"VELOX_CONFIG": str(file)}, "serve", "--sim")
    assert refused.returncode == 2 and f"{file}:2" in refused.stderr
