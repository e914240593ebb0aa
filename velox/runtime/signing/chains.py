"""Where credentials of clouds come from, and what signs requests in with them. A part of the composition root.

Knows: which class a provider needs. Does not know: how a token is fetched or a request signed (providers/), or who owns
the task that renews (authorities.py).
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

from velox.providers.authority import Authority, BearerAuthority, SigV4Authority
from velox.providers.aws import AwsChain
from velox.providers.entra import EntraChain
from velox.providers.google import GoogleChain, RsaSigner
from velox.providers.provider import Keyless, Provider
from velox.providers.renewal import Fetch, FetchClient, FetchError, RenewedSource

__all__ = ["Chains", "authority_of", "google_signer"]

T = TypeVar("T")


class Chains:
    """What fetches credentials of clouds, each time anew. environment: where the clouds' own variables stand."""

    def __init__(self, environment: Mapping[str, str], client: FetchClient) -> None:
        self._environment: Final = environment
        self._client: Final = client

    def aws(self, parameters: Mapping[str, str]) -> AwsChain:
        """Return those of AWS, for an upstream with such parameters."""
        return AwsChain(
            self._environment,
            self._client,
            clock=time.time,
            region=parameters["region"],
            profile=parameters.get("profile"),
        )

    def google(self, row: Provider) -> GoogleChain:
        """Return those of Google."""
        return GoogleChain(self._environment, self._client, clock=time.time, make_signer=google_signer, scope=row.scope)

    def entra(self, row: Provider) -> EntraChain:
        """Return those of Microsoft."""
        return EntraChain(self._environment, self._client, clock=time.time, scope=row.scope)


def authority_of(
    row: Provider,
    parameters: Mapping[str, str],
    environment: Mapping[str, str],
    client: FetchClient,
    on_problem: Callable[[str, str | None], None],
) -> Authority:
    """Return what signs in at a provider, for an upstream with such parameters. on_problem: as of RenewedSource."""
    chains = Chains(environment, client)

    def renewed(name: str, fetch: Fetch[T]) -> RenewedSource[T]:
        return RenewedSource(name, fetch, clock=time.time, on_problem=on_problem)

    match row.keyless:
        case Keyless.AWS:
            source = renewed(f"AWS credentials ({row.name})", chains.aws(parameters))
            return SigV4Authority(source, parameters["region"], row.aws_service)
        case Keyless.GOOGLE:
            # Whose quota is used: user accounts need it.
            project = environment.get("GOOGLE_CLOUD_QUOTA_PROJECT")
            more = [(b"x-goog-user-project", project.encode("latin-1", "replace"))] if project else []
            return BearerAuthority(renewed(f"a token of Google ({row.name})", chains.google(row)), more)
        case Keyless.ENTRA:
            return BearerAuthority(renewed(f"a token of Entra ({row.name})", chains.entra(row)))
        case Keyless.CLIENT:
            raise AssertionError("the client's own keys need none")


def google_signer(info: Mapping[str, Any]) -> RsaSigner:
    """Return the signer of a service account's key: RSA is in google-auth, which is an extra. Raises FetchError."""
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
