"""The file of a user's own prices (VELOX_PRICES), as a problem or as overrides.

Knows: YAML, and where the list stands. Does not know: what a field of an entry means (velox/prices/overrides.py).
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from velox.prices.overrides import Fields, PriceError, read_overrides
from velox.settings.problems import Problem, quoted
from velox.settings.yaml.file import compose, tree_of
from velox.settings.yaml.tree import Tree, read_regular_file

__all__ = ["add_prices"]

_NAME: Final = "VELOX_PRICES"
_MOST_BYTES: Final = 2**20
_EXAMPLE: Final = "expected a list `prices:` of entries such as `- {model: gpt-5, input: 1.25, output: 10}`"


def add_prices(values: dict[str, Any]) -> list[Problem]:
    """Add the entries of the file to the settings; return what is wrong with them."""
    path = values.get("prices")
    if path is None:
        return []
    try:
        content = read_regular_file(path, _MOST_BYTES)
    except OSError as exc:
        return [Problem(_NAME, quoted(path), f"expected a file that can be read ({exc.strerror})")]
    if len(content) > _MOST_BYTES:
        return [Problem(_NAME, quoted(path), f"expected at most {_MOST_BYTES} bytes")]
    root, problems = compose(content, path)
    if problems:
        return problems
    tree = None
    if root is not None:
        tree, problems = tree_of(path, "prices", root)
        if problems:
            return problems
    fields = {} if tree is None else {entry.key: entry.value for entry in tree.fields or ()}
    if fields.keys() != {"prices"} or not fields["prices"].items:
        return [Problem(_NAME, quoted(path), _EXAMPLE)]
    try:
        values["own_prices"] = read_overrides(_plain(fields["prices"]), f"{path}: prices")
    except PriceError as exc:
        field, _, expected = str(exc).partition(": ")
        return [Problem(_NAME, "", f"{field}: {expected}", where=_where(fields["prices"], field) or path)]
    values["prices_version"] = hashlib.sha256(content).hexdigest()[:12]
    return []


def _plain(tree: Tree) -> Fields:
    if tree.items is not None:
        return [_plain(item) for item in tree.items]
    if tree.fields is not None:
        return {entry.key: _plain(entry.value) for entry in tree.fields}
    return tree.text or ""


def _where(prices: Tree, field: str) -> str:
    """Return the line of the entry that a path such as `prices[3].input` names."""
    index = field.partition("[")[2].partition("]")[0]
    items = prices.items or ()
    return items[int(index)].where if index.isdigit() and int(index) < len(items) else ""
