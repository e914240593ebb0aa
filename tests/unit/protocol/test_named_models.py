"""Documents that take long to look through for models: none holds up a worker, and none hides one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cpu_bound import assert_cpu_below
from velox.protocol.named_models import DoubtError, JsonScan, line_models, message_models, response_models

MANY = 2_000_000  # three bytes each, or more: all of it is looked at in one go
PAD = b'{"pad":"' + b"x" * 20_000 + b'",'  # a message that is not short


def models(body: bytes) -> list[str]:
    return JsonScan().models(body)


def of_line(line: bytes) -> list[str]:
    return line_models(line, is_batch=True)[1]


FLOODS: dict[str, tuple[Callable[[bytes], list[str]], bytes]] = {
    "fields": (models, b'{"model":"m",' + b'"a":0,' * MANY + b'"b":0}'),
    "fields that could name it": (models, b"{" + b"".join(b'"model%d":0,' % n for n in range(MANY // 4)) + b'"a":0}'),
    "tools": (models, b'{"model":"m","tools":[' + b"{}," * MANY + b"{}]}"),
    "requests": (models, b'{"model":"m","requests":[' + b'{"requests":[]},' * MANY + b"{}]}"),
    "values of a message": (message_models, b'{"model":"m","a":[' + b"[]," * MANY + b"0]}"),
    "fields of a message": (response_models, b'{"model":"m","a":{' + b'"a":0,' * MANY + b'"b":0}}'),
    "tools of a line": (of_line, b'{"url":"/v1/x","body":{"model":"m","tools":[' + b"{}," * MANY + b"{}]}}"),
}


@pytest.mark.parametrize(("read", "data"), FLOODS.values(), ids=FLOODS.keys())
def test_document_of_too_many_values_is_in_doubt_within_bound(read: Callable[[bytes], list[str]], data: bytes) -> None:
    """B-35: at most 100 ms of CPU per MB. Most of it is the parse, and the rest takes no longer for more of them."""

    def look() -> None:
        with pytest.raises(DoubtError, match="too many"):
            read(data)

    assert_cpu_below(0.1 * len(data) / 1e6 + 0.05, look)


@pytest.mark.parametrize("is_strict", [True, False])
def test_two_spellings_behind_many_names_are_found_within_bound(is_strict: bool) -> None:
    """Each name is compared with all that came before it at once, by either parser."""
    names = b"".join(b'"model%d":0,' % n for n in range(1_000 if is_strict else 2_000))
    body = (b"{" if is_strict else b'{"x":"\\ud800",') + names + b'"Model1":0}'

    def look() -> None:
        with pytest.raises(DoubtError, match="in two spellings"):
            models(body)

    assert_cpu_below(0.1 * len(body) / 1e6 + 0.3, look)


@pytest.mark.parametrize("n_tools", [1, 128, 5_000])
def test_models_of_many_tools_are_found(n_tools: int) -> None:
    """What clients send is far below the limit."""
    tool = b'{"type":"function","function":{"name":"f","parameters":{"properties":{"model":{"type":"string"}}}}}'
    body = b'{"model":"m","tools":[' + (tool + b",") * n_tools + b'{"type":"image_generation","model":"i"}]}'

    assert models(body) == ["m", "i"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","tools":[{"model":"m","model":"dear"}]}',
        b'{"model":"m","requests":[{"tools":[],"tools":[{"model":"dear"}]}]}',
        b'{"requests":[{"model":"m","model":"dear"}]}',
    ],
)
def test_inner_field_that_is_there_twice_is_in_doubt(body: bytes) -> None:
    """The parser gives the first one, and servers take the last."""
    with pytest.raises(DoubtError, match="twice"):
        models(body)


@pytest.mark.parametrize("start", [b"{", PAD, PAD + b'"n":"\\ud800",'], ids=["short", "long", "long, not strict"])
@pytest.mark.parametrize(
    ("rest", "found"),
    [
        (b'"session":{"model":"a","tools":[{"parameters":{"model":1}}]}}', ["a"]),
        (b'"a":[{"b":[{"model":"a"}]}],"model":null}', ["a"]),
        (b'"model":"a","response":{"model":"b"}}', ["a", "b"]),
    ],
)
def test_models_of_a_message_are_found_however_long_it_is(start: bytes, rest: bytes, found: list[str]) -> None:
    assert message_models(start + rest) == found


@pytest.mark.parametrize("start", [b"{", PAD], ids=["short", "long"])
@pytest.mark.parametrize("rest", [b'"Model":"a"}', b'"model":1}', b'"a":' + b"[" * 40 + b"]" * 40 + b"}"])
def test_message_in_doubt_however_long_it_is(start: bytes, rest: bytes) -> None:
    with pytest.raises(DoubtError):
        message_models(start + rest)


def test_scan_works_on_while_an_error_is_held() -> None:
    """No parser's object survives in an error: the next body is read by the same parser."""
    scan, held = JsonScan(), []
    bodies = [
        b'{"model\\u0000":"m"}',
        b'{"tools":[{"model":{}}]}',
        b'{"model":"m","model":"m"}',
        b'{"tools":' * 600 + b"1" + b"}" * 600,
        b'{"model":[1]}',
        b"[[1]]",
    ]

    for body in bodies:
        with pytest.raises(DoubtError) as caught:
            scan.models(body)
        held.append(caught.value)
        # simdjson would raise RuntimeError here if one of its objects were alive.
        scan._parser.parse(b"[]")

    assert scan.models(b'{"model":"m"}') == ["m"]
