"""Where traces go, and which: OpenTelemetry's variables of the environment, as its SDKs read them.

    OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT   one of them turns traces on, and nothing else does
    OTEL_EXPORTER_OTLP_HEADERS, _TIMEOUT, _COMPRESSION, _PROTOCOL     each also with TRACES_ after OTLP_
    OTEL_EXPORTER_OTLP_CERTIFICATE, _CLIENT_CERTIFICATE, _CLIENT_KEY  and these
    OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER
    OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG, OTEL_PROPAGATORS
    OTEL_BSP_SCHEDULE_DELAY, _MAX_QUEUE_SIZE, _MAX_EXPORT_BATCH_SIZE, _EXPORT_TIMEOUT
    VELOX_TRACES_ERRORS, _SLOW, _CONTENT, _CONTENT_SIZE, _REDACT      Velox's own (model.py)

Knows: their names, forms and defaults (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/,
.../protocol/exporter/). Does not know: how spans are made or sent. A header may be a credential: no message shows one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast, get_args
from urllib.parse import unquote, urlsplit

from velox.observe.traces.sampling import SamplerName
from velox.settings.problems import Problem, quoted

__all__ = ["CollectorTls", "TraceSettings", "environment_traces", "unknown_routes", "unused_telemetry"]

T = TypeVar("T")
_OTLP: Final = "OTEL_EXPORTER_OTLP_"
_PATH: Final = "/v1/traces"
_PROTOCOL: Final = "http/protobuf"
_FILES: Final = ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
_TRACE_CONTEXT: Final = "tracecontext"
# `baggage` is a header that upstreams get as any other: nothing is to be done for it.
_PROPAGATORS: Final = (_TRACE_CONTEXT, "baggage", "none")
# Others that change what an SDK exports of traces.
_NOT_READ: Final = re.compile(
    r"OTEL_(?:EXPORTER_OTLP_(?:TRACES_)?INSECURE|CONFIG_FILE|EXPERIMENTAL_CONFIG_FILE|EXPORTER_(?:JAEGER|ZIPKIN)_\w+"
    r"|(?:SPAN|EVENT|LINK)_\w+_LIMIT|ATTRIBUTE_(?:COUNT|VALUE_LENGTH)_LIMIT)"
)
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_VALUE: Final = re.compile(r"[\x20-\x7e]{0,4096}")
_MOST_MS: Final = 3_600_000
_MOST_COUNT: Final = 1_000_000
_SAMPLERS: Final[tuple[str, ...]] = get_args(SamplerName)


@dataclass(frozen=True, slots=True)
class CollectorTls:
    """Files for TLS with the collector, PEM. ca_file: whom it may be signed by, in place of the system's authorities.

    cert_file, key_file: what it is shown if it asks; without a key_file the key is in cert_file. ..._name: which
    variable said so.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    ca_name: str = f"{_OTLP}CERTIFICATE"
    cert_name: str = f"{_OTLP}CLIENT_CERTIFICATE"
    key_name: str = f"{_OTLP}CLIENT_KEY"


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """url: where spans are sent. headers: with each request. queue: spans that wait at most; batch: of one request.

    delay_s: the longest wait for a batch that is not full. timeout_s: of one request. give_up_s: after which a batch is
    dropped that could not be sent. ratio: of the sampler. resource: attributes of all spans. tls: None: as the system
    has it. reads_context: a request's traceparent is its parent, and each attempt sends one.
    """

    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout_s: float = 10.0
    is_compressed: bool = True
    sampler: SamplerName = "parentbased_always_on"
    ratio: float = 1.0
    delay_s: float = 5.0
    queue: int = 2048
    batch: int = 512
    give_up_s: float = 30.0
    resource: tuple[tuple[str, str], ...] = ()
    tls: CollectorTls | None = None
    reads_context: bool = True


def environment_traces(environ: Mapping[str, str]) -> tuple[TraceSettings | None, list[Problem]]:
    """Return what the environment says, and what is wrong with it; None: nothing is traced."""
    reading = _Reading(environ)
    if not reading.is_on():
        return None, []
    if reading.text(f"{_OTLP}TRACES_ENDPOINT"):
        url = reading.read(f"{_OTLP}TRACES_ENDPOINT", _url, "", is_shown=False)
    else:
        url = reading.read(f"{_OTLP}ENDPOINT", _url, "", is_shown=False).rstrip("/") + _PATH
    reading.read("OTEL_TRACES_EXPORTER", _one_of("otlp"), "otlp")
    reading.both("PROTOCOL", _protocol, _PROTOCOL)
    sampler = reading.read("OTEL_TRACES_SAMPLER", _one_of(*_SAMPLERS), "parentbased_always_on")
    batch, queue = (
        reading.read(f"OTEL_BSP_MAX_{name}", _number(1, _MOST_COUNT), usual)
        for name, usual in (("EXPORT_BATCH_SIZE", 512), ("QUEUE_SIZE", 2048))
    )
    found = TraceSettings(
        url,
        reading.both("HEADERS", _headers, (), is_shown=False),
        reading.both("TIMEOUT", _number(1, _MOST_MS), 10_000) / 1000,
        reading.both("COMPRESSION", _one_of("gzip", "none"), "gzip") == "gzip",
        cast(SamplerName, sampler),
        reading.read("OTEL_TRACES_SAMPLER_ARG", _ratio, 1.0) if sampler.endswith("traceidratio") else 1.0,
        reading.read("OTEL_BSP_SCHEDULE_DELAY", _number(0, _MOST_MS), 5000) / 1000,
        queue,
        min(batch, queue),
        reading.read("OTEL_BSP_EXPORT_TIMEOUT", _number(1, _MOST_MS), 30_000) / 1000,
        _resource(reading.read("OTEL_RESOURCE_ATTRIBUTES", _pairs, ()), reading.text("OTEL_SERVICE_NAME")),
        reading.tls() if url.lower().startswith("https:") else None,
        _TRACE_CONTEXT in reading.propagators(),
    )
    return found, reading.problems


def unused_telemetry(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each kind of these variables that says something other than Velox does."""
    reading = _Reading(environ)
    disabled = reading.text("OTEL_SDK_DISABLED")
    if disabled.lower() not in {"", "true", "false"}:
        yield "OTEL_SDK_DISABLED is neither true nor false, and counts as false: traces are as the others say"
    if not reading.is_on():
        yield from _told_where_off(reading)
        return
    yield from _unencrypted(reading)
    unknown = [name for name in reading.propagators() if name not in _PROPAGATORS]
    if unknown:
        shown = quoted(", ".join(unknown))
        yield f"OTEL_PROPAGATORS names {shown}, which Velox has not: it knows {', '.join(_PROPAGATORS)}"
    others = sorted(name for name in environ if _NOT_READ.fullmatch(name) and reading.text(name))
    if others:
        yield f"set and not used: {', '.join(others)}"


def _told_where_off(reading: _Reading) -> Iterator[str]:
    """Tell of what other programs send traces by, such as what is injected into all: no endpoint, no traces."""
    if reading.is_off or reading.endpoint:
        return
    names = ["OTEL_TRACES_EXPORTER", *(f"{_OTLP}{which}PROTOCOL" for which in ("", "TRACES_"))]
    found = [name for name in names if reading.text(name)]
    if found:
        yield (
            f"set and not used: {', '.join(found)}: no traces are sent without {_OTLP}ENDPOINT or"
            f" {_OTLP}TRACES_ENDPOINT"
        )


def _unencrypted(reading: _Reading) -> Iterator[str]:
    """Tell of files of TLS that nothing is done with."""
    name = reading.named("ENDPOINT")
    found = [file for file in map(reading.named, _FILES) if reading.text(file)]
    if found and reading.endpoint.lower().startswith("http:"):
        yield (
            f"set and not used: {', '.join(found)}, as {name} begins with http: traces and the headers with them are"
            " sent without encryption; with https: they are used"
        )


def unknown_routes(values: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with the names of routes whose content is exported. values: of Velox's own, by field."""
    known = [route.name for route in values.get("routes", ())]
    lost = [name for name in values.get("traces_content", ()) if name != "*" and name not in known]
    if not lost or not known:  # without any, something else is wrong
        return []
    return [Problem("VELOX_TRACES_CONTENT", quoted(", ".join(lost)), f"expected names of routes: {', '.join(known)}")]


class _Reading:
    """Variables, and what was wrong with those that were read."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ: Final = environ
        self.problems: Final[list[Problem]] = []

    def text(self, name: str) -> str:
        """Return what a variable says; "" if it is not set, or empty, which is the same."""
        return self._environ.get(name, "").strip()

    @property
    def is_off(self) -> bool:
        """Say whether traces are switched off, whatever else is set."""
        exporter = self.text("OTEL_TRACES_EXPORTER").lower()
        return self.text("OTEL_SDK_DISABLED").lower() == "true" or exporter == "none"

    @property
    def endpoint(self) -> str:
        """Return the one that counts, as it is given; "": none is."""
        return self.text(self.named("ENDPOINT"))

    def is_on(self) -> bool:
        """Say whether traces are exported."""
        return bool(self.endpoint) and not self.is_off

    def propagators(self) -> list[str]:
        """Return the names, each once; the usual ones if none is given."""
        text = self.text("OTEL_PROPAGATORS").lower() or f"{_TRACE_CONTEXT},baggage"
        return list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))

    def tls(self) -> CollectorTls | None:
        """Return the files of TLS; None: there are none."""
        authorities, cert, key = (self.named(name) for name in _FILES)
        files = [self.text(name) or None for name in (authorities, cert, key)]
        return CollectorTls(files[0], files[1], files[2], authorities, cert, key) if any(files) else None

    def named(self, name: str) -> str:
        """Return which variable counts: that for traces alone, if it is set."""
        own = f"{_OTLP}TRACES_{name}"
        return own if self.text(own) else f"{_OTLP}{name}"

    def read(self, name: str, parse: Callable[[str], T], usual: T, *, is_shown: bool = True) -> T:
        """Return a variable's value."""
        text = self.text(name)
        if not text:
            return usual
        try:
            return parse(text)
        except ValueError as exc:
            self.problems.append(Problem(name, quoted(text) if is_shown else "", str(exc)))
            return usual

    def both(self, name: str, parse: Callable[[str], T], usual: T, *, is_shown: bool = True) -> T:
        """Return the value of that for traces alone, else of that for all signals."""
        return self.read(self.named(name), parse, usual, is_shown=is_shown)


def _url(text: str) -> str:
    expected = "expected http://host[:port][/path] or https://, without a user, password or fragment"
    try:
        parts = urlsplit(text)
        is_whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ValueError(expected) from None
    if not is_whole or not _VALUE.fullmatch(text) or " " in text or "#" in text or "@" in parts.netloc:
        raise ValueError(expected)
    return text


def _protocol(text: str) -> str:
    if text.lower() != _PROTOCOL:
        raise ValueError(
            f"expected {_PROTOCOL}, which is all that Velox has; collectors take it on port 4318, not 4317"
        )
    return _PROTOCOL


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"expected {', '.join(words)}" + (": it is all that Velox has" if len(words) == 1 else ""))
        return text.lower()

    return parse


def _number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not low <= int(text) <= high:
            raise ValueError(f"expected a whole number from {low} to {high}")
        return int(text)

    return parse


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 1.0:
        raise ValueError("expected a number from 0 to 1")
    return value


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Parse key=value with commas between, values percent-encoded (W3C Baggage, without properties)."""
    found: dict[str, str] = {}
    for each in filter(None, map(str.strip, text.split(","))):
        name, equals, value = each.partition("=")
        if not equals or not name.strip():
            raise ValueError("expected key=value, with commas between")
        found[name.strip()] = unquote(value.strip())
    return tuple(found.items())


def _headers(text: str) -> tuple[tuple[str, str], ...]:
    pairs = _pairs(text)
    for n, (name, value) in enumerate(pairs, 1):
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"expected name=value, with commas between; number {n} is no header")
    return tuple((name.lower(), value) for name, value in pairs)


def _resource(given: tuple[tuple[str, str], ...], service: str) -> tuple[tuple[str, str], ...]:
    attributes = {"service.name": "velox", **dict(given)}
    if service:
        attributes["service.name"] = service
    return tuple(attributes.items())
