"""What is taken out of content before it is in a span: what looks like a credential, an address or a card.

Knows: the forms. Does not know: where a text comes from. Patterns find what has a form, and nothing else that is
secret: who must not export a word leaves content off.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["REDACTED", "Redaction", "whole_words"]

REDACTED: Final = "[redacted]"
_CREDENTIALS: Final = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.){0,16384}?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:sk|pk|rk|xai|gsk|pplx|vk|hf|ghp|gho|ghs|glpat|xox[abprs]|github_pat)[-_][A-Za-z0-9_\-]{16,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bAIza[A-Za-z0-9_\-]{30,}"
    r"|\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}(?:\.[A-Za-z0-9_\-]*)?"
    r"|(?<=Bearer )[A-Za-z0-9._~+/=\-]{16,}"
)
_ADDRESS: Final = r"\b[A-Za-z0-9._%+\-]{1,64}@[A-Za-z0-9\-]{1,63}(?:\.[A-Za-z0-9\-]{1,63}){1,8}\b"
_FORMS: Final = re.compile(f"{_CREDENTIALS}|{_ADDRESS}")
_CARD: Final = re.compile(r"(?<![\d.])\d(?:[ -]?\d){12,18}(?![\d.])")
_MOST_CUT: Final = 256


class Redaction:
    """own: what is taken out besides; None: nothing."""

    __slots__ = ("_own",)

    def __init__(self, own: re.Pattern[str] | None = None) -> None:
        self._own: Final = own

    def of(self, text: str) -> str:
        """Return a text without what it must not say."""
        text = _CARD.sub(_card, _FORMS.sub(REDACTED, text))
        return text if self._own is None else self._own.sub(REDACTED, text)


def whole_words(text: str) -> str:
    """Return a text that was cut without its last word: the rest of a credential has no form to be found by."""
    at = max(len(text) - _MOST_CUT, 0)
    blanks = [found.start() for found in re.finditer(r"\s", text[at:])]
    return text[: at + (blanks[-1] if blanks else 0)]


def _card(found: re.Match[str]) -> str:
    digits = [int(each) for each in found[0] if each.isdigit()]
    doubled = [each * 2 - 9 if each > 4 else each * 2 for each in digits[-2::-2]]
    return REDACTED if (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0 else found[0]
