"""How the admin process asks its own gateway for the page's playground, by httpx, as any client does.

Knows: the listener's address, its certificate, bounds on time and on requests at once. Does not know: what is asked.

The gateway's certificate is trusted as the file has it, whatever names are in it: the key must go to nobody else who
might have taken the port. httpx takes 6 MB and 50 ms to load: this module is imported when the playground is first
used.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

import httpx

from velox.admin.call import only
from velox.admin.message import TEXT, RefusalError, Reply

__all__ = ["OwnGateway"]

_PATH: Final = "/v1/chat/completions"
_MOST_AT_ONCE: Final = 4
_CONNECT_S: Final = 5.0
# Of a whole answer.
_MOST_S: Final = 600.0
_SHOWN: Final = ("x-velox-", "server-timing", "retry-after")
_SAFE_TYPES: Final = ("application/json", "text/event-stream")
_EACH_ADDRESS: Final = {"//0.0.0.0:": "//127.0.0.1:", "//[::]:": "//[::1]:"}


class OwnGateway:
    """Asks the gateway. url: of a listener for clients, or unix:PATH. cert: its file, where it speaks TLS."""

    def __init__(self, url: str, cert: str | None) -> None:
        for bound, reached in _EACH_ADDRESS.items():
            url = url.replace(bound, reached)
        self._socket: Final = url.removeprefix("unix:") if url.startswith("unix:") else None
        self._url: Final = "http://localhost" if self._socket is not None else url
        self._cert: Final = cert
        self._n_running = 0

    def __repr__(self) -> str:
        return f"<OwnGateway {self._url} {self._n_running} running>"

    async def send(self, key: str, body: bytes) -> Reply:
        """Ask for a chat completion; return the head of the answer with its body as a stream. Raises RefusalError."""
        if self._n_running >= _MOST_AT_ONCE:
            message = f"{_MOST_AT_ONCE} requests of the playground are running"
            raise RefusalError(429, message, (("Retry-After", "5"),))
        stack = contextlib.AsyncExitStack()
        self._n_running += 1
        stack.callback(self._ended)
        try:
            async with asyncio.timeout(_MOST_S):
                response = await self._begin(stack, key, body)
        except (httpx.HTTPError, OSError, TimeoutError) as exc:
            await stack.aclose()
            raise RefusalError(502, f"the gateway does not answer at {self._url}: {type(exc).__name__}") from exc
        except BaseException:
            await stack.aclose()
            raise
        headers = [(name.decode(), value.decode("latin-1")) for name, value in response.headers.raw]
        shown = tuple((name, value) for name, value in headers if name.lower().startswith(_SHOWN))
        kind = response.headers.get("content-type", "")
        is_safe = kind.partition(";")[0].strip().lower() in _SAFE_TYPES
        pieces = _pieces(response, stack)
        await anext(pieces)
        return Reply(response.status_code, b"", kind if is_safe else TEXT, shown, stream=pieces)

    async def _begin(self, stack: contextlib.AsyncExitStack, key: str, body: bytes) -> httpx.Response:
        context = only(self._cert) if self._cert is not None and self._url.startswith("https:") else False
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        request = httpx.Request(
            "POST",
            f"{self._url}{_PATH}",
            headers=headers,
            content=body,
            extensions={"timeout": {"connect": _CONNECT_S, "read": _MOST_S, "write": _CONNECT_S, "pool": _CONNECT_S}},
        )
        transport = await stack.enter_async_context(
            httpx.AsyncHTTPTransport(verify=context, trust_env=False, http2=False, uds=self._socket)
        )
        response = await transport.handle_async_request(request)
        stack.push_async_callback(response.aclose)
        return response

    def _ended(self) -> None:
        self._n_running -= 1


async def _pieces(response: httpx.Response, stack: contextlib.AsyncExitStack) -> AsyncGenerator[bytes]:
    """Yield b"", then the body as it comes; close the connection behind it, wherever that is.

    The first piece starts the generator: only then does its end run when it is closed.
    """
    loop = asyncio.get_running_loop()
    last_s = loop.time() + _MOST_S
    async with stack:
        yield b""
        async for piece in response.aiter_raw():
            yield piece
            if loop.time() > last_s:
                raise TimeoutError
