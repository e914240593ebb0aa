"""Heads that are found by one pattern: which are, which are not, and how many are kept."""

from __future__ import annotations

import pytest

from velox.protocol.heads.layouts import HeadForms, Layout
from velox.protocol.heads.memory import MOST_HEAD_BYTES, Plan

HEAD = b"GET /%b HTTP/1.1\r\nHost: a\r\nx-id: %d\r\nAccept: */*\r\nx-trace: %d\r\nContent-Length: %d\r\n\r\n"


def head(n: int = 1, path: bytes = b"x") -> bytes:
    return HEAD % (path, n, n + 1, n + 2)


def plan(name: str = "plan") -> Plan[bytes, str]:
    return Plan(name, (2, 4, 5), (b"x-id: ", b"x-trace: ", b"Content-Length: "), has_length=True, named=True)


def layout(plan: Plan[bytes, str], n_lines: int) -> Layout:
    return Layout(plan.places, plan.starts, plan.has_length, n_lines)


def forms(*paths: bytes, most_plans: int = 4) -> HeadForms[Plan[bytes, str]]:
    made = HeadForms[Plan[bytes, str]](most_plans)
    for path in paths:
        known = plan(path.decode())
        made.keep(known, head(1, path), layout(known, 6))
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
    made = HeadForms[Plan[bytes, str]](4)
    text = b"GET / HTTP/1.1\r\ncontent-length: %d\r\nx-id: %b\r\n\r\n"
    known = Plan("first", (2, 1), (b"x-id: ", b"content-length: "), has_length=True, named=True)
    made.keep(known, text % (1, b"a"), layout(known, 3))

    assert made.find(text % (22, b"b")) == (known, (b"b", b"22"), len(text % (22, b"b")))


def test_head_without_volatile_fields_is_found() -> None:
    """By its texts alone."""
    made = HeadForms[Plan[bytes, str]](4)
    known = Plan[bytes, str]("all", (), (), has_length=False, named=True)
    text = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    made.keep(known, text, layout(known, 2))

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
    known = Plan[bytes, str]("other", (1,), (b"x-id: ",), has_length=False, named=True)
    made.keep(known, other % 1, layout(known, 3))

    for _ in range(3):
        for text, name in ((other % 5, "other"), (head(5, b"y"), "y"), (head(6, b"x"), "x")):
            found = made.find(text)
            assert found is not None and found[0].shape == name


def kind(n: int) -> bytes:
    """Return a head with so many fields, of which the last is volatile."""
    lines = b"".join(b"x-%d: a\r\n" % at for at in range(n))
    return b"GET / HTTP/1.1\r\n%bx-id: 1\r\n\r\n" % lines


def keep_kind(made: HeadForms[Plan[bytes, str]], n: int) -> None:
    known = Plan[bytes, str]("kind", (n + 1,), (b"x-id: ",), has_length=False, named=True)
    made.keep(known, kind(n), layout(known, n + 2))


def test_what_is_kept_is_bounded() -> None:
    """Of plans, and of forms; what comes again is kept again."""
    made = forms(*(b"%d" % n for n in range(50)))
    assert repr(made) == "<HeadForms 1 forms, 2 plans>"
    assert made.find(head(1, b"49")) is not None and made.find(head(1, b"3")) is None
    made.keep(plan("49"), head(3, b"49"), layout(plan(), 6))
    assert repr(made) == "<HeadForms 1 forms, 2 plans>", "one that is kept already"

    for n in range(1, 20):
        keep_kind(made, n)
    _, n_forms, _, n_plans, _ = repr(made).split()
    assert (int(n_forms), int(n_plans) <= 4) == (8, True)

    made.clear()
    assert made.find(head()) is None and repr(made) == "<HeadForms 0 forms, 0 plans>"


RUN = Layout((3, 5), (b"x-id: ", b"Content-Length: "), has_length=True, n_lines=6, run_at=2, behind=b"x-id: ")


def with_run(run: bytes) -> bytes:
    return b"GET / HTTP/1.1\r\nHost: a\r\n%bx-id: 1\r\nAccept: */*\r\nContent-Length: 2\r\n\r\n" % run


@pytest.mark.parametrize("run", [b"x-a: b\r\n", b"x-a: b\r\nX-C.2: d: e\r\n", b"x-i: 1\r\nHost: b\r\n"])
def test_run_of_extra_fields_is_the_last_value(run: bytes) -> None:
    """Whatever their names are: they are looked at by who asked."""
    made = HeadForms[str](4)
    made.keep("plan", with_run(b"x-first: 1\r\n"), RUN)

    assert made.find(with_run(run)) == ("plan", (b"1", b"2", run), len(with_run(run)))


@pytest.mark.parametrize(
    "run",
    [
        *(b"", b"x-id: 2\r\n", b"x-a: b\r\nx-id: 2\r\n", b"x-a: b\n", b"x-a: b\r\n\r\n", b"x-a\r\n", b" x-a: b\r\n"),
        *(b"x-a:b\r\n", b"x-a : b\r\n", b"x_a: b\r\n", b"x-a: \r\n", b"x-a:  b\r\n", b"x-a: b \r\n", b"x-a: b\tc\r\n"),
    ],
)
def test_run_of_other_lines_is_not_found(run: bytes) -> None:
    """Of none, of the field behind it, and of lines that servers may read in different ways."""
    made = HeadForms[str](4)
    made.keep("plan", with_run(b"x-first: 1\r\n"), RUN)

    assert made.find(with_run(run)) is None


def test_heads_that_come_most_often_stay_known() -> None:
    """However many other kinds come beside them, as from a client that sends each head in another form."""
    made = HeadForms[Plan[bytes, str]](256)
    n_found = 0
    for n in range(500):
        for each in (*range(1, 5), 5 + n % 40):
            if made.find(kind(each)) is None:
                keep_kind(made, each)
            else:
                n_found += each < 5
    assert n_found == 4 * 500 - 4


def test_new_kind_takes_the_place_of_one_that_comes_no_more() -> None:
    """After some heads that no form was there for."""
    made = HeadForms[Plan[bytes, str]](256)
    for n in range(1, 9):
        keep_kind(made, n)
    for _ in range(20):
        if made.find(kind(20)) is None:
            keep_kind(made, 20)
    assert made.find(kind(20)) is not None
    assert repr(made) == "<HeadForms 8 forms, 8 plans>"


def test_form_is_made_seldom_where_it_is_asked() -> None:
    """Of so many heads that no form is there for, one has it made: a caller can't have one made with each head."""
    made = HeadForms[str](4, made_seldom=4)

    n_forms = []
    for n in range(8):
        made.keep("plan", with_run(b"x-a: b\r\n"), RUN._replace(behind=b"x-i"[: n % 2 + 2]))
        n_forms.append(int(repr(made).split()[1]))

    assert n_forms == [0, 0, 0, 1, 1, 1, 1, 1]
