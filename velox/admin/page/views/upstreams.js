// Upstreams: whether each is in use, how fast it answers, what comes of attempts.

import { html, useEffect, useRef } from "../vendor/preact.js";
import { count, percent, seconds } from "../format.js";
import { buckets, grown, grownBy, quantile, sum, sumBy } from "../metrics.js";
import { Table, useFeed, useTheme } from "../parts.js";

const RECENT_S = 300;
const COLUMN_S = 10;
const FIRST_BYTE = "velox_upstream_time_to_first_byte_seconds";
const GOOD = new Set(["ok", "success"]);

const named = (figures) => [...sumBy(figures, "velox_upstream_state", "upstream").keys()].sort();

function state(figures, upstream) {
    const workers = sumBy(figures, "velox_upstream_state", "state", { upstream });
    const found = [...workers].filter(([name, n]) => n && name !== "in").map(([name]) => name);
    if (!found.length) return html`<span class="good">in use</span>`;
    return html`<span class=${workers.get("in") ? "warn" : "bad"}>${found.join(", ")}</span>`;
}

// Of each ten seconds how many first bytes came in which time: columns of [[bound, number in this bucket]].
function heat(readings, upstream) {
    const columns = [];
    let last = null;
    for (const reading of readings) {
        if (last && reading.at_s - last.at_s < COLUMN_S) continue;
        if (last) {
            let below = 0;
            columns.push(buckets(reading.figures, last.figures, FIRST_BYTE, { upstream }).map(([bound, upTo]) => {
                const own = [bound, upTo - below];
                below = upTo;
                return own;
            }));
        }
        last = reading;
    }
    return columns;
}

function HeatMap({ upstream, columns }) {
    const place = useRef(null);
    const isDark = useTheme();
    useEffect(() => {
        const canvas = place.current;
        const n = columns[0]?.length ?? 0;
        [canvas.width, canvas.height] = [30, Math.max(n, 1)];
        const pen = canvas.getContext("2d");
        const most = Math.max(1, ...columns.flat().map(([, number]) => number));
        pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--two");
        columns.slice(-30).forEach((column, x) => column.forEach(([, number], y) => {
            pen.globalAlpha = number ? 0.15 + 0.85 * (number / most) : 0;
            pen.fillRect(30 - Math.min(columns.length, 30) + x, n - 1 - y, 1, 1);
        }));
    });
    const bounds = (columns[0] ?? []).map(([bound]) => bound);
    const total = bounds.map((bound, n) => [bound, columns.reduce((all, column) => all + column[n][1], 0)]);
    const names = [
        { name: "first byte within", cell: ([bound]) => (bound === Infinity ? "longer" : seconds(bound)) },
        { name: "attempts, last 5 minutes", number: true, cell: ([, number]) => count(number) },
    ];
    return html`<figure><figcaption>${upstream}: time to the first byte, slow at the top, the last 5 minutes from left to right</figcaption>
        ${!total.some(([, number]) => number) && html`<p class="soft">No first byte in this time.</p>`}
        <canvas class="heat" ref=${place} aria-hidden="true" data-dark=${isDark}></canvas>
        <details><summary>As a table</summary><${Table} caption=${`First bytes of ${upstream}`} columns=${names} rows=${total.filter(([, number]) => number)} rowKey=${([bound]) => bound} /></details>
    </figure>`;
}

export function Upstreams({ feed }) {
    useFeed(feed);
    const now = feed.now;
    if (!now) return html`<p class="soft">Reading the figures …</p>`;
    const before = feed.before(RECENT_S);
    const recent = (upstream) => grownBy(now.figures, before.figures, "velox_upstream_requests_total", "outcome", { upstream });
    const share = (upstream) => {
        const found = recent(upstream);
        const total = [...found.values()].reduce((all, n) => all + n, 0);
        const failed = [...found].filter(([outcome]) => !GOOD.has(outcome)).reduce((all, [, n]) => all + n, 0);
        return total ? failed / total : null;
    };
    const time = (upstream, q) => seconds(quantile(buckets(now.figures, before.figures, FIRST_BYTE, { upstream }), q));
    const columns = [
        { name: "upstream", text: true, cell: (each) => html`<strong>${each}</strong>` },
        { name: "state", cell: (each) => state(now.figures, each) },
        { name: "in flight", number: true, cell: (each) => count(sum(now.figures, "velox_upstream_inflight_requests", { upstream: each })) },
        { name: "attempts", number: true, cell: (each) => count([...recent(each).values()].reduce((all, n) => all + n, 0)) },
        { name: "failed", number: true, cell: (each) => percent(share(each)) },
        { name: "how", text: true, cell: (each) => [...recent(each)].filter(([outcome]) => !GOOD.has(outcome)).map(([outcome, n]) => `${outcome} ${count(n)}`).join(", ") },
        { name: "first byte, median", number: true, cell: (each) => time(each, 0.5) },
        { name: "95 %", number: true, cell: (each) => time(each, 0.95) },
        { name: "keys not used", number: true, cell: (each) => count(sum(now.figures, "velox_upstream_keys_unused", { upstream: each })) },
        { name: "ejections", number: true, cell: (each) => count(grown(sum(now.figures, "velox_upstream_ejections_total", { upstream: each }), 0)) },
    ];
    const found = named(now.figures);
    const failing = (each) => [...sumBy(now.figures, "velox_upstream_state", "state", { upstream: each })].some(([name, n]) => n && name !== "in");
    return html`<${Table} caption="Upstreams; attempts and times are of the last 5 minutes" columns=${columns} rows=${found} rowKey=${(each) => each} isBad=${failing} />
        <div class="charts">${found.map((each) => html`<${HeatMap} key=${each} upstream=${each} columns=${heat(feed.readings, each)} />`)}</div>`;
}
