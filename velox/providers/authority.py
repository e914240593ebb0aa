"""Who a request to an upstream is from: the fields that say so, made for each request.

    StaticHeader      a key that stays
    BearerAuthority   a token that is renewed (Google, Entra, a file)
    SigV4Authority    a signature of each request (AWS)

headers() is called in the request's way: it waits for nothing. run() renews what the fields are made of; who owns the
authority runs it as a task beside. Without something that holds, headers() raises NoCredentialsError with the reason.

Knows: which fields. Does not know: where tokens and credentials come from (renewal.py, aws.py, google.py, entra.py).
"""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

from velox.providers.sigv4 import AwsCredentials, Signer
from velox.types import Headers

__all__ = ["Authority", "BearerAuthority", "NoCredentialsError", "SigV4Authority", "Source", "StaticHeader"]

T_co = TypeVar("T_co", covariant=True)


class NoCredentialsError(Exception):
    """There is nothing to sign in with. reason: why, for the operator and the error; without any secret."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason: Final = reason


class Authority(Protocol):
    """Of one upstream, in one worker."""

    def headers(
        self, method: bytes, host: bytes, target: bytes, headers: Headers, body: bytes | bytearray, now_s: float
    ) -> Headers:
        """Return the fields to add for one request. Raises NoCredentialsError.

        host: as the host field is sent. target: path and query as sent. headers: the others, without those that a
        client brought to sign in with; names in lower case. now_s: Unix time.
        """

    @property
    def problem(self) -> str | None:
        """Return why the last renewal failed, also while the one before holds; None: it did not."""

    async def run(self) -> None:
        """Renew what the fields are made of, for as long as this runs. Returns at once where nothing is renewed."""


class Source(Protocol[T_co]):
    """Where what is renewed comes from (renewal.py)."""

    def current(self, now_s: float) -> T_co:
        """Return what holds now. Raises NoCredentialsError. now_s: Unix time."""

    @property
    def problem(self) -> str | None:
        """Why the last renewal failed; None: it did not."""

    async def run(self) -> None:
        """Renew it, for as long as this runs."""


class StaticHeader:
    """One field that stays: `authorization: Bearer KEY`, `api-key: KEY`."""

    __slots__ = ("_fields",)

    def __init__(self, name: bytes, value: bytes) -> None:
        self._fields: Final = ((name, value),)

    def __repr__(self) -> str:
        return f"<StaticHeader {self._fields[0][0].decode('latin-1')}>"

    def headers(
        self, method: bytes, host: bytes, target: bytes, headers: Headers, body: bytes | bytearray, now_s: float
    ) -> Headers:
        return list(self._fields)

    @property
    def problem(self) -> str | None:
        return None

    async def run(self) -> None:
        return


class BearerAuthority:
    """A token that is renewed. more: fields that go with it, as Google's `x-goog-user-project`."""

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
        return [self._field, *self._more]

    @property
    def problem(self) -> str | None:
        return self._source.problem

    async def run(self) -> None:
        await self._source.run()


class SigV4Authority:
    """A signature of each request. service: "bedrock"."""

    __slots__ = ("_signer", "_source")

    def __init__(self, source: Source[AwsCredentials], region: str, service: str) -> None:
        self._source: Final = source
        self._signer: Final = Signer(region, service)

    def __repr__(self) -> str:
        return f"<SigV4Authority {self._signer!r} {self._source!r}>"

    def headers(
        self, method: bytes, host: bytes, target: bytes, headers: Headers, body: bytes | bytearray, now_s: float
    ) -> Headers:
        return self._signer.sign(self._source.current(now_s), method, host, target, headers, body, now_s=now_s)

    @property
    def problem(self) -> str | None:
        return self._source.problem

    async def run(self) -> None:
        await self._source.run()
