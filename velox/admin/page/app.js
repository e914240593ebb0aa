// The page of the admin listener: its frame, and which view the address shows.

import { html, render, useEffect, useState } from "./vendor/preact.js";
import { read } from "./api.js";
import { Feed } from "./feed.js";
import { useFeed } from "./parts.js";
import { Accounts } from "./views/accounts.js";
import { Budgets } from "./views/budgets.js";
import { Calls } from "./views/calls.js";
import { Clients } from "./views/clients.js";
import { Configuration } from "./views/configuration.js";
import { Overview } from "./views/overview.js";
import { Pages } from "./views/pages.js";
import { Playground } from "./views/playground.js";
import { Requests } from "./views/requests.js";
import { Upstreams } from "./views/upstreams.js";
import { Usage } from "./views/usage.js";

const VIEWS = [
    ["overview", "Overview", Overview],
    ["requests", "Running", Requests],
    ["upstreams", "Upstreams", Upstreams],
    ["budgets", "Budgets", Budgets],
    ["accounts", "Keys", Accounts],
    ["usage", "Usage", Usage],
    ["calls", "Calls", Calls],
    ["playground", "Playground", Playground],
    ["clients", "Clients", Clients],
    ["configuration", "Configuration", Configuration],
    ["pages", "Pages", Pages],
];

const asked = () => location.hash.slice(2).split("?")[0] || VIEWS[0][0];

function Connection({ feed }) {
    useFeed(feed);
    return feed.error && html`<div class="notice is-bad" role="alert"><p>No new figures: ${feed.error.message}</p></div>`;
}

function SignOut({ session }) {
    return session.csrf && html`<form class="sign-out" method="post" action="/sign-out">
        <input type="hidden" name="csrf" value=${session.csrf} /><button>Sign out</button>
    </form>`;
}

function App({ feed, session }) {
    const [name, show] = useState(asked());
    useEffect(() => {
        const changed = () => show(asked());
        addEventListener("hashchange", changed);
        return () => removeEventListener("hashchange", changed);
    }, []);
    const [id, title, View] = VIEWS.find(([each]) => each === name) ?? VIEWS[0];
    useEffect(() => { document.title = `${title} · Velox`; }, [title]);
    return html`
        <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>To the content</a>
        <header>
            <h1>Velox</h1>
            <nav aria-label="Views">
                ${VIEWS.map(([each, text]) => html`<a key=${each} href=${`#/${each}`} aria-current=${each === id ? "page" : undefined}>${text}</a>`)}
            </nav>
            <${SignOut} session=${session} />
        </header>
        <main id="main" tabindex="-1"><${Connection} feed=${feed} /><${View} key=${id} feed=${feed} session=${session} /></main>`;
}

const place = document.getElementById("app");
try {
    const [session, feed] = [await read("/session"), new Feed()];
    render(html`<${App} feed=${feed} session=${session} />`, place);
    feed.run();
} catch (error) {
    place.textContent = error.message;
}
