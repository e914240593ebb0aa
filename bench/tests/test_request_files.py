"""The files that one request passes: the page names all of them, in order, and they may only become fewer."""

import subprocess
import sys

import pytest

from bench.request_files import PAGE, differs, in_page, typical
from velox.build import BUILD

# A reader who follows one request opens so many files.
MOST = {"json-request": 35, "translated-stream": 77}


@pytest.mark.skipif(BUILD == "compiled", reason="compiled functions have no frames to note")
def test_page_names_files_of_a_request_in_order() -> None:
    """As they are entered now."""
    command = [sys.executable, "-m", "bench.request_files", "--check"]
    done = subprocess.run(command, cwd=PAGE.parents[1], capture_output=True, text=True, timeout=120, check=False)

    assert done.stdout.strip() == "" and done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", MOST)
def test_request_passes_no_more_files(name: str) -> None:
    assert 0 < len(in_page(name)) <= MOST[name]


ROUNDS = [["a", "b", "c"], ["a", "c", "b", "now and then"], ["a", "b", "c"]]


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        (["a", "b", "c"], []),
        (["a", "c", "b"], []),
        (["a", "b", "c", "now and then"], []),
        (["a", "b"], ["c is entered"]),
        (["a", "b", "c", "d"], ["d is not entered"]),
        (["b", "a", "c"], ["a comes before b"]),
    ],
)
def test_list_that_no_round_has_entered_is_found(files: list[str], wrong: list[str]) -> None:
    """An order that some round had is right, and so is a file that only some rounds have entered."""
    assert differs(files, ROUNDS) == wrong


def test_file_that_few_rounds_enter_is_not_listed() -> None:
    assert typical(ROUNDS) == ["a", "b", "c"]
