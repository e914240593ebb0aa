"""What signs in the requests of upstreams without keys, with metadata servers on real sockets."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from tests.patience import PATIENCE_S
from velox.heads import Headers
from velox.policy.routes.entries import KeyRef, Timeouts, UpstreamEntry
from velox.providers.authority import Authority, NoCredentialsError
from velox.runtime.signing.authorities import Authorities
from velox.types import Secret

_TOKEN = json.dumps({"access_token": "tok", "expires_in": 3600}).encode()


def _entry(provider: str, *, has_key: bool = False, **parameters: str) -> UpstreamEntry:
    keys = (KeyRef("env:KEY", b"digest", Secret("key")),) if has_key else ()
    timeouts = Timeouts(1.0, 1.0, 1.0, 1.0, 1.0, 0.0)
    where = tuple(sorted(parameters.items()))
    return UpstreamEntry("u", (), keys, "off", None, None, None, timeouts, 1, provider=provider, parameters=where)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    is_right = b"\r\nmetadata-flavor: Google\r\n" in head or b"\r\nmetadata: true\r\n" in head
    body = _TOKEN if is_right else b"{}"
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    await reader.read()
    writer.close()


def _fields(authority: Authority) -> Headers:
    return authority.headers(b"POST", b"h", b"/", [], b"{}", 0.0)


async def _ready(authority: Authority) -> Headers:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return _fields(authority)
            except NoCredentialsError:
                await asyncio.sleep(0)


def test_tokens_of_google_and_entra_are_fetched_by_a_task() -> None:
    async def main() -> None:
        server = await asyncio.start_server(_serve, "127.0.0.1", 0)
        at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        environment = {
            "HOME": "/nonexistent",
            "GCE_METADATA_HOST": at,
            "GOOGLE_CLOUD_QUOTA_PROJECT": "mine",
            "AZURE_POD_IDENTITY_AUTHORITY_HOST": f"http://{at}",
        }
        authorities = Authorities(environment, asyncio.get_running_loop(), logging.getLogger("test"))
        vertex, azure = _entry("vertex", project="p", location="l"), _entry("azure", resource="r")

        try:
            google, entra = authorities.of(vertex), authorities.of(azure)
            assert google is not None and entra is not None
            with pytest.raises(NoCredentialsError, match="not been fetched yet"):
                _fields(google)
            assert await _ready(google) == [(b"authorization", b"Bearer tok"), (b"x-goog-user-project", b"mine")]
            assert await _ready(entra) == [(b"authorization", b"Bearer tok")]
            assert authorities.of(vertex) is google and google.problem is None

            assert authorities.of(_entry("vertex", has_key=True, project="p", location="l")) is None
            assert authorities.of(_entry("openai")) is None
        finally:
            authorities.close()
            server.close()
            await server.wait_closed()

    asyncio.run(main())
