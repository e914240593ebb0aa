"""Who a request to an upstream is from: the fields that say so, made for each request.

    BearerAuthority   a token that is renewed (Google, Entra)
    SigV4Authority    a signature of each request (AWS)

headers() is called in the request's way: it waits for nothing. run() renews what the fields are made of; who owns the
authority runs it as a task beside. Without something that holds, headers() raises NoCredentialsError with the reason.
While the first fetch runs, coming() returns what to wait for before that. Where an upstream refuses what holds,
refused() fetches anew ahead of time.

Knows: which fields. Does not know: where tokens and credentials come from (renewal.py, aws.py, google.py, entra.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeVar

from velox.heads import Headers
from velox.policy.retries.retry import sent_at_s
from velox.providers.sigv4 import AwsCredentials, Signer

__all__ = [
    "NO_PROOF",
    "Authority",
    "BearerAuthority",
    "NoCredentialsError",
    "Proof",
    "SigV4Authority",
    "Source",
]

T_co = TypeVar("T_co", covariant=True)

_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
# What AWS calls its errors about credentials that were right and are not any more.
_AWS_ERROR: Final = b"x-amzn-errortype"
_AWS_REFUSALS: Final = frozenset(
    {
        *(b"ExpiredTokenException", b"ExpiredToken", b"TokenRefreshRequired"),
        *(b"UnrecognizedClientException", b"InvalidClientTokenId"),
    }
)
# And what it calls a signature that is wrong, or was made at another time than now.
_AWS_SIGNATURES: Final = frozenset({b"InvalidSignatureException", b"SignatureDoesNotMatch", b"RequestTimeTooSkewed"})
# AWS takes signatures of five minutes around its own time. A clock that differs by less is not what was wrong.
_LEAST_SKEW_S: Final = 120.0
# Of a proof's version, those of its credentials'; above them how often the clock was set.
_VERSION_BITS: Final = 32


class NoCredentialsError(Exception):
    """There is nothing to sign in with. reason: why, for the operator and the error; without any secret."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason: Final = reason


class Proof(NamedTuple):
    """What a request signs in with. secret: that goes up, and no reply may show; None: none does.

    version: another number after each renewal that brought something new.
    """

    secret: bytes | None
    version: int


NO_PROOF: Final = Proof(None, 0)


class Authority(Protocol):
    """Of one upstream, in one worker."""

    def headers(
        self, method: bytes, host: bytes, target: bytes, headers: Headers, body: bytes | bytearray, now_s: float
    ) -> Headers:
        """Return the fields to add for one request. Raises NoCredentialsError.

        host: as the host field is sent. target: path and query as sent. headers: the others, without those that a
        client brought to sign in with; names in lower case. now_s: Unix time.
        """

    def proof(self, now_s: float) -> Proof:
        """Return what headers() signs in with now; NO_PROOF: there is nothing. now_s: Unix time."""

    def coming(self, now_s: float) -> asyncio.Future[None] | None:
        """Return what is done once there may be something to sign in with; None: there is, or why not is known.

        now_s: Unix time.
        """

    def refused(self, version: int, status: int, headers: Headers, now_s: float) -> asyncio.Future[None] | None:
        """Look at an error of the upstream: is it about what a request signed in with?

        version: of that. now_s: Unix time. Return what is done once something newer holds, or could not be had; None:
        another error, or nothing newer is to be had.
        """

    @property
    def problem(self) -> str | None:
        """Return why the last renewal failed, also while the one before holds; None: it did not."""

    async def run(self) -> None:
        """Renew what the fields are made of, for as long as this runs. Returns at once where nothing is renewed."""


class Source(Protocol[T_co]):
    """Where what is renewed comes from (renewal.py). version: as in Proof."""

    def current(self, now_s: float) -> T_co:
        """Return what holds now. Raises NoCredentialsError. now_s: Unix time."""

    @property
    def version(self) -> int: ...

    @property
    def problem(self) -> str | None:
        """Why the last renewal failed; None: it did not."""

    def renewed(self, version: int) -> asyncio.Future[None] | None:
        """Renew it ahead of time: `version` was refused. Returns as Authority.refused()."""

    def coming(self, now_s: float) -> asyncio.Future[None] | None:
        """As of Authority."""

    async def run(self) -> None:
        """Renew it, for as long as this runs."""


class BearerAuthority:
    """A token that is renewed. more: fields that go with it where there are none so, as `x-goog-user-project`."""

    __slots__ = ("_field", "_known", "_more", "_source")

    def __init__(self, source: Source[str], more: Headers | None = None) -> None:
        self._source: Final = source
        self._more: Final = more or []
        self._known = ""
        self._field = (b"authorization", b"")

    def __repr__(self) -> str:
        return f"<BearerAuthority {self._source!r}>"

    def headers(
        self, method: bytes, host: bytes, target: bytes, headers: Headers, body: bytes | bytearray, now_s: float
    ) -> Headers:
        token = self._source.current(now_s)
        if token is not self._known:
            self._known, self._field = token, (b"authorization", b"Bearer " + token.encode("latin-1"))
        if not self._more:
            return [self._field]
        names = {name for name, _ in headers}
        return [self._field, *(field for field in self._more if field[0] not in names)]

    def proof(self, now_s: float) -> Proof:
        return _proof(self._source, now_s, lambda token: token)

    def coming(self, now_s: float) -> asyncio.Future[None] | None:
        return self._source.coming(now_s)

    def refused(self, version: int, status: int, headers: Headers, now_s: float) -> asyncio.Future[None] | None:
        return self._source.renewed(version) if status == _UNAUTHORIZED else None

    @property
    def problem(self) -> str | None:
        return self._source.problem

    async def run(self) -> None:
        await self._source.run()


class SigV4Authority:
    """A signature of each request. service: "bedrock".

    Where this machine's clock is wrong, signatures have the time of AWS's, which its refusals tell.
    """

    __slots__ = ("_ahead_s", "_n_set", "_signer", "_source")

    def __init__(self, source: Source[AwsCredentials], region: str, service: str) -> None:
        self._source: Final = source
        self._signer: Final = Signer(region, service)
        self._ahead_s = 0.0  # how much later AWS's clock is
        self._n_set = 0  # how often that was found out

    def __repr__(self) -> str:
        return f"<SigV4Authority {self._signer!r} {self._source!r}>"

    def headers(
        self, method: bytes, host: bytes, target: bytes, headers: Headers, body: bytes | bytearray, now_s: float
    ) -> Headers:
        credentials = self._source.current(now_s)
        return self._signer.sign(credentials, method, host, target, headers, body, now_s=now_s + self._ahead_s)

    def proof(self, now_s: float) -> Proof:
        # The secret key itself goes nowhere. An error about a signature shows the fields that were signed.
        proof = _proof(self._source, now_s, lambda credentials: credentials.session_token)
        return proof._replace(version=proof.version | self._n_set << _VERSION_BITS) if self._n_set else proof

    def coming(self, now_s: float) -> asyncio.Future[None] | None:
        return self._source.coming(now_s)

    def refused(self, version: int, status: int, headers: Headers, now_s: float) -> asyncio.Future[None] | None:
        if status not in (_UNAUTHORIZED, _FORBIDDEN):
            return None
        said = next((value for name, value in headers if name == _AWS_ERROR), b"")
        name = said.partition(b":")[0].strip()
        n_set, version = divmod(version, 1 << _VERSION_BITS)
        if name in _AWS_SIGNATURES and (n_set < self._n_set or self._sets_clock(headers, now_s)):
            done = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        return self._source.renewed(version) if name in _AWS_REFUSALS else None

    def _sets_clock(self, headers: Headers, now_s: float) -> bool:
        """Sign with AWS's time from now on. Return False where that would change nothing."""
        sent_s = sent_at_s(headers)
        if sent_s is None or abs(sent_s - now_s - self._ahead_s) < _LEAST_SKEW_S:
            return False
        self._ahead_s = sent_s - now_s
        self._n_set += 1
        return True

    @property
    def problem(self) -> str | None:
        return self._source.problem

    async def run(self) -> None:
        await self._source.run()


T = TypeVar("T")


def _proof(source: Source[T], now_s: float, secret_of: Callable[[T], str | None]) -> Proof:
    try:
        secret = secret_of(source.current(now_s))
    except NoCredentialsError:
        return NO_PROOF
    return Proof(None if secret is None else secret.encode("latin-1"), source.version)
