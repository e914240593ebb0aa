"""The /debug/pprof/ pages: an index, and profiles of CPU time and memory, for `go tool pprof`, speedscope, or as text.

Knows: the query of a profile, its formats, one profile at a time. Does not know: how samples are taken or
sent.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import parse_qsl

from velox.admin.message import HTML, HTML_POLICY, TEXT, AdminRequest, RefusalError, Reply, escaped
from velox.build import DESCRIPTION
from velox.profiling.samples import Profile

__all__ = ["Collect", "CollectHeap", "ProfilePage", "index_page"]

# Profiles all workers for so many seconds at so many samples a second of CPU time.
Collect: TypeAlias = Callable[[float, int], Awaitable[Profile]]
# Returns what memory all workers allocate in so many seconds and then still have.
CollectHeap: TypeAlias = Callable[[float], Awaitable[Profile]]

_SECONDS: Final = range(1, 61)
_HZ: Final = range(1, 501)

# What is between the two comments is shown only where profiles can be taken.
_PAGE: Final = Path(__file__).with_name("index.html").read_text("utf-8").replace("{version}", DESCRIPTION)
_PROFILES: Final = re.sub("<!-- .* -->\n", "", _PAGE)
_INDEX: Final = re.sub("(?s)<!-- with profiles -->.*<!-- end -->\n", "", _PAGE)


_CONTENT_TYPES: Final = {
    "pprof": "application/octet-stream",
    "speedscope": "application/json",
    "folded": TEXT,
    "text": TEXT,
}
_FILES: Final = {"pprof": "velox-{kind}.pb.gz", "speedscope": "velox-{kind}.speedscope.json"}
_HEAP: Final = "/debug/pprof/heap"
# Of each page, without the file's name.
_FORMATS: Final = {"cpu": ("pprof", "speedscope", "folded"), "heap": ("text", "pprof", "speedscope", "folded")}


@dataclass(frozen=True, slots=True)
class _Query:
    kind: str
    seconds: int
    hz: int
    format: str


class ProfilePage:
    """Serves /debug/pprof/profile and heap. Holds what makes it one at a time, of either kind.

    pause_s: the least time between the starts of two; 0: none. now_s: a clock that never goes back.
    """

    def __init__(
        self,
        collect: Collect,
        heap: CollectHeap,
        pause_s: float = 0.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._collect = collect
        self._heap = heap
        self._pause_s = pause_s
        self._now_s = now_s
        self._next_s = -math.inf
        self._taking = False

    def __repr__(self) -> str:
        return f"<ProfilePage taking={self._taking}>"

    async def reply(self, request: AdminRequest) -> Reply:
        """Take a profile. Raises RefusalError: 400 for a bad query, 429 while another is taken or just was."""
        query = _parse_query(request)
        content_type = _CONTENT_TYPES[query.format]
        if request.is_head:
            return Reply(200, None, content_type, _headers(query))
        if self._taking:
            # How long the other one takes is known here to a second or so only.
            raise RefusalError(429, "another profile is being taken", (("Retry-After", "5"),))
        now_s = self._now_s()
        if now_s < self._next_s:
            wait_s = math.ceil(self._next_s - now_s)
            message = "a profile was taken a moment ago (VELOX_PROFILE_INTERVAL)"
            raise RefusalError(429, message, (("Retry-After", str(wait_s)),))
        self._next_s = now_s + self._pause_s
        self._taking = True
        try:
            if query.kind == "heap":
                profile = await self._heap(query.seconds)
            else:
                profile = await self._collect(query.seconds, query.hz)
        finally:
            self._taking = False
        # Megabytes at worst; on a thread, so that a scrape does not wait for it.
        body = await asyncio.to_thread(_encode, profile, query.format)
        return Reply(200, body, content_type, _headers(query))


def _headers(query: _Query) -> tuple[tuple[str, str], ...]:
    name = _FILES.get(query.format, "").format(kind=query.kind)
    return (("Content-Disposition", f'attachment; filename="{name}"'),) if name else ()


def _encode(profile: Profile, wanted: str) -> bytes:
    # Here, not above: a profile takes seconds, but few gateways are ever asked for one.
    from velox.profiling import pprof
    from velox.profiling.folded import folded
    from velox.profiling.speedscope import speedscope
    from velox.profiling.top_lines import top_lines

    match wanted:
        case "folded":
            return folded(profile).encode()
        case "speedscope":
            return speedscope(profile)
        case "text":
            return top_lines(profile).encode()
        case _:
            return pprof.encode(profile)


def _parse_query(request: AdminRequest) -> _Query:
    pairs = parse_qsl(request.query, keep_blank_values=True)
    given = dict(pairs)
    kind, names = ("heap", ("seconds", "format")) if request.path == _HEAP else ("cpu", ("seconds", "hz", "format"))
    if len(given) != len(pairs) or not given.keys() <= set(names):
        raise RefusalError(400, f"the parameters are {', '.join(names)}, each once at most")
    formats = _FORMATS[kind]
    wanted = given.get("format", formats[0])
    if wanted not in formats:
        raise RefusalError(400, f"format must be one of {', '.join(formats)}")
    return _Query(
        kind=kind,
        seconds=_whole_number(given.get("seconds", "10"), _SECONDS, "seconds must be a whole number from 1 to 60"),
        hz=_whole_number(given.get("hz", "99"), _HZ, "hz must be a whole number from 1 to 500"),
        format=wanted,
    )


def _whole_number(text: str, allowed: range, message: str) -> int:
    number = int(text) if re.fullmatch("[0-9]{1,3}", text) else -1
    if number not in allowed:
        raise RefusalError(400, message)
    return number


def index_page(
    request: AdminRequest,
    *,
    with_profiles: bool,
    problems: Sequence[str] = (),
    has_tls: bool = False,
    session: str = "",
) -> Reply:
    """Return the page that says what there is, and what is wrong. The Host header in it passed the server's check.

    session: HTML by which the browser's session is ended.
    """
    host = escaped(request.host or "127.0.0.1:6060")
    page = (_PROFILES if with_profiles else _INDEX).replace("{origin}", f"{'https' if has_tls else 'http'}://{host}")
    lines = "".join(f"<li>{escaped(problem)}" for problem in problems)
    page = page.replace("{session}", session)
    page = page.replace("{problems}", f"<h2>Not as it should be</h2>\n<ul>{lines}</ul>" if lines else "")
    return Reply(200, page.encode(), HTML, (HTML_POLICY,))
