"""The way of one request: which route, which levels in which order, and who is left when nobody seems to be."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

import pytest

from tests.sockets.gateway.core_attempts import put_out, run
from tests.sockets.gateway.core_plans import Asked, fail, member, plan, refuse_key, route, tables
from velox.errors import Reason, VeloxError
from velox.gateway.cluster.group import Attempt
from velox.gateway.cluster.routing import RouteCursor
from velox.gateway.upstreams.member import Member
from velox.policy.health.member import MemberHealth, MemberRules
from velox.policy.queue.concurrency import FixedLimit
from velox.policy.routes.entries import HashOn, Match, Target
from velox.types import Caller

CALLERS: Final = [Caller(f"c{n}", id=b"caller-%d" % n) for n in range(200)]


def now() -> float:
    """Return the loop's time."""
    return asyncio.get_running_loop().time()


def first_of(way: RouteCursor) -> str:
    """Return the upstream of the first choice, which ends at once."""
    pick = way.first(now())
    assert pick is not None, "there is room"
    pick.gave_up(now())
    return pick.member.name


# -- the order ------------------------------------------------------------------------------------


def test_stages_follow_each_other_as_they_are_configured() -> None:
    """First those of `to`, in turn; then each fallback; what was tried is not asked again."""

    async def main() -> None:
        members = [member(name) for name in "abcd"]
        way = plan(tables(members, route("r", "a", "b", fallback=["c", "d"])))
        names = []
        pick = way.first(now())
        while pick is not None:
            names.append(pick.member.name)
            way.tried(pick)
            pick = way.next(now())

        assert (sorted(names[:2]), names[2:]) == (["a", "b"], ["c", "d"])

    run(main)


def test_first_stage_with_somebody_well_is_taken() -> None:
    """Who is out gets no first attempt while another level has one that is not."""

    async def main() -> None:
        a, b, c = members = [member(name) for name in "abc"]
        routing = tables(members, route("r", "a", "b", fallback=["c"]))
        fail(a)
        assert {first_of(plan(routing)) for _ in range(4)} == {"b"}
        fail(b)
        assert {first_of(plan(routing)) for _ in range(4)} == {"c"}
        fail(c)

        assert {first_of(plan(routing)) for _ in range(4)} == {"a", "b"}  # nobody is well: as if all were

    run(main)


def test_attempt_that_failed_before_goes_to_nobody_that_is_out() -> None:
    """next() passes over who is out, unless anybody will do, as nothing was done with the request."""

    async def main() -> None:
        a, b = members = [member(name) for name in "ab"]
        way = plan(tables(members, route("r", "a", fallback=["b"])))
        fail(b)
        pick = way.first(now())
        assert pick is not None and pick.member is a
        way.tried(pick)

        assert way.next(now()) is None
        other = way.next(now(), allow_unhealthy=True)
        assert other is not None and other.member is b
        way.tried(other)
        assert way.next(now(), allow_unhealthy=True) is None

    run(main)


def test_attempt_that_failed_before_may_test_one_that_is_out() -> None:
    """A fallback is asked by nobody while those before it are well: it is tested when it is wanted, once at a time."""

    async def main() -> None:
        _, b = members = [member(name) for name in "ab"]
        routing = tables(members, route("r", "a", fallback=["b"]))
        put_out(b.health, now() - 60.0)
        ways = [plan(routing), plan(routing)]
        for way in ways:
            pick = way.first(now())
            assert pick is not None and pick.member.name == "a"
            way.tried(pick)
        assert ways[0].next(now()) is None and ways[0].next(now(), within_limits=True) is None

        probe = ways[0].next(now(), may_probe=True)

        assert probe is not None and probe.member is b and probe.probe_timeout_s < 60.0
        probe.begin(now())
        assert ways[1].next(now(), may_probe=True) is None

    run(main)


def test_key_that_rests_is_not_asked_whatever_has_failed() -> None:
    """It would be refused: next() leaves it out, also where anybody will do."""

    async def main() -> None:
        a, b, c = members = [member("a"), member("b", n_keys=2), member("c")]
        way = plan(tables(members, route("r", "a", fallback=["b", "c"])))
        for key in range(2):
            refuse_key(b, key, 60.0)
        fail(c)
        pick = way.first(now())
        assert pick is not None and pick.member is a
        way.tried(pick)

        other = way.next(now(), allow_unhealthy=True)

        assert other is not None and other.member is c
        way.tried(other)
        assert way.next(now(), allow_unhealthy=True) is None

    run(main)


def test_silent_member_is_not_asked_for_another_model() -> None:
    """It let a time-out pass, or can't be reached; as a fallback with another model it would again."""

    async def main() -> None:
        members = [member(name) for name in "ab"]
        routing = tables(members, route("r", "a", fallback=[Target("a", "small"), "b"]))
        for is_silent, expected in ((False, "a"), (True, "b")):
            way = plan(routing)
            pick = way.first(now())
            assert pick is not None
            way.tried(pick, is_silent=is_silent)

            other = way.next(now())

            assert other is not None and other.member.name == expected

    run(main)


# -- models ---------------------------------------------------------------------------------------


def test_member_without_the_model_is_never_asked() -> None:
    """Whatever the state of the others: out, full, tried, or with keys that rest."""

    async def main() -> None:
        without, having = member("a", models=("other",)), member("b", models=("m", "n"), concurrency=FixedLimit(1))
        routing = tables([without, having], route("r", "a", "b"))
        assert {first_of(plan(routing)) for _ in range(4)} == {"b"}
        fail(having)
        assert {first_of(plan(routing)) for _ in range(4)} == {"b"}
        having.concurrency.begin(now())
        assert plan(routing).first(now()) is None  # full: it waits, and is not told that keys rest

        way = plan(routing)
        way.tried(way.same(_pick_at(way, 1), now()))
        assert way.next(now(), allow_unhealthy=True) is None

    run(main)


def _pick_at(way: RouteCursor, n: int) -> Attempt:
    return way.levels[0].group.take(n, now())


def test_model_that_nobody_of_a_stage_has_skips_the_stage() -> None:
    """A fallback's own model counts, not the client's."""

    async def main() -> None:
        members = [member("a", models=("x",)), member("b", models=("y",)), member("c")]
        routing = tables(members, route("r", "a", fallback=[Target("b", "y"), "c"]))

        ways = {model: [level.group.members[0].name for level in plan(routing, model).levels] for model in ("x", "z")}

        assert ways == {"x": ["a", "b", "c"], "z": ["b", "c"]}

    run(main)


def test_model_that_nobody_has_is_unknown() -> None:
    """404 unknown_model, which names GET /v1/models; nothing stays open."""

    async def main() -> None:
        routing = tables([member("a", models=("x",))], route("r", "a"))

        with pytest.raises(VeloxError) as refused:
            plan(routing, "z")

        assert (refused.value.reason, refused.value.status, refused.value.param) == (Reason.UNKNOWN_MODEL, 404, "model")
        assert routing.n_open == 0

    run(main)


@pytest.mark.parametrize(("model", "reason"), [("z", Reason.UNKNOWN_MODEL), (None, Reason.UNKNOWN_ROUTE)])
def test_request_that_no_route_is_for_is_refused(model: str | None, reason: Reason) -> None:
    """404: of the model where there is one, else of the path."""

    async def main() -> None:
        routing = tables([member("a")], route("r", "a", match=Match(models=("x",))))

        with pytest.raises(VeloxError) as refused:
            plan(routing, model)

        assert (refused.value.reason, refused.value.status) == (reason, 404)

    run(main)


def test_what_clients_name_takes_no_memory_without_end() -> None:
    """Routes are remembered by model, path and caller: not by paths of any length, and alike levels are one."""

    async def main() -> None:
        routing = tables([member("a"), member("b", models=("x",))], route("r", "a", "b"), route("s", "a"))
        levels = {id(plan(routing, f"model-{n}").levels) for n in range(50)}
        assert len(levels) == 1

        n_before = _n_kept(routing)
        for n in (100, 8000):
            plan(routing, "m", path=b"/v1/" + b"x" * n)
            assert _n_kept(routing) == n_before + 1, "they look at no path"

        by_path = tables([member("a")], route("p", "a", match=Match(paths=("/v1/xx*",))), route("s", "a"))
        plan(by_path, "m", path=b"/v1/" + b"x" * 8000)
        assert _n_kept(by_path) == 0
        plan(by_path, "m", path=b"/v1/" + b"x" * 100)
        assert _n_kept(by_path) == 1

    run(main)


def _n_kept(routing: object) -> int:
    return len(routing._resolved)  # type: ignore[attr-defined]  # nothing outside depends on it


# -- canary ---------------------------------------------------------------------------------------


def test_canary_takes_its_part_and_keeps_its_callers() -> None:
    """25 % of the callers, always the same ones; without keys 25 % of the requests."""

    async def main() -> None:
        routing = tables([member("a"), member("b")], route("r", "a", canary=("b", 25.0)))

        taken = [[first_of(plan(routing, caller=caller)) for caller in CALLERS] for _ in range(2)]

        assert taken[0] == taken[1]
        assert 20 < taken[0].count("b") < 80
        n_by_chance = [first_of(plan(routing)) for _ in range(400)].count("b")
        assert 50 < n_by_chance < 150

    run(main)


def test_canary_that_is_not_well_costs_nobody_a_request() -> None:
    """Its share goes to the usual upstreams while it is out, and after an attempt that failed there."""

    async def main() -> None:
        good, canary = members = [member("a"), member("b")]
        routing = tables(members, route("r", "a", canary=("b", 100.0)))
        way = plan(routing)
        pick = way.first(now())
        assert pick is not None and pick.member is canary and way.is_canary
        way.tried(pick)
        other = way.next(now())
        assert other is not None and other.member is good

        fail(canary)
        assert {first_of(plan(routing)) for _ in range(4)} == {"a"}

    run(main)


def test_canary_without_the_model_gets_no_request() -> None:
    """Its upstream serves other models: such requests are no part of the share."""

    async def main() -> None:
        routing = tables([member("a"), member("b", models=("x",))], route("r", "a", canary=("b", 100.0)))

        assert [first_of(plan(routing, model)) for model in ("x", "y")] == ["b", "a"]
        assert not plan(routing, "y").is_canary

    run(main)


# -- nobody is well ---------------------------------------------------------------------------------


def test_when_nobody_is_well_all_are_asked() -> None:
    """Panic: a request is rather tried than refused."""

    async def main() -> None:
        members = [member(name) for name in "abc"]
        routing = tables(members, route("r", "a", "b", "c"))
        for each in members:
            fail(each)

        assert {first_of(plan(routing)) for _ in range(6)} == {"a", "b", "c"}

    run(main)


def test_when_the_only_one_with_the_model_is_out_it_is_asked() -> None:
    """Its peers are well, but don't have the model: that is no reason to say that keys rest."""

    async def main() -> None:
        members = [*(member(name, models=("x",)) for name in "abc"), *(member(name, models=("y",)) for name in "de")]
        routing = tables(members, route("r", *"abcde"))
        fail(members[4])
        assert {first_of(plan(routing, "y")) for _ in range(4)} == {"d"}
        fail(members[3])

        assert {first_of(plan(routing, "y")) for _ in range(4)} == {"d", "e"}

    run(main)


def test_all_keys_rest_is_429_until_the_first_is_back() -> None:
    """The time is that of the first of those that have the model, and of all levels."""

    async def main() -> None:
        members = [
            member("a", n_keys=2),
            member("b", n_keys=1),
            member("c", n_keys=1, models=("other",)),
        ]
        routing = tables(members, route("r", "a", "c", fallback=["b"]))
        for of, key, seconds in ((0, 0, 50.0), (0, 1, 20.0), (1, 0, 30.0), (2, 0, 5.0)):
            refuse_key(members[of], key, seconds)

        with pytest.raises(VeloxError) as refused:
            plan(routing).first(now())

        assert (refused.value.reason, refused.value.status) == (Reason.RATE_LIMITED, 429)
        assert refused.value.retry_after_s is not None
        assert 19.0 < refused.value.retry_after_s <= 20.1

    run(main)


def test_upstream_whose_keys_rest_is_passed_over() -> None:
    """A request goes to a fallback, and to one that is out, rather than to a key that rests."""

    async def main() -> None:
        resting, out = members = [member("a", n_keys=1), member("b")]
        routing = tables(members, route("r", "a", fallback=["b"]))
        refuse_key(resting, 0, 60.0)
        assert first_of(plan(routing)) == "b"
        fail(out)

        assert first_of(plan(routing)) == "b"

    run(main)


@pytest.mark.parametrize("peers", [0, 1])
def test_lone_key_is_used_though_it_rests(peers: int) -> None:
    """There is nothing else: its limit may be another model's. One without the model is nothing else either."""

    async def main() -> None:
        lone = member("b", n_keys=1)
        members = [member("a", models=("other",)) for _ in range(peers)] + [lone]
        routing = tables(members, route("r", *(each.name for each in members)))
        refuse_key(lone, 0, 60.0)

        assert first_of(plan(routing)) == "b"

    run(main)


def two_origins(n_keys: int = 1) -> list[Member]:
    """Return the members of one upstream, which have its keys together."""
    one = member("b", n_keys=n_keys)
    health = MemberHealth(MemberRules(), now(), keys=one.health.keys, is_new=False)
    return [one, replace(one, health=health)]


def test_lone_key_that_rests_stops_no_other_server_of_its_upstream() -> None:
    """One of two servers behind one key has too much to do: requests go to both, and after a 429 to the other one."""

    async def main() -> None:
        one, other = members = two_origins()
        routing = tables(members, route("r", "b"))
        refuse_key(one, 0, 60.0)
        assert other.health.cooldown_left_s(now())
        picks = []
        for _ in range(4):
            way = plan(routing)
            pick = way.first(now())
            assert pick is not None
            way.tried(pick)
            picks.append(pick.member)
            next_one = way.next(now())
            assert next_one is not None and next_one.member is not pick.member
            way.tried(next_one)
            assert way.next(now()) is None

        assert set(picks) == set(members)
        fail(one)
        assert {getattr(plan(routing).first(now()), "member", None) for _ in range(4)} == {other}

    run(main)


def test_lone_key_that_rests_has_room_for_no_more_than_others() -> None:
    """`concurrency` counts: the next request waits."""

    async def main() -> None:
        lone = member("b", n_keys=1, concurrency=FixedLimit(1))
        routing = tables([lone], route("r", "b"))
        refuse_key(lone, 0, 60.0)
        assert first_of(plan(routing)) == "b"
        lone.concurrency.begin(now())

        assert plan(routing).first(now()) is None

    run(main)


@pytest.mark.parametrize(("n_keys", "n_others"), [(2, 0), (1, 1)])
def test_key_that_is_not_all_there_is_rests_at_all_servers(n_keys: int, n_others: int) -> None:
    """There are other keys, or other upstreams: a 429 with the time when the first is back."""

    async def main() -> None:
        members = [*two_origins(n_keys), *(member("c", n_keys=1) for _ in range(n_others))]
        routing = tables(members, route("r", "b", *"c" * n_others))
        for key in range(n_keys):
            refuse_key(members[0], key, 60.0)
        for each in members[2:]:
            refuse_key(each, 0, 60.0)

        with pytest.raises(VeloxError):
            plan(routing).first(now())

    run(main)


# -- keys -------------------------------------------------------------------------------------------


def test_other_key_is_one_that_was_not_tried_and_may_be_used() -> None:
    """After 429 or 401: the same member with each of its other keys once, except those that rest."""

    async def main() -> None:
        of = member("a", n_keys=4)
        way = plan(tables([of], route("r", "a")))
        pick = way.first(now())
        assert pick is not None
        resting = (pick.key + 1) % 4
        refuse_key(of, resting, 60.0)
        tried = []
        other = pick
        while other is not None:
            tried.append(other.key)
            way.tried(other)
            other = way.other_key(other, now())

        assert sorted(tried) == sorted({0, 1, 2, 3} - {resting})

    run(main)


def test_wait_for_a_key_is_a_wait_for_that_key() -> None:
    """The upstream told when this one is back: after the wait it is this one that goes up, not another that rests."""

    async def main() -> None:
        of = member("a", n_keys=3)
        way = plan(tables([of], route("r", "a")))
        for key in (0, 1, 2):
            refuse_key(of, key, 60.0)
        pick = way.levels[0].group.take(0, now())
        picks = [Attempt(pick.group, 0, key) for key in (0, 1, 2)]

        assert [way.same(each, now()).key for each in picks] == [0, 1, 2]

    run(main)


def test_member_without_keys_has_no_other() -> None:
    """The client's own key goes up: there is no other one."""

    async def main() -> None:
        way = plan(tables([member("a")], route("r", "a")))
        pick = way.first(now())
        assert pick is not None

        assert way.other_key(pick, now()) is None

    run(main)


# -- affinity ---------------------------------------------------------------------------------------

BODY: Final = b'{"model":"m","user":"u","messages":[{"role":"user","content":"hello"}]}'


@pytest.mark.parametrize(
    ("on", "key"),
    [
        (HashOn("user"), b"us\xc3\xa9r"),
        (HashOn("header", b"x-session"), b"s-1"),
        (HashOn("header", b"x-other"), b""),
        (HashOn("prefix"), BODY[BODY.index(b'"messages"') :]),
        (None, b""),
    ],
)
def test_requests_are_kept_together_by_what_the_route_says(on: HashOn | None, key: bytes) -> None:
    """The user, a header, or where the prompt begins; a request without it goes anywhere."""

    async def main() -> None:
        balancer = Asked()
        routing = tables([member("a"), member("b")], route("r", "a", "b", hash_on=on), balancer=balancer)

        first_of(plan(routing, body=BODY, user="usér", headers=[(b"x-session", b"s-1")]))

        assert balancer.keys == [key]

    run(main)
