"""Secrets that anybody would try first.

Knows: how short a secret may be, and what examples have in place of one. Does not know: whose it is, or who can reach
the listener that it opens.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["LEAST_CHARS", "is_weak"]

# Of letters and digits, as many as can't be tried out over a network in a year.
LEAST_CHARS: Final = 8
# What documentation has in place of a secret, and the first lines of each list of passwords.
_EXAMPLES: Final = re.compile(
    r"(?i)(?:sk-|vk-)?(?:change|replace)[-_ ]?(?:me|this)[-_!.0-9]*"
    r"|(?:sk-|vk-)?(?:my|your)[-_](?:secret|token|password|(?:api[-_])?key)[-_a-z0-9]*"
    r"|(?:sk-|vk-)?(?:password|passw0rd|secret|admin|letmein|qwerty|example|test)[-_!.0-9]*(?:secret|password|key|token)?"
    r"|(?:sk-|vk-)?(?:123456|abcdef)[0-9a-f]{0,10}|sk-1234"
)


def is_weak(text: str) -> bool:
    """Say whether a secret is shorter than LEAST_CHARS, one letter again and again, or one that everybody knows."""
    return len(text) < LEAST_CHARS or len(set(text)) == 1 or _EXAMPLES.fullmatch(text) is not None
