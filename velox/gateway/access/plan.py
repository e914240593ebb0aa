"""What follows from the head of a request, and from who sent it: found once for all heads that are alike.

Knows: which facts later steps ask for. Does not know: who calls (auth.py), or what follows from a fact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from velox.gateway.access.access import Access, Guard
from velox.gateway.access.endpoints import WITHOUT_CONTENT, PathFacts, Routes, dialect_of, reads_body, reads_form
from velox.gateway.answers.answers import REFERRING, is_of_answer
from velox.gateway.reply.addresses import NO_PASS, AddressPass, Passed
from velox.gateway.reply.reply import ExpectedReply
from velox.heads import RequestHead
from velox.policy.limits.estimate import Estimator
from velox.policy.retries.deadline import ClientTerms, client_terms
from velox.protocol.agents import agent_of
from velox.protocol.content_coding import coding_of
from velox.protocol.heads.target import SERVER
from velox.types import Answers, ApiKind, BodyFields, Caller, Dialect, Endpoint, Priority, Timing

__all__ = ["ANY_TIMING", "RequestPlan", "TimingRule", "plan_of", "runs_model"]

_NS_PER_S: Final = 1_000_000_000
_NEVER_NS: Final = 1 << 62
# Questions for how many tokens a request has: no model works for them.
_COUNTS: Final = frozenset({ApiKind.COUNT_MESSAGES, ApiKind.COUNT_RESPONSES, ApiKind.COUNT_GENERATE})
# At these, things are put down; what works with them is asked elsewhere, or reports later. Models are not among them:
# what is posted to one, as to `models/imagen-4:predict` or `models/OWNER/NAME/predictions`, is for it to work on.
_IDLE: Final = frozenset({Endpoint.FILES, Endpoint.BATCHES, Endpoint.VECTOR_STORES, Endpoint.TOKENIZE})
# Beside the APIs that can be put into another dialect. Of the answers about sound some are files.
_JSON_ANSWERS: Final = frozenset({Endpoint.COMPLETIONS, Endpoint.IMAGES, Endpoint.MODERATIONS})
# A model thinks before the text of these. Other APIs have items between which it may think again.
_COMPLETIONS: Final = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
_ASKING: Final = frozenset({b"GET", b"HEAD"})


class TimingRule(NamedTuple):
    """What replies tell of the time that they took, whatever is asked for: at least, at most."""

    least: Timing = Timing.NOTHING
    most: Timing = Timing.STREAM

    def of(self, asked: Timing, caller: Caller) -> Timing:
        """Return what the replies of a caller tell that asks for something."""
        return min(max(asked, self.least), self.most) if caller.terms.timing else Timing.NOTHING


ANY_TIMING: Final = TimingRule()


# Not a tuple: its attributes are read some 20 times for each request. Not frozen: that would triple the cost of one.
@dataclass(slots=True, eq=False)
class RequestPlan:
    """One kind of request. Not to be modified.

    dialect: of the client. names_model: a body of this path names a model, or the path itself does, whose tokens can be
    estimated. reads_body: its body is JSON that names one. reads_form: it is such a form. fills: where either names
    none, that of the route is put in. names_lines: its body may be the lines of a batch, which name models.
    may_be_local: it may ask for what there is, which the gateway may answer itself, or refer to answers that are kept
    here. has_body: the head was checked as one that a body follows, of which more is asked. forbids_body: no body may
    follow. terms: what the client says of time and tries. timeout_ns: its time, in nanoseconds; some hundred years for
    none. priority: its class in the queue. least_cost: tokens that it may cost beside those of its body, before that
    has been read. expected: what is known of its reply. guard: looks at what its caller's key may not send; None:
    nothing is looked at. client_api: the API that it asks, of those that can be put into another dialect. named: model
    and stream, where its path names them and not its body. path_model: the model alone, whatever its body names.
    is_recorded: a model may work for it: its calls are records of the ledger. family, agent: of its path and of its
    client's program, for them. passed: of an upload, to where it goes on; None: of no upload that has begun.
    reads_addresses: its reply may hold addresses of the upstream's, also in JSON. has_addresses: it may hold any, or
    its body may. is_coded: its body came compressed.
    is_probe: it only asks whether somebody is there. timing: what its reply tells of the time that it took. is_unusual:
    it is coded, a probe, its time is told, it is traced, or answered as LiteLLM would (is_litellms).
    """

    caller: Caller
    endpoint: Endpoint
    dialect: Dialect
    names_model: bool
    reads_body: bool
    may_be_local: bool
    has_body: bool
    forbids_body: bool
    terms: ClientTerms
    timeout_ns: int
    priority: Priority
    least_cost: int
    expected: ExpectedReply
    guard: Guard | None = None
    client_api: ApiKind | None = None
    named: BodyFields | None = None
    path_model: str | None = None
    is_recorded: bool = False
    family: str = ""
    passed: Passed | None = None
    reads_addresses: bool = False
    has_addresses: bool = False
    is_coded: bool = False
    reads_form: bool = False
    fills: bool = False
    names_lines: bool = False
    is_probe: bool = False
    timing: Timing = Timing.NOTHING
    is_unusual: bool = False
    is_litellms: bool = False
    agent: int = 0


def plan_of(
    head: RequestHead,
    caller: Caller,
    endpoints: Routes,
    estimator: Estimator,
    access: Access,
    *,
    requires_keys: bool,
    passes: AddressPass | None = None,
    is_probe: bool = False,
    timing: TimingRule = ANY_TIMING,
    is_traced: bool = False,
    is_litellms: bool = False,
) -> RequestPlan:
    """Read a head. Raises VeloxError: BAD_REQUEST as client_terms() does, FORBIDDEN as Access.guard() does.

    requires_keys: callers present keys; without, there is nobody to be fair to but oneself. timing: of the gateway.
    is_traced, is_litellms: so are all requests of this gateway.
    """
    path = endpoints.facts(head.path)
    terms = client_terms(head.headers, is_litellms=is_litellms)
    is_post = head.method == b"POST"
    is_count = is_post and (path.client_api in _COUNTS or path.endpoint is Endpoint.TOKENIZE)
    reads, row = reads_body(path, head), path.row
    is_form = reads_form(path, head)
    named = path.named if is_post else None
    path_model = path.path_model if is_post or head.offer is not None else None
    if is_post and named is None and path_model is not None and not reads and not is_form:
        named = BodyFields(path_model, is_model_in_path=True)
    dialect = dialect_of(head, path)
    passed = passes.opened(head.target) if passes is not None and NO_PASS in head.query else None
    tells, reads_texts = access.addresses(head)
    reads_texts = reads_texts and head.method != b"HEAD"
    is_coded, tells_time = head.has_body and coding_of(head) != b"", timing.of(terms.timing, caller)
    return RequestPlan(
        caller,
        path.endpoint,
        dialect,
        is_post and not is_count and (path.named is not None or (row is not None and row.counts_tokens)),
        reads,
        _may_be_local(head, path, is_post=is_post),
        head.has_body,
        head.method in WITHOUT_CONTENT,
        terms,
        _NEVER_NS if terms.timeout_s == math.inf else round(terms.timeout_s * _NS_PER_S),
        _priority(caller, terms, requires_keys=requires_keys),
        estimator.at_first(path.endpoint, 0),
        ExpectedReply(dialect, _answers(path) if is_post else Answers.ANYTHING, path.endpoint in _COMPLETIONS, tells),
        access.guard(head, caller) if requires_keys else access.keeper(head, caller),
        path.client_api if is_post else None,
        named,
        path_model,
        head.offer is not None or (is_post and head.has_body and runs_model(path)),
        path.family,
        passed,
        reads_texts,
        passed is not None or tells or dialect is Dialect.GOOGLE,
        is_coded,
        is_form,
        row is not None and row.fills,
        is_post and path.names_lines,
        is_probe,
        tells_time,
        is_traced or is_litellms or is_coded or is_probe or tells_time > Timing.NOTHING,
        is_litellms,
        agent_of(head.header(b"user-agent")),
    )


def _may_be_local(head: RequestHead, path: PathFacts, *, is_post: bool) -> bool:
    if head.method in _ASKING and b"/models" in head.path:
        return True
    return head.path == SERVER or is_of_answer(head.path) or (is_post and path.client_api in REFERRING)


def runs_model(path: PathFacts) -> bool:
    """Say whether a model may work for what is posted to a path: then it is recorded, and counts for budgets."""
    return path.client_api not in _COUNTS and path.endpoint not in _IDLE


def _priority(caller: Caller, terms: ClientTerms, *, requires_keys: bool) -> Priority:
    """Return the class of a request: the one that it asks for, but no higher than its key has."""
    highest = caller.terms.priority
    if terms.priority is None:
        return Priority.NORMAL if highest is None else highest
    if highest is None:
        highest = Priority.NORMAL if requires_keys else Priority.HIGH
    return max(terms.priority, highest)


def _answers(path: PathFacts) -> Answers:
    """Return what a POST to a path is answered with."""
    if path.client_api is not None:
        return Answers.RESPONSE if path.client_api is ApiKind.RESPONSES else Answers.JSON
    if path.reads_body and path.endpoint in _JSON_ANSWERS:
        return Answers.JSON
    return Answers.JSON_OR_FILE if path.endpoint is Endpoint.AUDIO else Answers.ANYTHING
