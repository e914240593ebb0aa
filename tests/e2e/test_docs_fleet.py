"""The fleet of docs/simulator.md, started as it stands there, on other ports."""

from __future__ import annotations

import shlex

import httpx
import pytest

from tests.e2e.upstreams import start_sim
from tests.markdown import ROOT, commands


@pytest.mark.parametrize("command", commands(ROOT / "docs/simulator.md"))
def test_fleet_of_the_page_answers_by_its_names(command: str) -> None:
    """Each is up at first, and says its name with its load."""
    program, *words = shlex.split(command)
    assert program == ".venv/bin/velox" and words.pop(0) == "sim"
    where = words[words.index("--listen") + 1]

    with start_sim(*words, "--listen", where.rpartition(":")[0] + ":0") as sim:
        reply = httpx.get(f"{sim.url}/metrics")

    assert reply.status_code == 200 and "vllm:num_requests_running" in reply.text
    assert reply.headers["x-sim-name"] == words[words.index("--name") + 1]
