"""Conversations on model servers that keep the prompts they have read: how often a prompt comes to where it was.

    python -m bench.prefix                    # about 10 minutes; writes table and picture of docs/balancing.md
    python -m bench.prefix --seconds 1 --dry  # does it run? writes nothing

Everything is real: four `velox sim` with a prefix cache that is too small for all conversations and large enough for a
quarter of them, `velox serve` with two workers and a route for each way to balance. Conversations begin at random
times, of four applications with a system prompt each; a turn holds all before it. No text is sent in two rounds. The
time to the first token counts from when a request was due. The first half of each round is dropped.

Knows: servers, conversations, routes, what an answer says of its prompt. Does not know: how a server is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from bench.chats import Talk, conversations
from bench.crowd import Request
from bench.model_servers import ModelServer, gateway_before, model_servers
from bench.pictures import draw_shares, new, write
from bench.rounds import spread
from bench.route_rounds import Make, Round, asked, first_tokens, play, publish, raw, shown_s

__all__ = ["main"]

_TALK: Final = Talk(
    systems=4,
    system_bytes=(1_500, 3_000),
    turns=6,
    turn_bytes=(300, 900),
    reply_bytes=(300, 900),
    think_s=3.0,
    lengths=(10, 30),
)
_RATE: Final = 4.0  # conversations begin in a second
_DROPPED: Final = 1 / 2
_OPTIONS: Final = (
    *("--ttft", "40ms", "--token-rate", "100", "--capacity", "32"),
    *("--prefill-rate", "3000", "--prefix-cache", "50000"),
)
_SERVERS: Final = {name: [*_OPTIONS, "--seed", str(seed)] for seed, name in enumerate("abcd")}
# By the name of the route.
_WAYS: Final = {
    "round_robin": "balance: round_robin",
    "least_inflight": "balance: least_inflight",
    "hash-prefix": "balance: hash, hash_on: prefix",
    "hash-user": "balance: hash, hash_on: user",
    "prefix": "balance: prefix",
}
_PROMPT: Final = re.compile(rb'"prompt_tokens": ?(\d+)')
_CACHED: Final = re.compile(rb'"cached_tokens": ?(\d+)')


def _file(servers: Mapping[str, ModelServer]) -> str:
    lines = ["upstreams:"]
    lines += [f"  - {{name: {name}, origin: '{server.origin}'}}" for name, server in servers.items()]
    lines.append("routes:")
    for route, balance in _WAYS.items():
        to = ", ".join(servers)
        lines.append(f"  - {{name: {route}, match: {{models: [{route}]}}, to: [{to}], {balance}}}")
    return "\n".join(lines) + "\n"


def _make(seconds: float) -> Make:
    def make(way: str, number: int) -> list[Request]:
        texts_seed = 1 + number * len(_WAYS) + list(_WAYS).index(way)
        return conversations(way, _RATE, seconds, _TALK, seed=number + 1, texts_seed=texts_seed)

    return make


def _hit_rate(each: Round) -> float:
    """Return the part of the prompts' tokens that was in the cache."""
    n_cached = n_prompt = 0
    for answer in each.counted:
        prompt, cached = _PROMPT.search(answer.ending), _CACHED.search(answer.ending)
        if answer.status == 200 and prompt is not None and cached is not None:
            n_prompt += int(prompt[1])
            n_cached += int(cached[1])
    return n_cached / max(1, n_prompt)


def _row(way: str, rounds: Sequence[Round]) -> str:
    hits = spread([100 * _hit_rate(each) for each in rounds])
    times = " | ".join(shown_s([each.ttft(share) for each in rounds]) for share in (0.5, 0.9, 0.99))
    shown = _WAYS[way].removeprefix("balance: ").replace("hash_on: ", "")
    return f"| {shown} | {hits.median:.0f} % ({hits.least:.0f} to {hits.greatest:.0f}) | {times} |"


def _draw(found: Mapping[str, Sequence[Round]]) -> None:
    figure, (times, hits) = new(2, width=10.0)
    for way, rounds in found.items():
        seen = [time_s for each in rounds for time_s in first_tokens(each.counted)]
        draw_shares(times, seen, way, dashed=not way.startswith(("hash", "prefix")))
    times.set(xlabel="time to first token, s", ylabel="part of the requests", ylim=(0, 1.02))
    times.legend(fontsize=7, loc="lower right")
    names = list(found)
    hits.barh(names, [100 * spread([_hit_rate(each) for each in found[way]]).median for way in names])
    hits.invert_yaxis()
    hits.set(xlabel="tokens of prompts found in the cache, %", xlim=(0, 100))
    write(figure, "prefix")


def main() -> None:
    """Measure, print, write."""
    arguments = asked(__doc__, seconds=36.0)
    with model_servers(_SERVERS) as servers, gateway_before(_file(servers)) as gateway:
        found = play(
            *(gateway, list(_WAYS), _make(arguments.seconds), arguments.rounds),
            seconds=arguments.seconds,
            dropped=_DROPPED,
        )
    lines = [
        "| `balance` | prompt tokens found in the cache | time to first token, p50 | p90 | p99 |",
        "|---|---|---|---|---|",
        *(_row(way, rounds) for way, rounds in found.items()),
    ]
    table = "\n".join(lines)
    print(table)
    if not arguments.dry:
        _draw(found)
        figures: dict[str, object] = {
            "hit_rates": {way: [_hit_rate(each) for each in rounds] for way, rounds in found.items()},
            "rounds": [*map(raw, found.values())],
        }
        publish(arguments, "balancing.md", "prefix", table, figures)


if __name__ == "__main__":
    main()
