"""X7: an event has no more values than a plain answer or a request, in whichever form a stream comes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.bedrock_frames import frame
from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.converse.frames import Frames
from velox.dialects.generate.json_items import JsonItems
from velox.protocol.sse_events import SseEvents

READ_BYTES = 128 * 1024  # of an upstream's connection
MOST_BYTES = 4 * 1024 * 1024
FORMS: dict[str, tuple[Callable[[], SseEvents | JsonItems | Frames], Callable[[bytes], bytes]]] = {
    "events": (lambda: SseEvents(MOST_BYTES), lambda text: b"data: %b\n\n" % text),
    "array": (lambda: JsonItems(MOST_BYTES), lambda text: b"[%b" % text),
    "frames": (Frames, lambda text: frame("event", "chunk", text)),
}


def fed(form: str, text: bytes) -> int:
    """Return how many events there are."""
    make, written = FORMS[form]
    reader, stream = make(), written(text)
    return sum(len(reader.feed(stream[at : at + READ_BYTES])) for at in range(0, len(stream), READ_BYTES))


@pytest.mark.parametrize("form", FORMS)
def test_event_of_too_many_values_is_broken(form: str) -> None:
    with pytest.raises(BrokenReplyError, match="over 200,000 values"):
        fed(form, b'{"x":[%b1]}' % (b"1," * 200_001))


@pytest.mark.parametrize("form", FORMS)
def test_commas_of_a_text_are_no_values(form: str) -> None:
    assert fed(form, b'{"x":"%b"}' % (b"," * 300_000)) == 1


@pytest.mark.parametrize("form", FORMS)
def test_what_has_come_of_an_event_is_told(form: str) -> None:
    """From then on more is read beside the loop; of what is whole nothing is held."""
    make, written = FORMS[form]
    reader, stream = make(), written(b'{"x":"%b"}' % (b"a" * 900_000))
    for at in range(0, 400_000, READ_BYTES):
        reader.feed(stream[at : at + READ_BYTES])
    n_fed = -(-400_000 // READ_BYTES) * READ_BYTES
    assert n_fed - 16 <= reader.n_held <= n_fed
    reader.feed(stream[n_fed:])
    assert reader.n_held == 0
