"""The order of what a reply passes: one list, whatever adds a filter first."""

from __future__ import annotations

import itertools
import random

import pytest

from velox.gateway.access.ownership import Recording, WholeReply
from velox.gateway.answers.answers import BodyBudgetRelease
from velox.gateway.answers.kept_answers import ReadAnswer
from velox.gateway.cache.response_cache import CacheStoreFilter
from velox.gateway.join.led_call import JoinFilter
from velox.gateway.limits.cost_filter import CostFilter
from velox.gateway.limits.metering import Meter, UsageFilter
from velox.gateway.reply.addresses import AddressFilter
from velox.gateway.reply.capture import ReplyCapture
from velox.gateway.reply.early_error import EarlyErrorGate
from velox.gateway.reply.error_body import ErrorRedaction
from velox.gateway.reply.filters import ReplyFilter, insert_in_order
from velox.gateway.reply.headers import HeaderRuleFilter
from velox.gateway.reply.pipeline import FilterOrder
from velox.gateway.reply.timing import TimingFilter
from velox.gateway.request.litellm import LitellmFilter
from velox.gateway.translation.translated_reply import TranslatedReply

KINDS: list[type[ReplyFilter]] = [
    EarlyErrorGate,
    AddressFilter,
    ErrorRedaction,
    TranslatedReply,
    Meter,
    UsageFilter,
    Recording,
    ReadAnswer,
    JoinFilter,
    CacheStoreFilter,
    BodyBudgetRelease,
    CostFilter,
    HeaderRuleFilter,
    TimingFilter,
    LitellmFilter,
    ReplyCapture,
]


def test_each_kind_has_a_place_of_its_own_in_this_order() -> None:
    assert [kind.order for kind in KINDS] == list(FilterOrder)
    assert WholeReply.order == Recording.order


class At(ReplyFilter):
    """A filter that stands there."""

    def __init__(self, order: FilterOrder) -> None:
        super().__init__()
        self.order = order  # type: ignore[misc]  # of a class elsewhere


@pytest.mark.parametrize("seed", range(20))
def test_order_does_not_depend_on_who_comes_first(seed: int) -> None:
    rng = random.Random(seed)
    added = [At(order) for order in rng.choices(list(FilterOrder), k=rng.randrange(12))]

    filters: tuple[ReplyFilter, ...] = ()
    for each in added:
        filters = insert_in_order(filters, each)

    assert sorted(map(id, filters)) == sorted(map(id, added))
    assert all(first.order <= second.order for first, second in itertools.pairwise(filters))
    for order in FilterOrder:
        assert [each for each in filters if each.order == order] == [each for each in added if each.order == order]
