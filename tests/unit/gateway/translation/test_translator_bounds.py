"""What a plain answer may come to in another API (gateway/translation/translators.py)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.unit.gateway.translation.test_translation import JSON
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.model import Answer, Event, Stop, StopReason, Text
from velox.errors import VeloxError
from velox.gateway.reply.filters import FilterChain
from velox.gateway.translation.translated_reply import TranslatedReply
from velox.gateway.translation.translators import GenerationTranslator, NonStreamingTranslator
from velox.heads import ReplyHead
from velox.protocol.usage.token_usage import TokenUsage


class ManyEvents:
    """A client each of whose events has a megabyte, and a model that answers with so many texts."""

    takes_pictures = True

    def __init__(self, n_texts: int) -> None:
        self.n_written = 0
        self._n_texts = n_texts

    def answer(self, body: bytes) -> Answer:
        return Answer("a", "m", [Text(b'"x"') for _ in range(self._n_texts)], Stop(StopReason.END))

    def stream(self) -> ManyEvents:
        return self

    def write(self, event: Event) -> bytes:
        self.n_written += 1
        return bytes(1 << 20)


def test_answer_whose_events_grow_over_a_bound_is_broken() -> None:
    """X7: 57 MB with a million blocks became 360 MB. No more of it is written than the bound."""
    many = ManyEvents(1000)

    with pytest.raises(BrokenReplyError, match="would have over 134217728 bytes"):
        GenerationTranslator(cast(Any, many), cast(Any, many), DroppedFields()).whole_stream(b"{}")
    assert many.n_written == 129


class Vectors:
    """Puts back what it is given."""

    dropped: tuple[str, ...] = ()
    tokens = TokenUsage()

    def answer(self, body: bytes) -> bytes:
        return body

    def read_error(self, *_: object) -> Any:
        raise AssertionError

    def error(self, *_: object) -> Any:
        raise AssertionError


@pytest.mark.parametrize(("n", "is_too_many"), [(300_000, False), (8_000_001, True)])
def test_numbers_of_vectors_have_a_bound_of_their_own(n: int, is_too_many: bool) -> None:
    """A hundred texts of 3,072 numbers each are usual, and were refused as over 200,000 values."""
    made = TranslatedReply(NonStreamingTranslator(Vectors()), lambda _: None, is_stream=False, has_limits=False)
    chain = FilterChain((made,), is_sse=False, is_plain=True)
    chain.begin(ReplyHead.of(200, [JSON], None))
    body = b"[%b0]" % (b"1," * n)
    assert chain.feed(body, True) == b""
    chain.work()

    if is_too_many:
        with pytest.raises(VeloxError, match="over 8,000,000 fields and values"):
            chain.go_on()
        return
    out = [chain.go_on()]
    while chain.is_behind:
        out.append(chain.go_on())
    assert b"".join(out) == body
