// Drives the page of the admin listener in Chromium, and writes what it saw as JSON.
//
//     node admin_page.mjs CHROMIUM ADMIN_URL GATEWAY_URL TOKEN FOLDER

import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";

const [program, admin, gateway, token, folder] = process.argv.slice(2);
const axe = readFileSync(new URL("node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
const VIEWS = ["overview", "requests", "upstreams", "budgets", "accounts", "usage", "calls", "playground", "clients", "configuration", "pages"];
const HOSTILE = '<img src=x onerror="window.harmed=1">\u202e';
const seen = { errors: [], elsewhere: [], views: {}, harmed: false };

// Programs as they name themselves, and one whose name says nothing, but is a script.
const PROGRAMS = ["claude-cli/2.1.0 (external, cli)", "codex_cli_rs/0.60.1 (Linux)", "OpenAI/Python 3.52.0", "<script>harmed=1</script>/1"];

async function ask(key, model, program = "node") {
    const headers = { authorization: `Bearer ${key}`, "content-type": "application/json", "user-agent": program };
    const body = JSON.stringify({ model, max_tokens: 3, messages: [{ role: "user", content: "hi" }] });
    const response = await fetch(`${gateway}/v1/chat/completions`, { method: "POST", headers, body });
    await response.arrayBuffer();
    return response.status;
}

// A stream that is ended has no clean end, which is an error to fetch.
async function allThatCame(response) {
    const decoder = new TextDecoder();
    let text = "";
    try {
        for await (const piece of response.body) text += decoder.decode(piece, { stream: true });
    } catch (error) {
        if (error.message !== "terminated") throw error;
    }
    return text;
}

// A page that reports what goes wrong in it, and what it asks for from elsewhere.
async function opened(browser, options) {
    const context = await browser.newContext(options);
    const page = await context.newPage();
    page.setDefaultTimeout(20000);
    page.on("pageerror", (error) => seen.errors.push(String(error)));
    // A refusal of the form is an error to the console.
    page.on("console", (line) => line.type() === "error" && !/40[01]/.test(line.text()) && seen.errors.push(line.text()));
    page.on("request", (request) => /^https?:/.test(request.url()) && !request.url().startsWith(admin) && seen.elsewhere.push(request.url()));
    await page.goto(`${admin}/`);
    return page;
}

async function signIn(page) {
    await page.getByLabel("Admin token").fill(token);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.locator(".tiles").waitFor();
}

// What axe finds (https://github.com/dequelabs/axe-core), and how wide the page is.
async function look(page) {
    const found = await page.evaluate(`${axe}; axe.run().then((all) => all.violations.map((each) => [each.id, each.impact]))`);
    const [width, wide] = await page.evaluate(() => [innerWidth, document.documentElement.scrollWidth]);
    return { axe: found, overflow: wide - width };
}

async function walk(page, name) {
    for (const view of VIEWS) {
        await page.goto(`${admin}/#/${view}`);
        await page.locator(`nav a[href="#/${view}"][aria-current=page]`).waitFor();
        // Until what the view reads is here.
        await page.waitForFunction(() => !/Reading the/.test(document.getElementById("main").textContent));
        seen.views[`${view} ${name}`] = await look(page);
        await page.screenshot({ path: `${folder}/${view}-${name}.png`, fullPage: true });
    }
    seen.harmed ||= await page.evaluate(() => Boolean(window.harmed));
}

// The table of usage by program: its rows, and how it looks.
async function programs(page, name) {
    const table = page.getByRole("region", { name: /by agent/ });
    await table.getByText("claude-code").waitFor();
    const rows = await table.locator("tbody tr").evaluateAll((all) => all.map((each) => [...each.cells].map((cell) => cell.textContent)));
    const found = await look(page);
    await page.screenshot({ path: `${folder}/usage-by-agent-${name}.png`, fullPage: true });
    return { rows, ...found };
}

const browser = await chromium.launch({ executablePath: program, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
try {
    // axe is a script that the page's own policy would not take.
    const page = await opened(browser, { viewport: { width: 1280, height: 900 }, bypassCSP: true });
    seen.form = await look(page);
    await page.getByLabel("Admin token").fill("wrong");
    await page.getByRole("button", { name: "Sign in" }).click();
    seen.wrong = await page.getByRole("alert").textContent();
    await signIn(page);

    await page.goto(`${admin}/#/accounts`);
    await page.getByText("Make one").click();
    await page.getByLabel("Id").fill("shop");
    await page.getByLabel("Budget, dollars").fill("5");
    await page.getByRole("button", { name: "Make", exact: true }).click();
    const key = (await page.locator(".notice pre").textContent()).trim();
    await page.getByRole("button", { name: "Close" }).click();
    const until = async (status) => {
        for (let n = 0; n < 200; n++) {
            const found = await ask(key, "gpt-4o");
            if (found === status) return found;
        }
        return 0;
    };
    seen.made = await until(200);
    await page.getByRole("button", { name: "Block" }).click();
    await page.getByText("blocked").waitFor();
    seen.blocked = await until(401);
    await page.getByRole("button", { name: "Unblock" }).click();
    seen.unblocked = await until(200);
    seen.hostile = await ask(key, HOSTILE);
    for (const program of PROGRAMS) await ask(key, "gpt-4o", program);

    await page.goto(`${admin}/#/playground`);
    await page.getByLabel("Model").fill("gpt-4o");
    await page.getByLabel("Key of a client").fill(key);
    await page.getByLabel("Most tokens").fill("12");
    seen.played = {};
    for (const stream of [true, false]) {
        await page.getByLabel("Stream").setChecked(stream);
        await page.getByRole("button", { name: "Send" }).click();
        await page.locator("pre.answer[aria-live=polite]").waitFor();
        const tiles = await page.locator(".tile").evaluateAll((all) => all.map((each) => [each.querySelector("dt").textContent, each.querySelector("dd").textContent]));
        seen.played[stream] = { text: await page.locator("pre.answer").textContent(), ...Object.fromEntries(tiles) };
    }
    await page.getByLabel("Key of a client").fill("sk-wrong");
    await page.getByRole("button", { name: "Send" }).click();
    seen.refused = await page.getByRole("alert").textContent();
    // A request that runs until it is ended by its button.
    const slow = fetch(`${gateway}/v1/chat/completions`, {
        method: "POST",
        headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
        body: JSON.stringify({ model: "gpt-4o-mini", stream: true, messages: [{ role: "user", content: "hi" }] }),
    }).then(allThatCame);
    await page.goto(`${admin}/#/requests`);
    const end = page.getByRole("button", { name: /^End vx-/ }).first();
    await end.waitFor();
    seen.running = await look(page);
    await page.screenshot({ path: `${folder}/running-light.png` });
    await end.click();
    seen.ended = (await slow).split("\n\n").filter(Boolean).at(-1);
    await page.getByText("nothing runs").waitFor();
    await page.goto(`${admin}/#/configuration`);
    await page.locator("td code").first().waitFor();
    seen.settings = Object.fromEntries(await page.locator("tbody tr").evaluateAll((rows) => rows.map((row) => [row.cells[0].textContent, [row.cells[1].textContent, row.cells[2].textContent]])));
    await page.goto(`${admin}/#/overview`);
    await page.getByText("Processes: CPU").waitFor();
    seen.processes = await page.getByRole("region", { name: /Processes/ }).locator("tbody tr").evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
    await walk(page, "light");
    await page.goto(`${admin}/#/budgets`);
    const limits = page.getByRole("region", { name: /What limits/ });
    await limits.getByText("requests", { exact: true }).waitFor();
    seen.limits = await limits.locator("tbody tr").evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));

    await page.goto(`${admin}/#/usage`);
    await page.locator("main select").first().selectOption("key");
    await page.locator("tbody").getByText("shop").first().waitFor();
    // Sums are read again by the button that says so, and by another choice: until all are there.
    for (const by of ["agent", "key"]) {
        await page.locator("main select").first().selectOption(by);
        await page.locator("h2").getByText(`By ${by}`).waitFor();
        await page.waitForFunction(() => !/Reading the/.test(document.getElementById("main").textContent));
        if (by === "agent") seen.programs = await programs(page, "light");
    }
    const saving = page.waitForEvent("download");
    await page.getByRole("button", { name: "Save as CSV" }).click();
    seen.csv = readFileSync(await (await saving).path(), "utf8");
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByLabel("Admin token").waitFor();
    seen.after = (await page.context().request.get(`${admin}/session`)).status();
    await page.context().close();

    const phone = await opened(browser, { viewport: { width: 390, height: 800 }, colorScheme: "dark", bypassCSP: true });
    await signIn(phone);
    await walk(phone, "phone");
    await phone.goto(`${admin}/#/usage`);
    await phone.locator("main select").first().selectOption("agent");
    seen.programsOnPhone = await programs(phone, "phone");
    await phone.context().close();

    // With the page's own policy, and what a first look loads.
    const strict = await opened(browser, {});
    const sizes = [];
    strict.on("response", (response) => {
        if (new URL(response.url()).pathname.startsWith("/page/")) sizes.push(response.request().sizes());
    });
    await signIn(strict);
    await strict.locator(".uplot canvas").first().waitFor();
    await strict.goto(`${admin}/#/pages`);
    seen.loaded = (await Promise.all(sizes)).reduce((all, each) => all + each.responseBodySize, 0);
    await strict.context().close();
} finally {
    await browser.close();
}
console.log(JSON.stringify(seen));
