"""`velox init`: the file that it writes, from answers and from flags, and what it never does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from velox.cli import main
from velox.runtime.commands.init import make_file, read_answers, run_init, sample
from velox.settings import load

_ENVIRON = {"OPENAI_API_KEY": "sk-1", "ANTHROPIC_API_KEY": "sk-2", "GEMINI_API_KEY": "sk-3"}


def _load(path: Path) -> object:
    return load({**_ENVIRON, "VELOX_CONFIG": str(path)})


def test_sample_that_comes_with_velox_is_valid(tmp_path: Path) -> None:
    """U16: as it is, and with everything in it switched on."""
    file = tmp_path / "velox.yaml"
    file.write_text(sample())
    settings = load({**_ENVIRON, "VELOX_CONFIG": str(file)})
    assert [entry.name for entry in settings.upstreams] == ["openai"] and not settings.api_keys

    file.write_text(re.sub(r"(?m)^#(?! )|^#(?=  - )", "", sample()))
    settings = load({**_ENVIRON, "VELOX_CONFIG": str(file)})
    assert [entry.name for entry in settings.upstreams] == ["openai", "anthropic", "local"]
    assert [route.name for route in settings.routes] == ["claude", "own", "rest"]
    assert settings.ledger and settings.budgets and settings.api_keys
    assert any(rule.rates.rpm == 600 for rule in settings.limit_rules)


def test_answers_stand_in_the_file(tmp_path: Path) -> None:
    """U16: three questions; a gateway that others reach has a key, which is printed once and kept as its digest."""
    asked: list[str] = []
    told = iter(["openai, anthropic, http://10.0.0.5:8000", "0.0.0.0:9000", "/var/lib/velox"])

    def ask(question: str) -> str:
        asked.append(question)
        return next(told)

    file = tmp_path / "velox.yaml"
    code, lines = run_init(str(file), {}, ask)
    settings = load({**_ENVIRON, "VELOX_CONFIG": str(file)})

    assert (code, len(asked)) == (0, 3)
    assert [entry.name for entry in settings.upstreams] == ["openai", "anthropic", "local"]
    assert [route.name for route in settings.routes] == ["anthropic", "local", "rest"]
    assert str(settings.listen[0]) == "0.0.0.0:9000" and settings.ledger == "/var/lib/velox"
    (key,) = re.findall(r"vk-\S+", "\n".join(lines))
    assert key not in file.read_text() and len(settings.api_keys) == 1
    assert "put the provider's key into the environment: export ANTHROPIC_API_KEY=..." in lines


def test_empty_answers_are_the_usual_ones(tmp_path: Path) -> None:
    """Return three times: OpenAI, this machine only, no records."""
    file = tmp_path / "velox.yaml"
    assert run_init(str(file), {}, lambda _: "")[0] == 0
    # What is off of upstreams and routes is left out: the answers are there in its place.
    kept = [line for line in sample().splitlines() if not re.match(r"#  - \{(provider|name: (local|claude|own))", line)]
    assert file.read_text().splitlines() == kept
    _load(file)


def test_flags_ask_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """U16: for scripts; what no flag says is as usual."""
    file = tmp_path / "my velox.yaml"
    assert main(["init", str(file), "--provider", "gemini", "--ledger", str(tmp_path)], {}) == 0

    out, err = capsys.readouterr()
    assert out.endswith(f"then: velox check --config '{file}'\n      velox serve --config '{file}'\n") and not err
    assert main(["check", "--config", str(file)], _ENVIRON) == 0


def test_file_that_is_there_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """U16: whatever it is, a dangling link, too."""
    file, link = tmp_path / "velox.yaml", tmp_path / "link.yaml"
    file.write_text("mine")
    link.symlink_to(tmp_path / "nowhere")
    for path in (file, link):
        assert main(["init", str(path)], {}) == 1
        assert f"{path} is there already and stays as it is" in capsys.readouterr().err
    assert file.read_text() == "mine" and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"provider": "openay"}, "--provider is 'openay': expected http(s)://HOST:PORT, or anthropic, "),
        ({"provider": "azure"}, "it needs more than a key, so write it by hand (docs/providers.md)"),
        ({"provider": "openai,openai"}, "--provider has openai twice"),
        ({"provider": "http://"}, "--provider is 'http://'"),
        ({"listen": "somewhere"}, "--listen is 'somewhere': expected IP:PORT"),
    ],
)
def test_answer_that_can_not_be_used_writes_nothing(given: dict[str, str], told: str, tmp_path: Path) -> None:
    """It says which one, and what may be there."""
    code, (line,) = run_init(str(tmp_path / "velox.yaml"), given, None)

    assert code == 2 and told in line
    assert not list(tmp_path.iterdir())


def test_every_provider_that_is_offered_makes_a_file(tmp_path: Path) -> None:
    """Each alone, and all together."""
    line = run_init(str(tmp_path / "x"), {"provider": "?"}, None)[1][0]
    names = line.partition("HOST:PORT, or ")[2].split(", ")
    assert len(names) > 10
    for n, provider in enumerate([*names, ",".join(names)]):
        file = tmp_path / f"{n}.yaml"
        answers = read_answers({"provider": provider}, None)
        file.write_text(make_file(answers).text)
        load({**dict.fromkeys(answers.variables, "sk-1"), "VELOX_CONFIG": str(file)})
