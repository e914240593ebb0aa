"""Connections stay below the limit on open files, whatever it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.policy.resources import plan_descriptors


def test_limit_that_is_high_enough_changes_nothing() -> None:
    """What the settings ask for is what is taken."""
    plan = plan_descriptors(2**20, 8192, 4098)

    assert (plan.clients, plan.upstream) == (8192, 4098)


@pytest.mark.parametrize(("limit", "clients", "upstream"), [(256, 96, 48), (1024, 480, 240), (20_000, 9968, 4984)])
def test_low_limit_is_divided_between_clients_and_upstream(limit: int, clients: int, upstream: int) -> None:
    """An upstream connection counts twice; 64 are left for everything else."""
    plan = plan_descriptors(limit, 10**7, 10**7)

    assert (plan.clients, plan.upstream) == (clients, upstream)


def test_few_upstream_connections_leave_the_rest_to_clients() -> None:
    """min(setting, limit - 2 x upstream - 64)."""
    assert plan_descriptors(1024, 10**7, 10).clients == 1024 - 20 - 64


@given(st.integers(1, 2**30), st.integers(1, 10**7), st.integers(1, 10**7))
def test_plan_fits_any_limit_that_a_worker_can_run_with(limit: int, clients: int, upstream: int) -> None:
    """Never more than asked for, never none, never over the limit."""
    plan = plan_descriptors(limit, clients, upstream)

    assert 1 <= plan.clients <= clients
    assert 1 <= plan.upstream <= upstream
    assert limit < 70 or plan.clients + 2 * plan.upstream + 64 <= limit
