"""What docs/upstreams.md and docs/routes.md show is read, or printed, as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.markdown import ROOT, blocks, commands
from velox.cli import main
from velox.policy.routes.entries import ANYTHING
from velox.settings import load
from velox.settings.routing import routes, upstreams

UPSTREAMS = ROOT / "docs/upstreams.md"
ROUTES = ROOT / "docs/routes.md"
WRONG_UPSTREAMS = """upstreams:
  - name: openai
    orign: https://api.openai.com
    keys: [sk-proj-0123456789]
  - name: azure
    origin: http://a
    keys: [env:AZURE_API_KEY]
    weight: 0
  - {name: openai, origin: http://b}
"""
WRONG_ROUTES = """upstreams:
  - {name: openai, origin: https://api.openai.com, models: [gpt-*]}
  - {name: azure, origin: http://a}
routes:
  - {name: chat, match: {models: [gpt-*]},
     to: [openai, azure],
     fallback: openai}
  # Models by name.
  - {name: reason, match: {models: [o1]}, to: openai}
  # Behind `chat`.
  - {name: mini, match: {models: [gpt-4o-mini]}, to: openai}
"""


def placed(folder: Path, content: str) -> dict[str, str]:
    """Return variables with this content as file, and the keys that the pages refer to."""
    second = folder / "second"
    second.write_text("k2")
    (folder / "velox.yaml").write_text(content.replace("/run/secrets/second", str(second)))
    return {"VELOX_CONFIG": str(folder / "velox.yaml"), "OPENAI_API_KEY": "k", "AZURE_API_KEY": "k"}


def printed(folder: Path, text: str) -> list[list[str]]:
    """Return the words of lines, with paths as the pages have them."""
    text = text.replace(str(folder / "second"), "/run/secrets/second").replace(f"{folder}/", "")
    return [line.split() for line in text.splitlines()]


def test_upstreams_are_accepted_and_printed_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Word by word; only the width of the columns follows the page."""
    example, _ = blocks(UPSTREAMS, "yaml")

    assert main(["check"], placed(tmp_path, example)) == 0

    out = capsys.readouterr().out
    lines = printed(tmp_path, out[out.index("upstream: ") : out.index("route: ")])
    assert lines == printed(tmp_path, blocks(UPSTREAMS, "text")[0])


def test_credentials_of_every_form_are_accepted_as_shown(tmp_path: Path) -> None:
    """Basic, a header of the upstream's own, the query, a header from a file."""
    _, example = blocks(UPSTREAMS, "yaml")
    (tmp_path / "proxy").write_text("p")
    environ = placed(tmp_path, example.replace("/run/secrets/proxy", str(tmp_path / "proxy")))
    environ |= {"LLM_LOGIN": "user:password-of-it", "TEAM_KEY": "k1", "FUNCTION_KEY": "k2"}

    basic, function = load(environ, cores=2).upstreams

    assert (basic.auth, function.auth) == ("basic", "x-api-key")
    assert function.query == (("code", "k2"),) and function.headers == ((b"proxy-token", b"p"),)


def test_complete_example_is_accepted_and_means_what_its_comments_say(tmp_path: Path) -> None:
    """Every field of a route is in it."""
    small, example, _ = blocks(ROUTES, "yaml")
    assert [str(each) for each in load(placed(tmp_path, small)).routes[0].fallback] == ["vllm (llama-3.3-70b)"]

    settings = load(placed(tmp_path, example), cores=2)

    assert [route.name for route in settings.routes] == ["acme", "chat", "fast", "sessions", "rest"]
    assert [target.model for target in settings.routes[1].to] == [None, "gpt-4o-eu"]
    assert settings.routes[2].to[0].model == "llama-3.1-8b"
    assert [str(target) for target in settings.routes[4].fallback][1] == "vllm (llama-3.3-70b) for context_length"
    assert all(f"{field}:" in example for field in routes.FIELDS)


def test_example_of_the_readme_is_accepted_and_means_what_it_says(tmp_path: Path) -> None:
    """Two routes; the first has two servers, and somebody else with another model behind them."""
    (example,) = [each for each in blocks(ROOT / "README.md", "yaml") if "routes:" in each]

    settings = load(placed(tmp_path, example) | {"SECOND_API_KEY": "k2"}, cores=2)

    llama, rest = settings.routes
    assert [len(upstream.origins) for upstream in settings.upstreams] == [1, 2]
    assert (llama.balance, str(llama.fallback[0]), rest.match) == ("prefix", "openai (gpt-4o-mini)", ANYTHING)


def test_command_explains_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the page's own example as the file."""
    _, example, _ = blocks(ROUTES, "yaml")
    environ = placed(tmp_path, example)
    (command,) = commands(ROUTES)
    program, *arguments = shlex.split(command)
    assert program.endswith("/velox")

    assert main([each.replace("velox.yaml", environ["VELOX_CONFIG"]) for each in arguments], environ) == 0

    assert printed(tmp_path, capsys.readouterr().out) == printed(tmp_path, blocks(ROUTES, "text")[0])


def told(folder: Path, capsys: pytest.CaptureFixture[str], content: str) -> list[str]:
    """Return what `velox check` finds wrong with a file."""
    environ = placed(folder, content)
    del environ["AZURE_API_KEY"]
    assert main(["check"], environ) == 2
    return [line.strip() for line in capsys.readouterr().err.replace(f"{folder}/", "").splitlines()[1:]]


def test_wrong_upstreams_are_told_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All at once, and the key that stands there is in none of them."""
    assert told(tmp_path, capsys, WRONG_UPSTREAMS) == blocks(UPSTREAMS, "text")[1].splitlines()


def test_wrong_routes_are_told_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names first; the others once all names are right."""
    found = told(tmp_path, capsys, WRONG_ROUTES.replace("[openai, azure]", "[openai, azur]"))
    found += told(tmp_path, capsys, WRONG_ROUTES)

    assert found == blocks(ROUTES, "text")[1].splitlines()


@pytest.mark.parametrize(("page", "fields"), [(UPSTREAMS, upstreams.FIELDS), (ROUTES, routes.FIELDS)], ids=["u", "r"])
def test_every_field_has_its_row(page: Path, fields: tuple[str, ...]) -> None:
    """And no row is for a field that there is not."""
    rows = re.findall(r"^\| (`[^|]*`) \|", page.read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    match = {"models", "paths", "headers", "keys", "tags"} if page == ROUTES else set()

    assert named - match == set(fields) - {"match"}
