// The end of a line that a test holds a browser on: commands come in as one JSON object a line,
// each is answered with one line, `{"ok": value}` or `{"error": text}`.
import { createInterface } from "node:readline";

/** What every Chromium of the tests is started with. */
export const CHROMIUM_FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  // A page in a window that nobody sees must still run at full speed.
  "--disable-background-timer-throttling",
  "--disable-renderer-backgrounding",
  "--disable-backgrounding-occluded-windows",
  // A script of the test may speak without anybody having touched the page.
  "--autoplay-policy=no-user-gesture-required",
  "--use-fake-ui-for-media-stream",
  "--use-fake-device-for-media-stream",
];

/** Carries out commands, one after the other, until the other end of standard input goes away. */
export async function serve(commands) {
  for await (const line of createInterface({ input: process.stdin })) {
    let reply;
    try {
      const { do: name, ...rest } = JSON.parse(line);
      reply = { ok: await commands[name](rest) };
    } catch (error) {
      reply = { error: String(error) };
    }
    process.stdout.write(`${JSON.stringify(reply)}\n`);
  }
}

/** A RIFF file of one channel of 16-bit samples. */
export function wavFile(samples, rateHz) {
  const head = Buffer.alloc(44);
  head.write("RIFF", 0);
  head.writeUInt32LE(36 + samples.length, 4);
  head.write("WAVEfmt ", 8);
  head.writeUInt32LE(16, 16);
  head.writeUInt16LE(1, 20);
  head.writeUInt16LE(1, 22);
  head.writeUInt32LE(rateHz, 24);
  head.writeUInt32LE(rateHz * 2, 28);
  head.writeUInt16LE(2, 32);
  head.writeUInt16LE(16, 34);
  head.write("data", 36);
  head.writeUInt32LE(samples.length, 40);
  return Buffer.concat([head, samples]);
}
