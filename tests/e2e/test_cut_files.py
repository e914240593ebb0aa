"""Reloads of files that were cut off: no request goes to an origin that no complete file named."""

from __future__ import annotations

import socket

import pytest

from tests.e2e.cut_files import DEFAULT, NAMES, Listeners, own_address, run
from tests.e2e.harness import VeloxProcess, until
from tests.e2e.names import NameServer
from tests.e2e.tools import CHAT

# `python -m tests.e2e.cut_files` does 300.
N_RELOADS = 12
SEED = 3


@pytest.mark.parametrize("mark", [False, True], ids=["plain", "with-end-mark"])
@pytest.mark.more
def test_file_that_is_cut_off_sends_no_request_to_an_unnamed_origin(mark: bool) -> None:
    """Under requests that never pause. With the end mark nothing of such a file is taken, and no request fails."""
    outcome = run(N_RELOADS, mark=mark, seed=SEED)

    assert (outcome.n_cut, outcome.n_complete) == (N_RELOADS, N_RELOADS)
    assert outcome.n_elsewhere == 0
    assert outcome.asked == {f"{name}.test" for name in NAMES}
    assert set(outcome.sources) <= {*NAMES, ""}
    assert {host.partition(":")[0] for host in outcome.hosts} == {f"{name}.test" for name in NAMES}
    if mark:
        assert outcome.n_taken == 0
        assert set(outcome.statuses) == {200}


def test_request_to_the_default_would_be_seen() -> None:
    """The witnesses are no fakes: a gateway without any upstream asks for the default's name, and connects."""
    with NameServer() as names, Listeners(own_address(), {443}) as elsewhere:
        names.answer(DEFAULT, own_address())
        with VeloxProcess({"VELOX_WORKERS": "1"}, launcher=names.launcher()) as velox:
            velox.request("POST", "/v1/chat/completions", CHAT)
            until(lambda: elsewhere.n_connections > 0, "somebody connects")
        assert DEFAULT in names.asked()


def test_listeners_count_every_connection() -> None:
    """At each of their ports."""
    with Listeners(own_address(), {80, 443}) as elsewhere:
        for port in (80, 443, 443):
            socket.create_connection((own_address(), port)).close()
        until(lambda: elsewhere.n_connections == 3, "all were seen")
