"""The proxies in front of Velox whose word is taken for a client's address, and what they say of it.

Knows: networks, and the list of addresses in X-Forwarded-For. Does not know: sockets, or what an address is for.

Each proxy appends the address that connected to it, so the list is read from its end: the first address that is no
trusted proxy's is the client's. What stands before it may be the client's own invention.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

__all__ = ["NO_PROXIES", "UNIX", "TrustedProxies"]

# Who connects by a unix socket has no address.
UNIX: Final = "unix"
_FIELD: Final = b"x-forwarded-for"
_MOST_HOPS: Final = 16
_MOST_BYTES: Final = 64 * _MOST_HOPS  # an address has 45 characters at most


class TrustedProxies:
    """A list. trusted: networks such as `10.0.0.0/8`, and `unix`."""

    __slots__ = ("_networks", "_takes_unix")

    def __init__(self, trusted: Sequence[str]) -> None:
        self._takes_unix: Final = UNIX in trusted
        self._networks: Final = tuple(ipaddress.ip_network(each) for each in trusted if each != UNIX)

    def __repr__(self) -> str:
        return f"<TrustedProxies {len(self._networks)}{' and unix' if self._takes_unix else ''}>"

    def __bool__(self) -> bool:
        return self._takes_unix or bool(self._networks)

    def client_of(self, address: str, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        """Return the client's address as the proxy says it; None: no proxy is trusted there, or it says none.

        address: from which the connection came; "" for a unix socket. headers: of the request.
        """
        if not self._trusts(address):
            return None
        named = b",".join(value for name, value in headers if name == _FIELD)[-_MOST_BYTES:]
        for hop in reversed(named.decode("latin-1").split(",")[-_MOST_HOPS:]):
            found = _address(hop)
            if found is None:
                return None
            if not self._trusts(found):
                return found
        return None

    def _trusts(self, address: str) -> bool:
        if not address:
            return self._takes_unix
        parsed = ipaddress.ip_address(address)
        return any(parsed in network for network in self._networks)


NO_PROXIES: Final = TrustedProxies(())


def _address(text: str) -> str | None:
    """Return an address as it is usually written; None: it is none. A port may stand behind it, as some proxies do."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(found if mapped is None else mapped)
