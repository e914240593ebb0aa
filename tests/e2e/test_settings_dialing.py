"""Settings of dialing: how often names are looked up, and what Velox shows to an upstream that asks who it is."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

import pytest
import trustme

from tests.e2e.harness import VeloxProcess
from tests.e2e.names import NameServer
from tests.e2e.tools import covers
from tests.e2e.upstreams import Certificates

pytestmark = pytest.mark.more

NAME = "upstream.test"


@covers("VELOX_DNS_REFRESH")
@pytest.mark.parametrize(("refresh", "asked_again"), [("150ms", True), ("1h", False)])
def test_dns_refresh_is_how_often_the_name_is_looked_up(refresh: str, asked_again: bool) -> None:
    """Each look-up is counted; without time for a second one there is none."""
    with NameServer() as names, socket.create_server(("127.0.0.1", 0)) as upstream:
        names.answer(NAME, "127.0.0.1")
        env = {"VELOX_UPSTREAM_ORIGIN": f"http://{NAME}:{upstream.getsockname()[1]}", "VELOX_WORKERS": "1"}
        with VeloxProcess({**env, "VELOX_DNS_REFRESH": refresh}, launcher=names.launcher()) as velox:
            velox.wait_metric('velox_dns_refresh_total{result="changed"}', lambda n: n == 1)
            began_s = time.monotonic()
            if asked_again:
                velox.wait_metric('velox_dns_refresh_total{result="same"}', lambda n: n >= 4)
                assert time.monotonic() - began_s > 0.3
            else:
                assert velox.metric('velox_dns_refresh_total{result="same"}') == 0


@covers("VELOX_UPSTREAM_CERT_FILE", "VELOX_UPSTREAM_KEY_FILE")
@pytest.mark.parametrize("files", [1, 2])
def test_upstream_cert_file_is_shown_to_an_upstream_that_asks(
    certificates: Certificates, tmp_path: Path, files: int
) -> None:
    """The upstream verifies it; the key is in the same file or in its own."""
    authority = trustme.CA()
    mine = authority.issue_cert("gateway.test")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    mine.cert_chain_pems[0].write_to_path(str(cert))
    mine.private_key_pem.write_to_path(str(cert if files == 1 else key), append=files == 1)
    context = certificates.server_context("http/1.1")
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        env = {
            "VELOX_UPSTREAM_ORIGIN": f"https://127.0.0.1:{listener.getsockname()[1]}",
            "VELOX_UPSTREAM_CA_FILE": certificates.ca_file,
            "VELOX_UPSTREAM_CERT_FILE": str(cert),
            "VELOX_WORKERS": "1",
        }
        if files == 2:
            env["VELOX_UPSTREAM_KEY_FILE"] = str(key)
        with VeloxProcess(env):
            connection, _ = listener.accept()
            connection.settimeout(10)
            with context.wrap_socket(connection, server_side=True) as secured:
                shown = secured.getpeercert()
                assert shown and shown["subjectAltName"] == (("DNS", "gateway.test"),)
                assert secured.recv(4) == b"HEAD"
