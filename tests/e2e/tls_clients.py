"""TLS from the clients' side: certificate files that can be replaced, and clients that trust their authority.

Knows: how certificates are issued, written and rotated. Does not know: what a test asks of the gateway.

    files = TlsFiles(tmp_path)
    with VeloxProcess(files.env(), ("serve", "--sim")) as velox:
        tls_sdk(velox, files).models.list()
        files.rotate()                                  # as certbot does: new files, renamed into place
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import openai
import trustme

from tests.e2e.harness import KEY, VeloxProcess

__all__ = ["TlsFiles", "resident_bytes", "shown_digest", "tls_connect", "tls_sdk"]


class TlsFiles:
    """A certificate for 127.0.0.1, its key, and authorities, as files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.authority: Final = trustme.CA()
        self.clients: Final = trustme.CA()
        self.cert, self.key = folder / "tls.crt", folder / "tls.key"
        self.client_ca = folder / "clients.pem"
        self.clients.cert_pem.write_to_path(str(self.client_ca))
        self.digest = ""
        self.rotate()

    def env(self, *, client_ca: bool = False) -> dict[str, str]:
        """Return the settings of a gateway that shows it."""
        env = {"VELOX_TLS_CERT": str(self.cert), "VELOX_TLS_KEY": str(self.key)}
        return env | ({"VELOX_TLS_CLIENT_CA": str(self.client_ca)} if client_ca else {})

    def rotate(self) -> None:
        """Issue another certificate, and rename it and its key into place; `digest` is then its own."""
        issued = self.authority.issue_cert("127.0.0.1", "localhost")
        for path, content in (
            (self.cert, b"".join(pem.bytes() for pem in issued.cert_chain_pems)),
            (self.key, issued.private_key_pem.bytes()),
        ):
            new = path.with_suffix(".new")
            new.write_bytes(content)
            new.rename(path)
        der = ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())
        self.digest = hashlib.sha256(der).hexdigest()

    def context(self, *, shows: trustme.CA | None = None) -> ssl.SSLContext:
        """Return what a client trusts; shows: the authority that signed what it shows itself."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if shows is not None:
            shows.issue_cert("app.test").configure_cert(context)
        return context


def tls_sdk(velox: VeloxProcess, context: ssl.SSLContext, *, timeout_s: float = 20.0) -> openai.OpenAI:
    """Return the real SDK, which trusts what the context does. The caller closes it."""
    transport = openai.DefaultHttpxClient(verify=context, trust_env=False, timeout=timeout_s)
    return openai.OpenAI(base_url=f"{velox.base_url}/v1", api_key=KEY, max_retries=0, http_client=transport)


@contextlib.contextmanager
def tls_connect(
    velox: VeloxProcess, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> Iterator[ssl.SSLSocket]:
    """Open a TLS connection of one's own."""
    with socket.create_connection(("127.0.0.1", velox.port), timeout=10) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with context.wrap_socket(raw, server_hostname="127.0.0.1", session=session) as secured:
            yield secured


def shown_digest(velox: VeloxProcess, context: ssl.SSLContext) -> str:
    """Return the digest of the certificate that a whole handshake is shown."""
    with tls_connect(velox, context) as secured:
        shown = secured.getpeercert(True)
    assert shown is not None, "a server always shows one"
    return hashlib.sha256(shown).hexdigest()


def resident_bytes(pid: int) -> int:
    """Return a process's resident memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
