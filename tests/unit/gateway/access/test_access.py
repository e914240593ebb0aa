"""What a key may ask for: its endpoints, and every place at which a model can stand."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.fuzz.model_spellings import run
from velox.errors import Reason, VeloxError
from velox.gateway.access.access import Access, check_model
from velox.heads import Header, ReplyHead, RequestHead, WebSocketOffer
from velox.protocol.heads.fields import only_pass
from velox.protocol.named_models import parseable
from velox.protocol.slices import finished
from velox.protocol.websocket.messages import MessageError
from velox.shm.object_table import ObjectMemory, ObjectTable
from velox.types import ANYONE, Caller, KeyTerms

LIMITED = Caller("team-a", KeyTerms(models=("gpt-4o*", "o1")), b"12345678")
FREE = Caller("free", id=b"23456789")
ONE = Caller("one", KeyTerms(models=("gpt-4o-mini",)), b"34567890")
EVERYTHING = Caller("all", KeyTerms(models=("gpt-4o-mini",), endpoints=("all",)), b"45678901")
OFFER = WebSocketOffer(b"k", (), b"")
JSON = ((b"content-type", b"application/json"),)


def head(
    method: bytes, target: bytes, headers: Sequence[Header] = JSON, *, offer: WebSocketOffer | None = None
) -> RequestHead:
    """Return a request's head."""
    return RequestHead.of(method, target, headers, 1 if method == b"POST" else None, offer=offer)


def ask(caller: Caller, method: bytes, target: bytes, body: bytes = b"", headers: Sequence[Header] = JSON) -> None:
    """Show a whole request to the guard of its kind. Raises VeloxError."""
    request = head(method, target, headers)
    guard = Access().guard(request, caller)
    if guard is not None:
        finished(guard.steps(request, body))


def refused(caller: Caller, method: bytes, target: bytes, body: bytes = b"", headers: Sequence[Header] = JSON) -> str:
    """Return how a request is refused that must be."""
    with pytest.raises(VeloxError) as caught:
        ask(caller, method, target, body, headers)
    assert (caught.value.reason, caught.value.status) == (Reason.FORBIDDEN, 403)
    assert "gpt" not in caught.value.message, "neither the model nor those that the key may use"
    return caught.value.message


def chat(model: str, **more: object) -> bytes:
    """Return a body."""
    return json.dumps({"model": model, "messages": [], **more}).encode()


MINI = chat("gpt-4o-mini")

# -- the model's places -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "model"),
    [
        (b"POST", b"/v1/chat/completions", "gpt-4o-mini"),
        (b"POST", b"/v1/responses", "o1"),
        (b"POST", b"/openai/deployments/gpt-4o/chat/completions", "gpt-4o"),
        (b"POST", b"/openai/deployments/gpt-4o/chat/completions", None),
        (b"GET", b"/v1/models", None),
        (b"HEAD", b"/v1/models", None),
        (b"GET", b"/v1/models/org%2Fname", None),
        (b"GET", b"/v1/responses/r1", None),
    ],
)
def test_limited_key_may_use_its_models_and_ask_for_what_there_is(
    method: bytes, path: bytes, model: str | None
) -> None:
    """A list or a stored reply runs no model."""
    check_model(LIMITED, head(method, path), model)


@pytest.mark.parametrize(
    ("method", "path", "model"),
    [
        (b"POST", b"/v1/chat/completions", "gpt-4"),
        (b"POST", b"/v1/chat/completions", "o1-pro"),
        (b"POST", b"/v1/chat/completions", None),
        (b"POST", b"/v1/responses", None),  # a stored prompt names its own model
        (b"POST", b"/v1/files", None),  # a file of a batch names any
        (b"POST", b"/v1/batches", None),
        (b"POST", b"/v1/audio/transcriptions", None),
        (b"DELETE", b"/v1/models/gpt-4o", None),
        (b"POST", b"/openai/deployments/gpt-4/chat/completions", "gpt-4o"),  # the path counts there
        (b"POST", b"/openai/deploymen%74s/gpt-4/chat/completions", "gpt-4o"),
    ],
)
def test_limited_key_is_refused_what_may_be_another_model(method: bytes, path: bytes, model: str | None) -> None:
    """403 forbidden, which names neither the model nor those that the key may use."""
    with pytest.raises(VeloxError) as caught:
        check_model(LIMITED, head(method, path), model)

    assert (caught.value.reason, caught.value.status) == (Reason.FORBIDDEN, 403)
    assert "gpt" not in caught.value.message and "o1" not in caught.value.message
    check_model(ANYONE, head(method, path), model)
    if method != b"DELETE":
        check_model(FREE, head(method, path), model)


@pytest.mark.parametrize(
    ("target", "body"),
    [
        (b"/openai/Deployments/gpt-4o/chat/completions", MINI),
        (b"/openai/deployments/gpt-4o/chat/completions", MINI),
        (b"/openai/deploymen%2574s/gpt-4o/chat/completions", MINI),
        (b"/v1/engines/davinci/completions", chat("gpt-4o-mini", prompt="x")),
        (b"/v1/Engines/davinci/completions", MINI),
        (b"/x/v1/chat/completions", MINI),  # a base that the table does not know
        (b"/v1/chat/completions?x=1;model=gpt-4o&model=gpt-4o-mini", MINI),
        (b"/v1/chat/completions?Model=gpt-4o", MINI),
        (b"/v1/chat/completions?mod%65l=gpt-4o", MINI),
        (b"/v1/chat/completions?model=gpt-4o-mini&model=gpt-4o-mini", MINI),
        (b"/v1/chat/completions?x=1%26model=gpt-4o", MINI),
        (b"/v1/chat/completions", b'{"model":"gpt-4o-mini","Model":"gpt-4o"}'),
        (b"/v1/chat/completions", b'{"model":"gpt-4o-mini","MODEL":"gpt-4o-mini"}'),
        (b"/v1/chat/completions", b'{"Model":"gpt-4o-mini"}'),
        (b"/v1/chat/completions", '{"model":"gpt-4o-mini","\uff4dodel":"gpt-4o"}'.encode()),
        (b"/v1/chat/completions", b'{"model":"gpt-4o-mini","model\\u0000":"gpt-4o"}'),
        (b"/v1/chat/completions", b'{"model":"gpt-4o-mini","mo_del":"gpt-4o"}'),
        (b"/v1/chat/completions", b'{"model":"gpt-4o-mini","models":["gpt-4o"]}'),
        (b"/v1/chat/completions", b'{"model":"gpt-4o-mini","fallbacks":["gpt-4o"]}'),
        (b"/v1/chat/completions", b'{"model":"gpt-4o-mini","x":1e400,"engine":"gpt-4o"}'),  # not strict JSON
        (b"/v1/responses", chat("gpt-4o-mini", tools=[{"type": "image_generation", "model": "gpt-image-1"}])),
        (b"/v1/realtime/client_secrets", MINI),
        (b"/v1/messages/batches", MINI),
        (b"/", MINI),
    ],
)
def test_every_other_spelling_of_a_model_is_refused(target: bytes, body: bytes) -> None:
    """Issue's examples and their neighbours: some server runs another model for each. A key without `models` may."""
    refused(EVERYTHING, b"POST", target, body)
    ask(FREE, b"POST", target, body)


@pytest.mark.parametrize(
    ("target", "body"),
    [
        (b"/v1/chat/completions/", MINI),
        (b"/chat/completions?api-version=2024-10-21&include%5B%5D=x", MINI),
        (b"/v1/chat/completions?model=gpt-4o-mini", MINI),
        (b"/openai/deployments/gpt-4o-mini/chat/completions?api-version=1", b'{"messages":[]}'),
        (b"/v1/engines/gpt-4o-mini/completions", b'{"prompt":"x"}'),
        (b"/v1/chat/completions", chat("gpt-4o-mini", metadata={"model": "gpt-4o"}, x=1e300)),
        (
            b"/v1/chat/completions",
            chat("gpt-4o-mini", tools=[{"function": {"parameters": {"properties": {"model": {"type": "string"}}}}}]),
        ),
        (b"/v1/responses", chat("gpt-4o-mini", tools=[{"type": "image_generation", "model": "gpt-4o-mini"}])),
    ],
)
def test_what_names_only_models_of_the_key_passes(target: bytes, body: bytes) -> None:
    """A tool's schema and metadata may have a field of that name: they choose nothing."""
    ask(ONE, b"POST", target, body)


TUNE = {"method": {"type": "reinforcement", "reinforcement": {"grader": {"type": "score_model", "model": "gpt-4o"}}}}
MULTI = {"method": {"reinforcement": {"grader": {"type": "multi", "graders": {"a": {"b": [{"model": "gpt-4o"}]}}}}}}
EMBEDDED = {"embedding_dependency": {"type": "deployment_name", "deployment_name": "gpt-4o"}}
AT_AZURE = {"data_sources": [{"type": "azure_search", "parameters": EMBEDDED}]}
# Each of these runs another model than `model` names, at some server.
ELSEWHERE: list[tuple[bytes, dict[str, object]]] = [
    (b"/v1/chat/completions", {"preset": "dear"}),
    (b"/v1/responses", {"preset": "pro-search"}),
    (b"/v1/chat/completions", {"PreSet": "dear"}),
    (b"/v1/chat/completions", {"plugins": [{"id": "auto-router"}]}),
    (b"/v1/chat/completions", {"plugins": [{"id": "auto-router", "allowed_models": ["gpt-4o-mini"]}]}),
    (b"/v1/chat/completions", {"plugins": [{"id": "fusion", "model": "gpt-4o-mini"}]}),
    (b"/v1/chat/completions", {"plugins": [{"id": "web", "x": {"model": "gpt-4o"}}]}),
    (b"/v1/chat/completions", {"plugins": [{"id": "web", "Id": "fusion"}]}),
    (b"/v1/chat/completions", {"plugins": {"id": "fusion"}}),
    (b"/v1/chat/completions", {"plugins": ["fusion"]}),
    (b"/v1/chat/completions", {"tools": [{"type": "openrouter:fusion"}]}),
    (b"/v1/responses", {"tools": [{"type": "OpenRouter:fusion", "parameters": {"analysis_models": ["gpt-4o"]}}]}),
    (b"/v1/chat/completions", {"tools": [{"type": "openrouter:web_search", "parameters": {"model": "gpt-4o"}}]}),
    (b"/v1/fine_tuning/jobs", TUNE),
    (b"/v1/fine_tuning/jobs", MULTI),
    (b"/v1/chat/completions", AT_AZURE),
    (b"/openai/deployments/gpt-4o-mini/chat/completions", {"dataSources": AT_AZURE["data_sources"]}),
    (b"/v1/chat/completions", {"lora_path": "dear"}),
    (b"/v1/completions", {"lora": [{"id": 0}]}),
    (b"/v1/completions", {"lora_request": {"lora_name": "a"}}),
    (b"/v1/chat/completions", {"adapter_id": "dear"}),
    (b"/v1/chat/completions", {"parameters": {"adapter_id": "dear"}}),
]
TUNER = Caller("tuner", KeyTerms(models=("gpt-4o-mini",), endpoints=("all", "fine_tuning")), b"56789012")


@pytest.mark.parametrize(("target", "more"), ELSEWHERE)
@pytest.mark.parametrize("is_strict", [True, False])
def test_field_by_which_a_server_runs_another_model_is_refused(
    target: bytes, more: dict[str, object], is_strict: bool
) -> None:
    """Presets, plugins, tools that run elsewhere, graders, adapters, embedding deployments: by either parser."""
    body = chat("gpt-4o-mini", **more)
    body = body if is_strict else body[:-1] + b',"x":"\\ud800"}'
    refused(TUNER, b"POST", target, body)
    ask(FREE, b"POST", target, body)


@pytest.mark.parametrize(
    ("target", "more"),
    [
        (
            b"/v1/chat/completions",
            {"plugins": [{"id": "web", "engine": "exa", "max_results": 3}, {"id": "file-parser"}]},
        ),
        (b"/v1/chat/completions", {"plugins": []}),
        (b"/v1/chat/completions", {"plugins": None, "method": "x", "parameters": None, "type": "a"}),
        (b"/v1/chat/completions", {"tools": [{"type": "openrouter:web_search", "parameters": {"engine": "exa"}}]}),
        (
            b"/v1/responses",
            {"tools": [{"type": "function", "name": "f", "parameters": {"properties": {"model": {"type": "string"}}}}]},
        ),
        (b"/v1/fine_tuning/jobs", json.loads(json.dumps(TUNE).replace("gpt-4o", "gpt-4o-mini"))),
        (b"/v1/chat/completions", json.loads(json.dumps(AT_AZURE).replace("gpt-4o", "gpt-4o-mini"))),
        (b"/v1/chat/completions", {"exploration": 1, "metadata": {"preset": "a", "lora_path": "b"}}),
    ],
)
def test_what_runs_the_models_of_the_key_alone_passes(target: bytes, more: dict[str, object]) -> None:
    """Who searches the web is no model, nor is what a function's schema says."""
    ask(TUNER, b"POST", target, chat("gpt-4o-mini", **more))


def test_preset_in_a_models_name_is_allowed_by_a_pattern_that_has_one() -> None:
    """OpenRouter's `cheap@preset/dear` runs what the preset says."""
    for models, model, passes in (
        (("cheap*",), "cheap@preset/dear", False),
        (("*",), "@preset/dear", False),
        (("cheap*",), "cheap@PRESET/dear", False),
        (("cheap*", "cheap@preset/mine"), "cheap@preset/mine", True),
        (("@preset/*",), "@preset/mine", True),
        (("cheap*",), "cheap:nitro", True),
    ):
        caller = Caller("or", KeyTerms(models=models), b"67890123")
        (ask if passes else refused)(caller, b"POST", b"/v1/chat/completions", chat(model))


@pytest.mark.parametrize(
    "name",
    [
        *(b"x-amzn-sagemaker-inference-component", b"x-amzn-sagemaker-target-variant", b"x-portkey-config"),
        *(b"x-amzn-bedrock-performanceconfig-latency", b"x-litellm-tags", b"helicone-fallbacks", b"cf-aig-step"),
    ],
)
def test_header_by_which_a_cloud_or_gateway_chooses_is_refused(name: bytes) -> None:
    """And is looked at in each head, also in one that is like others but for it."""
    refused(ONE, b"POST", b"/v1/chat/completions", MINI, (*JSON, (name, b"a")))
    ask(FREE, b"POST", b"/v1/chat/completions", MINI, (*JSON, (name, b"a")))
    assert not only_pass([name], name)


@pytest.mark.parametrize("name", [b"x-litellm-timeout", b"x-litellm-num-retries"])
def test_header_of_a_gateway_that_chooses_nothing_passes(name: bytes) -> None:
    ask(ONE, b"POST", b"/v1/chat/completions", MINI, (*JSON, (name, b"1")))


def test_header_by_which_a_server_chooses_is_refused() -> None:
    """A deployment, a model, another path or method in a header."""
    for name in (b"azureml-model-deployment", b"helicone-model-override", b"x-original-url", b"x-http-method-override"):
        refused(ONE, b"POST", b"/v1/chat/completions", MINI, (*JSON, (name, b"gpt-4o-mini")))
    refused(ONE, b"POST", b"/v1/chat/completions", MINI, (*JSON, (b"content-type", b"text/plain")))


def form(*parts: tuple[bytes, bytes]) -> tuple[bytes, tuple[Header, ...]]:
    """Return a form's body and its headers."""
    body = b"".join(b"--b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % part for part in parts) + b"--b--\r\n"
    return body, ((b"content-type", b"multipart/form-data; boundary=b"),)


HIDDEN = b'\n--b\nContent-Disposition: form-data; name="model"\n\ngpt-4o'
FILE = (b'name="file"; filename="a.wav"', b"RIFF\n--x")


def test_model_of_a_form_is_read() -> None:
    """Strictly: one field, written plainly, in a form that all servers cut at the same places."""
    path = b"/v1/audio/transcriptions"
    ask(ONE, b"POST", path, *form(FILE, (b'name="model"', b"gpt-4o-mini")))
    for parts in (
        (FILE,),
        (FILE, (b'name="model"', b"gpt-4o")),
        (FILE, (b'name="model"', b"gpt-4o-mini"), (b'name="model"', b"gpt-4o-mini")),
        (FILE, (b'name="model"', b"gpt-4o-mini"), (b'name="Model"', b"gpt-4o")),
        (FILE, (b"name=model", b"gpt-4o-mini")),
        (FILE, (b'name="model"', b"gpt-4o-mini"), (b"name*=utf-8''mod%65l", b"gpt-4o")),
        (FILE, (b'name="model"; filename="m"', b"gpt-4o-mini")),
        (FILE, (b'name="model"', b"gpt-4o-mini"), (b'name="prompt"', HIDDEN)),
    ):
        refused(ONE, b"POST", path, *form(*parts))
    body, headers = form(FILE, (b'name="model"', b"gpt-4o-mini"))
    refused(ONE, b"POST", path, b"preamble\r\n" + body, headers)
    refused(ONE, b"POST", path, body[:-6], headers)
    refused(ONE, b"POST", path, body + b"--b\r\n", headers)
    refused(ONE, b"POST", path, b'{"model": "gpt-4o"}')
    refused(ONE, b"POST", b"/v1/chat/completions", body, headers)


def line(model: str, url: str = "/v1/chat/completions", **more: object) -> bytes:
    """Return a line of a batch's file."""
    return json.dumps({"custom_id": "1", "method": "POST", "url": url, "body": {"model": model}, **more}).encode()


def test_lines_of_an_uploaded_file_are_read() -> None:
    """Each line of a batch is a request. A key with `models` uploads files only if `endpoints` say so."""
    good = line("gpt-4o-mini")
    caller = Caller("files", KeyTerms(models=("gpt-4o-mini",), endpoints=("inference", "files")), b"56789012")

    def upload(lines: bytes, purpose: bytes = b"batch") -> tuple[bytes, tuple[Header, ...]]:
        return form((b'name="purpose"', purpose), (b'name="file"; filename="b.jsonl"', lines))

    ask(caller, b"POST", b"/v1/files", *upload(good + b"\n\n" + good + b"\r\n"))
    ask(caller, b"POST", b"/v1/files", *upload(b"%PDF", b"user_data"))
    ask(caller, b"POST", b"/v1/files", *upload(b'{"messages":[]}\n', b"fine-tune"))
    for lines in (
        good + b"\n" + line("gpt-4o"),
        good + b"\r" + line("gpt-4o"),
        line("gpt-4o-mini", "/openai/Deployments/gpt-4o/chat/completions"),
        line("gpt-4o-mini", "/v1/engines/gpt-4o/completions"),
        line("gpt-4o-mini", "/v1/files"),
        line("gpt-4o-mini", engine="gpt-4o"),
        line("gpt-4o-mini", Body={"model": "gpt-4o"}),
        b'{"custom_id":"1","url":"/v1/chat/completions","body":{}}',
        b"no json",
    ):
        refused(caller, b"POST", b"/v1/files", *upload(lines))
    refused(caller, b"POST", b"/v1/files", *upload(b'{"model":"gpt-4o"}', b"fine-tune"))
    refused(caller, b"POST", b"/v1/files", *upload(good, b"another purpose"))
    refused(caller, b"POST", b"/v1/uploads", b'{"purpose":"batch"}')
    refused(ONE, b"POST", b"/v1/files", *upload(good))


@pytest.mark.parametrize(
    ("filling", "n", "least_steps"),
    [
        (b"\n", 30_000_000, 57),
        (b" \t\r\n", 7_500_000, 57),
        (b"{}\n", 200_000, 1_500),
        (b"\n{}\n\r\n", 100_000, 750),
    ],
)
def test_file_of_millions_of_lines_is_read_in_short_steps(filling: bytes, n: int, least_steps: int) -> None:
    """Whatever its lines are, the loop gets its turn after about a millisecond."""
    caller = Caller("files", KeyTerms(models=("gpt-4o-mini",), endpoints=("inference", "files")), b"56789012")
    body, headers = form((b'name="purpose"', b"fine-tune"), (b'name="file"; filename="b.jsonl"', filling * n))
    request = head(b"POST", b"/v1/files", headers)
    guard = Access().guard(request, caller)
    assert guard is not None
    n_steps = sum(1 for _ in guard.steps(request, bytearray(body)))
    assert n_steps >= least_steps


def test_model_behind_megabytes_of_empty_lines_is_found() -> None:
    """They are passed over in stretches, and what follows is read, wherever it begins in one."""
    caller = Caller("files", KeyTerms(models=("gpt-4o-mini",), endpoints=("inference", "files")), b"56789012")
    for n in (*range(512 * 1024 - 2, 512 * 1024 + 3), 1_500_000):
        for named, may in (("gpt-4o-mini", ask), ("gpt-4o", refused)):
            lines = b"\n" * n + line(named) + b"\r\n \n"
            may(caller, b"POST", b"/v1/files", *form(PURPOSE, (b'name="file"; filename="b.jsonl"', lines)))


def test_long_line_of_a_file_is_read_in_short_steps() -> None:
    """X9: one line of 9 MB held the loop for 17 ms: its long texts are left out in slices, and all else is read."""
    caller = Caller("files", KeyTerms(models=("gpt-4o-mini",), endpoints=("inference", "files")), b"56789012")
    text = "a word, " * 1_200_000
    good = line("gpt-4o-mini", text=text)
    wrong = line("gpt-4o", text=text)
    behind = line("gpt-4o-mini", text=text, engine="gpt-4o")
    broken = good.replace(b"a word, ", b"a \\word", 1)
    for lines, may in (
        (good + b" " * 600_000 + b"\r\n" + good, ask),
        (wrong, refused),
        (good + b"\n" + wrong, refused),
        (behind, refused),
        (broken, refused),
        (good.replace(b"a word, ", b"a \rword", 1), refused),
        (good[:-1] + b',"x":[' + b"1," * 3_000_000 + b"1]}", refused),
    ):
        may(caller, b"POST", b"/v1/files", *form(PURPOSE, (b'name="file"; filename="b.jsonl"', lines)))
    body, headers = form(PURPOSE, (b'name="file"; filename="b.jsonl"', good))
    guard = Access().guard(head(b"POST", b"/v1/files", headers), caller)
    assert guard is not None
    n_steps = sum(1 for _ in guard.steps(head(b"POST", b"/v1/files", headers), bytearray(body)))
    assert n_steps > len(body) // 131_072


@pytest.mark.parametrize(
    "unit",
    [
        b'{"role":"user","content":"%b"},' % (b"x" * 500),
        b'"%b",' % (b"x" * 2_000),
        b'"%b",' % (b"\\u00e4" * 300),
        b'"%b",' % (b'\\"' * 2_000_000),
    ],
)
def test_large_body_of_short_texts_is_parsed_without_them(unit: bytes) -> None:
    """60 MiB of them were parsed at one go, which took 200 ms. A model behind them is found."""
    body = b'{"messages":[%b{}],"model":"%%b"}' % (unit.replace(b"%", b"%%") * ((5 << 20) // len(unit)))
    parsed: list[int] = []
    for model, may in ((b"gpt-4o-mini", ask), (b"gpt-4o", refused)):
        steps = parseable(bytearray(body % model))
        while True:
            try:
                next(steps)
            except StopIteration as end:
                parsed.append(len(end.value))
                break
        may(ONE, b"POST", b"/v1/chat/completions", body % model)
    assert max(parsed) <= 1_000_000
    refused(ONE, b"POST", b"/v1/chat/completions", (body % b"gpt-4o-mini").replace(b"messages", b"model", 1))
    wrong = (body % b"gpt-4o-mini").replace(unit[-20:], b"\n" + unit[-19:], 1)
    refused(ONE, b"POST", b"/v1/chat/completions", wrong)


def test_large_body_of_very_short_texts_is_refused() -> None:
    """It would be parsed at one go, for 3 ms a MiB."""
    unit = b'"%b",' % (b"x" * 250)
    for n_bytes, may in ((3 << 20, ask), (5 << 20, refused)):
        body = b'{"messages":[%b1],"model":"gpt-4o-mini"}' % (unit * (n_bytes // len(unit)))
        may(ONE, b"POST", b"/v1/chat/completions", body)


BATCHER = Caller("batches", KeyTerms(models=("gpt-4o-mini",), endpoints=("inference", "files", "batches")), b"67890123")


def upload(access: Access, caller: Caller, file_id: str, *parts: tuple[bytes, bytes]) -> None:
    """Upload a file that gets this id. Raises VeloxError."""
    body, headers = form(*parts)
    guard = access.guard(head(b"POST", b"/v1/files", headers), caller)
    assert guard is not None
    for each in finished(guard.steps(head(b"POST", b"/v1/files", headers), body)):
        each.begin(ReplyHead.of(200, [], None), is_sse=False, is_plain=True)
        each.feed(json.dumps({"id": file_id, "object": "file"}).encode(), end=True)


def batch(access: Access, caller: Caller, body: bytes) -> None:
    """Create a batch. Raises VeloxError."""
    request = head(b"POST", b"/v1/batches")
    guard = access.guard(request, caller)
    assert guard is not None
    finished(guard.steps(request, body))


def asking(file_id: object, endpoint: object = "/v1/chat/completions", **more: object) -> bytes:
    """Return a batch's body."""
    return json.dumps({"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h", **more}).encode()


PURPOSE, LINES = (b'name="purpose"', b"batch"), (b'name="file"; filename="b.jsonl"', line("gpt-4o-mini"))


def test_batch_of_a_file_whose_lines_were_read_is_run() -> None:
    """By a key of the same name with the same models; any other file may name any model."""
    access = Access(ObjectTable(ObjectMemory(1024, 1, 1), 0))
    upload(access, BATCHER, "file-read", PURPOSE, LINES)
    upload(access, BATCHER, "file-data", (b'name="purpose"', b"user_data"), LINES)
    upload(access, BATCHER, "file-text", PURPOSE, LINES, (b'name="file"', line("gpt-4o-mini")))
    upload(access, BATCHER, "file-none", PURPOSE, (b'name="file"', line("gpt-4o")))

    batch(access, BATCHER, asking("file-read"))

    other_models = Caller(
        "batches", KeyTerms(models=("gpt-4o-mini", "o1"), endpoints=BATCHER.terms.endpoints), b"78901234"
    )
    other_name = Caller("others", KeyTerms(models=("gpt-4o-mini",), endpoints=BATCHER.terms.endpoints), b"89012345")
    for caller, body in (
        (other_models, asking("file-read")),
        (other_name, asking("file-read")),
        *((BATCHER, asking(file_id)) for file_id in ("file-data", "file-text", "file-none", "file-else", None, ["x"])),
        (BATCHER, asking("file-read", "/v1/files")),
        (BATCHER, asking("file-read", "/v1/engines/gpt-4o/completions")),
        (BATCHER, asking("file-read", None)),
        (BATCHER, asking("file-read", Input_File_Id="file-else")),
        (BATCHER, asking("file-read", model="gpt-4o")),
        (BATCHER, b'{"input_file_id":"file-else","input_file_id":"file-read","endpoint":"/v1/chat/completions"}'),
    ):
        with pytest.raises(VeloxError) as caught:
            batch(access, caller, body)
        assert caught.value.reason is Reason.FORBIDDEN, body


# -- WebSockets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        b"/openai/realtime?deployment=gpt-4o&model=gpt-4o-mini",
        b"/v1/realtime?x=1;model=gpt-4o&model=gpt-4o-mini",
        b"/v1/realtime?model=gpt-4o",
        b"/v1/realtime?MODEL=gpt-4o&model=gpt-4o-mini",
        b"/v1/realtime?model=gpt%252d4o",
        b"/v1/realtime?intent=transcription",
        b"/v1/Realtime?model=gpt-4o-mini",
    ],
)
def test_query_of_a_websocket_names_one_model_of_the_key(target: bytes) -> None:
    """In any other spelling it is refused; so is a session without a model."""
    with pytest.raises(VeloxError) as caught:
        Access().guard(head(b"GET", target, (), offer=OFFER), ONE)

    assert caught.value.reason is Reason.FORBIDDEN
    assert Access().guard(head(b"GET", target, (), offer=OFFER), FREE) is None


def frame(payload: bytes, first: int = 0x81, mask: bytes = b"\x01\x02\x03\x04") -> bytes:
    """Return a frame as a client sends it."""
    n = len(payload)
    length = bytes((0x80 | n,)) if n < 126 else b"\xfe" + n.to_bytes(2) if n < 65536 else b"\xff" + n.to_bytes(8)
    return bytes((first,)) + length + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def update(**session: object) -> bytes:
    """Return a message that changes a session."""
    return json.dumps({"type": "session.update", "session": session}).encode()


@pytest.mark.slow
def test_messages_of_a_websocket_are_read_before_they_pass() -> None:
    """However they are cut, in fragments or with a ping in between: what passes is the bytes that came."""
    guard = Access().guard(head(b"GET", b"/v1/realtime?model=gpt-4o-mini", (), offer=OFFER), ONE)
    assert guard is not None
    message = update(model="gpt-4o-mini", instructions="x" * 70_000, tools=[{"parameters": {"model": 1}}])
    sent = (
        frame(message[:10], 0x01) + frame(b"ping", 0x89) + frame(message[10:50], 0x00) + frame(message[50:], 0x80)
    ) + frame(b'{"type":"input_audio_buffer.append","audio":"AAAA"}')
    for size in (1, 7, 1000, len(sent)):
        gate = guard.gate()
        passed = [gate.feed(sent[at : at + size]) for at in range(0, len(sent), size)]
        assert b"".join(passed) == sent
        assert not any(passed[: len(message) // size - 1]), "nothing passes before the message is whole"


@pytest.mark.parametrize(
    "message",
    [
        update(model="gpt-4o"),
        update(Model="gpt-4o-mini"),
        update(audio={"input": {"transcription": {"model": "whisper-1"}}}),
        json.dumps({"type": "response.create", "response": {"model": "gpt-4o"}}).encode(),
        json.dumps({"type": "response.create", "model": "gpt-4o"}).encode(),
        b'{"type":"session.update","session":{"model":"gpt-4o-mini","model":"gpt-4o"}}',
        b"\x00\x01",
        b'["model"]',
    ],
)
def test_message_that_names_another_model_does_not_pass(message: bytes) -> None:
    """session.update could change the model of a session that began with one of the key's."""
    guard = Access().guard(head(b"GET", b"/v1/realtime?model=gpt-4o-mini", (), offer=OFFER), ONE)
    assert guard is not None

    with pytest.raises(VeloxError) as caught:
        guard.gate().feed(frame(message))

    assert caught.value.reason is Reason.FORBIDDEN


@pytest.mark.parametrize(
    "data",
    [
        frame(b"{}", 0xC1),  # compressed
        frame(b"{}", 0x80),  # a fragment of nothing
        frame(b"{", 0x01) + frame(b"{}"),  # a message inside another one
        b"\x81\x02{}",  # no mask
        b"\x81\xff" + (1 << 40).to_bytes(8) + b"\0\0\0\0",
    ],
)
def test_frames_that_can_not_be_read_end_the_tunnel(data: bytes) -> None:
    """What can't be looked at does not pass."""
    guard = Access().guard(head(b"GET", b"/v1/realtime?model=gpt-4o-mini", (), offer=OFFER), ONE)
    assert guard is not None
    with pytest.raises(MessageError):
        guard.gate().feed(data)


def respond(**fields: object) -> bytes:
    """Return a message of the Responses API."""
    return json.dumps({"type": "response.create", **fields}).encode()


@pytest.mark.parametrize(
    ("message", "passes"),
    [
        (respond(model="gpt-4o-mini", input="hi"), True),
        (respond(response={"model": "gpt-4o-mini", "input": "hi"}), True),
        (respond(model="gpt-4o-mini", tools=[{"type": "image_generation", "model": "gpt-image-1"}]), False),
        (respond(model="gpt-4o", input="hi"), False),
        (respond(input="hi"), False),
        (respond(prompt={"id": "pmpt_1"}, metadata={"model": "gpt-4o-mini"}), False),
        (respond(model=None, input="hi"), False),
        (respond(Model="gpt-4o-mini"), False),
        (b'{"type":"response.create","model":"gpt-4o-mini","model":"gpt-4o"}', False),
        (b"[]", False),
    ],
)
def test_messages_of_the_responses_websocket_name_their_own_model(message: bytes, passes: bool) -> None:
    """There the URL names none: each message does, where a request by HTTP would."""
    guard = Access().guard(head(b"GET", b"/v1/responses", (), offer=OFFER), ONE)
    assert guard is not None
    if passes:
        assert guard.gate().feed(frame(message)) == frame(message)
        return
    with pytest.raises(VeloxError) as caught:
        guard.gate().feed(frame(message))
    assert caught.value.reason is Reason.FORBIDDEN


# -- endpoints ------------------------------------------------------------------------------------------------------


def test_endpoints_of_a_key() -> None:
    """Groups and patterns of paths; with `models` only what asks models, unless the key says more."""
    files = Caller("files", terms=KeyTerms(endpoints=("files", "/v1/batches/*")), id=b"1")
    for path in (b"/v1/files", b"/v1/files/file-1/content", b"/v1/uploads", b"/v1/batches/batch_1"):
        ask(files, b"GET", path)
    for path in (
        b"/v1/batches",
        b"/v1/chat/completions",
        b"/v1/Files",
        b"/v1/%66iles",
        b"/other",
        b"/v1/organization/costs",
    ):
        refused(files, b"GET", path)
    for path in (b"/v1/files", b"/v1/batches", b"/v1/vector_stores", b"/v1/fine_tuning/jobs", b"/v1/threads/t", b"/x"):
        refused(ONE, b"GET", path)
        ask(FREE, b"GET", path)
        ask(EVERYTHING, b"GET", path) if path != b"/x" else refused(EVERYTHING, b"GET", path)


def test_organization_is_for_keys_that_name_it() -> None:
    """In no spelling: costs, users and keys of the account are not a caller's. So is the deletion of a shared model."""
    admin = Caller("admin", terms=KeyTerms(endpoints=("all", "organization")), id=b"1")
    for path in (b"/v1/organization/costs", b"/v1/Organization/costs", b"/v1/organi%7Aation/x", b"/dashboard/billing"):
        refused(FREE, b"GET", path)
        ask(admin, b"GET", path)
    refused(FREE, b"DELETE", b"/v1/models/ft:gpt-4o")
    ask(admin, b"DELETE", b"/v1/models/ft:gpt-4o")
    ask(
        Caller("costs", terms=KeyTerms(endpoints=("all", "/v1/organization/costs")), id=b"1"),
        b"GET",
        b"/v1/organization/costs",
    )


@pytest.mark.parametrize(
    ("pattern", "method", "path", "passes"),
    [
        ("/v1/*", b"GET", b"/v1/organization/costs", False),
        ("/v1/*", b"GET", b"/v1/organization", False),
        ("/*", b"POST", b"/v1/organization/admin_api_keys", False),
        ("/v1/o*", b"GET", b"/v1/organization/users", False),
        ("/*costs", b"GET", b"/v1/organization/costs", False),
        ("/v1/*", b"DELETE", b"/v1/models/ft:gpt-4o", False),
        ("/v1/*", b"POST", b"/v1/vaults", False),
        ("/v1/*", b"GET", b"/v1/batches/b", True),
        ("/v1/organization/*", b"GET", b"/v1/organization/costs", True),
        ("/v1/organization*", b"GET", b"/v1/organization/costs", True),
        ("/v1/models*", b"DELETE", b"/v1/models/ft:gpt-4o", True),
        ("/v1/vaults*", b"POST", b"/v1/vaults", True),
    ],
)
def test_pattern_of_paths_has_the_organizations_only_if_it_names_them(
    pattern: str, method: bytes, path: bytes, passes: bool
) -> None:
    """Who writes `/v1/*` does not think of the keys and costs of the whole account."""
    caller = Caller("ops", terms=KeyTerms(endpoints=(pattern,)), id=b"1")
    (ask if passes else refused)(caller, method, path)


@pytest.mark.slow
def test_fuzz_of_spellings() -> None:
    """A few of the million (python -m tests.fuzz.model_spellings): none comes through, and many pass."""
    result = run(4_000, seed=18)

    assert result.through == []
    assert result.passed > 400
