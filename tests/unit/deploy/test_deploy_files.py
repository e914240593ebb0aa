"""The files for building, locking and deploying agree with the code: no container is needed to see that."""

from __future__ import annotations

import fnmatch
import re
import shlex
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.image import needed_stages
from deploy.sources import PACKAGES
from velox import __version__
from velox.settings import load
from velox.settings.model import VARIABLES

ROOT = Path(__file__).parents[3]
LOCKS = ("requirements.lock", "requirements-core.lock", "requirements-dev.lock")
VARIABLE_NAMES = {variable.name for variable in VARIABLES}


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's (instruction, rest) with continued lines joined and comments removed."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def test_image_copies_only_files_that_exist_and_are_not_ignored() -> None:
    """A COPY of something absent would fail the build; .dockerignore lets in just what is copied."""
    sources = [
        source
        for word, rest in instructions()
        if word == "COPY" and "--from=" not in rest
        for source in shlex.split(rest)[:-1]
    ]

    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sources
    assert set(sources) == set(allowed)
    assert all((ROOT / source).exists() for source in sources)


def test_image_runs_as_a_number_under_tini_with_a_health_check() -> None:
    """Non-root, a process 1 that reaps, and a health check that asks the admin listener."""
    found = dict(instructions())

    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", found["USER"])
    assert found["ENTRYPOINT"].startswith('["tini", "--"')
    assert found["CMD"] == '["serve"]'
    assert found["HEALTHCHECK"].endswith(' CMD ["velox", "health"]')
    assert [word for word, _ in instructions()].index("USER") < [word for word, _ in instructions()].index("ENTRYPOINT")


def test_image_is_compiled_and_says_what_it_is() -> None:
    """Its labels have the version of Velox; each stage stands on the one base, which can be another."""
    arguments = dict(rest.split("=", 1) for word, rest in instructions() if word == "ARG")
    (labels,) = [rest for word, rest in instructions() if word == "LABEL"]
    bases = [rest.split()[0] for word, rest in instructions() if word == "FROM"]

    assert (arguments["BUILD"], arguments["VERSION"]) == ("compiled", __version__)
    names = {word.partition("=")[0].removeprefix("org.opencontainers.image.") for word in shlex.split(labels)}
    assert names == {"title", "description", "licenses", "version", "revision", "created"}
    assert set(bases) == {"${BASE}", "${BUILD}"}


@pytest.mark.parametrize(("build", "other"), [("plain", "compiled"), ("compiled", "plain")])
def test_stage_that_is_not_needed_is_left_out(build: str, other: str) -> None:
    """A builder that runs each stage would compile for an image that has nothing compiled."""
    text = needed_stages((ROOT / "Dockerfile").read_text(), build)

    assert f"AS {build}\n" in text and f"AS {other}\n" not in text
    assert "AS wheel\n" in text and "AS build\n" in text and text.endswith('CMD ["serve"]\n')


def test_health_checks_are_valid_python() -> None:
    """The one-liners of the pods and of compose compile."""
    text = "".join((ROOT / "deploy" / name).read_text() for name in ("sidecar.pod.yaml", "sidecar-unix.pod.yaml"))
    programs = re.findall(r'-c"?, "(import http\.client[^"]*)"', text)
    compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
    programs.append(compose["services"]["simulator"]["healthcheck"]["test"][-1])

    assert len(programs) == 3
    for program in programs:
        compile(program, "healthcheck", "exec")


def test_image_settings_start_with_keys_and_not_without() -> None:
    """The image listens beyond loopback, so keys or VELOX_AUTH=none must be given with it."""
    settings = dict(
        word.split("=", 1) for rest in dict(instructions())["ENV"].split() if (word := rest).startswith("VELOX_")
    )

    assert settings
    with pytest.raises(Exception, match="VELOX_API_KEYS"):
        load(settings)
    assert load({**settings, "VELOX_API_KEYS": "vk-image-0001"}).listen[0].port == 8080


@pytest.mark.parametrize("name", ["compose.yaml", "sidecar.compose.yaml"])
def test_compose_file_sets_only_known_variables_and_leaves_time_to_drain(name: str) -> None:
    """What a compose file sets is accepted by the settings, on top of the image's."""
    services = yaml.safe_load((ROOT / "deploy" / name).read_text())["services"]
    (service,) = [service for service in services.values() if "VELOX" in str(service.get("environment"))]
    environ = {"VELOX_LISTEN": "0.0.0.0:8080", **service["environment"]}
    environ = {name: re.sub(r"\$\{.*\}", "k", text) for name, text in environ.items()}

    settings = load(environ)

    assert int(service["stop_grace_period"].removesuffix("s")) > settings.drain_timeout_s
    assert (ROOT / "deploy" / service["build"] / "Dockerfile").exists()


@pytest.mark.parametrize("name", ["sidecar.pod.yaml", "sidecar-unix.pod.yaml"])
def test_pod_sets_only_known_variables_and_leaves_time_to_drain(name: str) -> None:
    """The sidecar of the pod starts with what it is given, on loopback or a unix socket, and without a client key."""
    pod = yaml.safe_load((ROOT / "deploy" / name).read_text())["spec"]
    (velox,) = pod["initContainers"]
    settings = load({variable["name"]: variable.get("value", "k") for variable in velox["env"]})

    assert settings.listen[0].is_loopback
    assert pod["terminationGracePeriodSeconds"] > settings.drain_timeout_s
    assert pod["enableServiceLinks"] is False
    assert velox["securityContext"]["runAsNonRoot"] is True
    if settings.listen[0].kind == "unix":
        folders = {mount["mountPath"] for each in (velox, *pod["containers"]) for mount in each["volumeMounts"]}
        assert folders == {str(Path(settings.listen[0].path).parent)}, "both containers see the socket"
        assert settings.listen_mode == 0o660 and pod["securityContext"]["fsGroup"], "the application is in its group"


def test_service_starts_with_what_it_sets_and_leaves_time_to_drain(tmp_path: Path) -> None:
    """Its folders are those of the settings that it names; a worker that is killed does not end the others."""
    lines = (ROOT / "deploy/velox.service").read_text().splitlines()
    given = [line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")]
    unit = {name: value for name, value in given if name != "Environment"}
    variables = dict(value.split("=", 1) for name, value in given if name == "Environment")
    (setting,) = (name for name, value in variables.items() if value == "/etc/velox/velox.yaml")
    assert variables == {"VELOX_CONFIG": "/etc/velox/velox.yaml"}
    file = tmp_path / "velox.yaml"
    file.write_text("ledger: /var/lib/velox\nlisten: unix:/run/velox/velox.sock\n")
    settings = load({setting: str(file)})

    assert int(unit["TimeoutStopSec"]) > settings.drain_timeout_s
    assert settings.ledger == f"/var/lib/{unit['StateDirectory']}"
    assert str(Path(settings.listen[0].path).parent) == f"/run/{unit['RuntimeDirectory']}"
    assert unit["ExecStart"].split()[1:] == ["serve"] and unit["ExecReload"].split()[1:] == ["reload"]
    assert (unit["OOMPolicy"], unit["KillMode"]) == ("continue", "mixed")


@pytest.mark.parametrize("name", LOCKS)
def test_lock_pins_every_requirement_with_hashes_and_names_no_index(name: str) -> None:
    """Exact versions, sha256 for each, and nothing of the machine that wrote it."""
    text = (ROOT / name).read_text()
    pins = locked(name)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"]]
    if name != "requirements-core.lock":
        wanted += chain(*project["project"]["optional-dependencies"].values())
    if name == "requirements-dev.lock":
        wanted += project["dependency-groups"]["dev"] + project["build-system"]["requires"]

    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement
    # What pyproject.toml does not name any more has left the lock, too.
    named = {canonicalize_name(Requirement(each).name) for each in wanted}
    assert asked_for_by_the_project(text) <= named, "`make lock`"
    for entry in re.split(r"\n(?=[a-z])", text.strip()):
        assert "--hash=sha256:" in entry, entry
    assert not re.search(r"://|--index|--find-links|--trusted|\s@\s|(?<![\w-])/", text)


def asked_for_by_the_project(text: str) -> set[str]:
    """Return the packages of a lock that are there because pyproject.toml names them, as its comments say."""
    entries = re.split(r"\n(?=[a-z])", text.strip())
    return {entry.partition("==")[0] for entry in entries if "velox-gateway (pyproject.toml" in entry}


def test_project_is_named_where_a_lock_has_what_it_asks_for() -> None:
    text = "a==1 \\\n    --hash=x\n    # via velox-gateway (pyproject.toml)\nb==2 \\\n    --hash=y\n    # via a\n"

    assert asked_for_by_the_project(text) == {"a"}
    assert asked_for_by_the_project((ROOT / "requirements-core.lock").read_text()) >= {"uvloop", "orjson"}


def test_locks_agree() -> None:
    """The tests run the very versions that are shipped, and a gateway without extras has them, too."""
    shipped, development = locked("requirements.lock"), locked("requirements-dev.lock")

    assert all(development[name] == version for name, version in shipped.items())
    assert locked("requirements-core.lock").items() < shipped.items()


@pytest.mark.parametrize("path", [".ci/run", "deploy/make-venv.sh", "deploy/lock.sh", "tests/install-tools.sh"])
def test_script_is_executable_and_stops_at_an_unset_variable(path: str) -> None:
    """A script that runs on in a wrong state does harm somewhere else."""
    file = ROOT / path

    assert file.stat().st_mode & 0o111
    assert fnmatch.filter(file.read_text().splitlines(), "set -*uo pipefail")


def test_makefile_names_files_that_exist() -> None:
    """Each script that a target calls is there."""
    called = re.findall(r"(?<![\w/])(?:deploy|tests)/[\w./-]*\w", (ROOT / "Makefile").read_text())

    assert called
    assert all((ROOT / path).exists() for path in called)


def locked(name: str) -> dict[str, str]:
    """Return package -> version of a lock file."""
    return dict(re.findall(r"^([a-z0-9][a-z0-9-]*)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))


def test_packages_are_the_same_wherever_they_are_installed() -> None:
    """A package that is left out of the image, or of the compiled wheel, would be missed by a command only."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    names = [path.parent.name for path in sorted(ROOT.glob("velox*/__init__.py"))]

    assert names == ["velox", "velox_migrate", "velox_sim"]
    patterns = project["setuptools"]["packages"]["find"]["include"]
    assert [name for name in names if any(fnmatch.fnmatch(name, each) for each in patterns)] == names
    assert project["importlinter"]["root_packages"] == names
    assert set(names) <= set(project["mypy"]["packages"])
    copied = [rest for word, rest in instructions() if word == "COPY"]
    # Into the stage that makes the plain wheel, and into the one that makes the compiled.
    assert [copied.count(f"{name} {name}") for name in names] == [2, 2, 2]
    assert names == list(PACKAGES)


def test_package_has_its_licence_wherever_it_is_built() -> None:
    """U3: the wheel, the compiled wheel and the image are built with the files that pyproject.toml names."""
    files = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license-files"]

    assert "Apache License" in (ROOT / "LICENSE").read_text()
    copied = {name for word, rest in instructions() if word == "COPY" for name in shlex.split(rest)[:-1]}
    assert files and all((ROOT / name).is_file() for name in files) and set(files) <= copied
    assert all(f'"{name}"' in (ROOT / "deploy/sources.py").read_text() for name in files)
