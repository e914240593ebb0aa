"""What `velox top` shows of two readings: rates, shares, times, whatever names are in them, at any size."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from velox.runtime.commands.figures import Reading, parse_figures, quantile
from velox.runtime.commands.top import History, Look, screen

PLAIN = Look(200, 100, colours=False)
COLOUR = re.compile(r"\x1b\[[0-9]+m")


def reading(
    at_s: float,
    *,
    requests: dict[str, int],
    times: list[float] | None = None,
    states: dict[str, str] | None = None,
    attempts: dict[tuple[str, str], int] | None = None,
) -> Reading:
    """Return what a gateway with these figures shows."""
    registry = CollectorRegistry()
    counter = Counter("velox_requests", "x", ("route", "class", "reason"), registry=registry)
    for reason, n in requests.items():
        counter.labels("chat", "2xx", reason).inc(n)
    first = Histogram(
        "gen_ai_server_time_to_first_token_seconds", "x", ("stream",), registry=registry, buckets=(0.1, 0.5, 1)
    )
    for each in times or []:
        first.labels("true").observe(each)
    state = Gauge("velox_upstream_state", "x", ("upstream", "origin", "state"), registry=registry)
    for upstream, its in (states or {}).items():
        for name in ("in", "resting", "out"):
            state.labels(upstream, "https://a", name).set(int(name == its))
    tried = Counter("velox_upstream_requests", "x", ("upstream", "outcome"), registry=registry)
    for (upstream, outcome), n in (attempts or {}).items():
        tried.labels(upstream, outcome).inc(n)
    Gauge("velox_uptime_seconds", "x", registry=registry).set(7200)
    worker = Gauge("velox_worker_up", "x", ("worker",), registry=registry)
    worker.labels("0").set(1)
    worker.labels("1").set(0)
    return parse_figures(generate_latest(registry).decode(), at_s)


def shown(*readings: Reading, look: Look = PLAIN) -> list[str]:
    """Return the screen after these readings."""
    history = History()
    for each in readings:
        history.add(each)
    return screen(history, look, lambda: 0.0)


def test_rates_are_of_the_last_two_readings() -> None:
    """Not since the start: what matters is what happens now."""
    before = reading(10, requests={"ok": 1000, "queue_full": 5})
    now = reading(12, requests={"ok": 1200, "queue_full": 25})
    text = "\n".join(shown(before, now))
    assert "requests     110/s   10/s failed" in text
    assert "up 2 h" in text


def test_first_reading_tells_no_rates() -> None:
    """A gateway under load is not shown as one that does nothing."""
    text = "\n".join(shown(reading(10, requests={"ok": 1000}, states={"a": "in"}, attempts={("a", "ok"): 9})))
    assert "requests     -   - failed" in text and "in -   out -" in text and "0/s" not in text
    assert re.search(r"(?m)^a +in use +0 +- ", text)


def test_quantiles_are_of_what_came_lately() -> None:
    """A slow hour before is no matter any more."""
    before = reading(0, requests={}, times=[0.05] * 500)
    now = reading(5, requests={}, times=[0.05] * 500 + [0.3] * 9 + [0.9])
    assert "first token  50 % 322 ms   95 % 750 ms   99 % 950 ms" in "\n".join(shown(before, now))
    assert "first token  50 % -   95 % -   99 % -" in "\n".join(shown(before, before))


def test_upstreams_are_listed_with_what_is_wrong() -> None:
    """An upstream that is out stands there as such, with the share of attempts that failed."""
    states = {"openai": "in", "azure": "out"}
    before = reading(0, requests={}, states=states, attempts={("azure", "ok"): 10, ("openai", "ok"): 10})
    now = reading(
        2, requests={}, states=states, attempts={("azure", "ok"): 11, ("azure", "connect"): 3, ("openai", "ok"): 14}
    )
    lines = shown(before, now)
    azure, openai = (next(line for line in lines if line.startswith(name)) for name in ("azure", "openai"))
    assert azure.split()[:5] == ["azure", "out", "0", "2", "75.0"]
    assert openai.split()[:6] == ["openai", "in", "use", "0", "2", "0.0"]


def test_worker_that_does_not_serve_is_shown() -> None:
    """In red, where there are colours."""
    one = reading(0, requests={})
    assert [line.split()[:2] for line in shown(one)[-3:-1]] == [["0", "serving"], ["1", "not"]]
    assert any("\x1b[31mnot serving\x1b[0m" in line for line in shown(one, look=Look(200, 100, colours=True)))


def test_gateway_that_was_started_again_shows_no_negative_rate() -> None:
    """Counters that are lower than before began anew."""
    text = "\n".join(shown(reading(0, requests={"ok": 900}), reading(1, requests={"ok": 4})))
    assert "requests     4/s" in text and "-" not in text.split("first token")[0]


@pytest.mark.parametrize("width", [1, 7, 20, 40, 79])
@pytest.mark.parametrize("height", [1, 5, 12])
def test_screen_is_never_larger_than_the_terminal(width: int, height: int) -> None:
    """Colours take no room; what does not fit is left out."""
    found = reading(0, requests={"ok": 1, "queue_full": 1}, states={"a" * 100: "out", "\u4e2d\x1b[2Jx": "in"})
    lines = shown(found, look=Look(width, height, colours=True))
    assert len(lines) <= height
    assert all(len(COLOUR.sub("", line)) <= width for line in lines)


def test_names_do_not_move_the_cursor() -> None:
    """Names of upstreams are an operator's, but may be anybody's text."""
    lines = shown(reading(0, requests={}, states={"a\x1b[2J\x07\u202eb": "in"}))
    assert any(line.startswith("a?[2J??b") for line in lines)
    assert not any(control in line for line in lines for control in "\x1b\x07\u202e")


def test_readings_are_kept_for_five_minutes() -> None:
    """A screen that is open for days takes no more memory."""
    history = History()
    for second in range(1000):
        history.add(Reading(float(second), {}))
    assert history.before(1e9).at_s == 999 - 300


def test_quantile_is_that_of_prometheus() -> None:
    """By interpolation; above the last bound it is that bound; without events there is none."""
    buckets = [(0.1, 10.0), (0.5, 70.0), (float("inf"), 100.0)]
    assert quantile(buckets, 0.05) == pytest.approx(0.05)
    assert quantile(buckets, 0.5) == pytest.approx(0.1 + 0.4 * 40 / 60)
    assert quantile(buckets, 0.9) == 0.5
    assert quantile([(1.0, 0.0), (float("inf"), 0.0)], 0.5) is None
    assert quantile([], 0.5) is None
