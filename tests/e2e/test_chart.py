"""The chart and the manifests for Kubernetes: rendered by Helm's own library, checked against Kubernetes' own schemas.

No cluster is here. What the container is given starts a gateway: the settings are loaded.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.sources import ROOT
from tests.markdown import blocks
from velox import __version__
from velox.settings import load

TOOLS = ROOT / ".helm"
PAGE = ROOT / "docs/kubernetes.md"
CHART = ROOT / "deploy/helm/velox"
# The oldest that the chart says, and the newest that the schemas have.
VERSIONS = ("1.29", "1.37")
SECRET = {
    "VELOX_ADMIN_TOKEN": "token-5b1f9c2e7a3d",
    "VELOX_API_KEYS": "vk-chart-5b1f9c2e",
    "OPENAI_API_KEY": "sk-x",
    "VELOX_LEDGER_DATABASE": "postgresql://velox:p@db.example.com/velox",
}
FULL: dict[str, Any] = {
    "existingSecret": "velox",
    "config": {"upstreams": [{"provider": "openai", "keys": ["env:OPENAI_API_KEY"]}]},
    "ledger": {"mode": "postgres"},
    "autoscaling": {
        "enabled": True,
        "metrics": [
            {
                "type": "Pods",
                "pods": {
                    "metric": {"name": "velox_inflight_requests"},
                    "target": {"type": "AverageValue", "averageValue": "200"},
                },
            }
        ],
    },
    "networkPolicy": {
        "clients": [{"podSelector": {"matchLabels": {"team": "web"}}}],
        "monitoring": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
    },
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "extraEnv": [{"name": "VELOX_RETRIES", "value": "1"}],
    "extraVolumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
    "extraVolumeMounts": [{"name": "tls", "mountPath": "/etc/tls"}],
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "models"},
    "nodeSelector": {"kubernetes.io/arch": "arm64"},
    "tolerations": [{"key": "x", "operator": "Exists"}],
    "imagePullSecrets": [{"name": "registry"}],
    "priorityClassName": "high",
}
ONE = {"existingSecret": "velox", "replicaCount": 1, "ledger": {"mode": "volume", "volume": {"size": "20Gi"}}}

pytestmark = pytest.mark.more
rendering = pytest.mark.skipif(not (TOOLS / "installed").exists(), reason="no Helm: `make helm-tools`")


def chart(*words: str, values: Mapping[str, Any] | None = None, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy.chart", *words],
        input=given or json.dumps(values or {}),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(TOOLS)},
        capture_output=True,
        text=True,
        check=False,
    )


def manifests(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the documents that the chart makes, by kind and name."""
    done = chart(values=values)
    assert done.returncode == 0, done.stderr
    return {f"{each['kind']} {each['metadata']['name']}": each for each in yaml.safe_load_all(done.stdout)}


def problems(documents: Iterable[Mapping[str, Any]], version: str) -> dict[str, list[str]]:
    """Return what a version of Kubernetes would refuse in documents, by kind and name."""
    done = chart("--check", version, given=yaml.safe_dump_all(documents))
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    assert found
    return found


def container(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the pod of a Deployment, and its container."""
    pod = document["spec"]["template"]["spec"]
    (velox,) = pod["containers"]
    return pod, velox


def variables(velox: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the environment of a container, with the values of the Secret."""
    if "envFrom" in velox:
        # The database's address is in the Secret of those who use one.
        yield from ((name, text) for name, text in SECRET.items() if name != "VELOX_LEDGER_DATABASE")
    for each in velox["env"]:
        yield each["name"], each["value"] if "value" in each else SECRET[each["valueFrom"]["secretKeyRef"]["key"]]


@rendering
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [{"existingSecret": "velox"}, FULL, ONE], ids=["least", "full", "one"])
def test_what_the_chart_makes_is_kubernetes(values: Mapping[str, Any], version: str) -> None:
    """Each document has only fields that this version knows, of their types. A ServiceMonitor is no part of it."""
    found = manifests(values)

    assert set(map(tuple, problems(found.values(), version).values())) == {()}
    assert "Deployment velox" in found and "PodDisruptionBudget velox" in found and "NetworkPolicy velox" in found


@rendering
def test_wrong_field_is_seen() -> None:
    """The schemas say something: a name that Kubernetes does not know, and a number as a text."""
    document = manifests({"existingSecret": "velox"})["Deployment velox"]
    document["spec"]["replica"] = document["spec"].pop("replicas")
    document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = "125"

    found = problems([document], VERSIONS[0])["Deployment velox"]

    assert any("'replica' was unexpected" in each for each in found)
    assert any("terminationGracePeriodSeconds: '125' is not of type" in each for each in found)


@rendering
@pytest.mark.parametrize("values", [{"existingSecret": "velox"}, FULL, ONE], ids=["least", "full", "one"])
def test_container_starts_a_gateway_that_drains_in_time(values: Mapping[str, Any]) -> None:
    """Its variables are settings that Velox takes; the grace period is longer than preStop and drain together."""
    found = manifests(values)
    pod, velox = container(found["Deployment velox"])
    environ = dict(variables(velox))
    environ.pop("VELOX_CONFIG", None)

    settings = load(environ)

    (sleep,) = (int(each) for each in velox["lifecycle"]["preStop"]["exec"]["command"][1:])
    assert settings.drain_timeout_s + sleep < pod["terminationGracePeriodSeconds"] >= 120
    ports = {each["name"]: each["containerPort"] for each in velox["ports"]}
    assert settings.admin_listen is not None
    assert ports == {"http": settings.listen[0].port, "admin": settings.admin_listen.port}
    assert {velox[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")} == {
        "admin"
    }
    assert velox["image"] == f"velox:{__version__}"
    assert velox["securityContext"]["readOnlyRootFilesystem"] and pod["securityContext"]["runAsNonRoot"]
    mounts = {each["mountPath"] for each in velox.get("volumeMounts", ())}
    assert (settings.ledger in mounts) == (settings.ledger is not None)
    assert {each["name"] for each in velox.get("volumeMounts", ())} == {each["name"] for each in pod.get("volumes", ())}


@rendering
def test_configuration_is_one_that_velox_reads(tmp_path: Path) -> None:
    """What the ConfigMap holds is a file of settings; another one makes other pods."""
    found = manifests(FULL)
    file = tmp_path / "velox.yaml"
    file.write_text(found["ConfigMap velox"]["data"]["velox.yaml"])
    _, velox = container(found["Deployment velox"])

    settings = load({**dict(variables(velox)), "VELOX_CONFIG": str(file)})

    assert settings.upstreams[0].where
    other = manifests({**FULL, "config": {"upstreams": [{"provider": "anthropic", "keys": ["env:A"]}]}})
    sums = {
        json.dumps(each["Deployment velox"]["spec"]["template"]["metadata"]["annotations"]) for each in (found, other)
    }
    assert len(sums) == 2


@rendering
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"existingSecret": "v", "replicaCount": "two"}, "at '/replicaCount': got string, want integer"),
        ({"existingSecret": "v", "drain": {"timeoutSeconds": "25s"}}, "'/drain/timeoutSeconds': got string, want int"),
        ({"existingSecret": "v", "replicas": 3}, "additional properties 'replicas' not allowed"),
        ({"existingSecret": "v", "ledger": {"mode": "sqlite"}}, "at '/ledger/mode': value must be one of"),
        ({"existingSecret": "v", "extraEnv": {"A": "b"}}, "at '/extraEnv': got object, want array"),
        ({"existingSecret": "v", "resources": {"limits": {"memory": 512}}}, "'/resources/limits/memory': got number"),
        ({}, "existingSecret: expected the name of a Secret with VELOX_ADMIN_TOKEN"),
        ({"existingSecret": "v", "ledger": {"mode": "volume"}}, "ledger.mode: volume is for one gateway"),
        (
            {"existingSecret": "v", "autoscaling": {"enabled": True, "maxReplicas": 1}},
            "autoscaling.maxReplicas: 1 is less than autoscaling.minReplicas, 2",
        ),
    ],
)  # fmt: skip
def test_wrong_value_is_refused_by_its_name(values: Mapping[str, Any], message: str) -> None:
    """Before anything reaches the cluster: where it stands, what it is, what it has to be."""
    done = chart(values=values)

    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@rendering
def test_lint_finds_nothing_but_the_missing_icon() -> None:
    said = json.loads(chart("--lint").stdout)

    assert [each["error"] for each in said["messages"]] == ["icon is recommended"] and said["errors"] == []


@rendering
def test_values_of_the_page_are_taken() -> None:
    """Each example is whole, and makes what Kubernetes takes."""
    examples = [yaml.safe_load(text) for text in blocks(PAGE, "yaml")]

    assert len(examples) >= 3
    for values in examples:
        found = manifests({"existingSecret": "velox", **values})
        assert set(map(tuple, problems(found.values(), "1.29").values())) == {()}


@rendering
@pytest.mark.parametrize("version", VERSIONS)
def test_plain_manifests_are_what_the_chart_makes(version: str) -> None:
    """`make manifests` was run; they are Kubernetes, and no label says that Helm keeps them."""
    text = (ROOT / "deploy/kubernetes/gateway.yaml").read_text()

    assert text == chart("--plain").stdout and "Helm\n" not in text
    assert set(map(tuple, problems(yaml.safe_load_all(text), version).values())) == {()}


@rendering
@pytest.mark.parametrize("version", VERSIONS)
def test_patch_and_pods_are_kubernetes(version: str) -> None:
    """The patch makes a sidecar of a Deployment that has a container; its container is the pod's but for the probes."""
    patch = yaml.safe_load((ROOT / "deploy/kubernetes/sidecar.patch.yaml").read_text())
    labels = {"app": "my-app"}
    app = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "app", "image": "app"}]}}
    app["spec"] |= patch["spec"]["template"]["spec"]
    whole = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "my-app"},
        "spec": {"selector": {"matchLabels": labels}, "template": app},
    }
    pods = [
        yaml.safe_load((ROOT / "deploy" / name).read_text()) for name in ("sidecar.pod.yaml", "sidecar-unix.pod.yaml")
    ]

    found = problems((whole, *pods[:1]), version) | problems(pods[1:], version)
    assert found == {"Deployment my-app": [], "Pod app-with-velox": []}
    (velox,), (other,) = app["spec"]["initContainers"], pods[0]["spec"]["initContainers"]
    settings = load(dict(variables({**velox, "env": velox["env"][:2]})))
    assert settings.listen[0].is_loopback and settings.drain_timeout_s < app["spec"]["terminationGracePeriodSeconds"]
    same = [name for name in velox if not name.endswith("Probe") and name != "image"]
    assert [velox[name] for name in same] == [other[name] for name in same]


def test_chart_has_the_version_of_velox() -> None:
    """And so the tag of its image."""
    found = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert (found["version"], found["appVersion"]) == (__version__, __version__)


def test_schema_has_each_value_and_the_page_names_it() -> None:
    """A value that the schema does not have is refused; one that the page does not have is found by nobody."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    properties = json.loads((CHART / "values.schema.json").read_text())["properties"]

    assert set(properties) == {*values, "global"}
    named = set(re.findall(r"`([A-Za-z]+)(?:\.[A-Za-z.]+)?`", PAGE.read_text()))
    assert set(values) - named == set()
