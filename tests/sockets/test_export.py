"""`velox usage --to`: lines in files and in objects of a store, whole or not at all."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.s3_store import REGION, S3Store, s3_store
from tests.unit.ledger.made import NOON_S, made_call
from velox.cli import main
from velox.ledger.sqlite import SqliteStore
from velox.ledger.store import Batch, Numbered
from velox.providers.aws import AwsChain
from velox.providers.renewal import FetchError
from velox.providers.s3 import S3Upload, s3_place
from velox.runtime.export import ExportError, TargetError, export
from velox.runtime.outside import NetOutside

PART = 5_000_000


@pytest.fixture
def store() -> Iterator[S3Store]:
    with s3_store() as running:
        yield running


def told(_line: str) -> None:
    """Take progress."""


def upload(store: S3Store, to: str, pieces: list[bytes], *, closes: bool = True) -> list[float]:
    """Write pieces; return the pauses between tries."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def run() -> None:
        outside = NetOutside(asyncio.get_running_loop())
        chain = AwsChain(store.env(), outside, clock=lambda: 0.0, region=REGION)
        sent = S3Upload(s3_place(to, store.env()), outside, chain, clock=_now, pause=pause, part_bytes=PART)
        try:
            for piece in pieces:
                await sent.write(piece)
            if closes:
                await sent.close()
        except FetchError:
            await sent.abandon()
            raise
        if not closes:
            await sent.abandon()

    asyncio.run(run())
    return pauses


def _now() -> float:
    return 1_795_435_200.0


# -- files ----------------------------------------------------------------------------------------


def stopped(n_lines: int) -> Iterator[str]:
    """Lines, and then the signal with which a container is stopped."""
    for _ in range(n_lines):
        yield "x" * 1000
    signal.raise_signal(signal.SIGTERM)
    yield "never written"


def test_command_that_is_stopped_leaves_nothing(tmp_path: Path, store: S3Store) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        export(stopped(1000), str(tmp_path / "out.jsonl"), {}, told)
    assert ended.value.code == 128 + signal.SIGTERM and not list(tmp_path.iterdir())
    with pytest.raises(SystemExit):
        export(stopped(20_000), "s3://bucket/out.jsonl", store.env(), told)
    assert any("partNumber=1" in asked for asked in store.asked), "a part was up"
    assert not store.objects and not store.uploads
    assert signal.getsignal(signal.SIGTERM) is before


def test_file_has_all_lines_or_what_it_had_before(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert export(iter(["a", "ü"]), str(path), {}, told) == 2
    assert path.read_text() == "a\nü\n" and path.stat().st_mode & 0o777 == 0o600

    def broken() -> Iterator[str]:
        yield "b"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        export(broken(), str(path), {}, told)
    assert path.read_text() == "a\nü\n"
    assert os.listdir(tmp_path) == ["out.jsonl"]


def test_same_lines_are_the_same_compressed_bytes(tmp_path: Path) -> None:
    lines = [json.dumps({"n": n}) for n in range(50_000)]
    for name in ("a.gz", "b.gz"):
        assert export(lines, str(tmp_path / name), {}, told) == 50_000
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
                export(("x" * 1000 for _ in range(1000)), f"{folder}/out.jsonl", {}, told)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, signal_before)
        assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("/dev/full", "expected a file"),
        ("/nowhere/at/all", "no file can be made there"),
        ("s3://", "expected s3://BUCKET/KEY"),
        ("s3://bucket", "a key of 1 to"),
        ("s3://bucket/folder/", "no folder"),
        ("s3://bucket/a/../b", "without empty parts"),
        ("s3://b/key", "expected s3://BUCKET/KEY"),
        (f"s3://bucket/{'k' * 1025}", "1024 bytes"),
    ],
)
def test_place_that_can_not_be_used_is_told_before_the_first_line(to: str, expected: str) -> None:
    with pytest.raises(TargetError, match=expected):
        export(iter(lambda: pytest.fail("a line was read"), None), to, {}, told)


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://user:pass@host", "http://host?x=1"])
def test_endpoint_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(TargetError, match="AWS_ENDPOINT_URL_S3") as caught:
        export([], "s3://bucket/key", {"AWS_ENDPOINT_URL": url}, told)
    assert "pass@" not in str(caught.value)


def test_long_run_tells_how_far_it_is(tmp_path: Path) -> None:
    clock = iter(range(0, 10_000, 3))
    progress: list[str] = []
    export(("x" * 1000 for _ in range(1000)), str(tmp_path / "a"), {}, progress.append, lambda: float(next(clock)))
    assert progress == ["263 lines", "526 lines", "789 lines"]


# -- stores ---------------------------------------------------------------------------------------


def test_aws_is_asked_by_the_bucket_s_own_name() -> None:
    env = {"AWS_REGION": "eu-west-1"}
    assert s3_place("s3://logs/a b/ü~+.gz", env).url == "https://logs.s3.eu-west-1.amazonaws.com/a%20b/%C3%BC~%2B.gz"
    assert s3_place("s3://lo.gs/k", env).url == "https://s3.eu-west-1.amazonaws.com/lo.gs/k"
    assert s3_place("s3://logs/k", {"AWS_DEFAULT_REGION": "cn-north-1"}).url.startswith(
        "https://logs.s3.cn-north-1.amazonaws.com.cn/"
    )


def test_small_object_is_one_request(store: S3Store) -> None:
    to = "s3://bucket/ledger/2026/a b+ü~.jsonl.gz"
    assert export(["one", "two"], to, store.env(), told) == 2
    ((path, content),) = store.objects.items()
    assert path == "/bucket/ledger/2026/a b+ü~.jsonl.gz" and gzip.decompress(content) == b"one\ntwo\n"
    assert store.types[path] == "application/gzip" and len(store.asked) == 1


def test_large_object_goes_up_in_equal_parts(store: S3Store) -> None:
    content = random.Random(1).randbytes(2 * PART + 70_000)
    upload(store, "s3://bucket/big", [content[at : at + 300_000] for at in range(0, len(content), 300_000)])
    assert store.objects == {"/bucket/big": content} and not store.uploads
    assert [asked.partition("partNumber=")[2][:1] for asked in store.asked] == ["", "1", "2", "3", ""]


def test_store_that_is_slow_or_fails_is_asked_again(store: S3Store) -> None:
    store.failures = [503, 500, 429]
    assert upload(store, "s3://bucket/k", [b"x"]) == [0.5, 1.0, 2.0]
    assert store.objects == {"/bucket/k": b"x"}


def test_part_that_can_not_be_sent_leaves_no_upload_behind(store: S3Store) -> None:
    store.objects["/bucket/k"] = b"before"
    store.failures = []
    upload(store, "s3://bucket/k", [bytes(PART)], closes=False)
    assert store.objects == {"/bucket/k": b"before"} and store.uploads == {}
    store.failures = [503] * 5
    with pytest.raises(FetchError, match=r"refused with 503 \(SlowDown: Please reduce"):
        upload(store, "s3://bucket/k", [b"x"])
    assert store.objects == {"/bucket/k": b"before"}


def test_parts_that_could_not_be_put_together_now_are_so_later(store: S3Store) -> None:
    """The answer begins before it is known how it ends: with 200, and an error in it."""
    store.failures = [0, 0, 200, 200]
    assert upload(store, "s3://bucket/k", [bytes(PART)]) == [0.5, 1.0]
    assert store.objects == {"/bucket/k": bytes(PART)} and not store.uploads
    store.failures = [0, 0, *[200] * 5]
    with pytest.raises(FetchError, match=r"was not put together: SlowDown: Please reduce"):
        upload(store, "s3://bucket/other", [bytes(PART)])
    assert list(store.objects) == ["/bucket/k"] and not store.uploads


@pytest.mark.parametrize(
    ("to", "env", "expected"),
    [
        ("s3://forbidden/k", {}, "403 (AccessDenied: Access Denied)"),
        ("s3://missing/k", {}, "404 (NoSuchBucket"),
        ("s3://bucket/k", {"AWS_SECRET_ACCESS_KEY": "another"}, "403 (SignatureDoesNotMatch"),
        ("s3://bucket/k", {"AWS_REGION": "us-west-2"}, "403 (SignatureDoesNotMatch"),
        ("s3://bucket/k", {"AWS_SECRET_ACCESS_KEY": ""}, "AWS_SECRET_ACCESS_KEY is not"),
        ("s3://bucket/k", {"AWS_ACCESS_KEY_ID": "", "HOME": "/nowhere"}, "no AWS credentials"),
    ],
)
def test_refusal_says_why(store: S3Store, to: str, env: dict[str, str], expected: str) -> None:
    with pytest.raises(ExportError) as caught:
        export(["x"], to, store.env(**env), told)
    assert expected in str(caught.value) and "another" not in str(caught.value)
    assert store.objects == {}


# -- the command ------------------------------------------------------------------------------------


def test_command_writes_calls_and_sums(store: S3Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = SqliteStore(tmp_path, days=4000)
    calls = [Numbered(n, made_call(n)) for n in range(3)]
    kept.add(Batch("0.ring", 3, calls, {}, NOON_S))
    kept.close()
    environ = {"VELOX_LEDGER": str(tmp_path), **store.env()}
    day = ["--since", "2026-11-23", "--until", "2026-11-24"]

    assert main(["usage", "--calls", *day, "--to", "s3://bucket/calls.jsonl.gz"], environ) == 0
    rows = [json.loads(line) for line in gzip.decompress(store.objects["/bucket/calls.jsonl.gz"]).splitlines()]
    assert len(rows) == 3 and all(row["started_us"] for row in rows)
    out = tmp_path / "sums.csv"
    assert main(["usage", *day, "--format", "csv", "--to", str(out)], environ) == 0
    assert out.read_text().startswith("day,calls")
    said = capsys.readouterr()
    assert said.out == "" and "3 lines are in s3://bucket/calls.jsonl.gz" in said.err
    assert main(["usage", "--to", "s3://bucket"], environ) == 2
    assert main(["usage", "--to", "s3://forbidden/k"], environ) == 1
    assert "--to s3://bucket: expected" in capsys.readouterr().err


def test_commands_of_the_page(store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both write the call of yesterday, and not that of today."""
    midnight_s = int(time.time()) // 86_400 * 86_400
    (tmp_path / "ledger").mkdir()
    kept = SqliteStore(tmp_path / "ledger", days=30)
    calls = [Numbered(n, made_call(n, started_s=midnight_s + at)) for n, at in enumerate((-1, 0))]
    kept.add(Batch("0.ring", 2, calls, {}, midnight_s))
    kept.close()
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs/ledger.md").read_text()
    commands = [line.split()[1:] for line in page.splitlines() if line.startswith("velox usage") and "--to" in line]
    assert len(commands) == 2
    for arguments in commands:
        assert main(arguments, {"VELOX_LEDGER": str(tmp_path / "ledger"), **store.env()}) == 0
    written = (tmp_path / "yesterday.jsonl.gz").read_bytes()
    assert store.objects == {"/my-bucket/velox/yesterday.jsonl.gz": written}
    (row,) = gzip.decompress(written).splitlines()
    assert json.loads(row)["started_us"] == (midnight_s - 1) * 1_000_000
