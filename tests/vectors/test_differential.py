"""The vectors through Velox to five real servers, and through four real proxies to Velox."""

from __future__ import annotations

import pytest

from tests.vectors.differential import BEHIND_PROXY, from_proxy, to_server
from tests.vectors.proxies import PROXIES, SERVERS

# A proxy takes its time over what is no request; no test takes long.
N_PARTS = 3


@pytest.mark.parametrize("name", SERVERS)
def test_server_behind_velox_sees_one_request_where_the_client_sent_one(name: str) -> None:
    """What Velox refuses never gets there; what it passes is seen as the client meant it, once."""
    report = to_server(name)

    assert report.bad == {}
    assert report.n_requests > report.n_vectors  # each vector is followed by a request that passes


@pytest.mark.parametrize("part", range(N_PARTS))
@pytest.mark.parametrize("name", PROXIES)
def test_proxy_before_velox_agrees_where_requests_end(name: str, part: int) -> None:
    """Velox reads no request that the proxy has not sent, and the next client gets its own answer."""
    report = from_proxy(name, BEHIND_PROXY[part::N_PARTS])

    assert report.bad == {}
    assert report.n_requests > report.n_vectors
