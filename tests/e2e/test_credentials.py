"""Credentials of clouds that fail, that are refused before their time, and that an upstream shows."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from email.utils import formatdate
from pathlib import Path

import openai
import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import MESSAGES, Entry, routed
from tests.e2e.watching import until
from tests.patience import PATIENCE_S
from tests.recorded import recorded

AWS_PLAIN = next(each for each in recorded("bedrock", "/converse", stream=False) if b'"text"' in each.reply)
GOOGLE_PLAIN = next(each for each in recorded("vertex", ":generateContent", stream=False) if b'"text"' in each.reply)
AWS_ERROR = (*JSON, ("x-amzn-errortype", "ExpiredTokenException:http://internal.amazon.com/"))
FAILING = 'velox_upstream_credentials_failing{upstream="cloud"}'
KEY_ID, SECRET_KEY = "ASIAEXAMPLE", "secret-key-example"


class Cloud:
    """Gives tokens, and is the upstream that takes the newest of them only.

    gives: False: it gives no tokens, and says why. may_give: it gives none before this is set. shows: errors repeat the
    token. n_given: tokens so far; n_refused: requests that came with an old one, or with any while refuses_all.
    ahead_s: how much later its clock is. n_skewed: requests that were signed at another time.
    """

    def __init__(self) -> None:
        self.gives = True
        self.may_give = threading.Event()
        self.may_give.set()
        self.shows = False
        self.refuses_all = False
        self.least = 1  # the oldest token that is taken
        self.n_given = self.n_refused = 0
        self.ahead_s = 0.0
        self.n_skewed = 0
        self.said: list[str] = []

    async def answer(self, call: Call) -> None:
        """Answer one request of the gateway."""
        if call.target.startswith(("/credentials", "/computeMetadata")):
            await self._give(call)
            return
        token = call.header("x-amz-security-token") or (call.header("authorization") or "").removeprefix("Bearer ")
        signed = call.header("x-amz-date")
        now_s = time.time() + self.ahead_s
        if signed is not None and abs(datetime.strptime(signed, "%Y%m%dT%H%M%S%z").timestamp() - now_s) > 300.0:
            self.n_skewed += 1
            headers = (
                *JSON,
                ("x-amzn-errortype", "InvalidSignatureException"),
                ("date", formatdate(now_s, usegmt=True)),
            )
            await call.reply(403, headers, b'{"message": "Signature expired"}')
        elif self.refuses_all or int(token.rpartition("-")[2] or 0) < self.least:
            self.n_refused += 1
            text = f"it has expired: {token}" if self.shows else "it has expired"
            is_aws = call.header("x-amz-date") is not None
            body = (
                {"message": text} if is_aws else {"error": {"code": 401, "message": text, "status": "UNAUTHENTICATED"}}
            )
            await call.reply(403 if is_aws else 401, AWS_ERROR if is_aws else JSON, json.dumps(body).encode())
        else:
            plain = AWS_PLAIN if call.target.endswith("/converse") else GOOGLE_PLAIN
            await call.reply(200, JSON, plain.reply)

    async def _give(self, call: Call) -> None:
        await asyncio.to_thread(self.may_give.wait, PATIENCE_S)
        if not self.gives:
            await call.reply(403, JSON, b'{"Code": "NoRole", "Message": "this task has no <role>"}')
            return
        self.n_given += 1
        token = f"token-example-{self.n_given}"
        aws = {
            "AccessKeyId": KEY_ID,
            "SecretAccessKey": SECRET_KEY,
            "Token": token,
            "Expiration": "2099-01-01T00:00:00Z",
        }
        google = {"access_token": token, "expires_in": 3600, "token_type": "Bearer"}
        await call.reply(200, JSON, json.dumps(aws if call.target == "/credentials" else google).encode())


@pytest.fixture
def cloud() -> Iterator[tuple[Cloud, RecordingUpstream]]:
    cloud = Cloud()
    with RecordingUpstream(script=cloud.answer) as upstream:
        yield cloud, upstream


def serving(upstream: RecordingUpstream, provider: str, home: Path) -> tuple[dict[str, list[Entry]], dict[str, str]]:
    """Return the file and the variables of a gateway with one upstream."""
    url = upstream.upstream.url
    entry: Entry = {"name": "cloud", "provider": provider, "origin": url}
    entry |= {"region": "eu-central-1"} if provider == "bedrock" else {"project": "p", "location": "global"}
    variables = {
        "HOME": str(home),
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{url}/credentials",
        "GCE_METADATA_HOST": url.removeprefix("http://"),
    }
    return {"upstreams": [entry]}, variables


def ask(velox: VeloxProcess) -> str:
    answer = velox.openai().chat.completions.create(model="gemini-x", messages=MESSAGES)
    return answer.choices[0].message.content or ""


def error_of(velox: VeloxProcess) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as caught:
        ask(velox)
    return caught.value


def wait_for_token(velox: VeloxProcess, cloud: Cloud, n: int = 1) -> None:
    until(lambda: cloud.n_given >= n, "a token was given")
    until(lambda: FAILING not in velox.metrics(), "no credentials fail")
    until(lambda: "Not as it should be" not in velox.admin("/").body.decode(), "the page is clean")


@pytest.mark.parametrize("provider", ["bedrock", "vertex"])
def test_why_no_credentials_come_is_on_the_page_in_a_metric_and_in_the_error(
    cloud: tuple[Cloud, RecordingUpstream], provider: str, tmp_path: Path
) -> None:
    state, upstream = cloud
    state.gives = False
    file, variables = serving(upstream, provider, tmp_path)

    with routed(file, **variables) as velox:
        velox.wait_metric(FAILING, lambda n: n == 1.0)
        error = error_of(velox)
        page, ready = velox.admin("/").body.decode(), velox.admin("/readyz").json()

        assert error.status_code == 502 and error.code == "upstream_credentials"
        reason = (
            "the container's credentials endpoint answered 403 (NoRole" if provider == "bedrock" else "answered 403"
        )
        assert reason in error.message
        wanted, reasons = "the credentials of the upstream cloud can't be renewed: ", ready["reasons"]
        assert ready["ready"] and isinstance(reasons, list) and [each for each in reasons if wanted in each]
        assert wanted.replace("'", "&#x27;") in page and "<role>" not in page

        state.gives = True
        wait_for_token(velox, state)
        assert ask(velox)


@pytest.mark.parametrize("provider", ["bedrock", "vertex"])
def test_a_token_that_is_refused_is_renewed_and_the_request_sent_again(
    cloud: tuple[Cloud, RecordingUpstream], provider: str, tmp_path: Path
) -> None:
    state, upstream = cloud
    file, variables = serving(upstream, provider, tmp_path)

    with routed(file, **variables) as velox:
        wait_for_token(velox, state)
        state.least = 2
        assert ask(velox)
        assert (state.n_given, state.n_refused) == (2, 1)

        state.shows, state.refuses_all = True, True
        error = error_of(velox)
        assert error.status_code in (401, 403, 502) and "token-example" not in str(error.body)
        path = "/v1beta/models/gemini-x:generateContent"  # goes up as it came, where the API is there
        reply = velox.request("POST", path, json.dumps({"contents": [{"parts": [{"text": "x"}]}]}).encode())
        assert reply.status == error.status_code and b"token-example" not in reply.body
        # Renewed a moment ago: not once more for each request that is refused.
        assert (state.n_given, state.n_refused) == (2, 3)


def test_a_signature_has_the_time_of_aws_once_that_has_refused_it(
    cloud: tuple[Cloud, RecordingUpstream], tmp_path: Path
) -> None:
    """A clock that is an hour wrong costs one request one more try, not all of them their answers."""
    state, upstream = cloud
    state.ahead_s = 3600.0
    file, variables = serving(upstream, "bedrock", tmp_path)

    with routed(file, **variables) as velox:
        wait_for_token(velox, state)
        assert ask(velox) and ask(velox)

    assert (state.n_skewed, state.n_given) == (1, 1)


@pytest.mark.parametrize("provider", ["bedrock", "vertex"])
def test_requests_wait_for_the_first_token_of_a_gateway_that_has_just_started(
    cloud: tuple[Cloud, RecordingUpstream], provider: str, tmp_path: Path
) -> None:
    state, upstream = cloud
    state.may_give.clear()
    file, variables = serving(upstream, provider, tmp_path)

    with routed(file, **variables) as velox, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, velox)
        velox.wait_metric("velox_inflight_requests", lambda n: n == 1.0)
        state.may_give.set()

        assert asked.result(PATIENCE_S)
