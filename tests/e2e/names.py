"""A name server in the test's hand, and a gateway that believes in it.

Knows: DNS over UDP on a loopback address of its own, mount namespaces. Does not know: Velox, or what a test asks.

    with NameServer() as names:
        names.answer("upstream.test", "127.0.0.1")
        with VeloxProcess(env, launcher=names.launcher()) as velox:
            names.answer("upstream.test", "127.0.0.2")     # it moves
            names.fail("upstream.test")                    # SERVFAIL
            names.hang("upstream.test")                    # no reply at all

The gateway's resolv.conf is one of its own, in a mount namespace: that takes root. The system's resolver asks port 53
only, so the server listens at 127.0.0.X:53; loopback addresses need no interface.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import dnslib
import pytest

from tests.patience import PATIENCE_S

__all__ = ["NameServer"]

_ADDRESSES: Final = tuple(f"127.0.53.{n}" for n in range(1, 255))
# glibc's own defaults are 5 s and two tries; a look-up that hangs is the test's subject, not its waiting.
_RESOLV_CONF: Final = "nameserver {address}\noptions timeout:{timeout_s} attempts:{attempts}\n"


class NameServer:
    """The server, on a thread. A name without an answer does not exist.

    timeout_s, attempts: how long the gateway's system waits for a reply, and how often it asks.
    """

    def __init__(self, *, timeout_s: int = 5, attempts: int = 2) -> None:
        self._wait: Final = (timeout_s, attempts)
        self._answers: Final[dict[str, tuple[str, ...]]] = {}
        self._broken: Final[dict[str, bool]] = {}  # name -> whether there is a reply at all
        self._asked: Final[dict[str, int]] = {}
        self._changed: Final = threading.Condition()
        self._folder: Final = tempfile.TemporaryDirectory()
        self._sock: socket.socket
        self._thread: Final = threading.Thread(target=self._serve, name="names", daemon=True)

    def __enter__(self) -> Self:
        _needs_a_mount_namespace()
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for address in _ADDRESSES:
            try:
                self._sock.bind((address, 53))
            except OSError:  # another run of the tests has it
                continue
            timeout_s, attempts = self._wait
            config = _RESOLV_CONF.format(address=address, timeout_s=timeout_s, attempts=attempts)
            self._config.write_text(config)
            self._thread.start()
            return self
        raise AssertionError("no loopback address has a free port 53")

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        address = self._sock.getsockname()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", address)  # ends the thread
        self._thread.join(10)
        self._sock.close()
        self._folder.cleanup()

    @property
    def _config(self) -> Path:
        return Path(self._folder.name, "resolv.conf")

    def launcher(self) -> tuple[str, ...]:
        """Return what a command line begins with, so that its process asks this server."""
        script = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        return ("unshare", "--mount", "sh", "-c", script, str(self._config))

    # -- what it says -------------------------------------------------------------------------------

    def answer(self, name: str, *addresses: str) -> None:
        """Give these IPv4 addresses from now on; none: the name exists without any."""
        with self._changed:
            self._answers[name] = addresses
            self._broken.pop(name, None)

    def forget(self, name: str) -> None:
        """Say that there is no such name."""
        with self._changed:
            self._answers.pop(name, None)
            self._broken.pop(name, None)

    def fail(self, name: str) -> None:
        """Answer SERVFAIL."""
        with self._changed:
            self._broken[name] = True

    def hang(self, name: str) -> None:
        """Answer nothing."""
        with self._changed:
            self._broken[name] = False

    def asked(self) -> frozenset[str]:
        """Return every name that was asked for."""
        with self._changed:
            return frozenset(self._asked)

    def wait_asked(self, name: str, n: int = 1) -> None:
        """Wait until the name was asked for `n` more times."""
        with self._changed:
            wanted = self._asked.get(name, 0) + n
            assert self._changed.wait_for(lambda: self._asked.get(name, 0) >= wanted, PATIENCE_S), (
                f"nobody asks for {name}"
            )

    # -- inside -------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            question, client = self._sock.recvfrom(4096)
            if not question:
                return
            reply = self._reply(dnslib.DNSRecord.parse(question))
            if reply is not None:
                self._sock.sendto(reply.pack(), client)

    def _reply(self, question: dnslib.DNSRecord) -> dnslib.DNSRecord | None:
        name, kind = str(question.q.qname).rstrip("."), question.q.qtype
        reply = question.reply()
        with self._changed:
            self._asked[name] = self._asked.get(name, 0) + (kind == dnslib.QTYPE.A)
            self._changed.notify_all()
            broken, addresses = self._broken.get(name), self._answers.get(name)
        if broken is False:
            return None
        if broken:
            reply.header.rcode = dnslib.RCODE.SERVFAIL
        elif addresses is None:
            reply.header.rcode = dnslib.RCODE.NXDOMAIN
        elif kind == dnslib.QTYPE.A:
            for address in addresses:
                reply.add_answer(dnslib.RR(question.q.qname, dnslib.QTYPE.A, rdata=dnslib.A(address), ttl=60))
        return reply


def _needs_a_mount_namespace() -> None:
    """Skip where resolv.conf can't be another one for a child alone; with CI=true that is a failure."""
    tool = shutil.which("unshare")
    works = (
        tool is not None
        and os.geteuid() == 0
        and subprocess.run(
            [tool, "--mount", "mount", "--bind", "/etc/resolv.conf", "/etc/resolv.conf"],
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )
    if not works and os.environ.get("CI") == "true":
        pytest.fail("a mount namespace (unshare --mount, as root) is needed for a name server of the test's own")
    if not works:
        pytest.skip("a name server of the test's own takes root and a mount namespace (unshare --mount)")
