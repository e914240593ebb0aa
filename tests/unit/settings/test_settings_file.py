"""The YAML file: what a field may be, and that every problem says where it stands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from velox.settings import Settings, SettingsError, load


def load_file(tmp_path: Path, content: str) -> Settings:
    """Load settings from a file that holds `content`."""
    file = tmp_path / "velox.yaml"
    file.write_text(content)
    return load({"VELOX_CONFIG": str(file)}, cores=2)


def problems(tmp_path: Path, content: str) -> list[str]:
    """Return the problems of such a file, the path cut down to its name."""
    with pytest.raises(SettingsError) as raised:
        load_file(tmp_path, content)
    return [str(problem).replace(f"{tmp_path}/", "") for problem in raised.value.problems]


def test_field_reads_as_its_variable_does(tmp_path: Path) -> None:
    """A value means the same in the file and in the environment, whatever YAML would make of it."""
    settings = load_file(
        tmp_path,
        "rate_limit_rpm: 600\npin_cpus: off\nupstream_http2: off\nqueue_timeout: 2s\nmax_body: 1MiB\n"
        "listen: 127.0.0.1:8081\nopenai_api_key: k\n",
    )

    assert (settings.rate_limit_rpm, settings.pin_cpus, settings.upstream_http2) == (600, False, "off")
    assert (settings.queue_timeout_s, settings.max_body_bytes, settings.listen[0].port) == (2.0, 1 << 20, 8081)
    assert settings.openai_api_key is not None
    assert settings.origins["VELOX_PIN_CPUS"] == "file"


def test_list_is_taken_where_a_variable_holds_several(tmp_path: Path) -> None:
    """paths and api_keys may be lists; no other field may."""
    assert load_file(tmp_path, "paths:\n  - /v1\n  - /v2\n").paths == ("/v1", "/v2")
    assert len(load_file(tmp_path, "api_keys: [a, b]\n").api_keys) == 2
    assert problems(tmp_path, "\nworkers: [1]\n") == ["velox.yaml:2: workers: expected one value, not a list"]


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "{}\n"])
def test_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    """One that was emptied must not mean that requests go to the default upstream."""
    (problem,) = problems(tmp_path, text)
    assert problem.endswith(": expected at least one field in the file, it is empty")


@pytest.mark.parametrize(
    ("text", "is_good"),
    [
        ("workers: 1\nend: true\n", True),
        ("workers: 1\nend: true", True),
        ("workers: 1\nend: tru", False),
        ("workers: 1\nend:\n", False),
        ("workers: 1\nend: [true]\n", False),
        ("end: true\nworkers: 1\n", False),
    ],
)
def test_end_mark_is_the_last_field(tmp_path: Path, text: str, is_good: bool) -> None:
    """And known from then on."""
    if is_good:
        found = load_file(tmp_path, text)
        assert (found.file_end.has_mark, found.file_end.is_line) == (True, text.endswith("\n"))
    else:
        assert problems(tmp_path, text)[0].endswith("end: expected `end: true`, as the last field of the file")


def test_empty_field_sets_nothing(tmp_path: Path) -> None:
    """It is as if it were not there."""
    assert load_file(tmp_path, "workers:\nqueue_batch: ~\n").queue_batch == 64


@pytest.mark.parametrize("item", ["null", "~", "", '""', "a\n  - null"])
def test_list_with_an_empty_item_is_refused(tmp_path: Path, item: str) -> None:
    """What a template writes for a variable that is not set is no key, and no list without keys either."""
    (found,) = problems(tmp_path, f"api_keys:\n  - {item}\n")
    line = 2 + item.count("\n")
    assert found == f"velox.yaml:{line}: api_keys: expected a value for each item of the list, and one is empty"


def test_merged_fields_are_told_of(tmp_path: Path) -> None:
    """YAML's merge is for tools that build values of it; here each field has its line."""
    text = "upstreams:\n  - &a {name: a, origin: http://a}\n  - {<<: *a, name: b, origin: http://b}\n"
    assert problems(tmp_path, text) == [
        "velox.yaml:3: a field: expected each field written out: `*name` may stand for a whole value, but nothing is"
        " merged (`<<`)"
    ]


def test_every_problem_names_line_field_and_what_was_expected(tmp_path: Path) -> None:
    """Unknown, wrong, twice: all told, each with its line."""
    found = problems(tmp_path, "workers: 0\nworkerz: 1\nqueue_batch: 1\nqueue_batch: 2\nmax_body: {a: 1}\n")

    assert found == [
        "velox.yaml:4: queue_batch: expected once, but it stands at velox.yaml:3 too",
        "velox.yaml:2: workerz: there is no such field; did you mean workers?",
        "velox.yaml:5: max_body: expected one value, or a list of values without commas",
        "velox.yaml:1: workers is '0': expected a whole number from 1 to 512",
    ]


def test_secret_in_the_file_is_not_shown(tmp_path: Path) -> None:
    """Not for a bad key, and not when the file is no YAML."""
    bad_key = problems(tmp_path, 'openai_api_key: "sk-secret\\n"\n')
    no_yaml = problems(tmp_path, "openai_api_key: [sk-secret\n\t}\n")

    assert "sk-secret" not in str(bad_key + no_yaml)
    assert no_yaml[0].startswith("velox.yaml:2:1: the file: expected spaces before a field, not a tab")


@pytest.mark.parametrize(
    "content",
    [
        "- a\n- b\n",
        "just text\n",
        "? [a]\n: b\n",
        "a: &x [b]\na2: *y\n",
        "workers: 1\n---\nworkers: 2\n",
        "\x00",
        pytest.param("[" * 100_000, marks=pytest.mark.slow),
        "config: other.yaml\n",
        "VELOX_WORKERS: 1\n",
        "!!python/object/apply:os.system [x]: y\n",
    ],
    ids=range(10),
)
def test_file_of_another_shape_is_refused(tmp_path: Path, content: str) -> None:
    """Anything but known fields is a problem, never a crash, and no tag is ever constructed."""
    assert problems(tmp_path, content)


def test_file_that_is_not_there_or_too_long_is_a_problem(tmp_path: Path) -> None:
    """The variable is named: the file has no line to name."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # whoever reads it waits for somebody who writes
    for path in (tmp_path / "absent", tmp_path, pipe):
        with pytest.raises(SettingsError, match="VELOX_CONFIG"):
            load({"VELOX_CONFIG": str(path)}, cores=2)
    assert "at most" in problems(tmp_path, "#" * (2**20 + 1))[0]
