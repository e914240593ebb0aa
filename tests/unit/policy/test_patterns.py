"""No regular expression of the gateway takes more than linear time, or keeps much memory for each letter."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.unit.policy.pattern_pumps import Pattern, fault_of, patterns_of_package

# What they are matched against was taken by another pattern before, line by line.
CHECKED_BEFORE = {"velox.heads._FIELD_LINE", "velox.protocol.heads.extras._NAMES"}
ON_THE_WAY = ("heads", "protocol", "dialects", "policy", "gateway", "net", "prices", "providers")
BESIDE = ("accounts", "admin", "importing", "ledger", "observe", "profiling", "runtime", "settings", "shm", "sim")
# Files that only the operator writes.
OF_SETTINGS = {
    "velox.settings.checks.certificates._CERTIFICATE",
    "velox.settings.parse._PATH",
    "velox.settings.callers.plain_items._BETWEEN",
    "velox.settings.problems._USERINFO",
}
# A path has at most 8 KiB, a head 32 KiB, and the line of a chunk's size is bounded too. CPython before 3.11.5 takes
# possessive groups of several steps wrongly (gh-106052).
SHORT = {
    "velox.policy.api.table._PLAIN",
    "velox.protocol.http1.chunked._SIZE_LINE",
    "velox.protocol.heads.extras._EXTRA_LINES",
    "velox.protocol.heads.target._PLAIN",
}


@contextmanager
def traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def test_every_pattern_takes_linear_time_and_little_memory() -> None:
    """X2: each is fed with repetitions of its own parts, and ends that do not fit."""
    patterns = patterns_of_package(ON_THE_WAY)

    assert len(patterns) > 80
    with traced():
        assert [fault for each in patterns if (fault := checked(each, 5))] == []


@pytest.mark.more
def test_patterns_of_settings_and_administrators() -> None:
    """As above, in the packages that no client's request passes."""
    patterns = patterns_of_package(BESIDE)

    assert len(patterns) > 50
    with traced():
        assert [fault for each in patterns if (fault := checked(each, 5))] == []


def checked(pattern: Pattern, most_texts: int) -> str | None:
    return None if pattern.name in CHECKED_BEFORE | SHORT | OF_SETTINGS else fault_of(pattern, most_texts=most_texts)


@pytest.mark.parametrize(
    ("pattern", "searches", "what"),
    [
        (rb"/v1/(?:[^:]*/)?models/([^:]+):([A-Za-z]+)", False, "square"),
        (rb"completions[^/]*/+[^/; ]", True, "square"),
        (r"a+$", True, "square"),
        (r"(a+)+b", False, "doubles"),
        (rb'"(?: |\\\\[nrtf])*"', False, "memory"),
    ],
)
def test_faults_are_found(pattern: str | bytes, searches: bool, what: str) -> None:
    """By the same means: time that grows with the square, that doubles; an engine that keeps each repetition."""
    with traced():
        fault = fault_of(Pattern("a pattern", re.compile(pattern), searches), most_texts=1000)

    assert fault is not None and what in fault


@pytest.mark.parametrize("pattern", [rb'"(?:[^"\\\\]++|\\\\.)*+"', r"[a-z]+(?:\.[a-z]+){0,3}", r"[^:]*:.*"])
def test_linear_patterns_pass(pattern: str | bytes) -> None:
    with traced():
        assert fault_of(Pattern("a pattern", re.compile(pattern), False), most_texts=100) is None
