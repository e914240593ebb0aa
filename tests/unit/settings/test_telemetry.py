"""OpenTelemetry's variables, as its SDKs read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.upstreams import make_certificates
from velox.settings.loading import load
from velox.settings.problems import SettingsError
from velox.settings.telemetry import environment_traces, unused_telemetry

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**ENDPOINT, "OTEL_SDK_DISABLED": "True"},
        {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_SERVICE_NAME": "x"},
    ],
)
def test_nothing_is_traced_without_an_endpoint_or_where_it_is_off(environ: dict[str, str]) -> None:
    assert environment_traces(environ) == (None, [])


def test_variables_of_traces_stand_over_those_of_all_signals() -> None:
    found, problems = environment_traces(
        {
            **ENDPOINT,
            "OTEL_EXPORTER_OTLP_HEADERS": "a=1",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "Authorization=Basic%20eA==, b=2",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
            "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "none",
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=other,deployment.environment.name=a%2Cb",
            "OTEL_SERVICE_NAME": "gateway",
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.25",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "9",
        }
    )
    assert problems == [] and found is not None
    assert (found.url, found.timeout_s, found.is_compressed) == ("http://collector:4318/v1/traces", 2.5, False)
    assert found.headers == (("authorization", "Basic eA=="), ("b", "2"))
    assert dict(found.resource) == {"service.name": "gateway", "deployment.environment.name": "a,b"}
    assert (found.sampler, found.ratio, found.batch) == ("parentbased_traceidratio", 0.25, 9)


def test_endpoint_of_traces_is_taken_as_it_is() -> None:
    found, _ = environment_traces({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://x.example/api/otel?a=1"})
    assert found is not None and found.url == "https://x.example/api/otel?a=1"
    assert found.resource == (("service.name", "velox"),)


@pytest.mark.parametrize(
    ("name", "value", "is_shown"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", False),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", True),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", True),
        ("OTEL_EXPORTER_OTLP_HEADERS", "sk-secret", False),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", True),
        ("OTEL_TRACES_SAMPLER", "sometimes", True),
        ("OTEL_BSP_SCHEDULE_DELAY", "-1", True),
    ],
)
def test_what_is_wrong_is_said_without_what_may_be_secret(name: str, value: str, is_shown: bool) -> None:
    _, (problem,) = environment_traces({**ENDPOINT, name: value})
    assert problem.name == name and (value in str(problem)) is is_shown


def test_grpc_is_refused_with_what_to_set() -> None:
    _, (problem,) = environment_traces({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert "expected http/protobuf" in str(problem) and "4318" in str(problem)


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "OTEL_TRACES_EXPORTER"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "OTEL_TRACES_EXPORTER"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_TRACES_SAMPLER": "odd"},
            "OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_PROTOCOL",
        ),
    ],
)
def test_without_an_endpoint_nothing_is_sent_or_refused(environ: dict[str, str], names: str) -> None:
    """Whatever is injected into all programs of a machine; the log says that it is not used."""
    settings = load(environ, memory_bytes=0, sim=True)
    assert settings.traces is None
    (told,) = unused_telemetry(environ)
    assert told.startswith(f"set and not used: {names}: no traces are sent without OTEL_EXPORTER_OTLP_ENDPOINT or")
    assert told in settings.unused_variables
    for off in ({"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}):
        assert list(unused_telemetry({**environ, **off})) == []


def test_exporter_that_velox_has_not_is_refused_with_an_endpoint() -> None:
    _, (problem,) = environment_traces({**ENDPOINT, "OTEL_TRACES_EXPORTER": "console"})
    assert problem.name == "OTEL_TRACES_EXPORTER" and "'console'" in str(problem) and "expected otlp" in str(problem)
    assert environment_traces({"OTEL_TRACES_EXPORTER": "None", **ENDPOINT}) == (None, [])


@pytest.mark.parametrize(
    ("names", "reads"),
    [("", True), ("baggage, TraceContext", True), ("none", False), ("b3", False), ("b3multi,tracecontext", True)],
)
def test_propagators_say_whether_a_parent_is_read(names: str, reads: bool) -> None:
    found, problems = environment_traces({**ENDPOINT, "OTEL_PROPAGATORS": names})
    assert problems == [] and found is not None and found.reads_context is reads


def test_what_says_something_else_is_told() -> None:
    """In one line for each kind, and only where something is traced; not of what belongs to no traces."""
    more = {
        "OTEL_PROPAGATORS": "b3,tracecontext,xray",
        "OTEL_SDK_DISABLED": "1",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "9",
        "OTEL_EXPORTER_OTLP_INSECURE": "true",
    }
    disabled, propagators, others = unused_telemetry({**ENDPOINT, **more})
    assert disabled.startswith("OTEL_SDK_DISABLED is neither true nor false")
    assert "'b3, xray'" in propagators and "tracecontext, baggage, none" in propagators
    assert others == "set and not used: OTEL_EXPORTER_OTLP_INSECURE, OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"
    assert list(unused_telemetry(ENDPOINT)) == []
    assert list(unused_telemetry({**more, "OTEL_SDK_DISABLED": "TRUE"})) == []
    settings = load({**ENDPOINT, **more}, memory_bytes=0, sim=True)
    assert {disabled, propagators, others} <= set(settings.unused_variables)


def test_files_of_tls_are_read_for_https_alone(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector:4318",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "no such file",
        "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE": files.ca_file,
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": files.cert_file,
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": files.key_file,
    }
    found, problems = environment_traces(environ)
    assert problems == [] and found is not None
    assert found.tls is not None
    used = (found.tls.ca_file, found.tls.cert_file, found.tls.key_file)
    assert used == (files.ca_file, files.cert_file, files.key_file)
    assert load(environ, memory_bytes=0, sim=True).traces == found
    plain, problems = environment_traces({**environ, **ENDPOINT, "OTEL_EXPORTER_OTLP_CLIENT_KEY": "none"})
    assert problems == [] and plain is not None and plain.tls is None


@pytest.mark.parametrize("own", [False, True])
def test_files_of_tls_beside_http_are_told_by_name(own: bool) -> None:
    """What is sent is not encrypted, though somebody has meant it to be."""
    url = "HTTP://collector:4318/v1/traces"
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://x:4318", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": url}
    environ = {
        **(endpoint if own else ENDPOINT),
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "a file",
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY": "another",
    }
    (told,) = unused_telemetry(environ)
    name = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" if own else "OTEL_EXPORTER_OTLP_ENDPOINT"
    files = "OTEL_EXPORTER_OTLP_CERTIFICATE, OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY"
    assert told.startswith(f"set and not used: {files}, as {name} begins with http:") and "without encryption" in told
    assert list(unused_telemetry({**environ, name: "https://collector:4318"})) == []


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"CERTIFICATE": "no such file"}, "OTEL_EXPORTER_OTLP_CERTIFICATE"),
        ({"TRACES_CERTIFICATE": "KEY"}, "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE"),
        ({"CLIENT_CERTIFICATE": "CERT"}, "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"),
        ({"CLIENT_CERTIFICATE": "CERT", "CLIENT_KEY": "no such file"}, "OTEL_EXPORTER_OTLP_CLIENT_KEY"),
        ({"TRACES_CLIENT_KEY": "KEY"}, "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY"),
    ],
)
def test_files_that_do_not_fit_are_refused(environ: dict[str, str], name: str, tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    paths = {"KEY": files.key_file, "CERT": files.cert_file}
    given = {f"OTEL_EXPORTER_OTLP_{each}": paths.get(value, value) for each, value in environ.items()}
    with pytest.raises(SettingsError) as caught:
        load({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector:4318", **given}, memory_bytes=0, sim=True)
    (problem,) = caught.value.problems
    assert problem.name == name


def test_content_is_of_routes_that_there_are() -> None:
    """Or of all; none is named without it."""
    assert load({}, memory_bytes=0, sim=True).traces_content == ()
    found = load({"VELOX_TRACES_CONTENT": "*", "VELOX_TRACES_REDACT": r"\d+"}, memory_bytes=0, sim=True)
    assert (found.traces_content, found.traces_redact, found.traces_content_bytes) == (("*",), r"\d+", 16384)
    with pytest.raises(SettingsError, match=r"VELOX_TRACES_CONTENT.*chatt.*expected names of routes"):
        load({"VELOX_TRACES_CONTENT": "chatt"}, memory_bytes=0, sim=True)


@pytest.mark.parametrize("pattern", ["(", "x*", "(?P<a>b)|"])
def test_pattern_that_is_wrong_is_refused(pattern: str) -> None:
    with pytest.raises(SettingsError, match="VELOX_TRACES_REDACT"):
        load({"VELOX_TRACES_REDACT": pattern}, memory_bytes=0, sim=True)
