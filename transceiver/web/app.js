// The browser's side of one call: offer, answer, sound both ways, events, and what each step took.
//
// It speaks the same API as any client: an SDP offer posted to CALLS_URL, a DELETE on the Location
// that came back. The offer never waits for ICE gathering: the relay learns this browser's address
// from its first check. What the page knows is also readable as `window.syrinx`, so that a test
// asserts on figures and not on pixels. What is said and what is logged have files of their own.

import { Conversation } from "./conversation.js";
import { EventLog } from "./events.js";

const CALLS_URL = "/v1/realtime/calls";
const CHANNEL_LABEL = "oai-events";
const ANSWER_WAIT_MS = 15_000;
const HANG_UP_WAIT_MS = 2_000;
const STATS_EVERY_MS = 1_000;
const MODEL_KEPT = "syrinx.models";
const MODELS_KEPT_MAX = 8;
// Below this a microphone in a quiet room is noise; the meters start here.
const LEVEL_FLOOR_DB = -60;
const PEAK_FALL_DB_PER_S = 20;
// A screen reader wants a level now and then, not sixty times a second.
const LEVEL_TEXT_EVERY_MS = 250;

const PHASES = [
  ["offer", "Offer made"],
  ["answer", "HTTP answer"],
  ["ice", "ICE connected"],
  ["dtls", "DTLS connected"],
  ["channel", "Channel open"],
  ["session", "session.created"],
  ["audio", "First audio back"],
];

const FACTS = [
  ["relay", "Relay address"],
  ["rtt", "Round trip"],
  ["jitter", "Jitter, coming back"],
  ["lossBack", "Loss, coming back"],
  ["lossOut", "Loss, going out"],
  ["buffer", "Playout buffer here"],
  ["codec", "Codec"],
  ["cipher", "Encryption"],
];

// The same page with ?raw=1 leaves the microphone unprocessed: an echo canceller would take out
// just the signal that a measurement of this echo wants to see.
// And ?model=NAME fills in the model.
const query = new URLSearchParams(location.search);
const raw = query.get("raw") === "1";

const $ = (id) => document.getElementById(id);

/** What a test may read. `state` is one of idle, microphone, connecting, live, interrupted,
 *  ended, failed; `phases` are milliseconds from the moment the microphone was ready. */
const syrinx = {
  state: "idle", error: null, phases: {}, stats: {}, connectionStates: [],
  location: null, localStream: null, remoteStream: null,
  get events() { return log.entries; },
  get turns() {
    return conversation.turns.map(({ who, id, text, note }) => ({ who, id, text, note }));
  },
};
window.syrinx = syrinx;

const conversation = new Conversation($("turns"));
const log = new EventLog({
  list: $("events"), count: $("event-count"), text: $("filter-text"), way: $("filter-way"),
  deltas: $("filter-deltas"),
});

let call = null;

// ---------------------------------------------------------------------------------------------
// The call

class Call {
  constructor(model) {
    this.model = model;
    this.pc = null;
    this.channel = null;
    this.startedAt = null;
    this.timers = [];
    this.over = false;
    this.inbound = null;
  }

  async start() {
    setState("microphone", "Waiting for the microphone…");
    const stream = await openMicrophone();
    if (this.over) return release(stream);
    syrinx.localStream = stream;
    this.startedAt = performance.now();
    setState("connecting", "Connecting…");
    meters.listen("mic", stream);
    await this.connect(stream);
  }

  async connect(stream) {
    this.pc = new RTCPeerConnection();
    this.watch(this.pc);
    for (const track of stream.getAudioTracks()) this.pc.addTrack(track, stream);
    this.openChannel();
    await this.pc.setLocalDescription();
    this.mark("offer");
    const { answer, url } = await postOffer(this.pc.localDescription.sdp, this.model);
    syrinx.location = url;
    if (this.over) return hangUpAt(url);
    this.mark("answer");
    await this.pc.setRemoteDescription({ type: "answer", sdp: answer });
    this.timers.push(setInterval(() => this.readStats(), STATS_EVERY_MS));
    this.timers.push(setInterval(() => showDuration(this.startedAt), 500));
  }

  watch(pc) {
    pc.addEventListener("iceconnectionstatechange", () => {
      if (["connected", "completed"].includes(pc.iceConnectionState)) this.mark("ice");
    });
    pc.addEventListener("connectionstatechange", () => this.follow(pc.connectionState));
    pc.addEventListener("track", ({ track, streams }) => {
      const stream = streams[0] ?? new MediaStream([track]);
      syrinx.remoteStream = stream;
      $("voice").srcObject = stream;
      meters.listen("back", stream);
      // A remote track is muted until its first packet arrives (WebRTC 1.0, section 5.3).
      track.addEventListener("unmute", () => this.mark("audio"));
    });
  }

  follow(connection) {
    syrinx.connectionStates.push(connection);
    if (this.over) return;
    if (connection === "connected") {
      this.mark("ice");
      this.mark("dtls");
      setState("live", "Connected. Say something.");
    } else if (connection === "disconnected") {
      setState("interrupted", "Nothing comes back from the relay. Waiting for it…");
    } else if (connection === "failed") {
      const relay = syrinx.stats.relay ?? "the relay";
      this.end("failed", `No media path to ${relay}: its checks went unanswered. `
        + "Is the relay running, and does the network let UDP through?");
    } else if (connection === "closed") {
      this.end("ended");
    }
  }

  openChannel() {
    this.channel = this.pc.createDataChannel(CHANNEL_LABEL);
    this.channel.addEventListener("open", () => {
      this.mark("channel");
      enableSending(true);
    });
    this.channel.addEventListener("message", ({ data }) => this.receive(data));
    this.channel.addEventListener("close", () => {
      this.end("ended", null, "The other side hung up.");
    });
  }

  receive(data) {
    const text = typeof data === "string" ? data : `(${data.byteLength ?? data.size} bytes)`;
    const event = parseEvent(text);
    if (event?.type === "session.created") this.mark("session");
    log.add(this.elapsed(), "received", event?.type ?? null, text);
    if (event) conversation.take(event);
  }

  send(text) {
    this.channel.send(text);
    log.add(this.elapsed(), "sent", parseEvent(text)?.type ?? null, text);
  }

  /** Puts a text in place of something spoken, and asks for the answer to it. */
  say(text) {
    const content = [{ type: "input_text", text }];
    const item = { type: "message", role: "user", content };
    conversation.write(text);
    this.send(JSON.stringify({ type: "conversation.item.create", item }));
    this.send(JSON.stringify({ type: "response.create" }));
  }

  /** Stops the answer: its making at the backend, and what of it waits to be played. */
  interrupt() {
    if (conversation.answering) this.send(JSON.stringify({ type: "response.cancel" }));
    this.send(JSON.stringify({ type: "output_audio_buffer.clear" }));
  }

  elapsed() {
    return performance.now() - this.startedAt;
  }

  mark(phase) {
    if (this.over || phase in syrinx.phases) return;
    syrinx.phases[phase] = Math.round(this.elapsed() * 10) / 10;
    showPhases();
  }

  async readStats() {
    const report = await this.pc.getStats();
    if (this.over) return;
    const { facts, inbound } = readReport(report, this.inbound);
    this.inbound = inbound;
    // Not every browser tells of the first packet through the track.
    if (inbound?.packetsReceived > 0) this.mark("audio");
    syrinx.stats = facts;
    showFacts(facts);
  }

  /** Ends the call on this side, once, and tells the transceiver. */
  end(state, error = null, text = "The call is over.") {
    if (this.over) return;
    this.over = true;
    this.timers.forEach(clearInterval);
    release(syrinx.localStream);
    // Closing the connection ends the session too, by itself and sooner than the DELETE would,
    // which then finds no call: so one after the other.
    if (syrinx.location) hangUpAt(syrinx.location).finally(() => this.pc.close());
    else this.pc?.close();
    meters.stop();
    $("voice").srcObject = null;
    enableSending(false);
    call = null;
    setState(state, state === "failed" ? "The call failed." : text, error);
  }
}

async function openMicrophone() {
  if (!navigator.mediaDevices?.getUserMedia) {
    throw new Error("This page may not use the microphone: browsers allow it on https and on "
      + "localhost only.");
  }
  const processing = !raw;
  try {
    return await navigator.mediaDevices.getUserMedia({
      audio: {
        echoCancellation: processing, noiseSuppression: processing, autoGainControl: processing,
      },
    });
  } catch (error) {
    throw new Error(MICROPHONE_ERRORS[error.name] ?? `The microphone does not open: ${error}`);
  }
}

const MICROPHONE_ERRORS = {
  NotAllowedError: "No permission for the microphone. Allow it in the browser's site settings, "
    + "then press Talk again.",
  NotFoundError: "No microphone was found. Connect one, then press Talk again.",
  NotReadableError: "The microphone is busy: another program holds it.",
};

/** Posts the offer. Resolves to the answer's SDP and the call's absolute URL. */
async function postOffer(sdp, model) {
  let response;
  try {
    response = await fetch(model ? `${CALLS_URL}?${new URLSearchParams({ model })}` : CALLS_URL, {
      method: "POST",
      headers: { "Content-Type": "application/sdp", ...authorization() },
      body: sdp,
      signal: AbortSignal.timeout(ANSWER_WAIT_MS),
    });
  } catch (error) {
    throw new Error(error.name === "TimeoutError"
      ? `The transceiver did not answer within ${ANSWER_WAIT_MS / 1000} s.`
      : "The transceiver cannot be reached. Is it running?");
  }
  const body = await response.text();
  if (response.status === 401) askForKey();
  if (response.status !== 201) throw new Error(refusal(response, body));
  const where = response.headers.get("Location");
  if (!where) throw new Error("The transceiver answered without the call's Location.");
  return { answer: body, url: new URL(where, response.url).href };
}

function refusal(response, body) {
  let message = response.statusText || "no reason given";
  try {
    message = JSON.parse(body).error.message;
  } catch {
    // A proxy in between answers in its own words; the status still says what kind it is.
  }
  const wait = response.headers.get("Retry-After");
  const again = wait ? ` Try again in ${wait} s.` : "";
  const said = message.replace(/\.?$/, ".");
  return `The transceiver refused the call (${response.status}): ${said}${again}`;
}

async function hangUpAt(url) {
  syrinx.location = null;
  try {
    // keepalive lets the request outlive a page that is being left.
    await fetch(url, {
      method: "DELETE", headers: authorization(), keepalive: true,
      signal: AbortSignal.timeout(HANG_UP_WAIT_MS),
    });
  } catch {
    // Harmless: the session ends by itself when its checks stop.
  }
}

/** A key is kept in its field alone, for as long as the page is open. */
function authorization() {
  const key = $("key").value.trim();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

function askForKey() {
  $("key-field").hidden = false;
  $("key").focus();
}

function release(stream) {
  stream?.getTracks().forEach((track) => track.stop());
}

// ---------------------------------------------------------------------------------------------
// Statistics

/** Facts out of one report, and the inbound figures the next one is compared with. */
function readReport(report, before) {
  const all = [...report.values()];
  const find = (test) => all.find(test);
  const transport = find((s) => s.type === "transport");
  const pair = report.get(transport?.selectedCandidatePairId)
    ?? find((s) => s.type === "candidate-pair" && s.nominated && s.state === "succeeded");
  const inbound = find((s) => s.type === "inbound-rtp" && s.kind === "audio");
  const outbound = find((s) => s.type === "remote-inbound-rtp" && s.kind === "audio");
  const remotes = all.filter((s) => s.type === "remote-candidate");
  const facts = {
    remotePorts: [...new Set(remotes.map((remote) => remote.port))],
    ...pathFacts(report, pair, transport),
    ...inboundFacts(inbound, before),
    ...codecFacts(report.get(inbound?.codecId)),
  };
  if (outbound?.fractionLost !== undefined) {
    facts.lossOut = percent(outbound.fractionLost);
  }
  return { facts, inbound };
}

function pathFacts(report, pair, transport) {
  const facts = {};
  const remote = report.get(pair?.remoteCandidateId);
  if (remote) {
    const host = remote.address?.includes(":") ? `[${remote.address}]` : remote.address;
    facts.relay = `${host}:${remote.port} ${remote.protocol?.toUpperCase()}`;
    facts.relayPort = remote.port;
  }
  if (pair?.currentRoundTripTime !== undefined) {
    facts.rtt = milliseconds(pair.currentRoundTripTime);
  }
  if (transport?.dtlsState === "connected") {
    // The stack tells its version as four hexadecimal digits of the record layer (RFC 9147, 5.3).
    const version = { FEFD: "DTLS 1.2", FEFC: "DTLS 1.3" }[transport.tlsVersion] ?? "DTLS";
    const cipher = transport.srtpCipher?.replace(/^SRTP_(AEAD_)?/, "").replaceAll("_", "-");
    facts.cipher = [version, cipher].filter(Boolean).join(", ");
  }
  return facts;
}

function inboundFacts(inbound, before) {
  if (!inbound) return {};
  const facts = { packetsBack: inbound.packetsReceived };
  if (inbound.jitter !== undefined) facts.jitter = milliseconds(inbound.jitter);
  const since = (key) => (inbound[key] ?? 0) - (before?.[key] ?? 0);
  // A packet that comes late after all is taken back out of the lost (RFC 3550, A.3).
  const lost = Math.max(0, since("packetsLost"));
  const expected = lost + since("packetsReceived");
  if (expected > 0) facts.lossBack = `${percent(lost / expected)}, ${inbound.packetsLost} in all`;
  const emitted = since("jitterBufferEmittedCount");
  if (emitted > 0) facts.buffer = milliseconds(since("jitterBufferDelay") / emitted);
  return facts;
}

function codecFacts(codec) {
  if (!codec) return {};
  const name = codec.mimeType.replace("audio/", "");
  return { codec: `${name}, ${codec.clockRate / 1000} kHz, payload type ${codec.payloadType}` };
}

const milliseconds = (seconds) => `${(seconds * 1000).toFixed(1)} ms`;
const percent = (fraction) => `${(fraction * 100).toFixed(1)} %`;

// ---------------------------------------------------------------------------------------------
// Level meters

const meters = {
  context: null,
  sides: {},
  frame: null,

  listen(id, stream) {
    this.context ??= new AudioContext();
    const analyser = this.context.createAnalyser();
    analyser.fftSize = 1024;
    const source = this.context.createMediaStreamSource(stream);
    source.connect(analyser);
    const samples = new Float32Array(analyser.fftSize);
    this.sides[id] = { source, analyser, samples, peak: LEVEL_FLOOR_DB, told: 0 };
    this.frame ??= requestAnimationFrame((now) => this.draw(now, now));
  },

  draw(now, before) {
    for (const [id, side] of Object.entries(this.sides)) {
      side.analyser.getFloatTimeDomainData(side.samples);
      const level = decibels(side.samples);
      const fallen = side.peak - PEAK_FALL_DB_PER_S * (now - before) / 1000;
      side.peak = Math.max(level, fallen, LEVEL_FLOOR_DB);
      showLevel(id, level, side.peak);
      if (now - side.told >= LEVEL_TEXT_EVERY_MS) {
        side.told = now;
        tellLevel(id, level);
      }
    }
    this.frame = requestAnimationFrame((next) => this.draw(next, now));
  },

  stop() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    for (const [id, side] of Object.entries(this.sides)) {
      side.source.disconnect();
      showLevel(id, LEVEL_FLOOR_DB, LEVEL_FLOOR_DB);
      tellLevel(id, LEVEL_FLOOR_DB);
    }
    this.sides = {};
    this.context?.close();
    this.context = null;
  },
};

/** Root mean square of the samples in dB of full scale, not below the floor. */
function decibels(samples) {
  let sum = 0;
  for (const sample of samples) sum += sample * sample;
  const power = sum / samples.length;
  return Math.max(LEVEL_FLOOR_DB, 10 * Math.log10(power + Number.EPSILON));
}

function showLevel(id, level, peak) {
  const [bar, mark] = $(id).children;
  bar.style.transform = `scaleX(${1 - level / LEVEL_FLOOR_DB})`;
  mark.style.transform = `translateX(${-100 * peak / LEVEL_FLOOR_DB}%)`;
  mark.hidden = peak <= LEVEL_FLOOR_DB;
}

function tellLevel(id, level) {
  $(id).setAttribute("aria-valuenow", Math.round(level));
  $(`${id}-level`).textContent = level <= LEVEL_FLOOR_DB ? "silent"
    : `${Math.round(level)} dB`.replace("-", "\u2212");
}

// ---------------------------------------------------------------------------------------------
// What is shown

/** The event in a text, or null when there is none. */
function parseEvent(text) {
  try {
    const event = JSON.parse(text);
    return typeof event?.type === "string" ? event : null;
  } catch {
    // Shown as it came: an event that is no JSON is worth seeing.
    return null;
  }
}

function enableSending(on) {
  for (const id of ["say", "send"]) $(id).querySelector("button").disabled = !on;
  $("interrupt").disabled = !on;
}

function setState(state, text, error = null) {
  syrinx.state = state;
  syrinx.error = error;
  document.body.dataset.state = state;
  $("status-text").textContent = text;
  showError("error", error);
  const busy = !["idle", "ended", "failed"].includes(state);
  $("talk").disabled = busy;
  $("hangup").disabled = !busy;
  $("model").disabled = busy;
  $("key").disabled = busy;
}

function showError(id, text) {
  $(id).hidden = !text;
  $(id).textContent = text ?? "";
}

function showDuration(startedAt) {
  const whole = Math.floor((performance.now() - startedAt) / 1000);
  const seconds = String(whole % 60).padStart(2, "0");
  $("duration").textContent = `${Math.floor(whole / 60)}:${seconds}`;
}

function layOut() {
  $("phases").replaceChildren(...PHASES.map(([id, name]) => {
    const row = element("li", { id: `phase-${id}` });
    const bar = element("span", { className: "bar" });
    bar.append(element("i"));
    row.append(element("span", { textContent: name }), bar,
      element("span", { className: "figure", textContent: "–" }));
    return row;
  }));
  $("facts").replaceChildren(...FACTS.flatMap(([id, name]) => [
    element("dt", { textContent: name }), element("dd", { id: `fact-${id}`, textContent: "–" }),
  ]));
}

function showPhases() {
  const whole = Math.max(1, ...Object.values(syrinx.phases));
  const done = PHASES.filter(([id]) => id in syrinx.phases);
  done.sort(([a], [b]) => syrinx.phases[a] - syrinx.phases[b]);
  let from = 0;
  for (const [id] of done) {
    const to = syrinx.phases[id];
    const row = $(`phase-${id}`);
    row.dataset.done = "";
    row.querySelector(".figure").textContent = `${to.toFixed(to < 100 ? 1 : 0)} ms`;
    const bar = row.querySelector("i").style;
    bar.left = `${100 * from / whole}%`;
    bar.width = `max(3px, ${100 * (to - from) / whole}%)`;
    from = to;
  }
}

function showFacts(facts) {
  for (const [id] of FACTS) $(`fact-${id}`).textContent = facts[id] ?? "–";
}

function element(name, properties = {}) {
  return Object.assign(document.createElement(name), properties);
}

function clearLastCall() {
  Object.assign(syrinx, {
    phases: {}, stats: {}, connectionStates: [], location: null, localStream: null,
    remoteStream: null,
  });
  layOut();
  log.clear();
  conversation.clear();
  $("duration").textContent = "0:00";
}

// ---------------------------------------------------------------------------------------------
// The controls

async function talk() {
  if (call) return;
  clearLastCall();
  const model = $("model").value.trim();
  keepModel(model);
  const started = new Call(model);
  call = started;
  try {
    await started.start();
  } catch (error) {
    started.end("failed", error.message);
  }
}

/** Offers the models of earlier calls for the next one. */
function keepModel(model) {
  let known = [];
  try {
    known = JSON.parse(localStorage.getItem(MODEL_KEPT)) ?? [];
    if (model) known = [model, ...known.filter((other) => other !== model)];
    known.length = Math.min(known.length, MODELS_KEPT_MAX);
    localStorage.setItem(MODEL_KEPT, JSON.stringify(known));
  } catch {
    // A browser that keeps nothing only offers nothing.
  }
  $("models").replaceChildren(...known.map((value) => element("option", { value })));
}

function sayWords(submit) {
  submit.preventDefault();
  const text = $("words").value.trim();
  if (!text || !call) return;
  call.say(text);
  $("words").value = "";
}

function sendEvent(submit) {
  submit.preventDefault();
  const text = $("event").value.trim();
  try {
    JSON.parse(text);
  } catch (error) {
    return showError("send-error", `This is not JSON: ${error.message}`);
  }
  showError("send-error", null);
  call?.send(text);
}

layOut();
$("model").value = query.get("model") ?? "";
keepModel("");
$("talk").addEventListener("click", talk);
$("hangup").addEventListener("click", () => call?.end("ended"));
$("interrupt").addEventListener("click", () => call?.interrupt());
$("say").addEventListener("submit", sayWords);
$("send").addEventListener("submit", sendEvent);
addEventListener("keydown", ({ key }) => {
  if (key === "Escape" && !$("interrupt").disabled) call?.interrupt();
});
addEventListener("pagehide", () => call?.end("ended"));
