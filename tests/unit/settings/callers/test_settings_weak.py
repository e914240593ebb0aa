"""Secrets that anybody would try first: refused where other machines can try, told of elsewhere."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tests.markdown import ROOT, blocks
from velox.settings import SettingsError, load
from velox.settings.callers.weak import is_weak

OPEN = "0.0.0.0:8080"
# A secret of the gateway's own in an example: an entry of a file, a variable, an argument of a client.
SHOWN = re.compile(
    r"""(?:^[ ]*(?:- )?key: |[{,] ?key: |VELOX_(?:API_KEYS|ADMIN_(?:VIEWER_)?TOKEN)=|api_key=(?=["']))"""
    r"""["']?([^"',}\s]+)""",
    re.M,
)


@pytest.mark.parametrize(
    "text",
    [
        *("a", "hunter2", "change-me", "changeme", "CHANGE_ME", "change-me-2", "replace-me", "sk-1234", "password123"),
        *(
            "your-api-key",
            "my-secret-key",
            "sk-your-key-here",
            "12345678",
            "aaaaaaaaaaaaaaaa",
            "secret-key",
            "admin123",
        ),
    ],
)
def test_secret_of_examples_and_lists_is_weak(text: str) -> None:
    """U10: whoever finds the port tries these."""
    assert is_weak(text)


@pytest.mark.parametrize(
    "text",
    ["vk-gC5ZjJZxDvKbcKzp2g6cLHgyxnv5", "correct horse battery", "sk-proj-0a9f8e7d6c", "team-a-9f8e7d6c", "tk8#kd02"],
)
def test_other_secrets_are_not(text: str) -> None:
    assert not is_weak(text)


@pytest.mark.parametrize("key", ["hunter2", "change-me", "vk-gC5ZjJZxDvKb,change-me"])
def test_weak_key_is_refused_where_others_can_connect(key: str) -> None:
    """U10: without showing it; a digest says nothing of its key."""
    with pytest.raises(SettingsError) as refused:
        load({"VELOX_LISTEN": OPEN, "VELOX_API_KEYS": key}, cores=2)
    (problem,) = map(str, refused.value.problems)
    assert problem.startswith("VELOX_API_KEYS: expected keys of at least 8 characters that stand in no example")
    assert "hunter2" not in problem and "change-me" not in problem
    digest = hashlib.sha256(b"change-me").hexdigest()
    assert load({"VELOX_LISTEN": OPEN, "VELOX_API_KEYS": f"sha256:{digest}"}, cores=2).api_keys


def test_weak_key_of_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    """U10: the first of them, and how many more there are."""
    file = tmp_path / "velox.yaml"
    file.write_text(
        f"listen: {OPEN}\napi_keys:\n  - {{name: a, key: change-me-1}}\n  - {{name: b, key: change-me-2}}\n"
    )
    with pytest.raises(SettingsError) as refused:
        load({"VELOX_CONFIG": str(file)}, cores=2)
    (problem,) = map(str, refused.value.problems)
    assert problem.startswith(f"{file}:3: a key: expected keys of at least 8") and "This one, and 1 more," in problem


def test_weak_key_is_taken_on_loopback() -> None:
    """U10: there it guards against mistakes, not against those who try."""
    assert load({"VELOX_API_KEYS": "change-me"}, cores=2).api_keys


def test_weak_token_is_refused_where_others_can_connect() -> None:
    """U10: it opens what is above all keys."""
    for name in ("VELOX_ADMIN_TOKEN", "VELOX_ADMIN_VIEWER_TOKEN"):
        environ = {"VELOX_ADMIN_LISTEN": "0.0.0.0:6060", "VELOX_ADMIN_TOKEN": "t" + "oken-0a9f8e7d", name: "a"}
        with pytest.raises(SettingsError) as refused:
            load(environ, cores=2)
        assert any(
            str(each).startswith(f"{name} is set: expected at least 8 characters") for each in refused.value.problems
        )
    load({"VELOX_ADMIN_TOKEN": "a"}, cores=2)


def test_no_page_shows_a_secret_that_is_refused() -> None:
    """U10: who takes an example as it stands has a gateway that starts; another one names a variable, or a digest."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = [(page.name, text) for page in pages for kind in ("yaml", "sh", "python") for text in blocks(page, kind)]
    shown = [(name, secret) for name, text in texts if "model_list:" not in text for secret in SHOWN.findall(text)]
    no_key = "none"  # of an upstream
    assert [each for each in shown if is_weak(each[1]) and each[1] != no_key] == []
    assert {"limits.md", "routes.md", "keys.md"} <= {name for name, _ in shown}
