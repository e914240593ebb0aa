"""AWS Signature Version 4: the fields that sign one request.

    canonical request -> its hash in the string to sign -> HMAC by a key of the day, region and service

Signed are host, content-type and all x-amz-* fields; nothing else, as proxies change fields. The key of the day
is made once for each credentials: four of five HMACs.

Knows: how a signature is made. Does not know: where credentials come from, or what time it is.
Source: "Signing AWS API requests", AWS General Reference. Paths are encoded once more, everywhere but at S3.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote_from_bytes

from velox.heads import Headers
from velox.memo import Memo

__all__ = ["AwsCredentials", "Signer"]

_ALGORITHM: Final = b"AWS4-HMAC-SHA256"
# Paths name models: a gateway asks for some tens of them.
_PATHS: Final = 128
# What a signature is made of, or replaces: never signed as a client sent it.
_OWN: Final = frozenset({b"x-amz-date", b"x-amz-security-token"})


@dataclass(frozen=True, slots=True)
class AwsCredentials:
    """Who signs. expires_at_s: Unix time; None: never."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires_at_s: float | None = None


class Signer:
    """Signs requests to one service in one region: "bedrock" in "eu-central-1"."""

    __slots__ = (
        "_credentials",
        "_day",
        "_key",
        "_paths",
        "_region",
        "_scope",
        "_second",
        "_service",
        "_stamp",
    )

    def __init__(self, region: str, service: str) -> None:
        self._region: Final = region
        self._service: Final = service
        self._paths: Final[Memo[bytes, bytes]] = Memo(_PATHS)  # encoded: half of the time of a signature
        self._second = -1  # the last one that was signed in, and how it is written
        self._stamp = b""
        self._credentials: AwsCredentials | None = None  # whose key this is, and of which day
        self._day = b""
        self._key = b""
        self._scope = b""

    def __repr__(self) -> str:
        return f"<Signer {self._service} in {self._region}>"

    def sign(
        self,
        credentials: AwsCredentials,
        method: bytes,
        host: bytes,
        target: bytes,
        headers: Headers,
        body: bytes | bytearray,
        *,
        now_s: float,
    ) -> Headers:
        """Return the fields to add. host: as the host field is sent. target: path and query as sent. now_s: Unix time.

        headers: the others, names in lower case. Those that these fields replace don't count.
        """
        if int(now_s) != self._second:
            self._second = int(now_s)
            self._stamp = datetime.fromtimestamp(self._second, UTC).strftime("%Y%m%dT%H%M%SZ").encode("ascii")
        stamp, day = self._stamp, self._stamp[:8]
        if credentials is not self._credentials or day != self._day:
            self._use(credentials, day)

        added = [(b"x-amz-date", stamp)]
        if credentials.session_token is not None:
            added.append((b"x-amz-security-token", credentials.session_token.encode("ascii")))
        fields: dict[bytes, bytes] = {b"host": host}
        for name, value in (*headers, *added):
            if name == b"content-type" or (name.startswith(b"x-amz-") and (name not in _OWN)):
                value = b" ".join(value.split())
                fields[name] = fields[name] + b"," + value if name in fields else value
        fields.update(added)
        names = sorted(fields)
        signed_names = b";".join(names)
        path, _, query = target.partition(b"?")
        canonical_path = self._paths.get(path) or self._paths.find(path) or self._paths.put(path, _canonical_path(path))
        canonical = b"\n".join(
            (
                method,
                canonical_path,
                _canonical_query(query) if query else b"",
                *[name + b":" + fields[name] for name in names],
                b"",
                signed_names,
                hashlib.sha256(body).hexdigest().encode("ascii"),
            )
        )
        hashed = hashlib.sha256(canonical).hexdigest().encode("ascii")
        to_sign = b"\n".join((_ALGORITHM, stamp, self._scope, hashed))
        signature = hmac.digest(self._key, to_sign, "sha256").hex().encode("ascii")
        who = credentials.access_key_id.encode("ascii") + b"/" + self._scope
        value = b"%b Credential=%b, SignedHeaders=%b, Signature=%b" % (_ALGORITHM, who, signed_names, signature)
        return [*added, (b"authorization", value)]

    def _use(self, credentials: AwsCredentials, day: bytes) -> None:
        region, service = self._region.encode("ascii"), self._service.encode("ascii")
        key = b"AWS4" + credentials.secret_access_key.encode()
        for part in (day, region, service, b"aws4_request"):
            key = hmac.digest(key, part, "sha256")
        self._credentials, self._day, self._key = credentials, day, key
        self._scope = b"/".join((day, region, service, b"aws4_request"))


def _canonical_path(path: bytes) -> bytes:
    if b"//" in path or b"/." in path:
        segments: list[bytes] = []
        for segment in path.split(b"/"):
            if segment == b"..":
                del segments[-1:]
            elif segment not in (b"", b"."):
                segments.append(segment)
        path = b"/" + b"/".join(segments) + (b"/" if segments and path.endswith(b"/") else b"")
    return quote_from_bytes(path or b"/", safe="/~").encode("ascii")


def _canonical_query(query: bytes) -> bytes:
    pairs = sorted(pair.partition(b"=")[::2] for pair in query.split(b"&"))
    return b"&".join(name + b"=" + value for name, value in pairs)
