// Runs the page's reading of event streams: JSON in, JSON out. A list of lists of pieces.

import { readFileSync } from "node:fs";
import { events } from "../../../../velox/admin/page/sse.js";

const found = [];
for (const pieces of JSON.parse(readFileSync(0, "utf8"))) {
    const read = [];
    for await (const data of events(pieces)) read.push(data);
    found.push(read);
}
console.log(JSON.stringify(found));
