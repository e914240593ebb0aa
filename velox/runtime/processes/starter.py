"""Who has started a gateway and waits for it: `velox start`, which ends once the gateway is ready.

Knows: a pipe, whose number is in the environment. Does not know: when a gateway is ready.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final, Self

__all__ = ["VARIABLE", "Starter"]

# In the environment of what is started: the descriptor of the pipe. No child of it gets it, nor does another version.
VARIABLE: Final = "VELOX_STARTER"


class Starter:
    """descriptor: of the pipe; -1: nobody waits."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __repr__(self) -> str:
        return f"<Starter {self._descriptor}>"

    @classmethod
    def of(cls, text: str) -> Self:
        """Return who waits. text: the value of VARIABLE; what is no descriptor is nobody."""
        descriptor = int(text) if text.isdecimal() else -1
        try:
            os.set_inheritable(descriptor, False)
        except OSError:
            descriptor = -1
        return cls(descriptor)

    def tell(self, text: str) -> None:
        """Say that it is ready, in one line. Once; who no longer waits is not told."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, f"{text}\n".encode())
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1
