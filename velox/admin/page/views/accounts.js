// Managed keys, teams and users: what each has spent, and to make, block, rotate and delete them.

import { html, useState } from "../vendor/preact.js";
import { address, all, change } from "../api.js";
import { count, dollars, moment } from "../format.js";
import { Failure, Table, useLoaded } from "../parts.js";

const KINDS = [["keys", "Keys", "key"], ["teams", "Teams", "team"], ["users", "Users", "user"]];
const MONTH = "30d";
const WINDOWS = ["month", "week", "day"];

function limits(row) {
    const rates = [["rpm", "rpm"], ["tpm", "tpm"], ["concurrency", "at once"]].filter(([name]) => row[name]);
    const budgets = (row.budgets ?? []).map((each) => `${each.usd != null ? dollars(each.usd) : `${count(each.tokens)} tokens`} a ${each.window}`);
    return [...rates.map(([name, text]) => `${count(row[name])} ${text}`), ...budgets].join(", ") || "none";
}

// What is given to make one: from a form, without what was left empty.
function given(form) {
    const fields = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value));
    const body = {};
    for (const name of ["id", "name", "team", "user", "email", "expires"]) if (fields[name]) body[name] = fields[name];
    for (const name of ["rpm", "tpm", "concurrency"]) if (fields[name]) body[name] = Number(fields[name]);
    if (fields.models) body.models = fields.models.split(",").map((each) => each.trim()).filter(Boolean);
    if (fields.usd) body.budgets = [{ usd: fields.usd, window: fields.window }];
    return body;
}

function Make({ kind, onMade, session }) {
    const [error, setError] = useState(null);
    const make = async (event) => {
        event.preventDefault();
        const form = event.target;
        try {
            onMade(await change(session, "POST", `/api/v1/${kind}`, given(form)));
            form.reset();
            setError(null);
        } catch (failed) { setError(failed); }
    };
    return html`<details><summary>Make one</summary><form class="row" onSubmit=${make}>
        <label>Id<input name="id" autocomplete="off" required=${kind !== "keys"} /></label>
        <label>Name<input name="name" autocomplete="off" /></label>
        ${kind === "keys" && html`<label>Team<input name="team" autocomplete="off" /></label><label>User<input name="user" autocomplete="off" /></label>
            <label>Expires<input name="expires" placeholder="2040-01-31" autocomplete="off" /></label>`}
        ${kind === "users" && html`<label>Mail<input name="email" type="email" autocomplete="off" /></label>`}
        <label>Models<input name="models" placeholder="gpt-4o, claude-*" autocomplete="off" /></label>
        <label>Requests a minute<input name="rpm" type="number" min="1" /></label>
        <label>Tokens a minute<input name="tpm" type="number" min="1" /></label>
        <label>Budget, dollars<input name="usd" inputmode="decimal" pattern="[0-9]+(\\.[0-9]+)?" /></label>
        <label>a<select name="window">${WINDOWS.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
        <button class="main">Make</button>
    </form><${Failure} error=${error} /></details>`;
}

function Secret({ made, onClose }) {
    return html`<div class="notice" role="alert"><p>The key of <strong>${made.id}</strong>. It is shown this once:</p>
        <pre tabindex="0">${made.key}</pre><button onClick=${() => navigator.clipboard?.writeText(made.key)}>Copy</button> <button onClick=${onClose}>Close</button></div>`;
}

export function Accounts({ session }) {
    const [kind, setKind] = useState("keys");
    const [made, setMade] = useState(null);
    const [failed, setFailed] = useState(null);
    const one = KINDS.find(([name]) => name === kind)[2];
    const [rows, error, again] = useLoaded(() => all(`/api/v1/${kind}`), [kind]);
    const [usage] = useLoaded(() => all(address("/api/v1/usage", { by: one, since: MONTH })), [one]);
    const mayChange = session.role === "admin";
    // Records name a key by the start of its digest and its name.
    const spent = new Map((usage ?? []).map((row) => [row[one], row]));
    const sumOf = (row) => spent.get(row.id) ?? spent.get(row.name) ?? [...spent].find(([name]) => name.split(" ").slice(1).join(" ") === (row.name || row.id))?.[1];
    const act = async (method, path, body, question) => {
        if (question && !confirm(question)) return;
        try {
            const answer = await change(session, method, path, body);
            if (answer?.key) setMade(answer);
            setFailed(null);
            again();
        } catch (problem) { setFailed(problem); }
    };
    const path = (row) => `/api/v1/${kind}/${encodeURIComponent(row.id)}`;
    const columns = [
        { name: "id", text: true, cell: (row) => html`<strong>${row.id}</strong>${row.name && row.name !== row.id ? html` <span class="soft">${row.name}</span>` : ""}` },
        ...(kind === "keys" ? [
            { name: "key", line: true, cell: (row) => html`<span class="mono">${row.hint}</span>` },
            { name: "team", text: true, cell: (row) => row.team || "–" },
            { name: "user", text: true, cell: (row) => row.user || "–" },
            { name: "expires", line: true, cell: (row) => (row.expires ? moment(row.expires) : "never") },
        ] : []),
        { name: "state", cell: (row) => (row.blocked ? html`<span class="bad">blocked</span>` : html`<span class="good">active</span>`) },
        { name: "limits", text: true, cell: limits },
        { name: "30 days", number: true, cell: (row) => dollars(sumOf(row)?.cost_usd ?? 0) },
        { name: "calls", number: true, cell: (row) => count(sumOf(row)?.calls ?? 0) },
        ...(mayChange ? [{ name: "change", cell: (row) => html`<span class="buttons">
            <button onClick=${() => act("POST", `${path(row)}/${row.blocked ? "unblock" : "block"}`)}>${row.blocked ? "Unblock" : "Block"}</button>
            ${kind === "keys" && html`<button onClick=${() => act("POST", `${path(row)}/rotate`, { grace_s: 0 }, `Give ${row.id} a new secret? The present one is refused from now on.`)}>Rotate</button>`}
            <button onClick=${() => act("DELETE", path(row), undefined, `Delete the ${one} ${row.id}?`)}>Delete</button></span>` }] : []),
    ];
    return html`<div class="row" role="group" aria-label="Kinds">${KINDS.map(([name, title]) => html`<button key=${name} aria-pressed=${name === kind} class=${name === kind ? "main" : ""} onClick=${() => setKind(name)}>${title}</button>`)}</div>
        ${made && html`<${Secret} made=${made} onClose=${() => setMade(null)} />`}
        <${Failure} error=${failed} /><${Failure} error=${error} />
        ${rows && html`${mayChange ? html`<${Make} key=${kind} kind=${kind} session=${session} onMade=${(answer) => { if (answer.key) setMade(answer); again(); }} />` : html`<p class="soft">Who signs in with the admin token may change these.</p>`}
            <${Table} caption=${`${KINDS.find(([name]) => name === kind)[1]}, with what they spent in the last 30 days`} columns=${columns} rows=${rows} rowKey=${(row) => row.id} isBad=${(row) => row.blocked} empty="there are none" />`}`;
}
