"""Writes the generated tables of settings.md, errors.md, metrics.md and others: `python -m docs.tables`.

Knows: what each reason means in words, and the markers that a table stands between. The rest comes from
velox/errors.py and velox/settings; a test compares the pages with what this makes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from docs import matrix
from velox.admin import metrics_page
from velox.admin.metrics_page import upstream_families
from velox.errors import Reason, error_type
from velox.observe.series import CELLS
from velox.providers.model_facts import facts_of
from velox.providers.provider import Keyless, Provider
from velox.providers.rows import PROVIDERS
from velox.providers.target import apis_of, missing, target_call
from velox.runtime.commands.translation_losses import DIALECTS, field_losses
from velox.runtime.upstreams.dialects import dialect_table
from velox.settings.model import VARIABLES
from velox.settings.routing.provider_fields import PARAMETERS
from velox.settings.show import markdown
from velox.shm.quota_table import QuotaMemory
from velox.shm.segment import Segment
from velox.shm.upstream_table import ROW_CELLS, UpstreamTable
from velox.types import ApiKind

__all__ = [
    "MEANING",
    "TABLES",
    "fill",
    "losses",
    "most_series",
    "providers",
    "reasons_by_status",
    "reasons_in_full",
    "settings_by_topic",
]

ROOT: Final = Path(__file__).parents[1]

MEANING: Final = {
    Reason.BAD_FRAMING: "the bytes are not an unambiguous HTTP/1.1 request (also 501, 505)",
    Reason.BAD_REQUEST: "the head, the target or a body's field is not allowed; `param` names the field (also 417)",
    Reason.HEADER_TOO_LARGE: "the head is over 32 KiB, 16 KiB a line, 100 fields, or 8 KiB of target (then 414)",
    Reason.HEADER_TIMEOUT: "the head took too long (`VELOX_HEADER_TIMEOUT`)",
    Reason.BODY_TOO_LARGE: "the body is over `VELOX_MAX_BODY`",
    Reason.BODY_TIMEOUT: "the body stopped (`VELOX_BODY_TIMEOUT`), or was too slow"
    " (`VELOX_CLIENT_MIN_RATE`); as 504: the upstream did not read it"
    " (`VELOX_UPSTREAM_WRITE_TIMEOUT`)",
    Reason.INVALID_JSON: "the body is not a JSON object; the message says where",
    Reason.DUPLICATE_KEY: "the body repeats a field that Velox acts on; `param` names it",
    Reason.UNKNOWN_ROUTE: "the path is not in `VELOX_PATHS`, or is one of the admin listener's",
    Reason.UNKNOWN_MODEL: "no route is for the model, or no upstream of its route has it ([routes](routes.md))",
    Reason.PREVIOUS_NOT_FOUND: "the answer that `previous_response_id` names is not kept, or no longer; send the"
    " whole conversation ([kept answers](dialects.md#kept-answers))",
    Reason.UNKNOWN_OBJECT: "the object was made by another caller ([keys](keys.md#objects))",
    Reason.METHOD_NOT_ALLOWED: "the method is none of those in `Allow`",
    Reason.UNSUPPORTED_MEDIA: "this path takes JSON (or a multipart form), in UTF-8",
    Reason.UNSUPPORTED_ENCODING: "the request's body is compressed, but not once by zstd, gzip or deflate, or "
    "br where that is installed; `Accept-Encoding` names these",
    Reason.AUTH_INVALID: "missing or unknown key, with the same answer for both",
    Reason.FORBIDDEN: "the key may not use this model, or this endpoint ([models](keys.md#models),"
    " [endpoints](keys.md#endpoints)); or no key is required, and a [web page](keys.md#web-pages) may be asking",
    Reason.RATE_LIMITED: "a limit is reached ([limits](limits.md)); `retry-after-ms` says when all have capacity;"
    " without it the request is larger than a limit",
    Reason.INSUFFICIENT_QUOTA: "a [budget](budgets.md) is used up; `x-velox-budget-reset` says when its next window"
    " begins",
    Reason.UNPRICED_MODEL: "a [budget](budgets.md#models-without-a-price) counts dollars, and the model has no price",
    Reason.NOT_CACHED: "the [cache](cache.md) has no answer, and the client's `Cache-Control: only-if-cached` takes no"
    " other one",
    Reason.IDEMPOTENCY_MISMATCH: "the `Idempotency-Key` is that of [another request](joined-calls.md#retries), which"
    " runs or whose answer is still kept",
    Reason.CLIENT_CLOSED: "the client disconnected before the end of its reply; only in log and metric",
    Reason.CLIENT_SLOW: "the client read its reply too slowly (`VELOX_CLIENT_WRITE_TIMEOUT`)",
    Reason.TUNNEL_TIMEOUT: "a WebSocket was idle (`VELOX_TUNNEL_IDLE_TIMEOUT`), or reached its maximum age"
    " (`VELOX_TUNNEL_TIMEOUT`); its Close frame says 1001",
    Reason.QUEUE_FULL: "the queue is full (`VELOX_QUEUE_DEPTH`, `VELOX_QUEUE_BYTES`), or a higher class took the place",
    Reason.QUEUE_TIMEOUT: "the request waited too long in the queue or for a connection (`VELOX_QUEUE_TIMEOUT`), or"
    " would have: then it is refused at once",
    Reason.CONN_LIMIT: "too many client connections (`VELOX_MAX_CONNECTIONS`, `VELOX_MAX_CONNECTIONS_PER_ADDRESS`, open"
    " files), or WebSockets (`VELOX_MAX_TUNNELS`); or no open file is left for a connection to the upstream",
    Reason.DRAINING: "the gateway is shutting down",
    Reason.OVERLOAD_MEMORY: "no memory for this body (`VELOX_BODY_BUDGET`), or the worker is above its soft limit"
    " (`VELOX_MEMORY_SOFT`)",
    Reason.LIMITS_UNAVAILABLE: "Redis is down, so a shared limit can't be checked"
    " ([limits-replicas.md](limits-replicas.md), [budgets](budgets.md#several-gateways)); or the ledger can't be read"
    " ([budgets](budgets.md#without-the-ledger))",
    Reason.ANSWERS_UNAVAILABLE: "Redis, or the database, is down, so a [kept answer](dialects.md#kept-answers) of"
    " another gateway can't be read, or one can't be deleted or changed",
    Reason.LEDGER_FULL: "no more calls can be recorded ([ledger](ledger.md#when-the-database-is-away),"
    " `VELOX_LEDGER_FULL`)",
    Reason.ENDED_BY_ADMIN: "an administrator ended it ([admin API](admin-api.md))",
    Reason.INTERNAL: "a bug in Velox; the operations log says where",
    Reason.UPSTREAM_DNS: "the upstream's name could not be resolved",
    Reason.UPSTREAM_CONNECT: "the upstream could not be reached",
    Reason.UPSTREAM_TLS: "TLS with the upstream failed: certificate, version, or no HTTP/2 where it is required",
    Reason.UPSTREAM_RESET: "the upstream closed or reset the connection before it answered",
    Reason.UPSTREAM_PROTOCOL: "the upstream's reply is invalid HTTP, or none of its API: HTML, nothing, unknown JSON",
    Reason.UPSTREAM_TTFB_TIMEOUT: "no first byte in time (`VELOX_UPSTREAM_FIRST_BYTE_TIMEOUT`)",
    Reason.UPSTREAM_IDLE_TIMEOUT: "silence inside a reply (`VELOX_UPSTREAM_IDLE_TIMEOUT`)",
    Reason.UPSTREAM_TOTAL_TIMEOUT: "the reply took too long (`VELOX_UPSTREAM_TOTAL_TIMEOUT`, `VELOX_STREAM_TIMEOUT`),"
    " or a [list](keys.md#objects) begins with too many pages of other callers' objects",
    Reason.UPSTREAM_TRUNCATED: "the upstream cut its reply",
    Reason.UPSTREAM_CREDENTIALS: "no token or signature for the upstream could be made (AWS, Google,"
    " Entra); the message says why",
    Reason.UPSTREAM_REDIRECT: "the upstream answered with a redirect; Velox follows none",
    Reason.UPSTREAM_STATUS: "the upstream's own 4xx or 5xx, passed unchanged; only in log and metric",
}

# These end an exchange without a reply of Velox's own.
_NEVER_SENT: Final = (Reason.CLIENT_CLOSED, Reason.CLIENT_SLOW, Reason.TUNNEL_TIMEOUT, Reason.UPSTREAM_STATUS)


_SHOWN_MODELS: Final = 2
# A current model of each API that others are translated to.
_MODELS: Final = {
    "Claude": ("anthropic", "claude-opus-4-7"),
    "Claude on Bedrock": ("bedrock", "anthropic.claude-opus-4-7-v1:0"),
    "Nova on Bedrock": ("bedrock", "amazon.nova-2-lite-v1:0"),
    "Gemini": ("gemini", "gemini-3-flash"),
    "Chat: GPT-4o": ("openai", "gpt-4o"),
    "Chat: vLLM": ("vllm", "a-model"),
    "Responses: GPT-5.2": ("openai", "gpt-5.2"),
}

# What is sent in place of a key.
_SIGNED: Final = {
    Keyless.AWS: "AWS credentials",
    Keyless.GOOGLE: "a Google account",
    Keyless.ENTRA: "Microsoft Entra",
}

# Topic -> the first variable of it; it goes on to the next topic's.
_TOPICS: Final = {
    "Client listeners": "VELOX_LISTEN",
    "Admin listener": "VELOX_ADMIN_LISTEN",
    "Processes": "VELOX_WORKERS",
    "Upstream": "VELOX_UPSTREAM_ORIGIN",
    "Upstream time-outs": "VELOX_UPSTREAM_CONNECT_TIMEOUT",
    "Retries": "VELOX_RETRIES",
    "Upstream connections": "VELOX_READY_REQUIRES_UPSTREAM",
    "Upstream credentials and paths": "OPENAI_API_KEY",
    "Limits": "VELOX_RATE_LIMIT_RPM",
    "Queue and concurrency": "VELOX_QUEUE_DEPTH",
    "Limits over several gateways": "VELOX_REDIS_URL",
    "Sizes, connections, memory": "VELOX_MAX_BODY",
    "Client time-outs": "VELOX_HEADER_TIMEOUT",
    "WebSockets": "VELOX_MAX_TUNNELS",
    "Client keys": "VELOX_API_KEYS",
    "Drain, log, file": "VELOX_DRAIN_TIMEOUT",
}


def settings_by_topic() -> str:
    """Return the tables of docs/settings.md: one for each topic, all variables in their order."""
    names = [variable.name for variable in VARIABLES]
    starts = [*map(names.index, _TOPICS.values()), len(names)]
    tables = [
        f"## {topic}\n\n{markdown(VARIABLES[start:end])}"
        for topic, start, end in zip(_TOPICS, starts[:-1], starts[1:], strict=True)
    ]
    return "\n" + "\n".join(tables)


def reasons_by_status() -> str:
    """Return the short table of docs/errors.md: a row a status."""
    lines = ["| status | `error.type` | reasons (`error.code`) |", "|---|---|---|"]
    sent = [reason for reason in Reason if reason not in _NEVER_SENT]
    for status in sorted({reason.fact.status for reason in sent}):
        codes = ", ".join(f"`{reason.code}`" for reason in sent if reason.fact.status == status)
        lines.append(f"| {status} | `{error_type(status)}` | {codes} |")
    codes = ", ".join(f"`{reason.code}`" for reason in _NEVER_SENT)
    lines.append(f"| none | | {codes}: in log and metric only |")
    return "\n".join(lines) + "\n"


def reasons_in_full() -> str:
    """Return the long table of docs/errors.md: a row a reason."""
    lines = ["| reason | status | caused by | `x-should-retry` | meaning |", "|---|---|---|---|---|"]
    for reason in Reason:
        fact = reason.fact
        retry = {True: "true", False: "false", None: ""}[fact.should_retry]
        lines.append(f"| `{reason.code}` | {fact.status} | {fact.blame.value} | {retry} | {MEANING[reason]} |")
    return "\n".join(lines) + "\n"


def most_series() -> str:
    """Return the sentence that says how many series there can be: those of a page on which everything was counted."""
    first, second = _count_series(1), _count_series(2)
    fixed, per_worker = 2 * first - second, second - first
    of_one, of_two = (_count_upstream_series(n) for n in (1, 2))
    per_origin = of_two - of_one
    return (
        f"There are {fixed:,} series at most, {per_worker} more for each worker, 3 more for each process,\n"
        f"{of_one - per_origin} more for each upstream and {per_origin} more for each of its origins.\n"
    )


def _count_series(workers: int) -> int:
    segment = Segment(workers, CELLS)
    for cells in (segment.gateway(), *map(segment.status, range(workers)), *map(segment.metrics, range(workers))):
        cells[:] = memoryview(array("Q", [1] * len(cells)))
    # Without a /proc no process has series of its own.
    page = metrics_page.render(segment, ROOT / "no-such-folder", quotas=QuotaMemory(64, 1)).decode()
    return sum(1 for line in page.splitlines() if not line.startswith("#"))


def _count_upstream_series(n_origins: int) -> int:
    table = UpstreamTable(1)
    table.enroll([("upstream", f"origin-{n}") for n in range(n_origins)])
    slab = table.memory.slab(table.memory.blocks)
    for cell in range(n_origins * ROW_CELLS):
        slab[cell] = 1
    found = upstream_families(table.totals())
    return sum(len(family.samples) for family in found)


def providers() -> str:
    """Return the table of docs/providers.md: a row for each provider, a line in it for each family of models."""
    lines = ["| `provider` | key, parameters | APIs | others are translated to |", "|---|---|---|---|"]
    for row in PROVIDERS.values():
        lines.append(f"| `{row.name}`: {row.title} | {_needs(row)} | {'<br>'.join(_apis(row))} | {_into(row)} |")
    return "\n".join(lines) + "\n"


def losses() -> str:
    """Return the tables of docs/dialects.md: for each dialect of clients the fields that some translation loses."""
    tables = []
    for dialect, client_api in DIALECTS.items():
        columns: dict[str, dict[str, str]] = {}
        for title, (provider, model) in _MODELS.items():
            row = PROVIDERS[provider]
            call = target_call(row, {"region": "r"}, client_api, model)
            if call is None or call.api is client_api:
                continue
            found = field_losses(dialect_table(), client_api, call.api, (provider, facts_of(row, model), model))
            columns[title] = {name: "**refused**" if why else "dropped" if lost else "" for name, lost, why in found}
        names = [name for name in next(iter(columns.values())) if any(column[name] for column in columns.values())]
        lines = [f"| `{dialect}` | {' | '.join(columns)} |", f"|{'---|' * (len(columns) + 1)}"]
        lines += [f"| {name} | {' | '.join(column[name] for column in columns.values())} |" for name in names]
        tables.append("\n".join(lines) + "\n")
    return "\n" + "\n".join(tables) + "\n"


def _needs(row: Provider) -> str:
    ways = [f"`{name}`" for name in row.key_variables[:1]]
    if row.keyless is not Keyless.CLIENT:
        ways.append(_SIGNED[row.keyless])
    elif not ways and row.origin.startswith("https:"):
        ways.append("`key`")
    parameters = ", ".join(f"`{name}`" for name in PARAMETERS if name in missing(row, (), has_origin=False))
    origin = "" if row.origin else "`origin`"
    return "; ".join(filter(None, [" or ".join(ways), parameters, origin])) or "none"


def _apis(row: Provider) -> Iterator[str]:
    for models, native, _ in apis_of(row, {}):
        yield _of_models(models, row) + _codes(native)
    usual = {api for family in row.families for api in family.native}
    optional = {api for family in row.families for api in family.optional} - usual
    if optional:
        yield f"where `apis` names them: {_codes(sorted(optional))}"


def _into(row: Provider) -> str:
    found = [(models, translated) for models, _, translated in apis_of(row, {}) if translated is not None]
    if len({translated for _, translated in found}) < 2:
        return _codes([found[0][1]]) if found else "nothing, unless `apis` names one"
    return "<br>".join(_of_models(models, row) + _codes([translated]) for models, translated in found)


def _of_models(models: Sequence[str], row: Provider) -> str:
    if models:
        more = " and similar" if len(models) > _SHOWN_MODELS else ""
        return f"{', '.join(f'`{model}`' for model in models[:_SHOWN_MODELS])}{more}: "
    return "other models: " if len(list(apis_of(row, {}))) > 1 else ""


def _codes(apis: Iterable[ApiKind]) -> str:
    return ", ".join(f"`{api.name.lower()}`" for api in apis)


# (page, name of the markers, what makes the table)
TABLES: Final = (
    ("docs/settings.md", "settings", settings_by_topic),
    ("docs/errors.md", "statuses", reasons_by_status),
    ("docs/errors.md", "reasons", reasons_in_full),
    ("docs/metrics.md", "series", most_series),
    ("docs/providers.md", "providers", providers),
    ("docs/dialects.md", "losses", losses),
    ("docs/matrix.md", "overview", matrix.overview),
    ("docs/matrix.md", "matrix", matrix.matrix),
    ("docs/provider-pages.md", "sections", matrix.sections),
)


def fill(text: str, name: str, table: str) -> str:
    """Return a page with the table between `<!-- name -->` and `<!-- /name -->`. Raises ValueError without them."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found, rest = text.partition(start)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"no {start.strip()} with its end")
    return before + start + table + end + after


if __name__ == "__main__":
    for page, name, make in TABLES:
        path = ROOT / page
        path.write_text(fill(path.read_text(), name, make()))
