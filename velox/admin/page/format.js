// Numbers as people read them.

const EXACT = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const ROUND = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const NONE = "–";

export const count = (n) => (n == null || Number.isNaN(n) ? NONE : n >= 1e5 ? SHORT.format(n) : EXACT.format(Math.round(n)));

export const rate = (n) => (n == null ? NONE : n >= 1e5 ? SHORT.format(n) : ROUND.format(n));

export const percent = (share) => (share == null || Number.isNaN(share) ? NONE : `${ROUND.format(share * 100)} %`);

export function seconds(s) {
    if (s == null || Number.isNaN(s)) return NONE;
    if (s < 0.001) return `${ROUND.format(s * 1e6)} µs`;
    if (s < 1) return `${ROUND.format(s * 1000)} ms`;
    if (s < 120) return `${ROUND.format(s)} s`;
    if (s < 7200) return `${Math.round(s / 60)} min`;
    return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} days`;
}

export function dollars(text) {
    if (text == null || text === "") return NONE;
    const amount = Number(text);
    if (Number.isNaN(amount)) return NONE;
    const digits = amount !== 0 && Math.abs(amount) < 0.01 ? 6 : 2;
    return `$${amount.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: digits })}`;
}

export function bytes(n) {
    if (n == null) return NONE;
    for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
        if (n >= size) return `${ROUND.format(n / size)} ${unit}`;
    return `${n} B`;
}

const pad = (n) => String(n).padStart(2, "0");

export function clock(date) {
    return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

export function moment(text) {
    const date = new Date(text);
    if (!text || Number.isNaN(date.getTime())) return NONE;
    return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${clock(date)}`;
}

// The address of the gateway as this browser reaches it: one that is bound to each address has the name of this page.
export const reached = (address) => address.replace(/\/\/(0\.0\.0\.0|\[::\])/, `//${location.hostname}`);
