"""The settings of the simulator.

Knows: names, units, defaults and ranges. Does not know: the command line, or what the settings are used for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = ["MAX_CACHE", "MAX_TOKENS", "DownAs", "LoadMetrics", "SimOptions"]

# The pieces of an answer are built at start, about 1 KB a token over all routes: 100 MB at this limit.
MAX_TOKENS: Final = 100_000
MAX_CACHE: Final = 16_000_000  # tokens; about 150 bytes a block of 16 of them
_MAX_NAME: Final = 64  # characters; it is a header's value

DownAs: TypeAlias = Literal["500", "503", "reset", "refuse"]
LoadMetrics: TypeAlias = Literal["vllm", "sglang", "both"]


@dataclass(frozen=True, slots=True)
class SimOptions:
    """What the simulator does.

    ttft_s: seconds from the whole request to the first byte of the answer.
    token_rate: tokens a second after the first; 0 means as fast as the client reads.
    tokens: length of an answer; a request may ask for a shorter one.
    capacity: answers that are made at once at full speed; more of them wait in line. 0: any number.
    batch_slowdown: beyond `capacity` none waits, and all share the speed instead.
    prefill_rate: tokens a second of the prompt, but for those in the prefix cache, before the first of the answer.
        0: prompts take no time.
    prefix_cache: tokens of prompts whose keys and values are kept (engine.py), also the memory that the load
        metrics speak of. 0: none.
    error_rate: share of the POST requests, 0 to 1, that are answered with status 500.
    slow_rate, slow_by_s: share of the answers whose first token takes so many seconds longer.
    stall_rate, stall_after: share of the answers that stop after so many tokens and never end; 0: nothing comes at all,
        as always where the client wants no stream. They hold their place until the client leaves.
    flap: seconds up, seconds down, in turn from the start on. None: always up. What runs when it goes down goes on.
    flap_as: what being down is: every request gets status 500 or 503, or has its connection reset (over HTTP/2 its
        stream), or the port is closed.
    cert_file, key_file: PEM; both or neither. With them the listener speaks TLS only.
    http2: offer HTTP/2: by ALPN with TLS, by prior knowledge (RFC 9113 §3.3) without.
    models: what GET /v1/models lists; a request may name any model.
    name: sent with every reply as x-sim-name; "": none.
    load_metrics: whose names GET /metrics has.
    seed: makes the ids and the choice of failing, slow and stalled requests repeat. None: different every time.
    grace_s: seconds that running answers get when the simulator is told to stop.

    Raises ValueError naming every value that is out of range.
    """

    host: str = "127.0.0.1"
    port: int = 9000
    ttft_s: float = 0.05
    token_rate: float = 100.0
    tokens: int = 64
    capacity: int = 0
    batch_slowdown: bool = False
    prefill_rate: float = 0.0
    prefix_cache: int = 0
    error_rate: float = 0.0
    slow_rate: float = 0.0
    slow_by_s: float = 1.0
    stall_rate: float = 0.0
    stall_after: int = 0
    flap: tuple[float, float] | None = None
    flap_as: DownAs = "503"
    cert_file: str | None = None
    key_file: str | None = None
    http2: bool = True
    models: tuple[str, ...] = ("velox-sim",)
    name: str = ""
    load_metrics: LoadMetrics = "both"
    seed: int | None = None
    grace_s: float = 5.0

    def __post_init__(self) -> None:
        checks = (
            (0 <= self.port <= 65_535, f"port is {self.port}; expected 0 to 65535"),
            (self.ttft_s >= 0, f"ttft is {self.ttft_s} s; expected 0 or more"),
            (self.token_rate >= 0, f"token rate is {self.token_rate}; expected 0 or more tokens a second"),
            (1 <= self.tokens <= MAX_TOKENS, f"tokens is {self.tokens}; expected 1 to {MAX_TOKENS}"),
            (self.capacity >= 0, f"capacity is {self.capacity}; expected 0 (no limit) or more answers"),
            (bool(self.capacity) or not self.batch_slowdown, "batch slowdown is given without a capacity"),
            (self.prefill_rate >= 0, f"prefill rate is {self.prefill_rate}; expected 0 or more tokens a second"),
            (0 <= self.prefix_cache <= MAX_CACHE, f"prefix cache is {self.prefix_cache}; expected 0 to {MAX_CACHE}"),
            (0 <= self.error_rate <= 1, f"error rate is {self.error_rate}; expected 0 to 1"),
            (0 <= self.slow_rate <= 1, f"slow rate is {self.slow_rate}; expected 0 to 1"),
            (self.slow_by_s >= 0, f"slow by is {self.slow_by_s} s; expected 0 or more"),
            (0 <= self.stall_rate <= 1, f"stall rate is {self.stall_rate}; expected 0 to 1"),
            (self.stall_after >= 0, f"stall after is {self.stall_after}; expected 0 or more tokens"),
            (
                self.flap is None or (self.flap[0] >= 0 and self.flap[1] > 0),
                f"flap is {self.flap}; expected seconds up, 0 or more, and seconds down, more than 0",
            ),
            (
                len(self.name) <= _MAX_NAME and re.fullmatch(r"[\w.-]*", self.name, re.ASCII) is not None,
                f"name is {self.name!r}; expected up to {_MAX_NAME} letters, digits and ._-",
            ),
            (
                (self.cert_file is None) == (self.key_file is None),
                "cert and key are given both or not at all",
            ),
            (bool(self.models) and all(self.models), "models holds an empty name"),
            (self.grace_s >= 0, f"grace is {self.grace_s} s; expected 0 or more"),
        )
        problems = [problem for holds, problem in checks if not holds]
        if problems:
            raise ValueError("; ".join(problems))
