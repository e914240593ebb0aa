// The live figures: the metrics page, read once a second while somebody looks, and what follows from two readings.

import { read } from "./api.js";
import { buckets, grown, grownBy, parse, quantile, sum } from "./metrics.js";

const PAUSE_MS = 1000;
// A gateway with thousands of upstreams takes longer to write its figures: it is asked less often.
const LEAST_IDLE_SHARE = 4;
const KEPT = 300;
// Quantiles are of the last seconds: one second of a quiet gateway has too few requests.
const WINDOW_S = 15;
const FIRST_TOKEN = "gen_ai_server_time_to_first_token_seconds";

// What a chart shows of one moment.
function derive(now, last, earlier) {
    const took_s = now.at_s - last.at_s;
    const perSecond = (name, where) =>
        grown(sum(now.figures, name, where), sum(last.figures, name, where)) / took_s;
    const reasons = grownBy(now.figures, last.figures, "velox_requests_total", "reason");
    const finished = [...reasons.values()].reduce((total, n) => total + n, 0) / took_s;
    const well = (reasons.get("ok") ?? 0) / took_s;
    const times = buckets(now.figures, earlier.figures, FIRST_TOKEN);
    return {
        at_s: now.at_s,
        ok: well,
        failed: finished - well,
        p50: quantile(times, 0.5),
        p95: quantile(times, 0.95),
        p99: quantile(times, 0.99),
        inflight: sum(now.figures, "velox_inflight_requests"),
        queued: sum(now.figures, "velox_queue_depth"),
        input: perSecond("velox_upstream_tokens_total", { kind: "input" }),
        output: perSecond("velox_upstream_tokens_total", { kind: "output" }),
    };
}

export class Feed {
    constructor() {
        this.readings = []; // {at_s, figures}, the oldest first
        this.history = []; // as derive() returns them
        this.error = null;
        this.listeners = new Set();
    }

    get now() {
        return this.readings.at(-1) ?? null;
    }

    // The oldest reading within so many seconds.
    before(window_s) {
        const since_s = this.now.at_s - window_s;
        return this.readings.find((each) => each.at_s >= since_s) ?? this.now;
    }

    subscribe(listener) {
        this.listeners.add(listener);
        return () => this.listeners.delete(listener);
    }

    async run() {
        for (;;) {
            await this.visible();
            const began_ms = performance.now();
            await this.look();
            const took_ms = performance.now() - began_ms;
            await new Promise((resolve) => setTimeout(resolve, Math.max(PAUSE_MS - took_ms, took_ms * LEAST_IDLE_SHARE)));
        }
    }

    visible() {
        if (!document.hidden) return Promise.resolve();
        return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
    }

    async look() {
        try {
            const text = await read("/metrics");
            this.take({ at_s: Date.now() / 1000, figures: parse(text) });
            this.error = null;
        } catch (error) {
            this.error = error;
        }
        for (const listener of this.listeners) listener();
    }

    take(reading) {
        const last = this.now;
        this.readings.push(reading);
        if (last && reading.at_s > last.at_s) this.history.push(derive(reading, last, this.before(WINDOW_S)));
        for (const kept of [this.readings, this.history]) if (kept.length > KEPT) kept.shift();
    }
}
