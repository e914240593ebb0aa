"""Draws docs/life-of-a-request.svg: `python -m docs.life_of_a_request` writes it anew.

Knows: the steps of velox/gateway/ (intake.py, exchange.py), where each refusal leaves, boxes and arrows. A test
compares the file with what this draws, and the names in it with velox/errors.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

__all__ = ["PICTURE", "STEPS", "Step", "draw"]

PICTURE: Final = Path(__file__).with_name("life-of-a-request.svg")


@dataclass(frozen=True)
class Step:
    """One step. where: the function that does it. leaves: the lines on the arrow of those that end here."""

    name: str
    what: tuple[str, ...]
    where: str
    leaves: tuple[str, ...]


STEPS: Final = (
    Step(
        "accept",
        (
            "The head is parsed; its limits are checked as it",
            "arrives. Ambiguous requests are refused.",
        ),
        "net/client/ingress.py, protocol/http1/request.py",
        (
            "400 bad_framing, bad_request",
            "405 method_not_allowed, 503 conn_limit",
            "408 header_timeout, 431 header_too_large",
        ),
    ),
    Step(
        "authenticate",
        ("The client's key, the path, the body's type:", "checked before the body is read."),
        "Gateway.check_head()",
        (
            "401 auth_invalid",
            "404 unknown_route",
            "415 unsupported_media, unsupported_encoding",
        ),
    ),
    Step(
        "body",
        ("Read whole into memory, within the body limit", "and the worker's body budget."),
        "net/client/body_budget.py",
        ("413 body_too_large", "408 body_timeout", "503 overload_memory"),
    ),
    Step(
        "queue",
        ("Bounded, by class, fair between callers. A request", "that finds it empty passes at once."),
        "Gateway.submit(), policy/queue/fair_queue.py",
        ("503 queue_full, queue_timeout", "503 draining"),
    ),
    Step(
        "parse",
        ("Model, stream, token limit, user.", "From 1 MiB on: in slices, in the coroutine."),
        "Exchange.read(), protocol/json/body.py",
        ("400 invalid_json, duplicate_key, bad_request", "403 forbidden, 404 unknown_object"),
    ),
    Step(
        "limits",
        ("All limits, the route, all budgets of its upstreams:", "each is charged, or none is."),
        "Exchange.admit(), gateway/front/admission.py",
        (
            "429 rate_limited, with the exact time to wait",
            "503 limits_unavailable; cache: 504 not_cached",
            "404 unknown_model, unknown_route",
            "422 idempotency_mismatch; 503 ledger_full",
            "429 insufficient_quota, 403 unpriced_model",
        ),
    ),
    Step(
        "wait",
        ("Only for permits taken in advance. If the client", "disconnects, they are refunded."),
        "Exchange._wait_for_turn()",
        ("503 queue_timeout: the client's deadline",),
    ),
    Step(
        "choose",
        ("Of its route, by health and load: an upstream,", "a server, an upstream key."),
        "RouteCursor.first(), gateway/cluster/group.py",
        ("kept answers: 503 answers_unavailable", "429 rate_limited: all keys rest"),
    ),
    Step(
        "connect",
        ("A warm connection with capacity, round robin;", "otherwise a new one, or a wait."),
        "Exchange.lease(), net/upstream/pool.py",
        ("502 upstream_dns, upstream_connect,", "upstream_tls, upstream_credentials", "503 queue_timeout"),
    ),
    Step(
        "forward",
        ("Head rebuilt, body unchanged. Retries where safe,", "at another server or after a wait."),
        "Attempt.send(), gateway/cluster/retries.py",
        (
            "502 upstream_reset, upstream_protocol,",
            "upstream_redirect; body_timeout as 504",
            "504 upstream_ttfb_timeout",
            "400 previous_response_not_found",
        ),
    ),
    Step(
        "reply",
        ("Callbacks, no task: each chunk is one read and", "one write. A slow client pauses its upstream."),
        "gateway/reply/reply.py",
        (
            "cut: upstream_truncated, upstream_reset,",
            "upstream_protocol, upstream_idle_timeout,",
            "upstream_total_timeout, draining",
        ),
    ),
    Step(
        "account",
        ("Exactly once: limits settled, slot released,", "counted, logged; then the last byte."),
        "Exchange._end(), gateway/limits/reservation.py",
        (),
    ),
)

_WIDTH, _HEIGHT = 1220, 1557
_CARD_X, _CARD_W, _CARD_H = 490, 380, 80
_FIRST_Y, _PITCH = 226, 97
_COROUTINE_GAP = 40  # between limits and wait
_FIRST_OF_COROUTINE = 6
_CLIENT_X, _CLIENT_W = 24, 96
_RIGHT_X, _RIGHT_W = 958, 238

_STYLE: Final = """
svg { --page:#ffffff; --text:#1f2430; --soft:#5b6474; --line:#aab2c0; --worker:#f3f5f9; --card:#ffffff;
  --inner:#e9eef8; --request:#2457c5; --reply:#18794e; --refusal:#b42318; --memory:#fdf3dc; --edge:#c99a2e }
@media (prefers-color-scheme: dark) { svg { --page:#0f1319; --text:#e7eaf0; --soft:#a3adbd; --line:#4d5768;
  --worker:#171c25; --card:#212835; --inner:#1a2334; --request:#7ea6ff; --reply:#5fd19a; --refusal:#ff8f84;
  --memory:#2c2616; --edge:#a8822f } }
text { font: 14px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: var(--text) }
.name { font-weight: 650; font-size: 15px }
.big { font-weight: 650; font-size: 17px }
.title { font-weight: 650; font-size: 22px }
.soft { fill: var(--soft); font-size: 13px }
.code { font: 11.5px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: var(--soft) }
.out { fill: var(--refusal); font-size: 13px }
.middle { text-anchor: middle }
.end { text-anchor: end }
.process { fill: var(--worker); stroke: var(--line); stroke-width: 1.5 }
.card { fill: var(--card); stroke: var(--line) }
.inner { fill: var(--inner); stroke: var(--line); stroke-dasharray: 5 4 }
.memory { fill: var(--memory); stroke: var(--edge); stroke-width: 1.5 }
.arrow { fill: none; stroke-width: 2 }
.request { stroke: var(--request) } .reply { stroke: var(--reply) }
.refusal { stroke: var(--refusal); stroke-width: 1.5 }
.plain { stroke: var(--soft); stroke-width: 1.5 }
.fork { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 4 4 }
"""


def draw() -> str:
    """Return the picture."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
        ' role="img" aria-labelledby="t d">',
        '<title id="t">The life of a request in Velox</title>',
        '<desc id="d">From the client through one worker process to the upstream and back, with every refusal.</desc>',
        f"<style>{_STYLE}</style>",
        f"<defs>{''.join(_marker(kind) for kind in ('request', 'reply', 'refusal', 'soft'))}</defs>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="var(--page)"/>',
        _text(24, 42, "The life of a request", "title"),
        _text(24, 64, "One worker process, top to bottom. Solid boxes are processes.", "soft"),
        *_processes(),
    ]
    for index, step in enumerate(STEPS):
        parts += _step(index, step)
    parts += _flows()
    parts += _legend()
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _y(index: int) -> int:
    return _FIRST_Y + index * _PITCH + (_COROUTINE_GAP if index >= _FIRST_OF_COROUTINE else 0)


def _middle(index: int) -> int:
    return _y(index) + _CARD_H // 2


def _processes() -> list[str]:
    last_y = _y(len(STEPS) - 1) + _CARD_H
    coroutine_y = _y(_FIRST_OF_COROUTINE) - 34
    memory_y, upstream_y = _y(3), _y(8)
    left, right = _CARD_X - 16, _CARD_X + _CARD_W + 16
    return [
        _box(left, 86, _RIGHT_X + _RIGHT_W - left, 62, "process"),
        _text(left + 16, 112, "supervisor", "big"),
        _text(
            left + 16,
            134,
            "binds and holds every listening socket; forks and replaces the others; handles no request",
            "soft",
        ),
        _box(left, 184, right - left, last_y + 16 - 184, "process"),
        _text(left + 16, 210, "worker", "big"),
        _text(left + 94, 210, "one of VELOX_WORKERS, pinned to a core", "soft"),
        _box(_CARD_X - 8, coroutine_y, _CARD_W + 16, last_y + 8 - coroutine_y, "inner"),
        _text(_CARD_X + 6, coroutine_y + 22, "one coroutine per request", "soft"),
        _box(_CLIENT_X, 184, _CLIENT_W, last_y + 16 - 184, "process"),
        _text(_CLIENT_X + _CLIENT_W // 2, 210, "client", "big middle"),
        _box(_RIGHT_X, 184, _RIGHT_W, 190, "process"),
        _text(_RIGHT_X + 16, 210, "admin", "big"),
        *_lines(_RIGHT_X + 16, 236, ("/metrics", "/healthz, /readyz", "/debug/pprof/"), "code", 20),
        *_lines(
            _RIGHT_X + 16,
            312,
            ("A separate process: busy", "workers do not delay it, and a", "scrape delays no worker."),
            "soft",
            19,
        ),
        _box(_RIGHT_X, memory_y, _RIGHT_W, _y(5) + _CARD_H - memory_y, "memory"),
        _text(_RIGHT_X + 16, memory_y + 28, "shared memory", "big"),
        *_lines(
            _RIGHT_X + 16,
            memory_y + 56,
            (
                "quotas: an integer each,",
                "moved by compare-and-swap",
                "",
                "metrics: a slab per worker,",
                "one writer each",
                "",
                "state and heartbeat of",
                "each worker; no locks",
            ),
            "soft",
            19,
        ),
        _box(_RIGHT_X, upstream_y, _RIGHT_W, _y(10) + _CARD_H - upstream_y, "process"),
        _text(_RIGHT_X + 16, upstream_y + 28, "upstream", "big"),
        *_lines(
            _RIGHT_X + 16,
            upstream_y + 56,
            (
                "HTTP/2 (ngh2 or h2) or",
                "HTTP/1.1, TLS or plain;",
                "warmed by HEAD at the start",
                "",
                "Disconnect: RST_STREAM, or",
                "the connection is aborted.",
            ),
            "soft",
            19,
        ),
        _box(_RIGHT_X, _y(11), _RIGHT_W, _CARD_H, "card"),
        _text(_RIGHT_X + 16, _y(11) + 28, "standard output", "name"),
        _text(_RIGHT_X + 16, _y(11) + 50, "one JSON line, no body, no key", "soft"),
    ]


def _step(index: int, step: Step) -> list[str]:
    x, y = _CARD_X, _y(index)
    parts = [
        _box(x, y, _CARD_W, _CARD_H, "card"),
        _text(x + 16, y + 24, f"{index + 1}  {step.name}", "name"),
        _text(x + _CARD_W - 14, y + 24, step.where, "code end"),
        *_lines(x + 16, y + 47, step.what, "soft", 19),
    ]
    if not step.leaves:
        return parts
    line_y = y + _CARD_H - 8
    parts.append(_arrow(f"M{x - 2} {line_y} H{_CLIENT_X + _CLIENT_W + 6}", "refusal", "refusal"))
    first = line_y - 9 - 18 * (len(step.leaves) - 1)
    parts += _lines(_CLIENT_X + _CLIENT_W + 20, first, step.leaves, "out", 18)
    return parts


def _flows() -> list[str]:
    card_right, worker_right = _CARD_X + _CARD_W, _CARD_X + _CARD_W + 16
    client = _CLIENT_X + _CLIENT_W
    parts = [_arrow(f"M{client + 2} {_y(0) + 5} H{_CARD_X - 6}", "request", "request")]
    for index in range(len(STEPS) - 1):
        kind = "reply" if index >= 9 else "request"
        parts.append(_arrow(f"M{_CARD_X + 190} {_y(index) + _CARD_H + 1} V{_y(index + 1) - 5}", kind, kind))
    reply_y = _y(10) + 5
    parts += [
        _arrow(f"M{_CARD_X - 2} {reply_y} H{client + 6}", "reply", "reply"),
        _arrow(f"M{card_right + 2} {_middle(8)} H{_RIGHT_X - 6}", "plain", "soft"),
        _arrow(f"M{card_right + 2} {_middle(9)} H{_RIGHT_X - 6}", "request", "request"),
        _arrow(f"M{_RIGHT_X - 2} {_middle(10)} H{card_right + 6}", "reply", "reply"),
        _arrow(f"M{card_right + 2} {_middle(5)} H{_RIGHT_X - 6}", "plain", "soft"),
        _arrow(f"M{card_right + 2} {_middle(11)} H{_RIGHT_X - 6}", "plain", "soft"),
        # account -> shared memory, between the worker and the boxes on its right
        _arrow(
            f"M{card_right + 2} {_middle(11) - 18} H{worker_right + 24} V{_middle(4)} H{_RIGHT_X - 6}",
            "plain",
            "soft",
        ),
        _arrow(f"M{_RIGHT_X + 115} {_y(3) - 2} V380", "plain", "soft"),
        _text(_RIGHT_X + 127, _y(3) - 60, "reads", "soft"),
        _arrow(f"M{_CARD_X + 190} 149 V178", "fork", "soft"),
        _text(_CARD_X + 202, 170, "fork: sockets and memory are inherited", "soft"),
        _arrow(f"M{_RIGHT_X + 115} 149 V178", "fork", "soft"),
    ]
    return parts


def _legend() -> list[str]:
    y = _HEIGHT - 78
    parts = [
        _text(
            24,
            y + 30,
            "In any step: the client disconnects (client_closed, client_slow), an administrator ends it "
            "(503 ended_by_admin), or a bug in Velox (500 internal).",
            "soft",
        ),
        _text(
            24,
            y + 52,
            "The upstream's own 4xx and 5xx pass unchanged (upstream_status). "
            "A WebSocket that is idle or too old is closed (tunnel_timeout).",
            "soft",
        ),
    ]
    for x, kind, text in (
        (24, "request", "the request"),
        (170, "reply", "the reply, bytes unchanged"),
        (
            412,
            "refusal",
            "Velox's own answer: status and reason code; the same code is in header, log and metric",
        ),
    ):
        parts.append(_arrow(f"M{x} {y - 5} H{x + 34}", kind, kind))
        parts.append(_text(x + 46, y, text, "soft"))
    return parts


def _box(x: int, y: int, width: int, height: int, kind: str) -> str:
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="9"/>'


def _text(x: int, y: int, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text, quote=False)}</text>'


def _lines(x: int, y: int, lines: tuple[str, ...], kind: str, step: int) -> list[str]:
    return [_text(x, y + step * index, line, kind) for index, line in enumerate(lines) if line]


def _arrow(path: str, kind: str, marker: str) -> str:
    return f'<path class="arrow {kind}" d="{path}" marker-end="url(#{marker})"/>'


def _marker(kind: str) -> str:
    return (
        f'<marker id="{kind}" viewBox="0 0 10 10" refX="6" refY="5" markerWidth="9" markerHeight="9" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L10 5 L0 10 z" fill="var(--{kind})"/></marker>'
    )


if __name__ == "__main__":
    PICTURE.write_text(draw())
