"""Media in `data:` URLs."""

from __future__ import annotations

import base64
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu_bound import assert_cpu_below
from velox.dialects.canonical.model import MediaKind
from velox.dialects.media.data_urls import read_url

PARTS = ["%", "=", "%41", "%3d", "%e2%82%ac", "a", "\n", "\r", " ", "_", "%0A", "4", "F", "é", "=\n", "%\n", "%2", "\t"]


@given(st.lists(st.sampled_from(PARTS), max_size=8))
def test_text_is_unquoted_as_the_standard_library_does(parts: list[str]) -> None:
    text = "".join(parts)
    media = read_url(f"data:image/svg+xml,{text}")

    assert (media.kind, media.type) == (MediaKind.DATA, "image/svg+xml")
    assert base64.b64decode(media.value) == unquote_to_bytes(text)


def test_escapes_in_base64() -> None:
    assert read_url("DATA:image/png;Base64,YWJj%2B%2f%3D%3D").value == "YWJj+/=="


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("data:image/png;base64,YQ==", "image/png"),
        ("data:image/png;name=a.png;base64,YQ==", "image/png"),
        ("data:;base64,YQ==", None),
        ("data:,a", "text/plain"),
    ],
)
def test_types(url: str, kind: str | None) -> None:
    assert (read_url(url).value, read_url(url).type) == ("YQ==", kind)


@pytest.mark.parametrize("url", ["https://a/b", "data:image/png", "data:" + ";" * 100_000 + ",a", "data", ""])
def test_what_names_no_data_is_a_url(url: str) -> None:
    assert read_url(url).kind is MediaKind.URL


@pytest.mark.parametrize("before", ["", "a", "ab"])
def test_megabytes_are_unquoted_as_the_standard_library_does(before: str) -> None:
    """In slices, which cut no escape."""
    text = before + "%e2%82%ac=\n" * 50_000
    assert base64.b64decode(read_url(f"data:,{text}").value) == unquote_to_bytes(text)
    assert read_url(f"data:;base64,{text}").value == unquote_to_bytes(text).decode()


@pytest.mark.parametrize("head", ["data:image/png;base64,", "data:image/svg+xml,"])
@pytest.mark.parametrize("escape", ["%41", "%%"])
def test_escapes_cost_little(head: str, escape: str) -> None:
    """X3: the standard library takes 100 ms for each megabyte of escapes, and 60 MB of them ended a worker."""
    url = head + escape * (6_000_000 // len(escape))

    assert_cpu_below(0.3, lambda: read_url(url))
