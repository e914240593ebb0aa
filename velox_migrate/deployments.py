"""The model_list of LiteLLM: each deployment as a destination of Velox, or why it can be none.

Knows: litellm_params, credentials and providers. Does not know: routes. A key of the file is never kept here: it
becomes the name of a variable.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlsplit

from velox.settings import parse
from velox.settings.parse import header_name, header_value
from velox.settings.routing.header_rules import NEVER_SET
from velox.settings.yaml.tree import Entry, Tree
from velox_migrate.meanings import deployment_setting, section_setting
from velox_migrate.native import NATIVE, RefusedError, Row, Rows, row_at
from velox_migrate.notes import Notes
from velox_migrate.providers import (
    PROVIDERS,
    UNSUPPORTED,
    Provider,
    base_of,
    base_variables,
    provider_of,
)
from velox_migrate.source import Part, items_of, variable_of

__all__ = ["Deployment", "Destination", "Reader", "is_name"]

# What people write where a server asks for no key.
_NO_KEY: Final = frozenset(
    {"none", "null", "empty", "dummy", "fake", "fake-key", "no-key", "not-needed", "no-key-required", "na", "n/a"}
    | {"sk-no-key-required", "anything", "ignored", "ollama", "lm-studio"}
)
_LONGEST_S: Final = 86_400.0
_SHORTEST_S: Final = 0.001
_MOST_CONCURRENCY: Final = 10_000_000
_VERSION: Final = re.compile(r"v[0-9]+(?:(?:alpha|beta)[0-9]*)?")
_SECRET_NAME: Final = re.compile(r"key|token|secret|auth|passw|credential|cookie|signature|session", re.IGNORECASE)
# Long, without a space, letters and digits: more likely a key than a name.
_SECRET_VALUE: Final = re.compile(r"(?=\S*[0-9])(?=\S*[A-Za-z])\S{20,}|sk-\S+|Bearer .*|Basic .*", re.IGNORECASE)
_ORGANIZATION: Final = re.compile(r"org-[A-Za-z0-9_-]{1,64}")
_NOT_NAMED: Final = "expected a model_name and litellm_params.model in visible ASCII characters, without commas"


@dataclass(frozen=True, slots=True)
class Destination:
    """What makes one upstream: two deployments with the same are one. base: what its name begins with.

    origin: "" for that of the provider. key: "env:NAME", or "" for none. provider: the row; "": none is known.
    timeouts: (name, seconds). alone: where a deployment stands that shares its concurrency with no other. weight: None
    where it is alone in its group, so that any will do; 0: it has no part in its group.
    """

    base: str = field(compare=False)
    origin: str
    key: str = ""
    provider: str = ""
    parameters: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    timeouts: tuple[tuple[str, float], ...] = ()
    concurrency: int = 0
    alone: str = ""
    weight: int | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """One item of model_list. group: its model_name. model: as the provider calls it, with `*` if the group has one.

    share: what LiteLLM weighs it by: weight, rpm, tpm; the first that is given counts. order: None: after all others.
    id: what fallbacks may call it by. is_spare: it has no share, while others of its group have one.
    """

    group: str
    model: str
    to: Destination
    share: tuple[float | None, float | None, float | None]
    order: float | None
    tags: tuple[str, ...]
    where: str
    id: str = ""
    is_spare: bool = False

    @property
    def rpm(self) -> float | None:
        """Return the requests a minute that it may get."""
        return self.share[1]

    @property
    def tpm(self) -> float | None:
        """Return the tokens a minute that it may get."""
        return self.share[2]

    def weighing(self, weight: int) -> Deployment:
        """Return the same with a weight."""
        return replace(self, to=replace(self.to, weight=weight))


class Reader:
    """Reads deployments. environ: for what is no secret. taken: names that no new variable may have.

    parallel: how many requests a deployment may have at once that says nothing of it. 0: any number.
    """

    def __init__(
        self,
        notes: Notes,
        environ: Mapping[str, str],
        credential_list: Tree | None,
        taken: Collection[str] = (),
        *,
        parallel: int = 0,
    ) -> None:
        self._notes: Final = notes
        self._environ: Final = environ
        self._taken: Final = taken
        self._parallel: Final = parallel
        self._rows: Final = Rows(notes, environ)
        # Names of which a deployment was left out, and where; and the ids of such deployments.
        self.refused: Final[dict[str, str]] = {}
        self.refused_ids: Final[set[str]] = set()
        self._credentials: Final[dict[str, tuple[Entry, ...]]] = {}
        # Of keys that stand in the file: digest to variable, so that the same key gets one.
        self._made: Final[dict[bytes, str]] = {}
        for item in items_of(credential_list):
            part = Part(item, "credential_list", notes, environ)
            name, _ = part.text("credential_name")
            values = part.take("credential_values")
            part.take("credential_info")
            part.leave_rest(deployment_setting)
            self._credentials[name] = (values.fields or ()) if values is not None else ()

    def read(self, item: Tree) -> Deployment | None:
        """Return a deployment; None for one that Velox can't ask, which is told."""
        found = self._read(item)
        if found is None:
            info = Part(item, "model_list", self._notes, self._environ).part("model_info", "model_info")
            self.refused_ids.add(info.text("id")[0])
        return found

    def _read(self, item: Tree) -> Deployment | None:
        outer = Part(item, "model_list", self._notes, self._environ)
        group, _ = outer.text("model_name")
        params = outer.part("litellm_params", "litellm_params")
        info = outer.part("model_info", "model_info")
        # The router's own form has these two outside.
        params.put([entry for entry in outer.rest() if entry.key != "model_info"])
        credential, where = params.text("litellm_credential_name")
        if credential and credential not in self._credentials:
            params.leave("litellm_credential_name", "no credential_list of this file has it", where)
        params.put(self._credentials.get(credential, ()))
        model, where = params.text("model")
        given, _ = params.text("custom_llm_provider")
        provider, name = provider_of(model, given)
        kind = PROVIDERS.get(provider)
        if kind is None and provider not in NATIVE:
            unknown = "who serves it is not known here; write openai/MODEL with its api_base if it speaks OpenAI's API"
            self._refuse(group, model or "a deployment", where, UNSUPPORTED.get(provider, unknown))
            return None
        if not is_name(group) or not is_name(name):
            self._refuse(group, model or "a deployment", item.where, _NOT_NAMED)
            return None
        if kind is not None and kind.model_prefix and "/" not in name and "*" not in name:
            name = kind.model_prefix + name
        if kind is None:
            found = self._native(provider, params, (group, model, name), item.where)
            if found is None:
                return None
            destination, name = found
        else:
            to = self._destination(provider, kind, params, (group, model, name), item.where)
            if to is None:
                return None
            destination = to
        if model == "*" and not given:
            text = "LiteLLM finds the provider by the name that a client asks for; here all of them go to OpenAI"
            self._notes.changed(f"model_name {group}", text, where)
        number, where = info.text("id")
        if number:
            info.leave("id", section_setting("model_info")("id"), where)
        info.leave_rest(section_setting("model_info"))
        return replace(self._deployment(group, name, destination, params, item.where), id=number)

    def _concurrency(self, params: Part) -> int:
        """Return how many requests may run at once, 0 for any number. LiteLLM takes rpm and tpm for it, too."""
        most, _ = params.number("max_parallel_requests")
        usual = 0 if {key for key in ("rpm", "tpm") if key in params} else self._parallel
        return min(int(most or usual), _MOST_CONCURRENCY)

    def _deployment(self, group: str, model: str, to: Destination, params: Part, where: str) -> Deployment:
        weight, rpm, tpm = (params.number(key)[0] for key in ("weight", "rpm", "tpm"))
        order, _ = params.number("order")
        tags = []
        for tag in items_of(params.take("tags")):
            try:
                tags.append(parse.tag(tag.text or ""))
            except ValueError as exc:
                params.leave("tags", str(exc), tag.where)
        params.leave_rest(deployment_setting)
        return Deployment(group, model, to, (weight, rpm, tpm), order, tuple(tags), where)

    def _refuse(self, group: str, model: str, where: str, why: str) -> None:
        if is_name(group):
            self.refused.setdefault(group, where)
        shown = model if is_name(model) or model == "a deployment" else "a deployment"
        self._notes.left_out(shown, f"{why}; nothing of this deployment is carried over", where)

    def _destination(
        self, provider: str, kind: Provider, params: Part, names: tuple[str, str, str], place: str
    ) -> Destination | None:
        group, model, asked = names
        text, where = self._api_base(provider, params)
        url = text if text is not None else base_of(provider, asked)
        if not url:
            variable = base_variables(provider)[0]
            self._refuse(group, model, where, f"it has no api_base that is known here, nor is {variable} set")
            return None
        origin, why = self._origin(provider, kind, url, where)
        if why:
            self._refuse(group, model, where, why)
            return None
        if not text and kind.unverified:
            why = f"its URL is not verified: {kind.unverified}; see that it is right, or give api_base"
            self._notes.changed(f"{provider}: api_base", why, place)
        host = urlsplit(origin).hostname or ""
        base = provider if not text or host in (urlsplit(kind.base).hostname, "localhost") else f"{provider}-{host}"
        row, own = row_at(provider, origin)
        return self._reached(base, Row(row, asked, own or ("" if row else origin), key=kind.key), params, place)

    def _native(
        self, provider: str, params: Part, names: tuple[str, str, str], place: str
    ) -> tuple[Destination, str] | None:
        """Return where a deployment goes whose provider has a row of its own, and the model's name there."""
        group, model, asked = names
        text, where = self._api_base(provider, params)
        try:
            if text == "":
                raise RefusedError("its api_base is in a variable that is not set")
            row = self._rows.find(provider, asked, params, text or "", where)
            if not is_name(row.model):
                raise RefusedError(_NOT_NAMED)
        except RefusedError as refused:
            self._refuse(group, model, place, refused.why)
            return None
        own = dict(row.parameters).get("resource", "") or (urlsplit(row.origin).hostname or "").partition(".")[0]
        return self._reached(f"{provider}-{own}" if own else provider, row, params, place), row.model

    def _reached(self, base: str, row: Row, params: Part, place: str) -> Destination:
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", base)[:56]
        key = self._key(row.key, params, base)
        concurrency = self._concurrency(params)
        more = (self._headers(params), self._timeouts(params), concurrency, place if concurrency else "")
        return Destination(base, row.origin, key, row.provider, row.parameters, *more)

    def _api_base(self, provider: str, params: Part) -> tuple[str | None, str]:
        """Return the URL that is given, and where; None: the usual one.

        "" where it is in a variable that is not set: the usual one must not get a key that was meant for another.
        """
        given = "api_base" in params or "base_url" in params
        text, where = params.text("api_base", "base_url")
        if given:
            return text, where
        for name in base_variables(provider):
            if self._environ.get(name):
                text = f"it is what the variable {name} says while this is read"
                self._notes.changed(f"{provider}: api_base", text, where)
                return self._environ[name], where
        return None, where

    def _origin(self, provider: str, kind: Provider, url: str, where: str) -> tuple[str, str]:
        """Return the origin under which `/v1/...` is what LiteLLM asks; or why there is none."""
        url = url.strip().rstrip("/")
        for end in ("/chat/completions", "/completions", "/embeddings"):
            url = url.removesuffix(end)
        try:
            parsed = parse.origin(url)
        except ValueError as exc:
            return "", f"its api_base can't be taken: {exc}"
        path = parsed.base_path
        before = str(parsed).removesuffix(path)
        if path.endswith("/v1"):
            return before + path.removesuffix("/v1"), ""
        if any(_VERSION.fullmatch(segment) for segment in path.split("/")):
            return "", "its api_base has another version in its path than a /v1 at the end, and Velox changes no path"
        if not kind.has_v1:
            text = "LiteLLM asks it without /v1; Velox passes on the path of the client, which begins with /v1"
            self._notes.changed(f"{provider}: api_base", text, where)
        return str(parsed), ""

    def _key(self, name: str, params: Part, base: str) -> str:
        """Return where the key is; a key that stands in the file becomes a variable that has to be set."""
        tree = params.take("api_key")
        text = (tree.text or "") if tree is not None else ""
        if tree is None or not text:
            if name:
                self._notes.variables.setdefault(name, f"the key of {base}")
            return f"env:{name}" if name else ""
        place = tree.where
        if text.lower() in _NO_KEY:
            self._notes.changed("api_key", "it looks like none: none is sent, and no `keys` stand in the file", place)
            return ""
        referred = variable_of(text)
        if referred and not referred.startswith("VELOX_"):
            self._notes.variables.setdefault(referred, f"the key of {base}")
            return f"env:{referred}"
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        name = self._made.get(digest) or self._free_variable(base)
        self._made[digest] = name
        source = "now in a variable that only Velox may have" if referred is not None else "now in the file"
        self._notes.variables[name] = f"the key of {base}, {source} ({place})"
        self._notes.changed(
            "api_key", f"a key never stands in a Velox file: it is read from the variable {name}", place
        )
        return f"env:{name}"

    def _free_variable(self, base: str) -> str:
        stem = re.sub(r"[^A-Z0-9]+", "_", base.upper()).strip("_")[:100]
        stem = f"KEY_{stem}" if stem.startswith("VELOX") or not stem[:1].isalpha() else stem
        name, n = f"{stem}_KEY", 1
        while name in self._notes.variables or name in self._taken:
            n += 1
            name = f"{stem}_KEY_{n}"
        return name

    def _headers(self, params: Part) -> tuple[tuple[str, str], ...]:
        found: dict[str, str] = {}
        for key in ("extra_headers", "headers"):
            for entry in params.part(key).rest():
                name, text = entry.key, entry.value.text or ""
                if _SECRET_NAME.search(name) or _SECRET_VALUE.fullmatch(text) or variable_of(text) is not None:
                    why = "it may be a secret, and headers stand in the file as they are: if it is none, add it there"
                    params.leave(key, why, entry.where)
                    continue
                try:
                    known = header_name(name)
                    if known in NEVER_SET or known.startswith("x-velox-"):
                        raise ValueError("it is not the settings' to set")
                    found[known] = header_value(text)
                except ValueError as exc:
                    params.leave(key, f"one of them can't be sent: {exc}", entry.where)
        organization = params.take("organization")
        if organization is not None and _ORGANIZATION.fullmatch(organization.text or ""):
            found["openai-organization"] = organization.text or ""
        elif organization is not None:
            why = "write one upstream for each organization, with headers: {openai-organization: NAME}"
            params.leave("organization", why, organization.where)
        return tuple(found.items())

    def _timeouts(self, params: Part) -> tuple[tuple[str, float], ...]:
        (timeout, _), (other, _) = params.number("timeout"), params.number("request_timeout")
        total = timeout or other
        stream, where = params.number("stream_timeout")
        found: list[tuple[str, float]] = []
        if total:
            # A reply that is no stream comes whole: its first byte may take as long as all of it.
            found = [("first_byte", _seconds(total)), ("total", _seconds(total))]
        if stream:
            found.append(("idle", _seconds(stream)))
            text = "it is the longest silence inside a reply; first_byte is one for streams and other replies"
            self._notes.changed("stream_timeout", text, where)
        return tuple(found)


def _seconds(value: float) -> float:
    return min(max(value, _SHORTEST_S), _LONGEST_S)


def is_name(text: str) -> bool:
    """True for a model's name. Commas stand between the names of a limit."""
    try:
        return bool(parse.model_pattern(text)) and "," not in text
    except ValueError:
        return False
