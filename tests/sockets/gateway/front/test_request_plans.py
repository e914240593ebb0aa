"""What a worker keeps of its requests' heads: found again, and bounded whatever clients send."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable

import uvloop

from tests.sockets.gateway.composed import Composed, Stand, composed, settings_with
from velox.heads import HeadShape, RequestHead

N_MOST = 1000


def head(n: int) -> RequestHead:
    """Return a head whose shape other heads have, too."""
    fields = [(b"content-type", b"application/json"), (b"x-of-the-client", b"%d" % n)]
    return RequestHead.of(b"POST", b"/v1/chat/completions", fields, 2, is_shared=True)


def n_shapes() -> int:
    """Count the shapes that anything holds."""
    gc.collect()
    return sum(type(each) is HeadShape for each in gc.get_objects())


def of_worker(body: Callable[[Composed], Awaitable[None]]) -> None:
    """Run a test of one worker with the settings that are usual."""

    async def main() -> None:
        with composed(settings_with(), {"default": Stand()}) as made:
            await body(made)

    uvloop.run(main())


def test_heads_that_change_for_ever_are_not_all_kept() -> None:
    """One client may invent as many as it likes; the plan of each holds its fields."""

    async def body(made: Composed) -> None:
        before = n_shapes()
        for n in range(4 * N_MOST):
            made.gateway.plan(head(n))

        assert 1 < n_shapes() - before < N_MOST

    of_worker(body)


def test_plan_of_a_shape_is_made_once() -> None:
    """And again after others were sent."""

    async def body(made: Composed) -> None:
        usual = head(-1)
        plan = made.gateway.plan(usual)
        for n in range(N_MOST // 4):
            made.gateway.plan(head(n))

        assert made.gateway.plan(usual) is plan

    of_worker(body)
