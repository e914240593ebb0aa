"""What a provider is: where it is, how a key is presented, which APIs its models have and under which paths.

    Provider                 one row of rows.py
      .families -> Family    some of its models: the APIs that they have, and the one that others are translated into
        .native -> CallPath  where one API is: a path with {model}, {project}, ... in it

Knows: which fields a row has. Does not know: any provider (rows.py), or how a call's target is made (target.py). Data
first: what differs between providers is a field here, and no name of one stands in gateway/.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from velox.dialects.facts.model_facts import UNKNOWN_MODEL, ModelFacts
from velox.dialects.facts.provider_traits import USUAL, ProviderTraits
from velox.heads import Header
from velox.types import ApiKind, Endpoint

__all__ = ["CallPath", "Family", "Keyless", "Provider", "WireWrapper"]


class WireWrapper(enum.Enum):
    """What is done to a body in a dialect that the upstream has at another place, and to what comes back.

    NONE: nothing: `model` and `stream` stand in the body as the dialect has them.
    CLAUDE_VERTEX: no `model`, but `anthropic_version: "vertex-2023-10-16"`.
    CLAUDE_VERTEX_COUNT: the same version, and `model` stays.
    CLAUDE_BEDROCK: neither `model` nor `stream`, but `anthropic_version: "bedrock-2023-05-31"`, and the header
    anthropic-beta as a list `anthropic_beta`; a stream comes in frames of base64.
    AZURE_DATED: the path names the deployment; a `model` in the body is not looked at.
    PREDICT, CONTENT, TITAN, NOVA, COHERE: how models of VECTORS take texts (dialects/embeddings/other_models.py).
    """

    NONE = "none"
    CLAUDE_VERTEX = "claude_vertex"
    CLAUDE_VERTEX_COUNT = "claude_vertex_count"
    CLAUDE_BEDROCK = "claude_bedrock"
    AZURE_DATED = "azure_dated"
    PREDICT = "predict"
    CONTENT = "content"
    TITAN = "titan"
    NOVA = "nova"
    COHERE = "cohere"


class Keyless(enum.Enum):
    """Where the credential comes from where the upstream has no keys.

    CLIENT: the client's own passes, unless clients present keys of Velox. AWS: requests are signed (SigV4) with AWS
    credentials. GOOGLE: a token of a Google account. ENTRA: a token of Microsoft Entra. The tokens are bearers.
    """

    CLIENT = "client"
    AWS = "aws"
    GOOGLE = "google"
    ENTRA = "entra"


@dataclass(frozen=True, slots=True)
class CallPath:
    """Where an API is. path: a template, under the base path of the origin: {model} is one segment of it.

    stream: of a streamed answer, where that has another path. query: of each call: names and templates; what needs a
    parameter that is not given is left out. sse: what a translated stream adds to it. model_from: what a model's name
    begins with there: what stands before it in the client's is left off.
    """

    path: str
    stream: str = ""
    query: tuple[tuple[str, str], ...] = ()
    sse: tuple[tuple[str, str], ...] = ()
    wrapper: WireWrapper = WireWrapper.NONE
    model_from: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """Some of a provider's models. native: the APIs that they have.

    translated_into: of these, what a request in another dialect is written in; None: such a request goes up as it is.
    models: patterns; none: all. when: parameters that must match these patterns. optional: APIs that only some servers
    of the kind have, or only newer ones: they count where an upstream names its APIs.
    """

    native: Mapping[ApiKind, CallPath]
    translated_into: ApiKind | None
    models: tuple[str, ...] = ()
    when: tuple[tuple[str, str], ...] = ()
    optional: Mapping[ApiKind, CallPath] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Provider:
    """What differs between providers.

    title: as people call it. families: the first that a model matches counts.
    origin: a template with {region}, {resource}, {location}; "": the upstream must name its own. origins: other
    templates for some values of the first parameter that `origin` has. needs: parameters without which no path is
    whole; those of the origin are needed only where the upstream names none.
    credential_header, credential_prefix: how a key is presented. credential_also: another header that has it, as it is,
    where some of its APIs read that one; b"": none. keyless: what goes up without one.
    aws_service: what signatures are for. scope: what a token of Google or Entra is asked for.
    account_headers: the client's headers that belong to its own key, and mean nothing beside another one.
    key_protocol, account_protocols: how the protocols begin in which a browser's WebSocket, which can't set headers,
    says the same.
    headers: of each call where the client sends none of that name.
    passes: a path that is none of its APIs goes up as it came, with `before` in front of it. has_googles: also those of
    Google's files, caches and other objects.
    model_list: where it lists its models as OpenAI does; "": nowhere, or those of all customers.
    lacks: endpoints that it has none of, though other paths pass.
    facts: of its models, where nothing else is known of one. traits: whichever model is asked.
    key_variables: where a key is without a file.
    model_start: what model names may begin with that its paths have already.
    own_models: patterns of the names that its own models have, as against those that it serves for others.
    model_fields: names of models, or patterns that end with `*`, and what a body has in place of `model` for them:
    fields and their values, in which `*` stands for the rest of the name. The first that matches counts.
    sockets: it takes the WebSocket of Responses, which passes as it came. is_google: its APIs take Google's system
    parameters.
    """

    name: str
    title: str
    families: tuple[Family, ...]
    origin: str = ""
    origins: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    credential_header: bytes = b"authorization"
    credential_prefix: bytes = b"Bearer "
    credential_also: bytes = b""
    keyless: Keyless = Keyless.CLIENT
    aws_service: str = ""
    scope: str = ""
    account_headers: frozenset[bytes] = frozenset({b"openai-organization", b"openai-project"})
    key_protocol: bytes = b"openai-insecure-api-key."
    account_protocols: tuple[bytes, ...] = (b"openai-organization.", b"openai-project.")
    headers: tuple[Header, ...] = ()
    passes: bool = True
    has_googles: bool = False
    before: bytes = b""
    lacks: frozenset[Endpoint] = frozenset()
    model_list: str = "/v1/models"
    facts: ModelFacts = UNKNOWN_MODEL
    traits: ProviderTraits = USUAL
    key_variables: tuple[str, ...] = ()
    model_start: str = ""
    own_models: tuple[str, ...] = ()
    model_fields: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    sockets: bool = False
    is_google: bool = False

    def credentials(self, key: str) -> tuple[Header, ...]:
        """Return the headers that present `key`."""
        plain = key.encode("latin-1")
        usual = (self.credential_header, self.credential_prefix + plain)
        return (usual, (self.credential_also, plain)) if self.credential_also else (usual,)

    def key_in(self, protocol: bytes) -> bytes:
        """Return the key that an offered protocol presents, b"" for every other protocol."""
        return protocol.removeprefix(self.key_protocol) if protocol.startswith(self.key_protocol) else b""
