"""How long a test waits for what must come.

One bound for all waits that end early when all is well: only a test that fails waits so long, so it costs nothing, and
it is long enough for a machine that does many other things. A bound that is the point of a test stands in that test.
"""

from __future__ import annotations

from typing import Final

__all__ = ["NEVER_S", "PATIENCE_S", "PROMPT_S"]

PATIENCE_S: Final = 30.0
# A time limit of the product that a test is not about: it must not do what the test waits for.
NEVER_S: Final = 2 * PATIENCE_S
# What happens at once: 0.1 s where nothing else runs. What is late without that takes 10 s and more.
PROMPT_S: Final = 3.0
