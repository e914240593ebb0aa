"""The sixteen scenarios of the public Failover Bench: what its provider does, what it measures, and how it judges.

Knows: each scenario's fault and checks, as in its catalogue (methodology 0.1), and the two files that are played: with
time-outs and reasons (TUNED), and with one fallback and nothing else (DEFAULTS). Does not know: how a gateway is run.

    pass     the ideal outcome: the whole answer; for S13 a clean error. All checks hold
    partial  the ideal outcome, but a check failed that is advisory
    safe     no answer, but a clean error in time, and all other checks hold
    fail     a hang, a cut answer taken for a whole one, or a check that is not advisory failed

Waiting may be scaled: where the catalogue's provider waits 20 s for a token, and allows so many seconds, both are. Its
Retry-After stays as it is; S15 is its own short sequence. Velox's own time-outs are scaled, too, where its defaults are
played (scaled_defaults); at a scale of 1 nothing is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.e2e.recording import JSON, SSE, Call, RecordingUpstream

__all__ = [
    "DEFAULTS",
    "SCENARIOS",
    "TUNED",
    "FlakyProvider",
    "Scenario",
    "Seen",
    "ask",
    "config",
    "judge",
    "measure",
    "scaled_defaults",
]

SCALE: Final = 0.3  # of the catalogue's waits, and of what it allows for them
SLOW_S: Final = 20.0
FLAP_DOWN_S: Final = 6.0
N_FLAP: Final = 10
FLAP_EVERY_S: Final = 1.2
MOST_S: Final = 100.0  # a hang
# Of Velox, in seconds: those of its time-outs that a scenario waits for.
_DEFAULT_TIMEOUTS: Final = {"first_byte": 60.0, "idle": 600.0, "stall": 40.0}

TUNED: Final = "tuned"
DEFAULTS: Final = "defaults"

ANSWER: Final = [f"word{n}" for n in range(60)]
_MESSAGES: Final = [{"role": "user", "content": "Explain in exactly sixty words why a gateway earns trust."}]


# -- the gateway's file ----------------------------------------------------------------------------------


def config(origin: str, kind: str = TUNED) -> dict[str, object]:
    """Return the file: one provider, and one fallback of it with a model of its own. kind: TUNED or DEFAULTS."""
    is_tuned = kind == TUNED
    more = {"timeouts": {"first_byte": "1s", "idle": "1s", "first_event": "1s"}} if is_tuned else {}
    reasons = {"for": "failure, context_length"} if is_tuned else {}
    upstreams = [{"name": name, "origin": origin, **more} for name in ("primary", "backup")]
    routes = [
        {
            "name": fallback,
            "match": {"models": models},
            "to": "primary",
            "fallback": [{"upstream": "backup", "model": fallback, **reasons}],
        }
        for fallback, models in (("fb-ok-noprefill", "fb-s14"), ("fb-ok", "fb-*"))
    ]
    return {"upstreams": upstreams, "routes": routes}


def scaled_defaults(scale: float) -> dict[str, str]:
    """Return the settings that make Velox's default time-outs as much shorter as the catalogue's; none for 1."""
    if scale == 1.0:
        return {}
    return {f"upstream_{name}_timeout": f"{round(1000 * at * scale)}ms" for name, at in _DEFAULT_TIMEOUTS.items()}


# -- the provider -------------------------------------------------------------------------------------


class FlakyProvider(RecordingUpstream):
    """Does one thing wrong for each model: `fb-sNN`. Other models are answered. scale: of its waits."""

    def __init__(self, scale: float = SCALE) -> None:
        super().__init__(script=self._play)
        self.scale: Final = scale
        self.began_s = time.monotonic()

    def attempts(self, model: str) -> list[Call]:
        """Return the attempts for one model, oldest first."""
        return [call for call in tuple(self.calls) if call.body and json.loads(call.body).get("model") == model]

    async def _play(self, call: Call) -> None:
        if "chat/completions" not in call.target:
            await call.reply(200, JSON, b'{"object":"list","data":[]}')
            return
        model = json.loads(call.body)["model"]
        await _FAULTS.get(model, _answer)(self, call, model, len(self.attempts(model)))


_Fault = Callable[["FlakyProvider", Call, str, int], Any]


def _chunk(model: str, delta: Mapping[str, str], finish: str | None = None, **more: object) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: %b\n\n" % json.dumps({"id": "x", "model": model, "choices": choices, **more}).encode()


async def _answer(_provider: FlakyProvider, call: Call, model: str, _nth: int) -> None:
    await _stream(call, model)


async def _stream(call: Call, model: str, *, at: int = -1, fault: str = "", slow_s: float = 0.0) -> None:
    """Stream the answer. fault: what happens before word `at`. slow_s: before the first."""
    await call.head(200, SSE)
    await call.drain()
    if slow_s:
        await _wait(call, slow_s)
    await call.data(_chunk(model, {"role": "assistant", "content": ""}))
    for n, word in enumerate(ANSWER):
        if n == at and fault == "cut":
            await call.drain()
            await asyncio.sleep(0.02)
            call.cut()
            return
        if n == at and fault == "stall":
            await call.silence()
            return
        if n == at and fault == "malformed":
            await call.data(b'data: {"id": "x", "choices": [{"delta": {"content": \n\n')
        await call.data(_chunk(model, {"content": word + " "}))
    usage = {"prompt_tokens": 14, "completion_tokens": 60, "total_tokens": 74}
    await call.data(_chunk(model, {}, "stop"))
    await call.data(b"data: %b\n\n" % json.dumps({"id": "x", "model": model, "choices": [], "usage": usage}).encode())
    if fault != "no-done":
        await call.data(b"data: [DONE]\n\n")
    await call.end()


async def _wait(call: Call, seconds: float) -> None:
    """Wait so long, or until the gateway leaves."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await call.silence()


def _broken_stream(fault: str, at: int = -1) -> _Fault:
    async def script(_provider: FlakyProvider, call: Call, model: str, _nth: int) -> None:
        await _stream(call, model, at=at, fault=fault)

    return script


async def _slow(provider: FlakyProvider, call: Call, model: str, _nth: int) -> None:
    await _stream(call, model, slow_s=SLOW_S * provider.scale)


def _error(
    status: int, code: str | None = None, fields: Sequence[tuple[str, str]] = (), *, once: bool = False
) -> _Fault:
    """Answer with an error: always, or at the first attempt."""

    async def script(_provider: FlakyProvider, call: Call, model: str, nth: int) -> None:
        if once and nth > 1:
            await _stream(call, model)
            return
        error = {"message": "the provider says no", "type": "x", "param": None, "code": code}
        await call.reply(status, [*JSON, *fields], json.dumps({"error": error}).encode())

    return script


async def _reset_once(_provider: FlakyProvider, call: Call, model: str, nth: int) -> None:
    if nth > 1:
        await _stream(call, model)
        return
    await asyncio.sleep(0.05)
    call.lose()


async def _silence(_provider: FlakyProvider, call: Call, _model: str, _nth: int) -> None:
    await call.silence()


async def _flap(provider: FlakyProvider, call: Call, model: str, nth: int) -> None:
    if time.monotonic() - provider.began_s < FLAP_DOWN_S:
        await _error(503, "overloaded")(provider, call, model, nth)
    else:
        await _stream(call, model)


async def _no_prefill(provider: FlakyProvider, call: Call, model: str, nth: int) -> None:
    if json.loads(call.body)["messages"][-1]["role"] == "assistant":
        await _error(400, "invalid_prefill")(provider, call, model, nth)
    else:
        await _stream(call, model)


_FAULTS: Final[Mapping[str, _Fault]] = {
    "fb-s01": _error(429, "rate_limit_exceeded", [("retry-after", "2")], once=True),
    "fb-s02": _error(429, "rate_limit_exceeded"),
    "fb-s03": _error(500, once=True),
    "fb-s04": _error(503, "overloaded"),
    "fb-s05": _reset_once,
    "fb-s06": _silence,
    "fb-s07": _slow,
    "fb-s08": _broken_stream("cut", 40),
    "fb-s09": _broken_stream("stall", 20),
    "fb-s10": _broken_stream("malformed", 10),
    "fb-s11": _broken_stream("no-done"),
    "fb-s12": _error(400, "context_length_exceeded"),
    "fb-s13": _error(400, "content_policy_violation"),
    "fb-s14": _broken_stream("cut", 40),
    "fb-s15": _flap,
    "fb-s16": _error(503, "overloaded"),
    "fb-ok-noprefill": _no_prefill,
}


# -- the client -----------------------------------------------------------------------------------------


@dataclass
class Result:
    """What one call brought. error: "" for an answer that looks whole."""

    error: str = ""
    words: list[str] = field(default_factory=list)
    model: str = ""
    usage: object = None
    took_s: float = 0.0

    @property
    def is_answer(self) -> bool:
        return not self.error and self.words == ANSWER


def ask(port: int, model: str, most_s: float = MOST_S * SCALE) -> Result:
    """Ask for a stream as a careful client does: it skips events that are no JSON, and takes an error event for one."""
    result, began_s = Result(), time.monotonic()
    wanted = {"model": model, "messages": _MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=most_s)
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(wanted), {"content-type": "application/json", "host": "x.test"}
        )
        reply = connection.getresponse()
        if reply.status != 200:
            result.error = f"HTTP {reply.status}: {reply.read()[:200]!r}"
        else:
            _read_events(reply, result)
    except TimeoutError:
        result.error = "hang"
    except (http.client.HTTPException, OSError) as exc:
        result.error = repr(exc)
    finally:
        connection.close()
    result.took_s = time.monotonic() - began_s
    return result


def _read_events(reply: http.client.HTTPResponse, result: Result) -> None:
    for line in iter(reply.readline, b""):
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:"):
            continue
        if data == b"[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError:
            continue
        if event.get("error"):
            result.error = f"error event: {event['error']}"
            return
        result.model = event.get("model") or result.model
        result.usage = event.get("usage") or result.usage
        for choice in event["choices"]:
            result.words += (choice["delta"].get("content") or "").split()


# -- scenarios and verdicts -----------------------------------------------------------------------------


@dataclass
class Seen:
    """What client and provider have seen of one scenario. results: one, but for S15. fallback: its model."""

    results: list[Result]
    first: list[Call]
    second: list[Call]
    fallback: str
    is_alive: bool
    down_s: float = 0.0
    scale: float = SCALE

    @property
    def took_s(self) -> float:
        return self.results[0].took_s

    def took_at_most(self, seconds: float) -> bool:
        """Say whether the answer took no more than what the catalogue allows, scaled."""
        return self.took_s <= seconds * self.scale

    def within(self, seconds: float) -> int:
        """Count the attempts in the first seconds."""
        return sum(call.came_s - self.first[0].came_s < seconds for call in self.first)

    @property
    def gap_s(self) -> float:
        """Seconds between the first two attempts; 0 without a second one."""
        return self.first[1].came_s - self.first[0].came_s if len(self.first) > 1 else 0.0


_Check = Callable[[Seen], bool]


@dataclass(frozen=True)
class Scenario:
    """One of the sixteen. must, should: checks that are required, and advisory."""

    title: str
    must: Sequence[_Check] = ()
    should: Sequence[_Check] = ()
    is_error_ideal: bool = False
    fallback: str = "fb-ok"


def _bounded(seen: Seen) -> bool:
    return len(seen.first) <= 6


def _one_attempt(seen: Seen) -> bool:
    return len(seen.first) == 1


def _again(seen: Seen) -> bool:
    return len(seen.first) >= 2


def _alive(seen: Seen) -> bool:
    return seen.is_alive


def _usage(seen: Seen) -> bool:
    return bool(seen.results[0].usage)


def _whole(seen: Seen) -> bool:
    return seen.results[0].is_answer


def _recovered(seen: Seen) -> bool:
    """The first is used again within 30 s of being back."""
    served = [call.came_s for call in seen.first if call.came_s >= seen.down_s]
    return bool(served) and min(served) - seen.down_s <= 30.0


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "S01": Scenario(
        "429 with Retry-After 2", [lambda seen: seen.within(1.5) <= 2], [_again, lambda seen: seen.gap_s >= 1.8]
    ),
    "S02": Scenario("429 for ever", [lambda seen: seen.within(3.0) <= 4, _bounded]),
    "S03": Scenario("500 once", should=[_again]),
    "S04": Scenario("503 for ever", [_bounded]),
    "S05": Scenario("reset before a byte"),
    "S06": Scenario("no response", [lambda seen: seen.took_at_most(100)], [_one_attempt]),
    "S07": Scenario("slow first token", should=[lambda seen: seen.took_at_most(15)]),
    "S08": Scenario("stream cut in the middle"),
    "S09": Scenario("stream stalls", [lambda seen: seen.took_at_most(45), _alive]),
    "S10": Scenario("malformed event", [_alive], [_whole]),
    "S11": Scenario("no [DONE]", [lambda seen: seen.took_s <= 8], [_usage]),
    "S12": Scenario("context length exceeded", [_one_attempt]),
    "S13": Scenario("content filter", [_one_attempt], is_error_ideal=True),
    "S14": Scenario(
        "stream cut; the fallback takes no prefill",
        [lambda seen: not any(b'"role": "assistant"' in call.body for call in seen.second)],
        fallback="fb-ok-noprefill",
    ),
    "S15": Scenario("upstream flaps", [_recovered]),
    "S16": Scenario("fail-over accounting", [lambda seen: seen.results[0].model == "fb-ok", _bounded], [_usage]),
}


def measure(name: str, provider: FlakyProvider, port: int) -> Seen:
    """Play one scenario through a gateway."""
    scenario, model = SCENARIOS[name], f"fb-{name.lower()}"
    provider.forget()
    provider.began_s = time.monotonic()
    results = []
    for n in range(N_FLAP if name == "S15" else 1):
        time.sleep(max(0.0, provider.began_s + n * FLAP_EVERY_S - time.monotonic()))
        results.append(ask(port, model, MOST_S * provider.scale))
    first, second = provider.attempts(model), provider.attempts(scenario.fallback)
    is_alive = ask(port, "fb-ok").is_answer
    return Seen(results, first, second, scenario.fallback, is_alive, provider.began_s + FLAP_DOWN_S, provider.scale)


def judge(name: str, seen: Seen) -> str:
    """Return the verdict."""
    scenario = SCENARIOS[name]
    if any(result.error == "hang" for result in seen.results):
        return "fail"
    if any(not result.error and not result.is_answer for result in seen.results):
        return "fail"  # a cut answer that looks whole
    if not all(check(seen) for check in scenario.must):
        return "fail"
    has_answer = all(result.is_answer for result in seen.results)
    if scenario.is_error_ideal and has_answer:
        return "partial"
    if not scenario.is_error_ideal and not has_answer:
        return "safe"
    return "pass" if all(check(seen) for check in scenario.should) else "partial"
