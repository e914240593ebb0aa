// Takes pictures of the page of the admin listener, while a gateway is under load.
//
//     node screenshots.mjs CHROMIUM ADMIN_URL TOKEN KEY FOLDER

import { chromium } from "playwright-core";

const [program, admin, token, key, folder] = process.argv.slice(2);
const WIDE = { width: 1280, height: 900 };
const PHONE = { width: 390, height: 844 };
// A chart has a line once it has had some seconds of figures.
const CHARTS_MS = 15000;

async function signedIn(browser, options, name) {
    const page = await (await browser.newContext(options)).newPage();
    page.setDefaultTimeout(20000);
    await page.goto(`${admin}/`);
    await page.getByLabel("Admin token").waitFor();
    await page.screenshot({ path: `${folder}/sign-in-${name}.png` });
    await page.getByLabel("Admin token").fill(token);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.locator(".tiles").waitFor();
    return page;
}

async function view(page, id, name) {
    await page.goto(`${admin}/#/${id}`);
    await page.locator(`nav a[href="#/${id}"][aria-current=page]`).waitFor();
    await page.waitForFunction(() => !/Reading the/.test(document.getElementById("main").textContent));
    await page.waitForTimeout(1500); // charts are drawn
    await page.screenshot({ path: `${folder}/${id}-${name}.png`, fullPage: true });
}

const browser = await chromium.launch({ executablePath: program, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
try {
    const kinds = { light: { viewport: WIDE, colorScheme: "light" }, dark: { viewport: WIDE, colorScheme: "dark" }, phone: { viewport: PHONE, isMobile: true, hasTouch: true } };
    const pages = {};
    for (const [name, options] of Object.entries(kinds)) pages[name] = await signedIn(browser, options, name);
    await pages.light.waitForTimeout(CHARTS_MS);
    for (const [name, page] of Object.entries(pages)) {
        for (const id of ["overview", "requests", "upstreams", "budgets", "usage"]) await view(page, id, name);
        await page.goto(`${admin}/#/playground`);
        await page.getByLabel("Model").fill("gpt-4o");
        await page.getByLabel("Key of a client").fill(key);
        await page.getByLabel("Most tokens").fill("40");
        await page.getByRole("button", { name: "Send" }).click();
        await page.locator("pre.answer[aria-live=polite]").waitFor();
        await page.screenshot({ path: `${folder}/playground-${name}.png`, fullPage: true });
    }
} finally {
    await browser.close();
}
