"""The upstreams: how the list of them is written, the ones that the variables alone make, and where their keys are.

Knows: each field of an upstream, that what it leaves out is as the variables have it, and that a key stands in
`env:NAME` or `file:PATH`, never in the file itself. Does not know: which routes lead there, or how connections are
made.

    upstreams:
      - name: openai
        origin: https://api.openai.com
        keys: [env:OPENAI_API_KEY]
      - provider: anthropic          # see provider_fields.py
        key: env:ANTHROPIC_API_KEY
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from velox.policy.routes.entries import Http2Use, KeyRef, LoadSource, ProbeEntry, Timeouts, UpstreamEntry
from velox.providers.rows import COMPATIBLE, OPENAI
from velox.settings import parse
from velox.settings.checks.certificates import ca_problem, client_certificate_problem
from velox.settings.checks.contradictions import too_few
from velox.settings.parse import header_name
from velox.settings.problems import Problem, quoted
from velox.settings.routing.header_rules import NEVER_SET, own_query, plain_headers
from velox.settings.routing.provider_fields import FIELDS as PROVIDER_FIELDS
from velox.settings.routing.provider_fields import Chosen, base_problem, choose, first_set
from velox.settings.routing.proxies import parse_proxy
from velox.settings.routing.references import ReferenceReader, found_key, path_of
from velox.settings.yaml.file import read_file
from velox.settings.yaml.tree import ListForm, Section, Tree, read_regular_file
from velox.types import Origin

__all__ = [
    "DEFAULT",
    "FIELDS",
    "files_of",
    "files_of_bad",
    "implicit_upstreams",
    "parse_upstreams",
    "share_problems",
    "with_tls_digests",
]

# The name of the one that VELOX_UPSTREAM_ORIGIN makes; a second origin there is "default-2".
DEFAULT: Final = "default"
_MOST_ORIGINS: Final = 64
_MOST_KEYS: Final = 64
_MOST_WEIGHT: Final = 1000
FIELDS: Final = (
    *(
        "name",
        "origin",
        "key",
        "keys",
        "http2",
        "ca_file",
        "cert_file",
        "key_file",
        "timeouts",
        "connections",
        "weight",
    ),
    *("concurrency", "models", "headers", "query", "auth", "load", "probe", "proxy"),
    *PROVIDER_FIELDS,
)
_LIST: Final = ListForm(
    "upstreams",
    "an upstream",
    FIELDS,
    256,  # a label of metrics, and cells in memory that all workers share
    "{name: openai, origin: https://api.openai.com}",
    "`name: openai` and `origin: https://api.openai.com`",
    MappingProxyType(
        {
            **dict.fromkeys(
                ("url", "base_url", "api_base", "host", "address"),
                "expected `origin`, such as `origin: https://api.openai.com`",
            ),
            **dict.fromkeys(("api_key", "api_keys", "token"), "expected `keys`, such as `keys: [env:OPENAI_API_KEY]`"),
            "timeout": "expected `timeouts`, such as `timeouts: {first_byte: 60s}`",
            **dict.fromkeys(("type", "kind", "vendor"), "expected `provider`, such as `provider: anthropic`"),
            **dict.fromkeys(("aws_region", "aws_region_name"), "expected `region`, such as `region: eu-central-1`"),
            **dict.fromkeys(("project_id", "vertex_project"), "expected `project`, such as `project: my-project`"),
            "vertex_location": "expected `location`, such as `location: global`",
            **dict.fromkeys(
                ("https_proxy", "http_proxy"), "expected `proxy`, such as `proxy: http://proxy.example:3128`"
            ),
            "version": "expected `api_version`, such as `api_version: 2024-10-21`",
            "model": "expected `models`; what another model is asked for stands in `to` of a route",
        }
    ),
)
_FILE: Final = "file:"
_NO_KEY: Final = "none"
_WITH_VALUES: Final = ("headers", "query")
_BEARER: Final = "bearer"
_BASIC: Final = "basic"
_TLS_FIELDS: Final = ("ca_file", "cert_file", "key_file")
_TLS_FILE_BYTES: Final = 16 * 2**20  # some hundred bundles of all authorities
_TIMEOUTS: Final = tuple(each.name.removesuffix("_s") for each in fields(Timeouts))


def implicit_upstreams(values: Mapping[str, Any]) -> tuple[UpstreamEntry, ...]:
    """Return the upstreams of VELOX_UPSTREAM_ORIGIN, one for each origin. values: of the variables, by field.

    An invalid value is missing; its replacement here is never used.
    """
    key = values.get("openai_api_key")
    first_timeouts = Timeouts(**{f"{name}_s": values.get(f"upstream_{name}_timeout_s", 1.0) for name in _TIMEOUTS})
    return tuple(
        UpstreamEntry(
            DEFAULT if n == 1 else f"{DEFAULT}-{n}",
            (origin,),
            () if key is None else (found_key("env:OPENAI_API_KEY", key),),
            values.get("upstream_http2", "auto"),
            values.get("upstream_ca_file"),
            values.get("upstream_cert_file"),
            values.get("upstream_key_file"),
            first_timeouts,
            values.get("egress_pool_connections", 1),
            concurrency=values.get("upstream_concurrency", 0),
            provider=OPENAI.name if str(origin) == OPENAI.origin else COMPATIBLE.name,
        )
        for n, origin in enumerate(values.get("upstream_origins", ()), 1)
    )


def parse_upstreams(
    tree: Tree, values: Mapping[str, Any], environ: Mapping[str, str], missing: list[str] | None = None
) -> tuple[tuple[UpstreamEntry, ...], list[Problem]]:
    """Return the upstreams of the list, and everything that is wrong with it. values: as for implicit_upstreams.

    environ: where `env:NAME` is looked up. missing: gets what is wrong with a key, which then is no problem: for who
    asks nothing of upstreams. None: it is one.
    """
    (usual,) = implicit_upstreams({**values, "upstream_origins": (parse.origin("http://unused"),)})
    read_concurrency = _concurrency_reader(values.get("workers", 1))
    problems: list[Problem] = []
    read = partial(
        _upstream,
        usual=usual,
        environ=environ,
        read_concurrency=read_concurrency,
        references=ReferenceReader(environ, missing),
    )
    return _LIST.read(tree, read, problems), problems


def files_of(upstreams: Iterable[UpstreamEntry]) -> frozenset[str]:
    """Return the paths of the files that upstreams have their keys and certificates from."""
    upstreams = tuple(upstreams)
    keys = _paths(key.ref for upstream in upstreams for key in upstream.keys)
    values = (path for upstream in upstreams for path in upstream.value_files)
    return keys.union(values, *map(_tls_files, upstreams))


def files_of_bad(path: str) -> frozenset[str]:
    """Return the paths of such files in a configuration file, and of its prices, as far as it can be read at all.

    A file may be bad only because such a key is not there yet; when it comes, the file is good.
    """
    found = read_file(path, ("upstreams",)).entries
    trees = [entry.value for entry in found if entry.key == "upstreams"]
    refs = [ref for tree in trees for upstream in tree.items or () for ref in _refs(upstream)]
    refs += [f"{_FILE}{entry.value.text or ''}" for entry in found if entry.key == "prices"]
    return _paths(refs)


def with_tls_digests(upstreams: Iterable[UpstreamEntry]) -> tuple[UpstreamEntry, ...]:
    """Return upstreams that differ from those whose files of TLS hold something else.

    Each file is read once: hundreds of upstreams may have the same certificates of authorities.
    """
    upstreams = tuple(upstreams)
    digests = {path: _file_digest(path) for path in frozenset[str]().union(*map(_tls_files, upstreams))}
    return tuple(
        replace(entry, tls_digest=b"".join(digests[path] for path in _tls_files(entry))) for entry in upstreams
    )


def _file_digest(path: str) -> bytes:
    try:
        return hashlib.sha256(read_regular_file(path, _TLS_FILE_BYTES)).digest()
    except OSError:
        return b""  # it was read a moment ago, and its end is a change


def _tls_files(entry: UpstreamEntry) -> tuple[str, ...]:
    if all(origin.scheme != "https" for origin in entry.origins):
        return ()
    return tuple(path for path in (entry.ca_file, entry.cert_file, entry.key_file) if path is not None)


def share_problems(upstreams: Iterable[UpstreamEntry], workers: int) -> Iterator[Problem]:
    """Report upstreams of whose `concurrency` some of so many workers would get none: to them, 0 is no limit."""
    for upstream in upstreams:
        n = upstream.concurrency
        if n != "auto" and (expected := too_few(n, workers)):
            yield Problem("concurrency", quoted(str(n)), expected, where=upstream.where)


def _upstream(
    section: Section,
    usual: UpstreamEntry,
    environ: Mapping[str, str],
    read_concurrency: Callable[[str], int | Literal["auto"]],
    references: ReferenceReader,
) -> UpstreamEntry:
    if "provider" not in section:
        section.needs(name="openai")
    chosen = choose(section, environ)
    origins = _origins(section, chosen)
    keys = _keys(section, chosen, environ, references.key)
    if len({key.digest for key in keys}) < len(set(keys)):
        section.refuse("keys", "expected each key once: two of these lead to the same one")
    for name, found, most in (("origin", origins, _MOST_ORIGINS), ("keys", keys, _MOST_KEYS)):
        if len(found) > most:
            section.refuse(name, f"expected at most {most}")
    entry = UpstreamEntry(
        section.one("name", parse.name, chosen.row.name if "provider" in section else "", shown=False),
        origins,
        keys,
        section.one("http2", parse.one_of(*get_args(Http2Use)), usual.http2),
        section.one("ca_file", _file_path, usual.ca_file),
        # Not as the variables have them: a credential belongs to one upstream.
        section.one("cert_file", _file_path, None),
        section.one("key_file", _file_path, None),
        _timeouts(section, usual.timeouts),
        section.one("connections", parse.integer(1, 4096), usual.connections),
        section.one("weight", parse.integer(1, _MOST_WEIGHT), 1),
        section.one("concurrency", read_concurrency, usual.concurrency),
        section.many("models", parse.model_pattern, shown=False),
        plain_headers(section, "headers", read_reference=references.value),
        section.one("load", parse.one_of(*get_args(LoadSource)), "off"),
        _probe(section),
        section.where,
        chosen.row.name,
        tuple(sorted(chosen.parameters.items())),
        chosen.apis,
        proxy=section.one("proxy", lambda text: parse_proxy(text, environ), usual.proxy, shown=False),
        auth=section.one("auth", _auth, ""),
        query=own_query(section, "query", references.value),
        value_files=_value_files(section),
    )
    _check_credentials(section, entry, chosen)
    _check_files(section, entry)
    return entry


def _origins(section: Section, chosen: Chosen) -> tuple[Origin, ...]:
    if chosen.origin is not None:
        return (chosen.origin,)
    origins = section.many("origin", _origin)
    for origin in origins:
        if expected := base_problem(chosen.row, origin):
            section.refuse("origin", expected, quoted(str(origin)))
            break
    return origins


def _keys(
    section: Section, chosen: Chosen, environ: Mapping[str, str], read: Callable[[str], KeyRef]
) -> tuple[KeyRef, ...]:
    """Return the keys; where an upstream names its provider and no key, the one in the provider's own variable."""
    if "key" in section and "keys" in section:
        section.refuse("key", "expected this or `keys`, not both")
    if "key" in section:
        return section.one("key", lambda text: () if text == _NO_KEY else (read(text),), (), shown=False)
    if "keys" in section or "provider" not in section:
        return section.many("keys", read, shown=False)
    if "profile" in chosen.parameters:
        return ()  # named in the file: it comes before a key in a variable
    name = first_set(chosen.row.key_variables, environ)
    try:
        return (read(f"env:{name}"),) if name else ()
    except ValueError as exc:
        section.lacks(f"{exc}, or `key: {_NO_KEY}`")
        return ()


def _concurrency_reader(workers: int) -> Callable[[str], int | Literal["auto"]]:
    """Return what reads a limit that so many workers share. One that is not given was checked as a variable."""

    def read(text: str) -> int | Literal["auto"]:
        n = parse.concurrency(text)
        if n != "auto" and (expected := too_few(n, workers)):
            raise ValueError(expected)
        return n

    return read


def _timeouts(section: Section, usual: Timeouts) -> Timeouts:
    inner = section.section("timeouts", _TIMEOUTS, "first_byte: 60s")
    if inner is None:
        return usual
    found = {}
    for name in _TIMEOUTS:
        read = parse.OPTIONAL_TIMEOUT if name in ("total", "first_event") else parse.TIMEOUT
        found[f"{name}_s"] = inner.one(name, read, getattr(usual, f"{name}_s"))
    if "idle" in inner and "stall" not in inner:
        found["stall_s"] = found["idle_s"]
    if "first_byte" in inner and "thinking" not in inner:
        found["thinking_s"] = found["first_byte_s"]
    return Timeouts(**found)


def _probe(section: Section) -> ProbeEntry | None:
    inner = section.section("probe", ("path", "every"), "path: /health, every: 5s")
    if inner is None:
        return None
    inner.needs(path="/health")
    return ProbeEntry(inner.one("path", parse.path, "/"), inner.one("every", parse.duration(0.1, 3600.0), 5.0))


def _origin(text: str) -> Origin:
    try:
        return parse.origin(text)
    except ValueError as exc:
        raise ValueError(str(exc).replace("give the key in OPENAI_API_KEY", "give the key in `keys`")) from None


def _file_path(text: str) -> str:
    if not text:
        raise ValueError("expected the path of a file; leave the field out for none")
    return parse.file_path(text)


def _auth(text: str) -> str:
    """Return how keys are presented: a scheme, or the name of a header."""
    lower = text.lower()
    if lower in (_BEARER, _BASIC):
        return lower
    name = header_name(text)
    if name in NEVER_SET or name == "authorization":
        raise ValueError("expected bearer, basic, or the name of a header such as x-api-key")
    return name


def _value_files(section: Section) -> tuple[str, ...]:
    """Return the files that values of `headers` and `query` come from."""
    paths = [path_of(text) for name in _WITH_VALUES for _, text in section.texts(name)]
    return tuple(dict.fromkeys(path for path in paths if path))


def _check_credentials(section: Section, entry: UpstreamEntry, chosen: Chosen) -> None:
    """Look at how keys are presented, and that nothing else stands in their header."""
    if entry.auth and not entry.keys:
        section.refuse("auth", "expected `keys` with it: it says how they are presented")
    if entry.auth == _BASIC and any(":" not in key.secret.reveal() for key in entry.keys if key.secret.reveal()):
        section.refuse("auth", "expected USER:PASSWORD in each of `keys` with it")
    usual = chosen.row.credential_header.decode("ascii")
    header = "authorization" if entry.auth in (_BEARER, _BASIC) else entry.auth or usual
    if entry.keys and any(name.decode("ascii") == header for name, _ in entry.headers):
        section.refuse("headers", f"expected no {header} beside `keys`, which stand in it")
    if entry.query and chosen.row.aws_service and not entry.keys:
        section.refuse("query", "expected `keys` with it: signatures of AWS are for the targets of its own APIs")


def _check_files(section: Section, entry: UpstreamEntry) -> None:
    """Look at the files of TLS that the upstream itself names."""
    ca_file = entry.ca_file if "ca_file" in section else None
    if ca_file is not None and (expected := ca_problem(ca_file)):
        section.refuse("ca_file", expected, quoted(ca_file))
    if entry.cert_file is None:
        if entry.key_file is not None:
            section.refuse("key_file", "expected cert_file with it: the certificate that the key belongs to")
        return
    which, expected = client_certificate_problem(entry.cert_file, entry.key_file)
    if which:
        path = entry.cert_file if which == "cert" else entry.key_file
        section.refuse(f"{which}_file", expected, quoted(path or ""))
    elif entry.origins and all(origin.scheme != "https" for origin in entry.origins):
        section.refuse("cert_file", "expected an https origin with it: no other one is shown a certificate")


def _refs(upstream: Tree) -> Iterator[str]:
    for entry in upstream.fields or ():
        if entry.key in ("key", "keys"):
            for item in entry.value.items or (entry.value,):
                yield from (part.strip() for part in (item.text or "").split(","))
        elif entry.key in _WITH_VALUES:
            yield from (inner.value.text or "" for inner in entry.value.fields or ())
        elif entry.key in _TLS_FIELDS:
            yield f"{_FILE}{entry.value.text or ''}"


def _paths(refs: Iterable[str]) -> frozenset[str]:
    found = (ref.removeprefix(_FILE) for ref in refs if ref.startswith(_FILE))
    return frozenset(path for path in found if path and "\0" not in path)
