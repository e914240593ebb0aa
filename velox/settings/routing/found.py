"""Upstreams that the variables of providers make, where no file names upstreams or routes.

    ANTHROPIC_API_KEY set -> the upstream `anthropic`, and a route to it for `anthropic/...` and `claude-...`

A model's name goes up without what stands before the slash. Names that models of one provider alone have go there, too,
where what is usual is OpenAI, which has no such models. Everything else goes where it went before: these stand beside
the upstreams of VELOX_UPSTREAM_ORIGIN, and never in their place.

Knows: the variables that the SDKs of providers and clouds read. Does not know: their values, beyond whether they can
be used: a variable that nobody set for Velox stops nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from velox.policy.routes.entries import KeyRef, Match, RouteEntry, Target, UpstreamEntry
from velox.providers.provider import Provider
from velox.providers.rows import OPENAI, PROVIDERS
from velox.providers.target import missing, origin_of
from velox.settings import parse
from velox.settings.routing.provider_fields import PARAMETERS, first_set
from velox.settings.routing.sdk_variables import OwnPlaces, base_url
from velox.types import Origin

__all__ = ["VARIABLES", "Found", "find_providers"]

_AZURE_ENDPOINT: Final = "AZURE_OPENAI_ENDPOINT"
# Any of these groups is a way to AWS credentials, in the order of AWS's own SDKs.
_AWS: Final = (
    ("AWS_BEARER_TOKEN_BEDROCK",),
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI",),
    ("AWS_PROFILE",),
)
# All that are looked at here.
VARIABLES: Final = frozenset(
    {
        _AZURE_ENDPOINT,
        *(name for row in PROVIDERS.values() for name in row.key_variables if row is not OPENAI),
        *(name for way in _AWS for name in way),
        *PARAMETERS["region"].variables,
    }
)
_WARM_CONNECTIONS: Final = 1  # who has set a variable may never ask there


@dataclass(frozen=True, slots=True)
class Found:
    """What was found. upstreams, routes: one of each a provider. unusable: variables that are set, but of no use.

    told: lines on base URLs that are not used (sdk_variables.py).
    """

    upstreams: tuple[UpstreamEntry, ...] = ()
    routes: tuple[RouteEntry, ...] = ()
    unusable: tuple[str, ...] = ()
    told: tuple[str, ...] = ()


def find_providers(environ: Mapping[str, str], usual: UpstreamEntry, own: OwnPlaces) -> Found:
    """Return what the variables of providers make. usual: an upstream with what each has that they say nothing of.

    own: where this gateway is, which no base URL may lead to.
    """
    upstreams: list[UpstreamEntry] = []
    unusable: list[str] = []
    told: list[str] = []
    for row in PROVIDERS.values():
        names = _names(row, environ)
        if not names:
            continue
        try:
            entry = _upstream(row, names, environ, usual)
        except ValueError:
            unusable += names
            continue
        base = base_url(row.name, environ, own)
        if base is not None and base.origin is not None:
            entry = replace(entry, origins=(base.origin,), where=f"{entry.where}, {base.name}")
        elif base is not None and base.why:
            told.append(f"{base.name} is set and not used, so {entry.where} goes to {entry.origins[0]}: {base.why}")
        upstreams.append(entry)
    is_openai = [str(origin) for origin in usual.origins] == [OPENAI.origin]
    if upstreams and usual.keys and is_openai:
        # Beside names such as anthropic/... people write openai/..., too.
        names = (usual.keys[0].ref.removeprefix("env:"),)
        upstreams.insert(0, replace(_upstream(OPENAI, names, environ, usual), keys=usual.keys))
    routes = tuple(_route(entry, PROVIDERS[entry.provider].own_models if is_openai else ()) for entry in upstreams)
    return Found(tuple(upstreams), routes, tuple(unusable), tuple(told))


def _names(row: Provider, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that make an upstream of a provider; () if one is missing."""
    key = first_set(row.key_variables, environ)
    if row.name == "bedrock":
        region = first_set(PARAMETERS["region"].variables, environ)
        way = next((names for names in _AWS if all(environ.get(name) for name in names)), ())
        return (*way, region) if way and region else ()
    if row.name == "azure":
        return (key, _AZURE_ENDPOINT) if key and environ.get(_AZURE_ENDPOINT) else ()
    has_own_place = bool(row.origin) and not missing(row, (), has_origin=False)
    return (key,) if key and has_own_place and row is not OPENAI else ()


def _upstream(row: Provider, names: tuple[str, ...], environ: Mapping[str, str], usual: UpstreamEntry) -> UpstreamEntry:
    """Return an upstream. Raises ValueError if a variable holds nothing that can be used."""
    parameters = {}
    if row.name == "bedrock":
        region = environ[names[-1]]
        if not PARAMETERS["region"].pattern.fullmatch(region):
            raise ValueError("it is no region")
        parameters["region"] = region
    origin = _endpoint(environ[_AZURE_ENDPOINT]) if row.name == "azure" else parse.origin(origin_of(row, parameters))
    return replace(
        usual,
        name=row.name,
        origins=(origin,),
        keys=tuple(_key(name, environ[name]) for name in names if name in row.key_variables and name in environ),
        connections=min(_WARM_CONNECTIONS, usual.connections),
        cert_file=None,
        key_file=None,
        where=", ".join(names),
        provider=row.name,
        parameters=tuple(sorted(parameters.items())),
    )


def _endpoint(text: str) -> Origin:
    """Return the origin of a resource. SDKs are given it with and without the path of its API."""
    text = text.rstrip("/")
    for end in ("/v1", "/openai"):
        text = text.removesuffix(end)
    return parse.origin(text)


def _key(name: str, text: str) -> KeyRef:
    secret = parse.secret(text)
    return KeyRef(f"env:{name}", hashlib.sha256(secret.reveal().encode("ascii")).digest(), secret)


def _route(entry: UpstreamEntry, own_models: tuple[str, ...]) -> RouteEntry:
    start = f"{entry.name}/"
    return RouteEntry(entry.name, Match(models=(f"{start}*", *own_models)), (Target(entry.name, strip=start),))
