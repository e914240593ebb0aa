"""OpenAI's SDK in Chromium: its runner of tools, and a loop by Responses, on each kind of upstream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients.farm import KEY, KINDS, MODEL_NAMES, Farm
from tests.clients.running import NODE_MODULES, package
from tests.clients.test_farm import PLAN, SAID
from tests.e2e.test_cors import CHROMIUM, opened, pages

PAGE: Final = """<!doctype html><script type="module">
import OpenAI from "/openai/index.mjs";
const { address, apiKey, model, said, way } = GIVEN;
const openai = new OpenAI({ baseURL: `${address}/v1`, apiKey, dangerouslyAllowBrowser: true, maxRetries: 0 });
const parameters = {
    type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };
const question = "How is the weather?";
const look = (written) => said[JSON.parse(written).city];
const WAYS = {
    async chat(stream) {
        const tools = [{ type: "function", function: {
            name: "look", description: "The weather.", parameters, function: look } }];
        const messages = [{ role: "user", content: question }];
        return openai.chat.completions.runTools({ model, messages, tools, stream }).finalContent();
    },
    async responses(stream) {
        const tools = [{ type: "function", name: "look", description: "The weather.", parameters, strict: true }];
        const input = [{ role: "user", content: question }];
        for (;;) {
            const asked = { model, input, tools, store: false, include: ["reasoning.encrypted_content"] };
            const answer = stream
                ? await openai.responses.stream(asked).finalResponse() : await openai.responses.create(asked);
            const calls = answer.output.filter((item) => item.type === "function_call");
            if (!calls.length) return answer.output_text;
            input.push(...answer.output.map(({ parsed_arguments, ...item }) => item));
            for (const { call_id, arguments: written } of calls)
                input.push({ type: "function_call_output", call_id, output: look(written) });
        }
    },
};
let told;
try { told = { text: await WAYS[way[0]](way[1]) }; } catch (error) { told = { error: String(error) }; }
await fetch("/told", { method: "POST", body: JSON.stringify(told) });
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: tests/install-tools.sh")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_tool_loop(velox_farm: Farm, api: str, is_streamed: bool, kind: str, tmp_path: Path) -> None:
    """A page of an origin that `cors` names asks with a key of the gateway."""
    package("openai/index.mjs")
    given: dict[str, Any] = {"address": velox_farm.velox.base_url, "apiKey": KEY, "model": MODEL_NAMES[kind]}
    given |= {"said": SAID, "way": [api, is_streamed]}
    page = PAGE.replace("GIVEN", json.dumps(given))
    with pages(page, NODE_MODULES) as (port, told, _), velox_farm.playing(kind, PLAN):
        seen = opened(f"http://127.0.0.1:{port}/", told, tmp_path)
        assert seen == {"text": PLAN.final}
