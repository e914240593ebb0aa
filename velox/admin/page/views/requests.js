// The requests that run just now, the oldest first: where each is, and a button that ends one.

import { html, useEffect, useState } from "../vendor/preact.js";
import { change, read } from "../api.js";
import { bytes, count, seconds } from "../format.js";
import { Failure, Table, Tiles } from "../parts.js";

const PAUSE_MS = 1000;
const SHOWN = 200;
const OLD_S = 60;

// Asks while somebody looks, one question after the other.
function useRunning() {
    const [state, set] = useState({ value: null, error: null });
    useEffect(() => {
        let isOver = false;
        let timer = 0;
        const look = async () => {
            if (!document.hidden) {
                try {
                    const value = await read("/api/v1/requests");
                    if (!isOver) set({ value, error: null });
                } catch (error) {
                    if (!isOver) set((before) => ({ value: before.value, error }));
                }
            }
            if (!isOver) timer = setTimeout(look, PAUSE_MS);
        };
        look();
        return () => {
            isOver = true;
            clearTimeout(timer);
        };
    }, []);
    return state;
}

function End({ row, session, tell }) {
    const [isAsked, ask] = useState(false);
    const end = async () => {
        ask(true);
        try {
            await change(session, "DELETE", `/api/v1/requests/${row.id}`);
            tell(null);
        } catch (error) {
            ask(false);
            tell(error);
        }
    };
    return html`<button disabled=${isAsked} aria-label=${`End ${row.id}`} onClick=${end}>End</button>`;
}

const attempts = (row) => [...row.tried, count(row.attempts)].join(", ");

export function Requests({ session }) {
    const { value, error } = useRunning();
    const [failed, tell] = useState(null);
    if (!value) return error ? html`<${Failure} error=${error} />` : html`<p class="soft">Reading the requests …</p>`;
    const rows = value.data;
    const phases = new Map();
    for (const row of rows) phases.set(row.phase, (phases.get(row.phase) ?? 0) + 1);
    const columns = [
        { name: "age", number: true, cell: (row) => seconds(row.age_s) },
        { name: "phase", cell: (row) => row.phase },
        { name: "request", line: true, cell: (row) => html`<span class="mono">${row.id}</span>` },
        { name: "route", text: true, cell: (row) => row.route_name || row.endpoint },
        { name: "upstream", text: true, cell: (row) => row.upstream || "–" },
        { name: "model", text: true, cell: (row) => row.model || "–" },
        { name: "key", text: true, cell: (row) => row.key || row.key_id || "–" },
        { name: "attempts", text: true, cell: attempts },
        { name: "sent", number: true, cell: (row) => bytes(row.bytes_out) },
    ];
    if (session.role === "admin") columns.push({ name: "end it", cell: (row) => html`<${End} row=${row} session=${session} tell=${tell} />` });
    const tiles = [
        ["Running or queued", count(value.total)],
        ["Oldest", seconds(rows[0]?.age_s)],
        ...[...phases].sort(([, one], [, other]) => other - one).slice(0, 4).map(([phase, n]) => [`In ${phase}`, count(n)]),
    ];
    const missing = value.missing.map((slot) => `worker ${slot}`).join(", ");
    return html`<${Failure} error=${error ?? failed} />
        ${missing && html`<div class="notice" role="status"><p>Not shown, for they did not answer: ${missing}</p></div>`}
        <${Tiles} tiles=${tiles} />
        <p class="soft">The client of a request that is ended gets an error; that is in the logs, and in the records where there are any.</p>
        <${Table} caption=${`Requests that run, the oldest first, ${SHOWN} at most`} columns=${columns} rows=${rows.slice(0, SHOWN)}
            rowKey=${(row) => row.id} isBad=${(row) => row.age_s > OLD_S && row.phase !== "stream"} empty="nothing runs" />`;
}
