// Client set-up: what to paste for agents and SDKs, with the address of this gateway.

import { html, useState } from "../vendor/preact.js";
import { read } from "../api.js";
import { reached } from "../format.js";
import { Failure, useLoaded } from "../parts.js";

// [name, text] of each client.
export const setups = (base, key, model, prompt = "Hello") => [
    ["curl", `curl ${base}/v1/chat/completions \\
  -H 'Authorization: Bearer ${key}' -H 'Content-Type: application/json' \\
  -d '${JSON.stringify({ model, messages: [{ role: "user", content: prompt }] }).replaceAll("'", "'\\''")}'`],
    ["OpenAI SDK, Python", `from openai import OpenAI

client = OpenAI(base_url="${base}/v1", api_key="${key}")
answer = client.chat.completions.create(model=${JSON.stringify(model)}, messages=[{"role": "user", "content": ${JSON.stringify(prompt)}}])
print(answer.choices[0].message.content)`],
    ["OpenAI SDK, Node", `import OpenAI from "openai";

const client = new OpenAI({ baseURL: "${base}/v1", apiKey: "${key}" });
const answer = await client.chat.completions.create({ model: ${JSON.stringify(model)}, messages: [{ role: "user", content: ${JSON.stringify(prompt)} }] });
console.log(answer.choices[0].message.content);`],
    ["Anthropic SDK, Python", `from anthropic import Anthropic

client = Anthropic(base_url="${base}", auth_token="${key}")
answer = client.messages.create(model="${model}", max_tokens=200, messages=[{"role": "user", "content": "Hello"}])
print(answer.content[0].text)`],
    ["Claude Code", `export ANTHROPIC_BASE_URL=${base}
export ANTHROPIC_AUTH_TOKEN=${key}
export ANTHROPIC_MODEL=${model}
export ANTHROPIC_DEFAULT_HAIKU_MODEL=${model}
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
claude`],
    ["Codex: ~/.codex/config.toml, with the key in GATEWAY_KEY", `model = "${model}"
model_provider = "velox"

[model_providers.velox]
name = "Velox"
base_url = "${base}/v1"
env_key = "GATEWAY_KEY"
wire_api = "responses"
supports_websockets = true`],
    ["Gemini CLI", `export GEMINI_API_KEY=${key}
export GOOGLE_GEMINI_BASE_URL=${base}
gemini -m ${model}`],
];

export function Clients() {
    const [gateway, error] = useLoaded(() => read("/gateway"), []);
    const [key, setKey] = useState("YOUR_KEY");
    const [model, setModel] = useState("MODEL");
    const [address, setAddress] = useState(null);
    if (!gateway) return html`<${Failure} error=${error} />`;
    const base = (address ?? reached(gateway.address)).replace(/\/+$/, "");
    return html`<p>What to paste so that a client asks this gateway. The key stays in this page: nothing of it is sent.</p>
        <div class="row">
            <label>Address of the gateway<input value=${base} size="32" onInput=${(event) => setAddress(event.target.value)} /></label>
            <label>Key<input value=${key} size="32" autocomplete="off" spellcheck=${false} onInput=${(event) => setKey(event.target.value)} /></label>
            <label>Model<input value=${model} onInput=${(event) => setModel(event.target.value)} /></label>
        </div>
        ${setups(base, key, model).map(([name, text]) => html`<section key=${name}><h2>${name}</h2><pre tabindex="0" aria-label=${name}>${text}</pre>
            <button onClick=${() => navigator.clipboard?.writeText(text)}>Copy</button></section>`)}`;
}
