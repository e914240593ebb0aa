"""The URL of a mail server and of who gets its mail, in the place of a webhook's.

    smtps://USER:PASSWORD@mail.example.com/?to=ops@example.com,me@example.com&from=velox@example.com
    smtp://mail.example.com/?to=ops@example.com     STARTTLS, which the server must offer, but for one on this machine

Knows: what such a URL may have. Does not know: how mail is sent (runtime/ledger/mail.py). No message has any part of
it: a password may stand in it.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from velox.types import Secret

__all__ = ["MailTarget", "is_mail_url", "mail_target"]

_EXPECTED: Final = "expected smtps://[USER:PASSWORD@]HOST[:PORT]/?to=ADDRESS[,ADDRESS][&from=ADDRESS], or smtp://"
_SCHEMES: Final = ("smtp://", "smtps://")
# RFC 5321 §4.1.2, without quotes and address literals: what follows can't end a command or a header.
_ADDRESS: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")
_MOST_TO: Final = 50
_TLS_PORT: Final = 465  # RFC 8314 §3.3
_SUBMISSION_PORT: Final = 587  # RFC 6409 §3.1
_LOCAL_PORT: Final = 25


@dataclass(frozen=True, slots=True)
class MailTarget:
    """Where alerts go. is_tls: from the first byte on; else by STARTTLS, which a server of this machine may lack."""

    host: str
    port: int
    is_tls: bool
    is_local: bool
    sender: str
    to: tuple[str, ...]
    user: str = ""
    password: Secret | None = None


def is_mail_url(text: str) -> bool:
    """Say whether a URL is one of these, right or wrong."""
    return text.lower().startswith(_SCHEMES)


def mail_target(text: str) -> MailTarget:
    """Return what a URL says. Raises ValueError."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else []
    except ValueError:
        raise ValueError(_EXPECTED) from None
    fields = dict(query)
    if not host or not _VISIBLE.fullmatch(text) or "#" in text or parts.path not in ("", "/") or port == 0:
        raise ValueError(_EXPECTED)
    if len(fields) < len(query) or not fields.keys() <= {"to", "from"} or "to" not in fields:
        raise ValueError(_EXPECTED)
    to = tuple(dict.fromkeys(each.strip() for each in fields["to"].split(",")))
    sender = fields.get("from") or f"velox@{socket.gethostname()}"
    if len(to) > _MOST_TO or not all(map(_ADDRESS.fullmatch, (*to, sender))):
        raise ValueError(f"{_EXPECTED}, with up to {_MOST_TO} addresses such as ops@example.com")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if bool(user) is not bool(password):
        raise ValueError(f"{_EXPECTED}: a user and a password, or neither")
    is_tls, is_local = parts.scheme.lower() == "smtps", _is_local(host)
    usual = _TLS_PORT if is_tls else _LOCAL_PORT if is_local else _SUBMISSION_PORT
    secret = Secret(password) if password else None
    return MailTarget(host, port or usual, is_tls, is_local, sender, to, user, secret)


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
