// What calls cost: by day as a chart, by model, key, team and others as a table, and the same as CSV.

import { html, useState } from "../vendor/preact.js";
import { address, all } from "../api.js";
import { count, dollars } from "../format.js";
import { Chart, Failure, Table, Tiles, useLoaded } from "../parts.js";

const BY = ["model", "upstream", "key", "team", "user", "tag", "agent", "route", "endpoint", "day"];
const PERIODS = [["24h", "a day"], ["7d", "7 days"], ["30d", "30 days"], ["90d", "90 days"]];
const NUMBERS = [
    ["calls", "calls"], ["errors", "failed"], ["input_tokens", "input"], ["output_tokens", "output"],
    ["cached_tokens", "cached"], ["reasoning_tokens", "reasoning"], ["unpriced", "without a price"],
];
// Programs that open CSV take a cell that begins so for a formula.
const FORMULA = /^[=+\-@\t\r]/;

function csv(rows) {
    const cell = (value) => `"${String(value ?? "").replace(FORMULA, "'$&").replaceAll('"', '""')}"`;
    const names = Object.keys(rows[0] ?? { calls: 0 });
    return [names, ...rows.map((row) => names.map((name) => row[name]))].map((line) => line.map(cell).join(",")).join("\r\n");
}

function save(rows, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(rows)], { type: "text/csv" }));
    link.download = name;
    link.click();
    URL.revokeObjectURL(link.href);
}

const DAY_MS = 86400000;
const LEAST_DAYS = 7;

// Days without a call have no row; a chart shows them, and a week at least.
function days(rows) {
    const found = new Map(rows.map((row) => [row.day, row]));
    const names = [...found.keys()].sort();
    if (!names.length) return [];
    const all = [];
    const last = Date.parse(names.at(-1));
    for (let at = Math.min(Date.parse(names[0]), last - (LEAST_DAYS - 1) * DAY_MS); at <= last; at += DAY_MS) {
        const row = found.get(new Date(at).toISOString().slice(0, 10));
        all.push({ at_s: at / 1000, cost: Number(row?.cost_usd ?? 0), calls: row?.calls ?? 0 });
    }
    return all;
}

export function Usage() {
    const [by, setBy] = useState("model");
    const [since, setSince] = useState("30d");
    const [rows, error] = useLoaded(() => all(address("/api/v1/usage", { by, since })), [by, since]);
    const [daily] = useLoaded(() => all(address("/api/v1/usage", { by: "day", since })), [since]);
    const chosen = html`<div class="row">
        <label>By<select value=${by} onChange=${(event) => setBy(event.target.value)}>${BY.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
        <label>Since<select value=${since} onChange=${(event) => setSince(event.target.value)}>${PERIODS.map(([each, text]) => html`<option key=${each} value=${each}>${text}</option>`)}</select></label>
        <button disabled=${!rows?.length} onClick=${() => save(rows, `velox-usage-by-${by}.csv`)}>Save as CSV</button>
    </div>`;
    if (!rows) return html`${chosen}<${Failure} error=${error} />`;
    const total = (name) => rows.reduce((all, row) => all + Number(row[name]), 0);
    const sorted = by === "day" ? rows : [...rows].sort((one, other) => Number(other.cost_usd) - Number(one.cost_usd) || other.calls - one.calls);
    const columns = [
        { name: by, text: true, cell: (row) => row[by] || html`<span class="soft">none</span>` },
        { name: "cost", number: true, cell: (row) => dollars(row.cost_usd) },
        ...NUMBERS.map(([name, title]) => ({ name: title, number: true, cell: (row) => count(row[name]) })),
    ];
    const points = days(daily ?? []);
    const tiles = [["Cost", dollars(total("cost_usd"))], ["Calls", count(total("calls"))], ["Failed", count(total("errors"))], ["Tokens in", count(total("input_tokens"))], ["Tokens out", count(total("output_tokens"))]];
    return html`${chosen}<${Failure} error=${error} /><${Tiles} tiles=${tiles} />
        ${points.length > 0 && html`<div class="charts">
            <${Chart} title="Cost by day (UTC)" bars=${true} times=${points.map((each) => each.at_s)} format=${dollars} series=${[{ name: "cost", values: points.map((each) => each.cost), colour: "--one" }]} />
            <${Chart} title="Calls by day (UTC)" bars=${true} whole=${true} times=${points.map((each) => each.at_s)} format=${count} series=${[{ name: "calls", values: points.map((each) => each.calls), colour: "--four" }]} />
        </div>`}
        <h2>By ${by}</h2>
        <${Table} caption=${`Calls, tokens and cost by ${by}`} columns=${columns} rows=${sorted} rowKey=${(row) => row[by]} empty="no calls in this time" />`;
}
