"""Asks a running gateway for an upgrade, through its admin listener: what `velox upgrade` does.

Knows: the request, and how the answer is shown to a person. Does not know: where the listener is, or its token
(settings/loading.py).
"""

from __future__ import annotations

from typing import Any, Final

from velox.admin.reload_call import ReloadOutcome, ask_supervisor
from velox.types import Address, Secret

__all__ = ["UPGRADE_TIMEOUT_S", "call_upgrade"]

# The gateway answers when VELOX_UPGRADE_TIMEOUT is over, which this command may not know.
UPGRADE_TIMEOUT_S: Final = 3700.0
# 409: there is one already.
_LATER: Final = frozenset({409, 429, 503, 504})


def call_upgrade(address: Address, token: Secret | None, cert: str | None = None) -> ReloadOutcome:
    """Ask, wait, and say what came of it. cert: file with the certificate that the listener shows; None: no TLS."""
    return ask_supervisor(address, token, cert, "/upgrade", UPGRADE_TIMEOUT_S, _outcome, later=_LATER)


def _outcome(answer: dict[str, Any]) -> ReloadOutcome:
    problems = [str(each) for each in answer["problems"]]
    if problems:
        return ReloadOutcome(
            1, ("no upgrade, the running gateway goes on as before:", *(f"  {each}" for each in problems))
        )
    lines = [f"velox {answer['version']} serves now (process {answer['pid']})"]
    if answer["not_kept"]:
        lines.append(f"not kept, for it is laid out otherwise: {', '.join(answer['not_kept'])}")
    return ReloadOutcome(0, tuple(lines))
