// One caller that uses the stock SDK, as a page of its users does: with the same steps as
// caller.js. The SDK's own browser bundle is injected before this.
"use strict";

window.caller = (() => {
  const STEP_WAIT_MS = 45_000;
  const { RealtimeAgent, RealtimeSession, OpenAIRealtimeWebRTC } = window.OpenAIAgentsRealtime;
  const LOOK_MS = 50;
  let call = null;

  async function until(what, test) {
    const deadline = Date.now() + STEP_WAIT_MS;
    for (;;) {
      const value = test();
      if (value) return value;
      if (Date.now() > deadline) throw new Error(`${what} did not come`);
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
  }

  class Call {
    constructor() {
      this.events = [];
      this.errors = [];
      this.statuses = [];
    }

    // The SDK takes URLs that are whole, and in a page only keys that a server of the page's
    // owner would have minted.
    async open({ url, secrets }) {
      const minted = await fetch(secrets, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ session: { type: "realtime", model: "gpt-realtime" } }),
      });
      if (!minted.ok) throw new Error(`${minted.status}: ${await minted.text()}`);
      const { value } = await minted.json();
      const mediaStream = await navigator.mediaDevices.getUserMedia({
        audio: { echoCancellation: false, noiseSuppression: false, autoGainControl: false },
      });
      this.element = new Audio();
      this.element.muted = true;
      this.transport = new OpenAIRealtimeWebRTC({
        baseUrl: url, mediaStream, audioElement: this.element,
      });
      this.transport.on("*", (event) => this.events.push(event));
      this.transport.on("connection_change", (status) => this.statuses.push(status));
      const agent = new RealtimeAgent({ name: "Echo", instructions: "Say what you hear." });
      this.session = new RealtimeSession(agent, {
        transport: this.transport, model: "gpt-realtime",
      });
      this.session.on("error", ({ error }) => this.errors.push(JSON.stringify(error)));
      const start = performance.now();
      await this.session.connect({ apiKey: value });
      const connect_ms = performance.now() - start;
      const greeting = await until("the greeting", () => this.find("session.created"));
      const stream = await until("a stream to play", () => this.element.srcObject);
      this.ear = new Ear(stream);
      return {
        status: 201,
        location: `/v1/realtime/calls/${this.transport.callId}`,
        greeting: JSON.stringify(greeting),
        connect_ms,
        key: value.slice(0, 3),
      };
    }

    find(type) {
      return this.events.find((event) => event.type === type);
    }

    async echo({ text }) {
      const event = JSON.parse(text);
      this.transport.sendEvent(event);
      return JSON.stringify(await until(event.type, () => this.find(event.type)));
    }

    async record({ seconds }) {
      return await this.ear.record(seconds);
    }

    // What a person who speaks over the agent sets off; gives the event that answers it.
    async interrupt({ answer }) {
      this.session.interrupt();
      return await until(answer, () => this.find(answer));
    }

    mute({ on }) {
      this.session.mute(on);
      return this.session.muted;
    }

    told() {
      return {
        types: this.events.map((event) => event.type), errors: this.errors,
        statuses: this.statuses,
      };
    }

    close() {
      this.session.close();
      this.ear.close();
      return this.statuses;
    }
  }

  return {
    // Runs one step of the one call.
    async step(_, name, given) {
      call ??= new Call();
      return await call[name](given);
    },
  };
})();
