"""Lines of code by package: without blank lines, comments and docstrings.

python -m tests.arch.lines            the packages that are installed, and those of velox/ one by one
python -m tests.arch.lines FOLDER     those below another folder, such as a checkout of before
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

__all__ = ["code_lines", "main"]

PACKAGES = ("velox", "velox_migrate", "velox_sim")
_NO_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


def code_lines(source: str) -> int:
    """Return how many lines of a module have code on them."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        if first is not None and is_text and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def main(root: Path) -> int:
    """Print the sums."""
    sums: Counter[str] = Counter()
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            parts = path.relative_to(root).parts
            n = code_lines(path.read_text())
            sums[package] += n
            if len(parts) > 2 and package == "velox":
                sums[f"  {package}/{parts[1]}"] += n
    for name, n in sorted(sums.items(), key=lambda item: (item[0].startswith(" "), -item[1])):
        print(f"{n:7,} {name.strip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]))
