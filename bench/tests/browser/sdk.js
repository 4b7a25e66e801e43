// The stock Realtime SDK in a page, as an application would use it: put into the page together
// with the SDK's own bundle. What it tells of is kept in the shape that the page's own events have.
"use strict";

window.agent = {
  /** Connects; resolves when the session is up. */
  async connect({ url }) {
    const { RealtimeAgent, RealtimeSession, OpenAIRealtimeWebRTC } = window.OpenAIAgentsRealtime;
    const transport = new OpenAIRealtimeWebRTC({ baseUrl: url, useInsecureApiKey: true });
    const agent = new RealtimeAgent({ name: "Reader", instructions: "Tell fables." });
    const session = new RealtimeSession(agent, { transport, model: "gpt-realtime" });
    const told = { session, events: [], interrupted: 0, errors: [] };
    window.told = told;
    session.on("error", (error) => told.errors.push(JSON.stringify(error)));
    session.on("audio_interrupted", () => { told.interrupted += 1; });
    session.on("transport_event", (event) => {
      told.events.push({ way: "received", type: event.type, text: JSON.stringify(event) });
    });
    await session.connect({ apiKey: "none" });
    return transport.callId ?? null;
  },

  say({ text }) {
    window.told.session.sendMessage(text);
    return null;
  },

  interrupt() {
    window.told.session.interrupt();
    return null;
  },

  /** What the SDK takes the conversation to be: role, status and words of each item. */
  history() {
    return window.told.session.history.map(({ role, status, content }) => ({
      role, status, words: content?.map((part) => part.transcript ?? part.text ?? "").join(" "),
    }));
  },

  close() {
    window.told.session.close();
    return null;
  },
};
