"""How much a key, or what a limit is for, may use: the fields rpm, burst, tpm, tpm_burst and concurrency.

Knows: their bounds, the bursts that are not given, and that a burst needs its rate. Does not know: whom they are for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from velox.settings import parse
from velox.settings.file import Field
from velox.settings.problems import Problem, quoted
from velox.types import Rates

__all__ = [
    "MOST_BURST",
    "MOST_CONCURRENCY",
    "MOST_RPM",
    "MOST_TPM",
    "RATE_FIELDS",
    "filled",
    "parse_rates",
]

MOST_RPM: Final = 60_000_000
MOST_BURST: Final = 10_000_000
MOST_TPM: Final = 100_000_000
MOST_CONCURRENCY: Final = 10_000_000
# Ten seconds' worth, so that a client which sends once a second what it may send a minute is not refused; and a few
# at once for who may send little.
_BURST_PART: Final = 6
_LEAST_BURST: Final = 10

_MOST: Final = {
    "rpm": MOST_RPM,
    "burst": MOST_BURST,
    "tpm": MOST_TPM,
    "tpm_burst": MOST_TPM,
    "concurrency": MOST_CONCURRENCY,
}
RATE_FIELDS: Final = tuple(_MOST)
_RATE_OF: Final = {"burst": "rpm", "tpm_burst": "tpm"}


def filled(rates: Rates) -> Rates:
    """Return the rates with the bursts that are not given.

    Of requests a sixth of a minute's, at least 10, at most the minute's. Of tokens the minute's: a large prompt must
    fit.
    """
    burst = rates.burst or min(rates.rpm, max(_LEAST_BURST, rates.rpm // _BURST_PART))
    return Rates(
        rates.rpm,
        burst if rates.rpm else 0,
        rates.tpm,
        (rates.tpm_burst or rates.tpm) if rates.tpm else 0,
        rates.concurrency,
    )


def parse_rates(given: Mapping[str, Field], problems: list[Problem], *, secret: bool = False) -> Rates:
    """Return the rates that the fields of a mapping give, bursts filled in; what is wrong is added to `problems`.

    secret: no value is shown, because beside these fields stands a key.
    """
    found: dict[str, int] = {}
    for name in RATE_FIELDS:
        if name not in given:
            continue
        one = given[name]
        try:
            if one.is_list:
                raise ValueError("expected one number, not a list")
            found[name] = parse.count(1, _MOST[name])(one.text)
        except ValueError as exc:
            shown = "" if secret or one.is_list else quoted(one.text)
            problems.append(Problem(name, shown, str(exc), where=one.where))
    for name, rate in _RATE_OF.items():
        if name in given and rate not in given:
            expected = f"expected {rate} with it: a burst is how much of a rate may come at once"
            problems.append(Problem(name, "", expected, where=given[name].where))
    return filled(Rates(**found))
