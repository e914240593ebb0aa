"""Replies that are made up, in any spelling and cut anywhere, are read as a bookkeeper reads them."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.e2e.exam.bookkeeper import Bill, bill_of, price_file
from tests.e2e.exam.made import MadeReply, made_reply
from velox.prices.book import PriceBook, Seller
from velox.prices.overrides import read_overrides
from velox.prices.table import shipped_table
from velox.protocol.usage.reader import GOOGLE_KEY, BodyUsage, StreamUsage
from velox.protocol.usage.token_usage import TokenUsage

MODELS = {"openai": "exam", "anthropic": "cla-exam", "google": "gem-exam"}
FIELDS = [field.name for field in dataclasses.fields(Bill) if field.type == "int"]


@pytest.fixture(scope="module")
def book() -> PriceBook:
    entries = json.loads(price_file())["prices"]
    return PriceBook(shipped_table(), read_overrides(entries))


def read(reply: MadeReply) -> TokenUsage:
    key = GOOGLE_KEY if reply.dialect == "google" else b'"usage"'
    reader = StreamUsage(key) if reply.is_stream else BodyUsage(key)
    for piece in reply.pieces:
        reader.feed(piece)
    tokens, kinds = reader.tokens(), reader.kinds()
    assert tokens == (kinds.input, kinds.output)
    return kinds


def nano(book: PriceBook, asked: str, usage: TokenUsage) -> int | None:
    """Return what Velox says that it costs."""
    price = book.find(Seller("one"), asked, usage.model, usage.tier, 0)
    cost = None if price is None else price.cost(usage)
    return None if cost is None else cost.nano


@pytest.mark.parametrize("n_replies", [400, pytest.param(60_000, marks=pytest.mark.more)])
def test_made_replies_cost_what_the_bookkeeper_says(book: PriceBook, n_replies: int) -> None:
    """Each kind of tokens, and the cost to the nano-dollar."""
    for seed in range(n_replies):
        reply = made_reply(seed)
        bill = bill_of(reply.body, dialect=reply.dialect, model=MODELS[reply.dialect])
        usage = read(reply)
        told = {name: getattr(usage, name) or 0 for name in FIELDS}
        assert told == {name: getattr(bill, name) for name in FIELDS}, (seed, reply.body[:2000])
        assert nano(book, MODELS[reply.dialect], usage) == bill.nano, (seed, usage, bill, reply.body[:2000])
