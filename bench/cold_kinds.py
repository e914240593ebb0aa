"""What the first request of its kind takes, beside requests as they come all the time; and what a crowd of kinds does.

    python -m bench.cold_kinds [--rounds N]

A gateway keeps what follows from the heads, keys and models that it has seen. The first table has what a request takes
of which something is new, over one of which everything is known: microseconds of CPU, no kernel, no sockets (the worker
of bench.instructions). The second has what requests of known callers take, by themselves and between those of one
hostile caller, of which no two heads are alike: ten of them for each.

Rounds alternate, and what is shown are medians, so that what the machine does meanwhile falls on all alike. A report,
never a gate. Knows: what is new, and how it is timed. Does not know: what is kept.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Final

from bench.instructions.kinds import KINDS
from bench.instructions.rig import AT_ONCE, Rig
from bench.traffic import KEYS, MODELS, Request, requests

__all__ = ["main"]

_WARM_UP: Final = 1920  # as in bench.instructions: until what is new in each head is known to be
_HOSTILE_EACH: Final = 10  # requests of the hostile caller for each of another's
_NEW: Final = "bench-new-{:06d}"
_SDK_FIELDS: Final = frozenset({"user-agent", "x-stainless-package-version", "x-stainless-runtime-version"})


class NewKinds:
    """Requests of which something was never sent before. keys: that no request has presented yet."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._usual: Final = requests(seed=7)
        self._hostile: Final = requests(seed=8, hostile=True, keys=KEYS[1:2])
        self._keys: Final = iter(keys)
        self._numbers: Final = count()

    def usual(self) -> bytes:
        """Return one of a known caller, for a known model, with the fields of a known SDK."""
        return next(self._usual).http1()

    def key(self) -> bytes:
        """Return one with a new key."""
        return _with_key(next(self._usual), next(self._keys)).http1()

    def model(self) -> bytes:
        """Return one for a new model."""
        return self._with_model(next(self._usual)).http1()

    def sdk(self) -> bytes:
        """Return one of a new version of an SDK, in a new version of its language."""
        return self._with_sdk(next(self._usual)).http1()

    def names(self) -> bytes:
        """Return one with eight fields of new names."""
        return next(self._hostile).http1()

    def everything(self) -> bytes:
        """Return one with a new key, for a new model, of a new version of an SDK."""
        return self._with_sdk(self._with_model(_with_key(next(self._usual), next(self._keys)))).http1()

    def _with_model(self, request: Request) -> Request:
        new = _NEW.format(next(self._numbers)).encode()
        body = request.body
        for model in MODELS:
            body = body.replace(b'"model":"%b"' % model.encode(), b'"model":"%b"' % new)
        fields = tuple((name, str(len(body)) if name == "Content-Length" else value) for name, value in request.fields)
        return Request(fields, body)

    def _with_sdk(self, request: Request) -> Request:
        new = next(self._numbers)
        fields = tuple(
            (name, f"{value}.{new}" if name.lower() in _SDK_FIELDS else value) for name, value in request.fields
        )
        return replace(request, fields=fields)


def _with_key(request: Request, key: str) -> Request:
    fields = tuple(
        (name, f"Bearer {key}" if name.lower() == "authorization" else value) for name, value in request.fields
    )
    return replace(request, fields=fields)


def timed(rig: Rig, sent: Sequence[bytes]) -> float:
    """Send these; return the microseconds of this thread's CPU that each took."""
    rig.prepare_these(sent)
    began_ns = time.thread_time_ns()
    rig.run(len(sent), 0)
    return (time.thread_time_ns() - began_ns) / 1e3 / len(sent)


def _take(make: Callable[[], bytes], n: int = AT_ONCE) -> list[bytes]:
    return [make() for _ in range(n)]


def cold(rig: Rig, kinds: NewKinds, rounds: int) -> Iterator[str]:
    """Yield the rows of the first table."""
    made = {
        "known": kinds.usual,
        "a new key": kinds.key,
        "a new model": kinds.model,
        "a new version of an SDK": kinds.sdk,
        "eight fields of new names": kinds.names,
        "a new key, model and version": kinds.everything,
    }
    found: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(rounds):
        for name, make in made.items():
            found[name].append(timed(rig, _take(make)))
    yield "| what is new | µs of CPU | middle half | over a known one |"
    yield "|---|---:|---:|---:|"
    known = statistics.median(found["known"])
    for name, each in found.items():
        low, middle, high = statistics.quantiles(each, n=4)
        yield f"| {name} | {middle:.1f} | {low:.1f} to {high:.1f} | {middle - known:+.1f} |"


def crowded(rig: Rig, kinds: NewKinds, rounds: int) -> Iterator[str]:
    """Yield the rows of the second table."""
    alone: list[float] = []
    between: list[float] = []
    for _ in range(rounds):
        timed(rig, _take(kinds.usual))  # so that both come after others
        alone.append(timed(rig, _take(kinds.usual)))
        timed(rig, _take(kinds.names, _HOSTILE_EACH * AT_ONCE))
        between.append(timed(rig, _take(kinds.usual)))
    yield "| requests of known callers | µs of CPU | middle half | |"
    yield "|---|---:|---:|---:|"
    base = statistics.median(alone)
    for name, each in (("by themselves", alone), ("between those of a hostile caller", between)):
        low, middle, high = statistics.quantiles(each, n=4)
        yield f"| {name} | {middle:.1f} | {low:.1f} to {high:.1f} | {middle / base:.2f}x |"


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.cold_kinds", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200, help=f"of {AT_ONCE} requests of each kind (default 200)")
    rounds = parser.parse_args().rounds
    keys = [_NEW.format(n) for n in range(2 * AT_ONCE * rounds)]
    kind = next(kind for kind in KINDS if kind.name == "JSON request, HTTP/1.1 up")
    rig = Rig(kind, environment={"VELOX_API_KEYS": ",".join((*KEYS, *keys))})
    kinds = NewKinds(keys)
    rig.prepare_these(list(islice(iter(kinds.usual, b""), _WARM_UP)))
    rig.run(_WARM_UP, 0)
    for rows in (cold(rig, kinds, rounds), crowded(rig, kinds, rounds)):
        print("\n".join(rows), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
