"""A bound on the processor's time of a piece of code, which a busy machine does not break.

The same work takes two and three times as long where others want the cores and their caches. What has become too slow
is too slow each time, so the shortest of a few runs tells.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["assert_cpu_below"]

_RUNS: Final = 8


def assert_cpu_below(bound_s: float, run: Callable[[], object]) -> None:
    """Run it once, and again while it takes as long as the bound or longer; fail if each run did.

    bound_s: seconds of this thread's own time.
    """
    took_s = []
    for _ in range(_RUNS):
        began = time.thread_time()
        run()
        took_s.append(time.thread_time() - began)
        if took_s[-1] < bound_s:
            return
    raise AssertionError(f"each of {_RUNS} runs took {min(took_s):.3f} s or longer, and the bound is {bound_s:.3f} s")
