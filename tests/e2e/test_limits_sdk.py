"""What the OpenAI SDK sees of limits: 429s that it sleeps off, what is left, streams whose usage nobody asked for."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from tests.e2e.harness import KEY, VeloxProcess
from tests.e2e.test_docs_examples import run
from tests.markdown import ROOT, blocks

MESSAGES: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Say something about limits."}]
DECISIONS = 'velox_limit_decisions_total{{decision="{}",scope="key",unit="tokens"}}'
# So little comes back in a minute that what is left is what was not used, but for a few.
BURST = 10_000
SLOW = {"VELOX_KEY_TPM": "60", "VELOX_KEY_TPM_BURST": str(BURST)}
LIMITED = {"VELOX_WORKERS": "1", "VELOX_API_KEYS": KEY, "VELOX_RATE_LIMIT_RPM": "0", "VELOX_RATE_LIMIT_MAX_WAIT": "0"}


@pytest.fixture
def slow() -> Iterator[VeloxProcess]:
    """A key with many tokens at once and few a minute."""
    with VeloxProcess({**LIMITED, **SLOW}, ("serve", "--sim")) as velox:
        yield velox


def left(sdk: openai.OpenAI) -> int:
    """Return what a key has left, beside what the request that asks is taken to need."""
    raw = sdk.with_raw_response.embeddings.create(model="m", input="a")
    return int(raw.headers["x-ratelimit-remaining-tokens"])


def test_sdk_sleeps_as_told_and_passes_at_once() -> None:
    """A token limit without room: one 429, one sleep, one answer; the SDK's first retry is never refused."""
    env = {**LIMITED, "VELOX_KEY_TPM": "60k", "VELOX_KEY_TPM_BURST": "1200"}
    with VeloxProcess(env, ("serve", "--sim")) as velox:
        sdk = velox.openai(max_retries=1)
        for _ in range(3):
            # While it runs, each is taken to need 1,000 tokens: the second has to wait for what a second gives, or for
            # the end of the first.
            with sdk.chat.completions.create(model="m", messages=MESSAGES, max_tokens=1000, stream=True):
                assert sdk.chat.completions.create(model="m", messages=MESSAGES, max_tokens=1000).choices

        velox.wait_metric(DECISIONS.format("granted"), lambda n: n == 6)
        assert 1 <= velox.metric(DECISIONS.format("refused")) <= 6, "each that was refused passed when it came back"


def test_refusal_of_tokens_says_which_limit_and_when(slow: VeloxProcess) -> None:
    """The SDK's own class, with the limit's name, the time, and what is left."""
    sdk = slow.openai()
    with sdk.chat.completions.create(model="m", messages=MESSAGES, max_tokens=9000, stream=True):
        with pytest.raises(openai.RateLimitError) as caught:
            sdk.chat.completions.create(model="m", messages=MESSAGES, max_tokens=2000)

        headers = caught.value.response.headers
        assert caught.value.code == "rate_limited"
        assert "this key's token limit is reached (VELOX_KEY_TPM)" in caught.value.message
        assert KEY not in caught.value.message
        assert int(headers["retry-after-ms"]) > 900_000, "a thousand tokens at one a second"
        assert headers["x-ratelimit-limit-tokens"] == str(BURST)
        assert 0 < int(headers["x-ratelimit-remaining-tokens"]) < 1000
        assert headers["x-ratelimit-reset-tokens"].endswith("s")


def test_request_that_can_never_pass_is_not_retried(slow: VeloxProcess) -> None:
    """More than the limit ever holds: 429 without a time, and the SDK is told not to come back."""
    with pytest.raises(openai.RateLimitError) as caught:
        slow.openai(max_retries=5).chat.completions.create(model="m", messages=MESSAGES, max_tokens=BURST)

    assert "can never pass" in caught.value.message
    assert "retry-after" not in caught.value.response.headers
    slow.wait_metric(DECISIONS.format("refused"), lambda n: n == 1)


@pytest.mark.parametrize("asks", [False, True], ids=["unasked", "asked"])
def test_streamed_usage_is_settled_and_shown_only_if_asked_for(slow: VeloxProcess, asks: bool) -> None:
    """The estimate of 5,000 tokens becomes what the upstream tells; a client that did not ask does not see it."""
    sdk = slow.openai()
    before = left(sdk)
    options: openai.types.chat.ChatCompletionStreamOptionsParam | openai.Omit = openai.omit
    if asks:
        options = {"include_usage": True}

    with sdk.chat.completions.create(
        model="m", messages=MESSAGES, max_tokens=5000, stream=True, stream_options=options
    ) as stream:
        chunks = list(stream)

    told = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert len(told) == asks
    assert asks or all(chunk.choices and "usage" not in chunk.model_fields_set for chunk in chunks)
    used = {kind: slow.metric(f'velox_tokens_total{{kind="{kind}"}}') for kind in ("input", "output")}
    assert used["output"] == sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks)
    after = left(sdk)
    # Before, after and between: three requests' tokens, and what a second or two gave back.
    assert 0 < before - after <= used["input"] + used["output"] + 100
    if asks:
        assert told[0].completion_tokens == used["output"]


def test_snippet_of_the_page_prints_what_is_left(slow: VeloxProcess, tmp_path: Path) -> None:
    """docs/limits.md: run as it is shown, with another address."""
    (snippet,) = blocks(ROOT / "docs/limits.md", "python")
    text = snippet.replace("http://127.0.0.1:8080", slow.base_url)

    done = run([sys.executable, "-c", text], tmp_path, {"GATEWAY_KEY": KEY})

    answer, told = done.stdout.splitlines()
    assert len(answer.split()) > 5
    assert re.fullmatch(rf"\d+ of {BURST} tokens left, all again in \w+(\.\d+)?s", told), told
