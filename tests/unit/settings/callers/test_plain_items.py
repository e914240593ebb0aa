"""Files of keys that are written plainly are read as a YAML parser reads them, and 100,000 keys in about a second."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox.settings.callers import keys
from velox.settings.callers.keys import parse_key_file
from velox.settings.callers.plain_items import plain_items
from velox.types import KeyEntry

DIGEST = "sha256:" + "ab" * 32


def by_yaml(text: str) -> tuple[tuple[KeyEntry, ...], list[str]]:
    entries, problems = keys._yaml(text.encode(), "keys.yaml")
    return tuple(replace(entry, in_file=True) for entry in entries), [str(problem) for problem in problems]


def read(text: str) -> tuple[tuple[KeyEntry, ...], list[str]]:
    entries, problems = parse_key_file(text.encode(), "keys.yaml")
    return entries, [str(problem) for problem in problems]


def places(entries: tuple[KeyEntry, ...]) -> list[str]:
    return [entry.where for entry in entries]


PLAIN = [
    f"- {DIGEST}\n- vk-a\n",
    f"# keys\n\n- {{name: a, key: {DIGEST}, rpm: 60, models: [gpt-*, 'o1', \"x\"]}}  # ours\n\n- {{key: b}}\n",
    f"- name: a\n  key: {DIGEST}\n  models:\n    - gpt-*\n    - o1\n  rpm: 5\n- key: c\n  name: d\n",
    "- {key: a, name: x}\n- {name: x, key: b}\n- {key: c}\n- {key: 'd'}\n- {key: \"e\", name: 'y'}\n",
    "- {key: a, rpm: 60}   \n- {key: b, rpm: 60}",
    "- key: a # key: b\n- name: x # key: c\n  key: d\n",
    "- {key: a, rpm: 60}\r\n- {key: b, rpm: 60}\r\n",
    "- {key: a, models: [key]}\n- {name: models, key: name}\n",
]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_file_says_what_yaml_says(text: str) -> None:
    """Each key, what is said of it, and where it stands."""
    assert plain_items(text.encode()) is not None
    assert read(text) == by_yaml(text)
    assert read(text)[0] and places(read(text)[0]) == places(by_yaml(text)[0])


@pytest.mark.parametrize(
    "text",
    [
        "- {key: a, rpm: 0}\n- {key: b, rpm: 60, rpm: 5}\n- {name: x}\n",
        "- {key: sha256:00, name: x}\n- {key: a, name: '-'}\n- {key: a, nmae: b}\n",
        "- {key: null}\n- {key: a, name: null}\n- {key: ''}\n- {key: a, key: b}\n",
        "- key: a\n  rpm: many\n- key: b\n  rpm: many\n- key: c\n  rpm: 60\n",
        "- {key: a, models: []}\n",
    ],
)
def test_problems_are_those_that_yaml_has(text: str) -> None:
    """With the lines that they stand in."""
    assert read(text) == by_yaml(text)
    assert read(text)[1]


@pytest.mark.parametrize(
    "text",
    [
        "- {key: *a}\n",
        "- &a {key: x}\n- *a\n",
        "- key: x\n  name: a\n   b\n",
        "- key: x\n  name: a\n  - b\n",
        "- key: >\n    x\n",
        '- key: "a\\x41"\n',
        "- key: 'a\n  b'\n",
        "- {key: a,\n   name: b}\n",
        "-  key: a\n",
        "- ? key\n",
        "- key: a: b\n",
        "- {key: a b}\n",
        "- a b\n",
        "- key: ä\n",
        "- !!str a\n",
        "---\n- a\n",
        "- a\n...\n- b\n",
        "- - a\n",
        "- key: a\n\tname: b\n",
        "- {a: {b: c}}\n",
        "  - key: a\n",
        "\n  - key: a\n",
        "- key: a\n   - key: b\n",
        "- key: a\n  models:\n- key: b\n",
    ],
)
def test_what_is_not_plain_is_left_to_the_parser(text: str) -> None:
    """Whatever could mean something else than it seems."""
    assert plain_items(text.encode()) is None
    assert read(text) == by_yaml(text) or read(text)[1]


PARTS = [
    "- ",
    "  ",
    "key: ",
    "name: ",
    "models: ",
    "rpm: ",
    "a",
    "b-1",
    "60",
    "x*",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "\n",
    "# c",
]
PARTS += ["'", '"', ":", " ", "null", "&", "*", "|", "-", "\\", "    - "]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PARTS) | st.sampled_from(PLAIN), max_size=14))
def test_any_text_is_read_as_yaml_reads_it(parts: list[str]) -> None:
    """Of what is taken as plain; the rest goes to the parser anyway."""
    text = "- " + "".join(parts)
    if plain_items(text.encode()) is None:
        return

    entries, problems = read(text)
    wanted, expected = by_yaml(text)
    if wanted or expected:
        assert (entries, bool(problems)) == (wanted, bool(expected))


@pytest.mark.more
def test_file_of_100_000_keys_is_read_without_the_parser() -> None:
    """11 MB: each key, with what is said of it and its line. One line that is wrong is named."""
    lines = [f"- {{name: key-{n}, key: sha256:{n:064x}, rpm: 60, tpm: 1000}}\n" for n in range(1, 100_001)]
    text = "".join(lines).encode()
    assert len(text) > 10 * 2**20

    entries, problems = parse_key_file(text, "keys.yaml")

    assert not problems and len(entries) == 100_000
    last = entries[-1]
    assert (last.name, last.terms.rates.rpm, last.terms.rates.tpm, last.where) == (
        "key-100000",
        60,
        1000,
        "keys.yaml:100000",
    )
    assert last.in_file and last.digest == (100_000).to_bytes(32, "big")
    lines[77_776] = lines[77_776].replace("rpm: 60", "rpm: -60")
    _, problems = parse_key_file("".join(lines).encode(), "keys.yaml")
    assert [problem.where for problem in problems] == ["keys.yaml:77777"]
    _, problems = parse_key_file(text.replace(b"rpm: 60", b"rpm: -1"), "keys.yaml")
    assert len(problems) == 100, "the rest when these are mended"


@pytest.mark.slow
def test_long_file_that_is_not_plain_says_so() -> None:
    """A parser would need minutes for it, in which nobody watches the workers."""
    text = b"- {key: a}\n" * 100_000 + b"- &x {key: b}\n"

    entries, problems = parse_key_file(text, "keys.yaml")

    assert not entries and "expected keys as in docs/keys.md" in str(problems[0])
