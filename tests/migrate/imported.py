"""What the tests of `velox import litellm` share: a configuration in, and what came of it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from velox.settings import Settings, load
from velox_migrate.litellm import Imported, import_litellm

__all__ = ["deployment", "imported", "loaded", "report", "targets"]


def imported(config: object, environ: dict[str, str] | None = None) -> Imported:
    """Return what comes of a configuration, a text or what YAML makes of one."""
    text = config if isinstance(config, str) else yaml.safe_dump(config, sort_keys=False)
    return import_litellm(text.encode(), "config.yaml", environ or {})


def loaded(result: Imported, folder: Path) -> Settings:
    """Return the settings of an imported file, with every variable that the report names."""
    assert result.text is not None, list(result.notes.lines())
    (folder / "velox.yaml").write_text(result.text)
    environ = {name: f"key-in-{name}" for name in result.notes.variables}
    return load(environ, {"VELOX_CONFIG": str(folder / "velox.yaml")}, cores=1)


def deployment(group: str, model: str, **params: object) -> dict[str, Any]:
    """Return one item of model_list."""
    return {"model_name": group, "litellm_params": {"model": model, **params}}


def report(result: Imported) -> str:
    """Return the whole report."""
    return "\n".join(result.notes.lines())


def targets(made: Settings, name: str) -> tuple[list[str], list[str]]:
    """Return where the route of a name leads, and its fallbacks."""
    route = next(route for route in made.routes if route.name == name)
    return [str(target) for target in route.to], [str(target) for target in route.fallback]
