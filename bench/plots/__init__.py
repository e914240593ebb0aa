"""Pages and pictures out of what bench.compare wrote down.

Knows: the names that others may use. Does not know: how anything was measured.
"""

from bench.plots.publish import publish

__all__ = ["publish"]
