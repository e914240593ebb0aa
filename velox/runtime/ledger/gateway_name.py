"""The name of a gateway among those with which it shares Redis or a database: kept in its ledger's folder.

Knows: the file. Does not know: who asks for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path
from typing import Final

__all__ = ["gateway_name"]

_BYTES: Final = 8
_NAME: Final = re.compile(rf"[0-9a-z]{{{2 * _BYTES}}}")


def gateway_name(folder: Path) -> str:
    """Return the name, which is made at first; processes that make it at the same time get the same. Raises OSError."""
    path = folder / "gateway"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        name = os.urandom(_BYTES).hex()
        new = folder / f"gateway.{name}"
        new.write_text(f"{name}\n", "ascii")
        try:
            with contextlib.suppress(FileExistsError):
                os.link(new, path)
        finally:
            new.unlink()
    name = path.read_text("ascii", "replace").strip()
    if not _NAME.fullmatch(name):
        raise OSError(errno.EINVAL, "it holds no name of a gateway: remove it", str(path))
    return name
