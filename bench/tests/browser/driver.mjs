// Drives one Chromium for the browser test: commands come in as one JSON object a line, each is
// answered with one line, `{"ok": value}` or `{"error": text}`. The scenario itself is the Rust
// test's; nothing here decides what is right.
//
// When the other end of standard input goes away, so does the browser: a test that dies leaves
// nothing behind.
import { readFile, writeFile } from "node:fs/promises";
import { chromium } from "playwright-core";
import { CHROMIUM_FLAGS, serve, wavFile } from "./puppet.mjs";

const SAMPLE_RATE_HZ = 48_000;
const POLL_MS = 100;
const PAGE_STATE = "({ state: window.syrinx.state, error: window.syrinx.error })";
const STEP_WAIT_MS = 60_000;

let context = null;
let page = null;
const complaints = [];

const commands = {
  // The microphone plays `wav` round and round, or is that of the script `probe`. `profile` is a
  // fresh folder. Without `policy`, scripts put into a page are not held to the page's own.
  async launch({ executable, profile, wav, probe, policy = true, scheme, width }) {
    const microphone = wav ? [`--use-file-for-fake-audio-capture=${wav}`] : [];
    context = await chromium.launchPersistentContext(profile, {
      executablePath: executable,
      headless: true,
      bypassCSP: !policy,
      colorScheme: scheme ?? "light",
      viewport: { width: width ?? 1040, height: 900 },
      timeout: STEP_WAIT_MS,
      args: [...CHROMIUM_FLAGS, ...microphone],
    });
    if (probe) await context.addInitScript({ path: probe });
    page = context.pages()[0] ?? await context.newPage();
    page.setDefaultTimeout(STEP_WAIT_MS);
    page.on("console", (message) => {
      const { url } = message.location();
      if (message.type() !== "error") return;
      complaints.push(`${message.text()} ${url}`);
    });
    page.on("pageerror", (error) => complaints.push(String(error)));
    return context.browser()?.version() ?? null;
  },

  async open({ url }) {
    const response = await page.goto(url);
    return response.status();
  },

  async click({ selector }) {
    await page.click(selector);
    return null;
  },

  async fill({ selector, text }) {
    await page.fill(selector, text);
    return null;
  },

  async evaluate({ expression }) {
    return await page.evaluate(expression) ?? null;
  },

  // Answers with the first value of the expression that is true in the page. Polled from here:
  // the page's content policy forbids what the driver's own waiting would evaluate there.
  async wait({ expression, timeout_ms }) {
    const deadline = Date.now() + timeout_ms;
    for (;;) {
      const value = await page.evaluate(expression);
      if (value) return value;
      if (Date.now() > deadline) {
        const { state, error } = await page.evaluate(PAGE_STATE);
        throw new Error(`never true: ${expression} (page state ${state}, error ${error})`);
      }
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
  },

  // Puts a script into the page, which its policy would not let in.
  async inject({ script }) {
    await page.evaluate(await readFile(script, "utf8"));
    return null;
  },

  // Has the probe's microphone say a recording, and waits until that is said.
  async say({ wav }) {
    return await page.evaluate((base64) => window.probe.say(base64), await readFile(wav, "base64"));
  },

  async record_start() {
    await page.evaluate(startRecorder, SAMPLE_RATE_HZ);
    return null;
  },

  async recorded_seconds() {
    return await page.evaluate((rate) => window.recorder.samples / rate, SAMPLE_RATE_HZ);
  },

  async record_stop({ file }) {
    const base64 = await page.evaluate(stopRecorder);
    await writeFile(file, wavFile(Buffer.from(base64, "base64"), SAMPLE_RATE_HZ));
    return file;
  },

  async screenshot({ file }) {
    await page.screenshot({ path: file, fullPage: true });
    return file;
  },

  // Errors that the page or the browser wrote to the console: a broken policy is one.
  async complaints() {
    return complaints;
  },

  async close() {
    await context?.close();
    context = null;
    return null;
  },
};

// Takes the decoded frames straight off the track, before any resampling or mixing. The queue
// holds ten seconds, so that a busy page loses nothing.
function startRecorder(rate) {
  const stream = window.probe?.remoteStream ?? window.syrinx.remoteStream;
  const [track] = stream.getAudioTracks();
  const frames = new MediaStreamTrackProcessor({ track, maxBufferSize: 1000 }).readable;
  const recorder = { reader: frames.getReader(), chunks: [], samples: 0, error: null };
  const pump = async () => {
    for (;;) {
      const { value, done } = await recorder.reader.read();
      if (done) return;
      if (value.sampleRate !== rate) throw new Error(`frames of ${value.sampleRate} Hz`);
      const plane = new Float32Array(value.numberOfFrames);
      value.copyTo(plane, { planeIndex: 0, format: "f32-planar" });
      value.close();
      const chunk = Int16Array.from(plane, (x) => Math.max(-1, Math.min(1, x)) * 32_767);
      recorder.chunks.push(chunk);
      recorder.samples += chunk.length;
    }
  };
  recorder.pumped = pump().catch((error) => { recorder.error = String(error); });
  window.recorder = recorder;
}

async function stopRecorder() {
  const { reader, chunks, pumped } = window.recorder;
  await reader.cancel();
  await pumped;
  if (window.recorder.error) throw new Error(window.recorder.error);
  const file = new FileReader();
  const read = new Promise((resolve, reject) => {
    file.onload = () => resolve(file.result.split(",")[1]);
    file.onerror = () => reject(file.error);
  });
  file.readAsDataURL(new Blob(chunks));
  return await read;
}

await serve(commands);
await context?.close();
