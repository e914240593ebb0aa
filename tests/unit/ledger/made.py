"""Calls and rings for tests of the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from velox.ledger.record import Call, Flag, Tokens
from velox.ledger.writer import CallNames, CallWriter, OpenCall
from velox.protocol.agents import AGENTS
from velox.shm.record_ring import RecordRing

# 2026-11-23 12:00:00 UTC.
NOON_S: Final = 1_795_435_200
NAMES: Final = CallNames(
    "0011223344556677 ada", "main", "openai", "gpt-4o", "gpt-4o-2024", "red", "ada@example.com", "batch,eu"
)


def made_call(number: int, *, started_s: float = NOON_S, **more: Any) -> Call:
    fields: dict[str, Any] = {
        "process": 0xABCD,
        "number": number,
        "attempt": 1,
        "endpoint": 1,
        "status": 200,
        "flags": Flag(0),
        "started_us": round(started_s * 1e6),
        "first_byte_us": 300_000,
        "duration_us": 1_200_000,
        **dict(zip(("key", "route", "upstream", "model", "upstream_model"), NAMES[:5], strict=True)),
        "reason": "ok",
        "tokens": Tokens(100, 20, 40, 5, 1, 7),
        "cost_nano": 1_500,
        "prices": "table 2026-11-23",
        "team": "red",
        "user": "ada@example.com",
        "tags": ("batch", "eu"),
        "account": "key_ada",
        "path": "/v1/chat/completions",
        "tier": "flex",
        "answered_model": "gpt-4o-2024-11-20",
        "price": "openai/gpt-4o (flex)",
        "agent": "claude-code",
    }
    return Call(**fields | more)


def writer_of(path: Path, n_records: int = 1000, process: int = 0xABCD) -> CallWriter:
    ring = RecordRing(path, n_records)
    ring.recover()
    return CallWriter(ring, process)


def begin(writer: CallWriter, call: Call) -> OpenCall:
    tags = ",".join(call.tags)
    key = f"{call.account}\x1f{call.key}" if call.key else ""
    names = CallNames(
        *(key, call.route, call.upstream, call.model, call.upstream_model, call.team, call.user, tags, call.path)
    )
    return writer.begin(
        call.number,
        call.attempt,
        call.endpoint,
        bool(call.flags & Flag.STREAM),
        call.started_us,
        names,
        (50, 10),
        cost_nano=900,
        prices=label_of(call),
        agent=AGENTS.index(call.agent),
    )


def write(writer: CallWriter, call: Call) -> None:
    """Record a call, from its begin to its end."""
    writer.end(
        begin(writer, call),
        status=call.status,
        reason=call.reason,
        flags=call.flags,
        first_byte_us=call.first_byte_us,
        duration_us=call.duration_us,
        tokens=call.tokens,
        cost_nano=call.cost_nano,
        prices=label_of(call),
        tier=call.tier,
        answered=call.answered_model,
    )


def label_of(call: Call) -> str:
    return f"{call.prices}\x1f{call.price}" if call.prices else ""
