"""Upstreams whose TLS is not right, changes, or asks who we are: the real gateway before the scripted upstream."""

from __future__ import annotations

import contextlib
import datetime
import ssl
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import RecordingUpstream, healthy
from tests.e2e.tools import CHAT, reason, wait_warm
from tests.e2e.upstreams import Certificates

HERE = "127.0.0.1"


def issued(folder: Path, authority: trustme.CA, leaf: trustme.LeafCert) -> tuple[str, str, str]:
    """Write an authority's certificate, a certificate and its key; return their paths."""
    folder.mkdir(exist_ok=True)
    ca, cert, key = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
    authority.cert_pem.write_to_path(str(ca))
    leaf.cert_chain_pems[0].write_to_path(str(cert))
    leaf.private_key_pem.write_to_path(str(key))
    return str(ca), str(cert), str(key)


class OldVersion(Certificates):
    """A server that knows nothing newer than TLS 1.1."""

    def server_context(self, *protocols: str) -> ssl.SSLContext:
        context = super().server_context(*protocols)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the point: TLS 1.1 is deprecated
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("DEFAULT@SECLEVEL=0")
        return context


class Asking(Certificates):
    """A server that asks for a certificate of its own authority."""

    def server_context(self, *protocols: str) -> ssl.SSLContext:
        context = super().server_context(*protocols)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self.ca_file)
        return context


def _expired(folder: Path, authority: trustme.CA) -> Certificates:
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    return Certificates(*issued(folder, authority, authority.issue_cert(HERE, not_after=yesterday)))


def _wrong_name(folder: Path, authority: trustme.CA) -> Certificates:
    return Certificates(*issued(folder, authority, authority.issue_cert("127.0.0.2", "other.test")))


def _unknown_authority(folder: Path, authority: trustme.CA) -> Certificates:
    return Certificates(*issued(folder, authority, trustme.CA().issue_cert(HERE)))


def _old_version(folder: Path, authority: trustme.CA) -> Certificates:
    return OldVersion(*issued(folder, authority, authority.issue_cert(HERE)))


@pytest.mark.fault("F-6")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_expired, "certificate has expired"),
        (_wrong_name, "IP address mismatch"),
        (_unknown_authority, "unable to get local issuer certificate"),
        (_old_version, "no TLS with the upstream"),
    ],
    ids=["expired", "wrong name", "unknown authority", "TLS 1.1 only"],
)
def test_upstream_that_is_not_to_be_trusted_gets_no_request(
    tmp_path: Path, make: Callable[[Path, trustme.CA], Certificates], words: str
) -> None:
    """502 upstream_tls that says why, also in the log; never plain text instead: the upstream sees no request."""
    authority = trustme.CA()
    with RecordingUpstream(certificates=make(tmp_path / "pem", authority)) as upstream, upstream.playing(healthy):
        with VeloxProcess({**upstream.env(), "VELOX_WORKERS": "1"}) as velox:
            refused = velox.request("POST", "/v1/chat/completions", CHAT)
            assert (refused.status, reason(refused)) == (502, "upstream_tls")
            assert refused.header("x-should-retry") == "true"
            message = str(refused.error()["message"])
            assert words in message and HERE not in message.replace(f"not valid for '{HERE}'", "")
            velox.wait_log(lambda line: words in line)
            assert velox.admin("/readyz").status == 503
        assert (upstream.calls, upstream.n_warmups) == ([], 0)


@pytest.mark.fault("F-8")
@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
def test_certificate_that_rotates_is_no_error(tmp_path: Path, http2: bool) -> None:
    """The upstream comes back with another certificate: sessions of before are of no use, and nobody notices."""
    authority = trustme.CA()
    before, after = (
        Certificates(*issued(tmp_path / name, authority, authority.issue_cert(HERE))) for name in ("before", "after")
    )
    with contextlib.ExitStack() as lives:
        first = lives.enter_context(RecordingUpstream(http2=http2, certificates=before))
        restart = lives.pop_all()
        with VeloxProcess({**first.env(), "VELOX_WORKERS": "1"}) as velox:
            with restart:
                wait_warm(velox)
                assert velox.request("POST", "/v1/chat/completions", CHAT).status == 200
            with RecordingUpstream(http2=http2, certificates=after, port=first.port) as second:
                assert {velox.request("POST", "/v1/chat/completions", CHAT).status for _ in range(5)} == {200}
                assert len(second.calls) == 5


def test_certificates_that_are_renewed_in_place_are_used(tmp_path: Path) -> None:
    """Another authority on both sides, and files with the same names: without a restart, and without a signal."""
    before, after = trustme.CA(), trustme.CA()
    ours = tmp_path / "ours"

    def issue(authority: trustme.CA) -> Certificates:
        ours.mkdir(exist_ok=True)
        for path in issued(tmp_path / "new", authority, authority.issue_cert("gateway.test")):
            Path(path).replace(ours / Path(path).name)  # within microseconds: no look falls in between
        return Asking(*issued(tmp_path / "theirs", authority, authority.issue_cert(HERE)))

    with contextlib.ExitStack() as lives:
        first = lives.enter_context(RecordingUpstream(certificates=issue(before)))
        files = {
            "VELOX_UPSTREAM_CA_FILE": str(ours / "ca.pem"),
            "VELOX_UPSTREAM_CERT_FILE": str(ours / "cert.pem"),
            "VELOX_UPSTREAM_KEY_FILE": str(ours / "key.pem"),
        }
        with VeloxProcess({**first.env(), **files, "VELOX_WORKERS": "1"}) as velox:
            assert velox.request("POST", "/v1/chat/completions", CHAT).status == 200
            lives.close()
            certificates = issue(after)
            velox.wait_log(lambda line: "is in use: upstreams: 1 changed" in line)
            velox.wait_metric('velox_worker_configuration{worker="0"}', lambda number: number == 2)
            with RecordingUpstream(certificates=certificates, port=first.port) as second:
                wait_warm(velox)
                assert velox.request("POST", "/v1/chat/completions", CHAT).status == 200
                assert len(second.calls) == 1


@pytest.mark.fault("F-6")
@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
@pytest.mark.parametrize("shown", [True, False], ids=["shown", "not shown"])
def test_upstream_that_asks_who_we_are(tmp_path: Path, http2: bool, shown: bool) -> None:
    """MTLS: with our certificate it serves; without one a request fails, and is never carried out."""
    authority = trustme.CA()
    theirs = Asking(*issued(tmp_path / "theirs", authority, authority.issue_cert(HERE)))
    _, cert, key = issued(tmp_path / "ours", authority, authority.issue_cert("gateway.test"))
    ours = {"VELOX_UPSTREAM_CERT_FILE": cert, "VELOX_UPSTREAM_KEY_FILE": key} if shown else {}
    with RecordingUpstream(http2=http2, certificates=theirs) as upstream, upstream.playing(healthy):
        with VeloxProcess({**upstream.env(), **ours, "VELOX_WORKERS": "1"}) as velox:
            reply = velox.request("POST", "/v1/chat/completions", CHAT)
            if shown:
                assert reply.status == 200
            else:
                assert reply.status == 502 and reason(reply) in {"upstream_tls", "upstream_reset"}
        assert len(upstream.calls) == int(shown)
