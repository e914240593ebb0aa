"""How YAML is read: by yaml/nodes.py, which is imported when there is some. With PyYAML it takes a megabyte, and the
settings of many gateways are all variables.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from velox.settings.problems import Problem
from velox.settings.yaml.tree import ConfigFile, Tree

if TYPE_CHECKING:
    import yaml

__all__ = ["compose", "list_items", "read_file", "tree_of"]


def read_file(path: str, nested: Collection[str] = ()) -> ConfigFile:
    """Return the file's fields.

    nested: those that may have any structure; the others are a text, or a list of texts and of mappings of such values.
    Another one that has any other structure has no fields, which is not None.
    """
    from velox.settings.yaml import nodes as yaml_nodes

    return yaml_nodes.read_file(path, nested)


def compose(content: bytes, path: str) -> tuple[yaml.Node | None, list[Problem]]:
    """Return the document's root, None if it is empty, and why it is no YAML."""
    from velox.settings.yaml import nodes as yaml_nodes

    return yaml_nodes.compose(content, path)


def list_items(path: str, root: yaml.Node) -> tuple[Tree, ...] | None:
    """Return the items of a list of texts and plain mappings; None for anything else."""
    from velox.settings.yaml import nodes as yaml_nodes

    return yaml_nodes.list_items(path, root)


def tree_of(path: str, name: str, node: yaml.Node) -> tuple[Tree | None, list[Problem]]:
    """Return the value that stands under the field `name`, or why it can't be taken."""
    from velox.settings.yaml import nodes as yaml_nodes

    return yaml_nodes.tree_of(path, name, node)
