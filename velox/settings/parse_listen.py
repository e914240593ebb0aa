"""Text to value for the clients' listeners: several addresses, the mode and the owner of a unix socket.

Knows: spellings, and which users and groups this machine has. Does not know: when a socket is bound.
"""

from __future__ import annotations

import grp
import pwd
import re
from typing import Final

from velox.settings import parse
from velox.types import Address, SocketOwner

__all__ = ["addresses", "file_mode", "socket_owner"]

_MODE: Final = re.compile(r"0?[0-7]{3}")
_MAX_ADDRESSES: Final = 16
# (uid_t) -1 means "leave it" to chown(2).
_MAX_ID: Final = 2**32 - 2


def addresses(text: str) -> tuple[Address, ...]:
    """Parse addresses with commas between them."""
    found = tuple(parse.address(item.strip()) for item in text.split(","))
    if len(found) > _MAX_ADDRESSES:
        raise ValueError(f"expected at most {_MAX_ADDRESSES} addresses")
    fixed = [each for each in found if each.kind == "unix" or each.port]  # port 0 is another one each time
    if len(set(fixed)) != len(fixed):
        raise ValueError("expected each address once")
    return found


def file_mode(text: str) -> int:
    """Parse an octal mode of three digits, as chmod takes it."""
    if not _MODE.fullmatch(text):
        raise ValueError("expected an octal mode such as 0660")
    return int(text, 8)


def socket_owner(text: str) -> SocketOwner:
    """Parse USER, USER:GROUP or :GROUP; each a name that this machine knows, or a number."""
    user, _, group = text.partition(":")
    if not (user or group) or ":" in group:
        raise ValueError("expected USER, USER:GROUP or :GROUP, names or numbers")
    uid = _number(user)
    gid = _number(group)
    try:
        if user and uid is None:
            uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        raise ValueError("expected a user that this machine knows, or its number") from None
    try:
        if group and gid is None:
            gid = grp.getgrnam(group).gr_gid
    except KeyError:
        raise ValueError("expected a group that this machine knows, or its number") from None
    return SocketOwner(text, uid, gid)


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdecimal()):
        return None
    return parse.integer(0, _MAX_ID)(text)
