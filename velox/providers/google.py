"""Where Google's access tokens come from: Application Default Credentials, in Google's order.

    1  GOOGLE_APPLICATION_CREDENTIALS, or gcloud's own file: a service account's key, a user (gcloud auth
       application-default login), or workload identity federation (a token of somebody else, exchanged)
    2  the metadata server, on Compute Engine, GKE, Cloud Run

A service account's key needs an RSA signature: the extra `google`. Nothing else does.

Knows: what to ask whom, and how an answer is read. Does not know: sockets, RSA, when to ask again (renewal.py).
Sources: AIP-4110 to 4117.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from velox.heads import Headers
from velox.providers.oauth import checked_token, form_post, token_of
from velox.providers.renewal import FetchClient, Fetched, FetchError, HttpRequest

__all__ = ["GoogleChain", "MakeSigner", "RsaSigner"]

_TOKEN_URL: Final = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address
_LIFETIME_S: Final = 3600
_METADATA_TIMEOUT_S: Final = 3.0
_JWT_GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_EXCHANGE_GRANT: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a name
_CLOUD_PLATFORM: Final = "https://www.googleapis.com/auth/cloud-platform"


class RsaSigner(Protocol):
    """Signs with a service account's key (google.auth.crypt.RSASigner)."""

    def sign(self, message: bytes) -> bytes:
        """Return the RS256 signature."""


class MakeSigner(Protocol):
    """Makes a signer of a key's fields. Raises FetchError: the key is broken, or the extra is not installed."""

    def __call__(self, info: Mapping[str, Any]) -> RsaSigner: ...


class _Format(msgspec.Struct):
    type: str = "text"
    subject_token_field_name: str = ""


class _TokenSource(msgspec.Struct):
    file: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    format: _Format = msgspec.field(default_factory=_Format)


class _Info(msgspec.Struct):
    """A file of credentials: fields of all its kinds."""

    type: str = ""
    client_email: str = ""
    private_key: str = ""
    private_key_id: str = ""
    token_uri: str = _TOKEN_URL
    client_id: str = ""
    client_secret: str = ""
    refresh_token: str = ""
    audience: str = ""
    subject_token_type: str = ""
    token_url: str = "https://sts.googleapis.com/v1/token"  # noqa: S105 - an address
    credential_source: _TokenSource = msgspec.field(default_factory=_TokenSource)
    service_account_impersonation_url: str | None = None


class _Impersonated(msgspec.Struct, rename="camel"):
    access_token: str = ""
    expire_time: str = ""


_INFO: Final = msgspec.json.Decoder(_Info)
_IMPERSONATED: Final = msgspec.json.Decoder(_Impersonated)


class GoogleChain:
    """Fetches an access token, each time anew.

    scope: of the token. path: of a file of credentials, set by the user for this upstream. clock: Unix time.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        client: FetchClient,
        *,
        clock: Callable[[], float],
        make_signer: MakeSigner,
        scope: str = _CLOUD_PLATFORM,
        path: str | None = None,
    ) -> None:
        self._environment: Final = environment
        self._client: Final = client
        self._clock: Final = clock
        self._make_signer: Final = make_signer
        self._scope: Final = scope
        self._path: Final = path or environment.get("GOOGLE_APPLICATION_CREDENTIALS") or None

    def __repr__(self) -> str:
        return f"<GoogleChain {self._path or ''}>"

    async def __call__(self) -> Fetched[str]:
        """Return a token. Raises FetchError."""
        env = self._environment
        folder = env.get("CLOUDSDK_CONFIG") or f"{env.get('HOME', '~')}/.config/gcloud"
        path = self._path or f"{folder}/application_default_credentials.json"
        content = await self._client.read(path)
        if content is None:
            if self._path is not None:
                raise FetchError(f"the Google credentials file {path} is missing")
            return await self._of_metadata()
        try:
            info = _INFO.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise FetchError(f"{path} can't be read as a file of Google credentials") from None
        match info.type:
            case "service_account":
                return await self._of_key(info, path)
            case "authorized_user":
                form = {
                    "grant_type": "refresh_token",
                    "client_id": info.client_id,
                    "client_secret": info.client_secret,
                    "refresh_token": info.refresh_token,
                }
                return await self._post(info.token_uri, form, f"Google, for the user of {path},")
            case "external_account":
                return await self._of_exchange(info, path)
            case other:
                raise FetchError(f"{path} has credentials of the type {other!r}, which is not supported")

    async def _of_key(self, info: _Info, path: str) -> Fetched[str]:
        if not info.client_email or not info.private_key:
            raise FetchError(f"{path} is no complete key of a service account")
        signer = self._make_signer({"private_key": info.private_key, "private_key_id": info.private_key_id})
        now = int(self._clock())
        header = {"alg": "RS256", "typ": "JWT", "kid": info.private_key_id}
        claims = {
            "iss": info.client_email,
            "scope": self._scope,
            "aud": info.token_uri,
            "iat": now,
            "exp": now + _LIFETIME_S,
        }
        message = _base64(json.dumps(header).encode()) + b"." + _base64(json.dumps(claims).encode())
        assertion = message + b"." + _base64(signer.sign(message))
        form = {"grant_type": _JWT_GRANT, "assertion": assertion.decode("ascii")}
        return await self._post(info.token_uri, form, f"Google, for the service account {info.client_email},")

    async def _post(self, url: str, form: dict[str, str], who: str) -> Fetched[str]:
        _check_https(url)
        return token_of(await self._client.ask(form_post(url, form)), who, self._clock())

    # -- workload identity federation -----------------------------------------------------------------------

    async def _of_exchange(self, info: _Info, path: str) -> Fetched[str]:
        subject = await self._subject(info.credential_source, path)
        impersonated = info.service_account_impersonation_url
        form = {
            "grant_type": _EXCHANGE_GRANT,
            "audience": info.audience,
            "scope": _CLOUD_PLATFORM if impersonated else self._scope,
            "requested_token_type": _ACCESS_TOKEN,
            "subject_token": subject,
            "subject_token_type": info.subject_token_type,
        }
        exchanged = await self._post(info.token_url, form, "Google's token exchange")
        return exchanged if not impersonated else await self._impersonate(impersonated, exchanged.value)

    async def _subject(self, source: _TokenSource, path: str) -> str:
        if source.file:
            content = await self._client.read(source.file)
            if content is None:
                raise FetchError(f"the token file {source.file} of {path} is missing")
            where = source.file
        elif source.url:
            headers: Headers = [(name.lower().encode(), value.encode()) for name, value in source.headers.items()]
            reply = await self._client.ask(HttpRequest(b"GET", source.url, headers))
            where = source.url.partition("?")[0]
            if reply.status != 200:
                raise FetchError(f"{where} answered {reply.status} to the request for a token")
            content = reply.body
        else:
            raise FetchError(f"{path} takes its token neither from a file nor from a URL, which is not supported")
        if source.format.type == "json":
            try:
                fields = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
                return checked_token(
                    msgspec.json.decode(fields[source.format.subject_token_field_name], type=str), where
                )
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
                raise FetchError(f"{where} has no token where {path} says") from None
        return checked_token(content.decode("utf-8", "replace").strip(), where)

    async def _impersonate(self, url: str, token: str) -> Fetched[str]:
        _check_https(url)
        body = json.dumps({"scope": [self._scope], "lifetime": f"{_LIFETIME_S}s"}).encode()
        headers: Headers = [
            (b"content-type", b"application/json"),
            (b"authorization", b"Bearer " + token.encode("ascii")),
        ]
        reply = await self._client.ask(HttpRequest(b"POST", url, headers, body))
        who = "Google's impersonation of a service account"
        if reply.status != 200:
            return token_of(reply, who, self._clock())  # raises, with what it said
        try:
            found = _IMPERSONATED.decode(reply.body)
            expires_at_s = datetime.fromisoformat(found.expire_time).timestamp()
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
            raise FetchError(f"{who} gave an answer that can't be read") from None
        return Fetched(checked_token(found.access_token, who), expires_at_s)

    # -- the metadata server ----------------------------------------------------------------------------------

    async def _of_metadata(self) -> Fetched[str]:
        host = self._environment.get("GCE_METADATA_HOST") or "metadata.google.internal"
        url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token?scopes={self._scope}"
        flavor: Headers = [(b"metadata-flavor", b"Google")]
        try:
            reply = await self._client.ask(HttpRequest(b"GET", url, flavor, timeout_s=_METADATA_TIMEOUT_S))
        except FetchError as exc:
            raise FetchError(
                "no Google credentials: GOOGLE_APPLICATION_CREDENTIALS is not set, and the metadata server does not "
                f"answer ({exc.reason})"
            ) from None
        return token_of(reply, "Google's metadata server", self._clock())


def _check_https(url: str) -> None:
    if not url.startswith("https://"):
        raise FetchError("a file of Google credentials names a token endpoint that is not https")


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
