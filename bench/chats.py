"""Chat requests as clients of a fleet send them: streamed and not, small and large, alone and in conversations.

Knows: bodies, and when each is due. Does not know: who answers, or what is measured.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.crowd import Request, written
from bench.open_loop import arrivals

__all__ = ["Mix", "Talk", "chat", "chats", "conversations", "words"]

_SYLLABLES: Final = ("ba", "do", "fi", "gu", "ka", "le", "mo", "nu", "pe", "ra", "so", "ti", "ve", "wo", "ze")


@dataclass(frozen=True, slots=True)
class Mix:
    """What is asked for. prompts: (bytes, how often) each. lengths: of answers, in tokens, evenly between the two.

    streamed: the part that is.
    """

    lengths: tuple[int, int]
    prompts: Sequence[tuple[int, float]] = ((200, 1.0),)
    streamed: float = 1.0


def words(chosen: random.Random, n_bytes: int) -> str:
    """Return so much text that nobody has sent before."""
    text = []
    length = 0
    while length < n_bytes:
        word = "".join(chosen.choices(_SYLLABLES, k=chosen.randint(1, 4)))
        text.append(word)
        length += len(word) + 1
    return " ".join(text)[:n_bytes]


def chat(
    kind: str,
    due_s: float,
    model: str,
    messages: Sequence[tuple[str, str]],
    n_tokens: int,
    *,
    streamed: bool = True,
    user: str = "",
) -> Request:
    """Return one request. messages: (role, text)."""
    document: dict[str, object] = {
        "model": model,
        "max_tokens": n_tokens,
        "stream": streamed,
        "messages": [{"role": role, "content": text} for role, text in messages],
    }
    if user:
        document["user"] = user
    if streamed:
        document["stream_options"] = {"include_usage": True}
    return Request(due_s, kind, 0.0, written(document, {}))


def chats(model: str, rate: float, seconds: float, mix: Mix, *, from_s: float = 0.0, seed: int = 1) -> list[Request]:
    """Return requests at random times. Their kind is `streamed` or `whole`."""
    chosen = random.Random(seed)
    prompts = {size: words(chosen, size) for size, _ in mix.prompts}
    sizes, shares = [size for size, _ in mix.prompts], [share for _, share in mix.prompts]
    made = []
    for due_s in arrivals(rate, seconds, seed):
        prompt = prompts[chosen.choices(sizes, shares)[0]]
        streamed = chosen.random() < mix.streamed
        n_tokens = chosen.randint(*mix.lengths)
        kind = "streamed" if streamed else "whole"
        made.append(chat(kind, from_s + due_s, model, [("user", prompt)], n_tokens, streamed=streamed))
    return made


@dataclass(frozen=True, slots=True)
class Talk:
    """Conversations. systems: how many applications there are, each with a system prompt of its own.

    system_bytes, turn_bytes, reply_bytes: lengths of texts, evenly between the two. think_s: mean time between a turn
    and the next.
    """

    systems: int
    system_bytes: tuple[int, int]
    turns: int
    turn_bytes: tuple[int, int]
    reply_bytes: tuple[int, int]
    think_s: float
    lengths: tuple[int, int]


def conversations(
    model: str, rate: float, seconds: float, talk: Talk, *, seed: int = 1, texts_seed: int = 1
) -> list[Request]:
    """Return the turns, due within `seconds`, of conversations that begin at random times.

    Each turn holds all before it. The kind is `turn-1`, `turn-2` and so on; each conversation is a user's.
    seed: of times and lengths. texts_seed: of the words.
    """
    chosen, texts = random.Random(seed), random.Random(texts_seed)
    systems = [words(texts, chosen.randint(*talk.system_bytes)) for _ in range(talk.systems)]
    made = []
    for number, begin_s in enumerate(arrivals(rate, seconds, seed)):
        messages = [("system", chosen.choice(systems))]
        due_s = begin_s
        for turn in range(1, talk.turns + 1):
            messages.append(("user", words(texts, chosen.randint(*talk.turn_bytes))))
            if due_s < seconds:
                n_tokens = chosen.randint(*talk.lengths)
                made.append(chat(f"turn-{turn}", due_s, model, messages, n_tokens, user=f"user-{texts_seed}-{number}"))
            messages.append(("assistant", words(texts, chosen.randint(*talk.reply_bytes))))
            due_s += 0.5 * talk.think_s + chosen.expovariate(2.0 / talk.think_s)
    return made
