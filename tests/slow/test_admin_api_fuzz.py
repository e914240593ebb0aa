"""More of the fuzz of the admin API than `make test` has time for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.admin.api.api_fuzz import Fuzzer, House


@pytest.mark.parametrize("seed", range(4))
def test_api_holds_its_promises_for_longer(tmp_path: Path, seed: int) -> None:
    """Thousands of calls on the same accounts: also what only many changes before lead to."""
    asyncio.run(Fuzzer(House(tmp_path / "ledger"), seed).run(8000))
