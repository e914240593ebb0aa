"""What is known of a provider, whichever model is asked, as far as dialects need it. The rows are data (providers/).

Knows: which traits there are. Does not know: any provider's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from velox.types import ApiKind

__all__ = ["USUAL", "ProviderTraits"]


@dataclass(frozen=True, slots=True)
class ProviderTraits:
    """The traits of one provider. The defaults are those of a provider that serves an API of somebody else's.

    defines: the APIs that the provider itself defines. Their clients know what its models refuse, so their bodies go up
        as sent, but for a changed model.
    openai_responses: its Responses API is OpenAI's own: it refuses reasoning that nobody signed, and lists the sources
        of a search of the web where `include` asks for them.
    foreign_chat: what other providers wrote into a conversation in Chat Completions, and it takes: "nothing";
        "reasoning", in the fields of any provider; or "anything", as a server may that is another gateway.
    any_detail: `detail` of a picture goes up as sent: it knows OpenAI's newest, or passes them on to who does.
    own_tiers: its values of `service_tier` are others than OpenAI's, and are not renamed.
    knows_prefix: it has Mistral's `prefix` of a message, or may have.
    whole_calls: it streams each call in one chunk, which is all that Mistral's SDK reads, or may do so.
    conversations: it has OpenAI's conversation objects, or may have.
    billing_blocks: it reads Claude Code's line about billing in the system prompt, or may be a way to who does.
    count_is_flat: Gemini's countTokens takes the fields of a request at its top, without `generateContentRequest`.
    uncounted_betas: betas of Anthropic's with which it does not count tokens.
    """

    defines: frozenset[ApiKind] = frozenset()
    openai_responses: bool = False
    foreign_chat: Literal["nothing", "reasoning", "anything"] = "nothing"
    any_detail: bool = False
    own_tiers: bool = False
    knows_prefix: bool = False
    whole_calls: bool = False
    conversations: bool = False
    billing_blocks: bool = False
    count_is_flat: bool = False
    uncounted_betas: frozenset[str] = frozenset()


USUAL: Final = ProviderTraits()
