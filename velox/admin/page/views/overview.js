// What is going on now: rates, times, what fails, what is wrong, the workers.

import { html } from "../vendor/preact.js";
import { all, address, read } from "../api.js";
import { bytes, count, dollars, percent, rate, seconds } from "../format.js";
import { grownBy, sum, sumBy } from "../metrics.js";
import { Chart, Table, Tiles, useFeed, useLoaded } from "../parts.js";

const RECENT_S = 300;
const CPU_WINDOW_S = 10;
const COST_PAUSE_MS = 15000;

function useCostToday() {
    const today = new Date().toISOString().slice(0, 10);
    const minute = Math.floor(Date.now() / COST_PAUSE_MS);
    const [value] = useLoaded(() => all(address("/api/v1/usage", { by: "upstream", since: today })), [minute]);
    return value && value.reduce((total, row) => total + Number(row.cost_usd), 0);
}

function Problems() {
    const minute = Math.floor(Date.now() / COST_PAUSE_MS);
    const [gateway] = useLoaded(() => read("/gateway"), [minute]);
    if (!gateway?.problems.length) return null;
    return html`<div class="notice is-bad" role="status"><p>Not as it should be:</p>
        <ul>${gateway.problems.map((each) => html`<li key=${each}>${each}</li>`)}</ul></div>`;
}

function Failures({ now, before }) {
    const total = sumBy(now.figures, "velox_requests_total", "reason");
    const recent = grownBy(now.figures, before.figures, "velox_requests_total", "reason");
    const rows = [...total].filter(([reason]) => reason !== "ok").sort((one, other) => (recent.get(other[0]) ?? 0) - (recent.get(one[0]) ?? 0) || other[1] - one[1]);
    const columns = [
        { name: "reason", cell: ([reason]) => html`<code>${reason}</code>` },
        { name: "last 5 minutes", number: true, cell: ([reason]) => count(recent.get(reason) ?? 0) },
        { name: "since the start", number: true, cell: ([, n]) => count(n) },
    ];
    return html`<${Table} caption="Requests that failed, by reason" columns=${columns} rows=${rows} rowKey=${([reason]) => reason} empty="none has failed" />
        <p><a href="#/calls?failed=1">The newest calls that failed, with their attempts</a></p>`;
}

// Of a worker what it does; of each process what the system says of it. last: an earlier reading, for rates.
function Workers({ now, last }) {
    const of = (name) => sumBy(now.figures, name, "worker");
    const [up, ready, restarts, configuration, age] = ["up", "upstream_ready", "restarts_total", "configuration", "heartbeat_age_seconds"].map((each) => of(`velox_worker_${each}`));
    const system = (name) => sumBy(now.figures, name, "process");
    const [pids, memory] = ["velox_process_id", "process_resident_memory_bytes"].map(system);
    const cpu = grownBy(now.figures, last.figures, "process_cpu_seconds_total", "process");
    const took_s = now.at_s - last.at_s;
    const others = [
        { name: "process", cell: (name) => name },
        { name: "pid", number: true, cell: (name) => pids.get(name) ?? "–" },
        { name: "CPU", number: true, cell: (name) => percent(took_s > 0 ? (cpu.get(name) ?? 0) / took_s : null) },
        { name: "memory", number: true, cell: (name) => bytes(memory.get(name)) },
    ];
    const columns = [
        { name: "worker", cell: (worker) => worker },
        { name: "state", cell: (worker) => (up.get(worker) ? html`<span class="good">serving</span>` : html`<span class="bad">not serving</span>`) },
        { name: "warm upstream", cell: (worker) => (ready.get(worker) ? "yes" : "no") },
        { name: "replaced", number: true, cell: (worker) => count(restarts.get(worker) ?? 0) },
        { name: "heartbeat", number: true, cell: (worker) => (age.has(worker) ? `${seconds(age.get(worker))} ago` : "–") },
        { name: "configuration", number: true, cell: (worker) => configuration.get(worker) ?? "–" },
    ];
    const caption = `Workers; ${count(sum(now.figures, "velox_worker_restarts_total"))} replaced since the start`;
    return html`<${Table} caption=${caption} columns=${columns} rows=${[...up.keys()]} rowKey=${(worker) => worker} isBad=${(worker) => !up.get(worker)} />
        <${Table} caption="Processes: CPU of one core, over the last seconds" columns=${others} rows=${[...memory.keys()]} rowKey=${(name) => name} />`;
}

export function Overview({ feed }) {
    useFeed(feed);
    const cost = useCostToday();
    const now = feed.now;
    if (!now) return html`<p class="soft">Reading the figures …</p>`;
    const last = feed.history.at(-1) ?? {};
    const of = (name) => feed.history.map((each) => each[name]);
    const times = feed.history.map((each) => each.at_s);
    const finished = (last.ok ?? 0) + (last.failed ?? 0);
    // Each worker counts for itself: a server is out of use where one of them does without it.
    const without = ["out", "resting"].flatMap((state) => [...sumBy(now.figures, "velox_upstream_state", "origin", { state })]);
    const out = new Set(without.filter(([, n]) => n).map(([origin]) => origin)).size;
    const tiles = [
        ["Requests", rate(finished), "/s"],
        ["Failed", percent(finished ? last.failed / finished : 0), "", last.failed > 0 ? "bad" : ""],
        ["First token, median", seconds(last.p50)],
        ["95 % within", seconds(last.p95)],
        ["99 % within", seconds(last.p99)],
        ["Tokens out", rate(last.output), "/s"],
        ["In flight", count(sum(now.figures, "velox_inflight_requests"))],
        ["Queued", count(sum(now.figures, "velox_queue_depth"))],
        ["Clients connected", count(sum(now.figures, "velox_client_connections"))],
        ["Servers out of use", count(out), "", out ? "bad" : ""],
        ["Cost today (UTC)", dollars(cost)],
        ["Running for", seconds(sum(now.figures, "velox_uptime_seconds"))],
    ];
    return html`
        <${Problems} />
        <${Tiles} tiles=${tiles} />
        <div class="charts">
            <${Chart} title="Requests per second" times=${times} format=${rate} series=${[
                { name: "answered", values: of("ok"), colour: "--one" },
                { name: "failed", values: of("failed"), colour: "--bad" },
            ]} />
            <${Chart} title="Time to the first token" times=${times} format=${seconds} series=${[
                { name: "50 %", values: of("p50"), colour: "--one" },
                { name: "95 %", values: of("p95"), colour: "--two" },
                { name: "99 %", values: of("p99"), colour: "--three" },
            ]} />
            <${Chart} title="Requests in the gateway" times=${times} format=${count} whole=${true} series=${[
                { name: "in flight", values: of("inflight"), colour: "--one" },
                { name: "queued", values: of("queued"), colour: "--two" },
            ]} />
            <${Chart} title="Tokens per second, of calls that the ledger records" times=${times} format=${rate} series=${[
                { name: "input", values: of("input"), colour: "--one" },
                { name: "output", values: of("output"), colour: "--four" },
            ]} />
        </div>
        <h2>What failed</h2>
        <${Failures} now=${now} before=${feed.before(RECENT_S)} />
        <h2>Workers</h2>
        <${Workers} now=${now} last=${feed.before(CPU_WINDOW_S)} />`;
}
