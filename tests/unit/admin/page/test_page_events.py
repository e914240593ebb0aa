"""What the page's playground makes of event streams, wherever their pieces are cut."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

_NODE: Final = shutil.which("node")
_SCRIPT: Final = Path(__file__).with_name("events.mjs")

pytestmark = pytest.mark.skipif(
    _NODE is None and os.environ.get("CI") != "true", reason="no Node: tests/install-tools.sh"
)


def read(streams: list[list[str]]) -> list[list[str]]:
    """Return the data of each stream's events."""
    assert _NODE is not None
    done = subprocess.run(
        [_NODE, str(_SCRIPT)], input=json.dumps(streams), capture_output=True, text=True, timeout=60, check=True
    )
    found: list[list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_events_are_the_same_wherever_a_stream_is_cut(end: str) -> None:
    """Lines end with LF, CRLF or CR; an event has several lines of data; comments and names of events are no data."""
    lines = [": comment", 'data: {"a": 1}', "", "event: x", "data:one", "data: two", "", "data:", "", "id: 7", "", ""]
    text = end.join([*lines, "data: [DONE]", "", "x"])
    cuts = [[text], list(text), *([text[:n], text[n:]] for n in range(1, len(text)))]

    assert read(cuts) == [['{"a": 1}', "one\ntwo", "", "[DONE]"]] * len(cuts)


def test_event_without_its_end_is_none() -> None:
    """A stream that broke off tells no half of an event."""
    assert read([["data: 1\n\ndata: 2\n"], ["data: 3"]]) == [["1"], []]
