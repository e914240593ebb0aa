"""A bounded memory: what is in use stays, whatever else comes."""

from __future__ import annotations

from velox.memo import Memo


def test_memo_never_holds_more_than_twice_its_limit() -> None:
    memo = Memo[int, str](10)

    for n in range(1000):
        memo.put(n, "x")
        assert len(memo) <= 20


def test_result_in_use_stays_while_others_come_and_go() -> None:
    """A caller that makes up keys takes no other caller's results."""
    memo = Memo[str, str](10)
    memo.put("used", "1")

    for n in range(1000):
        memo.put(f"made up {n}", "x")
        assert (memo.get("used") or memo.find("used")) == "1"


def test_result_not_in_use_is_forgotten() -> None:
    memo = Memo[str, str](10)
    memo.put("unused", "1")

    for n in range(30):
        memo.put(f"other {n}", "x")

    assert (memo.get("unused"), memo.find("unused")) == (None, None)


def test_cleared_memo_finds_nothing() -> None:
    memo = Memo[str, str](1)
    memo.put("a", "1")
    memo.put("b", "2")

    memo.clear()

    assert (memo.get("b"), memo.find("a"), len(memo)) == (None, None, 0)
