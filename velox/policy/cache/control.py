"""What a request asks of the cache: the directives of its Cache-Control field (RFC 9111 §5.2.1).

Knows: no-store, no-cache, max-age and only-if-cached; others mean nothing here. Does not know: what follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

__all__ = ["USUAL", "CacheControl", "cache_control"]

_MOST_DIGITS: Final = 10  # RFC 9111 §1.2.2: what is larger is 2**31 or more, and no answer is as old


class CacheControl(NamedTuple):
    """no_store: nothing is looked up or kept. no_cache: the upstream is asked, and its answer may be kept.

    max_age_s: no answer that is older; only_if_cached: an answer that is kept, or none.
    """

    no_store: bool = False
    no_cache: bool = False
    max_age_s: float = math.inf
    only_if_cached: bool = False


USUAL: Final = CacheControl()


def cache_control(values: Iterable[bytes]) -> CacheControl:
    """Read the values of all Cache-Control fields of a request.

    Of several max-age the smallest counts; one that is no number is 0, the strictest (RFC 9111 §4.2.1).
    """
    no_store = no_cache = only_if_cached = False
    max_age_s = math.inf
    for value in values:
        for item in value.split(b","):
            name, _, argument = item.strip(b" \t").partition(b"=")
            name = name.strip(b" \t").lower()
            no_store |= name == b"no-store"
            no_cache |= name == b"no-cache"
            only_if_cached |= name == b"only-if-cached"
            if name == b"max-age":
                max_age_s = min(max_age_s, _seconds(argument.strip(b' \t"')))
    return CacheControl(no_store, no_cache, max_age_s, only_if_cached)


def _seconds(digits: bytes) -> float:
    if not digits.isdigit():
        return 0.0
    return float(digits) if len(digits) <= _MOST_DIGITS else math.inf
