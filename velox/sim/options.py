"""The settings of the simulator.

Knows: names, units, defaults and ranges. Does not know: the command line, or what the settings are used for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["MAX_TOKENS", "SimOptions"]

# The pieces of an answer are built at start, about 1 KB a token over all routes: 100 MB at this limit.
MAX_TOKENS: Final = 100_000


@dataclass(frozen=True, slots=True)
class SimOptions:
    """What the simulator does.

    ttft_s: seconds from the whole request to the first byte of the answer.
    token_rate: tokens a second after the first; 0 means as fast as the client reads.
    tokens: length of an answer; a request may ask for a shorter one.
    capacity: answers that are made at once at full speed; more of them wait in line. 0: any number.
    batch_slowdown: beyond `capacity` none waits, and all share the speed instead.
    error_rate: share of the POST requests, 0 to 1, that are answered with status 500.
    cert_file, key_file: PEM; both or neither. With them the listener speaks TLS only.
    http2: offer HTTP/2: by ALPN with TLS, by prior knowledge (RFC 9113 §3.3) without.
    models: what GET /v1/models lists; a request may name any model.
    seed: makes the ids and the choice of failing requests repeat. None: different every time.
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
    error_rate: float = 0.0
    cert_file: str | None = None
    key_file: str | None = None
    http2: bool = True
    models: tuple[str, ...] = ("velox-sim",)
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
            (0 <= self.error_rate <= 1, f"error rate is {self.error_rate}; expected 0 to 1"),
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
