// The other pages of the admin listener, for people and programs, and what runs here.

import { html } from "../vendor/preact.js";
import { read } from "../api.js";
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
    ["/debug/pprof/profile?seconds=10&format=speedscope", "10 seconds for speedscope.app, each worker by itself"],
    ["/debug/pprof/heap?seconds=10", "the lines that allocate memory in 10 seconds and keep it; slows the workers meanwhile"],
];
const RUNNING = [
    ["/debug/pprof/tasks", "the requests that run, as text"],
    ["/debug/pprof/connections", "open connections of clients and to upstreams"],
    ["/debug/pprof/loop", "what held up an event loop"],
];

const List = ({ pages }) => html`<ul>${pages.map(([path, text]) => html`<li key=${path}><a href=${path}><code>${path}</code></a>: ${text}</li>`)}</ul>`;

export function Pages() {
    const [gateway, error] = useLoaded(() => read("/gateway"), []);
    return html`<${Failure} error=${error} />
        ${gateway && html`<p>Velox ${gateway.version}, ${gateway.build} build, at <code>${reached(gateway.address)}</code>.</p>`}
        <h2>State</h2><${List} pages=${PAGES} />
        ${gateway?.profiles && html`<h2>What the workers do</h2><${List} pages=${RUNNING} /><h2>Profiles</h2><${List} pages=${PROFILES} /><p class="soft">An answer comes when the time is over.</p>`}`;
}
