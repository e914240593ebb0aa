"""docs/simulator.md has every option of `velox sim`, with its default."""

from __future__ import annotations

import argparse
import re

from tests.markdown import ROOT
from velox_sim.options import add_arguments


def shown(default: object) -> str:
    """Return a default as the page writes it: switches are on or off, what is not given is left out."""
    match default:
        case bool():
            return "on" if default else "off"
        case None | "":
            return ""
        case float():
            return f"`{default:g}`"
        case _:
            return f"`{default}`"


def test_table_has_every_option_with_its_default() -> None:
    """In the order of `velox sim --help`."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)

    told = re.findall(r"^\| `(--[a-z0-9-]+)` \| (.*?) ?\|", (ROOT / "docs/simulator.md").read_text(), re.MULTILINE)

    assert told == [(action.option_strings[0], shown(action.default)) for action in parser._actions]
