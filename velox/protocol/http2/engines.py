"""The two HTTP/2 engines, by name.

Knows: which there are (docs/decisions/0004-two-http2-engines.md). Does not know: what an engine does (engine.py).
"""

from __future__ import annotations

from typing import Literal

from velox.protocol.http2.engine import EngineFactory

__all__ = ["engine_factory"]


def engine_factory(name: Literal["ngh2", "h2"]) -> EngineFactory:
    """Return what makes engines of that name; called with handler, settings, True for the client side."""
    # Imported here: a worker loads only the library it uses, and starts where the other is not installed.
    if name == "ngh2":
        from velox.protocol.http2.ngh2_engine import Ngh2Engine

        return Ngh2Engine
    from velox.protocol.http2.h2_engine import H2Engine

    return H2Engine
