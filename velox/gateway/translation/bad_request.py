"""What a client gets for a request that its dialect, or the model's, does not allow.

Knows: which reason goes with an error of the dialects. Does not know: what was wrong.
"""

from __future__ import annotations

from velox.dialects.canonical.losses import BadRequestError, UnknownPreviousError
from velox.errors import Reason, VeloxError

__all__ = ["refusal"]


def refusal(error: BadRequestError) -> VeloxError:
    """Return the error to answer with."""
    reason = Reason.PREVIOUS_NOT_FOUND if isinstance(error, UnknownPreviousError) else Reason.BAD_REQUEST
    return VeloxError(reason, error.message, param=error.param or None, details=error.details)
