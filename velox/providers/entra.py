"""Where Microsoft Entra's access tokens come from, in the order of Azure's SDKs.

    1  client secret        AZURE_TENANT_ID, AZURE_CLIENT_ID, AZURE_CLIENT_SECRET
    2  workload identity    AZURE_TENANT_ID, AZURE_CLIENT_ID, AZURE_FEDERATED_TOKEN_FILE (AKS), read each time
    3  App Service          IDENTITY_ENDPOINT, IDENTITY_HEADER (also Container Apps, Functions)
    4  managed identity     the instance's metadata service; AZURE_CLIENT_ID chooses one that a user assigned

The first that is configured is the one: when it fails, no other is tried.

Knows: what to ask whom, and how an answer is read. Does not know: sockets, files, when to ask again (renewal.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote, urlencode

from velox.heads import Headers
from velox.providers.oauth import form_post, token_of
from velox.providers.renewal import FetchClient, Fetched, FetchError, HttpRequest

__all__ = ["EntraChain"]

_AUTHORITY: Final = "https://login.microsoftonline.com"
_IMDS: Final = "http://169.254.169.254"
_IMDS_TIMEOUT_S: Final = 5.0
_ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class EntraChain:
    """Fetches an access token, each time anew. scope: ".../.default". clock: Unix time."""

    def __init__(
        self, environment: Mapping[str, str], client: FetchClient, *, clock: Callable[[], float], scope: str
    ) -> None:
        self._environment: Final = environment
        self._client: Final = client
        self._clock: Final = clock
        self._scope: Final = scope
        # Managed identities have resources, not scopes.
        self._resource: Final = scope.removesuffix("/.default")

    def __repr__(self) -> str:
        return f"<EntraChain {self._scope}>"

    async def __call__(self) -> Fetched[str]:
        """Return a token. Raises FetchError."""
        env = self._environment
        if env.get("AZURE_CLIENT_SECRET"):
            return await self._of_client({"client_secret": env["AZURE_CLIENT_SECRET"]}, "AZURE_CLIENT_SECRET")
        if env.get("AZURE_FEDERATED_TOKEN_FILE"):
            path = env["AZURE_FEDERATED_TOKEN_FILE"]
            token = await self._client.read(path)
            if token is None or not token.strip():
                raise FetchError(f"the federated token file {path} is {'missing' if token is None else 'empty'}")
            assertion = token.decode("utf-8", "replace").strip()
            form = {"client_assertion_type": _ASSERTION_TYPE, "client_assertion": assertion}
            return await self._of_client(form, "AZURE_FEDERATED_TOKEN_FILE")
        if env.get("IDENTITY_ENDPOINT") and env.get("IDENTITY_HEADER"):
            return await self._of_app_service()
        return await self._of_instance()

    async def _of_client(self, proof: dict[str, str], by: str) -> Fetched[str]:
        env = self._environment
        tenant, client = env.get("AZURE_TENANT_ID"), env.get("AZURE_CLIENT_ID")
        if not tenant or not client:
            missing = "AZURE_TENANT_ID" if not tenant else "AZURE_CLIENT_ID"
            raise FetchError(f"{by} is set, but {missing} is not")
        authority = (env.get("AZURE_AUTHORITY_HOST") or _AUTHORITY).rstrip("/")
        if not authority.startswith("https://"):
            raise FetchError("AZURE_AUTHORITY_HOST is not https")
        url = f"{authority}/{quote(tenant, safe='')}/oauth2/v2.0/token"
        form = {"grant_type": "client_credentials", "client_id": client, "scope": self._scope, **proof}
        reply = await self._client.ask(form_post(url, form))
        return token_of(reply, f"Entra, for the client {client},", self._clock())

    async def _of_app_service(self) -> Fetched[str]:
        env = self._environment
        url = f"{env['IDENTITY_ENDPOINT']}?{self._query('2019-08-01')}"
        headers: Headers = [(b"x-identity-header", env["IDENTITY_HEADER"].encode("latin-1", "replace"))]
        reply = await self._client.ask(HttpRequest(b"GET", url, headers))
        return token_of(reply, "the identity endpoint of App Service", self._clock())

    async def _of_instance(self) -> Fetched[str]:
        base = self._environment.get("AZURE_POD_IDENTITY_AUTHORITY_HOST", _IMDS).rstrip("/")
        url = f"{base}/metadata/identity/oauth2/token?{self._query('2018-02-01')}"
        try:
            reply = await self._client.ask(
                HttpRequest(b"GET", url, [(b"metadata", b"true")], timeout_s=_IMDS_TIMEOUT_S)
            )
        except FetchError as exc:
            raise FetchError(
                "no Entra credentials: AZURE_CLIENT_SECRET and AZURE_FEDERATED_TOKEN_FILE are not set, and the "
                f"instance metadata service does not answer ({exc.reason})"
            ) from None
        return token_of(reply, "the managed identity", self._clock())

    def _query(self, version: str) -> str:
        fields = {"api-version": version, "resource": self._resource}
        client = self._environment.get("AZURE_CLIENT_ID")
        if client:
            fields["client_id"] = client
        return urlencode(fields)
