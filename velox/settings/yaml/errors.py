"""What is wrong with a text that is no YAML, in words that say what to do, and where.

Knows: what PyYAML complains of. Does not know: what the text is for. The library's own words are never shown: they may
quote the file, and with it a key.
"""

from __future__ import annotations

from typing import Final

import yaml

from velox.settings.problems import Problem

__all__ = ["yaml_problem"]

# How the library's complaint begins, and what is said instead; the first that fits counts.
_WORDS: Final = (
    ("found character '\\t'", "expected spaces before a field, not a tab"),
    ("found character", "expected the value in quotes: it begins with a character that means something else in YAML"),
    ("could not find expected ':'", "expected `: ` after the name of a field"),
    ("expected <block end>, but found '-'", "expected the `-` of a list below the one before"),
    ("expected <block end>", "expected the same indent as the field before, or `: ` after a name"),
    ("expected ',' or ']'", "expected `,` or `]`: a list is not closed"),
    ("expected ',' or '}'", "expected `,` or `}`: fields in braces are not closed"),
    ("found unexpected end of stream", "expected the closing quote of a text; the file ends before it"),
    ("found undefined alias", "expected the value in quotes: without them `*` refers to another part of the file"),
    ("expected alphabetic or numeric", "expected the value in quotes: it begins with `*` or `&`"),
    ("found duplicate anchor", "expected each anchor (`&name`) once"),
    ("expected escape sequence", "expected single quotes around this text: `\\` means something else in double quotes"),
    ("expected '<document start>'", "expected fields; a line that begins with `%` means something else in YAML"),
    ("found unknown escape", "expected single quotes around this text: `\\` means something else in double quotes"),
    ("expected the node content", "expected a value"),
    ("did not find expected", "expected another character"),
    ("sequence entries are not allowed", "expected the `-` of a list in a line of its own, below its field"),
    ("block sequence entries are not allowed", "expected the `-` of a list in a line of its own, below its field"),
    ("but found another document", "expected one document in the file; `---` begins another one"),
    ("expected a comment or a line break", "expected a line end after `|` or `>`"),
)
_SECOND_COLON: Final = "mapping values are not allowed"
_UNKNOWN: Final = "expected YAML"
_NO_TEXT: Final = "expected text in UTF-8 without control characters"


def yaml_problem(error: yaml.YAMLError, content: bytes, path: str) -> Problem:
    """Return what is wrong, with file, line and column. content: what was read."""
    if isinstance(error, yaml.reader.ReaderError):
        before = content[: _offset(error, content)]
        line, column = before.count(b"\n"), len(before) - before.rfind(b"\n") - 1
        return Problem("the file", "", _NO_TEXT, where=f"{path}:{line + 1}:{column + 1}")
    if not isinstance(error, yaml.MarkedYAMLError):
        return Problem("the file", "", _UNKNOWN, where=path)
    said = error.problem or ""
    expected = next((words for begin, words in _WORDS if said.startswith(begin)), _UNKNOWN)
    if said.startswith(_SECOND_COLON) and error.problem_mark is not None:
        expected = _colon(content, error.problem_mark)
    mark, begin = error.problem_mark or error.context_mark, error.context_mark
    if begin is not None and mark is not None and begin.line < mark.line:
        expected += f"; it begins in line {begin.line + 1}"
    where = path if mark is None else f"{path}:{mark.line + 1}:{mark.column + 1}"
    return Problem("the file", "", expected, where=where)


def _colon(content: bytes, mark: yaml.Mark) -> str:
    """Return what was expected where a `: ` can't be."""
    before = content.decode("utf-8", "replace").splitlines()[mark.line][: mark.column]
    if ": " in before:
        return "expected no second `: ` in this line; put the value in quotes"
    if before.startswith(" "):
        return "expected this line at the indent of the field before: it continues the value of that"
    return "expected `: ` after the name of the field in the line before"


def _offset(error: yaml.reader.ReaderError, content: bytes) -> int:
    """Return where the character is, in bytes: the library counts characters once it has decoded the text."""
    if error.encoding == "unicode":
        return len(content.decode("utf-8", "replace")[: error.position].encode())
    return int(error.position)
