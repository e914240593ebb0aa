"""Asks a running gateway for a reload, through its admin listener: what `velox reload` does.

Knows: the request, and how the answer is shown to a person. Does not know: where the listener is, or its token
(settings/loading.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from velox.admin.call import ASKS, ELSEWHERE, AdminCaller, AdminCallError
from velox.admin.reload import ANSWER_S
from velox.types import Address, Secret

__all__ = ["ReloadOutcome", "ask_supervisor", "call_reload"]

# The page answers before that.
_TIMEOUT_S: Final = ANSWER_S + 10.0
# 503: it leaves; 429, 504: later. Of all else nothing here can be asked.
_LATER: Final = frozenset({429, 503, 504})


@dataclass(frozen=True, slots=True)
class ReloadOutcome:
    """What `velox reload` prints. code: its exit code: 0 taken, 1 refused, 2 the gateway could not be asked."""

    code: int
    lines: tuple[str, ...]


def call_reload(
    address: Address, token: Secret | None, cert: str | None = None, *, force: bool = False
) -> ReloadOutcome:
    """Ask, wait, and say what came of it.

    cert: file with the certificate that the listener shows; None: it has no TLS. force: also where the new
    configuration lost much (settings/losses.py).
    """
    path = "/reload?force=true" if force else "/reload"
    return ask_supervisor(address, token, cert, path, _TIMEOUT_S, _outcome)


def ask_supervisor(
    address: Address,
    token: Secret | None,
    cert: str | None,
    path: str,
    timeout_s: float,
    outcome: Callable[[dict[str, Any]], ReloadOutcome],
    *,
    later: Collection[int] = _LATER,
) -> ReloadOutcome:
    """Send a POST, and wait for what the supervisor answers.

    outcome: what is said of an answer of 200 or 422. later: statuses by which the gateway refuses for the moment.
    """
    try:
        with contextlib.closing(AdminCaller(address, token, cert, timeout_s)) as caller:
            status, body = caller.ask("POST", path)
    except AdminCallError as exc:
        return ReloadOutcome(2, (str(exc),))
    if status in (200, 422):
        try:
            return outcome(orjson.loads(body))
        except (ValueError, TypeError, LookupError, AttributeError):
            return ReloadOutcome(2, (f"what answers at {address} is no admin listener of Velox; {ELSEWHERE}",))
    if status == 401:
        return ReloadOutcome(2, (f"the gateway at {address} was not asked: {ASKS}",))
    said = body.decode("utf-8", "replace").strip().splitlines()
    what = said[0] if said and said[0].isprintable() else "no reason is given"
    return ReloadOutcome(1 if status in later else 2, (f"the gateway at {address} says {status}: {what}",))


def _outcome(answer: dict[str, Any]) -> ReloadOutcome:
    number, changes, problems = answer["configuration"], answer["changes"], answer["problems"]
    if problems:
        n = len(problems)
        head = f"{n} problem{'s' * (n > 1)} in the configuration, number {number} stays in use:"
        return ReloadOutcome(1, (head, *_indented(problems)))
    if changes:
        # Most often the file's change was seen before the command came.
        when = f", taken {max(1, round(answer['age_s']))} s ago" if answer["age_s"] else ""
        lines = [f"configuration {number} is in use{when}:", *_indented(changes)]
    else:
        lines = [f"configuration {number} is in use: nothing has changed"]
    if answer["waits_for"]:
        lines.append(f"not yet in use by {', '.join(answer['waits_for'])}")
    if answer["needs_restart"]:
        lines.append(
            f"needs a restart, or `velox upgrade`, which refuses nothing: {', '.join(answer['needs_restart'])}"
        )
    return ReloadOutcome(0, tuple(lines))


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]
