"""A mail server for tests: SMTP as RFC 5321 has it, strict about the order of commands, with STARTTLS and AUTH PLAIN.

It keeps what it took. replies: answers in the place of its own, by the first word of a command.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

__all__ = ["FakeSmtp", "Taken"]


@dataclass(frozen=True)
class Taken:
    """One message. user: who had signed in; "": nobody."""

    sender: str
    to: tuple[str, ...]
    content: bytes
    is_tls: bool
    user: str


@dataclass
class _Session:
    """What a connection has said. to: of the message that is under way."""

    is_tls: bool
    user: str = ""
    sender: str = ""
    to: list[str] = field(default_factory=list)


class FakeSmtp:
    """The server, on a thread. context: for TLS, from the first byte on (is_smtps) or by STARTTLS; None: no TLS."""

    def __init__(
        self,
        context: ssl.SSLContext | None = None,
        *,
        is_smtps: bool = False,
        login: str = "",
        replies: Mapping[str, str] | None = None,
    ) -> None:
        self.taken: Final[list[Taken]] = []
        self.commands: Final[list[str]] = []
        self._context: Final = context
        self._is_smtps: Final = is_smtps
        self._login: Final = login
        self._replies: Final = replies or {}
        self._listener: Final = socket.create_server(("127.0.0.1", 0))
        self.port: Final[int] = self._listener.getsockname()[1]
        self._thread: Final = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10.0)

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(10.0)
            try:
                self._talk(sock)
            except (OSError, ValueError):
                pass  # a client that leaves, or trusts this server not
            finally:
                sock.close()

    def _talk(self, sock: socket.socket) -> None:
        if self._is_smtps:
            assert self._context is not None, "smtps needs one"
            sock = self._context.wrap_socket(sock, server_side=True)
        session = _Session(self._is_smtps)
        with contextlib.ExitStack() as held:
            held.enter_context(sock)
            lines = held.enter_context(sock.makefile("rb"))
            sock.sendall(self._replies.get("connect", "220 fake ESMTP").encode() + b"\r\n")
            while line := lines.readline():
                assert line.endswith(b"\r\n"), "RFC 5321 §2.3.8"
                verb, _, rest = line.decode().rstrip("\r\n").partition(" ")
                self.commands.append(verb.upper())
                answer = self._replies.get(verb.lower()) or self._answer(verb.upper(), rest, session)
                sock.sendall(answer.replace("\n", "\r\n").encode() + b"\r\n")
                if verb.upper() == "QUIT":
                    return
                if verb.upper() == "STARTTLS" and answer.startswith("220"):
                    assert self._context is not None, "it was offered"
                    sock = held.enter_context(self._context.wrap_socket(sock, server_side=True))
                    lines, session = held.enter_context(sock.makefile("rb")), _Session(is_tls=True)
                elif verb.upper() == "DATA" and answer.startswith("354"):
                    content = b""
                    while (line := lines.readline()) != b".\r\n":
                        content += line.removeprefix(b".") if line.startswith(b"..") else line
                    answer = self._replies.get("message", "250 taken")
                    if answer.startswith("250"):
                        self.taken.append(
                            Taken(session.sender, tuple(session.to), content, session.is_tls, session.user)
                        )
                    session.sender, session.to = "", []
                    sock.sendall(answer.encode() + b"\r\n")

    def _answer(self, verb: str, rest: str, session: _Session) -> str:
        match verb:
            case "EHLO":
                offers = ["fake", "8BITMIME", "SMTPUTF8"]
                if self._context is not None and not session.is_tls:
                    offers.append("STARTTLS")
                if self._login:
                    offers.append("AUTH PLAIN")
                return "\n".join(f"250{' ' if n == len(offers) else '-'}{each}" for n, each in enumerate(offers, 1))
            case "STARTTLS" if self._context is not None and not session.is_tls:
                return "220 go on"
            case "AUTH" if self._login and rest.startswith("PLAIN "):
                _, user, password = base64.b64decode(rest.removeprefix("PLAIN ")).decode().split("\0")
                session.user = user if f"{user}:{password}" == self._login else ""
                return "235 come in" if session.user else f"535 not {password}"
            case "MAIL" if rest.upper().startswith("FROM:<") and not (self._login and not session.user):
                session.sender = rest[6:].partition(">")[0]
                return "250 ok"
            case "RCPT" if session.sender and rest.upper().startswith("TO:<"):
                session.to.append(rest[4:].partition(">")[0])
                return "250 ok"
            case "DATA" if session.to:
                return "354 go on"
            case "RSET" | "NOOP" | "QUIT":
                return "221 bye" if verb == "QUIT" else "250 ok"
            case _:
                return "503 out of order"
