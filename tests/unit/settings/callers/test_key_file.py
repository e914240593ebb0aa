"""A file of keys that is read again says what it says when it is read anew, whatever has changed in it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox.settings.callers.key_file import KeyFile
from velox.settings.callers.keys import parse_key_file

ITEMS = st.sampled_from(
    [
        "- {key: a}\n",
        "- {name: x, key: b, rpm: 60}\n",
        "- key: c\n  name: y\n  models:\n    - m*\n",
        "- d\n",
        "- {key: e} # - {key: f}\n",
        "# - {key: g}\n",
        "\n",
        "- {key: a, rpm: 60}\n",
        "- {key: h, rpm: -1}\n",
        "- &x i\n",
        "- {key: j}\r\n",
        "- {key: k}",
        " - l\n",
        "---\n",
    ]
)
FILES = st.lists(ITEMS, min_size=1, max_size=12).map("".join)
MANY = "".join(f"- {{name: n{n}, key: k{n}, rpm: {n % 7 + 1}}}\n" for n in range(40))


def same(reader: KeyFile, text: str) -> None:
    content = text.encode()
    entries, problems = reader.read(content)
    wanted, expected = parse_key_file(content, "keys.yaml")
    assert (entries, list(map(str, problems))) == (wanted, list(map(str, expected)))


@settings(deadline=None)
@given(st.lists(FILES, min_size=2, max_size=5))
def test_file_that_is_read_again_says_what_it_says_anew(texts: list[str]) -> None:
    """Items that come and go, are no keys, or not plain."""
    reader = KeyFile("keys.yaml")
    for text in texts:
        same(reader, text)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1200), st.integers(0, 60), ITEMS | st.just("")), min_size=1, max_size=4))
@pytest.mark.more
def test_file_that_is_edited_anywhere_says_what_it_says_anew(edits: list[tuple[int, int, str]]) -> None:
    """Also in the middle of an item, so that it is cut."""
    reader, text = KeyFile("keys.yaml"), MANY
    same(reader, text)
    for at, n, new in edits:
        text = text[:at] + new + text[at + n :]
        same(reader, text)


def test_what_has_not_changed_is_not_read_again() -> None:
    """One key more, one fewer, one that changes: of thousands, only these are looked at."""
    lines = [f"- {{name: n{n}, key: k{n}}}\n" for n in range(5000)]
    reader = KeyFile("keys.yaml")
    first, _ = reader.read("".join(lines).encode())
    del lines[2000]
    lines[4000] = "- {name: other, key: k4001}\n"
    lines.append("- {key: new}\n")

    again, problems = reader.read("".join(lines).encode())

    assert not problems and len(again) == 5000
    assert all(one is other for one, other in zip(first[:2000], again[:2000], strict=True))
    assert [entry.name for entry in again[3999:4001]] == ["n4000", "other"]
    assert sum(entry in first for entry in again[-3:]) == 2
