"""The options of the simulator, and its command line.

Knows: names, units, defaults, ranges and help texts. Does not know: what the options are used for.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args

from velox.settings.parse import address, duration

__all__ = ["MAX_CACHE", "MAX_TOKENS", "DownAs", "LoadMetrics", "SimOptions", "add_arguments", "read_options"]

# The pieces of an answer are built at start, about 1 KB a token over all routes: 100 MB at this limit.
MAX_TOKENS: Final = 100_000
MAX_CACHE: Final = 16_000_000  # tokens; about 150 bytes a block of 16 of them
_MAX_NAME: Final = 64  # characters; it is a header's value
_MAX_WAIT_S: Final = 3600.0
_GROUPS: Final = ("pace", "failures")

DownAs: TypeAlias = Literal["500", "503", "reset", "refuse"]
LoadMetrics: TypeAlias = Literal["vllm", "sglang", "both"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Argument:
    """How an option is given on the command line. low, high, expected: its range, and the words for it.

    add: the other keywords of add_argument(). read: from the command line's value to the option's.
    """

    text: str
    group: str
    add: dict[str, Any]
    read: Callable[[Any], object]
    low: float
    high: float
    expected: str


def _option(
    default: T,
    text: str,
    *,
    group: str = "",
    shown: str | None = None,
    read: Callable[[Any], object] = lambda value: value,
    low: float = 0,
    high: float = math.inf,
    expected: str = "0 or more",
    **add: Any,
) -> T:
    add["default"] = default if shown is None else shown
    option: T = field(default=default, metadata={"argument": _Argument(text, group, add, read, low, high, expected)})
    return option


def _time(default: float, text: str, group: str = "") -> float:
    shown = f"{default:g}s" if default >= 1 else f"{default * 1000:g}ms"
    text = f"{text} (default: %(default)s)"
    return _option(default, text, group=group, read=duration(0, _MAX_WAIT_S), shown=shown, metavar="TIME")


def _share(text: str) -> float:
    text = f"{text} (default: %(default)g)"
    return _option(0.0, text, group="failures", high=1, expected="0 to 1", type=float, metavar="SHARE")


def _read_flap(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    wait = duration(0, _MAX_WAIT_S)
    up, comma, down = text.partition(",")
    if not comma:
        raise ValueError("--flap: expected two times, for example 20s,5s")
    return wait(up.strip()), wait(down.strip())


@dataclass(frozen=True, slots=True)
class SimOptions:
    """What the simulator does. Those with a help text are arguments of the command line.

    ttft_s: from the whole request to the first byte of the answer.
    tokens: a request may ask for a shorter answer.
    prefix_cache: also the memory that the load metrics speak of.
    stall_rate, stall_after: such answers hold their place until the client leaves. Without a stream nothing comes.
    flap: seconds up, seconds down, in turn from the start on. None: always up. What runs when it goes down goes on.
    flap_as: what being down is: every request gets status 500 or 503, or has its connection reset (over HTTP/2 its
        stream), or the port is closed.
    cert_file, key_file: both or neither. With them the listener speaks TLS only.
    http2: by ALPN with TLS, by prior knowledge (RFC 9113 §3.3) without.
    seed: makes the ids and the choice of failing, slow and stalled requests repeat. None: different every time.

    Raises ValueError naming every value that is out of range.
    """

    host: str = "127.0.0.1"
    port: int = 9000
    name: str = _option("", "value of the header x-sim-name in every reply (default: no header)")
    models: tuple[str, ...] = _option(
        ("velox-sim",),
        "models in the list of models; requests may name any (default: %(default)s)",
        read=lambda text: tuple(name.strip() for name in text.split(",")),
        shown="velox-sim",
        metavar="A,B",
    )
    load_metrics: LoadMetrics = _option(  # noqa: RUF009 - it returns a field()
        "both", "metric names in GET /metrics (default: %(default)s)", choices=get_args(LoadMetrics)
    )
    cert_file: str | None = _option(
        None, "certificate chain in PEM; with --key the listener speaks TLS", metavar="FILE"
    )
    key_file: str | None = _option(None, "private key in PEM", metavar="FILE")
    http2: bool = _option(
        True,
        "offer HTTP/2 beside HTTP/1.1: by ALPN with TLS, else by prior knowledge (default: yes)",
        action=argparse.BooleanOptionalAction,
    )
    seed: int | None = _option(None, "repeat the same ids and the same failures in every run", type=int, metavar="N")
    grace_s: float = _time(5.0, "time for running answers at SIGTERM")

    ttft_s: float = _time(0.05, "time to the first token", "pace")
    token_rate: float = _option(
        100.0,
        "tokens per second after the first, 0: as fast as the client reads (default: %(default)g)",
        group="pace",
        expected="0 or more tokens a second",
        type=float,
        metavar="N",
    )
    tokens: int = _option(
        64,
        "length of an answer (default: %(default)s)",
        group="pace",
        low=1,
        high=MAX_TOKENS,
        expected=f"1 to {MAX_TOKENS}",
        type=int,
        metavar="N",
    )
    capacity: int = _option(
        0,
        "answers generated at once at full speed, more wait; 0: no limit (default: %(default)s)",
        group="pace",
        expected="0 (no limit) or more answers",
        type=int,
        metavar="N",
    )
    batch_slowdown: bool = _option(
        False,
        "beyond --capacity all answers slow down in proportion instead of waiting",
        group="pace",
        action="store_true",
    )
    prefill_rate: float = _option(
        0.0,
        "uncached prompt tokens per second before the first token; 0: prompts take no time (default: %(default)g)",
        group="pace",
        expected="0 or more tokens a second",
        type=float,
        metavar="N",
    )
    prefix_cache: int = _option(
        0,
        "prompt prefix tokens in the cache; 0: no cache (default: %(default)s)",
        group="pace",
        high=MAX_CACHE,
        expected=f"0 to {MAX_CACHE}",
        type=int,
        metavar="TOKENS",
    )

    error_rate: float = _share("share of the POST requests answered with status 500, 0 to 1")
    slow_rate: float = _share("share of the answers with a late first token")
    slow_by_s: float = _time(1.0, "delay of a late first token", "failures")
    stall_rate: float = _share("share of the answers that never end")
    stall_after: int = _option(
        0,
        "tokens of a stream before it stalls; 0: it never begins (default: %(default)s)",
        group="failures",
        expected="0 or more tokens",
        type=int,
        metavar="N",
    )
    flap: tuple[float, float] | None = _option(
        None,
        "two times, up and down, repeated, such as 20s,5s (default: always up)",
        group="failures",
        read=_read_flap,
        metavar="UP,DOWN",
    )
    flap_as: DownAs = _option(  # noqa: RUF009 - it returns a field()
        "503",
        "behaviour while down: a status, a connection reset, or a closed port (default: %(default)s)",
        group="failures",
        choices=get_args(DownAs),
    )

    def __post_init__(self) -> None:
        problems = [] if 0 <= self.port <= 65_535 else [f"port is {self.port}; expected 0 to 65535"]
        for name, argument in _arguments().items():
            value = getattr(self, name)
            if isinstance(value, int | float) and name != "seed" and not argument.low <= value <= argument.high:
                label, unit = (name.removesuffix("_s"), " s") if name.endswith("_s") else (name, "")
                problems.append(f"{label.replace('_', ' ')} is {value}{unit}; expected {argument.expected}")
        if self.batch_slowdown and not self.capacity:
            problems.append("batch slowdown is given without a capacity")
        if self.flap is not None and not (self.flap[0] >= 0 and self.flap[1] > 0):
            problems.append(f"flap is {self.flap}; expected seconds up, 0 or more, and seconds down, more than 0")
        if len(self.name) > _MAX_NAME or not re.fullmatch(r"[\w.-]*", self.name, re.ASCII):
            problems.append(f"name is {self.name!r}; expected up to {_MAX_NAME} letters, digits and ._-")
        if (self.cert_file is None) != (self.key_file is None):
            problems.append("cert and key are given both or not at all")
        if not self.models or not all(self.models):
            problems.append("models holds an empty name")
        if problems:
            raise ValueError("; ".join(problems))


def _arguments() -> dict[str, _Argument]:
    """Return the options that are arguments of the command line, by the name of their field."""
    return {each.name: each.metadata["argument"] for each in fields(SimOptions) if each.metadata}


def _flag(name: str) -> str:
    return name.removesuffix("_s").removesuffix("_file")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the simulator's options to a parser; read_options() reads what it returns."""
    default = SimOptions()
    parser.add_argument(
        "--listen",
        default=f"{default.host}:{default.port}",
        metavar="HOST:PORT",
        help="port 0 lets the kernel choose (default: %(default)s)",
    )
    groups = {"": parser, **{title: parser.add_argument_group(title) for title in _GROUPS}}
    for name, argument in _arguments().items():
        flag = f"--{_flag(name).replace('_', '-')}"
        groups[argument.group].add_argument(flag, help=argument.text, **argument.add)


def read_options(arguments: argparse.Namespace) -> SimOptions:
    """Return the options that were given. Raises ValueError saying what is wrong with them."""
    listen = address(arguments.listen)
    if listen.kind != "tcp":
        raise ValueError("--listen: the simulator listens on HOST:PORT only")
    given: dict[str, Any] = {
        name: argument.read(getattr(arguments, _flag(name))) for name, argument in _arguments().items()
    }
    return SimOptions(host=listen.host, port=listen.port, **given)
