// The dashboard in headless Chromium: real clicks, no console errors, screenshots.
//   SHOTS=folder FEATURES=features.npy LABELS=labels.json TOKEN=… node page.js URL
const { assert, call, launch, level: shown, post, remove, row, send, shots, truth, url } = require("./browser.js");
(async () => {
  // Some seconds of traffic with labels, so that there is something to see.
  const traffic = async (from, seconds) => {
    for (let s = 0, at = from; s < seconds * 10; s++, at += 20) {
      const { rows } = await post("/v1/streams/default/classify", { features: Array.from({ length: 20 }, (_, k) => row(at + k)) });
      await post("/v1/streams/default/feedback", { labels: rows.slice(0, 8).map((r, k) => ({ id: r.id, label: truth[at + k] })) });
      await new Promise(done => setTimeout(done, 100));
    }
  };
  const { browser, problems, foreign, open } = await launch();
  const level = (wanted, reason) => shown(page, wanted, reason);
  const page = await open({ viewport: { width: 1280, height: 900 } });
  // verdicts by real traffic: nothing yet, too little, well, watch, act, and well again (`verdicts.js` has the others)
  await level("watch", "No row has arrived");
  // how right an empty stream is, nobody knows
  await page.waitForSelector("#class-rows tr");
  assert(!/Estimated accuracy|50\.0 %/.test(await page.textContent("#key")), await page.textContent("#key"));
  const rights = await page.$$eval("#class-rows tr td:nth-child(5)", cells => cells.map(c => c.textContent));
  assert(rights.length > 0 && rights.every(text => text === "–"), rights.join());
  await page.screenshot({ path: shots + "/verdict-empty.png" });
  await traffic(0, 0.5);
  await level("well", "too early to judge");
  await traffic(100, 7.5);
  await level("well", "nothing has changed");
  await page.screenshot({ path: shots + "/verdict-well.png" });
  await page.waitForSelector("#c-agree svg");
  await page.waitForSelector("#c-cal table");
  await page.waitForFunction(() => /Samples seen1600/.test(document.querySelector("#tiles").textContent));
  // tiles and charts have the same numbers
  await page.waitForFunction(() => {
    const agreement = document.querySelector("#key").textContent.match(/Agreement with zero-shot([\d.]+ %)/)[1];
    return document.querySelector("#c-agree .legend").textContent.includes("agreement with zero-shot " + agreement);
  });
  assert(!/No traffic yet/.test(await page.textContent("main")));
  assert.match(await page.textContent("#key"), /Sets that hold the truth, 90 %.*held [\d.]+ % of \d+ labels.*labels confirm the promise/);
  assert.match(await page.textContent("#alarms"), /at most one false alarm in 50,000 scenes/);
  await page.screenshot({ path: shots + "/labels.png", fullPage: true });
  // freeze and unfreeze
  await page.click("#freeze");
  await page.waitForFunction(() => document.querySelector("#standing").textContent.startsWith("Frozen"));
  await level("watch", "Learning is frozen");
  await page.click("#freeze");
  await page.waitForFunction(() => document.querySelector("#standing").textContent.startsWith("Learning"));
  // snapshot, more traffic, roll back
  await page.fill("#label", "before");
  await page.click("#snapshot button");
  await page.waitForFunction(() => document.querySelector("#labels").options.length === 1);
  await traffic(1600, 3);
  await page.waitForFunction(() => /Samples seen2200/.test(document.querySelector("#tiles").textContent));
  await page.click("#rollback button");
  await page.waitForFunction(() => /Samples seen1600/.test(document.querySelector("#tiles").textContent));
  assert.match(await page.textContent("#events"), /rolled_back/);
  // another domain: watch, or act if the pictures have become hard to read; acknowledged it is well again
  const shifted = i => row(i).map((v, k) => v + (k < 4 ? 0.7 : 0));
  await send(Array.from({ length: 300 }, (_, i) => shifted(2200 + i)));
  await page.waitForFunction(() => document.querySelector("#verdict").className !== "well" && document.querySelector("#acknowledge"));
  assert.match(await page.textContent("#alarms"), /since row/);
  await page.screenshot({ path: shots + "/verdict-changed.png", fullPage: true });
  await page.click("#acknowledge");
  await level("well", "Learning");
  // a mix of few classes: watch
  const few = truth.flatMap((t, i) => (t === 9 || t === 7) ? [i] : []);
  await send(Array.from({ length: 700 }, (_, i) => shifted(2500 + i % 1000)));
  await send(Array.from({ length: 300 }, (_, i) => shifted(few[i % few.length]).map(v => v + 0.02 * Math.random())));
  await level("watch", "changed|different");
  await page.screenshot({ path: shots + "/verdict-watch.png" });
  await page.click("#acknowledge");
  await level("well", "Learning");
  // a frozen feed: act
  await send(Array.from({ length: 300 }, () => shifted(3000)));
  await level("act", "same row");
  await page.screenshot({ path: shots + "/verdict-act.png", fullPage: true });
  // acknowledged is seen, not mended: other rows end it
  await page.click("#acknowledge");
  await level("watch", "acknowledged, and goes on");
  await send(Array.from({ length: 20 }, (_, i) => shifted(3001 + i)));
  await level("well", "Learning");
  // the story of a class
  await page.click("#class-rows button");
  await page.waitForSelector("td.story svg");
  assert.strictEqual(await page.getAttribute("#class-rows button", "aria-expanded"), "true");
  // its curve is the estimated accuracy, with a band
  const { points } = await call("GET", `/v1/streams/default/classes/${await page.getAttribute("#class-rows button", "data-label")}/history`);
  const right = `estimated right ${(100 * points.at(-1).estimate.top1).toFixed(1)} %`;
  await page.waitForFunction(right => document.querySelectorAll("td.story .legend")[2]?.textContent === right && document.querySelector("td.story [opacity]"), right);
  await page.screenshot({ path: shots + "/story.png", fullPage: true });
  await page.click("#class-rows button");
  // all streams at a glance: a second one is chosen by its card
  await post("/v1/streams/default/clone", { name: "yard-camera-with-a-name-that-is-rather-long-to-show" });
  await page.waitForFunction(() => document.querySelectorAll("#streams button").length === 2);
  await page.click("#streams button[data-stream^=yard]");
  await page.waitForFunction(() => /yard/.test(document.querySelector("#verdict .of").textContent));
  await page.click("#streams button[data-stream=default]");
  await page.waitForFunction(() => document.querySelector("#verdict .of").textContent === "default");
  // a stream that is deleted while it is looked at is not quietly another one
  await post("/v1/streams/default/clone", { name: "soon-gone" });
  await page.waitForSelector("#streams button[data-stream=soon-gone]");
  await page.click("#streams button[data-stream=soon-gone]");
  await page.waitForFunction(() => document.querySelector("#verdict .of").textContent === "soon-gone");
  await remove("/v1/streams/soon-gone");
  await page.waitForFunction(() => document.querySelector("#alert").textContent === "There is no stream soon-gone any more. Choose another one.");
  assert(await page.isHidden("#one"));
  await page.click("#streams button[data-stream=default]");
  await page.waitForFunction(() => document.querySelector("#verdict .of").textContent === "default" && document.querySelector("#alert").hidden);
  // a feature row: zero-shot beside adapted
  await page.fill("#features", JSON.stringify(row(2000)));
  await page.click("#try button");
  await page.waitForSelector("#answer table");
  assert.match(await page.textContent("#answer"), /Adapted.*Zero-shot.*Set of classes: /s);
  await page.fill("#features", "1, two");
  await page.click("#try button");
  await page.waitForFunction(() => /Expected numbers/.test(document.querySelector("#answer").textContent));
  await page.fill("#features", JSON.stringify(row(2000)));
  await page.click("#try button");
  // sorting, by keyboard: the most frequent first, then by name
  await page.waitForSelector("#class-rows tr");
  const share = await page.$$eval("#class-rows tr td:nth-child(2)", cells => cells.map(c => parseFloat(c.textContent)));
  assert.deepStrictEqual(share, [...share].sort((a, b) => b - a));
  await page.focus("#class-head th:first-child button");
  await page.keyboard.press("Enter");
  assert.strictEqual(await page.getAttribute("#class-head th:first-child", "aria-sort"), "ascending");
  await page.fill("#filter", "zebra");
  assert.strictEqual((await page.$$("#class-rows tr")).length, 1);
  await page.fill("#filter", "");
  // every control has a name
  const unnamed = await page.$$eval("button, input, select, textarea", nodes => nodes.filter(n => !(n.textContent.trim() || n.labels?.length || n.getAttribute("aria-label"))).map(n => n.outerHTML));
  assert.deepStrictEqual(unnamed, []);
  await page.screenshot({ path: shots + "/wide.png", fullPage: true });
  // two streams of one group: the page of either shows both
  for (const name of ["gate-1", "gate-2"]) {
    await post("/v1/streams", { name, head_of: "default", group: "gates" });
    await post(`/v1/streams/${name}/classify`, { features: Array.from({ length: 50 }, (_, i) => row(i)) });
  }
  await page.click("#streams button[data-stream=gate-1]");
  await page.waitForFunction(() => document.querySelectorAll("#fleet-rows tr").length === 2);
  await page.waitForFunction(() => /^In the group gates, over this server/.test(document.querySelector("#fleet-note").textContent));
  assert.match(await page.textContent("#fleet-rows"), /gate-2 \(here\)/);
  await page.click("#streams button[data-stream=default]");
  await page.waitForFunction(() => document.querySelector("#s-fleet").hidden);
  for (const name of ["gate-1", "gate-2"]) await call("DELETE", `/v1/streams/${name}`);
  const fits = async (page, what) => {
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert(overflow <= 0, `the page is wider than ${what} by ${overflow}`);
  };
  await fits(page, "1280");
  const dark = await open({ viewport: { width: 1280, height: 900 }, colorScheme: "dark" });
  await dark.waitForSelector("#c-agree svg");
  await dark.screenshot({ path: shots + "/dark.png", fullPage: true });
  for (const [width, colorScheme] of [[1920, "light"], [1920, "dark"]]) {
    const large = await open({ viewport: { width, height: 1080 }, colorScheme });
    await large.waitForSelector("#c-agree svg");
    await fits(large, String(width));
    await large.screenshot({ path: `${shots}/${width}-${colorScheme}.png`, fullPage: true });
  }
  const night = await open({ viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, hasTouch: true, colorScheme: "dark" });
  await night.waitForSelector("#c-agree svg");
  await night.screenshot({ path: shots + "/phone-dark.png", fullPage: true });
  const phone = await open({ viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, hasTouch: true });
  await phone.waitForSelector("#c-agree svg");
  await fits(phone, "the phone");
  await phone.screenshot({ path: shots + "/phone.png", fullPage: true });
  assert.deepStrictEqual([problems, foreign], [[], []]);
  // without a token it says so, and the browser's own complaint about 401 is all there is in its console
  const context = await browser.newContext();
  const stranger = await context.newPage();
  await stranger.goto(url + "/");
  await stranger.waitForFunction(() => /^This server needs a token: paste a read token/.test(document.querySelector("#alert").textContent));
  await stranger.fill("#token", "a-wrong-token");
  await stranger.click("#auth button");
  await stranger.waitForFunction(() => /^The token is not known. This server needs a token/.test(document.querySelector("#alert").textContent));
  const docs = await context.newPage();
  docs.on("console", message => { if (message.type() === "error") problems.push(message.text()); });
  await docs.goto(url + "/docs");
  await docs.waitForSelector("details");
  await docs.click("details summary");
  await docs.screenshot({ path: shots + "/docs.png" });
  assert.deepStrictEqual(problems, []);
  await browser.close();
  console.log("page: clicks, keyboard, phone, dark; screenshots in " + shots);
})().catch(error => { console.error(error); process.exit(1); });
