// Runs the page's reading of figures: JSON in, JSON out. {"now", "before", "name", "where", "shares"}

import { readFileSync } from "node:fs";
import { buckets, grownBy, parse, quantile, sum, sumBy } from "../../../../velox/admin/page/metrics.js";

const asked = JSON.parse(readFileSync(0, "utf8"));
const [now, before] = [parse(asked.now), parse(asked.before)];
const found = buckets(now, before, asked.name, asked.where);
console.log(JSON.stringify({
    samples: [...now].flatMap(([name, all]) => all.map(({ labels, value }) => [name, labels, String(value)])),
    total: sum(now, "requests_total"),
    by: Object.fromEntries(sumBy(now, "requests_total", "reason")),
    grown: Object.fromEntries(grownBy(now, before, "requests_total", "reason")),
    quantiles: asked.shares.map((share) => quantile(found, share)),
}));
