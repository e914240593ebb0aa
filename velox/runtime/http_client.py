"""The gateway's own requests to servers that are no upstreams, by httpx: for credentials, tokens, webhooks.

There are few of them, some an hour, and they are small: each has an HTTP/1.1 connection of its own, closed behind it.
Of the environment, the proxies that Velox knows (policy/routes/proxies.py) change how they go, and no .netrc does; it
may name the authorities of TLS (SSL_CERT_FILE, SSL_CERT_DIR, which OpenSSL reads). No redirect is followed: a
credential goes to the host that was asked for, and nowhere else. No cookie is kept.

Time is bounded as a whole: httpx's own limits are of each read, which a server that answers byte by byte never reaches.
No error has a text of httpx's or of a library below: those quote headers and URLs, and secrets stand in both.

httpx takes 6 MB and 50 ms to load. Who needs it imports this module late (on_demand.py).

Knows: how one request is sent and how much of an answer is kept. Does not know: what is fetched (providers/).
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from velox.build import VERSION
from velox.policy.routes.proxies import NO_PROXIES, EnvironmentProxies, Proxy
from velox.protocol.reply_body import CodingError, plain_reply
from velox.providers.renewal import FetchError, HttpRequest, Reply

__all__ = ["HttpClient", "RequestError"]

_MOST_BYTES: Final = 1024 * 1024  # of an answer, of a file
_SCHEMES: Final = ("http", "https")
_USUAL_PORTS: Final = {"http": 80, "https": 443}
_AGENT: Final = f"velox/{VERSION}".encode()
_MOST_CAUSES: Final = 8


class RequestError(Exception):
    """A request has no answer that can be used. The text says why, without anything that may be secret."""


class HttpClient:
    """Sends requests and reads files, on any loop. It is the FetchClient of velox.providers.

    proxies: before hosts. trust: returns the context of TLS with a host, for each request, and may raise OSError;
    None: the system's.
    """

    def __init__(
        self, proxies: EnvironmentProxies = NO_PROXIES, trust: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        self._proxies: Final = proxies
        self._trust: Final = trust
        self._context: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return "<HttpClient>"

    async def ask(self, question: HttpRequest) -> Reply:
        """Send a request; return the whole answer. Raises FetchError."""
        shown = question.url.partition("?")[0]
        try:
            url = urlsplit(question.url)
            host, is_complete = url.hostname, url.port != 0 and url.scheme in _SCHEMES
            asked = httpx.URL(question.url)
        except (ValueError, httpx.InvalidURL) as exc:
            raise FetchError(f"{shown} is no URL that can be asked: {exc}") from None
        if not host or not is_complete:
            raise FetchError(f"{shown} is no http or https URL")
        try:
            return await self._send(question, asked, keeps_body=True)
        except RequestError as exc:
            raise FetchError(f"{host} was asked: {exc}") from None

    async def status(self, question: HttpRequest) -> int:
        """Send a request; return the status of its answer, whose body is not read. Raises RequestError."""
        try:
            url = httpx.URL(question.url)
        except httpx.InvalidURL:
            raise RequestError("its URL can't be read") from None
        return (await self._send(question, url, keeps_body=False)).status

    async def read(self, path: str) -> bytes | None:
        """Return a file's content; None: there is none. Raises FetchError."""
        try:
            return await asyncio.to_thread(_read, path)
        except OSError as exc:
            raise FetchError(f"{path} can't be read ({exc.strerror})") from exc

    async def _send(self, question: HttpRequest, url: httpx.URL, *, keeps_body: bool) -> Reply:
        try:
            async with asyncio.timeout(question.timeout_s):
                return await self._exchange(question, url, keeps_body=keeps_body)
        except TimeoutError:
            raise RequestError("it did not answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as exc:
            raise RequestError(_why(exc)) from None

    async def _exchange(self, question: HttpRequest, url: httpx.URL, *, keeps_body: bool) -> Reply:
        request = httpx.Request(
            question.method.decode("ascii"),
            url,
            headers=[*question.headers, (b"user-agent", _AGENT), (b"accept-encoding", b"identity")],
            content=question.body,
        )
        # A transport by itself: a client adds proxies, cookies, redirects and headers.
        context = await self._host_tls() if url.scheme == "https" else False
        by = self._proxies.of(url.scheme, url.host.lower(), url.port or _USUAL_PORTS.get(url.scheme, 0))
        proxy = None if by is None else await self._proxy(by)
        async with httpx.AsyncHTTPTransport(verify=context, trust_env=False, http2=False, proxy=proxy) as transport:
            try:
                response = await transport.handle_async_request(request)
            except (httpx.ConnectError, httpx.ProxyError) as exc:
                if by is None:
                    raise
                raise RequestError(_by_proxy(by, exc)) from None
            try:
                body = await _body_of(response) if keeps_body else b""
            finally:
                await response.aclose()
        headers = [(name.lower(), value) for name, value in response.headers.raw]
        try:
            headers, body = plain_reply(headers, body)
        except CodingError as exc:
            raise RequestError(f"its answer can't be read: {exc}") from None
        return Reply(response.status_code, body, headers)

    async def _proxy(self, by: Proxy) -> httpx.Proxy:
        headers = [(b"proxy-authorization", by.authorization)] if by.authorization else []
        context = await self._tls() if by.scheme == "https" else None
        return httpx.Proxy(str(by), headers=headers, ssl_context=context)

    async def _host_tls(self) -> ssl.SSLContext:
        return await self._tls() if self._trust is None else await asyncio.to_thread(self._trust)

    async def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            # Reading all authorities of the system takes some 10 ms.
            self._context = await asyncio.to_thread(ssl.create_default_context)
        return self._context


async def _body_of(response: httpx.Response) -> bytes:
    """Return the body as it comes. Raises RequestError where it is too long."""
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > _MOST_BYTES:
            raise RequestError(f"its answer has more than {_MOST_BYTES} bytes")
    return bytes(body)


def _why(exc: BaseException) -> str:
    """Return what went wrong, of words that are ours or the system's."""
    if isinstance(exc, httpx.ConnectError):
        return f"it could not be reached: {_cause(exc)}"
    if isinstance(exc, httpx.LocalProtocolError):
        return "the request can't be written"
    if isinstance(exc, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError):
        return "the connection ended before a whole answer, or it is no HTTP"
    return type(exc).__name__


def _by_proxy(by: Proxy, exc: httpx.ConnectError | httpx.ProxyError) -> str:
    """Return what went wrong with a proxy, or behind it: TLS is with the host itself."""
    if isinstance(exc, httpx.ProxyError):
        return f"the proxy {by} ({by.where}) opens no tunnel to it"
    return f"it could not be reached by the proxy {by} ({by.where}): {_cause(exc)}"


def _cause(exc: BaseException) -> str:
    """Return what the system said of a connection: the innermost error that has words for it."""
    found = "no connection"
    for _ in range(_MOST_CAUSES):
        if isinstance(exc, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {exc.verify_message}"
        if isinstance(exc, socket.gaierror | ssl.SSLError):
            found = exc.strerror or found
        elif isinstance(exc, OSError) and exc.errno:
            found = os.strerror(exc.errno)  # asyncio puts the address into the error's own text
        inner = exc.exceptions[0] if isinstance(exc, BaseExceptionGroup) else exc.__cause__ or exc.__context__
        if inner is None:
            break
        exc = inner
    return found


def _read(path: str) -> bytes | None:
    try:
        with Path(path).expanduser().open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(content) > _MOST_BYTES:
        raise FetchError(f"{path} has more than {_MOST_BYTES} bytes")
    return content
