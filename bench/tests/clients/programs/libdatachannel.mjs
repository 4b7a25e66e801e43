// One call of libdatachannel (by its Node binding): sends the given payloads as audio, keeps what
// comes back, exchanges an event, closes. What it saw goes to standard output as one JSON object;
// what that should be is the test's to say.
import { randomBytes, randomInt } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { Audio, PeerConnection, cleanup, getLibraryVersion } from "node-datachannel";

const STEP_WAIT_MS = 30_000;
const PACKET_MS = 20;
const PACKET_SAMPLES = 960;
const OPUS = 111;
// Payload types that RTCP's packet types look like when the marker bit is cut off (RFC 5761, 4).
const RTCP_TYPES = { first: 64, last: 95 };
const HEADER_BYTES = 12;
// What is on its way when the last payload was sent.
const TAIL_MS = 1_000;

const { values: options } = parseArgs({
  options: Object.fromEntries(
    ["calls", "event", "frames", "returned"].map((name) => [name, { type: "string" }]),
  ),
});

const states = [];
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const within = (what, promise) => Promise.race([
  promise,
  sleep(STEP_WAIT_MS).then(() => { throw new Error(`${what} did not come (${states})`); }),
]);
const first = (subscribe) => new Promise((resolve) => subscribe((...values) => resolve(values)));

async function postOffer(sdp) {
  const answer = await fetch(options.calls, {
    method: "POST", headers: { "Content-Type": "application/sdp" }, body: sdp,
  });
  return [answer.status, answer.headers.get("Location"), await answer.text()];
}

// The payload of an RTP packet: what is between CSRCs, extension and padding (RFC 3550, 5.1).
function payload(packet) {
  let at = HEADER_BYTES + (packet[0] & 0x0f) * 4;
  if (packet[0] & 0x10) at += 4 + packet.readUInt16BE(at + 2) * 4;
  const padding = packet[0] & 0x20 ? packet[packet.length - 1] : 0;
  return packet.subarray(at, packet.length - padding);
}

async function send(track, ssrc, frames) {
  const header = Buffer.alloc(HEADER_BYTES);
  const sequence = randomInt(0x8000);
  const timestamp = randomInt(0x8000_0000);
  const start = performance.now();
  for (const [number, frame] of frames.entries()) {
    header[0] = 0x80;
    header[1] = OPUS | (number === 0 ? 0x80 : 0);
    header.writeUInt16BE((sequence + number) & 0xffff, 2);
    header.writeUInt32BE((timestamp + number * PACKET_SAMPLES) >>> 0, 4);
    header.writeUInt32BE(ssrc, 8);
    track.sendMessageBinary(Buffer.concat([header, frame]));
    await sleep(Math.max(0, start + (number + 1) * PACKET_MS - performance.now()));
  }
}

const frames = readFileSync(options.frames, "utf8").trim().split("\n")
  .map((line) => Buffer.from(line, "hex"));
const connection = new PeerConnection("caller", { iceServers: [] });
const closed = first((resolve) => connection.onStateChange(
  (state) => { states.push(state); if (state === "closed") resolve(state); },
));
const gathered = first((resolve) => connection.onGatheringStateChange(
  (state) => state === "complete" && resolve(state),
));
const ssrc = randomBytes(4).readUInt32BE();
const audio = new Audio("0", "SendRecv");
audio.addOpusCodec(OPUS);
audio.addSSRC(ssrc, "caller", "voice", "voice");
const track = connection.addTrack(audio);
const returned = [];
track.onMessage((packet) => {
  const type = packet[1] & 0x7f;
  if (type < RTCP_TYPES.first || type > RTCP_TYPES.last) returned.push(payload(packet));
});
const trackOpen = first((resolve) => track.onOpen(resolve));
const channel = connection.createDataChannel("oai-events");
const messages = [];
let wake = () => {};
channel.onMessage((text) => { messages.push(text); wake(); });
async function message() {
  while (messages.length === 0) await new Promise((resolve) => { wake = resolve; });
  return messages.shift();
}

connection.setLocalDescription("offer");
await within("gathering", gathered);
const [status, location, answer] = await postOffer(connection.localDescription().sdp);
connection.setRemoteDescription(answer, "answer");
const greeting = await within("the greeting", message());
channel.sendMessage(options.event);
const echo = await within("the event", message());
await within("the track", trackOpen);
await send(track, ssrc, frames);
await sleep(TAIL_MS);
connection.close();
await within("the end", closed);
writeFileSync(options.returned, returned.map((frame) => `${frame.toString("hex")}\n`).join(""));
const manifest = new URL("../node_modules/node-datachannel/package.json", import.meta.url);
const { version } = JSON.parse(readFileSync(manifest, "utf8"));
process.stdout.write(JSON.stringify({
  client: "libdatachannel", version: `${getLibraryVersion()} (node-datachannel ${version})`,
  status, location, greeting, echo, states,
}));
cleanup();
