"""The plain values that pass between the layers, but for heads of HTTP (heads.py).

Knows: shapes. Does not know: how a value was read or where it goes.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

__all__ = [
    "ANYONE",
    "NO_RATES",
    "NO_TERMS",
    "Address",
    "AnswerKeeper",
    "Answers",
    "ApiKind",
    "BodyFields",
    "Budget",
    "BudgetPeriod",
    "Caller",
    "Dialect",
    "Endpoint",
    "FormFields",
    "KeyEntry",
    "KeyTerms",
    "KeyUpdate",
    "Origin",
    "Priority",
    "Rates",
    "Scope",
    "Secret",
    "SocketOwner",
    "Timing",
]


class AnswerKeeper(Protocol):
    """Who keeps the answer of one request. previous: the id of the answer that it goes on from; None: none.

    conversation: that the answer goes into; None: none. reads_reply: the answer passes as it came, and is to be read;
    set for each attempt.
    """

    reads_reply: bool

    @property
    def previous(self) -> str | None: ...

    @property
    def conversation(self) -> str | None: ...

    def own_input(self, body: bytes | bytearray) -> bytes:
        """Return the items that the client has sent, as they stand in a list. body: the request, as it was read."""

    def keep(self, body: bytes | bytearray, response: bytes) -> None:
        """Keep an answer that is whole. body: the request, as it was read.

        A large one that passes as it came may be none: then nothing is kept.
        """


class BodyFields(msgspec.Struct, gc=False):  # one is made for each request; a dataclass costs three times as much
    """What Velox reads of a request's body: plain values only, never a parser's object.

    model: what the path names, where it names one. n: answers asked for to each of n_prompts. include_usage: what its
    stream_options ask for; None: it has none. stores: it asks the upstream to keep the answer. is_model_in_path: the
    body itself may name another model, or none.
    """

    model: str | None = None
    stream: bool = False
    max_tokens: int | None = None
    user: str | None = None
    n: int = 1
    n_prompts: int = 1
    include_usage: bool | None = None
    stores: bool = False
    is_model_in_path: bool = False


class FormFields(BodyFields, gc=False):
    """The same of a multipart form.

    model_at, model_end: where the part of its model stands, from its head on; 0: it has none. n_text, n_file: bytes of
    its texts, and of its files. tells: the reply that it asks for has a place for what is billed. quality, size,
    seconds: of the pictures or the video that it asks for, as the form has them; "": not said.
    """

    boundary: bytes = b""
    model_at: int = 0
    model_end: int = 0
    n_text: int = 0
    n_file: int = 0
    tells: bool = True
    quality: str = ""
    size: str = ""
    seconds: str = ""


class Scope(enum.IntEnum):
    """What a limit is counted for: each of these has its own."""

    GATEWAY = 0
    KEY = 1
    MODEL = 2
    KEY_MODEL = 3
    TEAM = 4
    USER = 5


class Priority(enum.IntEnum):
    """The classes of the queue; a lower number goes first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


@dataclass(frozen=True, slots=True)
class Rates:
    """How much something may use; 0 is no such limit.

    rpm: requests a minute. tpm: tokens of models a minute. burst, tpm_burst: how many of them at once. concurrency:
    requests that run.
    """

    rpm: int = 0
    burst: int = 0
    tpm: int = 0
    tpm_burst: int = 0
    concurrency: int = 0

    def over(self, others: Rates) -> Rates:
        """Return these, and those of `others` where these have none. A burst goes with its rate."""
        requests = self if self.rpm else others
        tokens = self if self.tpm else others
        concurrency = self.concurrency or others.concurrency
        return Rates(requests.rpm, requests.burst, tokens.tpm, tokens.tpm_burst, concurrency)


NO_RATES: Final = Rates()

# Of a budget; of a number: so many seconds.
BudgetPeriod: TypeAlias = int | Literal["minute", "hour", "day", "week", "month", "year", "total"]


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be spent in each window. One of limit_nano (nano-dollars) and limit_tokens is not None.

    window: seconds, or a period of the calendar. zone: of the calendar, as the IANA database names it. start_s: Unix
    time at which a window of so many seconds begins. soft: percent of the limit at which an alert is sent, in order.
    strict: a request holds the most that it could cost. refuses_unpriced: a request whose cost can't be known is
    refused.
    """

    limit_nano: int | None
    limit_tokens: int | None
    window: BudgetPeriod
    zone: str = "UTC"
    soft: tuple[int, ...] = ()
    strict: bool = False
    refuses_unpriced: bool = True
    start_s: int = 0

    @property
    def is_tokens(self) -> bool:
        """True if it counts tokens, False if money."""
        return self.limit_nano is None

    @property
    def limit(self) -> int:
        """Return how much may be spent: tokens or nano-dollars."""
        found = self.limit_tokens if self.limit_nano is None else self.limit_nano
        assert found is not None, "parse_budget() gives one of them"
        return found


class Timing(enum.IntEnum):
    """What a reply tells of the time that it took: nothing, a head's field, and at the end of a stream a comment."""

    NOTHING = 0
    HEAD = 1
    STREAM = 2


class KeyTerms(msgspec.Struct, frozen=True, omit_defaults=True):
    """What holds for the requests of a key, whoever reads keys and whoever accepts them.

    models: what the key is limited to, each with `*` for any text; none: every model.
    rates: of this key alone, bursts filled in; they stand over those that all keys have (`Rates.over`).
    priority: the highest class that it may ask for, and the one that it has otherwise; None: not said.
    endpoints: what it may ask for: groups of endpoints, and patterns of paths; none: the default.
    team, user: their ids; "" for none. team_rates, user_rates: what all keys of the team, or of the user, have
    together. tags: what spend is also counted by. budgets: of this key; team_budgets, user_budgets: of all of theirs.
    timing: its replies may tell what took how long.

    Keys that have the same terms may share the value. As JSON it is a part of the files of managed keys
    (accounts/key_lines.py): a field may be added, with a default.
    """

    models: tuple[str, ...] = ()
    rates: Rates = NO_RATES
    priority: Priority | None = None
    endpoints: tuple[str, ...] = ()
    team: str = ""
    user: str = ""
    tags: tuple[str, ...] = ()
    team_rates: Rates = NO_RATES
    user_rates: Rates = NO_RATES
    budgets: tuple[Budget, ...] = ()
    team_budgets: tuple[Budget, ...] = ()
    user_budgets: tuple[Budget, ...] = ()
    timing: bool = True


NO_TERMS: Final = KeyTerms()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, as far as its key tells.

    name: as the log shows it: the name of the key, or the start of its digest; "" where no key is required.
    terms: those of the key.
    id: the first 8 bytes of the key's digest, b"" where no key is required. Two keys of one name differ in it.
    account: the id of a managed key, for records; "" for others.
    """

    name: str
    terms: KeyTerms = NO_TERMS
    id: bytes = b""
    account: str = ""


# The caller of a gateway that asks for no key.
ANYONE: Final = Caller("")


class Endpoint(enum.IntEnum):
    """What a path is for. Labels of metrics come from this closed list, never from a request."""

    OTHER = 0
    CHAT = 1
    RESPONSES = 2
    COMPLETIONS = 3
    EMBEDDINGS = 4
    MODELS = 5
    MODERATIONS = 6
    IMAGES = 7
    AUDIO = 8
    FILES = 9
    BATCHES = 10
    VECTOR_STORES = 11
    MESSAGES = 12
    REALTIME = 13
    GENERATE = 14
    RERANK = 15
    VIDEOS = 16
    TOKENIZE = 17


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One key. digest: its SHA-256. name: "" where it has none. expires_s: Unix time from which on it is no key.

    where: for a problem. in_file: it came from VELOX_API_KEYS_FILE, and goes when that changes. is_managed: it was made
    while the gateway ran (velox.accounts). id: of such a key, what it is counted by, whichever secret is shown for it.
    account: its id there. is_weak: the key itself stands in the settings, and is one that anybody would try first.
    """

    digest: bytes = field(repr=False)
    name: str = ""
    terms: KeyTerms = NO_TERMS
    expires_s: int | None = None
    where: str = field(default="", compare=False)
    in_file: bool = field(default=False, compare=False)
    is_managed: bool = field(default=False, compare=False)
    id: bytes = b""
    account: str = ""
    is_weak: bool = field(default=False, compare=False)

    @property
    def is_fixed(self) -> bool:
        """True if it changes only when the configuration is read again."""
        return not self.in_file and not self.is_managed

    @property
    def caller_name(self) -> str:
        """Return how logs and limits call its holder: by the start of the digest where it has no name."""
        return self.name or self.digest[:4].hex()

    def has_expired(self, now_s: float) -> bool:
        """True where it is no key any more at a Unix time."""
        return self.expires_s is not None and self.expires_s <= now_s


# What keys are from now on, by digest; None: it is no key. A digest is in it once, so it can't have come and gone.
KeyUpdate: TypeAlias = Mapping[bytes, KeyEntry | None]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener is bound. tcp: host (an IP literal) and port, 0 lets the kernel choose; unix: path."""

    kind: Literal["tcp", "unix"]
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can connect. A unix socket counts: file permissions guard it."""
        return self.kind == "unix" or ipaddress.ip_address(self.host).is_loopback

    @property
    def is_ipv6(self) -> bool:
        """True for a TCP address of version 6."""
        return ":" in self.host

    def includes(self, other: Address) -> bool:
        """True when only one of the two can be bound: they are one, or this one is each address of the other's port.

        By itself `::` is each address of both versions.
        """
        if self.kind == "unix" or other.kind == "unix" or not self.port:
            return self == other and self.kind == "unix"
        is_each = self.host == "::" or (self.host == "0.0.0.0" and not other.is_ipv6)
        return self.port == other.port and (is_each or self.host == other.host)

    def __str__(self) -> str:
        if self.kind == "unix":
            return f"unix:{self.path}"
        return f"{_bracketed(self.host)}:{self.port}"


@dataclass(frozen=True, slots=True)
class SocketOwner:
    """Whom a unix socket's file is given to. text: as it was written. uid, gid: None leaves what it is."""

    text: str
    uid: int | None
    gid: int | None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Origin:
    """Where requests go. base_path is "" or "/x", never "/x/"; an IPv6 host has no brackets.

    unix_path: the socket to connect to instead of host and port, which then only fill the Host header.
    """

    scheme: Literal["http", "https"]
    host: str
    port: int
    base_path: str
    host_header: bytes
    unix_path: str = ""

    def __str__(self) -> str:
        if self.unix_path:
            return f"unix:{self.unix_path}"
        return f"{self.scheme}://{self.host_header.decode('ascii')}{self.base_path}"


class Secret:
    """Text that no repr, str, format or traceback shows; `reveal` gives it out."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself, for the one place that sends it."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __str__(self) -> str:
        return "hidden"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class Dialect(enum.IntEnum):
    """The API that a client speaks: whose shape its errors have."""

    OPENAI = 0
    ANTHROPIC = 1
    GOOGLE = 2


class Answers(enum.IntEnum):
    """What the replies of status 200 to a request are."""

    ANYTHING = 0
    JSON = 1  # or an event stream
    RESPONSE = 2  # so is an answer of OpenAI's Responses
    JSON_OR_FILE = 3


class ApiKind(enum.IntEnum):
    """The kind of an API that clients ask for, or that models have.

    CONVERSE and COUNT_CONVERSE are Bedrock's, VECTORS what embedding models have on Vertex and Bedrock: no client asks
    for these. COMPACT is a part of Responses: a long conversation becomes a short one.
    """

    CHAT = 1
    RESPONSES = 2
    MESSAGES = 3
    GENERATE = 4
    CONVERSE = 5
    EMBEDDINGS = 6
    EMBED_CONTENTS = 7
    COUNT_MESSAGES = 8
    COUNT_RESPONSES = 9
    COUNT_GENERATE = 10
    VECTORS = 11
    COUNT_CONVERSE = 12
    EMBED_CONTENT = 13
    COMPACT = 14
