"""The certificate's files are looked after: what changes is taken once it is whole, what is bad changes nothing."""

from __future__ import annotations

import datetime
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from velox.observe.oplog import operations_logger
from velox.observe.series import CELLS
from velox.runtime.keys.credentials import Certificates
from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus


class Watched:
    """Files in a folder, and what looks after them. said: its log."""

    def __init__(self, folder: Path, *, client_ca: bool = False) -> None:
        self.authority = trustme.CA()
        self.cert, self.key, self.ca = folder / "cert.pem", folder / "key.pem", folder / "ca.pem"
        self.ca.write_bytes(self.authority.cert_pem.bytes())
        self.write(self.issue())
        self.said = io.StringIO()
        self.status = GatewayStatus(Segment(1, CELLS))
        files = (str(self.cert), str(self.key), str(self.ca) if client_ca else None)
        self.certificates = Certificates(files, ("http/1.1",), self.status, operations_logger(self.said))
        self.now_s = 100.0

    def issue(self) -> trustme.LeafCert:
        return self.authority.issue_cert("gateway.test")

    def write(self, leaf: trustme.LeafCert) -> None:
        self.cert.write_bytes(leaf.cert_chain_pems[0].bytes())
        self.key.write_bytes(leaf.private_key_pem.bytes())

    def wait(self, seconds: float) -> None:
        """Let it look as the supervisor does, four times a second."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.25
            self.certificates.look(self.now_s)

    @property
    def shown(self) -> bytes:
        """The certificate that clients are shown."""
        return self.certificates._now.chain_pem

    @property
    def counts(self) -> tuple[int, int]:
        """Changes that were taken, and that were refused."""
        return self.status.tls_reloads(taken=True), self.status.tls_reloads(taken=False)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    yield Watched(tmp_path)


def test_nothing_changes_while_the_files_do_not(watched: Watched) -> None:
    """No line, no count, the same context; and the gauge has its end from the start."""
    before = watched.shown

    watched.wait(10)

    assert (watched.shown, watched.counts, watched.said.getvalue()) == (before, (0, 0), "")
    assert watched.status.tls_not_after_s > 1_700_000_000


def test_files_written_over_are_taken(watched: Watched) -> None:
    """Within a second or so, with one line that says until when."""
    leaf = watched.issue()
    watched.write(leaf)

    watched.wait(1.5)

    assert watched.shown == leaf.cert_chain_pems[0].bytes()
    assert watched.counts == (1, 0)
    assert watched.said.getvalue().count("\n") == 1 and "valid until" in watched.said.getvalue()


def test_files_touched_are_no_news(watched: Watched) -> None:
    """The same content is the same certificate."""
    os.utime(watched.cert)
    os.utime(watched.key)

    watched.wait(3)

    assert (watched.counts, watched.said.getvalue()) == ((0, 0), "")


def test_symbolic_link_that_is_swapped_is_followed(tmp_path: Path) -> None:
    """Kubernetes: cert.pem -> ..data/cert.pem, and ..data -> the folder of now, replaced by one rename."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one = Watched(tmp_path / "one")
    leaf = one.issue()
    (tmp_path / "two/cert.pem").write_bytes(leaf.cert_chain_pems[0].bytes())
    (tmp_path / "two/key.pem").write_bytes(leaf.private_key_pem.bytes())
    (tmp_path / "..data").symlink_to("one")
    files = (str(tmp_path / "..data/cert.pem"), str(tmp_path / "..data/key.pem"), None)
    one.certificates = Certificates(files, ("http/1.1",), one.status, operations_logger(one.said))
    (tmp_path / "..data_tmp").symlink_to("two")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    one.wait(1.5)

    assert one.shown == leaf.cert_chain_pems[0].bytes() and one.counts == (1, 0)


def test_key_that_comes_later_than_its_certificate_is_waited_for(watched: Watched) -> None:
    """Two files can't change at once: for a while they may not fit, and nobody hears of it."""
    before, leaf = watched.shown, watched.issue()
    watched.cert.write_bytes(leaf.cert_chain_pems[0].bytes())
    watched.wait(1.5)
    assert (watched.shown, watched.counts, watched.said.getvalue()) == (before, (0, 0), "")

    watched.key.write_bytes(leaf.private_key_pem.bytes())
    watched.wait(1.5)

    assert watched.shown == leaf.cert_chain_pems[0].bytes() and watched.counts == (1, 0)


@pytest.mark.parametrize("damage", ["mismatch", "absent", "empty", "no key"])
def test_pair_that_stays_bad_changes_nothing_and_is_said_once(watched: Watched, damage: str) -> None:
    """The one before stays in use; one clear line, one count; when the files are good again they are taken."""
    before = watched.shown
    if damage == "mismatch":
        watched.cert.write_bytes(watched.issue().cert_chain_pems[0].bytes())
    elif damage == "absent":
        watched.key.unlink()
    elif damage == "empty":
        watched.cert.write_bytes(b"")
    else:
        shutil.copy(watched.cert, watched.key)

    watched.wait(30)

    assert watched.shown == before and watched.counts == (0, 1)
    (line,) = watched.said.getvalue().splitlines()
    assert "the previous one stays" in line and "VELOX_TLS_" in line and "PRIVATE" not in line
    leaf = watched.issue()
    watched.write(leaf)
    watched.wait(1.5)
    assert watched.shown == leaf.cert_chain_pems[0].bytes() and watched.counts == (1, 1)


def test_authorities_of_clients_are_looked_after_too(tmp_path: Path) -> None:
    """A new context: OpenSSL never forgets an authority, and sessions that were made with one would outlive it."""
    watched = Watched(tmp_path, client_ca=True)
    before = watched.certificates.context
    watched.ca.write_bytes(trustme.CA().cert_pem.bytes())

    watched.wait(1.5)

    assert watched.counts == (1, 0)
    assert watched.certificates.context is not before


def test_expired_certificate_is_taken_with_a_warning(watched: Watched) -> None:
    """It may be what there is; who is shown it decides."""
    leaf = watched.authority.issue_cert("gateway.test", not_after=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
    watched.write(leaf)

    watched.wait(1.5)

    assert watched.shown == leaf.cert_chain_pems[0].bytes()
    assert "has expired on 2020" in watched.said.getvalue()


def test_worker_takes_over_what_the_supervisor_has_taken(watched: Watched) -> None:
    """In another process, which reads no file: it may not even be able to."""
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    leaf = watched.issue()
    pid = os.fork()
    if pid == 0:
        tls = _Tls()
        watched.certificates.follow(tls)  # type: ignore[arg-type]
        unchanged = tls.context is None
        os.write(ready_write, b"x")
        os.read(go_read, 1)
        watched.certificates.follow(tls)  # type: ignore[arg-type]
        same = tls.context is watched.certificates.context and watched.shown == leaf.cert_chain_pems[0].bytes()
        os._exit(0 if unchanged and same else 1)
    os.read(ready_read, 1)
    watched.write(leaf)
    watched.wait(1.5)
    watched.cert.unlink()
    os.write(go_write, b"x")
    _, status = os.waitpid(pid, 0)
    for descriptor in (ready_read, ready_write, go_read, go_write):
        os.close(descriptor)
    assert os.waitstatus_to_exitcode(status) == 0


class _Tls:
    context: object = None
