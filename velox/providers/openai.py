"""OpenAI, and whatever speaks its API: where a credential goes, and which headers go with it.

Data first: a provider is a row, never a branch in gateway/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["OPENAI", "Provider"]


@dataclass(frozen=True, slots=True)
class Provider:
    """What differs between providers.

    credential_header, credential_prefix: how a key is presented.
    account_headers: the client's headers that belong to its own key, and mean nothing beside another one.
    key_protocol, account_protocols: how the protocols begin in which a browser's WebSocket, which can't set headers,
    says the same.
    """

    name: str
    credential_header: bytes
    credential_prefix: bytes
    account_headers: frozenset[bytes]
    key_protocol: bytes
    account_protocols: tuple[bytes, ...]

    def credential(self, key: str) -> tuple[bytes, bytes]:
        """Return the header that presents `key`."""
        return (self.credential_header, self.credential_prefix + key.encode("latin-1"))

    def key_in(self, protocol: bytes) -> bytes:
        """Return the key that an offered protocol presents, b"" for every other protocol."""
        return protocol.removeprefix(self.key_protocol) if protocol.startswith(self.key_protocol) else b""


OPENAI: Final = Provider(
    name="openai",
    credential_header=b"authorization",
    credential_prefix=b"Bearer ",
    account_headers=frozenset({b"openai-organization", b"openai-project"}),
    key_protocol=b"openai-insecure-api-key.",
    account_protocols=(b"openai-organization.", b"openai-project."),
)
