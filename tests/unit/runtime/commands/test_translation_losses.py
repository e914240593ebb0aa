"""`velox check --explain ROUTE DIALECT`: what a route leaves out of requests of a dialect, and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from velox.cli import main
from velox.runtime.commands.translation_losses import DIALECTS

FILE = """upstreams:
  - {provider: anthropic, key: none}
  - {provider: bedrock, region: eu-central-1}
  - {provider: gemini, key: none}
  - {provider: openai, key: none}
  - {provider: groq, key: none}
  - {name: plain, origin: http://h}
routes:
  - name: all
    match: {models: [any-model]}
    to: [{upstream: anthropic, model: claude-opus-4-7}, {upstream: openai, model: gpt-5.2}, plain]
    fallback: [{upstream: bedrock, model: amazon.nova-pro-v1:0}, {upstream: gemini, model: gemini-3-flash}, groq]
  - {name: strict, match: {models: [gemini/*]}, to: {upstream: gemini, strip: gemini/}, strict: true}
"""


def explained(folder: Path, capsys: pytest.CaptureFixture[str], route: str, dialect: str) -> list[str]:
    """Return what is printed."""
    file = folder / "velox.yaml"
    file.write_text(FILE)
    assert main(["check", "--explain", route, dialect], {"VELOX_CONFIG": str(file)}) == 0
    return capsys.readouterr().out.splitlines()


def test_losses_are_said_for_each_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the names of the client's dialect, with the name in x-velox-dropped where that is another one."""
    lines = explained(tmp_path, capsys, "all", "messages")

    assert lines[0] == "anthropic, model claude-opus-4-7: as sent: it has this API"
    assert lines[1] == "openai, model gpt-5.2: translated to responses"
    assert lines[2].startswith("  left out: temperature, top_p, top_k, ") and "mcp_servers" in lines[2]
    assert any(line.startswith("  refused: stop_sequences (") for line in lines[3:])
    assert "plain, model any-model: as sent: nothing is known of its APIs" in lines
    assert "bedrock, model amazon.nova-pro-v1:0: translated to converse" in lines
    assert "groq, model any-model: translated to chat" in lines


def test_losses_as_sent_are_said_of_other_services(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """K1: the dialect is the client's own, the service another."""
    (tmp_path / "velox.yaml").write_text(
        "upstreams: [{name: aws, provider: bedrock, region: eu-west-1}]\n"
        "routes: [{name: all, match: {models: [any]}, to: {upstream: aws, model: anthropic.claude-opus-4-8}}]\n"
    )
    assert main(["check", "--explain", "all", "messages"], {"VELOX_CONFIG": str(tmp_path / "velox.yaml")}) == 0
    lines = capsys.readouterr().out.splitlines()

    assert lines[0] == "aws, model anthropic.claude-opus-4-8: as sent: it has this API"
    assert lines[1].startswith("  left out: ") and "tools.allowed_callers (allowed_callers)" in lines[1]
    assert "speed" in lines[1] and "defer_loading" not in lines[1] and "message of the system" not in lines[1]
    assert any(line.startswith("  refused: thread (") for line in lines[2:])


def test_strict_route_refuses_what_would_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model is the pattern's, without what the target takes off."""
    lines = explained(tmp_path, capsys, "strict", "chat")

    assert lines[0] == "gemini, model any: translated to generate"
    assert lines[1].startswith("  left out, so refused here (strict): logit_bias, ")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_field_can_be_read_in_its_dialect(
    dialect: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A field that could not be would be told as refused everywhere; what tunes an answer never is."""
    lines = explained(tmp_path, capsys, "all", dialect)

    refused = [line for line in lines if line.startswith("  refused: ")]
    tuning = ("temperature", "top", "seed", "reasoning", "thinking", "tools", "tool_choice", "max", "user", "metadata")
    assert not [line for line in refused if line.removeprefix("  refused: ").startswith(tuning) and "log" not in line]
    assert len([line for line in lines if not line.startswith(" ")]) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("route", "dialect", "expected"),
    [
        ("al", "chat", "there is no such route; did you mean all?"),
        ("all", "klingon", "expected a dialect: chat, responses, messages, generate"),
    ],
)
def test_unknown_route_or_dialect_is_told(
    route: str, dialect: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what there is."""
    file = tmp_path / "velox.yaml"
    file.write_text(FILE)

    assert main(["check", "--explain", route, dialect], {"VELOX_CONFIG": str(file)}) == 2
    assert expected in capsys.readouterr().err
