"""Fuzz: a key that may use one model, and a million spellings of another one.

    python -m tests.fuzz.model_spellings --n 1000000 [--seed 1] [--jobs 2]

Each input is a request of the API in which a few things were written in another way. It goes through what a gateway
does with it before an upstream is asked: the target, the plan of its head, the body, each message of a WebSocket. What
passes is given to the reference (tests/lenient_server.py): no reading of it may run another model than the key may use.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.lenient_server import DEFAULT, models_run
from velox.errors import VeloxError
from velox.gateway.access.access import Access
from velox.gateway.access.endpoints import Routes
from velox.gateway.access.plan import plan_of
from velox.gateway.websocket.tunnel import model_of
from velox.heads import RequestHead, WebSocketOffer
from velox.policy.limits.estimate import Estimator
from velox.protocol.heads.target import split_target
from velox.protocol.json.body import BodyReader
from velox.protocol.slices import finished
from velox.protocol.websocket.messages import MessageError
from velox.types import Caller, KeyTerms

__all__ = ["Result", "run"]

MINE, THEIRS = "gpt-4o-mini", "gpt-4o"
CALLER = Caller("fuzz", KeyTerms(models=(MINE,), endpoints=("all",)), b"12345678")
_FORBIDDEN = {THEIRS, DEFAULT}
_BOUNDARY = b"XbX"
_JSON = (b"content-type", b"application/json")
_FORM = (b"content-type", b"multipart/form-data; boundary=" + _BOUNDARY)
_SOCKET = (b"upgrade", b"websocket")


@dataclass
class Request:
    """One request, in the parts that are written in another way. fields: of its JSON body; parts: of its form."""

    method: bytes
    path: bytes
    query: list[bytes] = field(default_factory=list)
    separator: bytes = b"&"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    fields: list[tuple[str, object]] | None = None
    parts: list[tuple[bytes, bytes]] | None = None
    messages: list[list[tuple[str, object]]] = field(default_factory=list)
    raw: Callable[[bytes], bytes] | None = None

    @property
    def target(self) -> bytes:
        return self.path + (b"?" + self.separator.join(self.query) if self.query else b"")

    def body(self) -> bytes:
        body = b""
        if self.fields is not None:
            body = _object(self.fields).encode("utf-8", "surrogatepass")
        elif self.parts is not None:
            ends = [
                b"--" + _BOUNDARY + b"\r\n" + head + b"\r\n\r\n" + content + b"\r\n" for head, content in self.parts
            ]
            body = b"".join(ends) + b"--" + _BOUNDARY + b"--\r\n"
        return body if self.raw is None else self.raw(body)


def _object(fields: Sequence[tuple[str, object]]) -> str:
    return "{" + ",".join(f"{_key(name)}:{_value(value)}" for name, value in fields) + "}"


def _key(name: str) -> str:
    return name[1:] if name.startswith("\0") else json.dumps(name)  # "\0": written as it is


def _value(value: object) -> str:
    if isinstance(value, list) and value and all(isinstance(each, tuple) for each in value):
        return _object(value)
    if isinstance(value, list):
        return "[" + ",".join(_value(each) for each in value) + "]"
    return json.dumps(value)


def _form_part(name: bytes, content: bytes, more: bytes = b"") -> tuple[bytes, bytes]:
    return b'Content-Disposition: form-data; name="' + name + b'"' + more, content


def _line(model: str, url: str = "/v1/chat/completions") -> bytes:
    body = {"model": model, "messages": []}
    return json.dumps({"custom_id": "1", "method": "POST", "url": url, "body": body}).encode()


def _seed(random: random.Random) -> Request:
    """Return a request that asks for the model of the key, most often."""
    model = THEIRS if random.random() < 0.15 else MINE
    kind = random.randrange(9)
    chat: list[tuple[str, object]] = [("model", model), ("messages", [])]
    if kind <= 2:
        last = random.choice([b"chat/completions", b"responses", b"embeddings", b"completions", b"messages", b"rerank"])
        path = random.choice([b"/v1/", b"/", b"/openai/v1/", b"/api/v1/", b"/x/v1/"]) + last
        return Request(b"POST", path, headers=[_JSON], fields=chat)
    if kind == 3:
        name = random.choice([MINE, THEIRS]).encode()
        path = b"/openai/deployments/" + name + random.choice([b"/chat/completions", b"/embeddings"])
        return Request(b"POST", path, [b"api-version=1"], headers=[_JSON], fields=random.choice([chat, chat[1:]]))
    if kind == 4:
        path = b"/v1/engines/" + random.choice([MINE, THEIRS]).encode() + b"/completions"
        return Request(b"POST", path, headers=[_JSON], fields=random.choice([chat, chat[1:]]))
    if kind == 5:
        path = random.choice([b"/v1/realtime", b"/openai/realtime", b"/v1/responses"])
        message: list[tuple[str, object]] = [("type", "session.update"), ("session", [("model", model), ("tools", [])])]
        return Request(b"GET", path, [b"model=" + MINE.encode()], headers=[_SOCKET], messages=[message])
    if kind == 6:
        path = b"/v1/audio/" + random.choice([b"transcriptions", b"translations"])
        parts = [_form_part(b"file", b"RIFF", b'; filename="a.wav"'), _form_part(b"model", model.encode())]
        return Request(b"POST", path, headers=[_FORM], parts=parts)
    if kind == 7:
        lines = b"\n".join(_line(random.choice([MINE, MINE, THEIRS])) for _ in range(random.randrange(1, 4)))
        parts = [_form_part(b"purpose", b"batch"), _form_part(b"file", lines, b'; filename="b.jsonl"')]
        return Request(b"POST", b"/v1/files", headers=[_FORM], parts=parts)
    path = random.choice([b"/v1/threads/runs", b"/v1/assistants", b"/v1/fine_tuning/jobs", b"/v1/realtime/sessions"])
    return Request(b"POST", path, headers=[_JSON], fields=chat)


# -- other spellings ------------------------------------------------------------------------------------------------


def _case(text: str, random: random.Random) -> str:
    return "".join(char.upper() if random.random() < 0.4 else char for char in text)


def _encode(data: bytes, random: random.Random) -> bytes:
    at = random.randrange(len(data))
    code = b"%%%02x" % data[at]
    if random.random() < 0.3:
        code = b"%25" + code[1:]
    return data[:at] + code + data[at + 1 :]


def _path_spelling(request: Request, random: random.Random) -> None:
    path = request.path
    kind = random.randrange(8)
    if kind == 0:
        request.path = _case(path.decode("latin-1"), random).encode("latin-1")
    elif kind == 1:
        request.path = path[:1] + _encode(path[1:], random) if len(path) > 1 else path
    elif kind == 2:
        request.path = path + random.choice([b"/", b"//", b"/.", b"/..", b";x=1", b"%2f", b"%20"])
    elif kind == 3:
        request.path = path.replace(b"/", random.choice([b"//", b"/./", b"/x/../", b"%2f", b"\\", b"%5c"]), 2)
    elif kind == 4:
        request.path = random.choice([b"/openai", b"/v1", b"/V1", b"/a", b"/engines/gpt-4o", b"/x;y"]) + path
    elif kind == 5:
        at = random.choice([at for at, byte in enumerate(path) if byte == 47] or [0])
        request.path = path[:at] + b"/deployments/gpt-4o" + path[at:]
    elif kind == 6:
        request.path = path.replace(MINE.encode(), THEIRS.encode())
    else:
        request.path = path.replace(b"deployments", random.choice([b"Deployments", b"deployment%73", b"DEPLOYMENTS"]))


_QUERY_NAMES = [b"model", b"Model", b"MODEL", b"mod%65l", b"deployment", b"Deployment", b"engine", b"model_id", b"m"]


def _query_spelling(request: Request, random: random.Random) -> None:
    kind = random.randrange(5)
    name = random.choice([*_QUERY_NAMES, b"deployment-id", b"%6dodel", b"mode%256c", b"model[]", b" model", b"+model"])
    value = random.choice([THEIRS, MINE]).encode()
    if random.random() < 0.3:
        value = _encode(value, random)
    field = name + b"=" + value
    if kind == 0:
        request.separator = b";"
    elif kind == 1:
        request.query.insert(0, field)
    elif kind == 2:
        request.query.append(field)
    elif kind == 3:
        request.query.append(b"x=1" + random.choice([b";", b"%26", b"%3b", b"&"]) + field)
    else:
        request.query = [_encode(each, random) if each else each for each in request.query]


_NAMES = [
    *(
        "Model",
        "MODEL",
        "model ",
        " model",
        "mo_del",
        "mo-del",
        "model\u200b",
        "\uff4dodel",
        "model\0",
        "models",
        "engine",
    ),
    *("deployment_id", "fallbacks", "model_id", '\0"mod\\u0065l"', '\0"\\u004dodel"', "model", "fallback_model"),
    *("deployment", "model_name", "MODELS", "\U0001d426odel", "Tools", "tools"),
]


def _respelled(fields: list[tuple[str, object]], random: random.Random) -> list[tuple[str, object]]:
    fields = fields.copy()
    name = random.choice(_NAMES)
    value: object = random.choice([THEIRS, THEIRS, MINE, [THEIRS], [("x", THEIRS)], THEIRS.upper(), f"{MINE},{THEIRS}"])
    if name.lower() == "tools":
        tool: list[tuple[str, object]] = [("type", "image_generation"), (random.choice(_NAMES), THEIRS)]
        value = [tool]
    kind = random.randrange(4)
    if kind == 0:
        fields.insert(0, (name, value))
    elif kind == 1:
        fields.append((name, value))
    elif kind == 2:
        fields = [(name, value) if key == "model" else (key, old) for key, old in fields]
    else:
        fields = [each for each in fields if each[0] != "model"]
    return fields


def _body_spelling(request: Request, random: random.Random) -> None:
    if request.fields is not None:
        if random.random() < 0.85:
            request.fields = _respelled(request.fields, random)
        else:
            request.raw = random.choice(
                [
                    lambda body: b"\xef\xbb\xbf" + body,
                    lambda body: body.decode("utf-8", "replace").encode("utf-16"),
                    lambda body: body + b'{"model":"gpt-4o"}',
                    lambda body: b"[" + body + b"]",
                    lambda body: body.replace(b'"', b"'"),
                    lambda body: body[:-1] + b',"x":1e400,"Model":"gpt-4o"}',
                    lambda body: body[:-1] + b',"x":"\\ud800","MODEL":"gpt-4o"}',
                    lambda body: b"model=gpt-4o&" + body,
                ]
            )
    elif request.parts is not None:
        _form_spelling(request, random)
    elif request.messages:
        at = random.randrange(len(request.messages))
        message = request.messages[at]
        inner = message[1][1]
        if random.random() < 0.6 and isinstance(inner, list):
            request.messages[at] = [message[0], (message[1][0], _respelled(inner, random))]
        else:
            request.messages[at] = _respelled(message, random)


def _form_spelling(request: Request, random: random.Random) -> None:
    assert request.parts is not None
    kind = random.randrange(9)
    theirs = THEIRS.encode()
    if kind == 0:
        name = random.choice([b"Model", b"model", b"MODEL", b"mod%65l", b"model_id", b" model", b"engine", b"Purpose"])
        request.parts.insert(random.choice([0, len(request.parts)]), _form_part(name, theirs))
    elif kind == 1:
        request.parts.append((b"Content-Disposition: form-data; name=model", theirs))
    elif kind == 2:
        request.parts.append((b"Content-Disposition: form-data; name*=utf-8''mod%65l", theirs))
    elif kind == 3:
        hidden = b'x\n--XbX\nContent-Disposition: form-data; name="model"\n\ngpt-4o\n'
        request.parts.append(_form_part(b"prompt", hidden))
    elif kind == 4:
        request.parts.append(_form_part(b"model", theirs, b'; filename="m"'))
    elif kind == 5:
        old, new = random.choice([(b"\r\n", b"\n"), (b"--XbX--", b"--XbX"), (b"XbX", b"XbX ")])
        request.raw = lambda body: body.replace(old, new)
    elif kind == 6:
        ours = b'Content-Disposition: form-data; name="model"\r\n\r\n'
        request.raw = lambda body: b"preamble\r\n--XbX\r\n" + ours + theirs + b"\r\n" + body
    elif kind == 7:
        request.headers = [(b"content-type", b"multipart/form-data; boundary=a; boundary=XbX")]
    else:
        old = random.choice([MINE.encode(), b"batch", b'"body"', b'"model"', b'"url"', b"/v1/chat/completions", b"\n"])
        new = random.choice(
            [theirs, b"user_data", b'"Body"', b'"MODEL"', b"/openai/Deployments/gpt-4o/chat/completions"]
        )
        request.raw = lambda body: body.replace(old, new, 1)


def _header_spelling(request: Request, random: random.Random) -> None:
    request.headers.append(
        random.choice(
            [
                (b"x-original-url", b"/openai/deployments/gpt-4o/chat/completions"),
                (b"x-rewrite-url", b"/v1/engines/gpt-4o/completions"),
                (b"azureml-model-deployment", THEIRS.encode()),
                (b"helicone-model-override", THEIRS.encode()),
                (b"x-model", THEIRS.encode()),
                (b"content-type", b"application/x-www-form-urlencoded"),
                (b"content-type", b"multipart/form-data; boundary=XbX"),
                (b"x-http-method-override", b"POST"),
                (b"accept", b"*/*"),
            ]
        )
    )


def _method_spelling(request: Request, random: random.Random) -> None:
    request.method = random.choice([b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"post"])


_SPELLINGS = [
    *(_path_spelling, _path_spelling, _path_spelling, _query_spelling, _query_spelling),
    *(_body_spelling, _body_spelling, _body_spelling, _header_spelling, _method_spelling),
]


# -- the gateway and the reference ----------------------------------------------------------------------------------


class Gate:
    """What a gateway does with a request before an upstream is asked."""

    def __init__(self) -> None:
        self._routes = Routes(("*",))
        self._access = Access()
        self._reader = BodyReader()
        self._estimator = Estimator()

    def passes(self, request: Request, body: bytes) -> list[bytes] | None:
        """Return the messages of a WebSocket that pass; None if the request is refused."""
        messages = [_object(message).encode("utf-8", "surrogatepass") for message in request.messages]
        passed: list[bytes] = []
        try:
            path, _ = split_target(request.target)
            assert request.target.startswith(path)
            is_socket = _SOCKET in request.headers and request.method == b"GET"
            head = RequestHead.of(
                request.method,
                request.target,
                [each for each in request.headers if each != _SOCKET],
                len(body) or None,
                offer=WebSocketOffer(b"k", (), b"") if is_socket else None,
            )
            self._routes.check(head)
            plan = plan_of(head, CALLER, self._routes, self._estimator, self._access, requires_keys=True)
            if head.has_body and plan.forbids_body:
                return None
            if is_socket:
                model_of(head.query)
            elif plan.reads_body:
                self._reader.read(body)
            assert plan.guard is not None, "the key is limited"
            if not is_socket:
                finished(plan.guard.steps(head, body))
                return []
            gate = plan.guard.gate()
            for message in messages:
                gate.feed(_frame(message))
                passed.append(message)
        except (VeloxError, MessageError):
            return passed or None
        return passed


def _frame(message: bytes) -> bytes:
    size = len(message)
    length = bytes((0x80 | size,)) if size < 126 else bytes((0x80 | 126,)) + size.to_bytes(2)
    return b"\x81" + length + b"\0\0\0\0" + message


@dataclass
class Result:
    """What came of a run. through: requests that passed and that some server would run as another model."""

    tried: int
    passed: int
    through: list[str]


def run(n: int, seed: int) -> Result:
    """Try `n` requests."""
    source = random.Random(seed)
    gate = Gate()
    through: list[str] = []
    n_passed = 0
    for _ in range(n):
        request = _seed(source)
        for _ in range(source.choice([0, 1, 1, 1, 2, 2, 3])):
            source.choice(_SPELLINGS)(request, source)
        body = request.body()
        messages = gate.passes(request, body)
        if messages is None:
            continue
        n_passed += 1
        runs = models_run(request.method, request.target, request.headers, body, messages)
        if not runs.isdisjoint(_FORBIDDEN):
            through.append(f"{request.method!r} {request.target!r} {request.headers} {body!r} {messages} runs {runs}")
    return Result(n, n_passed, through)


def main() -> int:
    """Run as a command; the exit code is 1 if anything came through."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    began = time.monotonic()
    share = -(-args.n // args.jobs)
    with ProcessPoolExecutor(args.jobs) as pool:
        results = list(pool.map(run, [share] * args.jobs, range(args.seed, args.seed + args.jobs)))
    through = [line for result in results for line in result.through]
    for line, times in Counter(through).most_common(20):
        print(times, line)
    tried, passed = sum(result.tried for result in results), sum(result.passed for result in results)
    print(f"{tried} spellings, {passed} passed, {len(through)} through, {time.monotonic() - began:.0f} s")
    return 1 if through else 0


if __name__ == "__main__":
    sys.exit(main())
