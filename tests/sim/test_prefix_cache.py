"""The simulator's prefix cache: which tokens of a prompt are there, and which leave first."""

from __future__ import annotations

import pytest

from velox_sim.engine import BLOCK_TOKENS, PrefixCache
from velox_sim.request import count_prompt_tokens, prompt_text

BLOCK = BLOCK_TOKENS * 4  # characters


def text(n_characters: int, start: str = "") -> str:
    """Return so many characters no block of which is like another one."""
    made = start + "".join(f"{n:>8}" for n in range(n_characters // 8 + 1))
    return made[:n_characters]


@pytest.mark.parametrize(
    ("n_characters", "n_tokens"),
    [
        (BLOCK - 1, 0),
        (BLOCK, 0),
        (BLOCK + 1, BLOCK_TOKENS),
        (2 * BLOCK, BLOCK_TOKENS),
        (2 * BLOCK + 1, 2 * BLOCK_TOKENS),
    ],
)
def test_prompt_asked_again_is_found_in_full_blocks_but_for_its_last_token(n_characters: int, n_tokens: int) -> None:
    """The first time nothing is there; the second time every full block with a token behind it."""
    cache = PrefixCache(1024)
    prompt = text(n_characters)

    assert cache.look_up("m", prompt) == 0
    assert cache.look_up("m", prompt) == n_tokens
    assert cache.n_hit == n_tokens
    assert cache.n_asked == 2 * count_prompt_tokens(prompt)


def test_longer_prompt_finds_what_it_has_in_common() -> None:
    """A conversation's next turn begins with the turns before; one that parts finds what is before the parting."""
    cache = PrefixCache(1024)
    cache.look_up("m", text(4 * BLOCK))

    assert cache.look_up("m", text(4 * BLOCK) + text(BLOCK, "next")) == 4 * BLOCK_TOKENS
    assert cache.look_up("m", text(4 * BLOCK)[: 2 * BLOCK + 5] + text(BLOCK, "else")) == 2 * BLOCK_TOKENS


def test_block_counts_only_behind_the_same_blocks() -> None:
    """The same words behind another beginning, or for another model, are not there."""
    cache = PrefixCache(1024)
    cache.look_up("m", text(BLOCK, "one") + text(2 * BLOCK))

    assert cache.look_up("m", text(BLOCK, "two") + text(2 * BLOCK)) == 0
    assert cache.look_up("other", text(BLOCK, "one") + text(2 * BLOCK)) == 0


def test_least_recently_used_prompt_leaves_first() -> None:
    """Room for two prompts: with a third the one that was asked for longest ago goes, its end first."""
    cache = PrefixCache(4 * BLOCK_TOKENS)
    one, two, three = (text(2 * BLOCK + 1, name) for name in ("one", "two", "three"))
    cache.look_up("m", one)
    cache.look_up("m", two)
    assert cache.look_up("m", one) == 2 * BLOCK_TOKENS

    cache.look_up("m", text(BLOCK, "three"))

    assert cache.look_up("m", two) == BLOCK_TOKENS
    cache.look_up("m", three)
    assert cache.look_up("m", one) == 0


def test_prompt_longer_than_the_cache_leaves_its_beginning() -> None:
    """What many prompts could share is kept, and no more than there is room for."""
    cache = PrefixCache(3 * BLOCK_TOKENS + 15)
    cache.look_up("m", text(100 * BLOCK))

    assert cache.look_up("m", text(100 * BLOCK)) == 3 * BLOCK_TOKENS
    assert "3 of 3 blocks" in repr(cache)


@pytest.mark.parametrize("n_tokens", [0, BLOCK_TOKENS - 1])
def test_cache_smaller_than_a_block_has_nothing(n_tokens: int) -> None:
    """Then nothing is counted either."""
    cache = PrefixCache(n_tokens)
    cache.look_up("m", text(BLOCK + 1))

    assert cache.look_up("m", text(BLOCK + 1)) == 0
    assert (cache.n_asked, cache.n_hit) == (0, 0)


@pytest.mark.parametrize(
    "prompt",
    [
        "Say something.",
        ["one", "two"],
        [1, 2, 300_000],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        {"content": {"deep": ["x"]}},
        None,
    ],
)
def test_text_of_a_prompt_has_as_many_tokens_as_are_counted(prompt: object) -> None:
    """Else more could be cached than there is. No prompt at all counts as one token."""
    n_tokens = -(-len(prompt_text("Instructions.", prompt)) // 4)

    assert n_tokens == count_prompt_tokens("Instructions.", prompt)


def test_text_of_a_prompt_is_in_its_order() -> None:
    """A beginning is a beginning: instructions, then messages from the first to the last, each part in its place."""
    messages = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "d"},
    ]

    assert prompt_text("0", messages) == "0abcd"
    assert prompt_text([1, 0xABCD], None) == "0001abcd"
