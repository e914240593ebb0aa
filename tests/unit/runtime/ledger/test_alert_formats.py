"""What an alert is sent as, in the shapes that the vendors' pages show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from velox.runtime.ledger.alert_formats import AlertFormat, written
from velox.settings import SettingsError, load
from velox.types import Secret

ROUTING_KEY = Secret("routing-key-0a9f8e7d6c5b4a39")
ALERT: dict[str, Any] = {
    "id": "alert_0123456789abcdef01234567",
    "type": "budget.threshold",
    "text": "budget of team R&D <web> has reached 80 %: $16 of $20 are spent (budgets[0], month)",
    "threshold_percent": 80,
    "budget": {"scope": "team", "name": "R&D <web>", "window": "month", "unit": "usd", "limit": "20", "spent": "16"},
    "time": 1_795_435_200,
}


def _sent(form: AlertFormat, **changes: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(written({**ALERT, **changes}, form, ROUTING_KEY))
    return found


def test_own_format_is_the_alert() -> None:
    """Without the secret, which signs it."""
    assert _sent("velox") == ALERT


def test_slack_gets_a_text_in_which_nothing_is_markup() -> None:
    """A team may be called `<!channel>`: everybody would be called."""
    assert _sent("slack") == {
        "text": "budget of team R&amp;D &lt;web&gt; has reached 80 %: $16 of $20 are spent (budgets[0], month)"
    }


def test_teams_gets_an_adaptive_card() -> None:
    """One attachment, of the type that a workflow posts to a channel."""
    message = _sent("teams")
    (attachment,) = message["attachments"]
    card = attachment["content"]
    assert (message["type"], attachment["contentType"]) == ("message", "application/vnd.microsoft.card.adaptive")
    assert (card["type"], card["body"][0]["text"], card["body"][0]["wrap"]) == ("AdaptiveCard", ALERT["text"], True)
    assert {"title": "Spent", "value": "16"} in card["body"][1]["facts"]


@pytest.mark.parametrize(("percent", "severity"), [(80, "warning"), (100, "error"), (120, "error")])
def test_pagerduty_gets_one_incident_a_threshold(percent: int, severity: str) -> None:
    """The id of the alert is its key: sent twice, it is one incident."""
    event = _sent("pagerduty", threshold_percent=percent, text="x" * 2000)
    assert event["routing_key"] == ROUTING_KEY.reveal() and event["event_action"] == "trigger"
    assert event["dedup_key"] == ALERT["id"] and event["payload"]["severity"] == severity
    assert event["payload"]["source"] and len(event["payload"]["summary"]) == 1024


def test_format_is_one_of_these() -> None:
    """Another one is told at the start."""
    assert load({"VELOX_ALERT_FORMAT": "slack"}).alert_format == "slack"
    with pytest.raises(SettingsError, match="VELOX_ALERT_FORMAT"):
        load({"VELOX_ALERT_FORMAT": "email"})
