"""What an attack costs, on both sides: a process's CPU and memory as the kernel counts them.

Knows: /proc. Does not know: Velox, attacks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Cost", "Gauge"]

_KIB: Final = 1024


@dataclass(slots=True)
class Cost:
    """What one attack took. CPU in seconds, memory in bytes; gateway_s: of the worker that was attacked."""

    bytes_in: int = 0
    bytes_out: int = 0
    attacker_s: float = 0.0
    gateway_s: float = 0.0
    rss_before: int = 0
    rss_peak: int = 0
    rss_after: int = 0

    @property
    def bytes_ratio(self) -> float:
        """Bytes that the gateway sent for each that it got."""
        return self.bytes_out / max(1, self.bytes_in)

    @property
    def cpu_ratio(self) -> float:
        """Seconds that the gateway worked for each of the attacker's."""
        return self.gateway_s / max(1e-9, self.attacker_s)

    @property
    def rss_grown(self) -> int:
        """How far memory rose above where it began."""
        return max(0, self.rss_peak - self.rss_before)


class Gauge:
    """Measures one process, and the thread that attacks it, between begin() and end()."""

    def __init__(self, pid: int) -> None:
        self._proc: Final = Path(f"/proc/{pid}")
        self.cost = Cost()
        self._cpu_s = 0.0
        self._began_s = 0.0

    def begin(self) -> None:
        """Start to measure."""
        (self._proc / "clear_refs").write_text("5")  # forget the highest mark of memory
        self.cost = Cost(rss_before=self._rss())
        self._cpu_s = self.cpu_s()
        self._began_s = time.thread_time()

    def end(self) -> Cost:
        """Stop; the attack's own work ends here, memory afterwards may be looked at later by after()."""
        cost = self.cost
        cost.attacker_s = time.thread_time() - self._began_s
        cost.gateway_s = self.cpu_s() - self._cpu_s
        cost.rss_peak = self._field("VmHWM")
        return cost

    def after(self) -> None:
        """Note the memory when the attack is over and cleaned up."""
        self.cost.rss_after = self._rss()

    def cpu_s(self) -> float:
        """Return the seconds that the process has worked so far."""
        # Nanoseconds on a CPU: stat counts in hundredths of a second, which is more than most attacks take.
        return sum(int(task.read_text().split()[0]) for task in self._proc.glob("task/*/schedstat")) / 1e9

    def _rss(self) -> int:
        return self._field("VmRSS")

    def _field(self, name: str) -> int:
        for line in (self._proc / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * _KIB
        raise AssertionError(f"no {name} in /proc: is the worker alive?")
