"""What a model server's metrics page says of its load, read without parsing the page.

Knows: the text format of Prometheus, and the names that vLLM and SGLang use. Does not know: how the page is asked for,
or what follows from a load (policy/balance/scraped.py).

    vLLM     vllm:num_requests_running, vllm:num_requests_waiting, vllm:kv_cache_usage_perc; the last one was
             vllm:gpu_cache_usage_perc in older versions, and in some a page has both
    SGLang   sglang:num_running_reqs, sglang:num_queue_reqs, sglang:token_usage

A page has some thousand lines, most of them of histograms, and five that matter: so it is searched for those names, at
the speed of memmem. What can't be read is left out: a page comes from a network.

One name has several series where a server has several engines or models: requests add up, and of caches the fullest
counts, for it is the one that a request may meet. But SGLang tells some numbers more than once: by priority beside the
sum of all (which has no priority), and, if it is told to, by each rank of one engine.

Sources: docs.vllm.ai "Production Metrics", docs.sglang.io "Production Metrics", prometheus.io "Exposition formats".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeAlias

__all__ = ["ModelLoad", "read_load"]

_NAMES: Final = {
    "vllm": (
        b"vllm:num_requests_running",
        b"vllm:num_requests_waiting",
        (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
    ),
    "sglang": (b"sglang:num_running_reqs", b"sglang:num_queue_reqs", (b"sglang:token_usage",)),
}
# Beyond these nothing is read: 8 engines of 32 ranks, and a label that holds a long path.
_MOST_SERIES: Final = 256
_LINE_BYTES: Final = 4096

_LABEL: Final = re.compile(rb'[ \t]*([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]++|\\.)*+)"[ \t]*,?[ \t]*')
# Ranks of tensors, pipelines and experts: parts of one engine, that has all of its requests on each of them.
_RANKS: Final = frozenset({b"tp_rank", b"pp_rank", b"moe_ep_rank"})
_PRIORITY: Final = b"priority"

# The labels that tell one engine or model from another.
_Engine: TypeAlias = frozenset[tuple[bytes, bytes]]


class ModelLoad(NamedTuple):
    """Requests that run and that wait, and how full the cache of keys and values is, 0 to 1; 0 where that is unsaid."""

    running: float
    waiting: float
    cache_usage: float


def read_load(kind: Literal["vllm", "sglang"], page: bytes) -> ModelLoad | None:
    """Return what a page says; None if it says nothing of requests: it is not one of such a server."""
    running_name, waiting_name, cache_names = _NAMES[kind]
    running, waiting = _sum(page, running_name), _sum(page, waiting_name)
    if running is None and waiting is None:
        return None
    usage = max((value for name in cache_names for _, value in _series(page, name)), default=0.0)
    return ModelLoad(running or 0.0, waiting or 0.0, min(1.0, usage))


def _sum(page: bytes, name: bytes) -> float | None:
    """Add up the engines; None if there is none."""
    of_engine: dict[_Engine, float] = {}
    for engine, value in _series(page, name):
        of_engine[engine] = max(value, of_engine.get(engine, 0.0))
    return sum(of_engine.values()) if of_engine else None


def _series(page: bytes, name: bytes) -> Iterator[tuple[_Engine, float]]:
    """Yield the samples of one name."""
    for start in islice(_starts(page, name), _MOST_SERIES):
        end = page.find(b"\n", start, start + _LINE_BYTES)
        if end < 0:
            end = len(page)
        sample = _sample(page[start:end]) if end - start < _LINE_BYTES else None
        if sample is not None:
            yield sample


def _starts(page: bytes, name: bytes) -> Iterator[int]:
    """Yield where the rest of each line begins that begins with a name."""
    if page.startswith(name):
        yield len(name)
    line = b"\n" + name
    at = page.find(line)
    while at >= 0:
        at += len(line)
        yield at
        at = page.find(line, at)


def _sample(rest: bytes) -> tuple[_Engine, float] | None:
    """Read what follows a name on its line: labels, the value, perhaps a time. None: it counts for nothing."""
    labels: list[tuple[bytes, bytes]] = []
    at = 0
    if rest.startswith(b"{"):
        at = 1
        while found := _LABEL.match(rest, at):
            at = found.end()
            label = found[1], found[2]
            if label[0] == _PRIORITY and label[1]:
                return None  # the sum has it already
            if label[0] not in _RANKS:
                labels.append(label)
        if not rest.startswith(b"}", at):
            return None
        at += 1
    elif not rest.startswith((b" ", b"\t")):
        return None  # a longer name
    words = rest[at : at + 64].split(None, 1)
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        return None
    return (frozenset(labels), value) if 0.0 <= value < math.inf else None
