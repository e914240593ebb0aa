"""All attributes of an object, also of a class that was compiled, whose objects have no `__dict__`."""

from __future__ import annotations

from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

__all__ = ["state_of"]


def state_of(value: object) -> dict[str, Any]:
    """Return them by name, with what a compiled class computes."""
    found = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        for name, each in vars(cls).items():
            if isinstance(each, GetSetDescriptorType | MemberDescriptorType) and not name.startswith("__"):
                found[name] = getattr(value, name)
    return found
