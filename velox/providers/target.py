"""Where a request goes: the API that it is sent to, the target of its path, and what goes with it.

    origin_of()     the origin that a row has for some parameters
    target_call()   row + parameters + the API that the client asks + model -> TargetCall, or None

Knows: templates. Does not know: settings, bodies, connections. All of it is pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from velox.heads import Header
from velox.policy.patterns import matches
from velox.protocol.google_query import without_system_parameters
from velox.providers.provider import CallPath, Family, Keyless, Provider, WireWrapper
from velox.types import ApiKind

__all__ = [
    "TargetCall",
    "TargetError",
    "apis_of",
    "family_of",
    "missing",
    "native_of",
    "origin_of",
    "parameters_of",
    "target_call",
]

_COUNTS: Final = (
    ApiKind.COUNT_MESSAGES,
    ApiKind.COUNT_RESPONSES,
    ApiKind.COUNT_GENERATE,
    ApiKind.COUNT_CONVERSE,
)
_EMBEDS: Final = (ApiKind.EMBEDDINGS, ApiKind.EMBED_CONTENTS, ApiKind.EMBED_CONTENT)
_VECTORS: Final = (ApiKind.EMBEDDINGS, ApiKind.VECTORS)  # what these are translated into
_GOOGLES: Final = frozenset({ApiKind.GENERATE, ApiKind.COUNT_GENERATE, ApiKind.EMBED_CONTENT, ApiKind.EMBED_CONTENTS})
# What a request is translated into where an upstream names its APIs and has not the usual one of its family.
_CROSSINGS: Final = (ApiKind.CHAT, ApiKind.RESPONSES, ApiKind.MESSAGES, ApiKind.GENERATE, ApiKind.CONVERSE)
_NAME: Final = re.compile(r"\{([a-z_]+)\}")
# Names of a client's query that are credentials, or its key at this gateway.
_SECRETS: Final = frozenset({b"key", b"access_token", b"api_key", b"api-key"})
# Clients of Azure's SDKs send it always. A path of a row has the version that it is of; Azure refuses another one at
# /openai/v1, Foundry and Google any (zendev-sh/goai#54). A server that has no row may read the client's.
_VERSION: Final = frozenset({b"api-version"})
_LONGEST_MODEL: Final = 2048


class TargetError(ValueError):
    """A model's name that can be no part of a path. Its message is for the client."""


@dataclass(frozen=True, slots=True)
class TargetCall:
    """One call of an API.

    api: the API that it is sent to: another one than the client's is a translation. target: path and query, under the
    base path of the origin. headers: where the client sends none of that name; in a translation always. fields: what
    the body has in place of `model`; none: nothing else.
    """

    api: ApiKind
    target: bytes
    wrapper: WireWrapper = WireWrapper.NONE
    headers: tuple[Header, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()


def origin_of(row: Provider, parameters: Mapping[str, str]) -> str:
    """Return the origin of a row, "" where it has none or needs a parameter that is not given."""
    names = _NAME.findall(row.origin)
    if any(name not in parameters for name in names):
        return ""
    template = row.origins.get(parameters[names[0]], row.origin) if names else row.origin
    return template.format_map(parameters)


def missing(row: Provider, parameters: Collection[str], *, has_origin: bool) -> list[str]:
    """Return the parameters that a row needs beside these. has_origin: the upstream names its own origin."""
    of_origin = [] if has_origin else _NAME.findall(row.origin)
    return [name for name in dict.fromkeys((*of_origin, *row.needs)) if name not in parameters]


def parameters_of(row: Provider) -> frozenset[str]:
    """Return the names of all parameters that a row has a use for."""
    paths = [path for family in row.families for path in family.native.values()]
    texts = [row.origin, *(text for path in paths for _, text in path.query), *(path.path for path in paths)]
    named = {name for text in texts for name in _NAME.findall(text)}
    if row.keyless is Keyless.AWS:
        named.add("profile")
    return frozenset(named | set(row.needs)) - {"model"}


def family_of(row: Provider, parameters: Mapping[str, str], model: str) -> Family:
    """Return the family that a model belongs to."""
    name = model.removeprefix(row.model_start) if row.model_start else model
    for family in row.families:
        if all(matches(pattern, parameters.get(key, "")) for key, pattern in family.when) and (
            not family.models or any(matches(pattern, name) for pattern in family.models)
        ):
            return family
    raise AssertionError("the last family of each row takes every model")


def apis_of(
    row: Provider, parameters: Mapping[str, str], apis: Collection[ApiKind] = ()
) -> Iterator[tuple[tuple[str, ...], tuple[ApiKind, ...], ApiKind | None]]:
    """Yield patterns of models, the APIs that they have, and what others are translated into, for each family."""
    for family in row.families:
        if all(matches(pattern, parameters.get(key, "")) for key, pattern in family.when):
            native = native_of(family, apis)
            if native:
                yield family.models, tuple(sorted(native)), _translated_into(family, native, ApiKind.CONVERSE)
            if not family.models:
                return


def native_of(family: Family, apis: Collection[ApiKind] = ()) -> dict[ApiKind, CallPath]:
    """Return the APIs of a family. apis: those that an upstream says it has; none: the usual ones."""
    if not apis:
        return dict(family.native)
    known = {**family.optional, **family.native}
    return {api: known[api] for api in apis if api in known}


def target_call(
    row: Provider,
    parameters: Mapping[str, str],
    client_api: ApiKind,
    model: str,
    *,
    stream: bool = False,
    apis: Collection[ApiKind] = (),
    query: bytes = b"",
    is_translated: bool = False,
    known_as: str = "",
) -> TargetCall | None:
    """Return where a request goes that asks `client_api` for `model`; None: as it came, under its own path.

    apis: as for native_of. query: the client's own, which goes with a request whose body goes as it is, but for its
    credentials and the version of an API. is_translated: also where the model has the API. known_as: the
    name that says what the model is, where its own does not. Raises TargetError.
    """
    known_as = known_as or model
    family = family_of(row, parameters, known_as)
    native = native_of(family, apis)
    api = client_api if client_api in native and not is_translated else _translated_into(family, native, client_api)
    if api is None:
        return None
    path = native[api]
    template = path.stream if stream and path.stream else path.path
    more = path.query
    if api is not client_api and stream:
        more += path.sse
    named = known_as[max(known_as.find(path.model_from), 0) :] if path.model_from else model
    values = {**parameters, "model": _segment(row, named)} if "{model}" in template else parameters
    fixed = [(name, text.format_map(parameters)) for name, text in more if _has_all(text, parameters)]
    is_as_sent = api is client_api and path.wrapper is WireWrapper.NONE and not is_translated
    if is_as_sent and query and (row.is_google or api in _GOOGLES):
        query = without_system_parameters(query, b"POST")[0]
    ours = {name.encode() for name, _ in fixed} | (_VERSION if family.native else frozenset())
    parts = _kept(query, ours) if is_as_sent else []
    parts += [f"{name}={quote(text, safe='')}".encode("ascii") for name, text in fixed]
    target = template.format_map(values).encode("ascii")
    query = b"?" + b"&".join(parts) if parts else b""
    return TargetCall(api, target + query, path.wrapper, row.headers, _fields(row, model))


def _translated_into(family: Family, native: Collection[ApiKind], client_api: ApiKind) -> ApiKind | None:
    """Return the API that a request is translated into, None where there is none of its kind."""
    for kind, others in ((_COUNTS, _COUNTS), (_EMBEDS, _VECTORS)):
        if client_api in kind:
            return next((api for api in others if api in native), None)
    if family.translated_into in native:
        return family.translated_into
    return next((api for api in _CROSSINGS if api in native), None)


def _segment(row: Provider, model: str) -> str:
    """Return a model's name as one segment of a path."""
    name = model.removeprefix(row.model_start) if row.model_start else model
    if not name or len(name) > _LONGEST_MODEL or not {".", ".."}.isdisjoint(name.replace("\\", "/").split("/")):
        raise TargetError("expected a model's name that can stand in a path")
    try:
        return quote(name, safe="@", errors="strict")
    except UnicodeEncodeError:
        raise TargetError("expected a model's name in valid Unicode") from None


def _fields(row: Provider, model: str) -> tuple[tuple[str, str], ...]:
    """Return what a body has in place of a model; none: the model."""
    for pattern, fields in row.model_fields.items():
        if matches(pattern, model):
            rest = model.removeprefix(pattern.removesuffix("*"))
            return tuple((name, value.replace("*", rest)) for name, value in fields)
    return ()


def _has_all(text: str, parameters: Collection[str]) -> bool:
    return all(name in parameters for name in _NAME.findall(text))


def _kept(query: bytes, ours: Collection[bytes]) -> list[bytes]:
    """Return the parts of a client's query that go up. ours: names that are not the client's to say."""
    parts = (part for part in query.split(b"&") if part)
    names = ((unquote_to_bytes(part.partition(b"=")[0]).lower(), part) for part in parts)
    return [part for name, part in names if name not in _SECRETS and name not in ours]
