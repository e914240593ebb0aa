// Budgets: what is spent, held and left of each, the nearest to its end first; limits: what they have let wait and refused.

import { html } from "../vendor/preact.js";
import { all } from "../api.js";
import { count, dollars, moment, percent } from "../format.js";
import { grown, sum } from "../metrics.js";
import { Failure, Table, Tiles, useFeed, useLoaded } from "../parts.js";

const NEAR = 0.8;

const used = (row) => {
    const limit = Number(row.limit);
    return limit ? (Number(row.spent) + Number(row.held)) / limit : 1;
};
const amount = (row, name) => (row.unit === "usd" ? dollars(row[name]) : count(row[name]));

const COLUMNS = [
    { name: "of", text: true, cell: (row) => html`${row.scope} <strong>${row.name || row.id}</strong>` },
    { name: "budget", line: true, cell: (row) => row.budget },
    { name: "window", cell: (row) => row.window },
    {
        name: "used",
        line: true,
        cell: (row) => {
            const look = used(row) >= 1 ? "is-over" : used(row) >= NEAR ? "is-near" : "";
            return html`<progress class=${look} max="1" value=${Math.min(used(row), 1)} aria-label=${`${row.name || row.id}: ${percent(used(row))} used`}></progress> ${percent(used(row))}`;
        },
    },
    { name: "limit", number: true, cell: (row) => amount(row, "limit") },
    { name: "spent", number: true, cell: (row) => amount(row, "spent") },
    { name: "held", number: true, cell: (row) => amount(row, "held") },
    { name: "left", number: true, cell: (row) => amount(row, "left") },
    { name: "window ends", line: true, cell: (row) => (row.window_end ? moment(row.window_end) : "never") },
    { name: "state", cell: (row) => (row.state === "known" ? "known" : html`<span class="bad">${row.state}</span>`) },
];

const RECENT_S = 300;
const DECISIONS = "velox_limit_decisions_total";

// A row for each kind of limit that has decided of a request since the start.
function Limits({ feed }) {
    useFeed(feed);
    if (!feed.now) return null;
    const [now, before] = [feed.now.figures, feed.before(RECENT_S).figures];
    const kinds = new Map((now.get(DECISIONS) ?? []).map(({ labels: { scope, unit } }) => [`${scope} ${unit}`, { scope, unit }]));
    const total = (where, decision) => sum(now, DECISIONS, { ...where, decision });
    const recent = (where, decision) => grown(total(where, decision), sum(before, DECISIONS, { ...where, decision }));
    const used = [...kinds.values()].filter((where) => sum(now, DECISIONS, where) > 0);
    const columns = [
        { name: "limit per", cell: (where) => where.scope.replace("_", " and ") },
        { name: "of", cell: (where) => where.unit },
        ...["granted", "waited", "refused"].map((decision) => ({ name: `${decision}, 5 minutes`, number: true, cell: (where) => count(recent(where, decision)) })),
        { name: "refused since the start", number: true, cell: (where) => count(total(where, "refused")) },
    ];
    return html`<h2>Limits</h2>
        <${Table} caption="What limits of requests, tokens and concurrency decided; the access log has who was refused" columns=${columns} rows=${used}
            rowKey=${(where) => `${where.scope} ${where.unit}`} isBad=${(where) => recent(where, "refused") > 0} empty="no limit has counted a request yet" />`;
}

export const Budgets = ({ feed }) => html`<${Spent} /><${Limits} feed=${feed} />`;

function Spent() {
    const [rows, error, again] = useLoaded(() => all("/api/v1/budgets"), []);
    if (!rows) return error ? html`<${Failure} error=${error} />` : html`<p class="soft">Reading the budgets …</p>`;
    const sorted = [...rows].sort((one, other) => used(other) - used(one));
    const tiles = [
        ["Budgets in use", count(rows.length)],
        ["Over 80 % used", count(rows.filter((row) => used(row) >= NEAR).length)],
        ["Used up", count(rows.filter((row) => used(row) >= 1).length), "", rows.some((row) => used(row) >= 1) ? "bad" : ""],
    ];
    return html`<${Failure} error=${error} /><${Tiles} tiles=${tiles} />
        <div class="row"><button onClick=${again}>Read again</button></div>
        <${Table} caption="Budgets that were used since the start, the nearest to its end first" columns=${COLUMNS} rows=${sorted}
            rowKey=${(row) => `${row.scope} ${row.id} ${row.budget} ${row.unit}`} isBad=${(row) => used(row) >= 1} empty="no budget was used yet" />`;
}
