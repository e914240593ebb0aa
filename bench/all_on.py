"""What a real deployment has on, in steps: keys, limits of each key, a ledger, budgets, each with what is above it.

Knows: settings of the gateway. Does not know: who starts one, or what is measured of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

__all__ = ["STEPS", "Step", "settings_up_to"]

Step: TypeAlias = Literal["bare", "keys", "limits", "ledger", "prices", "budgets"]
STEPS: Final[Sequence[Step]] = get_args(Step)
# Never reached: a refusal costs something else.
_LIMITS: Final = {"per": "key", "rpm": 60_000_000, "burst": 1_000_000, "tpm": 100_000_000, "tpm_burst": 100_000_000}
_BUDGETS: Final = [{"per": per, "usd": 10**6, "window": "month"} for per in ("gateway", "key")]
_PRICES: Final = Path(__file__).with_name("prices.yaml")


def settings_up_to(step: Step, keys: str, ledger: Path) -> dict[str, str]:
    """Return the settings of all steps up to this one. keys: of the callers, with commas. ledger: a folder for it."""
    of_steps: dict[Step, dict[str, str]] = {
        "bare": {"VELOX_API_KEYS": "", "VELOX_RATE_LIMIT_RPM": "0", "VELOX_ACCESS_LOG": "errors"},
        "keys": {"VELOX_API_KEYS": keys},
        "limits": {"VELOX_LIMITS": json.dumps([_LIMITS])},
        "ledger": {"VELOX_LEDGER": str(ledger)},
        "prices": {"VELOX_PRICES": str(_PRICES)},
        "budgets": {"VELOX_BUDGETS": json.dumps(_BUDGETS)},
    }
    found: dict[str, str] = {}
    for each in STEPS[: STEPS.index(step) + 1]:
        found |= of_steps[each]
    return found
