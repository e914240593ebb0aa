"""What systemd is told of a service of Type=notify (sd_notify(3)): datagrams to the socket that it names.

Knows: the socket and how a message is written. Does not know: when a gateway is ready.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from typing import Final, Self

__all__ = ["Notifier"]


class Notifier:
    """address: of NOTIFY_SOCKET; "": nobody is told anything. watchdog_us: of WATCHDOG_USEC; 0: nobody waits for pings.

    ping_s: how often the manager is to hear that all is well; 0: never.
    """

    def __init__(self, address: str, watchdog_us: int = 0) -> None:
        self.ping_s: Final = watchdog_us / 3e6 if address else 0.0
        # "@" stands for the zero byte of Linux's abstract names.
        self._address: Final = f"\0{address[1:]}" if address.startswith("@") else address

    def __repr__(self) -> str:
        return f"<Notifier {self._address!r}>"

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """Return that of a process."""
        period = environ.get("WATCHDOG_USEC", "")
        return cls(environ.get("NOTIFY_SOCKET", ""), int(period) if period.isdigit() else 0)

    @property
    def is_heard(self) -> bool:
        """True if a service manager listens."""
        return bool(self._address)

    def tell(self, **fields: str | int) -> None:
        """Send fields, as READY=1. A manager that does not take them holds nobody up."""
        if not self._address:
            return
        text = "\n".join(f"{name}={value}" for name, value in fields.items())
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(text.encode(), self._address)
