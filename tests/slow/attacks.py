"""The attacks: which program with which options, and what one looks like from outside.

Knows: slowhttptest's options, our own attackers' names. Does not know: what is measured (run.py).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = ["ATTACKS", "Attack", "Given"]


@dataclass(frozen=True)
class Given:
    """Whom to attack, and how much."""

    url: str
    n: int
    seconds: int

    @property
    def port(self) -> str:
        """The port of `url`."""
        return self.url.rpartition(":")[2]


@dataclass(frozen=True)
class Attack:
    """name: for people. command: the attacker. tool: a program that must be there. env: settings it needs.

    reasons: what Velox records of its connections, if it records any. least_s: how long it must last to be ended when
    every time-out is 2 s.
    """

    name: str
    what: str
    command: Callable[[Given], list[str]]
    tool: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    least_s: int = 6

    @property
    def is_here(self) -> bool:
        """True when its tool is installed."""
        return not self.tool or shutil.which(self.tool) is not None


def _slowhttptest(*options: str, path: str) -> Callable[[Given], list[str]]:
    def command(given: Given) -> list[str]:
        usual = ["-c", str(given.n), "-r", str(given.n), "-l", str(given.seconds), "-i", "1", "-p", "3"]
        return ["slowhttptest", *usual, *options, "-u", given.url + path]

    return command


def _own(kind: str) -> Callable[[Given], list[str]]:
    def command(given: Given) -> list[str]:
        return [sys.executable, "-m", "tests.slow.attackers", kind, given.port, str(given.n), str(given.seconds)]

    return command


_TOOL: Final = "slowhttptest"
# A body that is never silent has 10 s in hand (policy/pace.py).
_LEAST_BODY_S: Final = 13
ATTACKS: Final = (
    Attack(
        "slowhttptest -H",
        "heads that never end: a field a second",
        _slowhttptest("-H", "-x", "24", path="/v1/models"),
        _TOOL,
        reasons=("header_timeout",),
    ),
    Attack(
        "slowhttptest -B",
        "bodies of 8 KiB that come in a trickle",
        _slowhttptest("-B", "-s", "8192", "-x", "8", "-f", "application/json", path="/v1/chat/completions"),
        _TOOL,
        reasons=("body_timeout",),
        least_s=_LEAST_BODY_S,
    ),
    Attack(
        "slowhttptest -X",
        "replies of 1 MiB through windows of 512 bytes, read 32 bytes a second",
        _slowhttptest("-X", "-w", "256", "-y", "512", "-n", "1", "-z", "32", path="/large"),
        _TOOL,
        reasons=("client_slow", "client_closed"),
    ),
    Attack("idle connections", "nothing is ever sent", _own("idle")),
    Attack(
        "slow chunked bodies",
        "a chunk of one byte twice a second",
        _own("chunks"),
        reasons=("body_timeout",),
        least_s=_LEAST_BODY_S,
    ),
    Attack(
        "clients that never read",
        "replies of 1 MiB, SO_RCVBUF 1 KiB",
        _own("never-reads"),
        reasons=("client_slow",),
    ),
    Attack(
        "clients that read a trickle",
        "the same, 16 bytes twice a second",
        _own("reads-a-trickle"),
        reasons=("client_slow",),
    ),
    Attack(
        "requests sent ahead",
        "8,000 at once on each connection, for 1 MiB each, and no reply is read",
        _own("ahead"),
        reasons=("client_slow",),
    ),
    Attack(
        "connection flood",
        "as many as it can beyond a limit of 100, again as soon as one is refused",
        _own("flood"),
        env={"VELOX_MAX_CONNECTIONS": "100"},
        reasons=("conn_limit",),
    ),
)
