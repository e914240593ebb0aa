"""Which files hold the keys of upstreams: those that a running gateway looks at.

Knows: where references stand, in settings and in a file that can't be used. Does not know: what is in such a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from velox.settings.file import read_file
from velox.settings.model import Settings
from velox.settings.routing import NESTED
from velox.settings.tree import Tree

__all__ = ["key_files", "key_files_of_bad"]

_FILE: Final = "file:"


def key_files(settings: Settings) -> frozenset[str]:
    """Return the paths that the upstreams' keys refer to."""
    return _paths(key.ref for upstream in settings.upstreams for key in upstream.keys)


def key_files_of_bad(path: str) -> frozenset[str]:
    """Return the paths that the keys in a file refer to, as far as it can be read at all.

    A file may be bad only because such a key is not there yet; when it comes, the file is good.
    """
    fields, _ = read_file(path, NESTED)
    trees = [field.tree for field in fields if field.key == "upstreams" and field.tree is not None]
    return _paths(ref for tree in trees for upstream in tree.items or () for ref in _refs(upstream))


def _refs(upstream: Tree) -> Iterator[str]:
    for entry in upstream.fields or ():
        if entry.key == "keys":
            for item in entry.value.items or (entry.value,):
                yield from (part.strip() for part in (item.text or "").split(","))


def _paths(refs: Iterable[str]) -> frozenset[str]:
    found = (ref.removeprefix(_FILE) for ref in refs if ref.startswith(_FILE))
    return frozenset(path for path in found if path and "\0" not in path)
