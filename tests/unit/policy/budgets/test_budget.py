"""Budgets as they are configured: their fields, and which window a moment is in."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox.policy.budgets.budget import (
    BUDGET_FIELDS,
    Budget,
    BudgetError,
    BudgetWindow,
    parse_budget,
    parse_budget_text,
    period_text,
    same_windows,
    usd_text,
    window_at,
)

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "Africa/Cairo")
HOUR = 3600
DAY = 24 * HOUR
ANYTHING = st.none() | st.booleans() | st.text() | st.integers() | st.floats() | st.lists(st.integers() | st.text())


def at(text: str, zone: str = "UTC") -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def between(start: str, end: str) -> BudgetWindow:
    return BudgetWindow(int(at(start)), int(at(end)))


def budget(window: str, zone: str = "UTC", **more: object) -> Budget:
    fields: dict[str, object] = {"usd": "10", "window": window, **more}
    return parse_budget(fields if zone == "UTC" else {**fields, "zone": zone})


# -- fields -------------------------------------------------------------------------------------------


def test_budget_of_money_is_kept_in_nano_dollars() -> None:
    """A budget's dollars are exact to nine places, as a text, a float or an integer."""
    for given_usd, nano in (("0.000000001", 1), (25, 25 * 10**9), (0.1, 10**8), ("12.50", 12_500_000_000), (1e-7, 100)):
        found = parse_budget({"usd": given_usd, "window": "day"})
        assert (found.limit_nano, found.limit_tokens, found.limit, found.is_tokens) == (nano, None, nano, False)


def test_budget_of_tokens_takes_thousands_and_millions() -> None:
    for given_tokens, n in ((5, 5), ("200k", 200_000), ("2M", 2_000_000), (0, 0)):
        found = parse_budget({"tokens": given_tokens, "window": "30d"})
        assert (found.limit_nano, found.limit_tokens, found.is_tokens) == (None, n, True)


def test_budget_has_all_its_fields() -> None:
    found = parse_budget(
        {"usd": "5", "window": "month", "zone": "Europe/Berlin", "soft": [100, 50], "strict": True, "unpriced": "allow"}
    )
    assert found == Budget(5 * 10**9, None, "month", "Europe/Berlin", (50, 100), strict=True, refuses_unpriced=False)
    assert parse_budget({"usd": 1, "window": "30d", "starts": "1970-01-02"}).start_s == DAY
    assert parse_budget({"usd": 1, "window": "day", "soft": "80%", "strict": "false"}).soft == (80,)


WRONG: Mapping[str, Sequence[object]] = {
    "usd": [
        *(-1, "-1", float("nan"), float("inf"), -0.5, True, "NaN", "1e3", "1_0", " 1", "٣", "", 10**10, "9" * 400),
        *(10**400, 1e308, 1e-10, [1], {"a": 1}, b"1"),
    ],
    "tokens": [-1, 1.5, True, "1.5", "x", 10**16, float("nan"), [5]],
    "window": ["", "0d", "1mo", "days", 0, -5, True, 1.5, "99999999w", []],
    "zone": ["", "Mars/Base", "../x", "/etc/passwd", 1, "\ud800"],
    "soft": [0, 101, [], [True], "a", [50.5], -1, {}, list(range(1, 12))],
    "strict": [1, "perhaps"],
    "unpriced": ["no", True],
    "max": [5],
    "windows": ["day"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_field_with_a_wrong_value_is_named(name: str, value: object) -> None:
    """Negative, huge, NaN, truth values, foreign digits and unknown fields are refused, by the field's name."""
    fields: dict[str, object] = {"tokens" if name == "tokens" else "usd": 1, "window": "day"}
    with pytest.raises(BudgetError) as caught:
        parse_budget({**fields, name: value})
    assert caught.value.field == name
    assert str(caught.value).startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"tokens": 1, "window": "day", "unpriced": "allow"}, "unpriced"),
        ({"usd": 1, "tokens": 1, "window": "day"}, "tokens"),
        ({"window": "day"}, "usd"),
        ({"usd": 1}, "window"),
        ({"usd": 1, "window": "30d", "zone": "Europe/Berlin"}, "zone"),
        ({"usd": 1, "window": "day", "starts": "2026-01-01"}, "starts"),
        ({"usd": 1, "window": "30d", "starts": "soon"}, "starts"),
        ({"usd": 1, "window": "30d", "starts": 5}, "starts"),
    ],
)
def test_fields_that_do_not_fit_together_are_named(fields: Mapping[str, object], name: str) -> None:
    with pytest.raises(BudgetError) as caught:
        parse_budget(fields)
    assert caught.value.field == name


def test_name_of_an_unknown_field_is_shown_in_part() -> None:
    """It may be as long as a body."""
    with pytest.raises(BudgetError) as caught:
        parse_budget({"n" * 100_000: 1})
    assert set(caught.value.field) == {"n"} and len(str(caught.value)) < 300


@given(st.dictionaries(st.sampled_from([*BUDGET_FIELDS, "x"]), ANYTHING))
def test_any_fields_are_a_budget_or_an_error_that_names_one(fields: dict[str, object]) -> None:
    try:
        found = parse_budget(fields)
    except BudgetError as exc:
        assert exc.field
    else:
        assert found.limit >= 0
        window_at(found, 1_700_000_000)


def test_amounts_and_periods_are_written_as_people_do() -> None:
    amounts = {0: "0.00", 1: "0.000000001", 10**9: "1.00", 12_340_000_000: "12.34", -5 * 10**8: "-0.50"}
    assert {nano: usd_text(nano) for nano in amounts} == amounts
    periods = {"30d": "30d", "2w": "14d", "90m": "90m", "1h": "1h", "5s": "5s", "month": "month"}
    assert {each: period_text(budget(each)) for each in periods} == periods


def test_short_text_is_a_budget() -> None:
    assert parse_budget_text("20 usd/month") == parse_budget({"usd": 20, "window": "month"})
    assert parse_budget_text("0.5usd / 24h") == parse_budget({"usd": "0.5", "window": "24h"})
    assert parse_budget_text("2M tokens/day") == parse_budget({"tokens": "2M", "window": "day"})
    for wrong in ("", "20/month", "20 eur/month", "-1 usd/day", "1..2 usd/day", "5 usd/1mo", "20 usd", "5k usd/day"):
        with pytest.raises(BudgetError):
            parse_budget_text(wrong)


# -- windows ------------------------------------------------------------------------------------------


def test_case_09_thirty_days_are_no_month() -> None:
    """`30d` is always 30 days; a month is as long as the calendar's."""
    assert window_at(budget("month"), at("2027-01-31T23:59:59")) == between("2027-01-01", "2027-02-01")
    assert window_at(budget("month"), at("2027-02-01")) == between("2027-02-01", "2027-03-01")
    thirty = budget("30d", starts="2027-01-01")
    assert window_at(thirty, at("2027-01-31")) == between("2027-01-31", "2027-03-02")
    later = budget("30d", starts="2027-01-31")
    assert window_at(later, at("2027-01-30")) == between("2027-01-01", "2027-01-31")


def test_case_09_29_february_is_in_its_month() -> None:
    assert window_at(budget("month"), at("2028-02-29T12:00")) == between("2028-02-01", "2028-03-01")
    assert window_at(budget("day"), at("2028-02-29T12:00")) == between("2028-02-29", "2028-03-01")
    assert window_at(budget("year"), at("2028-02-29")) == between("2028-01-01", "2029-01-01")
    assert window_at(budget("month"), at("2027-02-28T23:59:59"))[1] == at("2027-03-01")


def test_case_09_day_when_clocks_change_has_23_or_25_hours() -> None:
    berlin = budget("day", "Europe/Berlin")
    spring, autumn = (window_at(berlin, at(f"2027-{day}T12:00", "Europe/Berlin")) for day in ("03-28", "10-31"))
    assert [end - start for start, end in (spring, autumn) if end is not None] == [23 * HOUR, 25 * HOUR]
    assert spring[0] == at("2027-03-28", "Europe/Berlin")
    # The hour that comes twice is two hours, each a window of its own.
    hourly = budget("hour", "Europe/Berlin")
    first = window_at(hourly, at("2027-10-31T00:30"))
    again = window_at(hourly, at("2027-10-31T01:30"))
    assert again == (first[0] + HOUR, first[0] + 2 * HOUR)
    # Where clocks skip midnight itself, the day begins when they do.
    cairo = window_at(budget("day", "Africa/Cairo"), at("2027-04-30T12:00", "Africa/Cairo"))
    assert cairo[1] is not None and cairo[1] - cairo[0] == 23 * HOUR


def test_case_09_zone_decides_when_a_week_begins() -> None:
    sunday_evening = at("2026-11-22T23:30")
    assert window_at(budget("week"), sunday_evening)[0] == at("2026-11-16")
    assert window_at(budget("week", "Europe/Berlin"), sunday_evening)[0] == at("2026-11-23", "Europe/Berlin")
    assert window_at(budget("hour", "Asia/Kathmandu"), at("2026-11-22T12:20"))[0] == at("2026-11-22T12:15")


def test_total_has_one_window_for_ever() -> None:
    assert window_at(budget("total"), 5.0) == window_at(budget("total"), 4e9) == (0, None)
    assert window_at(budget("total"), 5.0).number == 1


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("period", ["minute", "hour", "day", "week", "month", "year", "30d", "7s"])
@settings(max_examples=15)
@given(now_s=st.integers(0, 2**33))
def test_each_moment_is_in_one_window_and_windows_follow_each_other(zone: str, period: str, now_s: int) -> None:
    """A window contains its moment, is the same at its start and end, and the next one has a higher number."""
    each = budget(period) if period[0].isdigit() else budget(period, zone)
    window = window_at(each, now_s)
    assert window.end_s is not None
    assert window.start_s <= now_s < window.end_s
    after = window_at(each, window.end_s)
    assert after.number > window.number
    if period not in ("minute", "hour") or zone != "Australia/Lord_Howe":  # where clocks move by half an hour
        assert window_at(each, window.start_s) == window == window_at(each, window.end_s - 0.001)
        assert after.start_s == window.end_s


def test_windows_of_two_years_leave_no_gap() -> None:
    for zone in ZONES:
        daily = budget("day", zone)
        windows = [window_at(daily, at("2026-01-01T12:00", zone) + n * DAY) for n in range(730)]
        assert all(first.end_s == second.start_s for first, second in pairwise(windows))


def test_changed_limit_keeps_the_window_and_a_changed_period_does_not() -> None:
    """What decides a budget's windows is its period, zone and start: a new limit counts for what is spent already."""
    one, other = parse_budget({"usd": 1, "window": "day"}), parse_budget({"usd": 9, "window": "day", "soft": 80})
    assert same_windows(one) == same_windows(other)
    assert same_windows(one) != same_windows(parse_budget({"usd": 1, "window": "month"}))
    assert same_windows(one) != same_windows(parse_budget({"tokens": 1, "window": "day"}))
    now = at("2026-11-23T12:00")
    assert window_at(budget("day"), now)[0] >= window_at(budget("month"), now)[0]
