"""The upstreams: what one is, how the list of them is written, and the ones that the variables alone make.

Knows: each field of an upstream, and that what it leaves out is as the variables have it. Does not know: which routes
lead there, or how connections are made.

    upstreams:
      - name: openai
        origin: https://api.openai.com
        keys: [env:OPENAI_API_KEY]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, Literal

from velox.policy.routes import ProbeEntry, Timeouts, UpstreamEntry
from velox.settings import parse, parse_limit, parse_route
from velox.settings.header_rules import plain_headers
from velox.settings.key_refs import key_ref_parser, variable_key
from velox.settings.problems import Problem, quoted
from velox.settings.section import Section, choice
from velox.settings.tls_files import ca_problem, certificate_problem
from velox.settings.tree import Tree
from velox.settings.variable import DAY_S, TIMEOUT

__all__ = ["DEFAULT", "FIELDS", "implicit_upstreams", "parse_upstreams"]

# The name of the one that VELOX_UPSTREAM_ORIGIN makes; a second origin there is "default-2".
DEFAULT: Final = "default"
# A label of metrics, and cells in memory that all workers share.
_MOST_UPSTREAMS: Final = 256
_MOST_ORIGINS: Final = 64
_MOST_KEYS: Final = 64
_MOST_WEIGHT: Final = 1000
_HTTP2: Final[Mapping[str, Literal["auto", "on", "off"]]] = {"auto": "auto", "on": "on", "off": "off"}
_LOAD: Final[Mapping[str, Literal["off", "vllm", "sglang"]]] = {"off": "off", "vllm": "vllm", "sglang": "sglang"}
FIELDS: Final = (
    *("name", "origin", "keys", "http2", "ca_file", "cert_file", "key_file", "timeouts", "connections", "weight"),
    *("concurrency", "models", "headers", "load", "probe"),
)


_TIMEOUTS: Final = tuple(each.name.removesuffix("_s") for each in fields(Timeouts))


def implicit_upstreams(values: Mapping[str, Any]) -> tuple[UpstreamEntry, ...]:
    """Return the upstreams of VELOX_UPSTREAM_ORIGIN, one for each origin. values: of the variables, by field.

    A value that was wrong is not among them: what stands for it here is never used.
    """
    key = values.get("openai_api_key")
    first_timeouts = Timeouts(**{f"{name}_s": values.get(f"upstream_{name}_timeout_s", 1.0) for name in _TIMEOUTS})
    return tuple(
        UpstreamEntry(
            DEFAULT if n == 1 else f"{DEFAULT}-{n}",
            (origin,),
            () if key is None else (variable_key("OPENAI_API_KEY", key),),
            values.get("upstream_http2", "auto"),
            values.get("upstream_ca_file"),
            values.get("upstream_cert_file"),
            values.get("upstream_key_file"),
            first_timeouts,
            values.get("egress_pool_connections", 1),
            concurrency=values.get("upstream_concurrency", 0),
        )
        for n, origin in enumerate(values.get("upstream_origins", ()), 1)
    )


def parse_upstreams(
    tree: Tree, values: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[tuple[UpstreamEntry, ...], list[Problem]]:
    """Return the upstreams of the list, and everything that is wrong with it. values: as for implicit_upstreams.

    environ: where `env:NAME` is looked up.
    """
    problems: list[Problem] = []
    if not tree.items:
        expected = "expected a list of upstreams, such as `- {name: openai, origin: https://api.openai.com}`"
        return (), [Problem("upstreams", "", expected, where=tree.where)]
    if len(tree.items) > _MOST_UPSTREAMS:
        where = tree.items[_MOST_UPSTREAMS].where
        return (), [Problem("upstreams", "", f"expected at most {_MOST_UPSTREAMS}", where=where)]
    (usual,) = implicit_upstreams({**values, "upstream_origins": (parse.origin("http://unused"),)})
    entries: dict[str, UpstreamEntry] = {}
    for item in tree.items:
        if item.fields is None:
            expected = "expected fields such as `name: openai` and `origin: https://api.openai.com`"
            problems.append(Problem("an upstream", "", expected, where=item.where))
            continue
        section = Section(item, "an upstream", FIELDS, problems)
        entry = _upstream(section, usual, environ)
        first = entries.setdefault(entry.name, entry)
        if first is not entry and entry.name:
            section.refuse("name", f"expected each name once; the upstream at {first.where} has it", quoted(entry.name))
    return tuple(entries.values()), problems


def _upstream(section: Section, usual: UpstreamEntry, environ: Mapping[str, str]) -> UpstreamEntry:
    for name, example in (("name", "name: openai"), ("origin", "origin: https://api.openai.com")):
        if name not in section:
            section.lacks(f"expected `{name}`, such as `{example}`")
    origins = section.many("origin", parse.origin)
    keys = section.many("keys", key_ref_parser(environ), shown=False)
    if len({key.digest for key in keys}) < len(set(keys)):
        section.refuse("keys", "expected each key once: two of these lead to the same one")
    for name, found, most in (("origin", origins, _MOST_ORIGINS), ("keys", keys, _MOST_KEYS)):
        if len(found) > most:
            section.refuse(name, f"expected at most {most}")
    entry = UpstreamEntry(
        section.one("name", parse_route.name, "", shown=False),
        origins,
        keys,
        section.one("http2", choice(_HTTP2), usual.http2),
        section.one("ca_file", _file_path, usual.ca_file),
        # Not as the variables have them: a credential belongs to one upstream.
        section.one("cert_file", _file_path, None),
        section.one("key_file", _file_path, None),
        _timeouts(section, usual.timeouts),
        section.one("connections", parse.integer(1, 4096), usual.connections),
        section.one("weight", parse.integer(1, _MOST_WEIGHT), 1),
        section.one("concurrency", parse_limit.concurrency, usual.concurrency),
        section.many("models", parse_route.model_pattern, shown=False),
        plain_headers(section, "headers"),
        section.one("load", choice(_LOAD), "off"),
        _probe(section),
        section.where,
    )
    _check_files(section, entry)
    return entry


def _timeouts(section: Section, usual: Timeouts) -> Timeouts:
    inner = section.section("timeouts", "`timeouts`", _TIMEOUTS)
    if inner is None:
        return usual
    return Timeouts(
        inner.one("connect", TIMEOUT, usual.connect_s),
        inner.one("tls", TIMEOUT, usual.tls_s),
        inner.one("first_byte", TIMEOUT, usual.first_byte_s),
        inner.one("idle", TIMEOUT, usual.idle_s),
        inner.one("write", TIMEOUT, usual.write_s),
        inner.one("total", parse.duration(0.0, DAY_S), usual.total_s),
    )


def _probe(section: Section) -> ProbeEntry | None:
    inner = section.section("probe", "`probe`", ("path", "every"))
    if inner is None:
        return None
    if "path" not in inner:
        inner.lacks("expected `path`, such as `path: /health`")
    return ProbeEntry(inner.one("path", parse.path, "/"), inner.one("every", parse.duration(0.1, 3600.0), 5.0))


def _file_path(text: str) -> str:
    if not text:
        raise ValueError("expected the path of a file; leave the field out for none")
    return parse.file_path(text)


def _check_files(section: Section, entry: UpstreamEntry) -> None:
    """Look at the files of TLS that the upstream itself names."""
    ca_file = entry.ca_file if "ca_file" in section else None
    if ca_file is not None and (expected := ca_problem(ca_file)):
        section.refuse("ca_file", expected, quoted(ca_file))
    if entry.cert_file is None:
        if entry.key_file is not None:
            section.refuse("key_file", "expected cert_file with it: the certificate that the key belongs to")
        return
    which, expected = certificate_problem(entry.cert_file, entry.key_file)
    if which:
        path = entry.cert_file if which == "cert" else entry.key_file
        section.refuse(f"{which}_file", expected, quoted(path or ""))
    elif entry.origins and all(origin.scheme != "https" for origin in entry.origins):
        section.refuse("cert_file", "expected an https origin with it: no other one is shown a certificate")
