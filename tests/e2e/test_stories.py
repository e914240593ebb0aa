"""Requests through a real gateway as pages that a reviewer reads: all bytes, log lines, metrics and records of each.

With SNAPSHOTS=write in the environment, the pages are written anew: their difference in git is what a change does to
what clients and upstreams see. All stories run in one gateway, in their order; the last one stops it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.stories.stage import records, staged
from tests.e2e.stories.stories import BEFORE, STORIES

FOLDER: Final = Path(__file__).parent / "stories" / "pages"


@pytest.fixture(scope="module")
def pages() -> Mapping[str, str]:
    """Play all stories."""
    with staged() as (stage, page):
        for name, story in STORIES.items():
            page.play(name, story, BEFORE.get(name))
        return page.pages(records(stage))


@pytest.mark.parametrize("name", STORIES)
def test_story_is_as_its_page_shows(pages: Mapping[str, str], name: str) -> None:
    """What is sent, what is got, what is logged, counted and recorded."""
    path = FOLDER / f"{name}.txt"
    if os.environ.get("SNAPSHOTS") == "write":
        path.write_text(pages[name])

    assert path.is_file() and pages[name] == path.read_text(), f"SNAPSHOTS=write pytest {Path(__file__).name} writes it"


def test_no_page_is_left_over() -> None:
    """A story that is gone takes its page with it."""
    assert {path.stem for path in FOLDER.iterdir()} == set(STORIES)
