"""Each pair of a client's dialect and an API of models, as whole texts that a reviewer reads.

With SNAPSHOTS=write in the environment, these tests write the texts anew: their difference in git is what a change does
to what goes up and what comes out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import asdict

from tests.unit.dialects.snapshot_stories import ANSWERS, ERRORS, REQUESTS, STREAMS, TARGETS, Target
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import ClientCall
from velox.gateway.translation.translators import GenerationTranslator
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind

FOLDER: Final = Path(__file__).with_name("snapshots")
TABLE: Final = dialect_table()
STOP: Final = ("stop", "stop_sequences", "stopSequences")
PAIRS: Final = [(client, target) for client in REQUESTS for target in TARGETS if client is not target.api]


def without_stop(value: Any) -> Any:
    """Return a request without its stop strings, which not every API takes."""
    if not isinstance(value, dict):
        return value
    return {key: without_stop(each) for key, each in value.items() if key not in STOP}


def translator_of(client: ApiKind, target: Target, *, stream: bool) -> tuple[GenerationTranslator, bytes]:
    """Return a translator, and the request that it has written: without stop strings where the API has none."""
    asked = dict(REQUESTS[client]) if target.api is not ApiKind.RESPONSES else without_stop(REQUESTS[client])
    if stream and client is not ApiKind.GENERATE:
        asked["stream"] = True
    if stream and client is ApiKind.CHAT:
        asked["stream_options"] = {"include_usage": True}
    dropped = DroppedFields()
    facts = partial(facts_of, PROVIDERS[target.provider])(target.model)
    reads = TABLE.clients[client](ClientCall("0a1b2c", 1_790_000_000, target.model, stream), dropped)
    made = GenerationTranslator(reads, TABLE.models[target.api](facts, dropped, target.provider), dropped)
    return made, made.request(json.dumps(asked).encode(), target.model)


def shown(text: bytes) -> str:
    """Return JSON with a line for each value, and a stream as it is, with a carriage return as `\\r`."""
    try:
        return json.dumps(json.loads(text), indent=1, ensure_ascii=False)
    except ValueError:
        return text.decode().replace("\r", "\\r").rstrip("\n")


def counted(made: GenerationTranslator) -> str:
    """Return the tokens of which the answer tells."""
    tokens = asdict(made.tokens)
    return " ".join(f"{name}={value}" for name, value in tokens.items() if value not in (None, "", False))


def story(client: ApiKind, target: Target) -> Iterator[tuple[str, str]]:
    """Yield the parts of one page: title and text."""
    made, body = translator_of(client, target, stream=False)
    yield f"{client.name} client, {target.model} at {target.provider} ({target.api.name}): goes up", shown(body)
    yield "left out of the request", ", ".join(made.dropped) or "nothing"
    for name, answer in ANSWERS[target.api].items():
        made, _ = translator_of(client, target, stream=False)
        known = made.dropped
        yield f"answer: {name}", shown(made.answer(json.dumps(answer).encode()))
        lost = [each for each in made.dropped if each not in known]
        yield f"answer: {name}: left out, tokens", f"{', '.join(lost) or 'nothing'}\n{counted(made)}"
    for name, stream in STREAMS[target.api].items():
        made, _ = translator_of(client, target, stream=True)
        yield f"stream: {name}", shown(made.stream().feed(stream, True))
    for status, error in ERRORS[target.api]:
        made, _ = translator_of(client, target, stream=False)
        read = made.read_error(status, (), json.dumps(error).encode())
        yield f"error: {status}", f"{read}\n{shown(made.error(read))}"


def page(client: ApiKind, target: Target) -> str:
    return "\n".join(f"== {title}\n{text}\n" for title, text in story(client, target))


@pytest.mark.parametrize(
    ("client", "target"), PAIRS, ids=[f"{client.name.lower()}-to-{target.api.name.lower()}" for client, target in PAIRS]
)
def test_pair_is_crossed_as_the_page_shows(client: ApiKind, target: Target) -> None:
    """What goes up, what comes out, plain and streamed, with what is left out, tokens and errors."""
    path = FOLDER / f"{client.name.lower()}-to-{target.api.name.lower()}.txt"
    text = page(client, target)
    if os.environ.get("SNAPSHOTS") == "write":
        path.write_text(text)

    assert path.is_file() and text == path.read_text(), (
        f"SNAPSHOTS=write pytest {Path(__file__).name} writes {path.name} anew"
    )


def test_no_page_is_left_over() -> None:
    """A pair that is gone takes its page with it."""
    names = {f"{client.name.lower()}-to-{target.api.name.lower()}.txt" for client, target in PAIRS}

    assert {path.name for path in FOLDER.iterdir()} == names
