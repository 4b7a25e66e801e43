// Drives one browser, Chromium or Firefox: commands come in as one JSON object a line, each is
// answered with one line, `{"ok": value}` or `{"error": text}`. The scenario itself is the Rust
// test's; nothing here decides what is right.
//
// When the other end of standard input goes away, so does the browser.
import { readFile, writeFile } from "node:fs/promises";
import puppeteer from "puppeteer-core";
import { CHROMIUM_FLAGS, serve, wavFile } from "../../browser/puppet.mjs";

const STEP_WAIT_MS = 60_000;
const RATE_HZ = 48_000;

// A page may play sound, and use the microphone, without being asked or touched first, wherever
// it comes from.
const FIREFOX_PREFS = {
  "media.autoplay.default": 0,
  "media.autoplay.blocking_policy": 0,
  "media.navigator.permission.disabled": true,
  "media.devices.insecure.enabled": true,
  "media.getusermedia.insecure.enabled": true,
};

let browser = null;
let page = null;
let kind = null;
const complaints = [];

const commands = {
  // `profile` is a fresh folder. In Chromium the microphone plays `wav` round and round, and
  // `origin` may use it although it is no secure one.
  async launch({ kind: which, executable, profile, wav, origin, flags = [], prefs = {} }) {
    kind = which;
    const chromium = [
      ...CHROMIUM_FLAGS, ...flags, `--use-file-for-fake-audio-capture=${wav}`,
      `--unsafely-treat-insecure-origin-as-secure=${origin}`,
    ];
    browser = await puppeteer.launch({
      browser: kind === "firefox" ? "firefox" : "chrome",
      executablePath: executable,
      userDataDir: profile,
      headless: true,
      timeout: STEP_WAIT_MS,
      protocolTimeout: STEP_WAIT_MS,
      args: kind === "firefox" ? flags : chromium,
      extraPrefsFirefox: { ...FIREFOX_PREFS, ...prefs },
    });
    return await browser.version();
  },

  // Loads a page and puts scripts into it, as if they were its own: its policy does not count, of
  // which Chromium has to be told for what such a script does later.
  async open({ url, scripts }) {
    page = await browser.newPage();
    if (kind === "chromium") await page.setBypassCSP(true);
    page.on("console", (message) => {
      if (message.type() === "error") complaints.push(message.text());
    });
    page.on("pageerror", (error) => complaints.push(String(error)));
    const response = await page.goto(url);
    for (const script of scripts) await page.evaluate(await readFile(script, "utf8"));
    return response.status();
  },

  async step({ call, name, given = {} }) {
    return await page.evaluate(
      (call, name, given) => window.caller.step(call, name, given), call, name, given,
    ) ?? null;
  },

  async record({ call, seconds, file }) {
    const samples = await commands.step({ call, name: "record", given: { seconds } });
    await writeFile(file, wavFile(Buffer.from(samples, "base64"), RATE_HZ));
    return file;
  },

  async evaluate({ expression }) {
    return await page.evaluate(expression) ?? null;
  },

  async complaints() {
    return complaints;
  },

  async close() {
    await browser?.close();
    browser = null;
    return null;
  },
};

await serve(commands);
await browser?.close();
