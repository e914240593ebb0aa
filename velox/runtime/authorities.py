"""What signs the requests of a worker in, where an upstream has no keys. A part of the composition root.

Knows: which class a provider needs, and who owns the task that renews. Does not know: how a token is fetched or a
request signed (providers/).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias, TypeVar

from velox.policy.routes import UpstreamEntry
from velox.providers.authority import Authority, BearerAuthority, SigV4Authority
from velox.providers.aws import AwsChain
from velox.providers.entra import EntraChain
from velox.providers.google import GoogleChain
from velox.providers.provider import Keyless, Provider
from velox.providers.renewal import Fetch, Outside, RenewedSource
from velox.providers.rows import PROVIDERS
from velox.runtime.google_keys import google_signer
from velox.runtime.outside import NetOutside

__all__ = ["Authorities", "Chains"]

T = TypeVar("T")
_Place: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]  # a provider, and the parameters of its upstream


class Chains:
    """What fetches credentials of clouds, each time anew. environment: where the clouds' own variables stand."""

    def __init__(self, environment: Mapping[str, str], outside: Outside) -> None:
        self._environment: Final = environment
        self._outside: Final = outside

    def aws(self, parameters: Mapping[str, str]) -> AwsChain:
        """Return those of AWS, for an upstream with such parameters."""
        return AwsChain(
            self._environment,
            self._outside,
            clock=time.time,
            region=parameters["region"],
            profile=parameters.get("profile"),
        )

    def google(self, row: Provider) -> GoogleChain:
        """Return those of Google."""
        return GoogleChain(
            self._environment, self._outside, clock=time.time, make_signer=google_signer, scope=row.scope
        )

    def entra(self, row: Provider) -> EntraChain:
        """Return those of Microsoft."""
        return EntraChain(self._environment, self._outside, clock=time.time, scope=row.scope)


class Authorities:
    """Of one worker. environment: where the clouds' own variables stand.

    tell: called with why the credentials of upstreams, by their names, can't be renewed, when that has changed.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        loop: asyncio.AbstractEventLoop,
        logger: logging.Logger,
        tell: Callable[[Mapping[str, str]], None] = lambda _problems: None,
    ) -> None:
        self._environment: Final = environment
        self._loop: Final = loop
        self._logger: Final = logger
        self._outside: Final = NetOutside(loop)
        self._tell: Final = tell
        self._known: Final[dict[_Place, tuple[Authority, asyncio.Task[None]]]] = {}
        self._users: dict[str, _Place] = {}  # by the names of upstreams

    def __repr__(self) -> str:
        return f"<Authorities {len(self._known)}>"

    def of(self, entry: UpstreamEntry) -> Authority | None:
        """Return what signs in the requests of an upstream; None: keys of its own do, or the client's.

        It is renewed from now on, by a task.
        """
        row = PROVIDERS[entry.provider]
        if entry.keys or row.keyless is Keyless.CLIENT:
            return None
        place = (entry.provider, entry.parameters)
        if place not in self._known:
            made = self._make(row, dict(entry.parameters))
            self._known[place] = made, self._loop.create_task(made.run(), name=f"credentials {entry.provider}")
        self._users[entry.name] = place
        return self._known[place][0]

    def keep_only(self, entries: Iterable[UpstreamEntry]) -> None:
        """Renew no longer what none of these needs."""
        needed = {entry.name: (entry.provider, entry.parameters) for entry in entries if not entry.keys}
        for place in self._known.keys() - needed.values():
            self._known.pop(place)[1].cancel()
        self._users = {name: place for name, place in needed.items() if place in self._known}
        self._tell_all()

    def close(self) -> None:
        """Renew nothing any more."""
        self.keep_only(())

    def _make(self, row: Provider, parameters: Mapping[str, str]) -> Authority:
        chains = Chains(self._environment, self._outside)
        match row.keyless:
            case Keyless.AWS:
                source = self._renewed(f"AWS credentials ({row.name})", chains.aws(parameters))
                return SigV4Authority(source, parameters["region"], row.aws_service)
            case Keyless.GOOGLE:
                return self._google(row, chains)
            case Keyless.ENTRA:
                return BearerAuthority(self._renewed(f"a token of Entra ({row.name})", chains.entra(row)))
            case Keyless.CLIENT:
                raise AssertionError("of() has nothing made for those")

    def _google(self, row: Provider, chains: Chains) -> Authority:
        chain = chains.google(row)
        # Whose quota is used: user accounts need it.
        project = self._environment.get("GOOGLE_CLOUD_QUOTA_PROJECT")
        more = [(b"x-goog-user-project", project.encode("latin-1", "replace"))] if project else []
        return BearerAuthority(self._renewed(f"a token of Google ({row.name})", chain), more)

    def _renewed(self, name: str, fetch: Fetch[T]) -> RenewedSource[T]:
        return RenewedSource(name, fetch, clock=time.time, on_problem=self._on_problem)

    def _tell_all(self) -> None:
        problems = {name: self._known[place][0].problem for name, place in self._users.items()}
        self._tell({name: problem for name, problem in problems.items() if problem is not None})

    def _on_problem(self, name: str, problem: str | None) -> None:
        self._tell_all()
        if problem is None:
            self._logger.info("%s can be renewed again", name)
        else:
            self._logger.error("%s can't be renewed: %s", name, problem)
