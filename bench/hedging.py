"""Model servers of which each is slow now and then: the same load without a second try, and with several kinds of it.

    python -m bench.hedging                    # about 8 minutes; writes table and picture of docs/hedging.md
    python -m bench.hedging --seconds 1 --dry  # does it run? writes nothing

Everything is real: three `velox sim`, each late with one answer in 33, `velox serve` with two workers and a route for
each kind of hedge. Requests come at random times whether or not earlier ones were answered; the time to the first token
counts from when a request was due. The first quarter of each round is dropped. Extra load: attempts at upstreams beyond
one for each request.

Knows: servers, load, routes. Does not know: when a second try goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bench.chats import Mix, chats
from bench.crowd import Request
from bench.model_servers import ModelServer, gateway_before, model_servers
from bench.pictures import draw_shares, new, write
from bench.rounds import spread
from bench.route_rounds import Make, Round, asked, first_tokens, play, publish, raw, shown_s

__all__ = ["main"]

_MIX: Final = Mix((8, 24))
_RATE: Final = 60.0
_DROPPED: Final = 1 / 4
_SERVERS: Final = {
    name: [
        *("--ttft", "60ms", "--token-rate", "100", "--slow-rate", "0.03", "--slow-by", "1500ms"),
        *("--seed", str(seed)),
    ]
    for seed, name in enumerate("abc")
}
# By the name of the route.
_KINDS: Final = {
    "off": "",
    "p95-5": "{after: p95, at_most: 5%}",
    "p95-2": "{after: p95, at_most: 2%}",
    "p90-10": "{after: p90, at_most: 10%}",
    "fixed": "{after: 200ms, at_most: 5%}",
}


def _file(servers: Mapping[str, ModelServer]) -> str:
    lines = ["upstreams:"]
    lines += [f"  - {{name: {name}, origin: '{server.origin}'}}" for name, server in servers.items()]
    lines.append("routes:")
    for route, hedge in _KINDS.items():
        more = f", hedge: {hedge}" if hedge else ""
        to = ", ".join(servers)
        lines.append(f"  - {{name: {route}, match: {{models: [{route}]}}, to: [{to}], balance: least_inflight{more}}}")
    return "\n".join(lines) + "\n"


def _make(seconds: float) -> Make:
    def make(kind: str, number: int) -> list[Request]:
        return chats(kind, _RATE, seconds, _MIX, seed=number + 1)

    return make


def _row(kind: str, rounds: Sequence[Round]) -> str:
    times = " | ".join(shown_s([each.ttft(share) for each in rounds]) for share in (0.5, 0.95, 0.99, 0.999))
    extra = spread([100 * (each.attempts / len(each.answers) - 1) for each in rounds])
    shown = f"{extra.median:.1f} % ({extra.least:.1f} to {extra.greatest:.1f})"
    return f"| {_KINDS[kind].strip('{}') or 'none'} | {times} | {shown} |"


def _draw(found: Mapping[str, Sequence[Round]]) -> None:
    figure, (axes,) = new(1, width=7.0)
    for kind, rounds in found.items():
        times = [time_s for each in rounds for time_s in first_tokens(each.counted)]
        draw_shares(axes, times, _KINDS[kind].strip("{}") or "no hedge", dashed=kind == "off")
    axes.set(xscale="log", xlabel="time to first token, s", ylabel="part of the requests", ylim=(0.9, 1.002))
    axes.legend(fontsize=7, loc="lower right")
    write(figure, "hedging")


def main() -> None:
    """Measure, print, write."""
    arguments = asked(__doc__, seconds=30.0)
    with model_servers(_SERVERS) as servers, gateway_before(_file(servers)) as gateway:
        found = play(
            *(gateway, list(_KINDS), _make(arguments.seconds), arguments.rounds),
            seconds=arguments.seconds,
            dropped=_DROPPED,
        )
    lines = [
        "| `hedge` | time to first token, p50 | p95 | p99 | p99.9 | extra load |",
        "|---|---|---|---|---|---|",
        *(_row(kind, rounds) for kind, rounds in found.items()),
    ]
    table = "\n".join(lines)
    print(table)
    if not arguments.dry:
        _draw(found)
        publish(arguments, "hedging.md", "hedging", table, {"rounds": [*map(raw, found.values())]})


if __name__ == "__main__":
    main()
