"""Far more than can be served: each is answered or told when to come back, no caller is locked out, nothing is kept."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bench.crowd import Answer, Request, offer, requests, service_s
from tests.e2e.harness import VeloxProcess, until
from tests.e2e.tools import CHAT, request_bytes

# The simulator's answers: 100 to 200 ms each. A gateway here sends it eight at a time: 53 a second.
LENGTHS = (6, 16)
PLACES = 8
CAPACITY = PLACES / service_s(sum(LENGTHS) // 2)
QUEUE = {"VELOX_WORKERS": "1", "VELOX_UPSTREAM_CONCURRENCY": str(PLACES)}
GAUGES = ("velox_queue_depth", "velox_upstream_inflight", "velox_inflight_requests")
KEYS = """
- {name: quiet, key: key-quiet}
- {name: loud, key: key-loud}
- {name: high, key: key-high, priority: high}
- {name: low, key: key-low, priority: low}
"""


def of(name: str, times: float, seconds: float = 2.0) -> list[Request]:
    """Return the requests of one caller, at so many times the capacity."""
    headers = {"authorization": f"Bearer key-{name}"}
    return requests(name, times * CAPACITY, seconds, LENGTHS, headers=headers, seed=len(name))


def counted(answers: Sequence[Answer], name: str) -> Counter[int]:
    """Return the statuses that one caller got."""
    return Counter(each.status for each in answers if each.kind == name)


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[VeloxProcess]:
    """One worker, one queue; callers with keys."""
    keys = tmp_path / "keys.yaml"
    keys.write_text(KEYS)
    env = {**QUEUE, "VELOX_RATE_LIMIT_RPM": "0", "VELOX_API_KEYS_FILE": str(keys)}
    with VeloxProcess(env, ("serve", "--sim")) as velox:
        yield velox


@pytest.mark.parametrize(
    ("settings", "status", "reasons"),
    [
        (QUEUE, 503, {"queue_timeout"}),
        ({**QUEUE, "VELOX_QUEUE_DEPTH": "4"}, 503, {"queue_timeout", "queue_full"}),
        ({"VELOX_RATE_LIMIT_CONCURRENCY": str(PLACES)}, 429, {"rate_limited"}),
        ({"VELOX_RATE_LIMIT_RPM": "3000", "VELOX_RATE_LIMIT_BURST": "10"}, 429, {"rate_limited"}),
    ],
    ids=["queue", "short queue", "slots", "rate"],
)
@pytest.mark.more
def test_flood_is_answered_or_told_when_and_leaves_nothing_behind(
    settings: dict[str, str], status: int, reasons: set[str]
) -> None:
    """Ten times what can be served: 200 or one refusal with its reason and time; then all places are free again."""
    env = {"VELOX_WORKERS": "2", "VELOX_RATE_LIMIT_RPM": "0", **settings}
    with VeloxProcess(env, ("serve", "--sim")) as velox:
        velox.wait_warm()

        answers = offer(velox.port, requests("all", 10 * CAPACITY, 2.0, LENGTHS), 128)

        told = [each for each in answers if each.status != 200]
        assert {each.status for each in answers} == {200, status}
        assert {each.reason for each in told} <= reasons
        assert all(each.is_told_when for each in told)
        assert not any(each.reason for each in answers if each.status == 200)
        until(lambda: is_idle(velox), "nothing is left of it")
        if "VELOX_RATE_LIMIT_RPM" not in settings:
            # As many at a time as before: a place that were not given back would be missed.
            again = offer(velox.port, [Request(0.02 * n, "all", 0.0, chat()) for n in range(PLACES)], PLACES)
            assert [each.status for each in again] == [200] * PLACES


def chat() -> bytes:
    """Return a chat request."""
    return request_bytes("POST", "/v1/chat/completions", CHAT)


def is_idle(velox: VeloxProcess) -> bool:
    """True when nothing waits and nothing runs, as the metrics say."""
    found = {name: value for name, value in velox.metrics().items() if name.startswith(GAUGES)}
    assert len(found) >= len(GAUGES)
    return not any(found.values())


def test_quiet_caller_beside_a_loud_one_is_never_refused(keyed: VeloxProcess) -> None:
    """One asks, reads, asks again, while another sends ten times what can be served and is refused most of it."""
    flood = threading.Event()
    statuses: list[int] = []

    def ask() -> None:
        while not flood.is_set():
            reply = keyed.request("POST", "/v1/chat/completions", CHAT, {"authorization": "Bearer key-quiet"})
            statuses.append(reply.status)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        loud = counted(offer(keyed.port, of("loud", 10.0, 3.0), 128), "loud")
    finally:
        flood.set()
        asking.join()

    assert set(statuses) == {200} and len(statuses) >= 3
    assert loud[503] > loud[200] > 0


def test_high_class_goes_first_and_the_low_one_has_its_floor(keyed: VeloxProcess) -> None:
    """Both send five times what can be served: most of it is the high one's, some of it the low one's."""
    answers = offer(keyed.port, [*of("high", 5.0, 3.0), *of("low", 5.0, 3.0)], 128)

    high, low = counted(answers, "high"), counted(answers, "low")
    assert set(high) | set(low) == {200, 503}
    assert 0 < low[200] < high[200] / 2
