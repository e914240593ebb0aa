"""The groups of endpoints that a key may be given. The value of a group is its name.

Knows: names. Does not know: which paths a group has (api/table.py, api/objects.py).
"""

from __future__ import annotations

import enum
from typing import Final

__all__ = ["ALL_ENDPOINTS", "GROUPS", "Group"]


class Group(enum.Enum):
    """What the `endpoints` of a key may name. The value is the name.

    ORGANIZATION: what belongs to the whole account: its administration, its credentials, and what runs by itself.
    """

    INFERENCE = "inference"
    FILES = "files"
    BATCHES = "batches"
    FINE_TUNING = "fine_tuning"
    VECTOR_STORES = "vector_stores"
    ASSISTANTS = "assistants"
    CONVERSATIONS = "conversations"
    CONTAINERS = "containers"
    EVALS = "evals"
    VIDEOS = "videos"
    SKILLS = "skills"
    SESSIONS = "sessions"
    CACHES = "caches"
    ORGANIZATION = "organization"


GROUPS: Final = tuple(group.value for group in Group)
# Stands for every group but the organization's.
ALL_ENDPOINTS: Final = "all"
