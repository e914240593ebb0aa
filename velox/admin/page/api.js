// Calls of the admin listener: its API, with the CSRF token of the session where something is changed.

export class CallError extends Error {
    constructor(status, message) {
        super(message);
        this.status = status;
    }
}

const isJson = (response) => (response.headers.get("content-type") ?? "").startsWith("application/json");

// Returns a response that is no error. Throws CallError.
async function checked(path, options) {
    let response;
    try {
        response = await fetch(path, { cache: "no-store", credentials: "same-origin", ...options });
    } catch (error) {
        throw new CallError(0, error.name === "AbortError" ? "stopped" : "the admin listener does not answer");
    }
    if (response.ok) return response;
    const text = await response.text();
    const message = isJson(response) ? JSON.parse(text).error?.message : text.trim();
    throw new CallError(response.status, message || `the gateway answered with ${response.status}`);
}

async function send(path, options) {
    const response = await checked(path, options);
    return isJson(response) ? response.json() : response.text();
}

// Returns JSON as a value, other types as text. Throws CallError.
export const read = (path, headers = {}) => send(path, { headers });

function changing(session, method, body) {
    const headers = { "x-velox-csrf": session.csrf };
    if (body !== undefined) headers["content-type"] = "application/json";
    return { method, headers, body: body === undefined ? undefined : JSON.stringify(body) };
}

// Sends a change. session: as /session gave it. Throws CallError.
export const change = (session, method, path, body) => send(path, changing(session, method, body));

// Sends a chat request through the playground; returns the response, whose body is read as it comes. Throws CallError.
export const chat = (session, key, body, signal) => checked("/playground", { ...changing(session, "POST", { key, body }), signal });

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
