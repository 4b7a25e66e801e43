// What a page hears of a remote stream, kept to be recorded. Injected by the driver.
"use strict";

window.Ear = (() => {
  const RATE_HZ = 48_000;
  const PORTION = 4096;
  const LOOK_MS = 250;
  const STILL_MAX_MS = 45_000;

  return class Ear {
    constructor(stream) {
      // A remote track reaches Web Audio only while an element plays it, in Chromium.
      this.player = new Audio();
      this.player.muted = true;
      this.player.srcObject = stream;
      this.player.play();
      this.context = new AudioContext({ sampleRate: RATE_HZ });
      this.chunks = null;
      const source = this.context.createMediaStreamSource(stream);
      // A worklet would have to be loaded from somewhere that the page's policy allows.
      const tap = this.context.createScriptProcessor(PORTION, 1, 1);
      tap.addEventListener("audioprocess", ({ inputBuffer }) => {
        this.chunks?.push(inputBuffer.getChannelData(0).slice());
      });
      source.connect(tap);
      tap.connect(this.context.destination);
    }

    // Records what comes, and gives its samples of 16 bits in base64.
    async record(seconds) {
      const chunks = [];
      this.chunks = chunks;
      const deadline = Date.now() + seconds * 1000 + STILL_MAX_MS;
      while (chunks.length * PORTION < seconds * RATE_HZ) {
        if (Date.now() > deadline) throw new Error(`only ${chunks.length} portions of sound`);
        await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
      }
      this.chunks = null;
      const whole = new Int16Array(chunks.length * PORTION);
      chunks.forEach((chunk, at) => {
        whole.set(chunk.map((x) => Math.max(-1, Math.min(1, x)) * 32_767), at * PORTION);
      });
      return await base64Of(new Blob([whole]));
    }

    close() {
      this.player.srcObject = null;
      this.context.close();
    }
  };

  async function base64Of(blob) {
    const file = new FileReader();
    await new Promise((resolve, reject) => {
      file.onload = resolve;
      file.onerror = () => reject(file.error);
      file.readAsDataURL(blob);
    });
    return file.result.split(",")[1];
  }
})();
