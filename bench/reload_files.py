"""The configurations that a gateway under load is told to take over: good ones that differ, and bad ones of each kind.

Knows: files. Does not know: a gateway, or what it says of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["BAD", "MARK", "good"]

# A header of all answers: which configuration they come from.
MARK: Final = "x-bench-configuration"


def good(number: int, origins: Mapping[str, str]) -> str:
    """Return a file. origins: of the upstreams `kept`, `changed` and `comes-and-goes`.

    `kept` is the same in all. In each cycle of four the third comes, weights and the way to balance change, the
    time-outs of `changed` change, and the third goes.
    """
    step = number % 4
    has_third = step in (1, 2, 3)
    weight = 3 if step in (2, 3) else 1
    first_byte = 20 + (number + 1) // 4
    balance = "least_inflight" if step in (2, 3) else "peak_ewma"
    lines = [
        "upstreams:",
        f"  - {{name: kept, origin: '{origins['kept']}'}}",
        f"  - {{name: changed, origin: '{origins['changed']}', weight: {weight}, "
        f"timeouts: {{first_byte: {first_byte}s}}}}",
    ]
    names = ["kept", "changed"]
    if has_third:
        names.append("comes-and-goes")
        lines.append(f"  - {{name: comes-and-goes, origin: '{origins['comes-and-goes']}'}}")
    rules = f"{{set: {{{MARK}: '{number}'}}}}"
    lines += [
        "routes:",
        f"  - {{name: all, to: [{', '.join(names)}], balance: {balance}, response_headers: {rules}}}",
    ]
    return "\n".join(lines) + "\n"


# By what is wrong with it.
BAD: Final = {
    "an unknown field": "upstreams:\n  - {name: a, orign: 'http://127.0.0.1:1'}\n",
    "a route to an unknown upstream": "upstreams:\n  - {name: a, origin: 'http://127.0.0.1:1'}\n"
    "routes:\n  - {name: all, to: [b]}\n",
    "a key in an unset variable": "upstreams:\n  - {name: a, origin: 'http://127.0.0.1:1', keys: [env:NOT_THERE]}\n",
    "half a file": "upstreams:\n  - {name: a, origin: 'http://127.0\n",
    "a name twice": "upstreams:\n  - {name: a, origin: 'http://127.0.0.1:1'}\n"
    "  - {name: a, origin: 'http://127.0.0.1:2'}\n",
    "a fallback in a circle": "upstreams:\n  - {name: a, origin: 'http://127.0.0.1:1'}\n"
    "routes:\n  - {name: all, to: [a], fallback: [a]}\n",
    "an invalid value": "upstreams:\n  - {name: a, origin: 'http://127.0.0.1:1', weight: many}\n",
    "a route that never matches": "upstreams:\n  - {name: a, origin: 'http://127.0.0.1:1'}\n"
    "routes:\n  - {name: all, to: [a]}\n  - {name: more, match: {models: [m]}, to: [a]}\n",
    "a key in the file itself": "upstreams:\n  - {name: a, origin: 'http://127.0.0.1:1', keys: [sk-bench]}\n",
    "an invalid address": "upstreams:\n  - {name: a, origin: 'somewhere'}\n",
}
