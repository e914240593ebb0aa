"""What an alert is sent as: Velox's own JSON, or what Slack, Microsoft Teams and PagerDuty take.

    velox       the alert's fields, signed (webhook.py)
    slack       {"text": ...}, as incoming webhooks of Slack, Mattermost and Discord (`/slack`) take it
    teams       a message with an Adaptive Card, as the workflow "Post to a channel when a webhook request is received"
    pagerduty   an event of the Events API v2, whose routing key is the secret

Knows: these four shapes. Does not know: how they are sent (webhook.py), or when (alerts.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

from velox.types import Secret

__all__ = ["AlertFormat", "written"]

AlertFormat: TypeAlias = Literal["velox", "slack", "teams", "pagerduty"]

# https://docs.slack.dev/messaging/formatting-message-text: these three and no others are escaped.
_SLACK: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# https://developer.pagerduty.com/docs/send-alert-event: `summary` has 1024 characters at most, `dedup_key` 255.
_SUMMARY: Final = 1024
_USED_UP: Final = 100


def written(alert: Mapping[str, Any], form: AlertFormat, secret: Secret | None) -> bytes:
    """Return the body of a request with an alert. secret: VELOX_ALERT_SECRET."""
    return json.dumps(_SHAPES[form](alert, "" if secret is None else secret.reveal())).encode()


def _velox(alert: Mapping[str, Any], _secret: str) -> Mapping[str, Any]:
    return alert


def _slack(alert: Mapping[str, Any], _secret: str) -> Mapping[str, Any]:
    return {"text": str(alert["text"]).translate(_SLACK)}


def _teams(alert: Mapping[str, Any], _secret: str) -> Mapping[str, Any]:
    budget = alert["budget"]
    facts = {"Spent": budget["spent"], "Limit": budget["limit"], "Unit": budget["unit"], "Window": budget["window"]}
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            {"type": "TextBlock", "text": alert["text"], "wrap": True},
            {"type": "FactSet", "facts": [{"title": title, "value": str(value)} for title, value in facts.items()]},
        ],
    }
    content = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return {"type": "message", "attachments": [content]}


def _pagerduty(alert: Mapping[str, Any], secret: str) -> Mapping[str, Any]:
    is_used_up = alert["threshold_percent"] >= _USED_UP
    return {
        "routing_key": secret,
        "event_action": "trigger",
        "dedup_key": alert["id"],
        "payload": {
            "summary": alert["text"][:_SUMMARY],
            "source": "velox",
            "severity": "error" if is_used_up else "warning",
            "component": "budget",
            "group": alert["budget"]["scope"],
            "class": alert["type"],
            "custom_details": alert["budget"],
        },
    }


_SHAPES: Final[Mapping[AlertFormat, Callable[[Mapping[str, Any], str], Mapping[str, Any]]]] = {
    "velox": _velox,
    "slack": _slack,
    "teams": _teams,
    "pagerduty": _pagerduty,
}
