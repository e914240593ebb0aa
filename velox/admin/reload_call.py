"""Asks a running gateway for a reload, through its admin listener: what `velox reload` does.

Knows: the request, and how the answer is shown to a person. Does not know: where the listener is, or its token
(settings/loading.py).
"""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from velox.admin.call import AdminConnection, only
from velox.admin.reload import ANSWER_S
from velox.types import Address, Secret

__all__ = ["ReloadOutcome", "call_reload", "no_velox", "post", "refused"]

# The page answers before that.
_TIMEOUT_S: Final = ANSWER_S + 10.0
_MOST_BYTES: Final = 32 * 2**20
_ELSEWHERE: Final = "if its admin listener is elsewhere, give --config, VELOX_CONFIG or --admin as the gateway has it"
_ASKS: Final = "it asks for a token: set VELOX_ADMIN_TOKEN or VELOX_ADMIN_TOKEN_FILE as the gateway has it"


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
    reply = post(address, token, cert, "/reload?force=true" if force else "/reload", _TIMEOUT_S)
    if isinstance(reply, ReloadOutcome):
        return reply
    status, body = reply
    if status in (200, 422):
        try:
            return _outcome(orjson.loads(body))
        except (ValueError, TypeError, LookupError, AttributeError):
            return no_velox(address)
    return refused(address, status, body)


def post(
    address: Address, token: Secret | None, cert: str | None, path: str, timeout_s: float
) -> tuple[int, bytes] | ReloadOutcome:
    """Send a request without a body; return the status and the body of the answer, or why there is none."""
    try:
        connection = AdminConnection(address, None if cert is None else only(cert), timeout_s)
    except OSError as exc:
        return ReloadOutcome(2, (f"VELOX_ADMIN_TLS_CERT is {cert!r}: it can't be read ({exc.strerror})",))
    headers = {} if token is None else {"Authorization": f"Bearer {token.reveal()}"}
    try:
        connection.request("POST", path, headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException) as exc:
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else type(exc).__name__
        return ReloadOutcome(2, (f"the gateway can't be reached at {address} ({why}); {_ELSEWHERE}",))
    finally:
        connection.close()


def no_velox(address: Address) -> ReloadOutcome:
    """Return what is said of an answer that no gateway gives."""
    return ReloadOutcome(2, (f"what answers at {address} is no admin listener of Velox; {_ELSEWHERE}",))


def refused(address: Address, status: int, body: bytes) -> ReloadOutcome:
    """Return what is said of an answer that is none to the question."""
    if status == 401:
        return ReloadOutcome(2, (f"the gateway at {address} was not asked: {_ASKS}",))
    said = body.decode("utf-8", "replace").strip().splitlines()
    what = said[0] if said and said[0].isprintable() else "no reason is given"
    # 503: it leaves; 429, 504: later. Of all else nothing here can be asked for a reload.
    return ReloadOutcome(1 if status in (429, 503, 504) else 2, (f"the gateway at {address} says {status}: {what}",))


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
        lines.append(f"needs a restart: {', '.join(answer['needs_restart'])}")
    return ReloadOutcome(0, tuple(lines))


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]
