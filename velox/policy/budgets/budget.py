"""A budget as it is configured: how much may be spent in each window of time, and which window a moment is in.

    parse_budget()   fields as JSON or YAML have them to a Budget; an error names the field
    window_at()      the window of a moment, by the budget's period and time zone

Knows: amounts, periods, calendars. Does not know: a clock, whose budget it is, or what has been spent.

A window is never moved by what happens in it: it follows from the moment, the period and the zone alone. So all
workers, all replicas and a restarted gateway have the same windows, and two of them can't reset a budget twice.

    length     `30d`, `24h`: windows of equal length, one after the other, from `start_s` on (1970-01-01 if not given)
    calendar   minute, hour, day, week (from Monday), month, year: of the calendar of `zone`. A day has 23 to 25 hours
               when clocks change; 29 February is a day of its month like any other
    total      one window without an end
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from velox.policy.spellings import whole
from velox.types import Budget, BudgetPeriod

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

__all__ = [
    "BUDGET_FIELDS",
    "CALENDAR",
    "MOST_SOFT",
    "MOST_TOKENS",
    "MOST_USD",
    "MOST_WINDOW_S",
    "NANO_PER_USD",
    "TOTAL",
    "WINDOW_UNITS_S",
    "Budget",
    "BudgetError",
    "BudgetPeriod",
    "BudgetWindow",
    "parse_budget",
    "parse_budget_text",
    "period_text",
    "same_windows",
    "usd_text",
    "window_at",
]

CalendarPeriod: TypeAlias = Literal["minute", "hour", "day", "week", "month", "year", "total"]
TOTAL: Final = "total"

NANO_PER_USD: Final = 10**9
MOST_USD: Final = 10**9
MOST_TOKENS: Final = 10**15
BUDGET_FIELDS: Final = ("usd", "tokens", "window", "zone", "starts", "soft", "strict", "unpriced")

CALENDAR: Final[Mapping[str, CalendarPeriod]] = {
    "minute": "minute",
    "hour": "hour",
    "day": "day",
    "week": "week",
    "month": "month",
    "year": "year",
    "total": "total",
}
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
WINDOW_UNITS_S: Final = {"s": 1, "m": 60, "h": _HOUR_S, "d": _DAY_S, "w": 7 * _DAY_S}
MOST_WINDOW_S: Final = 3660 * _DAY_S
MOST_SOFT: Final = 10
# Years that the calendar can count from and to, in each time zone.
_FIRST_S: Final = 0
_LAST_S: Final = 253_370_764_800  # begin of the year 9999
_MOST_CHARS: Final = 64

# [0-9] and fullmatch: int() and Decimal() would also take other scripts' digits, " 12" and "1_2".
_LENGTH: Final = re.compile(r"([0-9]{1,9})([smhdw])")
_USD: Final = re.compile(r"[0-9]{1,10}(\.[0-9]{1,9})?")
_COUNT: Final = re.compile(r"([0-9]{1,16})([kM]?)")
_TIMES: Final = {"": 1, "k": 10**3, "M": 10**6}
_SHORT: Final = re.compile(r"([0-9.]{1,24}[kM]?) ?(usd|tokens) ?/ ?([a-z0-9]{1,16})")
_PERCENT: Final = re.compile(r"([0-9]{1,3})%?")


class BudgetError(ValueError):
    """A field can't be used. field: its name. The message says what was expected, and never shows the value."""

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field}: {expected}")
        self.field: Final = field
        self.expected: Final = expected


class BudgetWindow(NamedTuple):
    """Unix times in seconds: from the first to before the last. end_s: None: it has no end."""

    start_s: int
    end_s: int | None

    @property
    def number(self) -> int:
        """Return what no other window of its budget has; above 0, and higher for a later one."""
        return self.start_s + 1


def window_at(budget: Budget, now_s: float) -> BudgetWindow:
    """Return the window that a moment is in. now_s: Unix time."""
    now = min(max(math.floor(now_s), _FIRST_S), _LAST_S)
    period = budget.window
    if period == "total":
        return BudgetWindow(0, None)
    if isinstance(period, int):
        begin = budget.start_s + (now - budget.start_s) // period * period
        return BudgetWindow(max(begin, 0), begin + period)
    zone = _zone_info(budget.zone)
    local = datetime.datetime.fromtimestamp(now, zone)
    if period in ("minute", "hour"):
        # By the zone's distance from UTC at this moment: the hour that comes twice is two hours.
        length = 60 if period == "minute" else _HOUR_S
        offset = local.utcoffset()
        ahead = 0 if offset is None else int(offset.total_seconds())
        begin = (now + ahead) // length * length - ahead
        return BudgetWindow(max(begin, 0), begin + length)
    first, following = _days(local.date(), period)
    return BudgetWindow(max(_midnight_s(first, zone), 0), _midnight_s(following, zone))


def _days(day: datetime.date, period: CalendarPeriod) -> tuple[datetime.date, datetime.date]:
    """Return the first day of a period, and the first of the next one."""
    if period == "day":
        return day, day + datetime.timedelta(days=1)
    if period == "week":
        monday = day - datetime.timedelta(days=day.weekday())
        return monday, monday + datetime.timedelta(days=7)
    if period == "month":
        first = day.replace(day=1)
        return first, (first + datetime.timedelta(days=32)).replace(day=1)
    first = day.replace(month=1, day=1)
    return first, first.replace(year=first.year + 1)


def _zone_info(name: str) -> ZoneInfo:
    """Return a time zone. Raises what ZoneInfo does."""
    # Here, not above: most gateways have no budgets, and need no time zones.
    from zoneinfo import ZoneInfo

    return ZoneInfo(name)


def _midnight_s(day: datetime.date, zone: ZoneInfo) -> int:
    """Return when a day begins. Where clocks skip midnight, that is when they do so."""
    return int(datetime.datetime(day.year, day.month, day.day, tzinfo=zone).timestamp())


def same_windows(budget: Budget) -> tuple[str, BudgetPeriod, str, int]:
    """Return what decides the windows of a budget and what is counted in them; its limit may change meanwhile."""
    return "tokens" if budget.is_tokens else "usd", budget.window, budget.zone, budget.start_s


def period_text(budget: Budget) -> str:
    """Return the period as people write it."""
    if not isinstance(budget.window, int):
        return budget.window
    for unit, length in (("d", _DAY_S), ("h", _HOUR_S), ("m", 60)):
        if not budget.window % length:
            return f"{budget.window // length}{unit}"
    return f"{budget.window}s"


def usd_text(nano: int) -> str:
    """Return nano-dollars as an exact decimal number of dollars, with two places at least."""
    sign, nano = ("-", -nano) if nano < 0 else ("", nano)
    whole, part = divmod(nano, NANO_PER_USD)
    return f"{sign}{whole}.{f'{part:09d}'.rstrip('0').ljust(2, '0')}"


# -- parsing ------------------------------------------------------------------------------------------


def parse_budget(fields: Mapping[str, object]) -> Budget:
    """Return the budget that fields give. Raises BudgetError with the first field that is wrong.

    fields: as JSON or YAML gives them: numbers, truth values, lists; or texts that mean them.

        usd, tokens   the limit: one of them. usd: a number or a decimal text, 9 places at most
        window        `30d`, `12h`; minute, hour, day, week, month, year; total
        zone          of the calendar; UTC if not given
        starts        RFC 3339 day or time at which a window of a given length begins
        soft          percent, one or a list
        strict        true or false
        unpriced      refuse or allow
    """
    for name in fields:
        if name not in BUDGET_FIELDS:
            raise BudgetError(str(name)[:_MOST_CHARS], f"unknown field; a budget has {', '.join(BUDGET_FIELDS)}")
    given = {name: value for name, value in fields.items() if value is not None}
    if ("usd" in given) == ("tokens" in given):
        name = "tokens" if "tokens" in given else "usd"
        raise BudgetError(name, "expected one of usd and tokens; two budgets hold together")
    if "window" not in given:
        raise BudgetError("window", f"expected {_WINDOWS}")
    period = _window(given["window"])
    if "unpriced" in given and "tokens" in given:
        raise BudgetError("unpriced", "a budget of tokens needs no price")
    return Budget(
        _usd(given["usd"]) if "usd" in given else None,
        _tokens(given["tokens"]) if "tokens" in given else None,
        period,
        _zone(given["zone"], period) if "zone" in given else "UTC",
        _soft(given["soft"]) if "soft" in given else (),
        _truth("strict", given["strict"]) if "strict" in given else False,
        _refuses(given["unpriced"]) if "unpriced" in given else True,
        _starts(given["starts"], period) if "starts" in given else 0,
    )


def parse_budget_text(text: str) -> Budget:
    """Return the budget of a short text: `20 usd/month`, `2M tokens/24h`. Raises BudgetError."""
    match = _SHORT.fullmatch(text)
    if match is None:
        raise BudgetError("budgets", "expected texts such as `20 usd/month` or `2M tokens/24h`")
    return parse_budget({match[2]: match[1], "window": match[3]})


_WINDOWS: Final = "a length such as 24h or 30d, or minute, hour, day, week, month, year or total"


def _usd(value: object) -> int:
    expected = f"expected dollars from 0 to {MOST_USD}, with 9 decimal places at most"
    text = ""
    if isinstance(value, str):
        text = value
    elif isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_USD:
        text = str(value)
    elif isinstance(value, float) and 0 <= value <= MOST_USD:  # neither NaN nor infinite
        text = f"{Decimal(repr(value)):f}"
    if len(text) > _MOST_CHARS or not _USD.fullmatch(text):
        raise BudgetError("usd", expected)
    nano = int(Decimal(text) * NANO_PER_USD)
    if nano > MOST_USD * NANO_PER_USD:
        raise BudgetError("usd", expected)
    return nano


def _tokens(value: object) -> int:
    n = _whole(value)
    if n is None or n > MOST_TOKENS:
        raise BudgetError("tokens", f"expected a whole number from 0 to {MOST_TOKENS}, for example 500000, 200k or 2M")
    return n


def _whole(value: object) -> int | None:
    """Return a whole number that is not negative; None: it is none."""
    if isinstance(value, str):
        match = _COUNT.fullmatch(value)
        return int(match[1]) * _TIMES[match[2]] if match else None
    value = whole(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


def _window(value: object) -> BudgetPeriod:
    if isinstance(value, str) and value in CALENDAR:
        return CALENDAR[value]
    length = 0
    if isinstance(value, str):
        match = _LENGTH.fullmatch(value)
        length = int(match[1]) * WINDOW_UNITS_S[match[2]] if match else 0
    elif isinstance(n := whole(value), int) and not isinstance(n, bool):
        length = n  # seconds, from JSON
    if not 1 <= length <= MOST_WINDOW_S:
        raise BudgetError("window", f"expected {_WINDOWS}; the longest length is {MOST_WINDOW_S // _DAY_S}d")
    return length


def _zone(value: object, period: BudgetPeriod) -> str:
    expected = "expected a name of the IANA time zone database, for example Europe/Berlin"
    if not isinstance(value, str) or not value or len(value) > _MOST_CHARS:
        raise BudgetError("zone", expected)
    try:
        _zone_info(value)
    except (KeyError, OSError, ValueError):  # there is none, or the name leads out of the database's folder
        raise BudgetError("zone", f"{expected}; this system has no such zone") from None
    if isinstance(period, int) or period == "total":
        raise BudgetError("zone", "only a window of the calendar has a time zone: minute, hour, day, week, month, year")
    return value


def _starts(value: object, period: BudgetPeriod) -> int:
    expected = "expected a day or time in UTC such as 2026-01-31 or 2026-01-31T12:00:00Z"
    if not isinstance(period, int):
        raise BudgetError("starts", "only a window with a length, such as 30d, has a start")
    if not isinstance(value, str) or len(value) > _MOST_CHARS:
        raise BudgetError("starts", expected)
    try:
        found = datetime.datetime.fromisoformat(value)
    except ValueError:
        raise BudgetError("starts", expected) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=datetime.UTC)
    seconds = math.floor(found.timestamp())
    if not _FIRST_S <= seconds < _LAST_S:
        raise BudgetError("starts", expected)
    return seconds


def _soft(value: object) -> tuple[int, ...]:
    expected = f"expected percent of the limit from 1 to 100, {MOST_SOFT} of them at most, for example [50, 80, 100]"
    values = list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
    found: set[int] = set()
    for each in values:
        match = _PERCENT.fullmatch(each) if isinstance(each, str) else None
        n = int(match[1]) if match else _whole(each) if not isinstance(each, str) else None
        if n is None or not 1 <= n <= 100:
            raise BudgetError("soft", expected)
        found.add(n)
    if not found or len(found) > MOST_SOFT:
        raise BudgetError("soft", expected)
    return tuple(sorted(found))


def _truth(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "on", "yes"):
        return True
    if value in ("false", "off", "no"):
        return False
    raise BudgetError(name, "expected true or false")


def _refuses(value: object) -> bool:
    if value not in ("refuse", "allow"):
        raise BudgetError("unpriced", "expected refuse or allow")
    return value == "refuse"
