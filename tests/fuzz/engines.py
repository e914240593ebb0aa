"""The two ways to fuzz a target for some seconds: atheris, where it is installed, and hypothesis.

Knows: how each is run and what it tells of a run. Does not know: targets' meaning, logs, tables.

Atheris is libFuzzer for Python: it keeps what reaches new code, and goes on from there. It has wheels for x86-64 only.
Hypothesis stands in for it elsewhere: it mutates the corpus without knowing which code an input reaches, so it finds
less and adds nothing to the corpus.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.targets import Target

__all__ = ["Run", "fuzz", "has_atheris", "read_output"]

ROOT: Final = Path(__file__).parents[2]
# An input that takes longer is a hang. The slowest ones take 0.1 s, on a machine that does something else too.
HANG_S: Final = 20
MEMORY_MIB: Final = 1024
_STATUS: Final = re.compile(r"^#\d+\s.*cov: (\d+) ft: (\d+) corp: (\d+)/")
_EXECUTIONS: Final = re.compile(r"^stat::number_of_executed_units: (\d+)")
_MEMORY: Final = re.compile(r"^stat::peak_rss_mb: +(\d+)")


@dataclass
class Run:
    """What one run brought. edges: of velox/, as atheris counts them. found: what failed, as tracebacks."""

    target: str
    engine: str
    seconds: float = 0.0
    executions: int = 0
    edges: int = 0
    corpus: int = 0
    peak_mib: int = 0
    crashes: int = 0
    hangs: int = 0
    found: list[str] = field(default_factory=list)


def has_atheris() -> bool:
    """True when atheris can be used here."""
    return importlib.util.find_spec("atheris") is not None


def fuzz(target: Target, seconds: float, work: Path, *, engine: str) -> Run:
    """Fuzz a target. work: a folder for what is found; inputs that fail are left in work/crashes."""
    return _with_atheris(target, seconds, work) if engine == "atheris" else _with_hypothesis(target, seconds, work)


def _with_atheris(target: Target, seconds: float, work: Path) -> Run:
    grown, crashes = work / "corpus" / target.name, work / "crashes" / target.name
    for folder in (grown, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".dict") as words:
        words.writelines(f'"{_escaped(word)}"\n' for word in target.words)
        words.flush()
        options = [
            f"-max_total_time={max(1, round(seconds))}",
            f"-timeout={HANG_S}",
            f"-rss_limit_mb={MEMORY_MIB}",
            f"-artifact_prefix={crashes}/",
            f"-dict={words.name}",
            f"-max_len={target.max_bytes}",
            "-print_final_stats=1",
        ]
        child = [sys.executable, "-m", "tests.fuzz.child", target.name, str(grown), str(target.corpus), *options]
        # libFuzzer's limit is of ru_maxrss, which a process keeps from the fork of a large parent (getrusage(2)), as a
        # test runner is. A child of the small shell begins with its own.
        command = ["/bin/sh", "-c", '"$@"; exit $?', "sh", *child]
        began_s = time.monotonic()
        # It ends by itself; a parent that waits longer than this would wait for ever.
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds + 20 * HANG_S,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
    run = Run(target.name, "atheris", seconds=time.monotonic() - began_s)
    read_output(run, done.stdout.decode("utf-8", "replace"))
    if done.returncode and not run.crashes and not run.hangs:
        run.crashes = 1
        run.found.append(f"libFuzzer left with {done.returncode}:\n" + done.stdout.decode("utf-8", "replace")[-2000:])
    return run


def read_output(run: Run, text: str) -> None:
    """Take the figures out of what libFuzzer prints."""
    for line in text.splitlines():
        if status := _STATUS.match(line):
            run.edges, run.corpus = int(status[1]), int(status[3])
        elif executions := _EXECUTIONS.match(line):
            run.executions = int(executions[1])
        elif memory := _MEMORY.match(line):
            run.peak_mib = int(memory[1])
    if "ERROR: libFuzzer: timeout" in text:
        run.hangs = 1
        run.found.append(text[text.index("ERROR: libFuzzer: timeout") :][:2000])
    elif "=== Uncaught Python exception: ===" in text:
        run.crashes = 1
        run.found.append(text[text.index("=== Uncaught Python exception: ===") :][:4000])
    elif "ERROR: libFuzzer" in text:
        run.crashes = 1
        run.found.append(text[text.index("ERROR: libFuzzer") :][:2000])


def _escaped(word: str) -> str:
    """Write a word as libFuzzer's dictionaries want it."""
    return "".join(f"\\x{byte:02x}" for byte in word.encode("latin-1"))


def _with_hypothesis(target: Target, seconds: float, work: Path) -> Run:
    check = target.load()
    seeds = [path.read_bytes() for path in sorted(target.corpus.iterdir())] or [b""]
    run = Run(target.name, "hypothesis", corpus=len(seeds))
    began_s = time.monotonic()
    while time.monotonic() - began_s < seconds and not run.crashes:
        _some_examples(target, check, seeds, run, work, began_s + seconds)
    run.seconds = time.monotonic() - began_s
    return run


def _some_examples(
    target: Target, check: Callable[[bytes], None], seeds: list[bytes], run: Run, work: Path, until_s: float
) -> None:
    """Try some hundreds of inputs; after a failure, smaller and smaller ones that fail too."""
    last: list[bytes] = []

    @seed(time.monotonic_ns())
    @settings(max_examples=500, database=None, deadline=None, suppress_health_check=list(HealthCheck),
              phases=(Phase.generate, Phase.shrink))  # fmt: skip
    @given(_mutated(seeds, [word.encode("latin-1") for word in target.words] or [b"\0"]))
    def attempt(data: bytes) -> None:
        if time.monotonic() > until_s and not last:
            return
        run.executions += 1
        try:
            check(data[: target.max_bytes])
        except BaseException:
            last[:] = [data[: target.max_bytes]]
            raise

    try:
        attempt()
    except Exception:
        folder = work / "crashes" / target.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"crash-{time.time_ns():x}").write_bytes(last[0])
        run.crashes += 1
        run.found.append(traceback.format_exc()[-4000:])


def _mutated(seeds: list[bytes], words: list[bytes]) -> st.SearchStrategy[bytes]:
    """Draw an input of the corpus, with pieces of others, words and bytes put in or taken out."""
    piece = st.sampled_from(words) | st.binary(max_size=4) | st.sampled_from(seeds)
    edit = st.tuples(st.integers(0, 400), st.integers(0, 20), piece)

    def applied(drawn: tuple[bytes, list[tuple[int, int, bytes]]]) -> bytes:
        data, edits = drawn
        for at, n_removed, put in edits:
            at %= len(data) + 1
            data = data[:at] + put + data[at + n_removed :]
        return data

    return st.tuples(st.sampled_from(seeds), st.lists(edit, max_size=6)).map(applied)
