"""Which classes read and write which dialect, and the provider adapter of an upstream. A part of the composition root.

Knows: the classes. Does not know: what any of them does, which requests need them (adapter.py), or which
upstreams have one (on_demand.py).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.converse.read_reply import ConverseModel
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.generate.read_reply import GenerateModel
from velox.dialects.generate.schema import SubsetSchemas
from velox.dialects.generate.write_reply import GenerateClient
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.messages.write_reply import MessagesClient
from velox.dialects.responses.compact_client import CompactClient
from velox.dialects.responses.read_reply import ResponsesModel
from velox.dialects.responses.write_reply import ResponsesClient
from velox.gateway.translation.adapter import DialectTable, ProviderAdapter
from velox.policy.routes.entries import UpstreamEntry
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.types import ApiKind

__all__ = ["adapter_of", "dialect_table"]

_LISTING_SOURCES: Final = frozenset(row.name for row in PROVIDERS.values() if row.traits.openai_responses)


def dialect_table() -> DialectTable:
    """Return the dialects that clients and models may speak, for one upstream: it keeps the schemas that it rewrote."""
    schemas = SubsetSchemas()
    return DialectTable(
        clients={
            ApiKind.CHAT: ChatClient,
            ApiKind.GENERATE: GenerateClient,
            ApiKind.MESSAGES: MessagesClient,
            ApiKind.RESPONSES: ResponsesClient,
            ApiKind.COMPACT: CompactClient,
        },
        models={
            ApiKind.CHAT: ChatModel,
            ApiKind.RESPONSES: _responses,
            ApiKind.MESSAGES: lambda facts, dropped, _: MessagesModel(facts, dropped),
            ApiKind.CONVERSE: lambda facts, dropped, _: ConverseModel(facts, dropped),
            ApiKind.GENERATE: lambda facts, dropped, _: GenerateModel(facts, dropped, schemas),
        },
    )


def _responses(facts: ModelFacts, dropped: DroppedFields, provider: str) -> ResponsesModel:
    return ResponsesModel(facts, dropped, provider, lists_sources=provider in _LISTING_SOURCES)


def adapter_of(entry: UpstreamEntry) -> ProviderAdapter:
    """Return how requests are put into the APIs of an upstream's provider."""
    row = PROVIDERS[entry.provider]
    return ProviderAdapter(
        dialect_table(), row, dict(entry.parameters), partial(facts_of, row, own=entry.model_facts), entry.apis
    )
