"""What is counted of each upstream over all workers, while they come and go."""

from __future__ import annotations

import os
import signal
from collections import Counter

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import RecordingUpstream
from tests.e2e.routed import nobody
from tests.e2e.test_processes import wait_replaced
from tests.e2e.tools import clients, hold_chat


def test_requests_in_flight_of_a_killed_worker_are_taken_back() -> None:
    """Balancers see what all workers have in flight: those of the dead must not weigh on the upstream for ever."""
    n_workers, n_clients = 2, 12
    with RecordingUpstream() as upstream:
        origin = upstream.env()["VELOX_UPSTREAM_ORIGIN"]
        inflight = f'velox_upstream_inflight_requests{{origin="{origin}",upstream="default"}}'
        ok = 'velox_upstream_requests_total{outcome="ok",upstream="default"}'
        state = f'velox_upstream_state{{origin="{origin}",state="in",upstream="default"}}'
        with (
            VeloxProcess({**upstream.env(), "VELOX_WORKERS": str(n_workers)}) as velox,
            upstream.playing(hold_chat),
            clients(velox, n_clients) as all_,
        ):
            velox.wait_metric(state, lambda n: n == n_workers)
            homes = {client: client.worker() for client in all_}
            victim, n_lost = Counter(homes.values()).most_common(1)[0]
            ok_before = velox.metric(ok)
            for client in all_:
                client.send_chat()
            upstream.wait_call(n_clients)
            velox.wait_metric(inflight, lambda n: n == n_clients)

            os.kill(victim, signal.SIGKILL)
            wait_replaced(velox, victim, n_workers)

            velox.wait_metric(inflight, lambda n: n == n_clients - n_lost)
            velox.wait_metric(state, lambda n: n == n_workers)
            upstream.step(n_clients)
            assert [client.read().status for client in all_ if homes[client] != victim] == [200] * (n_clients - n_lost)
            velox.wait_metric(inflight, lambda n: n == 0)
            velox.wait_metric(ok, lambda n: n == ok_before + n_clients - n_lost)


def test_upstream_that_nobody_answers_for_is_put_out_once_a_worker() -> None:
    """No request is needed to find that out; and it is counted as when requests find it out."""
    with nobody() as origin, VeloxProcess({"VELOX_UPSTREAM_ORIGIN": origin, "VELOX_WORKERS": "2"}) as velox:
        velox.wait_metric(f'velox_upstream_state{{origin="{origin}",state="out",upstream="default"}}', lambda n: n == 2)
        velox.wait_metric('velox_upstream_ejections_total{upstream="default"}', lambda n: n == 2)
