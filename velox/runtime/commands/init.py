"""`velox init`: a file to begin with, made of the sample that comes with Velox and of three answers.

Knows: the questions, what an answer may be, and which lines of the sample it replaces. Does not know: how a setting is
read (settings/), and never writes over a file.
"""

from __future__ import annotations

import importlib.resources
import json
import os
import secrets
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from velox.providers.rows import PROVIDERS
from velox.providers.target import missing
from velox.settings import parse
from velox.settings.callers.keys import parse_key

__all__ = ["Answers", "InitError", "Made", "make_file", "read_answers", "run_init", "sample"]

_QUESTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "provider": (
        "Which providers answer, commas between them? A server of your own by its http(s)://HOST:PORT",
        "openai",
    ),
    "listen": ("Where do clients connect? 0.0.0.0:8080: from other machines too, with a key", "127.0.0.1:8080"),
    "ledger": ("Which folder records what calls take and cost? no: none", "no"),
}
_NONE: Final = "no"
_OFF_ITEM: Final = "#  - "  # of a list, that is off


class InitError(ValueError):
    """An answer can't be used."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What was answered.

    upstreams: name, line of the file, patterns of its own models. variables: that must hold keys. ledger: "": none.
    is_open: other machines can connect.
    """

    upstreams: tuple[tuple[str, str, tuple[str, ...]], ...]
    variables: tuple[str, ...]
    listen: str
    ledger: str
    is_open: bool


@dataclass(frozen=True, slots=True)
class Made:
    """What was made. key: of a client, "" if none needs one. It is in the file by its digest only."""

    text: str
    key: str


def read_answers(given: Mapping[str, str | None], ask: Callable[[str], str] | None) -> Answers:
    """Return the answers. given: those of the command line. ask: puts a question; None: nobody is there to answer.

    Raises InitError.
    """
    told = {}
    for name, (question, usual) in _QUESTIONS.items():
        text = given.get(name)
        if text is None and ask is not None:
            text = ask(f"{question} [{usual}]: ")
        told[name] = (text or "").strip() or usual
    try:
        addresses = parse.addresses(told["listen"])
    except ValueError as exc:
        raise InitError(f"--listen is {told['listen']!r}: {exc}") from None
    upstreams, variables = _upstreams([each.strip() for each in told["provider"].split(",") if each.strip()])
    ledger = "" if told["ledger"].lower() in (_NONE, "none", "off") else told["ledger"]
    is_open = not all(each.is_loopback for each in addresses)
    return Answers(upstreams, variables, told["listen"], ledger, is_open)


def make_file(answers: Answers, new_key: Callable[[], str] = lambda: f"vk-{secrets.token_urlsafe(32)}") -> Made:
    """Return the sample with what was answered in place of its own values."""
    key = new_key() if answers.is_open else ""
    blocks = [_answered(block, answers, key) for block in sample().split("\n\n")]
    return Made("\n\n".join(blocks), key)


def sample() -> str:
    """Return the file that comes with Velox."""
    return (importlib.resources.files("velox.settings") / "sample.yaml").read_text("utf-8")


def _write_new(path: str, text: str) -> None:
    """Write a file that is not there yet. Raises OSError: FileExistsError if it is."""
    with Path(path).open("x", encoding="utf-8") as file:
        file.write(text)


def _upstreams(names: list[str]) -> tuple[tuple[tuple[str, str, tuple[str, ...]], ...], tuple[str, ...]]:
    """Return name, line and models of each upstream, and the variables that must hold keys."""
    found: list[tuple[str, str, tuple[str, ...]]] = []
    variables = []
    for name in names:
        if "://" in name:
            try:
                parse.origin(name)
            except ValueError as exc:
                raise InitError(f"--provider is {name!r}: {exc}") from None
            own = "local" if all(each[0] != "local" for each in found) else f"local{len(found) + 1}"
            found.append((own, f"{{name: {own}, origin: {json.dumps(name)}}}", ()))
            continue
        row = PROVIDERS.get(name)
        usable = [each.name for each in PROVIDERS.values() if each.key_variables and _is_whole(each.name)]
        if row is None or name not in usable:
            more = "" if row is None else "it needs more than a key, so write it by hand (docs/providers.md); "
            names_of = ", ".join(sorted(usable))
            raise InitError(f"--provider is {name!r}: {more}expected http(s)://HOST:PORT, or {names_of}")
        if any(each[0] == name for each in found):
            raise InitError(f"--provider has {name} twice")
        variables.append(row.key_variables[0])
        found.append((name, f"{{provider: {name}, keys: [env:{row.key_variables[0]}]}}", row.own_models))
    return tuple(found), tuple(variables)


def _is_whole(name: str) -> bool:
    """Say whether nothing but a key is needed to ask a provider."""
    row = PROVIDERS[name]
    return bool(row.origin) and not missing(row, (), has_origin=False)


def _answered(block: str, answers: Answers, key: str) -> str:
    """Return a block of the sample: a comment and what it is about, with what was answered."""
    all_lines = block.splitlines()
    comment = [line for line in all_lines if line.startswith("# ") and not line.startswith(_OFF_ITEM)]
    first = next((line for line in all_lines if line not in comment), "").lstrip("#")
    match first.partition(":")[0]:
        case "listen":
            lines = [f'listen: "{answers.listen}"' if "[" in answers.listen else f"listen: {answers.listen}"]
        case "upstreams":
            lines = ["upstreams:", *(f"  - {line}" for _, line, _ in answers.upstreams)]
        case "routes":
            lines = ["routes:", *_routes(answers)]
        case "api_keys" if key:
            digest = parse_key(key).digest.hex()
            lines = ["api_keys:", f'  - {{name: first, key: "sha256:{digest}"}}']
        case "ledger" if answers.ledger:
            lines = [f"ledger: {json.dumps(answers.ledger)}"]
        case _:
            return block
    return "\n".join([*comment, *lines])


def _routes(answers: Answers) -> list[str]:
    """Return a route for names with the upstream's in front and for its own models, and one for all others."""
    (first, _, _), *others = answers.upstreams
    lines = []
    for name, _, models in others:
        patterns = ", ".join(f'"{each}"' for each in (f"{name}/*", *models))
        lines.append(
            f"  - {{name: {name}, match: {{models: [{patterns}]}}, to: [{{upstream: {name}, strip: {name}/}}]}}"
        )
    return [*lines, f"  - {{name: rest, to: [{first}]}}"]


def run_init(path: str, given: Mapping[str, str | None], ask: Callable[[str], str] | None) -> tuple[int, list[str]]:
    """Write a file; return the exit code and what is printed. 1: nothing could be written; 2: an answer is wrong."""
    if os.path.lexists(path):
        return 1, [f"velox init: {path} is there already and stays as it is; name another file: velox init FILE"]
    try:
        answers = read_answers(given, ask)
    except InitError as exc:
        return 2, [f"velox init: {exc}"]
    made = make_file(answers)
    try:
        _write_new(path, made.text)
    except OSError as exc:
        return 1, [f"velox init: {path} could not be written: {exc.strerror}"]
    lines = [f"{path} is written"]
    if made.key:
        lines.append(f"the key of the first client, shown this once: {made.key}")
    lines += [f"put the provider's key into the environment: export {name}=..." for name in answers.variables]
    config = shlex.quote(path)
    return 0, [*lines, f"then: velox check --config {config}", f"      velox serve --config {config}"]
