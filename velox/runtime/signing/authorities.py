"""What signs the requests of a worker in, where an upstream has no keys. A part of the composition root.

Knows: which upstreams share what signs in, and who owns the task that renews. Does not know: which class a provider
needs (chains.py), how a token is fetched or a request signed (providers/).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from velox.policy.routes.entries import UpstreamEntry
from velox.policy.routes.proxies import NO_PROXIES, EnvironmentProxies
from velox.providers.authority import Authority
from velox.providers.renewal import FetchClient
from velox.providers.rows import PROVIDERS
from velox.runtime.on_demand import signs_in

__all__ = ["Authorities"]

_Place: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]  # a provider, and the parameters of its upstream


class Authorities:
    """Of one worker. environment: where the clouds' own variables stand.

    proxies: before the hosts that are asked. tell: called with why the credentials of upstreams, by their names, can't
    be renewed, when that has changed.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        loop: asyncio.AbstractEventLoop,
        logger: logging.Logger,
        tell: Callable[[Mapping[str, str]], None] = lambda _problems: None,
        proxies: EnvironmentProxies = NO_PROXIES,
    ) -> None:
        self._proxies: Final = proxies
        self._environment: Final = environment
        self._loop: Final = loop
        self._logger: Final = logger
        self._client: FetchClient | None = None  # that fetches for all of them
        self._tell: Final = tell
        self._known: Final[dict[_Place, tuple[Authority, asyncio.Task[None]]]] = {}
        self._users: dict[str, _Place] = {}  # by the names of upstreams

    def __repr__(self) -> str:
        return f"<Authorities {len(self._known)}>"

    def of(self, entry: UpstreamEntry) -> Authority | None:
        """Return what signs in the requests of an upstream; None: keys of its own do, or the client's.

        It is renewed from now on, by a task.
        """
        if not signs_in(entry):
            return None
        row = PROVIDERS[entry.provider]
        place = (entry.provider, entry.parameters)
        if place not in self._known:
            # Here, not above: few gateways sign in anywhere (on_demand.py).
            from velox.runtime.http_client import HttpClient
            from velox.runtime.signing.chains import authority_of

            self._client = self._client or HttpClient(self._proxies)
            made = authority_of(row, dict(entry.parameters), self._environment, self._client, self._on_problem)
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

    def _tell_all(self) -> None:
        problems = {name: self._known[place][0].problem for name, place in self._users.items()}
        self._tell({name: problem for name, problem in problems.items() if problem is not None})

    def _on_problem(self, name: str, problem: str | None) -> None:
        self._tell_all()
        if problem is None:
            self._logger.info("%(credentials)s can be renewed again", {"credentials": name})
        else:
            self._logger.error("%(credentials)s can't be renewed: %(error)s", {"credentials": name, "error": problem})
