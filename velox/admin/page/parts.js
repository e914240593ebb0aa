// What several views are made of: tables, tiles, charts, notices.

import { html, useEffect, useReducer, useRef, useState } from "./vendor/preact.js";
import { clock } from "./format.js";

// columns: [{name, cell(row), number?, text?, line?}]; line: it is not broken. rowKey(row): tells rows apart. isBad(row): marks one.
export function Table({ caption, columns, rows, rowKey, isBad = () => false, empty = "nothing yet" }) {
    const kind = (column) => (column.number ? "number" : column.text ? "text" : column.line ? "line" : "");
    return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
        <table>
            <caption>${caption}</caption>
            <thead><tr>${columns.map((each) => html`<th scope="col" class=${kind(each)} key=${each.name}>${each.name}</th>`)}</tr></thead>
            <tbody>
                ${rows.map((row, n) => html`<tr key=${rowKey ? rowKey(row) : n} class=${isBad(row) ? "is-bad" : ""}>
                    ${columns.map((each) => html`<td class=${kind(each)} key=${each.name}>${each.cell(row)}</td>`)}
                </tr>`)}
                ${rows.length === 0 && html`<tr><td colspan=${columns.length} class="soft">${empty}</td></tr>`}
            </tbody>
        </table>
    </div>`;
}

// tiles: [[name, value, small?]]
export const Tiles = ({ tiles }) => html`<dl class="tiles">
    ${tiles.map(([name, value, small, look]) => html`<div class="tile" key=${name}>
        <dt>${name}</dt><dd class=${look ?? ""}>${value}${small && html` <small>${small}</small>`}</dd>
    </div>`)}
</dl>`;

export function Failure({ error }) {
    return error && html`<div class="notice is-bad" role="alert"><p>${error.message}</p></div>`;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const HEIGHT_PX = 170;

// Whether the system's theme is dark: charts take their colours when they are made.
export function useTheme() {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const [isDark, set] = useState(query.matches);
    useEffect(() => {
        const changed = () => set(query.matches);
        query.addEventListener("change", changed);
        return () => query.removeEventListener("change", changed);
    }, []);
    return isDark;
}

const DAY_S = 86400;
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 1e5, 1e6, 1e7, 1e8];

// series: [{name, values, colour}], format: of a value. times: seconds since 1970. bars: one a day. whole: values are
// counts. The table says the same as the chart.
export function Chart({ title, times, series, format, bars = false, whole = false }) {
    const when = (at_s) => (bars ? new Date(at_s * 1000).toISOString().slice(0, 10) : clock(new Date(at_s * 1000)));
    const place = useRef(null);
    const chart = useRef(null);
    const isDark = useTheme();
    const names = series.map((each) => each.name).join();
    useEffect(() => {
        const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
        const value = (_, number) => format(number);
        const lines = series.map((each) => ({
            label: each.name,
            stroke: colour(each.colour),
            fill: bars ? colour(each.colour) : undefined,
            width: 1.5,
            points: { show: false },
            paths: bars ? uPlot.paths.bars({ size: [0.7, 60] }) : undefined,
            value,
        }));
        const made = new uPlot(
            {
                width: place.current.clientWidth,
                height: HEIGHT_PX,
                cursor: { y: false },
                scales: {
                    x: { range: (_, first, last) => (bars ? [first - DAY_S / 2, last + DAY_S / 2] : [first, Math.max(last, first + 10)]) },
                    y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] },
                },
                axes: [
                    { ...axis, space: 80, incrs: bars ? WHOLE.map((n) => n * DAY_S) : undefined, values: (_, ticks) => ticks.map(when) },
                    { ...axis, size: 64, incrs: whole ? WHOLE : undefined, values: (_, ticks) => ticks.map(format) },
                ],
                series: [{ label: bars ? "day" : "time", value: (_, at_s) => (at_s == null ? "–" : when(at_s)) }, ...lines],
            },
            [times, ...series.map((each) => each.values)],
            place.current,
        );
        made.root.setAttribute("aria-hidden", "true");
        chart.current = made;
        const observer = new ResizeObserver(() => made.setSize({ width: place.current.clientWidth, height: HEIGHT_PX }));
        observer.observe(place.current);
        return () => {
            observer.disconnect();
            made.destroy();
        };
    }, [isDark, names]);
    useEffect(() => chart.current?.setData([times, ...series.map((each) => each.values)]));
    const rows = times.map((at_s, n) => [at_s, n]).slice(-20).reverse();
    const columns = [
        { name: bars ? "day" : "time", line: true, cell: ([at_s]) => when(at_s) },
        ...series.map((each) => ({ name: each.name, number: true, cell: ([, n]) => format(each.values[n]) })),
    ];
    return html`<figure>
        <figcaption>${title}</figcaption>
        <div ref=${place}></div>
        <details><summary>The last values as a table</summary>
            <${Table} caption=${title} columns=${columns} rows=${rows} rowKey=${([at_s]) => at_s} /></details>
    </figure>`;
}

// Draws again whenever the feed has read new figures.
export function useFeed(feed) {
    const [, again] = useReducer((n) => n + 1, 0);
    useEffect(() => feed.subscribe(again), [feed]);
}

// Loads a value with `load`, again when one of `inputs` changes: [value, error, reload].
export function useLoaded(load, inputs) {
    const [state, set] = useState({ value: null, error: null });
    const [turn, again] = useReducer((n) => n + 1, 0);
    useEffect(() => {
        let isCurrent = true;
        load().then(
            (value) => isCurrent && set({ value, error: null }),
            (error) => isCurrent && set((before) => ({ value: before.value, error })),
        );
        return () => { isCurrent = false; };
    }, [...inputs, turn]);
    return [state.value, state.error, again];
}
