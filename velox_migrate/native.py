"""Deployments at providers that Velox knows by name: which row of its own each is, and what the row needs.

Knows: LiteLLM's names of providers and of their parameters, and the defaults that it has for these. Does not know:
routes, or keys (deployments.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from urllib.parse import SplitResult, urlsplit

from velox.providers.rows import PROVIDERS as ROWS
from velox.settings import parse
from velox.settings.routing.provider_fields import PARAMETERS
from velox_migrate.notes import Notes
from velox_migrate.source import Part

__all__ = ["NATIVE", "RefusedError", "Row", "Rows", "row_at"]


@dataclass(frozen=True, slots=True)
class _Native:
    """A provider with a row. row: its name. key: the variable of its key; "": signed, or a token."""

    row: str
    key: str = ""


# LiteLLM's name -> the row. Those that take OpenAI's requests at /v1 only are in providers.py, too: see row_at().
NATIVE: Final[Mapping[str, _Native]] = MappingProxyType(
    {
        "anthropic": _Native("anthropic", "ANTHROPIC_API_KEY"),
        "azure": _Native("azure", "AZURE_API_KEY"),
        "azure_text": _Native("azure", "AZURE_API_KEY"),
        "azure_ai": _Native("foundry", "AZURE_AI_API_KEY"),
        "bedrock": _Native("bedrock"),
        "bedrock_converse": _Native("bedrock"),
        "cohere": _Native("cohere", "COHERE_API_KEY"),
        "cohere_chat": _Native("cohere", "COHERE_API_KEY"),
        "gemini": _Native("gemini", "GEMINI_API_KEY"),
        "perplexity": _Native("perplexity", "PERPLEXITYAI_API_KEY"),
        "vertex_ai": _Native("vertex"),
        "vertex_ai_beta": _Native("vertex"),
        "zai": _Native("zai", "ZAI_API_KEY"),
    }
)
# Servers of users' own: they have a row, and an origin of their own.
_OWN_SERVERS: Final = MappingProxyType(
    {
        "hosted_vllm": "vllm",
        "ollama": "ollama",
        "ollama_chat": "ollama",
        "lm_studio": "lmstudio",
        "llamafile": "llamacpp",
    }
)
_AZURE_HOST: Final = re.compile(r"([a-z0-9-]{2,64})\.(?:openai\.azure|services\.ai\.azure)\.com", re.IGNORECASE)
_WITH_DATE: Final = re.compile(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}(?:-preview)?")
_REGION: Final = re.compile(r"[a-z]{2,4}(?:-[a-z]+){1,2}-[0-9]")
_ROUTES_OF_BEDROCK: Final = ("converse", "invoke", "converse_like")
_USUAL_REGION: Final = "us-west-2"
_USUAL_LOCATION: Final = "us-central1"
_AWS_FROM: Final = (
    "Velox reads AWS credentials where it runs: AWS_ACCESS_KEY_ID and so on, a role, or those of the machine"
)
_GOOGLE_FROM: Final = (
    "Velox reads Google's credentials where it runs: GOOGLE_APPLICATION_CREDENTIALS, or those of the machine"
)
_ENTRA_FROM: Final = (
    "Velox fetches tokens of Entra by itself: set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET where it"
    " runs, or let it run with a managed identity"
)
_ENTRA: Final = (
    *("azure_ad_token", "azure_ad_token_provider", "tenant_id", "client_id", "client_secret"),
    *("azure_username", "azure_password", "azure_scope"),
)
_AWS: Final = (
    *("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "aws_session_name", "aws_profile_name"),
    *("aws_role_name", "aws_web_identity_token", "aws_sts_endpoint", "aws_external_id"),
)


class RefusedError(Exception):
    """A deployment that can't be carried over. why: for the report."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why: Final = why


@dataclass(frozen=True, slots=True)
class Row:
    """An upstream of a provider. model: as the provider calls it. origin: "" for the row's own. key: as in _Native."""

    provider: str
    model: str
    origin: str = ""
    parameters: tuple[tuple[str, str], ...] = ()
    key: str = ""


def row_at(provider: str, origin: str) -> tuple[str, str]:
    """Return the row of a provider that takes OpenAI's requests at `origin`/v1, and the origin if it is another one.

    The row is "" where none is known: such an upstream passes everything on.
    """
    for row in ROWS.values():
        if row.origin and row.origin == origin:
            return row.name, ""
    own = _OWN_SERVERS.get(provider, "")
    return own, origin


class Rows:
    """Finds the rows of deployments. environ: for what is no secret."""

    def __init__(self, notes: Notes, environ: Mapping[str, str]) -> None:
        self._notes: Final = notes
        self._environ: Final = environ

    def find(self, provider: str, model: str, params: Part, url: str, where: str) -> Row:
        """Return what becomes of a deployment of one of NATIVE. url: its api_base; "": none. Raises RefusedError."""
        kind = NATIVE[provider]
        match kind.row:
            case "bedrock":
                return self._bedrock(model, params, url, where)
            case "vertex":
                return self._vertex(model, params, url, where)
            case "azure" | "foundry":
                return self._azure(kind, model, params, url, where)
        return Row(kind.row, model, self._origin(kind.row, url), key=kind.key)

    def _bedrock(self, model: str, params: Part, url: str, where: str) -> Row:
        region, _ = params.text("aws_region_name", "aws_region")
        first, _, rest = model.partition("/")
        if rest and first in _ROUTES_OF_BEDROCK:
            model = rest
            first, _, rest = model.partition("/")
        if rest and _REGION.fullmatch(first):
            region, model = region or first, rest
        if not region:
            names = ("AWS_REGION_NAME", "AWS_REGION", "AWS_DEFAULT_REGION")
            region = next((self._environ[name] for name in names if self._environ.get(name)), "")
        if not region:
            region = _USUAL_REGION
            self._notes.changed("bedrock", f"no region is given: LiteLLM asks {region} then", where)
        if not PARAMETERS["region"].pattern.fullmatch(region):
            raise RefusedError("its region is no name of one")
        endpoint, _ = params.text("aws_bedrock_runtime_endpoint")
        self._leave(params, _AWS, _AWS_FROM)
        return Row("bedrock", model, self._origin("bedrock", endpoint or url), (("region", region),))

    def _vertex(self, model: str, params: Part, url: str, where: str) -> Row:
        project, _ = params.text("vertex_project", "vertex_ai_project")
        location, _ = params.text("vertex_location", "vertex_ai_location")
        self._leave(params, ("vertex_credentials", "vertex_ai_credentials"), _GOOGLE_FROM)
        project = project or self._environ.get("VERTEXAI_PROJECT", "") or self._environ.get("GOOGLE_CLOUD_PROJECT", "")
        location = location or self._environ.get("VERTEXAI_LOCATION", "")
        if not project:
            raise RefusedError("it has no vertex_project: Velox takes none out of Google's credentials")
        if not location:
            location = _USUAL_LOCATION
            self._notes.changed("vertex_ai", f"no location is given: LiteLLM asks {location} then", where)
        if model.isdigit():
            raise RefusedError("it is an endpoint of a user's own, with a number, which Velox does not ask")
        parameters = (("location", location), ("project", project))
        if not all(PARAMETERS[name].pattern.fullmatch(value) for name, value in parameters):
            raise RefusedError("its project or location is no name of one")
        return Row("vertex", model, self._origin("vertex", url), parameters)

    def _azure(self, kind: _Native, model: str, params: Part, url: str, where: str) -> Row:
        if not url:
            variable = "AZURE_API_BASE" if kind.row == "azure" else "AZURE_AI_API_BASE"
            raise RefusedError(f"it has no api_base that is known here, nor is {variable} set")
        parsed = self._parsed(url)
        host = _AZURE_HOST.fullmatch(parsed.hostname or "")
        if kind.row == "foundry" and (host is None or "services" not in (parsed.hostname or "")):
            raise RefusedError("its URL differs with the model; Velox knows https://RESOURCE.services.ai.azure.com")
        version, _ = params.text("api_version")
        version = version or self._environ.get("AZURE_API_VERSION", "")
        parameters = []
        if kind.row == "azure" and _WITH_DATE.fullmatch(version):
            parameters.append(("api_version", version))
        elif kind.row == "azure" and not version:
            text = "no api_version is given: Velox asks the v1 API, /openai/v1; see that the resource has it"
            self._notes.changed("azure", text, where)
        has_token = any(name in params for name in _ENTRA)
        self._leave(params, _ENTRA, _ENTRA_FROM)
        key = "" if has_token and "api_key" not in params else kind.key
        before = parsed.path.partition("/openai")[0].partition("/anthropic")[0].partition("/models")[0].rstrip("/")
        if host is not None and not before and parsed.scheme == "https" and parsed.port is None:
            usual = ROWS[kind.row].origin.format(resource=host[1])
            if urlsplit(usual).hostname == (parsed.hostname or "").lower():
                return Row(kind.row, model, "", (*parameters, ("resource", host[1])), key)
        origin = self._origin(kind.row, f"{parsed.scheme}://{parsed.netloc}{before}")
        return Row(kind.row, model, origin, tuple(parameters), key)

    def _origin(self, row: str, url: str) -> str:
        """Return an api_base as an origin, "" for the row's own. Raises RefusedError."""
        if not url:
            return ""
        url = url.strip().rstrip("/")
        for end in ("/chat/completions", "/messages", "/embeddings", "/v1beta", "/v1", "/v2"):
            url = url.removesuffix(end)
        try:
            origin = str(parse.origin(url))
        except ValueError as exc:
            raise RefusedError(f"its api_base can't be taken: {exc}") from None
        return "" if origin == ROWS[row].origin else origin

    def _parsed(self, url: str) -> SplitResult:
        self._origin("azure", url)
        return urlsplit(url.strip())

    def _leave(self, params: Part, names: tuple[str, ...], why: str) -> None:
        for name in names:
            tree = params.take(name)
            if tree is not None:
                params.leave(name, why, tree.where)
