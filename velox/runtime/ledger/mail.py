"""Alerts of budgets by mail: one message an alert, to a server that relays it.

Knows: SMTP as Python's smtplib speaks it (RFC 5321), TLS by STARTTLS (RFC 3207) or from the first byte (RFC 8314), and
which refusals are for good. Does not know: when an alert is sent, and how often one is tried again (alerts.py).
"""

from __future__ import annotations

import contextlib
import json
import smtplib
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any, Final

from velox.settings.mail_url import MailTarget

__all__ = ["Mail", "message_of"]

_TIMEOUT_S: Final = 10.0
_FOR_GOOD: Final = 500  # RFC 5321 §4.2.1: from here on, to try again is no use
_SUBJECT_CHARS: Final = 200
_USED_UP: Final = 100


class Mail:
    """Sends to one server. It holds up whoever uses it, a thread without a loop, for some time-outs at most.

    trust: of the server's certificate; None: the system's authorities.
    """

    def __init__(
        self,
        target: MailTarget,
        trust: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.time,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._target: Final = target
        self._trust: Final = trust or ssl.create_default_context()
        self._clock: Final = clock
        self._timeout_s: Final = timeout_s

    def __repr__(self) -> str:
        return "<Mail>"

    def send(self, body: bytes) -> str:
        """Return "" if the server took the alert, else why not; after "refused" it is no use to ask again.

        body: the alert's fields as JSON. No reason has a text of the server's: it may repeat what it was sent.
        """
        message = message_of(json.loads(body), self._target, self._clock())
        try:
            server = self._connect()
        except smtplib.SMTPResponseException as exc:
            return _told(exc.smtp_code, "the connection")
        except (smtplib.SMTPException, OSError) as exc:
            return f"no answer ({type(exc).__name__})"
        try:
            return self._hand_over(server, message)
        finally:
            server.close()

    def _hand_over(self, server: smtplib.SMTP, message: EmailMessage) -> str:
        target = self._target
        try:
            if not target.is_tls and not self._starts_tls(server):
                return "refused: the server offers no STARTTLS"
            if target.password is not None:
                server.login(target.user, target.password.reveal())
            server.send_message(message, target.sender, target.to)
        except smtplib.SMTPRecipientsRefused as exc:
            return _told(min((code for code, _ in exc.recipients.values()), default=_FOR_GOOD), "the recipients")
        except smtplib.SMTPAuthenticationError as exc:
            return _told(exc.smtp_code, "the user or the password")
        except smtplib.SMTPResponseException as exc:
            return _told(exc.smtp_code, "the message")
        except smtplib.SMTPNotSupportedError:
            return "refused: the server takes no user and password"
        except (smtplib.SMTPException, OSError) as exc:
            return f"no answer ({type(exc).__name__})"
        with contextlib.suppress(smtplib.SMTPException, OSError):
            server.quit()  # the message is the server's by now, whatever it answers
        return ""

    def _connect(self) -> smtplib.SMTP:
        target, name = self._target, socket.gethostname()
        if target.is_tls:
            return smtplib.SMTP_SSL(target.host, target.port, name, timeout=self._timeout_s, context=self._trust)
        return smtplib.SMTP(target.host, target.port, name, timeout=self._timeout_s)

    def _starts_tls(self, server: smtplib.SMTP) -> bool:
        """Go on in TLS, where the server can; False: it can't, and is not on this machine."""
        server.ehlo_or_helo_if_needed()
        if server.has_extn("starttls"):
            server.starttls(context=self._trust)
            return True
        return self._target.is_local


def message_of(alert: Mapping[str, Any], target: MailTarget, now_s: float) -> EmailMessage:
    """Return an alert as a message. Its id is the alert's: one that comes twice is seen to be the same."""
    message = EmailMessage()
    text = " ".join(str(alert["text"]).split())
    message["Subject"] = f"[velox] {text}"[:_SUBJECT_CHARS]
    message["From"] = target.sender
    message["To"] = ", ".join(target.to)
    message["Date"] = format_datetime(datetime.fromtimestamp(now_s, UTC))
    message["Message-ID"] = f"<{_plain(str(alert['id']))}@{target.sender.partition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834 §5: nobody's absence is answered
    if alert["threshold_percent"] >= _USED_UP:
        message["Importance"] = "high"
    facts = "".join(f"{name}: {value}\n" for name, value in alert["budget"].items())
    message.set_content(f"{text}\n\n{facts}")
    return message


def _plain(text: str) -> str:
    """Return an id as it may stand in a Message-ID (RFC 5322 §3.6.4)."""
    return "".join(each if each.isascii() and each.isalnum() else f"-{ord(each):x}-" for each in text)


def _told(code: int, what: str) -> str:
    return f"refused: {what}, with status {code}" if code >= _FOR_GOOD else f"{what} not taken, status {code}"
