// Verdicts that need a server of their own, each reached by traffic and read off the page in headless Chromium:
//   SHOTS=folder FEATURES=features.npy LABELS=labels.json TOKEN=… node verdicts.js URL WHAT
//   silent: the server counts three seconds as silence          collapse: a method that nothing holds, on a treacherous stream
//   full: files of the server may have 60 kB (SERVER its id)    lost: a record of the log was damaged      damaged: a stream's head was
const { execFileSync } = require("child_process");
const { assert, call, launch, level, row, send, shots } = require("./browser.js");
const rows = (from, to) => Array.from({ length: to - from }, (_, i) => row(from + i));

/** Sends rows block by block until the page shows the verdict. */
async function until(page, wanted, reason, from, to) {
  for (let at = from; at < to; at += 32) {
    await send(rows(at, at + 32));
    const { verdict } = await call("GET", "/v1/streams/default");
    if (verdict.level === wanted && new RegExp(reason).test(verdict.reason)) { await level(page, wanted, reason); return at + 32; }
  }
  throw new Error(`no verdict "${wanted}: ${reason}" by row ${to}`);
}

const WHAT = {
  async silent(page) {
    await send(rows(0, 400));
    await level(page, "well", "nothing has changed");
    await level(page, "act", "row");
    assert.match(await page.textContent("#alarms"), /Silent/);
    await page.screenshot({ path: shots + "/verdict-silent.png" });
    // The next row ends it.
    await send(rows(400, 450));
    await level(page, "well", "nothing has changed");
  },
  async collapse(page) {
    const at = await until(page, "watch", "last healthy state was restored", 0, 1000);
    await page.screenshot({ path: shots + "/verdict-restored.png" });
    await until(page, "act", "frozen model answers alone", at, 3000);
    assert.match(await page.textContent("#standing"), /fell back to zero-shot/);
    await page.screenshot({ path: shots + "/verdict-zero-shot.png", fullPage: true });
    await call("POST", "/v1/streams/default/reset", {});
    await level(page, "watch", "No row has arrived");
  },
  async full(page) {
    await until(page, "act", "Nothing is learnt", 0, 4000);
    await page.screenshot({ path: shots + "/verdict-full-disk.png" });
    // Room again: it goes on by itself.
    execFileSync("prlimit", ["--pid", process.env.SERVER, "--fsize=unlimited"]);
    await level(page, "well", "Learning");
  },
  async lost(page) {
    await level(page, "act", "Something was lost");
    await page.screenshot({ path: shots + "/verdict-lost.png" });
    await page.click("#acknowledge");
    await level(page, "watch", "No row since the server opened the stream");
  },
  async damaged(page) {
    // A stream that could not be opened is in plain sight, and the others are served.
    await page.waitForFunction(() => [...document.querySelectorAll("#streams .act")].some(card => /could not be opened/.test(card.textContent)));
    await page.screenshot({ path: shots + "/damaged.png", fullPage: true });
    assert.match(await page.textContent("#c-rate"), /samples were seen before/);
  },
};
(async () => {
  const { browser, problems, foreign, open } = await launch();
  const page = await open({ viewport: { width: 1280, height: 900 } });
  await WHAT[process.argv[3]](page);
  const phone = await open({ viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, hasTouch: true });
  const overflow = await phone.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert(overflow <= 0, "the page is wider than the phone by " + overflow);
  assert.deepStrictEqual([problems, foreign], [[], []]);
  await browser.close();
  console.log("verdict: " + process.argv[3]);
})().catch(error => { console.error(error); process.exit(1); });
