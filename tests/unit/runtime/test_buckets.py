"""How many buckets limits need, how large their table is made, and what is said when it is too small."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from velox.policy.limits.limit_rules import LimitRule, buckets_needed
from velox.runtime.buckets import BucketWatch, bucket_lines, table_size
from velox.settings import Settings, load
from velox.shm.quota_table import QuotaMemory, TableSize
from velox.types import NO_RATES, KeyEntry, KeyTerms, Rates, Scope

BOTH = Rates(rpm=60, burst=10, tpm=1000, tpm_burst=1000)
OWN = LimitRule("VELOX_KEY", Scope.KEY, NO_RATES, of_key=True)
ENVIRON = {"VELOX_WORKERS": "1", "VELOX_UPSTREAM_ORIGIN": "http://127.0.0.1:1", "VELOX_RATE_LIMIT_RPM": "0"}


def replace_keys(settings: Settings, found: Sequence[KeyEntry]) -> Settings:
    return structs.replace(settings, api_keys=tuple(found))


def keys(n: int, rates: Rates = NO_RATES) -> list[KeyEntry]:
    return [KeyEntry(i.to_bytes(32, "big"), f"k{i}", terms=KeyTerms(rates=rates)) for i in range(n)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "n_keys", "wanted"),
    [
        (OWN, 0, (0, 0)),
        (OWN, 100_000, (200_000, 0)),
        (replace(OWN, rates=Rates(concurrency=5)), 10, (30, 0)),
        (LimitRule("limits[0]", Scope.GATEWAY, BOTH), 10, (2, 0)),
        (LimitRule("limits[0]", Scope.KEY, BOTH), 0, (2, 0)),
        (LimitRule("limits[0]", Scope.KEY, BOTH), 10, (20, 0)),
        (LimitRule("limits[0]", Scope.KEY, BOTH, keys=("k1", "k2", "nobody")), 10, (4, 0)),
        (LimitRule("limits[0]", Scope.KEY, BOTH, models=("gpt-*",)), 10, (20, 0)),
        (LimitRule("limits[0]", Scope.MODEL, BOTH), 10, (0, 512)),
        (LimitRule("limits[0]", Scope.MODEL, BOTH, models=("a", "b", "c")), 10, (6, 0)),
        (LimitRule("limits[0]", Scope.KEY_MODEL, BOTH), 10, (0, 160)),
        (LimitRule("limits[0]", Scope.KEY_MODEL, BOTH, models=("a", "b*")), 10, (0, 160)),
        (LimitRule("limits[0]", Scope.KEY_MODEL, BOTH, models=("a", "b")), 10, (40, 0)),
        (LimitRule("limits[0]", Scope.KEY_MODEL, BOTH), 100_000, (0, 262_144)),
    ],
)
def test_buckets_are_those_of_each_key_and_limit(rule: LimitRule, n_keys: int, wanted: tuple[int, int]) -> None:
    """Models that a rule names are counted, of others some are assumed."""
    rates = BOTH if rule.of_key else NO_RATES
    assert buckets_needed([rule], keys(n_keys, rates)) == wanted


def test_buckets_of_teams_and_users_are_counted_once_each() -> None:
    """By rules for them, and by rates of their own."""
    own = Rates(rpm=60, burst=1)
    some = [
        replace(key, terms=KeyTerms(team=f"t{n % 3}", user=f"u{n}", team_rates=own))
        for n, key in enumerate(keys(12, NO_RATES))
    ]
    rules = [LimitRule("limits[0]", Scope.TEAM, BOTH), LimitRule("limits[1]", Scope.USER, own)]
    assert buckets_needed(rules, some) == (3 + 2 * 3 + 12, 0)


@pytest.mark.slow
def test_table_is_made_for_what_is_configured() -> None:
    """As large as needed and able to grow, or as VELOX_LIMIT_BUCKETS says."""
    settings = load({**ENVIRON, "VELOX_API_KEYS": "a,b", "VELOX_KEY_RPM": "60"}, cores=1)
    many = replace_keys(settings, keys(100_000, BOTH))
    fixed = load({**ENVIRON, "VELOX_LIMIT_BUCKETS": "100"}, cores=1)

    assert table_size(settings).named == 8192 and table_size(settings).most_named > 10**6
    assert table_size(many).named == 200_000
    assert table_size(fixed) == TableSize(50, 50, 50, 50)
    assert bucket_lines(many) == [
        "buckets: 200,000 needed by limits and keys; 208,192 to begin with, 2,228,224 at most "
        "(VELOX_LIMIT_BUCKETS: as needed)"
    ]


def test_table_that_is_too_small_is_told_by_check_and_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """With what is needed; again when the keys have changed, and once each."""
    environ = {**ENVIRON, "VELOX_API_KEYS": "a,b", "VELOX_KEY_RPM": "60", "VELOX_LIMIT_BUCKETS": "64"}
    settings = load(environ, cores=1)
    memory = QuotaMemory(table_size(settings), 1)
    watch = BucketWatch(memory, settings, logging.getLogger("test"))
    few, many, more = (tuple(keys(n)) for n in (16, 17, 100))

    for found in (few, many, many, tuple(many), few, more, more):
        watch.look(settings.limit_rules, found)

    assert len(bucket_lines(replace_keys(settings, few))) == 1
    assert len(bucket_lines(replace_keys(settings, many))) == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"VELOX_LIMIT_BUCKETS is 64, too few for {n} buckets: limits without one hold in each worker only; "
        f"leave it out, or set it to at least {4 * n}"
        for n in (17, 100)
    ]


def test_full_table_and_a_caller_beyond_its_share_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    settings = load(ENVIRON, cores=1)
    memory = QuotaMemory(64, 1)
    watch = BucketWatch(memory, settings, logging.getLogger("test"))
    for _ in range(3):
        watch.look((), ())
        memory.count_overflow(0)
        memory.count_over_share(0)

    levels = [(record.levelname, "velox_limit_rows" in record.getMessage()) for record in caplog.records]
    assert levels == [("ERROR", True), ("WARNING", True)]
