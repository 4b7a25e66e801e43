// One caller in a page, for whichever browser: speaks a recording, hears what comes back,
// exchanges events, and tells what it saw. Injected by the driver; the scenario is the test's.
"use strict";

window.caller = (() => {
  const STEP_WAIT_MS = 45_000;
  const calls = [];

  const within = (what, promise) => Promise.race([promise, new Promise((_, reject) => {
    setTimeout(() => reject(new Error(`${what} did not come`)), STEP_WAIT_MS);
  })]);

  class Call {
    constructor() {
      this.states = [];
      this.messages = [];
      this.waiting = [];
      this.ear = null;
    }

    // With `tap`, what comes back is there to be recorded in the page instead of being played.
    async open({ url, headers = {}, tap }) {
      const stream = await microphone();
      this.stream = stream;
      this.connection = new RTCPeerConnection();
      this.connection.addEventListener("connectionstatechange", () => {
        this.states.push(this.connection.connectionState);
      });
      const heard = new Promise((resolve) => {
        this.connection.addEventListener("track", ({ track }) => resolve(track));
      });
      for (const track of stream.getAudioTracks()) this.connection.addTrack(track, stream);
      this.channel = this.connection.createDataChannel("oai-events");
      this.channel.addEventListener("message", ({ data }) => this.take(data));
      this.channel.addEventListener("close", () => this.take(null));
      await this.connection.setLocalDescription();
      const offer = this.connection.localDescription.sdp;
      const answer = await fetch(url, {
        method: "POST", body: offer, headers: { "Content-Type": "application/sdp", ...headers },
      });
      this.location = answer.headers.get("Location");
      const sdp = await answer.text();
      if (answer.status !== 201) throw new Error(`${answer.status}: ${sdp}`);
      await this.connection.setRemoteDescription({ type: "answer", sdp });
      const greeting = await within("the greeting", this.message());
      this.listen(await heard, tap);
      return {
        client: navigator.userAgent, version: "", status: answer.status,
        location: this.location, greeting,
      };
    }

    // What comes back is kept by the page's ear, or played to somebody else's.
    listen(track, tap) {
      const stream = new MediaStream([track]);
      if (tap) {
        this.ear = new Ear(stream);
      } else {
        this.player = new Audio();
        this.player.srcObject = stream;
        this.player.play();
      }
    }

    async record({ seconds }) {
      return await this.ear.record(seconds);
    }

    take(message) {
      const taker = this.waiting.shift();
      if (taker) taker(message);
      else this.messages.push(message);
    }

    message() {
      if (this.messages.length > 0) return Promise.resolve(this.messages.shift());
      return new Promise((resolve) => this.waiting.push(resolve));
    }

    async echo({ text }) {
      this.channel.send(text);
      return await within("the event", this.message());
    }

    mute({ on }) {
      for (const track of this.stream.getAudioTracks()) track.enabled = !on;
      return null;
    }

    async stats() {
      const report = [...(await this.connection.getStats()).values()];
      const of = (type) => report.find((entry) => entry.type === type && entry.kind !== "video");
      const transport = of("transport");
      const pair = report.find((entry) => entry.type === "candidate-pair"
        && (entry.id === transport?.selectedCandidatePairId || entry.selected));
      return {
        state: this.connection.connectionState,
        states: this.states,
        packetsReceived: of("inbound-rtp")?.packetsReceived ?? 0,
        packetsLost: of("inbound-rtp")?.packetsLost ?? 0,
        concealedSamples: of("inbound-rtp")?.concealedSamples ?? null,
        packetsSent: of("outbound-rtp")?.packetsSent ?? 0,
        dtls: transport?.tlsVersion ?? null,
        pairId: pair?.id ?? null,
        channel: this.channel.readyState,
      };
    }

    close() {
      this.connection.close();
      this.ear?.close();
      return this.states;
    }
  }

  async function microphone() {
    return await navigator.mediaDevices.getUserMedia({
      audio: { echoCancellation: false, noiseSuppression: false, autoGainControl: false },
    });
  }

  return {
    // Runs one step of call number `call`.
    async step(call, name, given) {
      calls[call] ??= new Call();
      return await calls[call][name](given);
    },
  };
})();
