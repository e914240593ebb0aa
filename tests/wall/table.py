"""The table of faults, from what pytest says of the tests that have the marker `fault`.

Knows: which rows and columns there are, which cells make no sense and why, how a cell follows from its tests. Does not
know: what a test does. It is a plugin of pytest: see __main__.py.

A test belongs to the column of its parameter `http1`, `ngh2` or `h2`; one without such a parameter counts in all.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import pytest

from tests.wall.ways import ALL_KINDS, KINDS

__all__ = ["FaultTable"]

_FAULTS: Final = {
    "F-1": "upstream refuses the connection",
    "F-2": "upstream swallows the connection",
    "F-3": "DNS fails at start",
    "F-4": "DNS changes, or fails, under way",
    "F-5": "DNS hangs",
    "F-6": "TLS: expired, wrong name, unknown CA, old version",
    "F-7": "TLS handshake stalls",
    "F-8": "upstream's certificate is renewed",
    "F-9": "upstream down at start",
    "F-10": "stale keep-alive",
    "F-11": "reset before any byte",
    "F-12": "reset after the head",
    "F-13": "cut in the middle of a reply",
    "F-14": "cut inside a character or an event",
    "F-15": "one byte at a time",
    "F-16": "error event inside a stream",
    "F-17": "malformed event, 1 MB event, no [DONE]",
    "F-18": "stall in the middle of a reply",
    "F-19": "stall with comments only",
    "F-20": "slow first token",
    "F-21": "no response",
    "F-22": "429 with Retry-After",
    "F-23": "429 for ever",
    "F-24": "500 once, 503 for ever",
    "F-25": "400: context length, content filter",
    "F-26": "401 and 403, our key in the body",
    "F-27": "upstream flaps",
    "F-28": "redirect",
    "F-29": "bad head",
    "F-30": "bytes after the reply",
    "F-31": "interim replies",
    "F-32": "packed reply of 1 GB",
    "F-33": "GOAWAY with streams in flight",
    "F-34": "GOAWAY below a stream's id",
    "F-35": "REFUSED_STREAM",
    "F-36": "MAX_CONCURRENT_STREAMS 1, then 0",
    "F-37": "no window for an upload",
    "F-38": "upload that is never read",
    "F-39": "flood of frames",
    "F-40": "one stream of a hundred times out",
    "F-41": "client leaves the queue",
    "F-42": "client leaves before the first byte",
    "F-43": "client leaves a stream",
    "F-44": "client half-closes",
    "F-45": "client does not read",
}
_SCENARIOS: Final = {
    "S01": "429 with Retry-After 2",
    "S02": "429 for ever",
    "S03": "500 once",
    "S04": "503 for ever",
    "S05": "reset before a byte",
    "S06": "no response",
    "S07": "slow first token",
    "S08": "cut in a stream",
    "S09": "stall in a stream",
    "S10": "malformed event",
    "S11": "no [DONE]",
    "S12": "400 context length",
    "S13": "400 content filter",
    "S14": "cut after the head, length short",
    "S15": "upstream flaps",
    "S16": "outage of all upstreams",
}
# What only HTTP/2 has: GOAWAY, refused streams, limits on streams, windows, control frames.
_HTTP2_ONLY: Final = ("F-33", "F-34", "F-35", "F-36", "F-37", "F-39")
# An HTTP/2 upstream says which requests it did not see (F-34), but the race of a close is tested there too.
_NOT_APPLICABLE: Final = frozenset((row, "http1") for row in _HTTP2_ONLY)
_NONE: Final = "n/a"


class FaultTable:
    """Gathers results by row and column.

    only: run the tests of this way to speak alone; http1-tls, which has few, takes those without a way, too.
    """

    def __init__(self, only: str = "") -> None:
        self._only: Final = only
        self._rows: Final[dict[str, list[tuple[str, str]]]] = {}
        self._results: Final[defaultdict[tuple[str, str], list[str]]] = defaultdict(list)
        self._safe: Final[set[str]] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Note to which cells each test belongs."""
        if self._only:
            others = {item for item in items if _way(item) != self._only}
            config.hook.pytest_deselected(items=list(others))
            items[:] = [item for item in items if item not in others]
        for item in items:
            ids = [row for marker in item.iter_markers("fault") for row in marker.args]
            unknown = [row for row in ids if row not in _FAULTS and row not in _SCENARIOS]
            if unknown:
                raise pytest.UsageError(f"{item.nodeid}: unknown faults {unknown}")
            self._safe.update(
                row for marker in item.iter_markers("fault") for row in marker.args if marker.kwargs.get("safe")
            )
            self._rows[item.nodeid] = [(row, kind) for row in ids for kind in _kinds(item)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a result; a failure while a fault is cleaned up is one, too."""
        if report.when == "call" or not report.passed:
            for cell in self._rows.get(report.nodeid, ()):
                self._results[cell].append(report.outcome)

    def dump(self) -> str:
        """Return the results for take() of another table."""
        results = [[row, kind, outcomes] for (row, kind), outcomes in self._results.items()]
        return json.dumps({"results": results, "safe": sorted(self._safe)})

    def take(self, dumped: str) -> None:
        """Add the results of another table."""
        found = json.loads(dumped)
        for row, kind, outcomes in found["results"]:
            self._results[row, kind] += outcomes
        self._safe.update(found["safe"])

    def lines(self) -> Iterator[str]:
        """Yield the tables as Markdown."""
        for title, rows in (("fault", _FAULTS), ("scenario", _SCENARIOS)):
            yield f"| | {title} | " + " | ".join(KINDS) + " |"
            yield "|---|---|" + "---|" * len(KINDS)
            for row, meaning in rows.items():
                cells = [self._cell(row, kind) for kind in KINDS]
                yield f"| {row} | {meaning} | " + " | ".join(cells) + " |"
            yield ""

    def _cell(self, row: str, kind: str) -> str:
        outcomes = self._results.get((row, kind), [])
        wanted = "safe" if row in self._safe else "pass"
        if not outcomes:
            return _NONE if (row, kind) in _NOT_APPLICABLE else "no test"
        n_bad = outcomes.count("failed")
        if n_bad:
            return f"**fail** ({n_bad} of {len(outcomes)})"
        return wanted if "passed" in outcomes else "skipped"


def _ways(item: pytest.Item) -> Sequence[str]:
    """Return the ways to speak that a test names."""
    spec = getattr(item, "callspec", None)
    return [] if spec is None else [value for value in spec.params.values() if value in ALL_KINDS]


def _way(item: pytest.Item) -> str:
    """Return with which way to speak a test is run."""
    return next(iter(_ways(item)), ALL_KINDS[-1])


def _kinds(item: pytest.Item) -> Sequence[str]:
    """Return the columns of a test."""
    return [way.removesuffix("-tls") for way in _ways(item)] or KINDS
