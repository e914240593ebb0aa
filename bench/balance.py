"""Four model servers of different size and speed behind one gateway: each way to balance, at the same load.

    python -m bench.balance                    # about 10 minutes; writes table and picture of docs/balancing.md
    python -m bench.balance --seconds 1 --dry  # does it run? writes nothing

Everything is real: four `velox sim`, `velox serve` with two workers and a route for each way to balance. Requests come
at random times whether or not earlier ones were answered, for answers of random length. The time to the first token
counts from when a request was due; of one whose first token never came while the round lasted, only that is known. The
first third of each round is dropped. Loads are parts of what all four servers can do together.

Knows: servers, loads, routes. Does not know: how a server is chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.chats import Mix, chats
from bench.crowd import Request
from bench.model_servers import ModelServer, gateway_before, model_servers
from bench.pictures import draw_shares, new, write
from bench.route_rounds import Make, Round, asked, first_tokens, play, publish, raw, shown_s

__all__ = ["main"]

_LENGTHS: Final = (10, 30)  # tokens, evenly
_LOADS: Final = (0.3, 0.7)
_DROPPED: Final = 1 / 3


@dataclass(frozen=True, slots=True)
class _Size:
    """What a server can do: so many answers at once, each first token after so long, the others at this rate."""

    slots: int
    ttft_s: float
    rate: float

    @property
    def peak(self) -> float:
        """Answers a second."""
        return self.slots / (self.ttft_s + (sum(_LENGTHS) / 2 - 1) / self.rate)

    @property
    def options(self) -> list[str]:
        speed = ["--ttft", f"{self.ttft_s * 1e3:.0f}ms", "--token-rate", f"{self.rate:g}"]
        return ["--capacity", str(self.slots), *speed, "--seed", "1"]


_SIZES: Final = {
    "a": _Size(8, 0.05, 100.0),
    "b": _Size(8, 0.05, 100.0),
    "c": _Size(4, 0.10, 50.0),
    "d": _Size(2, 0.20, 25.0),
}
_PEAK: Final = sum(size.peak for size in _SIZES.values())
# By the name of the route: how it balances, and whether the upstreams have the weights of what they can do.
_WAYS: Final = {
    "round_robin": ("round_robin", False),
    "round_robin-weighted": ("round_robin", True),
    "least_inflight": ("least_inflight", False),
    "least_inflight-weighted": ("least_inflight", True),
    "peak_ewma": ("peak_ewma", False),
}


def _file(servers: Mapping[str, ModelServer]) -> str:
    """Return the gateway's configuration. Each server is two upstreams: one with the right weight, one without."""
    lines = ["upstreams:"]
    for name, server in servers.items():
        weight = round(_SIZES[name].peak)
        lines.append(f"  - {{name: {name}, origin: '{server.origin}'}}")
        lines.append(f"  - {{name: {name}-weighted, origin: '{server.origin}', weight: {weight}}}")
    lines.append("routes:")
    for route, (balance, is_weighted) in _WAYS.items():
        to = ", ".join(f"{name}-weighted" if is_weighted else name for name in servers)
        lines.append(f"  - {{name: {route}, match: {{models: [{route}]}}, to: [{to}], balance: {balance}}}")
    return "\n".join(lines) + "\n"


def _make(load: float, seconds: float) -> Make:
    def make(way: str, number: int) -> list[Request]:
        return chats(way, load * _PEAK, seconds, Mix(_LENGTHS), seed=number + 1)

    return make


def _row(load: float, way: str, rounds: Sequence[Round]) -> str:
    balance, is_weighted = _WAYS[way]
    taken = Counter(each.upstream[:1] for found in rounds for each in found.counted)
    n = max(1, sum(taken[name] for name in _SIZES))
    shares = ", ".join(f"{100 * taken[name] / n:.0f}" for name in _SIZES)
    n_never = sum(len(each.unanswered) for each in rounds) / max(1, sum(len(each.counted) for each in rounds))
    times = " | ".join(shown_s([each.ttft(share) for each in rounds]) for share in (0.5, 0.99))
    return f"| {load:g} | {balance}{', weights right' * is_weighted} | {times} | {100 * n_never:.1f} % | {shares} |"


def _draw(found: Mapping[float, Mapping[str, Sequence[Round]]]) -> None:
    figure, axes = new(len(found))
    for load, each in zip(found, axes, strict=True):
        for way, rounds in found[load].items():
            balance, is_weighted = _WAYS[way]
            times = [time_s for one in rounds for time_s in first_tokens(one.counted)]
            draw_shares(each, times, f"{balance}{', weights right' * is_weighted}", dashed=is_weighted)
        each.set(title=f"{load:g} of what all can do", xscale="log", xlabel="time to first token, s", ylim=(0, 1.02))
        each.legend(fontsize=7, loc="lower right")
    axes[0].set(ylabel="part of the requests")
    write(figure, "balancing")


def main() -> None:
    """Measure, print, write."""
    arguments = asked(__doc__, seconds=15.0)
    seconds = arguments.seconds
    found: dict[float, dict[str, list[Round]]] = {}
    with (
        model_servers({name: size.options for name, size in _SIZES.items()}) as servers,
        gateway_before(_file(servers)) as gateway,
    ):
        for load in _LOADS:
            make = _make(load, seconds)
            found[load] = play(gateway, list(_WAYS), make, arguments.rounds, seconds=seconds, dropped=_DROPPED)
    lines = [
        "| load | `balance` | time to first token, p50 | p99 | never came | answered by a, b, c, d, % |",
        "|---|---|---|---|---|---|",
        *(_row(load, way, rounds) for load, by_way in found.items() for way, rounds in by_way.items()),
    ]
    table = "\n".join(lines)
    print(table)
    if not arguments.dry:
        _draw(found)
        rounds = {str(load): [*map(raw, by_way.values())] for load, by_way in found.items()}
        publish(arguments, "balancing.md", "balance", table, {"loads": rounds})


if __name__ == "__main__":
    main()
