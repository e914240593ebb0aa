"""Alerts by mail, against a server that speaks SMTP: TLS, sign-in, and what is tried again."""

from __future__ import annotations

import email
import email.policy
import json
import ssl
from dataclasses import replace
from typing import Any

import pytest
import trustme

from tests.fake_smtp import FakeSmtp
from velox.runtime.ledger.mail import Mail
from velox.settings.mail_url import mail_target

ALERT: dict[str, Any] = {
    "id": "alert_0123456789abcdef01234567",
    "type": "budget.threshold",
    "text": "budget of team Zürich\r\nBcc: x@evil.example has reached 80 %: $16 of $20 are spent",
    "threshold_percent": 100,
    "budget": {"scope": "team", "name": "Zürich", "window": "month", "unit": "usd", "limit": "20", "spent": "16"},
}
TO = "to=ops@example.com,me@example.com&from=velox@example.com"
HOST = "localhost"
LOGIN = "mailer:pa:ss w0rd"
IN_URL = "mailer:pa%3Ass%20w0rd@"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def context_of(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


def trust_in(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def sent(
    server: FakeSmtp, authority: trustme.CA, scheme: str = "smtp", login: str = "", host: str = "localhost"
) -> str:
    """Send the alert; return why it was not taken."""
    url = f"{scheme}://{login}{host}:{server.port}/?{TO}"
    return Mail(mail_target(url), trust_in(authority), timeout_s=5.0).send(json.dumps(ALERT).encode())


@pytest.mark.parametrize("scheme", ["smtp", "smtps"])
def test_alert_is_a_message_over_tls(authority: trustme.CA, scheme: str) -> None:
    """With a user and a password, to all recipients; no header is made of what a team is called."""
    with FakeSmtp(context_of(authority), is_smtps=scheme == "smtps", login=LOGIN) as server:
        assert sent(server, authority, scheme, IN_URL) == ""
    (taken,) = server.taken
    assert taken.is_tls and taken.user == "mailer" and taken.sender == "velox@example.com"
    assert taken.to == ("ops@example.com", "me@example.com")
    message = email.message_from_bytes(taken.content, policy=email.policy.default)
    assert message["Subject"].startswith("[velox] budget of team Zürich Bcc: x@evil.example has reached 80 %")
    assert message["Bcc"] is None and message["Importance"] == "high" and message["Date"]
    assert message["Message-ID"] == "<alert-5f-0123456789abcdef01234567@example.com>"
    assert "limit: 20\r\nspent: 16" in message.get_content()


def test_server_of_this_machine_may_lack_tls(authority: trustme.CA) -> None:
    with FakeSmtp() as server:
        assert sent(server, authority) == ""
    assert not server.taken[0].is_tls


def test_server_elsewhere_that_offers_no_tls_gets_nothing(authority: trustme.CA) -> None:
    """Neither the password nor the message."""
    with FakeSmtp(login=LOGIN) as server:
        target = replace(mail_target(f"smtp://{IN_URL}{HOST}:{server.port}/?{TO}"), is_local=False)
        why = Mail(target, trust_in(authority), timeout_s=5.0).send(json.dumps(ALERT).encode())
    assert why == "refused: the server offers no STARTTLS"
    assert not server.taken and "AUTH" not in server.commands


def test_certificate_of_somebody_else_gets_nothing(authority: trustme.CA) -> None:
    with FakeSmtp(context_of(trustme.CA()), is_smtps=True, login=LOGIN) as server:
        assert sent(server, authority, "smtps", IN_URL) == "no answer (SSLCertVerificationError)"
    assert not server.taken and not server.commands


@pytest.mark.parametrize(
    ("replies", "why"),
    [
        ({"connect": "421 busy"}, "the connection not taken, status 421"),
        ({"connect": "554 no"}, "refused: the connection, with status 554"),
        ({"mail": "451 later"}, "the message not taken, status 451"),
        ({"rcpt": "550 nobody"}, "refused: the recipients, with status 550"),
        ({"rcpt": "450 greylisted"}, "the recipients not taken, status 450"),
        ({"data": "554 spam"}, "refused: the message, with status 554"),
        ({"message": "452 full"}, "the message not taken, status 452"),
        ({"message": "552 too large"}, "refused: the message, with status 552"),
        ({"quit": "500 what"}, ""),
    ],
)
def test_refusals_of_500_and_more_are_for_good(authority: trustme.CA, replies: dict[str, str], why: str) -> None:
    """What begins with "refused" is not tried again; what was taken is not sent twice for a bad farewell."""
    with FakeSmtp(replies=replies) as server:
        assert sent(server, authority) == why
    assert len(server.taken) == (not why)


def test_wrong_password_is_told_without_it(authority: trustme.CA) -> None:
    """The server repeats it."""
    with FakeSmtp(context_of(authority), login="mailer:other") as server:
        assert sent(server, authority, "smtp", IN_URL) == "refused: the user or the password, with status 535"
        assert sent(server, authority, "smtp") == "refused: the message, with status 503"
    with FakeSmtp(context_of(authority)) as server:
        assert sent(server, authority, "smtp", IN_URL) == "refused: the server takes no user and password"


def test_nobody_there_is_no_answer(authority: trustme.CA) -> None:
    with FakeSmtp() as server:
        pass
    assert sent(server, authority) == "no answer (ConnectionRefusedError)"
    assert sent(server, authority, host="name.invalid") == "no answer (gaierror)"


@pytest.mark.parametrize(
    "url",
    [
        "smtp://h",
        "smtp://h/?to=",
        "smtp://h/?to=a",
        "smtp://h/?to=a@b&to=c@d",
        "smtp://h/?to=a@b&cc=c@d",
        "smtp://h/?to=a@b%0d%0aRCPT%20TO:x@y",
        "smtp://h/?to=a@b&from=x%20y@z",
        "smtp://h/path?to=a@b",
        "smtp://h:0/?to=a@b",
        "smtp://h:99999/?to=a@b",
        "smtp://user@h/?to=a@b",
        "smtp://:s3cret@h/?to=a@b",
        "smtps:///?to=a@b",
        "smtp://u:s3cret@h/?to=a@b#x",
        "smtp://h/?to=" + ",".join(f"a{n}@b" for n in range(51)),
    ],
)
def test_wrong_url_is_refused_without_any_part_of_it(url: str) -> None:
    with pytest.raises(ValueError, match=r"^expected smtps://") as raised:
        mail_target(url)
    assert "s3cret" not in str(raised.value)


def test_usual_ports_and_sender() -> None:
    assert [mail_target(f"{start}/?to=a@b.example").port for start in ("smtps://h", "smtp://h", "smtp://[::1]")] == [
        *(465, 587, 25)
    ]
    assert mail_target("smtp://h/?to=a@b.example").sender.startswith("velox@")
