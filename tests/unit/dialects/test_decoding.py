"""Bodies of clients before any dialect reads them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import ClientCall, ClientSide
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.generate.write_reply import GenerateClient
from velox.dialects.json_text.decoding import checked_text
from velox.dialects.messages.write_reply import MessagesClient
from velox.dialects.responses.write_reply import ResponsesClient

_MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("make", "body"),
    [
        (ChatClient, b'{"model":"m","messages":[{"role":"user","content":"x"}]}'),
        (ResponsesClient, b'{"model":"m","input":"x"}'),
        (MessagesClient, b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}]}'),
        (GenerateClient, b'{"contents":[{"parts":[{"text":"x"}]}]}'),
    ],
)
def test_byte_order_mark_before_a_request_is_passed_over(
    make: Callable[[ClientCall, DroppedFields], ClientSide], body: bytes
) -> None:
    """A translated request is read as one that passes is."""
    found = [
        make(ClientCall("abc", 1, "m"), DroppedFields()).read(each)
        for each in (body, _MARK + body, bytearray(_MARK + body))
    ]

    assert found == [found[0]] * 3


def test_text_is_bytes_and_only_the_first_mark_goes() -> None:
    for text in (b"{}", b'"\xc3\xa9"', b"x" + _MARK):
        for given in (text, bytearray(text)):
            assert checked_text(given) == text
            assert type(checked_text(given)) is bytes
            assert checked_text(_MARK + given) == text


def test_body_that_is_not_utf8_is_refused_by_its_byte() -> None:
    with pytest.raises(BadRequestError, match="byte 4"):
        checked_text(_MARK + b"x\xff")
