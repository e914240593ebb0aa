"""What the head of a request says, whatever its body is: read once for all heads that are equal.

Knows: which facts later steps ask for. Does not know: who calls (auth.py), or what follows from a fact.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from velox.gateway.endpoints import Routes, reads_body
from velox.policy.deadline import ClientTerms, client_terms
from velox.types import Endpoint, RequestHead

__all__ = ["HeadFacts", "head_facts"]

_NS_PER_S: Final = 1_000_000_000
_NEVER_NS: Final = 1 << 62


class HeadFacts(NamedTuple):
    """names_model: a body of this path names a model. reads_body: and it is JSON, which is read; forms pass unread.

    terms: what the client says of time and tries. timeout_ns: its time, in nanoseconds; some hundred years for none.
    """

    route: Endpoint
    names_model: bool
    reads_body: bool
    terms: ClientTerms
    timeout_ns: int


def head_facts(head: RequestHead, routes: Routes) -> HeadFacts:
    """Read them. Raises VeloxError(BAD_REQUEST) as client_terms() does."""
    path = routes.facts(head.path)
    terms = client_terms(head.headers)
    timeout_ns = _NEVER_NS if terms.timeout_s == math.inf else round(terms.timeout_s * _NS_PER_S)
    names_model = path.reads_body and head.method == b"POST"
    return HeadFacts(path.route, names_model, reads_body(path, head), terms, timeout_ns)
