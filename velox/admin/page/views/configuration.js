// The configuration that the workers use: each setting with its origin, then upstreams, routes, limits, budgets.

import { html, useState } from "../vendor/preact.js";
import { change, read } from "../api.js";
import { Failure, Table, useLoaded } from "../parts.js";

const COLUMNS = [
    { name: "setting", line: true, cell: (row) => html`<code>${row.name}</code>` },
    { name: "value", text: true, cell: (row) => (row.value === "hidden" ? html`<span class="soft">hidden</span>` : row.value) },
    { name: "from", text: true, cell: (row) => row.origin },
];
const PARTS = [["upstreams", "Upstreams"], ["routes", "Routes"], ["limits", "Limits"], ["budgets", "Budgets"]];

function Reload({ session, again }) {
    const [answer, setAnswer] = useState(null);
    const [error, setError] = useState(null);
    const reload = async () => {
        try {
            setAnswer(await change(session, "POST", "/reload"));
            setError(null);
            again();
        } catch (failed) { setError(failed); setAnswer(null); }
    };
    return html`<button onClick=${reload}>Read the configuration again</button>
        <${Failure} error=${error} />${answer != null && html`<pre role="status" tabindex="0">${typeof answer === "string" ? answer : JSON.stringify(answer, null, 2)}</pre>`}`;
}

export function Configuration({ session }) {
    const [shown, error, again] = useLoaded(() => read("/api/v1/configuration"), []);
    const [isWhole, setWhole] = useState(false);
    const [part, setPart] = useState("");
    if (!shown) return error ? html`<${Failure} error=${error} />` : html`<p class="soft">Reading the configuration …</p>`;
    const rows = shown.settings.filter((row) => (isWhole || row.origin !== "default") && row.name.toLowerCase().includes(part.toLowerCase()));
    return html`<${Failure} error=${error} />
        ${(session.role === "admin" || session.role === "open") && html`<div class="row"><${Reload} session=${session} again=${again} /></div>`}
        <div class="row">
            <label>Name has<input value=${part} onInput=${(event) => setPart(event.target.value.trim())} /></label>
            <label><span>Also defaults</span><input type="checkbox" checked=${isWhole} onChange=${(event) => setWhole(event.target.checked)} /></label>
        </div>
        <${Table} caption="Settings, and where each is from" columns=${COLUMNS} rows=${rows} rowKey=${(row) => row.name} empty="all are as by default" />
        ${PARTS.map(([name, title]) => shown[name].length > 0 && html`<h2>${title}</h2><pre tabindex="0">${shown[name].join("\n")}</pre>`)}`;
}
