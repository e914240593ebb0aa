"""Whether a Host can have been meant for this machine.

Knows: which names no page of elsewhere can have. Does not know: which names the operator has given, or who asks.

A page on the network can be given an address of this machine in place of its own (DNS rebinding). For the browser it
stays the same page, which may read all answers; but it sends the name that it was found by.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

__all__ = ["is_local", "is_own"]

_IPV4: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")


def is_local(name: str) -> bool:
    """Say whether a name, lower-case, is of this machine everywhere (RFC 6761 §6.3)."""
    return name == "localhost" or name.endswith(".localhost")


def is_own(name: str, names: Container[str]) -> bool:
    """Say whether a host is an address, localhost or one of `names`, lower-case.

    name: as a URL has it, without a port; an address of IPv6 in brackets, where no name can be.
    """
    name = name.lower().removesuffix(".")
    return name in names or is_local(name) or name.startswith("[") or _IPV4.fullmatch(name) is not None
