"""Where traces go, and which: OpenTelemetry's variables of the environment, as its SDKs read them.

    OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT   one of them turns traces on
    OTEL_EXPORTER_OTLP_HEADERS, _TIMEOUT, _COMPRESSION, _PROTOCOL     each also with TRACES_ before the last word
    OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER
    OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG
    OTEL_BSP_SCHEDULE_DELAY, _MAX_QUEUE_SIZE, _MAX_EXPORT_BATCH_SIZE, _EXPORT_TIMEOUT
    VELOX_TRACES_ERRORS, _SLOW, _CONTENT, _CONTENT_SIZE, _REDACT      Velox's own (model.py)

Knows: their names, forms and defaults (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/,
.../protocol/exporter/). Does not know: how spans are made or sent. A header may be a credential: no message shows one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast, get_args
from urllib.parse import unquote, urlsplit

from velox.observe.traces.sampling import SamplerName
from velox.settings.problems import Problem, quoted

__all__ = ["TraceSettings", "environment_traces", "unknown_routes"]

T = TypeVar("T")
_OTLP: Final = "OTEL_EXPORTER_OTLP_"
_PATH: Final = "/v1/traces"
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_VALUE: Final = re.compile(r"[\x20-\x7e]{0,4096}")
_MOST_MS: Final = 3_600_000
_MOST_COUNT: Final = 1_000_000
_SAMPLERS: Final[tuple[str, ...]] = get_args(SamplerName)


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """url: where spans are sent. headers: with each request. queue: spans that wait at most; batch: of one request.

    delay_s: the longest wait for a batch that is not full. timeout_s: of one request. give_up_s: after which a batch is
    dropped that could not be sent. ratio: of the sampler. resource: attributes of all spans.
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


def environment_traces(environ: Mapping[str, str]) -> tuple[TraceSettings | None, list[Problem]]:
    """Return what the environment says, and what is wrong with it; None: nothing is traced."""
    reading = _Reading(environ)
    is_off = reading.text("OTEL_SDK_DISABLED").lower() == "true" or reading.text("OTEL_TRACES_EXPORTER") == "none"
    general, own = reading.text(f"{_OTLP}ENDPOINT"), reading.text(f"{_OTLP}TRACES_ENDPOINT")
    if is_off or not (general or own):
        return None, []
    if own:
        url = reading.read(f"{_OTLP}TRACES_ENDPOINT", _url, "", is_shown=False)
    else:
        url = reading.read(f"{_OTLP}ENDPOINT", _url, "", is_shown=False).rstrip("/") + _PATH
    reading.read("OTEL_TRACES_EXPORTER", _one_of("otlp"), "otlp")
    reading.both("PROTOCOL", _one_of("http/protobuf"), "http/protobuf")
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
    )
    return found, reading.problems


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
        own, general = f"{_OTLP}TRACES_{name}", f"{_OTLP}{name}"
        return self.read(own if self.text(own) else general, parse, usual, is_shown=is_shown)


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
