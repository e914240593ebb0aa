"""The members that a configuration names, as the supervisor enrolls them and each worker looks for them."""

from __future__ import annotations

import io
import logging
from pathlib import Path

from velox.policy.health.keys import Changes
from velox.runtime.upstreams.members import keys_of, labels_of, prefix_groups, upstreams_of
from velox.settings import Settings, load

FILE = """upstreams:
  - {name: openai, origin: [https://api.openai.com, "http://[::1]:8080/v2"], weight: 3}
  - {name: local, origin: unix:/run/model.sock}
routes:
  - {name: chat, match: {models: [gpt-*]}, to: [openai, local], balance: prefix}
  - {name: rest, to: local}
"""


def of_file(tmp_path: Path) -> Settings:
    file = tmp_path / "velox.yaml"
    file.write_text(FILE)
    return load({"VELOX_CONFIG": str(file), "VELOX_AUTH": "none"}, cores=2)


def test_members_are_the_origins_of_each_upstream(tmp_path: Path) -> None:
    """By the upstream's name and the origin as it is shown."""
    settings = of_file(tmp_path)

    assert labels_of(upstreams_of(settings, None)) == [
        ("openai", "https://api.openai.com"),
        ("openai", "http://[::1]:8080/v2"),
        ("local", "unix:/run/model.sock"),
    ]
    assert prefix_groups(settings) == ["chat"]


def test_variables_make_an_upstream_of_each_origin() -> None:
    """Without a file there are names, too: metrics have the same labels."""
    settings = load({"VELOX_UPSTREAM_ORIGIN": "http://a, http://b", "VELOX_AUTH": "none"}, cores=2)

    assert labels_of(upstreams_of(settings, None)) == [("default", "http://a"), ("default-2", "http://b")]
    assert prefix_groups(settings) == []


def test_key_that_its_upstream_refuses_is_told_by_its_reference() -> None:
    """Once, and once more when it is taken again; never the key itself."""
    (entry,) = upstreams_of(load({"OPENAI_API_KEY": "sk-secret", "VELOX_AUTH": "none"}, cores=2), None)
    logger, log = logging.Logger("test"), io.StringIO()
    logger.addHandler(logging.StreamHandler(log))
    keys = keys_of(entry, Changes(), logger)

    for now_s, status in ((0.0, 401), (1.0, 401), (400.0, 200), (401.0, 200)):
        keys.begin(0, now_s)
        keys.answered(0, status, [], now_s, now_s, 0.0)

    assert log.getvalue().splitlines() == [
        "the upstream default refuses its key env:OPENAI_API_KEY: requests get others, if it has any",
        "the upstream default takes its key env:OPENAI_API_KEY again",
    ]


def test_simulator_takes_the_place_of_the_first_upstream(tmp_path: Path) -> None:
    """Nothing else of it changes: its keys, weight and models are as configured."""
    settings = of_file(tmp_path)

    first, second = upstreams_of(settings, "http://127.0.0.1:4711")

    assert labels_of((first, second)) == [("openai", "http://127.0.0.1:4711"), ("local", "unix:/run/model.sock")]
    assert (first.weight, first.keys) == (3, settings.upstreams[0].keys)
    assert second is settings.upstreams[1]
