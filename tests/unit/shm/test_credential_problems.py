"""Why credentials can't be renewed: told by workers, read by the admin process, and forgotten with them."""

from __future__ import annotations

from velox.shm.problems import CredentialProblem, CredentialProblems
from velox.shm.upstream_table import UpstreamTable


def test_problems_of_all_workers_are_one_list_by_upstream() -> None:
    problems = CredentialProblems(3)
    assert problems.all() == []

    problems.tell(0, {"aws": "no role", "entra": "403"})
    problems.tell(2, {"aws": "timed out"})
    assert problems.all() == [CredentialProblem("aws", "no role", 2), CredentialProblem("entra", "403", 1)]

    problems.tell(0, {})
    assert problems.all() == [CredentialProblem("aws", "timed out", 1)] == problems.all()


def test_the_largest_configuration_with_the_longest_reasons_has_room() -> None:
    problems = CredentialProblems(1)
    told = {f"{n:064}": "\U0001f511" * 10_000 for n in range(256)}
    problems.tell(0, told)
    assert len(problems.all()) == 256


def test_what_a_dead_process_said_is_forgotten() -> None:
    table = UpstreamTable(2)
    table.credentials.tell(1, {"aws": "no role"})
    table.reclaim(1)
    table.reclaim(0)
    assert table.credentials.all() == []
