"""Fields that an upstream's settings add to a request, and what a route does to the client's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.gateway.access.test_gateway_routes import head
from velox.gateway.translation.forward import Forwarder
from velox.heads import ExtraFields, Headers, RequestHead
from velox.policy.routes.entries import HeaderRules
from velox.providers.rows import OPENAI
from velox.types import BodyFields

KEY: Headers = [(b"authorization", b"Bearer sk-ours")]


def forwarder(*added: tuple[bytes, bytes], kept_heads: int = 512) -> Forwarder:
    return Forwarder(
        OPENAI,
        base_path="",
        root_path="/",
        key="sk-ours",
        client_keys_are_ours=True,
        added=added,
        kept_heads=kept_heads,
    )


def sent(made: Forwarder, fields: Headers, rules: HeaderRules | None = None, *, stream: bool = False) -> Headers:
    """Return what goes up of these fields of a client, without our key."""
    more = {} if rules is None else {"rules": rules}
    request = made.build(head(b"POST", b"/v1/chat/completions", fields), BodyFields(stream=stream), b"{}", **more)
    assert request.headers[-1:] == KEY
    assert b"".join(b"%b: %b\r\n" % field for field in request.headers) == request.lines
    return request.headers[:-1]


def test_added_fields_take_the_place_of_the_clients() -> None:
    """`headers` of an upstream: a client can't say another team, not even beside it."""
    fields = [(b"x-team", b"mine"), (b"x-other", b"1"), (b"x-team", b"mine too")]

    assert sent(forwarder((b"x-team", b"platform")), fields) == [(b"x-other", b"1"), (b"x-team", b"platform")]


def test_rules_remove_and_set() -> None:
    """`request_headers` of a route: what is removed is gone, what is set is there once, others pass."""
    rules = HeaderRules(set=((b"x-tier", b"gold"), (b"x-new", b"1")), remove=(b"x-debug",))
    fields = [(b"x-debug", b"1"), (b"x-tier", b"lead"), (b"x-tier", b"tin"), (b"accept", b"*/*")]

    assert sent(forwarder(), fields, rules) == [(b"accept", b"*/*"), (b"x-tier", b"gold"), (b"x-new", b"1")]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (HeaderRules(set=((b"x-team", b"route"),)), [(b"x-team", b"route")]),
        (HeaderRules(remove=(b"x-team",)), []),
    ],
)
def test_route_goes_before_its_upstream(rules: HeaderRules, expected: Headers) -> None:
    """What both name is as the route says."""
    assert sent(forwarder((b"x-team", b"upstream")), [(b"x-team", b"client")], rules) == expected


def test_no_rule_lets_a_compressed_stream_through() -> None:
    """Velox reads the events, whatever the settings ask for."""
    rules = HeaderRules(set=((b"accept-encoding", b"br"),))
    for made, more in ((forwarder((b"accept-encoding", b"gzip")), None), (forwarder(), rules)):
        assert sent(made, [(b"accept-encoding", b"gzip")], more, stream=True) == [(b"accept-encoding", b"identity")]
    removes = HeaderRules(remove=(b"accept-encoding",))
    assert sent(forwarder(), [(b"accept-encoding", b"gzip")], removes, stream=True) == [
        (b"accept-encoding", b"identity")
    ]


def shared(fields: Headers) -> RequestHead:
    """Return a head as one is that came before."""
    return RequestHead.of(b"POST", b"/v1/chat/completions", fields, is_shared=True)


def test_heads_that_are_known_go_by_their_rules() -> None:
    """Two routes, one client, one head: what was made for the one is not for the other."""
    made = forwarder()
    one = shared([(b"x-a", b"1")])
    gold, none = HeaderRules(set=((b"x-tier", b"gold"),)), HeaderRules()

    headers = [made.build(one, BodyFields(), b"{}", rules=rules).headers[:-1] for rules in (gold, none, gold)]

    assert headers == [[(b"x-a", b"1"), (b"x-tier", b"gold")], [(b"x-a", b"1")], [(b"x-a", b"1"), (b"x-tier", b"gold")]]


def test_heads_are_kept_up_to_a_number() -> None:
    """Each member has a forwarder, and clients may send as many heads as they like."""
    made = forwarder(kept_heads=16)
    for n in range(100):
        made.build(shared([(b"x-a", b"%d" % n)]), BodyFields(), b"{}")

    assert len(made._built) <= 2 * 16  # a memo keeps twice its limit


def test_calls_of_another_dialect_go_by_heads_that_are_known() -> None:
    """The same fields as for one that nobody has seen before; new values, another model's fields and rules count."""
    made, needed = forwarder((b"x-team", b"platform")), ((b"anthropic-version", b"2023-06-01"),)
    fields: Headers = [(b"traceparent", b"00-1"), (b"x-request-id", b"id-1"), (b"x-own", b"1"), (b"user-agent", b"sdk")]
    template = shared(fields).shape
    volatile = replace(template, fields=(fields[0], (b"x-request-id", None), fields[2], (b"user-agent", None)))
    gold, none = HeaderRules(set=((b"x-tier", b"gold"),), remove=(b"traceparent",)), HeaderRules()

    for rules in (none, gold, none):
        for headers in (needed, ()):
            for values, extras in (
                ((b"id-1", b"sdk"), None),
                ((b"id-2", b"other"), None),
                ((b"no id!", b"x"), ExtraFields(frozenset({b"x-more"}), b"x-more: 1\r\n")),
                ((b"id-3", b"sdk"), ExtraFields(frozenset({b"baggage"}), b"baggage: b=1\r\n")),
            ):
                known = RequestHead(volatile, values, 2, extras)
                plain = head(b"POST", b"/v1/chat/completions", known.headers)
                one, other = (made.build_call(each, b"/v1/messages", headers, b"{}", rules) for each in (known, plain))
                assert one.headers == other.headers and one.lines == other.lines
                assert ((b"x-request-id", values[0]) in one.headers) is values[0].startswith(b"id")
                assert ((b"baggage", b"b=1") in one.headers) is (extras is not None and b"baggage" in extras.names)
