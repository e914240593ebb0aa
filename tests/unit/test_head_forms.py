"""Heads that are found by one pattern: which are, which are not, and how many are kept."""

from __future__ import annotations

import pytest

from velox.protocol.head_forms import HeadForms
from velox.protocol.head_memory import MOST_HEAD_BYTES, Plan

HEAD = b"GET /%b HTTP/1.1\r\nHost: a\r\nx-id: %d\r\nAccept: */*\r\nx-trace: %d\r\nContent-Length: %d\r\n\r\n"


def head(n: int = 1, path: bytes = b"x") -> bytes:
    return HEAD % (path, n, n + 1, n + 2)


def plan(name: str = "plan") -> Plan[bytes, str]:
    return Plan(name, (2, 4, 5), (b"x-id: ", b"x-trace: ", b"Content-Length: "), has_length=True, named=True)


def forms(*paths: bytes, most_plans: int = 4) -> HeadForms[str]:
    made = HeadForms[str](most_plans)
    for path in paths:
        made.keep(plan(path.decode()), head(1, path), 6)
    return made


def test_head_is_found_wherever_it_begins() -> None:
    """With the values of its volatile fields, the content-length last, and its end; also in what is not bytes."""
    for data in (b"before" + head(7) + b"after", bytearray(b"before" + head(7) + b"after")):
        found = forms(b"x").find(data, 6)
        assert found is not None
        known, values, end = found
        assert (known.shape, values, end) == ("x", (b"7", b"8", b"9"), 6 + len(head(7)))
        assert all(type(value) is bytes for value in values)


def test_content_length_may_stand_before_other_fields() -> None:
    """It is the last of the values all the same."""
    made = HeadForms[str](4)
    text = b"GET / HTTP/1.1\r\ncontent-length: %d\r\nx-id: %b\r\n\r\n"
    known = Plan("first", (2, 1), (b"x-id: ", b"content-length: "), has_length=True, named=True)
    made.keep(known, text % (1, b"a"), 3)

    assert made.find(text % (22, b"b")) == (known, (b"b", b"22"), len(text % (22, b"b")))


def test_head_without_volatile_fields_is_found() -> None:
    """By its texts alone."""
    made = HeadForms[str](4)
    known = Plan[bytes, str]("all", (), (), has_length=False, named=True)
    text = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    made.keep(known, text, 2)

    assert made.find(text + b"GET") == (known, (), len(text))
    assert made.find(text.replace(b"a", b"b")) is None


ID = b"x-id: 1"
LENGTH = b"Length: 3"


@pytest.mark.parametrize(
    "other",
    [
        *(head()[:-1], head()[:-2], b"", b"\r\n" + head(), head().replace(b"\r\n", b"\n")),
        *(head().replace(b"Accept", b"accept"), head().replace(b"Accept: */*\r\n", b"")),
        *(head().replace(b"Host", b"Host "), head().replace(b"\r\n\r\n", b"\r\nx: y\r\n\r\n")),
        *(head().replace(ID, text) for text in (b"x-id: ", b"x-id:1", b"x-id:  1", b"x-id: 1 ", b"X-id: 1")),
        *(head().replace(ID, b"x-id: " + value) for value in (b"\x80", b"\0", b"a\rb", b"a\nb")),
        head().replace(ID, b"x-id: " + b"1" * MOST_HEAD_BYTES),
        *(head().replace(LENGTH, b"Length: " + value) for value in (b"3 ", b"x", b"+3", b"1" * 19)),
    ],
)
def test_any_other_head_is_not_found(other: bytes) -> None:
    """Not whole, too long, another text or another field anywhere, a value that must be looked at."""
    assert forms(b"x").find(other) is None


def test_several_plans_and_forms_are_told_apart() -> None:
    """Also once each of them has been found."""
    made = forms(b"x", b"y")
    other = b"GET /x HTTP/1.1\r\nx-id: %d\r\nHost: a\r\n\r\n"
    made.keep(Plan("other", (1,), (b"x-id: ",), has_length=False, named=True), other % 1, 3)

    for _ in range(3):
        for text, name in ((other % 5, "other"), (head(5, b"y"), "y"), (head(6, b"x"), "x")):
            found = made.find(text)
            assert found is not None and found[0].shape == name


def test_what_is_kept_is_bounded() -> None:
    """Of plans, and of forms; what comes again is kept again."""
    made = forms(*(b"%d" % n for n in range(50)))
    assert repr(made) == "<HeadForms 1 forms, 2 plans>"
    assert made.find(head(1, b"49")) is not None and made.find(head(1, b"3")) is None
    made.keep(plan("49"), head(3, b"49"), 6)
    assert repr(made) == "<HeadForms 1 forms, 2 plans>", "one that is kept already"

    for n in range(1, 20):
        lines = b"".join(b"x-%d: a\r\n" % at for at in range(n))
        text = b"GET / HTTP/1.1\r\n%bx-id: 1\r\n\r\n" % lines
        made.keep(Plan("long", (n + 1,), (b"x-id: ",), has_length=False, named=True), text, n + 2)
        assert made.find(text) is not None
    assert int(repr(made).split()[1]) <= 8

    made.clear()
    assert made.find(head()) is None and repr(made) == "<HeadForms 0 forms, 0 plans>"
