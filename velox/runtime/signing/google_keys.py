"""Signs with the key of a Google service account: RSA is in google-auth, which is an extra.

Knows: where the signer is. Does not know: what is signed (providers/google.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

from velox.providers.google import RsaSigner
from velox.providers.renewal import FetchError

__all__ = ["google_signer"]


def google_signer(info: Mapping[str, Any]) -> RsaSigner:
    """Return the signer of a key. Raises FetchError."""
    try:
        crypt = importlib.import_module("google.auth.crypt")
    except ImportError:
        raise FetchError(
            "the key of a Google service account needs google-auth: pip install -r requirements.lock"
        ) from None
    try:
        return cast(RsaSigner, crypt.RSASigner.from_service_account_info(info))
    except (ValueError, TypeError) as exc:
        # The error would show parts of the key.
        raise FetchError(
            f"the private key of the Google service account can't be read ({type(exc).__name__})"
        ) from None
