"""Counts lines of code: those that hold more than a comment or a docstring."""

from __future__ import annotations

import ast
import io
import tokenize

__all__ = ["code_lines"]

_NO_CODE = frozenset(
    (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
)


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """Return the numbers of the lines with code. tree: what `text` is parsed to."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return lines
