// Figures of the metrics page: the text format of Prometheus, differences of counters, quantiles of histograms.
//
// Nothing here knows the browser: tests/unit/admin/page runs it in Node.

const LINE = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPES = { "\\\\": "\\", '\\"': '"', "\\n": "\n" };

// Returns a Map from the name of a series to its samples: [{labels, value}].
export function parse(text) {
    const found = new Map();
    for (const line of text.split("\n")) {
        const match = line.startsWith("#") ? null : LINE.exec(line);
        if (!match) continue;
        const labels = {};
        for (const [, name, value] of (match[2] ?? "").matchAll(LABEL))
            labels[name] = value.replace(/\\[\\"n]/g, (pair) => ESCAPES[pair]);
        const value = match[3] === "+Inf" ? Infinity : Number(match[3]);
        if (!found.has(match[1])) found.set(match[1], []);
        found.get(match[1]).push({ labels, value });
    }
    return found;
}

const fits = (labels, where) => Object.entries(where).every(([name, value]) => labels[name] === value);

// Returns the sum of all samples of a series whose labels are as `where` says.
export function sum(figures, name, where = {}) {
    let total = 0;
    for (const { labels, value } of figures.get(name) ?? []) if (fits(labels, where)) total += value;
    return total;
}

// Returns a Map from each value of a label to the sum of its samples.
export function sumBy(figures, name, label, where = {}) {
    const found = new Map();
    for (const { labels, value } of figures.get(name) ?? [])
        if (fits(labels, where)) found.set(labels[label] ?? "", (found.get(labels[label] ?? "") ?? 0) + value);
    return found;
}

// Returns how much a counter has grown. One that is lower than before began anew.
export const grown = (now, before) => (now >= before ? now - before : now);

// Returns what each value of a label has grown by, without those that have not.
export function grownBy(now, before, name, label, where = {}) {
    const earlier = sumBy(before, name, label, where);
    const found = new Map();
    for (const [value, total] of sumBy(now, name, label, where)) {
        const more = grown(total, earlier.get(value) ?? 0);
        if (more > 0) found.set(value, more);
    }
    return found;
}

// Returns the buckets of a histogram between two moments: [[upper bound, number up to it]], in order of the bounds.
export function buckets(now, before, name, where = {}) {
    const found = grownBy(now, before, `${name}_bucket`, "le", where);
    const bounds = [...sumBy(now, `${name}_bucket`, "le", where).keys()];
    return bounds
        .map((le) => [le === "+Inf" ? Infinity : Number(le), found.get(le) ?? 0])
        .sort((one, other) => one[0] - other[0]);
}

// Returns a quantile as Prometheus' histogram_quantile() does, by interpolation within a bucket; null without events.
export function quantile(found, share) {
    const total = found.length ? found[found.length - 1][1] : 0;
    if (!total) return null;
    const wanted = share * total;
    let [below, lower] = [0, 0];
    for (const [bound, count] of found) {
        if (count >= wanted) {
            if (bound === Infinity) return lower;
            return count === below ? bound : lower + ((bound - lower) * (wanted - below)) / (count - below);
        }
        [below, lower] = [count, bound];
    }
    return lower;
}
