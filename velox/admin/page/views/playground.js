// Ask a model through the gateway, see the answer as it comes, what it took, where it went, and the same call as code.

import { html, useRef, useState } from "../vendor/preact.js";
import { chat, read } from "../api.js";
import { count, dollars, reached, seconds } from "../format.js";
import { Failure, Tiles, useLoaded } from "../parts.js";
import { events, texts } from "../sse.js";
import { setups } from "./clients.js";

const CODE = 3; // curl, Python, Node

// Adds what an event of Chat Completions says to the answer.
function add(answer, chunk) {
    const delta = chunk.choices?.[0]?.delta ?? chunk.choices?.[0]?.message ?? {};
    if (typeof delta.content === "string") answer.text += delta.content;
    if (typeof delta.reasoning_content === "string") answer.reasoning += delta.reasoning_content;
    if (chunk.usage) answer.usage = chunk.usage;
    if (chunk.error) answer.failed = chunk.error.message ?? "the stream ended with an error";
    answer.model = chunk.model ?? answer.model;
}

async function ask(session, key, body, signal, show) {
    const began = performance.now();
    const answer = { text: "", reasoning: "", model: "", usage: null, headers: [], failed: "" };
    const since = () => (performance.now() - began) / 1000;
    const response = await chat(session, key, body, signal);
    answer.headers = [...response.headers].filter(([name]) => name.startsWith("x-velox-") || name === "server-timing");
    if (!body.stream) {
        add(answer, await response.json());
        answer.first_s = answer.total_s = since();
    } else {
        for await (const data of events(texts(response.body))) {
            if (data === "[DONE]") continue;
            add(answer, JSON.parse(data));
            if (answer.first_s == null && (answer.text || answer.reasoning)) answer.first_s = since();
            answer.total_s = since();
            show({ ...answer });
        }
        answer.total_s = since();
    }
    show({ ...answer, isOver: true });
}

function Result({ answer }) {
    const of = (name) => answer.headers.find(([each]) => each === name)?.[1];
    const tiles = [
        ["First token", seconds(answer.first_s)],
        ["Whole answer", seconds(answer.total_s)],
        ["Tokens in", count(answer.usage?.prompt_tokens)],
        ["Tokens out", count(answer.usage?.completion_tokens)],
        ["Upstream", of("x-velox-upstream") ?? "–"],
        ["Model that answered", answer.model || "–"],
        ...(of("x-velox-cost") ? [["Cost", dollars(of("x-velox-cost"))]] : []),
    ];
    return html`<${Tiles} tiles=${tiles} />
        ${answer.failed && html`<div class="notice is-bad" role="alert"><p>${answer.failed}</p></div>`}
        ${answer.reasoning && html`<details><summary>Reasoning</summary><pre class="answer" tabindex="0">${answer.reasoning}</pre></details>`}
        <h2>Answer</h2><pre class="answer" tabindex="0" aria-live=${answer.isOver ? "polite" : "off"}>${answer.text}</pre>
        <details><summary>Headers of the gateway</summary><pre tabindex="0">${answer.headers.map(([name, value]) => `${name}: ${value}`).join("\n")}</pre></details>`;
}

export function Playground({ session }) {
    const [gateway, error] = useLoaded(() => read("/gateway"), []);
    const [fields, set] = useState({ model: "", prompt: "Say hello in three languages.", key: "", most: 200, stream: true });
    const [answer, show] = useState(null);
    const [failed, setFailed] = useState(null);
    const running = useRef(null);
    const [isRunning, setRunning] = useState(false);
    const change = (name, value) => set({ ...fields, [name]: value });
    const send = async (event) => {
        event.preventDefault();
        const { model, prompt, key, most, stream } = fields;
        const body = { model, max_tokens: Number(most), messages: [{ role: "user", content: prompt }], stream };
        if (stream) body.stream_options = { include_usage: true };
        running.current = new AbortController();
        setRunning(true);
        setFailed(null);
        show(null);
        try {
            await ask(session, key, body, running.current.signal, show);
        } catch (problem) {
            if (problem.name !== "AbortError") setFailed(problem);
        }
        setRunning(false);
    };
    if (!gateway) return html`<${Failure} error=${error} />`;
    if (session.role === "viewer") return html`<p>Who signs in with the admin token may ask models here.</p>`;
    const code = setups(reached(gateway.address), fields.key || "YOUR_KEY", fields.model || "MODEL", fields.prompt).slice(0, CODE);
    return html`<form onSubmit=${send}>
        <div class="row">
            <label>Model<input value=${fields.model} required onInput=${(event) => change("model", event.target.value.trim())} /></label>
            <label>Key of a client<input type="password" autocomplete="off" value=${fields.key} onInput=${(event) => change("key", event.target.value.trim())} /></label>
            <label>Most tokens<input type="number" min="1" value=${fields.most} onInput=${(event) => change("most", event.target.value)} /></label>
            <label>Stream<input type="checkbox" checked=${fields.stream} onChange=${(event) => change("stream", event.target.checked)} /></label>
        </div>
        <label>Prompt<textarea required value=${fields.prompt} onInput=${(event) => change("prompt", event.target.value)}></textarea></label>
        <div class="row"><button class="main" disabled=${isRunning}>Send</button>
            <button type="button" disabled=${!isRunning} onClick=${() => running.current.abort()}>Stop</button>
            <span class="soft">The call is a real one: limits, budgets and prices of the key count.</span></div>
    </form>
    <${Failure} error=${failed} />
    ${answer && html`<${Result} answer=${answer} />`}
    <h2>The same call as code</h2>
    ${code.map(([name, text]) => html`<section key=${name}><h3>${name}</h3><pre tabindex="0" aria-label=${name}>${text}</pre></section>`)}`;
}
