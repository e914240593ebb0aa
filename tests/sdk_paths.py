"""The paths that the official SDKs ask, read from the sources of the installed ones.

Knows: where each SDK writes its paths. Does not know: what Velox makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import anthropic
import openai
from google import genai

__all__ = ["anthropic_paths", "google_paths", "openai_paths", "sample"]

_PLACE: Final = re.compile(r"\{[^}]*\}")
_TEXT: Final = re.compile(r'"(/[a-z{][A-Za-z0-9_/{}:?=.-]*)"')
# How modules of google-genai write a path, as it is or as a template: `path = 'files/{file}'.format_map(...)`.
_PATH: Final = re.compile(r"\bpath = \(?\s*f?'([A-Za-z{][A-Za-z0-9_/{}:?=.]*)'")
# What the one name stands for that a module of google-genai puts into its paths, as its examples write it.
_NAMES: Final = {
    "batches": ("models/gemini-x",),
    "caches": ("cachedContents/abc-123",),
    "documents": ("fileSearchStores/abc-123/documents/d-1", "fileSearchStores/abc-123"),
    "file_search_stores": ("fileSearchStores/abc-123",),
    "files": (),
    "models": ("models/gemini-x", "tunedModels/abc-123"),
    "operations": ("models/veo-x/operations/abc-123", "fileSearchStores/abc-123/operations/o-1", "operations/abc-123"),
    "tokens": (),
    "tunings": ("tunedModels/abc-123", "tuningJobs/abc-123"),
}
# Asked of Vertex AI only, and not of the API for developers.
_VERTEX: Final = ("fetchPredictOperation", "validateReinforcementTuningReward")
# In the OpenAI SDK's sources, and no path of the API: a folder of a sandbox.
_FOLDER: Final = "/workspace"


def openai_paths() -> frozenset[str]:
    """Return the paths of the OpenAI SDK below its base, with `{name}` for what stands in them."""
    found = _slashed(Path(openai.__file__).parent / "resources")
    return frozenset(path for path in found if not path.startswith(_FOLDER))


def anthropic_paths() -> frozenset[str]:
    """Return those of the Anthropic SDK, which begin with /v1."""
    return frozenset(_slashed(Path(anthropic.__file__).parent / "resources"))


def google_paths() -> frozenset[str]:
    """Return those of google-genai for the API for developers, which begin with /v1beta or /upload/v1beta."""
    folder = Path(genai.__file__).parent
    found = {path.replace("{api_version}", "v1beta") for path in _slashed(folder / "_gaos")}
    for file in sorted(folder.glob("*.py")):
        if file.stem.startswith("_"):
            continue
        for template in set(_PATH.findall(file.read_text())):
            found |= set(_filled(template, _NAMES[file.stem]))
    return frozenset(path for path in found if not any(word in path for word in _VERTEX))


def sample(path: str) -> str:
    """Return a path with an id in each place of a template."""
    return _PLACE.sub("abc-123", path.partition("?")[0])


def _filled(template: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths that a template of google-genai becomes. names: what stands in its first place."""
    path = template.partition("?")[0].replace("{{api_version}}", "{api_version}")
    base = "/upload/v1beta/" if path.startswith("upload/{api_version}/") else "/v1beta/"
    path = path.removeprefix("upload/{api_version}/")
    if path == "{path}":
        return  # a path that was made before, with a query behind it
    if not path.startswith("{"):
        yield base + path
        return
    rest = path[path.index("}") + 1 :]
    for name in names:
        yield base + name + rest


def _slashed(folder: Path) -> Iterator[str]:
    """Yield the texts of all sources of a folder that begin with a slash."""
    for file in sorted(folder.rglob("*.py")):
        yield from (text.partition("?")[0] for text in _TEXT.findall(file.read_text()))
