"""What the admin listener serves: for people, probes, Prometheus and `go tool pprof`, in a process of its own.

Knows: which path is served by what, and which paths need the token. Does not know: connections (server.py), or where
figures come from; all of it is injected. It shares no process with a worker, so neither can delay the other.

GET and HEAD, POST for a reload, an upgrade and to sign in or out, all methods for the API. A path is compared as it
came, so there is no way to spell another one. With a token, only probes and the form to sign in need none.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

import orjson

from velox import __version__
from velox.admin import metrics_page
from velox.admin.health import Readiness
from velox.admin.message import AdminRequest, RefusalError, Reply
from velox.admin.page_files import PageFiles
from velox.admin.playground import Playground
from velox.admin.pprof import ProfilePage, index_page
from velox.admin.reload import ReloadPage
from velox.admin.roles import OPEN_FILES, Role, TokenCheck
from velox.admin.running.pages import RUNNING_PAGES, RunningPages
from velox.admin.sessions import Sessions
from velox.admin.sign_in import SignIn, wants_html
from velox.admin.upgrades.page import UpgradePage
from velox.build import BUILD

__all__ = ["PAGES", "AdminApp", "Api", "LateApi"]

# What AdminApp serves itself.
PAGES: Final = frozenset(
    {
        *("/", "/metrics", "/health", "/healthz", "/livez", "/readyz", "/reload", "/upgrade"),
        *("/health/liveliness", "/health/liveness", "/health/readiness"),
        *("/debug/pprof", "/debug/pprof/", "/debug/pprof/profile", "/debug/pprof/heap", *RUNNING_PAGES),
        *("/sign-in", "/sign-out", "/session", "/gateway", "/playground"),
    }
)


class Api(Protocol):
    """What is served at paths that are no pages (api/service.py)."""

    def takes(self, path: str) -> bool:
        """Tell whether a path is the API's."""

    def admit(self, request: AdminRequest, role: Role | None) -> None:
        """Refuse what is refused whatever its body is. Raises RefusalError."""

    async def reply(self, request: AdminRequest, role: Role | None) -> Reply:
        """Answer a request. Raises RefusalError."""


class LateApi:
    """One that is put together when it is first asked: in a gateway that records nothing it has little to say.

    make: puts it together; called once, for the first path that is no page of the listener.
    """

    def __init__(self, make: Callable[[], Api]) -> None:
        self._make: Final = make
        self._made: Api | None = None

    def __repr__(self) -> str:
        return f"<LateApi {self._made!r}>"

    def takes(self, path: str) -> bool:
        """Tell whether a path is the API's."""
        return path not in PAGES and not path.startswith(OPEN_FILES) and self._api().takes(path)

    def admit(self, request: AdminRequest, role: Role | None) -> None:
        """Refuse what is refused whatever its body is. Raises RefusalError."""
        self._api().admit(request, role)

    async def reply(self, request: AdminRequest, role: Role | None) -> Reply:
        """Answer a request. Raises RefusalError."""
        return await self._api().reply(request, role)

    def _api(self) -> Api:
        if self._made is None:
            self._made = self._make()
        return self._made


class AdminApp:
    """What the admin listener serves.

    metrics: renders the metrics page now; called in a thread, once at a time: with thousands of origins it takes
    seconds, in which probes are answered and the supervisor sees that this process moves. problems: what is wrong
    besides, for the index, called as metrics is. ready: judges now.
    profiles: takes them; None: there are none. running: what the workers are doing; None: nobody tells.
    reload, upgrade: ask for one; None: nobody can be asked. api: what is
    served at its paths; None: nothing is. token: what is asked for, where it is. viewer_token: one that may only read.
    tls: the context for the next handshake; None: there is no TLS. host_names: names, lower-case, that a Host header
    may have besides IP addresses and localhost. listening: where the gateway listens for clients. pid: of the gateway.
    playground: asks it; None: nobody does. now_s: a clock that never goes back.
    """

    def __init__(
        self,
        *,
        metrics: Callable[[], bytes],
        ready: Callable[[], Readiness],
        profiles: ProfilePage | None,
        problems: Callable[[], Sequence[str]] = tuple,
        reload: ReloadPage | None = None,
        upgrade: UpgradePage | None = None,
        token: str | None = None,
        viewer_token: str | None = None,
        host_names: frozenset[str] = frozenset(),
        tls: Callable[[], ssl.SSLContext] | None = None,
        api: Api | None = None,
        listening: Sequence[str] = (),
        pid: int = 0,
        playground: Playground | None = None,
        running: RunningPages | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tls: Final = tls
        self.host_names: Final = host_names
        self._metrics = metrics
        self._renderer: Final = ThreadPoolExecutor(1, "metrics")
        self._ready = ready
        self._problems = problems
        self._profiles = profiles
        self._reload = reload
        self._upgrade = upgrade
        self._api = api
        self._listening: Final = tuple(listening)
        self._pid: Final = pid
        self._playground: Final = playground
        self._running: Final = running
        self._files: Final = PageFiles(OPEN_FILES)
        self._token = TokenCheck(token, viewer_token, Sessions(now_s))
        self._sign_in = SignIn(self._token, is_secure=tls is not None)

    def is_api(self, path: str) -> bool:
        """Tell whether a path takes all methods."""
        return self._api is not None and self._api.takes(path)

    def admit(self, request: AdminRequest) -> None:
        """Raise RefusalError for a request that needs a token and has none, before its body is read."""
        if self._api is not None and self._api.takes(request.path):
            self._api.admit(request, self._token.role_of(request))
            return
        try:
            self._token.check(request)
        except RefusalError as refusal:
            if refusal.reply.status == 401 and wants_html(request):
                raise RefusalError.of(self._sign_in.form(401)) from refusal
            raise

    async def reply(self, request: AdminRequest) -> Reply:
        """Answer a request. Raises RefusalError."""
        if self._api is not None and self._api.takes(request.path):
            return await self._api.reply(request, self._token.role_of(request))
        match request.path:
            case "/":
                return self._files.frame(request) if wants_html(request) else await self._index(request)
            case "/gateway":
                return await self._gateway()
            case "/metrics":
                page = await asyncio.get_running_loop().run_in_executor(self._renderer, self._metrics)
                return Reply(200, page, metrics_page.CONTENT_TYPE.decode())
            case "/healthz" | "/livez" | "/health":
                return Reply(200, b"ok\n") if self._ready().alive else Reply(503, b"no worker is running\n")
            case "/readyz":
                return _ready_reply(self._ready(), with_reasons=self._token.is_trusted(request))
            case "/health/liveliness" | "/health/liveness":  # as LiteLLM answers its probes
                alive = self._ready().alive
                return _json(200 if alive else 503, "I'm alive!" if alive else "no worker is running")
            case "/health/readiness":
                ready = self._ready().ready
                return _json(200 if ready else 503, {"status": "healthy" if ready else "unhealthy"})
            case "/sign-in" | "/sign-out" | "/session":
                return self._sign_in.reply(request)
            case "/playground" if self._playground is not None:
                return await self._playground.reply(request)
            case "/reload" if self._reload is not None:
                return await self._reload.reply(request)
            case "/upgrade" if self._upgrade is not None:
                return await self._upgrade.reply(request)
            case "/debug/pprof" | "/debug/pprof/" if self._profiles is not None:
                return await self._index(request)
            case "/debug/pprof/profile" | "/debug/pprof/heap" if self._profiles is not None:
                return await self._profiles.reply(request)
            case path if path in RUNNING_PAGES and self._running is not None:
                return await self._running.reply(request)
            case path if path.startswith(OPEN_FILES):
                return self._files.reply(request)
            case _:
                raise RefusalError(404, "there is no such page; / lists what there is")

    async def _index(self, request: AdminRequest) -> Reply:
        has_profiles, has_tls = self._profiles is not None, self.tls is not None
        problems, session = await self._all_problems(), self._sign_in.sign_out_form(request)
        return index_page(request, with_profiles=has_profiles, problems=problems, has_tls=has_tls, session=session)

    async def _gateway(self) -> Reply:
        fields = {
            "version": __version__,
            "build": BUILD,
            "address": next(iter(self._listening), ""),
            "listening": self._listening,
            "pid": self._pid,
            "profiles": self._profiles is not None,
            "playground": self._playground is not None,
            "problems": await self._all_problems(),
        }
        return _json(200, fields)

    async def _all_problems(self) -> list[str]:
        found = await asyncio.get_running_loop().run_in_executor(self._renderer, self._problems)
        return [*self._ready().reasons, *found]


def _ready_reply(state: Readiness, *, with_reasons: bool) -> Reply:
    fields = {"ready": state.ready, "reasons": state.reasons} if with_reasons else {"ready": state.ready}
    return _json(200 if state.ready else 503, fields)


def _json(status: int, body: object) -> Reply:
    return Reply(status, orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE), "application/json")
