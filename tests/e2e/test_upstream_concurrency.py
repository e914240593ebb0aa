"""What runs at once on an upstream is limited: by a number, or by what it shows that it can do."""

from __future__ import annotations

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import RecordingUpstream
from tests.e2e.tools import clients, covers, hold_chat

LIMIT = "velox_upstream_concurrency_limit"
IN_FLIGHT = "velox_upstream_inflight"


@covers("VELOX_UPSTREAM_CONCURRENCY")
def test_upstream_concurrency_holds_back_what_is_above_it() -> None:
    """Two of three run; the third goes up when one of them has ended, and all are answered."""
    with RecordingUpstream() as upstream, upstream.playing(hold_chat):
        settings = {"VELOX_WORKERS": "1", "VELOX_UPSTREAM_CONCURRENCY": "2", "VELOX_QUEUE_TIMEOUT": "30s"}
        with VeloxProcess({**upstream.env(), **settings}) as velox, clients(velox, 3) as three:
            for client in three:
                client.send_chat()
            upstream.wait_call(2)
            velox.wait_metric('velox_queue_depth{class="normal"}', lambda value: value == 1)
            velox.wait_metric(IN_FLIGHT, lambda value: value == 2)
            assert velox.metric(LIMIT) == 2
            assert len(upstream.calls) == 2

            upstream.step()
            upstream.wait_call(3)

            upstream.step(2)
            assert [client.read().status for client in three] == [200] * 3
            velox.wait_metric(IN_FLIGHT, lambda value: value == 0)


@covers("VELOX_UPSTREAM_CONCURRENCY")
def test_upstream_concurrency_that_is_found_out_begins_low() -> None:
    """`auto`: four in each of two workers, before anything is known."""
    with VeloxProcess({"VELOX_WORKERS": "2", "VELOX_UPSTREAM_CONCURRENCY": "auto"}, ("serve", "--sim")) as velox:
        velox.wait_metric(LIMIT, lambda value: value == 8)
        assert velox.request("GET", "/v1/models").status == 200


def test_upstream_concurrency_is_off_unless_asked_for() -> None:
    """The gauges say so."""
    with VeloxProcess({"VELOX_WORKERS": "1"}, ("serve", "--sim")) as velox:
        assert velox.request("GET", "/v1/models").status == 200
        assert (velox.metric(LIMIT), velox.metric(IN_FLIGHT)) == (0, 0)
