"""What an upstream says of its provider: which one, what its templates need, and which APIs it has.

Knows: the rows of velox/providers, where a parameter is if the upstream does not name it, and what is missing. Does
not know: the other fields of an upstream (upstreams.py), or where variables make an upstream (found.py).

    upstreams:
      - {provider: anthropic, key: env:ANTHROPIC_API_KEY}
      - {provider: bedrock, region: eu-central-1}
      - {name: mine, provider: openai-compatible, origin: http://10.0.0.7:9000, apis: [chat, responses]}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from velox.providers.provider import Provider
from velox.providers.rows import COMPATIBLE, PROVIDERS
from velox.providers.target import missing, origin_of, parameters_of
from velox.settings import parse
from velox.settings.problems import unknown
from velox.settings.yaml.tree import Section
from velox.types import ApiKind, Origin

__all__ = ["FIELDS", "PARAMETERS", "Chosen", "api_names", "apis_of", "base_problem", "choose", "first_set"]

_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?"


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One that templates may need. variables: where it is if an upstream does not name it."""

    pattern: re.Pattern[str]
    expected: str
    example: str
    variables: tuple[str, ...] = ()


PARAMETERS: Final[Mapping[str, _Parameter]] = MappingProxyType(
    {
        "region": _Parameter(
            *(re.compile(_LABEL), "the name of an AWS region, such as eu-central-1", "eu-central-1"),
            ("AWS_REGION", "AWS_DEFAULT_REGION"),
        ),
        "profile": _Parameter(
            *(re.compile(r"[^\x00-\x1f\x7f\[\]]{1,128}"), "the name of a profile of AWS's files, such as work", "work")
        ),
        "resource": _Parameter(
            re.compile(_LABEL, re.IGNORECASE),
            "the name of an Azure resource: my-resource of https://my-resource.openai.azure.com",
            "my-resource",
        ),
        "project": _Parameter(
            *(re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,99}"), "the ID of a Google Cloud project", "my-project"),
            ("GOOGLE_CLOUD_PROJECT", "ANTHROPIC_VERTEX_PROJECT_ID"),
        ),
        "location": _Parameter(
            *(re.compile(_LABEL), "a location of Vertex AI, such as europe-west4 or global", "global"),
            ("GOOGLE_CLOUD_LOCATION", "CLOUD_ML_REGION"),
        ),
        "api_version": _Parameter(
            re.compile(r"v1|preview|latest|20[0-9]{2}-[0-9]{2}-[0-9]{2}(?:-preview)?"),
            "v1, preview, or a version such as 2024-10-21",
            "2024-10-21",
        ),
    }
)
FIELDS: Final = ("provider", *PARAMETERS, "apis")
# Other names of providers: of LiteLLM, of SDKs, of companies.
_OTHER_NAMES: Final = MappingProxyType(
    {
        **dict.fromkeys(("aws", "amazon", "aws-bedrock", "converse"), "bedrock"),
        **dict.fromkeys(("azure-openai", "azureopenai", "microsoft"), "azure"),
        **dict.fromkeys(("azure-ai", "ai-foundry", "azure-foundry", "azureml"), "foundry"),
        **dict.fromkeys(("google", "google-ai", "google-ai-studio", "aistudio", "google-genai"), "gemini"),
        **dict.fromkeys(("vertex-ai", "vertexai", "google-vertex", "gcp"), "vertex"),
        **dict.fromkeys(("claude",), "anthropic"),
        **dict.fromkeys(("together-ai", "togetherai"), "together"),
        **dict.fromkeys(("fireworks-ai",), "fireworks"),
        **dict.fromkeys(("grok", "x-ai"), "xai"),
        **dict.fromkeys(("llama.cpp", "llama-cpp", "llama-server"), "llamacpp"),
        **dict.fromkeys(("lm-studio",), "lmstudio"),
        **dict.fromkeys(("zhipu", "z.ai", "z-ai", "glm"), "zai"),
        **dict.fromkeys(("custom", "other", "compatible", "openai-like", "litellm"), "openai-compatible"),
    }
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A provider as an upstream has it. origin: of its row; None: the upstream names its own, or must."""

    row: Provider
    parameters: Mapping[str, str]
    apis: tuple[ApiKind, ...]
    origin: Origin | None


def choose(section: Section, environ: Mapping[str, str]) -> Chosen:
    """Return what an upstream says of its provider; what is wrong with it is told."""
    found = section.one("provider", _provider, None if "provider" in section else COMPATIBLE, shown=False)
    row = found or COMPATIBLE
    used = parameters_of(row)
    parameters = {}
    for name, kind in PARAMETERS.items():
        if found is not None and name in section and name not in used:
            needing = ", ".join(other.name for other in PROVIDERS.values() if name in parameters_of(other))
            section.refuse(name, f"expected a provider with it: {needing}; {row.name} has no use for it")
        text = section.one(name, _reader(kind), "", shown=False)
        if name in used and name not in section:
            text = _of_variables(kind, environ)
        if text:
            parameters[name] = text
    has_origin = "origin" in section
    for name in missing(row, parameters, has_origin=has_origin):
        if name not in section:
            section.lacks(_lacking(row, name, has_origin=has_origin))
    apis = section.many("apis", _api_reader(row))
    if has_origin:
        return Chosen(row, parameters, apis, None)
    text = origin_of(row, parameters)
    if not text and not row.origin and found is not None:
        section.needs(origin="https://api.openai.com")
    return Chosen(row, parameters, apis, parse.origin(text) if text else None)


def base_problem(row: Provider, origin: Origin) -> str:
    """Return what is wrong with an origin that has already what the paths of its provider begin with; "" if nothing.

    That may be several segments, as vendors print their base URLs, and a whole endpoint at any server.
    """
    segments = origin.base_path.split("/")[1:]
    families = row.families
    paths = [path.path for family in families for path in (*family.native.values(), *family.optional.values())]
    paths.append(row.model_list)
    for n in range(len(segments)):
        end = "/" + "/".join(segments[n:])
        if row is not COMPATIBLE and any(f"{path}/".startswith(f"{end}/") for path in paths):
            return f"expected it without {end} at its end: the paths of {row.name} begin with that"
    return parse.endpoint_problem(origin)


def apis_of(row: Provider) -> tuple[ApiKind, ...]:
    """Return all APIs that an upstream of a provider may name, in order."""
    known = {api for family in row.families for api in (*family.native, *family.optional)}
    return tuple(sorted(known))


def api_names(apis: Iterable[ApiKind]) -> str:
    """Return the names of APIs as they are written."""
    return ", ".join(api.name.lower() for api in apis)


def first_set(names: Iterable[str], environ: Mapping[str, str]) -> str:
    """Return the first of these variables that is set, "" for none."""
    return next((name for name in names if environ.get(name)), "")


def _provider(text: str) -> Provider:
    row = PROVIDERS.get(text)
    if row is not None:
        return row
    other = _OTHER_NAMES.get(text.lower().replace("_", "-"))
    near = f"there is no such provider; did you mean {other}?" if other else unknown("provider", text, PROVIDERS)
    raise ValueError(near if "did you mean" in near else f"{near}; there are {', '.join(PROVIDERS)}")


def _reader(kind: _Parameter) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not kind.pattern.fullmatch(text):
            raise ValueError(f"expected {kind.expected}")
        return text

    return read


def _api_reader(row: Provider) -> Callable[[str], ApiKind]:
    known = {api.name.lower(): api for api in apis_of(row)}

    def read(text: str) -> ApiKind:
        if text not in known:
            raise ValueError(f"expected APIs that {row.name} may have: {', '.join(known)}")
        return known[text]

    return read


def _of_variables(kind: _Parameter, environ: Mapping[str, str]) -> str:
    """Return a parameter that stands in a variable. One that can't be right is none: nobody wrote it for Velox."""
    text = environ.get(first_set(kind.variables, environ), "")
    return text if kind.pattern.fullmatch(text) else ""


def _lacking(row: Provider, name: str, *, has_origin: bool) -> str:
    kind = PARAMETERS[name]
    places = [f"`{name}`, such as `{name}: {kind.example}`"]
    if not has_origin and name not in row.needs:
        places.append("`origin`")
    places += [f"the variable {variable}" for variable in kind.variables[:1]]
    return f"expected {', or '.join(places)}: {row.title} is at another address, or path, for each"
