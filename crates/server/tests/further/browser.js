// What the tests of the page share: rows of the small stream, calls of the service, a browser that reports problems.
const { chromium } = require("playwright-core");
const fs = require("fs");
const assert = require("assert");
const url = process.argv[2], shots = process.env.SHOTS, token = process.env.TOKEN;
fs.mkdirSync(shots, { recursive: true });
const file = fs.readFileSync(process.env.FEATURES);
const start = 10 + file.readUInt16LE(8), dim = 16;
const row = i => Array.from({ length: dim }, (_, k) => file.readFloatLE(start + 4 * (i * dim + k)));
const truth = JSON.parse(fs.readFileSync(process.env.LABELS, "utf8"));

const call = async (method, path, body) => {
  const headers = { "content-type": "application/json", authorization: "Bearer " + token };
  const response = await fetch(url + path, { method, headers, body: body && JSON.stringify(body) });
  assert(response.ok, path + ": " + response.status + " " + (await response.clone().text()));
  return response.status === 204 ? null : response.json();
};
const post = (path, body) => call("POST", path, body);
const remove = path => call("DELETE", path);
/** Rows to the stream `default`, in small requests. */
const send = async rows => { for (let i = 0; i < rows.length; i += 50) await post("/v1/streams/default/classify", { features: rows.slice(i, i + 50), normalize: true }); };

/** A browser; `problems` are errors and warnings of its console, `foreign` requests to anywhere else. */
const launch = async () => {
  const args = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args });
  const problems = [], foreign = [];
  const open = async options => {
    const context = await browser.newContext(options);
    await context.addInitScript(t => sessionStorage.setItem("token", t), token);
    const page = await context.newPage();
    page.on("console", message => { if (["error", "warning"].includes(message.type())) problems.push(message.text()); });
    page.on("pageerror", error => problems.push(String(error)));
    page.on("request", request => { if (!/^(data|blob):/.test(request.url()) && !request.url().startsWith(url)) foreign.push(request.url()); });
    page.on("dialog", dialog => dialog.accept());
    await page.goto(url + "/");
    await page.waitForSelector("#verdict .word, #streams .act");
    return page;
  };
  return { browser, problems, foreign, open };
};
/** Waits until the page shows a verdict of this level and this reason. */
const level = (page, wanted, reason) => page.waitForFunction(([w, r]) => document.querySelector("#verdict").className === w && new RegExp(r).test(document.querySelector("#verdict").textContent), [wanted, reason], { timeout: 20000 });

module.exports = { assert, call, dim, launch, level, post, remove, row, send, shots, truth, url };
