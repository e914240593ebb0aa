"""Lines of the operations log: a value in one has a name, so that it is a field of the line, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
LEVELS: Final = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
# What is a sentence as a whole: advice, a problem of the configuration, a bug.
WHOLE: Final = "%s"


def log_calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield each call of a logger that gives values, with its place."""
    for path in sorted((REPOSITORY / "velox").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
                continue
            if ast.unparse(node.func.value).rpartition(".")[2] in ("logger", "_logger", "_log") and len(node.args) > 1:
                yield f"{path.relative_to(REPOSITORY)}:{node.lineno}", node


def test_values_of_log_lines_have_names() -> None:
    calls = list(log_calls())
    assert len(calls) > 50, "they are found"
    nameless = [
        place
        for place, call in calls
        if not (isinstance(call.args[0], ast.Constant) and call.args[0].value == WHOLE)
        and not (len(call.args) == 2 and isinstance(call.args[1], ast.Dict | ast.Name))
    ]
    assert nameless == []
    unnamed = [
        place
        for place, call in calls
        if isinstance(call.args[0], ast.Constant)
        and call.args[0].value != WHOLE
        and "%" in str(call.args[0].value).replace("%(", "")
    ]
    assert unnamed == []
