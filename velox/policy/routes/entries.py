"""Upstreams and routes as configured: the values that routing, forwarding and connections work with.

Knows: each field and what it means. Does not know: how one is written (settings/routing/upstreams.py,
settings/routing/routes.py) or checked (settings/routing/routing.py); no file, no environment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from velox.heads import Header
from velox.outcomes import Refusal
from velox.policy.cache.rules import CacheRule
from velox.policy.join.rules import JoinRule
from velox.policy.patterns import matches
from velox.policy.routes.model_rule import ModelRule
from velox.policy.routes.proxies import Proxy
from velox.types import ApiKind, Origin, Secret

__all__ = [
    "ANYTHING",
    "FAILURE",
    "NO_RULES",
    "Balance",
    "Canary",
    "Delay",
    "HashOn",
    "HeaderRules",
    "Hedge",
    "Http2Use",
    "KeyRef",
    "LoadSource",
    "Match",
    "Mirror",
    "ModelName",
    "ProbeEntry",
    "RouteEntry",
    "Stripped",
    "Target",
    "Timeouts",
    "UpstreamEntry",
    "asked_model",
]

Http2Use: TypeAlias = Literal["auto", "on", "off"]
FAILURE: Final = "failure"  # what a fallback is for that names nothing
LoadSource: TypeAlias = Literal["off", "vllm", "sglang"]
Balance: TypeAlias = Literal["round_robin", "least_inflight", "peak_ewma", "hash", "prefix", "session"]


@dataclass(frozen=True, slots=True)
class KeyRef:
    """One credential. ref: as it was written, "env:OPENAI_API_KEY". digest: the SHA-256 of what was found there.

    Two are equal when both are: so a reload sees that a key has changed.
    """

    ref: str
    digest: bytes = field(repr=False)
    secret: Secret = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.ref


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long an upstream may take, in seconds: as the variables VELOX_UPSTREAM_..._TIMEOUT.

    total, first_event: 0: no limit. stall: silence in a stream of Chat whose text flows; the shorter of it and idle.
    thinking: as first_byte, where a model may think before it; the longer of the two.
    """

    connect_s: float
    tls_s: float
    first_byte_s: float
    idle_s: float
    write_s: float
    total_s: float
    first_event_s: float = 0.0
    stall_s: float = math.inf
    thinking_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProbeEntry:
    """A request that asks an upstream for its health. every_s: from one to the next."""

    path: str
    every_s: float


@dataclass(frozen=True, slots=True)
class UpstreamEntry:
    """One upstream. origins: each is a member of it. keys: none: the client's own credential goes up.

    connections: kept warm to each member, over all workers. concurrency: requests that may run there at once; 0: off.
    models: patterns of what it serves; none: anything. headers: added to each request. where: "" for one that the
    variables make. provider: the name of its row (velox/providers/rows.py). parameters: what the row's templates need,
    each a name and its value, such as ("region", "eu-central-1"), sorted. apis: those that it says it has; none: the
    usual ones of its row. model_facts: what the settings say of its models. tls_digest: of what its files of TLS hold:
    with others in the same place it is another upstream. proxy: before its origins; "usual": that of the environment,
    "off": none. auth: how keys are presented: "bearer", "basic" or the name of a header; "": as its provider has them.
    query: parameters of each request's target. value_files: where values of headers and query come from.
    """

    name: str
    origins: tuple[Origin, ...]
    keys: tuple[KeyRef, ...]
    http2: Http2Use
    ca_file: str | None
    cert_file: str | None
    key_file: str | None
    timeouts: Timeouts
    connections: int
    weight: int = 1
    concurrency: int | Literal["auto"] = 0
    models: tuple[str, ...] = ()
    headers: tuple[Header, ...] = field(default=(), repr=False)
    load: LoadSource = "off"
    probe: ProbeEntry | None = None
    where: str = field(default="", compare=False)
    provider: str = "openai-compatible"
    parameters: tuple[tuple[str, str], ...] = ()
    apis: tuple[ApiKind, ...] = ()
    model_facts: tuple[ModelRule, ...] = ()
    tls_digest: bytes = field(default=b"", repr=False)
    proxy: Proxy | Literal["usual", "off"] = "usual"
    auth: str = ""
    query: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    value_files: tuple[str, ...] = ()

    def has_model(self, model: str) -> bool:
        """True for the name of a model that it serves."""
        return not self.models or any(matches(pattern, model) for pattern in self.models)


@dataclass(frozen=True, slots=True)
class HeaderRules:
    """What is done to the fields of a head: first remove, then set. set: in place of any of that name.

    Names are in lower case.
    """

    set: tuple[Header, ...] = ()
    remove: tuple[bytes, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.set or self.remove)

    @property
    def names(self) -> frozenset[bytes]:
        """Return the names of all fields that are taken out of a head."""
        return frozenset((*self.remove, *(name for name, _ in self.set)))


NO_RULES: Final = HeaderRules()


@dataclass(frozen=True, slots=True)
class Delay:
    """A time: a percentile of what was measured, or so many seconds. The other one is None."""

    percentile: float | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        return f"p{self.percentile:g}" if self.percentile is not None else f"{self.seconds:g}s"


@dataclass(frozen=True, slots=True)
class HashOn:
    """What decides where a request goes. header: its name in lower case, for that kind only."""

    kind: Literal["user", "header", "prefix"]
    header: bytes = b""

    def __str__(self) -> str:
        return f"header:{self.header.decode('ascii')}" if self.header else self.kind


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests a route is for: those that meet all that is given here. Of a list, one is enough.

    models, paths: patterns. headers: all of them must be there; names in lower case, values are patterns. keys: names
    of callers. *_where: where they stand, for a problem.
    """

    models: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    keys: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    keys_where: str = field(default="", compare=False)

    def __bool__(self) -> bool:
        return bool(self.models or self.paths or self.headers or self.keys or self.tags)


ANYTHING: Final = Match()


@dataclass(frozen=True, slots=True)
class Stripped:
    """The model that the client named, without what its name begins with."""

    start: str


# A model that is asked for; None: the one that the client named.
ModelName: TypeAlias = str | Stripped | None


def asked_model(wanted: ModelName, named: str | None) -> str | None:
    """Return the model that an upstream is asked for. named: by the client; None: it named none."""
    if isinstance(wanted, Stripped):
        return None if named is None else named.removeprefix(wanted.start)
    return wanted or named


@dataclass(frozen=True, slots=True)
class Target:
    """An upstream by its name, and the model that it is asked for. None: the one that the client named.

    strip: what is taken off the beginning of the name that the client gave: "anthropic/".
    Of a fallback: on_failure: it is asked after a failure. refusals: and after these of another's model.
    says_reasons: they were given, and do not follow from its model.
    """

    upstream: str
    model: str | None = None
    where: str = field(default="", compare=False)
    on_failure: bool = True
    refusals: frozenset[Refusal] = frozenset()
    strip: str = ""
    says_reasons: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        text = self.upstream if self.model is None else f"{self.upstream} ({self.model})"
        if self.strip and self.model is None:
            text += f" without {self.strip}"
        reasons = [FAILURE] if self.on_failure else []
        reasons += sorted(self.refusals)
        is_said = self.says_reasons or not self.on_failure
        return f"{text} for {' and '.join(reasons)}" if self.refusals and is_said else text

    @property
    def naming(self) -> ModelName:
        """Return what it is asked for, for `asked_model`."""
        return Stripped(self.strip) if self.strip and self.model is None else self.model

    @property
    def place(self) -> tuple[str, str | None]:
        """Return where it leads to."""
        return self.upstream, self.model


@dataclass(frozen=True, slots=True)
class Hedge:
    """A second try while the first has not answered. at_most_percent: of the route's requests."""

    after: Delay
    at_most_percent: float


@dataclass(frozen=True, slots=True)
class Mirror:
    """A copy of so many percent of the requests; its reply is discarded."""

    to: Target
    percent: float


@dataclass(frozen=True, slots=True)
class Canary:
    """So many percent of the requests go there instead."""

    to: Target
    percent: float


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """One route. to: one of them is chosen for each request. fallback: in this order, when those can't answer.

    model: of every target that names none itself; the targets have it already. hash_on: with balance hash only.
    where: "" for the one that there is without a list. strict: a field that a translation would drop is a refusal.
    cache: None: no answer is kept. join: None: each request has a call of its own.
    """

    name: str
    match: Match
    to: tuple[Target, ...]
    balance: Balance = "round_robin"
    hash_on: HashOn | None = None
    model: str | None = None
    fallback: tuple[Target, ...] = ()
    hedge: Hedge | None = None
    mirror: Mirror | None = None
    canary: Canary | None = None
    request_headers: HeaderRules = NO_RULES
    response_headers: HeaderRules = NO_RULES
    where: str = field(default="", compare=False)
    strict: bool = False
    cache: CacheRule | None = None
    join: JoinRule | None = None

    @property
    def targets(self) -> tuple[Target, ...]:
        """Return all that a request may be sent to."""
        others = (each.to for each in (self.mirror, self.canary) if each is not None)
        return (*self.to, *self.fallback, *others)

    @property
    def model_of_unnamed(self) -> str | None:
        """Return the model of a request that names none; None: there is none for each of `to`.

        Where several of them have another one, it is the first's: each attempt asks for its own.
        """
        models = [target.model for target in self.to]
        return None if None in models else models[0]
