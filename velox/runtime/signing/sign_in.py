"""What `velox check` says of credentials of clouds: where they come from, and what is wrong with them on this machine.

Variables and files are read as a worker reads them. No server is asked: a machine that checks a configuration may not
reach those that give tokens.

Knows: how to try a source without a network. Does not know: the sources (velox.providers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from velox.policy.routes.entries import UpstreamEntry
from velox.providers.provider import Keyless
from velox.providers.renewal import FetchError, HttpRequest, Reply
from velox.providers.rows import PROVIDERS
from velox.runtime.http_client import HttpClient
from velox.runtime.on_demand import signs_in
from velox.runtime.signing.chains import Chains
from velox.settings import Settings

__all__ = ["sign_in_lines"]


class _AskedError(Exception):
    """A server would be asked now: what this machine has is enough for that."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host: Final = host


class _FilesOnly(HttpClient):
    """Reads files, and sends no request."""

    async def ask(self, question: HttpRequest) -> Reply:
        """Ask nobody."""
        raise _AskedError(urlsplit(question.url).hostname or "")


def sign_in_lines(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each upstream that signs in with credentials of a cloud."""
    for entry in settings.upstreams:
        if signs_in(entry):
            yield _line(entry, environment)


def _line(entry: UpstreamEntry, environment: Mapping[str, str]) -> str:
    try:
        asyncio.run(_fetch(entry, environment))
    except _AskedError as asked:
        return f"credentials of {entry.name}: {asked.host} is asked for them when Velox serves"
    except FetchError as exc:
        return f"WARNING: credentials of {entry.name}: {exc.reason}"
    return f"credentials of {entry.name}: found on this machine"


async def _fetch(entry: UpstreamEntry, environment: Mapping[str, str]) -> None:
    row = PROVIDERS[entry.provider]
    chains = Chains(environment, _FilesOnly())
    match row.keyless:
        case Keyless.AWS:
            await chains.aws(dict(entry.parameters))()
        case Keyless.GOOGLE:
            await chains.google(row)()
        case Keyless.ENTRA:
            await chains.entra(row)()
        case Keyless.CLIENT:
            raise AssertionError("those need none")
