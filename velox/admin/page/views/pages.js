// The other pages of the admin listener, for people and programs, and what runs here.

import { html, useState } from "../vendor/preact.js";
import { change, read } from "../api.js";
import { reached } from "../format.js";
import { Failure, useLoaded } from "../parts.js";

const PAGES = [
    ["/metrics", "the figures of all workers, for Prometheus"],
    ["/readyz", "200 while a worker can serve; else 503 and why"],
    ["/livez", "200 while a worker runs or starts"],
    ["/api/v1/openapi.json", "the API for programs: keys, usage, calls, budgets"],
];
const PROFILES = [
    ["/debug/pprof/profile?seconds=10", "CPU of all workers for 10 seconds: a file for go tool pprof and speedscope.app"],
    ["/debug/pprof/profile?seconds=30", "the same for 30 seconds"],
    ["/debug/pprof/profile?seconds=10&format=folded", "10 seconds as folded text"],
];

const List = ({ pages }) => html`<ul>${pages.map(([path, text]) => html`<li key=${path}><a href=${path}><code>${path}</code></a>: ${text}</li>`)}</ul>`;

function Reload({ session }) {
    const [answer, setAnswer] = useState(null);
    const [error, setError] = useState(null);
    const reload = async () => {
        try {
            setAnswer(await change(session, "POST", "/reload"));
            setError(null);
        } catch (failed) { setError(failed); setAnswer(null); }
    };
    return html`<button onClick=${reload}>Read the configuration again</button>
        <${Failure} error=${error} />${answer != null && html`<pre role="status" tabindex="0">${typeof answer === "string" ? answer : JSON.stringify(answer, null, 2)}</pre>`}`;
}

export function Pages({ session }) {
    const [gateway, error] = useLoaded(() => read("/gateway"), []);
    return html`<${Failure} error=${error} />
        ${gateway && html`<p>Velox ${gateway.version}, ${gateway.build} build, at <code>${reached(gateway.address)}</code>.</p>`}
        <h2>State</h2><${List} pages=${PAGES} />
        ${gateway?.profiles && html`<h2>Profiles</h2><${List} pages=${PROFILES} /><p class="soft">An answer comes when the time is over.</p>`}
        ${(session.role === "admin" || session.role === "open") && html`<h2>Configuration</h2><${Reload} session=${session} />`}`;
}
