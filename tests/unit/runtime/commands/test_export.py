"""`velox usage --to`: lines in a file, whole or not at all."""

from __future__ import annotations

import gzip
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.ledger.made import NOON_S, made_call
from velox.cli import main
from velox.ledger.record import row_of
from velox.ledger.sqlite import SqliteStore
from velox.ledger.store import Batch
from velox.runtime.commands.export import ExportError, TargetError, export


def told(_line: str) -> None:
    """Take progress."""


def stopped(n_lines: int) -> Iterator[str]:
    """Lines, and then the signal with which a container is stopped."""
    for _ in range(n_lines):
        yield "x" * 1000
    signal.raise_signal(signal.SIGTERM)
    yield "never written"


def test_command_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        export(stopped(1000), str(tmp_path / "out.jsonl"), told)
    assert ended.value.code == 128 + signal.SIGTERM and not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) is before


def test_file_has_all_lines_or_what_it_had_before(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert export(iter(["a", "ü"]), str(path), told) == 2
    assert path.read_text() == "a\nü\n" and path.stat().st_mode & 0o777 == 0o600

    def broken() -> Iterator[str]:
        yield "b"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        export(broken(), str(path), told)
    assert path.read_text() == "a\nü\n"
    assert os.listdir(tmp_path) == ["out.jsonl"]


def test_same_lines_are_the_same_compressed_bytes(tmp_path: Path) -> None:
    lines = [json.dumps({"n": n}) for n in range(50_000)]
    for name in ("a.gz", "b.gz"):
        assert export(lines, str(tmp_path / name), told) == 50_000
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()).decode().splitlines() == lines


def test_full_disk_is_an_error_and_leaves_nothing() -> None:
    """/dev/full is no file; a folder of its own with a bound on a file's size is a disk that is full."""
    import resource
    import signal
    import tempfile

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal_before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with tempfile.TemporaryDirectory() as folder:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
            with pytest.raises(ExportError, match="can't be written"):
                export(("x" * 1000 for _ in range(1000)), f"{folder}/out.jsonl", told)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, signal_before)
        assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("/dev/full", "expected a file"),
        ("/nowhere/at/all", "no file can be made there"),
    ],
)
def test_place_that_can_not_be_used_is_told_before_the_first_line(to: str, expected: str) -> None:
    with pytest.raises(TargetError, match=expected):
        export(iter(lambda: pytest.fail("a line was read"), None), to, told)


def test_long_run_tells_how_far_it_is(tmp_path: Path) -> None:
    clock = iter(range(0, 10_000, 3))
    progress: list[str] = []
    export(("x" * 1000 for _ in range(1000)), str(tmp_path / "a"), progress.append, lambda: float(next(clock)))
    assert progress == ["263 lines", "526 lines", "789 lines"]


def test_command_writes_calls_and_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = SqliteStore(tmp_path, days=4000)
    calls = [row_of(n, made_call(n)) for n in range(3)]
    kept.add(Batch("0.ring", 3, calls, {}, NOON_S))
    kept.close()
    environ = {"VELOX_LEDGER": str(tmp_path)}
    packed = tmp_path / "calls.jsonl.gz"
    day = ["--since", "2026-11-23", "--until", "2026-11-24"]

    assert main(["usage", "--calls", *day, "--to", str(packed)], environ) == 0
    rows = [json.loads(line) for line in gzip.decompress(packed.read_bytes()).splitlines()]
    assert len(rows) == 3 and all(row["started_us"] for row in rows)
    out = tmp_path / "sums.csv"
    assert main(["usage", *day, "--format", "csv", "--to", str(out)], environ) == 0
    assert out.read_text().startswith("day,calls")
    said = capsys.readouterr()
    assert said.out == "" and f"3 lines are in {packed}" in said.err
    assert main(["usage", "--to", str(tmp_path)], environ) == 2
    assert f"--to {tmp_path}: expected a file" in capsys.readouterr().err


def test_command_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes the call of yesterday, and not that of today."""
    midnight_s = int(time.time()) // 86_400 * 86_400
    (tmp_path / "ledger").mkdir()
    kept = SqliteStore(tmp_path / "ledger", days=30)
    calls = [row_of(n, made_call(n, started_s=midnight_s + at)) for n, at in enumerate((-1, 0))]
    kept.add(Batch("0.ring", 2, calls, {}, midnight_s))
    kept.close()
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[4] / "docs/ledger.md").read_text()
    commands = [line.split()[1:] for line in page.splitlines() if line.startswith("velox usage") and "--to" in line]
    (arguments,) = commands
    assert main(arguments, {"VELOX_LEDGER": str(tmp_path / "ledger")}) == 0
    (row,) = gzip.decompress((tmp_path / "yesterday.jsonl.gz").read_bytes()).splitlines()
    assert json.loads(row)["started_us"] == (midnight_s - 1) * 1_000_000
