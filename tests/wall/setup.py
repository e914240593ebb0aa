"""The ways to speak with an upstream that the wall is built for: versions, engines, TLS.

Knows: the settings and the providers of each. Does not know: faults, or gateways at work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.e2e.upstreams import Certificates
from tests.wall.provider import Early, Fault, Provider

__all__ = ["Setup"]


@dataclass(frozen=True)
class Setup:
    """One way to speak with upstreams."""

    kind: str
    certificates: Certificates

    @property
    def is_http2(self) -> bool:
        """True for HTTP/2."""
        return not self.kind.startswith("http1")

    def env(self) -> dict[str, str]:
        """Return the settings of a gateway that speaks so."""
        env = {"VELOX_UPSTREAM_CA_FILE": self.certificates.ca_file}
        if self.is_http2:
            env |= {"VELOX_UPSTREAM_HTTP2": "on", "VELOX_HTTP2_ENGINE": self.kind}
        return env

    def provider(
        self,
        number: int,
        faults: Mapping[str, Fault],
        early: Mapping[str, Early],
        *,
        tls: bool | None = None,
        port: int = 0,
    ) -> Provider:
        """Return a wall, not started. tls: None for this way's usual."""
        has_tls = (self.kind != "http1") == (number == 1) if tls is None else tls
        certificates = self.certificates if has_tls else None
        return Provider(number, faults, early, http2=self.is_http2, certificates=certificates, port=port)
