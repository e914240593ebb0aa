"""Where the table of objects is kept: in the ledger's folder where there is one, so that a restart forgets nothing.

Knows: when it is kept, and what follows if it can't be. Does not know: the file (shm/object_file.py).
"""

from __future__ import annotations

import hashlib
import logging
from typing import Final
from urllib.parse import urlsplit

from velox.runtime.ledger.folder import LedgerFolder
from velox.runtime.on_demand import shares_objects
from velox.runtime.processes.memories import Memories
from velox.settings import Settings
from velox.shm.object_file import object_memory_in
from velox.shm.object_table import OBJECT_LAYOUT, ObjectMemory, object_bytes
from velox.shm.segment import CELL_BYTES

__all__ = ["object_memory"]

_NAME: Final = "objects"
_MEMORY: Final = "velox-objects"


def object_memory(
    settings: Settings, blocks: int, folder: LedgerFolder | None, memories: Memories, logger: logging.Logger
) -> ObjectMemory:
    """Return the memory of the table. folder: the ledger's; None: there is none, and the table ends with the gateway.

    memories: where it then comes from.

    Where the file can't be had the gateway serves all the same, and says so once.
    """
    shape = settings.object_rows, settings.workers, blocks
    key = _shared_key(settings)
    if folder is None:
        return _in_memory(shape, key, memories)
    file = folder.rings / _NAME
    try:
        return object_memory_in(file, *shape, key)
    except OSError as exc:
        text = "object owners can't be kept in %(file)s: %(error)s; the next restart forgets them"
        logger.warning(text, {"file": file, "error": exc.strerror})
        return _in_memory(shape, key, memories)


def _in_memory(shape: tuple[int, int, int], key: bytes, memories: Memories) -> ObjectMemory:
    place = memories.place(_MEMORY, OBJECT_LAYOUT, shape, key=key)
    memory = place.make(_MEMORY, object_bytes(*shape) + CELL_BYTES)
    return ObjectMemory(*shape, memory=memoryview(memory), key=place.key)


def _shared_key(settings: Settings) -> bytes:
    """Return the key of the hashes: the same for all gateways that know the same objects; none where there are no more.

    Those of one database know each other by its hosts and its name, so that another password makes no other objects.
    """
    if settings.redis_url is not None:
        text = f"velox objects\0{settings.redis_url.reveal()}\0{settings.redis_prefix}"
    elif settings.ledger_database is not None and shares_objects(settings):
        parts = urlsplit(settings.ledger_database.reveal())
        text = f"velox objects\0{parts.netloc.rpartition('@')[2]}\0{parts.path}"
    else:
        return b""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
