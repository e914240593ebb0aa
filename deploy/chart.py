"""Render the chart with Helm's own library.

    PYTHONPATH=.helm python -m deploy.chart < values.json    the manifests of a release `velox` in the namespace `velox`
    PYTHONPATH=.helm python -m deploy.chart --plain          what deploy/kubernetes/gateway.yaml has to be
    PYTHONPATH=.helm python -m deploy.chart --write          deploy/kubernetes/gateway.yaml, as `make manifests` does
    PYTHONPATH=.helm python -m deploy.chart --lint           what Helm's lint says
    PYTHONPATH=.helm python -m deploy.chart --check 1.29 < manifests.yaml    what this version of Kubernetes refuses

`make helm-tools` brings the library, helm-python-sdk, which binds to the Go packages of Helm 4.
"""

from __future__ import annotations

import argparse
import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import helm_python
import jsonschema
import yaml

from deploy.sources import ROOT

__all__ = ["main", "plain_manifests", "problems", "rendered"]

_CHART: Final = ROOT / "deploy/helm/velox"
_MANIFESTS: Final = ROOT / "deploy/kubernetes/gateway.yaml"
_VALUES: Final = ROOT / "deploy/kubernetes/values.yaml"
_NAME: Final = "velox"
_HEAD: Final = """\
# Velox as a shared gateway, without Helm: what the chart makes of values.yaml beside this file. `make manifests`
# writes it.
#
#     kubectl create namespace velox
#     kubectl -n velox create secret generic velox --from-env-file secrets.env
#     kubectl -n velox apply -f deploy/kubernetes/gateway.yaml
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, or 2 with what is wrong with the values."""
    parser = argparse.ArgumentParser(prog="python -m deploy.chart", description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--check", metavar="VERSION")
    parser.add_argument("--lint", action="store_true")
    options = parser.parse_args(arguments)
    try:
        if options.lint:
            print(json.dumps(helm_python.lint(str(_CHART), strict=True)))  # noqa: T201
        elif options.check:
            found = {name: problems(each, options.check) for name, each in _documents(sys.stdin.read())}
            print(json.dumps(found))  # noqa: T201
        elif options.plain:
            print(plain_manifests(), end="")  # noqa: T201
        elif options.write:
            _MANIFESTS.write_text(plain_manifests())
        else:
            print(rendered(json.load(sys.stdin)))  # noqa: T201
    except helm_python.HelmError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    return 0


def plain_manifests() -> str:
    """Return what is in deploy/kubernetes/gateway.yaml: without the labels that say that Helm keeps it."""
    lines = rendered(yaml.safe_load(_VALUES.read_text())).splitlines(keepends=True)
    return _HEAD + "".join(line for line in lines if "managed-by: Helm" not in line and "helm.sh/chart" not in line)


def rendered(values: dict[str, Any]) -> str:
    """Return the manifests as documents of YAML. Raises HelmError: values that the schema or the chart refuses."""
    with helm_python.Chart.load(str(_CHART)) as chart:
        files = chart.render(values, name=_NAME, namespace=_NAME)
    texts = [files[name].strip() for name in sorted(files) if Path(name).suffix == ".yaml"]
    return "".join(f"---\n{text.removeprefix('---').strip()}\n" for text in texts if text)


def problems(document: Mapping[str, Any], version: str) -> list[str]:
    """Return what Kubernetes would refuse in a document: fields that it does not know, values of another type."""
    group, _, api = document["apiVersion"].rpartition("/")
    file = "-".join(filter(None, (document["kind"].lower(), group.split(".")[0], api)))
    (wheel,) = (ROOT / ".helm/schemas").glob("kubernetes_validate-*.whl")
    folder = f"kubernetes_validate/kubernetes-json-schema/v{version}.0-local-strict"
    with zipfile.ZipFile(wheel) as packed:
        texts = [packed.read(f"{folder}/{name}.json").decode() for name in (file, "_definitions")]
    schema, definitions = (json.loads(text.replace('"/api/_definitions.json#', '"#')) for text in texts)
    validator = jsonschema.Draft202012Validator({**schema, "$defs": definitions["$defs"]})
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def _documents(text: str) -> list[tuple[str, Any]]:
    """Return documents with kind and name. ServiceMonitors are left out: they are no part of Kubernetes."""
    documents = [each for each in yaml.safe_load_all(text) if each["kind"] != "ServiceMonitor"]
    return [(f"{each['kind']} {each['metadata']['name']}", each) for each in documents]


if __name__ == "__main__":
    sys.exit(main())
