"""What is measured: one way of doing something, what it answers, and how its time is taken.

Knows: that all ways of one case must answer the same questions alike. Does not know: what any of them does.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import TypeAlias

__all__ = ["Answers", "Candidate", "Case", "Subject", "Timed", "calls", "wrong"]

# Does the work so many times; returns the seconds that it took.
Timed: TypeAlias = Callable[[int], float]
# Question -> answer, of whichever type: they are only compared.
Answers: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way. begin: sets up what is not measured. needs: distributions that it is made of, beside Velox's own.

    unable: the questions that it answers differently from Velox, which is said on the page; it is checked that it does.
    """

    name: str
    begin: Callable[[], Timed]
    answer: Callable[[], Answers]
    needs: tuple[str, ...] = ()
    unable: frozenset[str] = frozenset()

    @property
    def missing(self) -> tuple[str, ...]:
        """Return what of `needs` is not installed."""
        return tuple(name for name in self.needs if not _is_installed(name))


@dataclass(frozen=True, slots=True)
class Case:
    """What several ways are compared at; Velox's is the first. n_inner: what one unit of the Timed consists of."""

    name: str
    candidates: tuple[Candidate, ...]
    n_inner: int = 1


@dataclass(frozen=True, slots=True)
class Subject:
    """A part of Velox. name: of its table on the page. unit: what the time is for."""

    name: str
    unit: str
    cases: tuple[Case, ...]


def calls(function: Callable[[], object], clock: Callable[[], float] = time.thread_time) -> Timed:
    """Return what times one call after the other. CPU time, as others work on the machine too."""

    def timed(n: int) -> float:
        laps = repeat(None, n)
        began_s = clock()
        for _ in laps:
            function()
        return clock() - began_s

    return timed


def wrong(case: Case, candidate: Candidate) -> list[str]:
    """Return what is wrong with a candidate's answers; a time for other answers would mean nothing."""
    expected, found = case.candidates[0].answer(), candidate.answer()
    problems = [f"no such question: {question}" for question in candidate.unable - set(expected)]
    for question, answer in expected.items():
        if question not in found:
            problems.append(f"{question}: no answer")
        elif question in candidate.unable:
            if found[question] == answer:
                problems.append(f"{question}: answered as Velox does, though it is said not to be")
        elif found[question] != answer:
            problems.append(f"{question}: {found[question]!r}, not {answer!r}")
    return problems


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
