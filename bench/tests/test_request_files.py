"""The files that one request passes: the page names all of them, in order, and they may only become fewer."""

import subprocess
import sys

import pytest

from bench.request_files import PAGE
from velox.build import BUILD

# A reader who follows one request opens so many files.
MOST = {"json-request": 34, "translated-stream": 80}


@pytest.mark.skipif(BUILD == "compiled", reason="compiled functions have no frames to note")
def test_page_names_files_of_a_request_in_order() -> None:
    """As they are entered now."""
    command = [sys.executable, "-m", "bench.request_files"]
    done = subprocess.run(command, cwd=PAGE.parents[1], capture_output=True, text=True, timeout=120, check=True)

    printed = [each.strip() for each in done.stdout.split("\n\n") if each.strip()]
    assert len(printed) == len(MOST) and all(each in PAGE.read_text() for each in printed)


@pytest.mark.parametrize("name", MOST)
def test_request_passes_no_more_files(name: str) -> None:
    text = PAGE.read_text().partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]

    assert 0 < len(text.splitlines()) <= MOST[name]
