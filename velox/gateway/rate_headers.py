"""What a caller is told when the bucket is empty: exact times, in the headers that SDKs read.

Source: the x-ratelimit-* headers of the OpenAI API; Retry-After is RFC 9110 §10.2.3.
"""

from __future__ import annotations

from velox.errors import Reason, VeloxError
from velox.policy.token_bucket import Taken
from velox.shm.bucket import SharedBucket

__all__ = ["duration_text", "rate_limited"]

_NS_PER_MS = 1_000_000


def rate_limited(bucket: SharedBucket, taken: Taken, index: int, now_ns: int) -> VeloxError:
    """Return the 429 for the refused request `index` (from 0) of a batch."""
    rate = bucket.rate
    retry_after_ns = taken.retry_after_ns(index)
    headers = (
        (b"x-ratelimit-limit-requests", b"%d" % rate.burst),
        (b"x-ratelimit-remaining-requests", b"%d" % bucket.remaining(now_ns)),
        (b"x-ratelimit-reset-requests", duration_text(bucket.full_in_ns(now_ns))),
    )
    message = (
        f"the gateway's request limit is reached (VELOX_RATE_LIMIT_RPM); "
        f"a request passes in {-(-retry_after_ns // _NS_PER_MS)} ms"
    )
    return VeloxError(Reason.RATE_LIMITED, message, retry_after_s=retry_after_ns / 1e9, headers=headers)


def duration_text(ns: int) -> bytes:
    """Write a duration as OpenAI does: 120ms, 3.5s, 6m0s. Rounded up to whole milliseconds."""
    ms = -(-ns // _NS_PER_MS)
    if ms < 1000:
        return b"%dms" % ms
    minutes, rest_ms = divmod(ms, 60_000)
    seconds = b"%gs" % (rest_ms / 1000)
    return b"%dm%b" % (minutes, seconds) if minutes else seconds
