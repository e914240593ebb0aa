"""The layouts of memories that an upgrade hands on: a changed one needs another number, or a version misreads it."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

import pytest

import velox.shm

# Of each module: the name of its layout's number, that number, and the digest of the constants that it was given for.
LAYOUTS = {
    "quota_table": ("QUOTA_LAYOUT", 1, "962014bebbe33338"),
    "budget_table": ("BUDGET_LAYOUT", 1, "e6e7c77e18f75b00"),
    "answer_ring": ("ANSWER_LAYOUT", 3, "1fc86d9f2e104961"),
    "object_table": ("OBJECT_LAYOUT", 1, "b0908458bab3c338"),
}


def constants_of(module: str) -> tuple[dict[str, str], str]:
    """Return the constants of a module as they are written, and the digest of those that are numbers of the memory.

    How long something waits (`_S`) is no part of it: two versions may differ in that.
    """
    tree = ast.parse(Path(velox.shm.__path__[0], f"{module}.py").read_text())
    found = {
        node.target.id: ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
    }
    found |= {
        ast.unparse(node.targets[0]): ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
    }
    texts = [
        f"{name}={value}" for name, value in found.items() if not name.endswith(("_LAYOUT", "_S")) and "'" not in value
    ]
    return found, hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


@pytest.mark.parametrize("module", LAYOUTS)
def test_layout_has_the_number_that_its_constants_were_given(module: str) -> None:
    """If this fails: raise the number if the memory of before would be read wrongly; then put the new digest here."""
    name, number, digest = LAYOUTS[module]
    found, now = constants_of(module)
    assert (found[name], now) == (str(number), digest)
