"""Text to value, for upstreams and routes: see parse.py.

Knows: names, patterns, shares in percent, and when a second try begins. Does not know: which field it reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from velox.policy.routes import Delay, HashOn
from velox.settings import parse
from velox.settings.header_rules import header_name

__all__ = [
    "delay",
    "hash_on",
    "model_name",
    "model_pattern",
    "name",
    "percent",
    "tag",
]

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_VISIBLE: Final = re.compile(r"[!-~]{1,256}")
_TAG: Final = re.compile(r"[!-+\--~]{1,64}")  # no comma: the header has them between tags
_PERCENT: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?)%?")
_PERCENTILE: Final = re.compile(r"p([0-9]{1,2}(?:\.[0-9]{1,2})?)")


def name(text: str) -> str:
    """Parse the name of an upstream or a route; both are labels of metrics."""
    if not _NAME.fullmatch(text):
        raise ValueError("expected a name of 1 to 64 letters, digits, `.`, `_` and `-`")
    return text


def model_pattern(text: str) -> str:
    """Parse the name of a model, `*` for any text."""
    if not _VISIBLE.fullmatch(text):
        raise ValueError("expected names of models, `*` for any text, 1 to 256 visible ASCII characters each")
    return text


def model_name(text: str) -> str:
    """Parse the name of one model."""
    if not _VISIBLE.fullmatch(text) or "*" in text:
        raise ValueError("expected the name of one model, 1 to 256 visible ASCII characters without `*`")
    return text


def tag(text: str) -> str:
    """Parse a tag."""
    if not _TAG.fullmatch(text):
        raise ValueError("expected tags of 1 to 64 visible ASCII characters each, without commas")
    return text


def percent(low: float, high: float) -> Callable[[str], float]:
    """Return a parser of shares in percent, with or without the sign."""

    def read(text: str) -> float:
        match = _PERCENT.fullmatch(text)
        if match is None or not low <= float(match[1]) <= high:
            raise ValueError(f"expected percent from {low:g} to {high:g}, for example 5 or 0.5%")
        return float(match[1])

    return read


def delay(text: str) -> Delay:
    """Parse p50 to p99.99, or a duration."""
    match = _PERCENTILE.fullmatch(text)
    if match is not None and float(match[1]) >= 50.0:
        return Delay(percentile=float(match[1]))
    try:
        return Delay(seconds=parse.duration(0.001, 600.0)(text))
    except ValueError as exc:
        raise ValueError(f"{exc}, or a percentile from p50 to p99.99") from None


def hash_on(text: str) -> HashOn:
    """Parse user, header:NAME or prefix."""
    kind, _, rest = text.partition(":")
    if text == "user":
        return HashOn("user")
    if text == "prefix":
        return HashOn("prefix")
    try:
        if kind == "header":
            return HashOn("header", header_name(rest).encode("ascii"))
    except ValueError:
        pass  # told below, with the other forms
    raise ValueError("expected user, header:NAME or prefix")
