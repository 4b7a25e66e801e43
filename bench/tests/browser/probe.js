// Put into a page before its own scripts: a microphone that says what the test wants said and is
// silent otherwise, and a look at the peer connection that the page makes.
"use strict";

window.probe = (() => {
  const RATE_HZ = 48_000;
  const context = new AudioContext({ sampleRate: RATE_HZ });
  const microphone = context.createGain();
  // Without a source that goes on, the microphone would end with the first thing that was said.
  const silence = context.createConstantSource();
  silence.offset.value = 0;
  silence.connect(microphone);
  silence.start();
  const connections = [];
  const probe = {
    remoteStream: null,

    /** Says a WAV file, given in base64; resolves when it has been said. */
    async say(base64) {
      const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
      const source = context.createBufferSource();
      source.buffer = await context.decodeAudioData(bytes.buffer);
      source.connect(microphone);
      source.start();
      await new Promise((resolve) => source.addEventListener("ended", resolve));
      return null;
    },

    /** A microphone as `getUserMedia` gives one. */
    async microphone() {
      await context.resume();
      const destination = context.createMediaStreamDestination();
      microphone.connect(destination);
      return destination.stream;
    },

    /** Audio packets that have come so far, and how many are known to be missing. */
    async received() {
      const report = [...(await connections.at(-1).getStats()).values()];
      const inbound = report.find(({ type, kind }) => type === "inbound-rtp" && kind === "audio");
      return { packets: inbound?.packetsReceived ?? 0, lost: inbound?.packetsLost ?? 0 };
    },
  };

  const Native = window.RTCPeerConnection;
  window.RTCPeerConnection = class extends Native {
    constructor(...settings) {
      super(...settings);
      connections.push(this);
      this.addEventListener("track", ({ track }) => {
        probe.remoteStream = new MediaStream([track]);
      });
    }
  };
  navigator.mediaDevices.getUserMedia = () => probe.microphone();
  return probe;
})();
