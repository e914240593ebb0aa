"""What signs the requests of a worker in, where an upstream has no keys. A part of the composition root.

Knows: which class a provider needs, and who owns the task that renews. Does not know: how a token is fetched or a
request signed (providers/).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeAlias

from velox.policy.routes import UpstreamEntry
from velox.providers.authority import Authority, SigV4Authority
from velox.providers.aws import AwsChain
from velox.providers.provider import Keyless, Provider
from velox.providers.renewal import RenewedSource
from velox.providers.rows import PROVIDERS
from velox.runtime.outside import NetOutside

__all__ = ["Authorities"]

_Place: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]  # a provider, and the parameters of its upstream


class Authorities:
    """Of one worker. environment: where the clouds' own variables stand."""

    def __init__(self, environment: Mapping[str, str], loop: asyncio.AbstractEventLoop, logger: logging.Logger) -> None:
        self._environment: Final = environment
        self._loop: Final = loop
        self._logger: Final = logger
        self._outside: Final = NetOutside(loop)
        self._known: Final[dict[_Place, tuple[Authority, asyncio.Task[None]]]] = {}

    def __repr__(self) -> str:
        return f"<Authorities {len(self._known)}>"

    def of(self, entry: UpstreamEntry) -> Authority | None:
        """Return what signs in the requests of an upstream; None: keys of its own do, or the client's.

        It is renewed from now on, by a task.
        """
        row = PROVIDERS[entry.provider]
        if entry.keys or row.keyless is not Keyless.AWS:
            return None
        place = (entry.provider, entry.parameters)
        if place not in self._known:
            made = self._aws(row, dict(entry.parameters))
            self._known[place] = made, self._loop.create_task(made.run(), name=f"credentials {entry.provider}")
        return self._known[place][0]

    def keep_only(self, entries: Iterable[UpstreamEntry]) -> None:
        """Renew no longer what none of these needs."""
        needed: Collection[_Place] = {(entry.provider, entry.parameters) for entry in entries if not entry.keys}
        for place in self._known.keys() - needed:
            self._known.pop(place)[1].cancel()

    def close(self) -> None:
        """Renew nothing any more."""
        self.keep_only(())

    def _aws(self, row: Provider, parameters: Mapping[str, str]) -> Authority:
        region = parameters["region"]
        chain = AwsChain(
            self._environment,
            self._outside,
            clock=time.time,
            region=region,
            profile=parameters.get("profile"),
        )
        source = RenewedSource(f"AWS credentials ({row.name})", chain, clock=time.time, on_problem=self._on_problem)
        return SigV4Authority(source, region, row.aws_service)

    def _on_problem(self, name: str, problem: str | None) -> None:
        if problem is None:
            self._logger.info("%s can be renewed again", name)
        else:
            self._logger.error("%s can't be renewed: %s", name, problem)
