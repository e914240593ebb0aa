"""The CPU sampler: what it sees, what it charges, and that it leaves nothing behind."""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections.abc import Callable

import pytest

from velox.profiling.sampler import MAX_DEPTH, MAX_STACKS, Sampler, source_roots
from velox.profiling.samples import Cost, Frame, Samples, merge, pack, short_file, unpack

BLOB = bytes(24 * 1024 * 1024)


def burn(cpu_s: float) -> int:
    """Use CPU time in Python code."""
    end_ns, turns = time.process_time_ns() + int(cpu_s * 1e9), 0
    while time.process_time_ns() < end_ns:
        turns += sum(range(50))
    return turns


def one_long_call_into_c() -> None:
    hashlib.sha256(BLOB).digest()


def recurse(depth: int) -> int:
    return burn(0.1) if depth == 0 else recurse(depth - 1)


def sampled(work: Callable[[], object], *, hz: int = 100, max_stacks: int = MAX_STACKS) -> tuple[Samples, int]:
    sampler = Sampler(max_stacks)
    sampler.start(hz)
    before_ns = time.process_time_ns()
    work()
    spent_ns = time.process_time_ns() - before_ns
    return sampler.stop(), spent_ns


def time_in(samples: Samples, function: str) -> int:
    return sum(cost.amount for stack, cost in samples.items() if any(f.function == function for f in stack))


@pytest.mark.slow
def test_sampler_busy_function_is_charged_its_cpu_time() -> None:
    """What runs is what is charged, with all but the last period of its CPU time."""
    samples, spent_ns = sampled(lambda: burn(0.4))

    assert 0.85 * spent_ns <= time_in(samples, "burn") <= 1.02 * spent_ns


@pytest.mark.slow
def test_sampler_long_call_into_c_is_charged_in_full() -> None:
    """Ticks that are lost during a C call are charged when it returns, to the line that made it."""

    def work() -> None:
        for _ in range(8):
            one_long_call_into_c()

    samples, spent_ns = sampled(work, hz=250)
    n_samples = sum(cost.n for cost in samples.values())

    assert time_in(samples, "one_long_call_into_c") >= 0.8 * spent_ns
    assert n_samples * 4_000_000 < 0.7 * spent_ns, "no tick was lost: the call is too short to test with"


def test_sampler_frames_name_function_file_and_lines() -> None:
    """A frame tells the function, its file from its package's root on, and both lines."""
    samples, _ = sampled(lambda: burn(0.1))
    stack = next(stack for stack in samples if stack[-1].function == "burn")

    assert stack[-1].file.endswith("test_profile_sampler.py")
    assert not stack[-1].file.startswith("/")
    assert stack[-1].def_line == burn.__code__.co_firstlineno
    assert stack[-1].def_line < stack[-1].line <= stack[-1].def_line + 5
    assert [f.function for f in stack].index("sampled") < len(stack) - 1, "callers come first"


def test_sampler_deep_recursion_keeps_the_innermost_frames() -> None:
    """A stack over the limit keeps what ran, and says that callers are missing."""
    samples, _ = sampled(lambda: recurse(MAX_DEPTH + 50))
    stack = next(stack for stack in samples if stack[-1].function == "burn")

    assert len(stack) == MAX_DEPTH + 1
    assert stack[0].function == "(callers cut off)"


@pytest.mark.slow
def test_sampler_too_many_stacks_are_counted_together() -> None:
    """Memory is bounded: stacks beyond the limit share one entry, and no time is lost."""
    samples, spent_ns = sampled(lambda: (burn(0.1), recurse(3), recurse(5)), max_stacks=1)

    assert len(samples) == 2
    assert (Frame("(stacks beyond the limit)", "", 0, 0),) in samples
    assert sum(cost.amount for cost in samples.values()) >= 0.85 * spent_ns


def test_sampler_stopped_takes_no_more_samples() -> None:
    """When it is off, no timer runs and a late tick is ignored instead of ending the process."""
    sampled(lambda: burn(0.05))

    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGPROF) is signal.SIG_IGN
    signal.raise_signal(signal.SIGPROF)


def test_sampler_second_start_begins_anew() -> None:
    """A sampler can be used again, and keeps nothing of the time before."""
    sampler = Sampler()
    sampler.start(100)
    burn(0.1)
    first = sampler.stop()

    sampler.start(100)
    second = sampler.stop()

    assert first
    assert sum(cost.amount for cost in second.values()) < 20_000_000


def test_sampler_wrong_use_is_refused() -> None:
    """Starting twice, stopping twice, and starting off the main thread are errors."""
    sampler = Sampler()
    with pytest.raises(RuntimeError):
        sampler.stop()
    sampler.start(100)
    with pytest.raises(RuntimeError):
        sampler.start(100)
    sampler.stop()
    refused: list[Exception] = []

    def start_here() -> None:
        try:
            Sampler().start(100)
        except ValueError as exc:
            refused.append(exc)

    thread = threading.Thread(target=start_here)
    thread.start()
    thread.join()

    assert len(refused) == 1


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/usr/lib/python3.11/asyncio/events.py", "asyncio/events.py"),
        ("/usr/lib/python3.11/site-packages/h2/stream.py", "h2/stream.py"),
        ("/app/velox/cli.py", "velox/cli.py"),
        ("/elsewhere/secret/tool.py", "tool.py"),
        ("<frozen runpy>", "<frozen runpy>"),
    ],
)
def test_short_file_is_below_its_longest_root(path: str, short: str) -> None:
    """A profile shows paths as they are imported, and nothing of where the machine keeps them."""
    roots = ("", "/usr/lib/python3.11", "/usr/lib/python3.11/site-packages", "/app/")

    assert short_file(path, roots) == short


def test_frame_dotted_names_the_module() -> None:
    """Functions of one name in two modules stay apart."""
    assert Frame("Pool.lease", "velox/net/upstream/pool.py", 1, 2).dotted == "velox.net.upstream.pool.Pool.lease"
    assert Frame("run", "uvloop/__init__.py", 1, 2).dotted == "uvloop.run"
    assert Frame("_run", "<frozen runpy>", 1, 2).dotted == "_run"


def test_pack_unpack_gives_the_same_samples() -> None:
    """What a worker packs is what the admin process unpacks."""
    a, b = Frame("a", "x.py", 1, 2), Frame("b;é", "y.py", 3, 4)
    samples = merge([((a,), Cost(1, 10)), ((a, b), Cost(2, 20)), ((a,), Cost(3, 5))])

    assert samples == {(a,): Cost(4, 15), (a, b): Cost(2, 20)}
    assert unpack(pack(samples)) == samples


@pytest.mark.parametrize(
    "packed",
    [b"", b"[]", b"null", b"{}", b'{"frames":[],"stacks":[[[0],1,1]]}', b'{"frames":[["a"]],"stacks":[]}'],
)
def test_unpack_anything_else_is_refused(packed: bytes) -> None:
    """A broken answer is an error of one kind."""
    with pytest.raises(ValueError, match="not a packed profile"):
        unpack(packed)


def test_velox_is_named_by_its_package_however_it_is_installed() -> None:
    """Frames of Velox are velox/..., also where an import hook finds it and sys.path does not name its folder."""
    file = Sampler.start.__code__.co_filename

    assert short_file(file, source_roots()[-1:]) == "velox/profiling/sampler.py"
