"""What a request is asked before it is sent, in which order, and why there.

With its head, before a body is read, and once for all heads that are alike (intake.py, access/plan.py):

    key             first: who has none learns nothing of what is here
    endpoint        of the gateway, and of the key
    terms           time and tries that its client wants: what is wrong there needs no body
    model, objects  as far as the path names them: a refusal costs no body

With its body, when it has left the queue:

    read                 model, length of the answer, stream: all that follows goes by these
    model, objects       that the key may name (Guard)
    take_limits          before all that tells of models, routes and answers, so that trying costs, too
    ask_other_gateways   where an object is kept that only other gateways know: what follows depends on it
    answer_locally       lists of models, kept answers: no route is needed for them, and they may change what is sent
    find_route           budgets depend on all upstreams that it may go to
    look_up_cache        where a route has a cache: a cached answer costs no budget, but counts for limits
    join_call            where a route joins calls: one that follows another's call costs no budget either
    hold_budgets         last of what may refuse, as it costs most work; nothing is sent that no budget holds
    (hooks)              their place is here, before a choice: what a hook changes may be for any member of the route

And in its task (exchange.py): its turn in a limit, the choice of a member with capacity, what that is sent (prepare()).

A step that is off for a gateway, or can't concern a kind of request, is not in its list.

Knows: the order. Does not know: what a step does, or how one waits (exchange.py).
"""

from __future__ import annotations

from velox.gateway.request.exchange import Exchange, Step
from velox.gateway.request.parts import Parts

__all__ = ["admission"]


def admission(
    parts: Parts, *, may_be_local: bool = False, has_cache: bool = False, has_joins: bool = False
) -> tuple[Step, ...]:
    """Return the steps that follow the look into its body. may_be_local: of what the gateway may answer itself.

    has_cache: a route has one. has_joins: a route joins calls.
    """
    steps: list[Step] = [Exchange.take_limits]
    if parts.access.share is not None:
        steps.append(Exchange.ask_other_gateways)
    if may_be_local:
        steps.append(Exchange.answer_locally)
    steps.append(Exchange.find_route)
    if has_cache and parts.cache is not None:
        steps.append(Exchange.look_up_cache)
    if has_joins and parts.joining is not None:
        steps.append(Exchange.join_call)
    if parts.calls is not None:
        steps.append(Exchange.hold_budgets)
    return tuple(steps)
