"""Writes one object into S3, or into a store that speaks its API, without knowing its length in advance.

    s3_place()       s3://BUCKET/KEY, and the environment's region and endpoint, to a place
    S3Upload         write() as often as there is something, then close(): the object is there, whole; or abandon()

What fits one part is sent by one PutObject. More goes up in parts of equal size (CreateMultipartUpload, UploadPart,
CompleteMultipartUpload), of which one is held in memory. Nobody sees the object before close(); what was there under
its name before stays until then.

Knows: requests, signatures, answers, and which failures are tried again. Does not know: sockets, where credentials come
from, or what is written.
Source: Amazon S3 API Reference, 2006-03-01. Endpoints of other stores are asked by path: ENDPOINT/BUCKET/KEY.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

from velox.providers.aws import domain_of, region_of, xml_text
from velox.providers.renewal import Fetched, FetchError, Outside, Question, Reply, one_line
from velox.providers.sigv4 import AwsCredentials, Signer

__all__ = ["PART_BYTES", "S3Place", "S3Upload", "s3_place"]

# Stores take at most 10,000 parts, each but the last of 5 MiB or more; some ask that all are equally long.
PART_BYTES: Final = 16 * 1024 * 1024
_MOST_PARTS: Final = 10_000
_TIMEOUT_S: Final = 120.0
# Seconds to wait before each further try of one request.
_PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0)
_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})
_CODES_AGAIN: Final = frozenset({"InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown"})
# Credentials that end sooner are fetched anew before a request.
_LEFT_S: Final = 120.0
_DEFAULT_REGION: Final = "us-east-1"
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_MOST_KEY_BYTES: Final = 1024
_DNS_BUCKET: Final = re.compile(r"[a-z0-9-]+")


class S3Place(NamedTuple):
    """Where an object is to be. url: of the object, encoded as it is sent."""

    url: str
    region: str


def s3_place(text: str, environment: Mapping[str, str]) -> S3Place:
    """Return the place of `s3://BUCKET/KEY`. Raises ValueError, which says what was expected.

    Region and endpoint are those of the environment, as AWS's own tools read it: AWS_REGION or AWS_DEFAULT_REGION,
    AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL.
    """
    bucket, _, key = text.removeprefix("s3://").partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ValueError("expected s3://BUCKET/KEY, with a bucket of 3 to 63 letters, digits, dots and hyphens")
    if not key or key.endswith("/") or len(key.encode("utf-8", "surrogatepass")) > _MOST_KEY_BYTES:
        raise ValueError(f"expected s3://BUCKET/KEY, with a key of 1 to {_MOST_KEY_BYTES} bytes that is no folder")
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise ValueError("expected a key without empty parts, `.` and `..`: on the way they are taken out of a path")
    try:
        path = quote(key, safe="/-_.~", encoding="utf-8", errors="strict")
    except UnicodeEncodeError:
        raise ValueError("expected a key in UTF-8") from None
    region = region_of(environment) or _DEFAULT_REGION
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    if endpoint:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("expected AWS_ENDPOINT_URL_S3 to be http://HOST or https://HOST")
        if parts.username or parts.password:
            raise ValueError(
                "expected AWS_ENDPOINT_URL_S3 without a user: credentials are AWS_ACCESS_KEY_ID and others"
            )
        return S3Place(f"{endpoint.rstrip('/')}/{bucket}/{path}", region)
    domain = f"s3.{region}.{domain_of(region)}"
    # A name with a dot would not be in the certificate.
    if _DNS_BUCKET.fullmatch(bucket):
        return S3Place(f"https://{bucket}.{domain}/{path}", region)
    return S3Place(f"https://{domain}/{bucket}/{path}", region)


class S3Upload:
    """One object on its way.

    credentials: fetches them (aws.AwsChain). clock: Unix time. pause: waits before another try. content_type: of the
    object.
    """

    def __init__(
        self,
        place: S3Place,
        outside: Outside,
        credentials: Callable[[], Awaitable[Fetched[AwsCredentials]]],
        *,
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        content_type: bytes = b"application/octet-stream",
        part_bytes: int = PART_BYTES,
    ) -> None:
        url = urlsplit(place.url)
        self._url: Final = place.url
        self._host: Final = url.netloc.encode("idna" if not url.netloc.isascii() else "ascii")
        self._path: Final = url.path
        self._signer: Final = Signer(place.region, "s3", encodes_path=False)
        self._outside: Final = outside
        self._fetch: Final = credentials
        self._clock: Final = clock
        self._pause: Final = pause
        self._type: Final = content_type
        self._part_bytes: Final = part_bytes
        self._held = bytearray()
        self._tags: Final[list[str]] = []  # of the parts that are up
        self._upload = ""  # the id of an upload in parts
        self._credentials: Fetched[AwsCredentials] | None = None

    def __repr__(self) -> str:
        return f"<S3Upload {self._url}, {len(self._tags)} parts>"

    async def write(self, data: bytes) -> None:
        """Take the next bytes. Raises FetchError: they could not be sent, and the object is not there."""
        self._held += data
        while len(self._held) >= self._part_bytes:
            await self._send_part(self._part_bytes)

    async def close(self) -> None:
        """Send what is left; then the object is there. Raises FetchError: it is not."""
        if not self._upload:
            await self._ask(b"PUT", "", bytes(self._held), self._type)
            self._held.clear()
            return
        if self._held:
            await self._send_part(len(self._held))
        listed = "".join(
            f"<Part><PartNumber>{n}</PartNumber><ETag>{tag}</ETag></Part>" for n, tag in enumerate(self._tags, 1)
        )
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        reply = await self._ask(b"POST", f"uploadId={quote(self._upload, safe='')}", body)
        text = reply.body.decode("utf-8", "replace")
        if "<CompleteMultipartUploadResult" not in text:  # an error inside a 200, which takes its time
            raise FetchError(f"{self._url} was not put together: {_said(text) or 'the store did not say why'}")

    async def abandon(self) -> None:
        """Leave nothing behind. Never raises: a store that can't be reached drops parts by a rule of its own."""
        self._held.clear()
        if self._upload:
            try:
                await self._ask(b"DELETE", f"uploadId={quote(self._upload, safe='')}", b"")
            except FetchError:
                return
            self._upload = ""

    async def _send_part(self, n_bytes: int) -> None:
        if not self._upload:
            reply = await self._ask(b"POST", "uploads=", b"", self._type)
            self._upload = xml_text("UploadId", reply.body.decode("utf-8", "replace")) or ""
            if not self._upload:
                raise FetchError(f"{self._url}: the store gave no id for an upload in parts")
        number = len(self._tags) + 1
        if number > _MOST_PARTS:
            raise FetchError(
                f"{self._url}: more than {_MOST_PARTS} parts of {self._part_bytes} bytes; write less into it"
            )
        query = f"partNumber={number}&uploadId={quote(self._upload, safe='')}"
        reply = await self._ask(b"PUT", query, bytes(self._held[:n_bytes]))
        tag = next((value for name, value in reply.headers if name == b"etag"), None)
        if tag is None:
            raise FetchError(f"{self._url}: the store gave no ETag for part {number}")
        self._tags.append(tag.decode("latin-1").replace("&", "&amp;").replace("<", "&lt;"))
        del self._held[:n_bytes]

    async def _ask(self, method: bytes, query: str, body: bytes, content_type: bytes | None = None) -> Reply:
        """Send a request, again where that may help. Raises FetchError."""
        for pause_s in (*_PAUSES_S, None):
            question = await self._question(method, query, body, content_type)
            try:
                reply = await self._outside.ask(question)
            except FetchError:
                if pause_s is None:
                    raise
            else:
                again = _code(reply) in _CODES_AGAIN if reply.status < 300 else reply.status in _AGAIN
                if reply.status < 300 and (pause_s is None or not again):
                    return reply
                if pause_s is None or not again:
                    said = _said(reply.body.decode("utf-8", "replace"))
                    raise FetchError(f"{self._url} was refused with {reply.status}{f' ({said})' if said else ''}")
            await self._pause(pause_s)
        raise AssertionError("the last try returns or raises")

    async def _question(self, method: bytes, query: str, body: bytes, content_type: bytes | None) -> Question:
        now_s = self._clock()
        known = self._credentials
        if known is None or (known.expires_at_s is not None and known.expires_at_s - now_s < _LEFT_S):
            known = self._credentials = await self._fetch()
        headers = [(b"x-amz-content-sha256", hashlib.sha256(body).hexdigest().encode("ascii"))]
        if content_type is not None:
            headers.append((b"content-type", content_type))
        target = f"{self._path}?{query}" if query else self._path
        signed = self._signer.sign(
            known.value, method, self._host, target.encode("ascii"), headers, body, now_s=self._clock()
        )
        url = f"{self._url}?{query}" if query else self._url
        return Question(method, url, [*headers, *signed], body, timeout_s=_TIMEOUT_S)


def _code(reply: Reply) -> str | None:
    """Return the error that a reply tells of, whatever its status: putting parts together begins with 200."""
    return xml_text("Code", reply.body.decode("utf-8", "replace")) if b"<Error" in reply.body else None


def _said(text: str) -> str:
    """Return what a store's error says."""
    return one_line(": ".join(filter(None, (xml_text("Code", text), xml_text("Message", text)))))
