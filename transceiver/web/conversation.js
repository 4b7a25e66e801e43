// What was said, made out of the events of the Realtime API: whose turn, in which words, and how
// much of an answer was heard when it was interrupted. GA names and beta names are both in use.

const TURNS_KEPT_MAX = 200;

const NAMES = { user: "You", agent: "Agent", notice: "Syrinx" };

export class Conversation {
  /** `list` is the element that the turns are shown in. */
  constructor(list) {
    this.list = list;
    this.clear();
  }

  clear() {
    this.turns = [];
    this.response = null;
    this.list.replaceChildren();
  }

  /** Whether the agent is at an answer: what `response.cancel` would end. */
  get answering() {
    return this.response !== null;
  }

  /** Something that was written here, as soon as it is sent. */
  write(text) {
    this.open("user", crypto.randomUUID()).set(text);
  }

  /** An event of the other side. What is not about words is left alone. */
  take(event) {
    const handle = HANDLERS[event.type];
    if (handle) handle(this, event);
  }

  /** The turn of this id, opened where it begins. */
  open(who, id) {
    const known = this.turns.find((turn) => turn.id === id);
    if (known) return known;
    const following = this.isAtEnd();
    const turn = new Turn(who, id, () => this.follow());
    this.turns.push(turn);
    this.list.append(turn.element);
    while (this.turns.length > TURNS_KEPT_MAX) this.turns.shift().element.remove();
    if (following) this.follow();
    return turn;
  }

  isAtEnd() {
    return this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 48;
  }

  follow() {
    this.list.scrollTop = this.list.scrollHeight;
  }
}

class Turn {
  constructor(who, id, changed) {
    this.who = who;
    this.id = id;
    this.changed = changed;
    this.text = "";
    this.note = "";
    this.element = document.createElement("li");
    this.element.className = who;
    const name = document.createElement("span");
    name.className = "who";
    name.textContent = NAMES[who];
    this.words = document.createElement("p");
    this.remark = document.createElement("small");
    this.element.append(name, this.words, this.remark);
  }

  set(text) {
    this.text = text;
    this.words.textContent = text;
    this.changed();
  }

  add(text) {
    this.set(this.text + text);
  }

  /** Says something about the turn, such as where it was cut off. */
  mark(note) {
    this.note = note;
    this.remark.textContent = note;
    this.changed();
  }
}

const agentTurn = (talk, { item_id: item, response_id: response }) =>
  talk.open("agent", item ?? response);

const addWords = (talk, event) => agentTurn(talk, event).add(event.delta ?? "");
const setWords = (talk, event) => {
  const words = event.transcript ?? event.text;
  if (words) agentTurn(talk, event).set(words);
};

const HANDLERS = {
  "input_audio_buffer.speech_started": (talk, { item_id: id }) => {
    if (id) talk.open("user", id).mark("speaking…");
  },
  "input_audio_buffer.speech_stopped": (talk, { item_id: id }) => {
    // Most servers transcribe only if the session asks for it.
    if (id) talk.open("user", id).mark("spoken");
  },
  "conversation.item.input_audio_transcription.delta": (talk, event) => {
    talk.open("user", event.item_id).add(event.delta ?? "");
  },
  "conversation.item.input_audio_transcription.completed": (talk, event) => {
    const turn = talk.open("user", event.item_id);
    turn.set(event.transcript || "…");
    turn.mark(event.transcript ? "" : "not understood");
  },
  "response.created": (talk, { response }) => { talk.response = response?.id ?? ""; },
  "response.done": (talk, { response }) => {
    talk.response = null;
    if (response?.status !== "failed") return;
    const why = response.status_details?.error?.message ?? "no reason given";
    talk.open("notice", response.id).set(`The answer failed: ${why}`);
  },
  "response.output_audio_transcript.delta": addWords,
  "response.audio_transcript.delta": addWords,
  "response.output_text.delta": addWords,
  "response.text.delta": addWords,
  "response.output_audio_transcript.done": setWords,
  "response.audio_transcript.done": setWords,
  "response.output_text.done": setWords,
  "response.text.done": setWords,
  "conversation.item.truncated": (talk, { item_id: id, audio_end_ms: end }) => {
    talk.open("agent", id).mark(`interrupted after ${(end / 1000).toFixed(2)} s`);
  },
  error: (talk, { error, event_id: id }) => {
    talk.open("notice", id ?? crypto.randomUUID()).set(error?.message ?? "An error.");
  },
};
