// Single calls, the newest first: which upstream had each, how it ended, what it took. By request id one sees all attempts.

import { html, useState } from "../vendor/preact.js";
import { address, read } from "../api.js";
import { count, dollars, moment, seconds } from "../format.js";
import { Failure, Table, useLoaded } from "../parts.js";

const SHOWN = 200;
const PAGE = 2000;
const SPANS_S = [60, 600, 7200, 86400, 7 * 86400];

// The API lists calls from the oldest: longer and longer times until there are enough, the last page of which counts.
async function newest(where) {
    let found = [];
    for (const span_s of SPANS_S) {
        const since = new Date(Date.now() - span_s * 1000).toISOString().replace(/\.\d+Z$/, "Z");
        found = [];
        let cursor = null;
        do {
            const page = await read(address("/api/v1/calls", { ...where, since, limit: PAGE, cursor }));
            found = [...found.slice(-PAGE), ...page.data];
            cursor = page.cursor;
        } while (cursor != null);
        if (found.length >= SHOWN) break;
    }
    return found.reverse();
}

const ms = (n) => (n == null ? "–" : seconds(n / 1000));

const COLUMNS = [
    { name: "time", line: true, cell: (call) => moment(call.started_us / 1000) },
    { name: "request", line: true, cell: (call) => html`<a class="mono" href=${`#/calls?id=${encodeURIComponent(call.id)}`}>${call.id}</a>${call.attempt > 1 ? html` <small class="soft">attempt ${call.attempt}</small>` : ""}` },
    { name: "status", cell: (call) => html`<span class=${call.reason === "ok" ? "good" : "bad"}>${call.status ?? "–"} ${call.reason === "ok" ? "" : call.reason}</span>` },
    { name: "model", text: true, cell: (call) => call.model || "–" },
    { name: "upstream", text: true, cell: (call) => (call.upstream_model && call.upstream_model !== call.model ? `${call.upstream} (${call.upstream_model})` : call.upstream) },
    { name: "key", text: true, cell: (call) => call.key || html`<span class="soft">none</span>` },
    { name: "first byte", number: true, cell: (call) => ms(call.first_byte_ms) },
    { name: "took", number: true, cell: (call) => ms(call.duration_ms) },
    { name: "in", number: true, cell: (call) => count(call.input_tokens) },
    { name: "out", number: true, cell: (call) => count(call.output_tokens) },
    { name: "cost", number: true, cell: (call) => (call.cost_state === "unknown" ? html`<span class="soft">unknown</span>` : dollars(call.cost_usd)) },
];

const isBad = (call) => call.reason !== "ok";

export function Calls() {
    const given = new URLSearchParams(location.hash.split("?")[1] ?? "");
    const [id, setId] = useState(given.get("id") ?? "");
    const [onlyFailed, setOnlyFailed] = useState(given.get("failed") === "1");
    const [model, setModel] = useState("");
    const [calls, error, again] = useLoaded(() => newest({ model }), [model]);
    const rows = (calls ?? []).filter((call) => (!onlyFailed || isBad(call)) && (!id || call.id.includes(id))).slice(0, SHOWN);
    return html`<form class="row" onSubmit=${(event) => { event.preventDefault(); again(); }}>
        <label>Request id<input value=${id} placeholder="x-velox-request-id" onInput=${(event) => setId(event.target.value.trim())} /></label>
        <label>Model<input value=${model} onChange=${(event) => setModel(event.target.value.trim())} /></label>
        <label><span>Only failed</span><input type="checkbox" checked=${onlyFailed} onChange=${(event) => setOnlyFailed(event.target.checked)} /></label>
        <button>Read again</button>
    </form>
    <${Failure} error=${error} />
    ${calls ? html`<${Table} caption=${`The newest calls, one line an attempt, ${SHOWN} at most`} columns=${COLUMNS} rows=${rows} rowKey=${(call) => `${call.id} ${call.attempt} ${call.started_us}`} isBad=${isBad} empty="no call fits" />`
        : !error && html`<p class="soft">Reading the calls …</p>`}`;
}
