"""How names and amounts are written, wherever they are given: in a file, a variable, or a call of the API.

Knows: which texts are names of what, and how much a limit may be. Does not know: who gave them, or how
an error is told.
"""

from __future__ import annotations

import re
from typing import Final

from velox.policy.api.table import ALL_ENDPOINTS, GROUPS
from velox.types import Rates

__all__ = [
    "ENDPOINT_GROUPS",
    "ENDPOINT_PATH",
    "KEY_NAME",
    "MODEL_PATTERN",
    "MOST_BURST",
    "MOST_CONCURRENCY",
    "MOST_KEY_CHARS",
    "MOST_RPM",
    "MOST_TAGS",
    "MOST_TPM",
    "OWNER",
    "TAG",
    "Spelling",
    "filled",
    "is_endpoint",
    "whole",
]


class Spelling:
    """Texts of one kind. pattern: of the whole text. expected: what a message says of them."""

    def __init__(self, pattern: str, expected: str) -> None:
        self.pattern: Final = pattern
        self.matches: Final = re.compile(pattern).fullmatch
        self.expected: Final = expected


KEY_NAME: Final = Spelling(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
    "1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first",
)
# A team or a user: often an address of mail.
OWNER: Final = Spelling(
    r"[A-Za-z0-9][A-Za-z0-9@._+:-]{0,127}",
    "1 to 128 letters, digits and any of `@._+:-`, a letter or digit first",
)
# No comma: where several are written in one text, commas stand between them. No space: tags that are no key's have one
# (request_tags.py).
TAG: Final = Spelling(r"[!-+\--~]{1,64}", "tags of 1 to 64 visible ASCII characters each, without commas")
MODEL_PATTERN: Final = Spelling(
    r"[!-~]{1,256}", "names of models, `*` for any text, 1 to 256 visible ASCII characters each"
)

MOST_KEY_CHARS: Final = 512
MOST_TAGS: Final = 8
MOST_RPM: Final = 60_000_000
MOST_BURST: Final = 10_000_000
MOST_TPM: Final = 100_000_000
MOST_CONCURRENCY: Final = 10_000_000
# A burst of ten seconds' requests, and at least 10: a client with a low rate may send a few at once.
_BURST_PART: Final = 6
_LEAST_BURST: Final = 10

ENDPOINT_GROUPS: Final = frozenset({ALL_ENDPOINTS, *GROUPS})
ENDPOINT_PATH: Final = Spelling(r"/[A-Za-z0-9_.:@~/*-]{0,255}", "a path, with `*` for any text")


def whole(value: object) -> object:
    """Return a number of JSON as an int if it is whole: 60.0 is the number 60."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_endpoint(text: str) -> bool:
    """Tell whether a text is the name of a group of endpoints, or a pattern of paths."""
    return text in ENDPOINT_GROUPS or ENDPOINT_PATH.matches(text) is not None


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
