// Calls of the admin listener: its API, with the CSRF token of the session where something is changed.

export class CallError extends Error {
    constructor(status, message) {
        super(message);
        this.status = status;
    }
}

async function answer(response) {
    const text = await response.text();
    const isJson = (response.headers.get("content-type") ?? "").startsWith("application/json");
    if (response.ok) return isJson ? JSON.parse(text) : text;
    const message = isJson ? JSON.parse(text).error?.message : text.trim();
    throw new CallError(response.status, message || `the gateway answered with ${response.status}`);
}

async function send(path, options) {
    let response;
    try {
        response = await fetch(path, { cache: "no-store", credentials: "same-origin", ...options });
    } catch {
        throw new CallError(0, "the admin listener does not answer");
    }
    return answer(response);
}

// Returns JSON as a value, other types as text. Throws CallError.
export const read = (path, headers = {}) => send(path, { headers });

// Sends a change. session: as /session gave it. Throws CallError.
export function change(session, method, path, body) {
    const headers = { "x-velox-csrf": session.csrf };
    if (body !== undefined) headers["content-type"] = "application/json";
    return send(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
}

// Returns the address of a call with its parameters; those that are empty are left out.
export function address(path, parameters) {
    const given = Object.entries(parameters).filter(([, value]) => value !== "" && value != null);
    return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

// Returns all pages of a list, up to so many items.
export async function all(path, parameters = {}, most = 2000) {
    const found = [];
    for (let cursor = null; ; ) {
        const page = await read(address(path, { ...parameters, cursor }));
        found.push(...page.data);
        cursor = page.cursor;
        if (cursor == null || found.length >= most) return found;
    }
}
