"""What the operations log has of a thing that fails again and again (observe/trouble_log.py)."""

from __future__ import annotations

import io
import json
from typing import Final

from velox.observe.oplog import operations_logger
from velox.observe.trouble_log import TroubleLog


class Bench:
    """A log with a clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.text: Final = io.StringIO()
        logger = operations_logger(self.text)
        self.log: Final = TroubleLog(lambda: logger, "it fails", "it works again", lambda: self.now_s)

    def told(self) -> list[str]:
        lines = [json.loads(line)["message"] for line in self.text.getvalue().splitlines()]
        self.text.seek(0)
        self.text.truncate()
        return lines


def test_thing_that_flaps_has_a_few_lines_a_minute() -> None:
    """One when it goes and one when it is back; what comes within a minute is counted with the next one."""
    bench = Bench()
    for _ in range(1000):
        bench.log.failed("no")
        bench.log.went_well()
        bench.now_s += 0.01
    assert bench.told() == ["it fails: no", "it works again"]
    bench.now_s = 60.0
    bench.log.failed("never")
    assert bench.told() == ["it fails: never (999 times more since the last line)"]


def test_trouble_that_lasts_is_told_each_minute() -> None:
    """Also where it went for a moment, unseen: who reads the last line knows how it is."""
    bench = Bench()
    bench.log.failed("no")
    bench.log.went_well()
    for _ in range(240):
        bench.now_s += 0.5
        bench.log.failed("no")
    assert bench.told() == [
        "it fails: no",
        "it works again",
        "it fails: no (119 times more since the last line)",
        "it fails: no (119 times more since the last line)",
    ]


def test_thing_that_is_well_has_no_line() -> None:
    bench = Bench()
    bench.log.went_well()
    assert bench.told() == []
