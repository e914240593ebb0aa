"""Each dialect's package has the same file names, so that who knows one finds everything in another."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

DIALECTS: Final = Path(__file__).parents[2] / "velox/dialects"
OF_ALL: Final = {"wire", "words"}
OF_MODELS: Final = {"write_request", "read_reply", "read_stream"}
OF_CLIENTS: Final = {"read_request", "write_reply", "write_stream"}
# What only one dialect has, and the pages that an answer cites.
OTHERS: Final = {
    "chat": {"sources", "reasoning"},
    "converse": {"frames", "media"},
    "generate": {"sources", "schema", "partial_args", "json_items"},
    "messages": {"sources", "turns", "client_tools"},
    "responses": {
        *("sources", "tools", "socket", "kept", "conversations", "background", "compaction", "compact_client"),
    },
}


@pytest.mark.parametrize("dialect", sorted(OTHERS))
def test_dialect_has_the_files_of_all_dialects(dialect: str) -> None:
    """No client speaks Converse. A file more needs a name here that says what only this dialect has."""
    usual = OF_ALL | OF_MODELS | (OF_CLIENTS if dialect != "converse" else set())

    found = {path.stem for path in (DIALECTS / dialect).glob("*.py")} - {"__init__"}

    assert found == usual | OTHERS[dialect]


def test_every_dialect_has_a_row() -> None:
    """A package with a `wire` is a dialect."""
    assert {path.parent.name for path in DIALECTS.glob("*/wire.py")} == OTHERS.keys()
