"""The webhook that is told of budgets: one URL, and a signature of what is sent.

Knows: how it is asked, and which answers are worth asking again. Does not know: what it is told (budgets/alerts.py).
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from velox.heads import Headers
from velox.policy.routes.proxies import NO_PROXIES, EnvironmentProxies
from velox.providers.renewal import HttpRequest
from velox.runtime.http_client import HttpClient, RequestError
from velox.types import Secret

__all__ = ["Webhook", "signature"]

_TIMEOUT_S: Final = 10.0
_PASSING: Final = frozenset({408, 425, 429})  # beside all from 500 on


def signature(secret: Secret, at_s: int, body: bytes) -> str:
    """Return what `x-velox-signature` says of a body: who knows the secret can check it, and how old it is."""
    digest = hmac.new(secret.reveal().encode(), f"{at_s}.".encode() + body, sha256).hexdigest()
    return f"t={at_s},v1={digest}"


class Webhook:
    """Asks one URL. It holds up whoever uses it, a thread without a loop, for timeout_s at most."""

    def __init__(
        self,
        url: Secret,
        secret: Secret | None,
        clock: Callable[[], float] = time.time,
        timeout_s: float = _TIMEOUT_S,
        proxies: EnvironmentProxies = NO_PROXIES,
    ) -> None:
        self._client: Final = HttpClient(proxies)
        self._timeout_s: Final = timeout_s
        self._url: Final = url
        self._secret: Final = secret
        self._clock: Final = clock

    def __repr__(self) -> str:
        return "<Webhook>"

    def send(self, body: bytes) -> str:
        """Return "" if the alert was taken, else why not; after "refused" it is no use to ask again."""
        headers: Headers = [(b"content-type", b"application/json")]
        if self._secret is not None:
            headers.append((b"x-velox-signature", signature(self._secret, int(self._clock()), body).encode()))
        question = HttpRequest(b"POST", self._url.reveal(), headers, body, timeout_s=self._timeout_s)
        try:
            status = asyncio.run(self._client.status(question))
        except RequestError as exc:
            return f"no answer ({exc})"
        if 200 <= status < 300:
            return ""
        passes = status >= 500 or status in _PASSING
        return f"status {status}" if passes else f"refused with status {status}"
