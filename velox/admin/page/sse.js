// Reads a body of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html) as it comes.
//
// Nothing here knows the page: tests/unit/admin/page runs it in Node.

// Yields the data of each event. chunks: an async iterable of texts, cut anywhere.
export async function* events(chunks) {
    let [left, data] = ["", []];
    for await (const chunk of chunks) {
        left += chunk;
        // A CR at the end may be the first half of a line's end.
        const lines = left.split(/\r\n|\n|\r(?!$)/);
        left = lines.pop();
        for (const line of lines) {
            if (line === "") {
                if (data.length) yield data.join("\n");
                data = [];
            } else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
        }
    }
}

// Yields the texts of a body that is read in bytes.
export async function* texts(body) {
    const reader = body.getReader();
    const decoder = new TextDecoder();
    try {
        for (;;) {
            const { done, value } = await reader.read();
            if (done) break;
            yield decoder.decode(value, { stream: true });
        }
    } finally {
        reader.cancel().catch(() => {});
    }
}
