// The log of the data channel: both directions, newest last, bounded, and filtered by what the
// reader wants to see. An event opens to its whole text.

const EVENTS_KEPT_MAX = 500;
const PREVIEW_CHARS_MAX = 160;
const SHOWN_CHARS_MAX = 20_000;

export class EventLog {
  /** `controls` has the elements `list`, `count`, and the inputs `text`, `way`, `deltas`. */
  constructor(controls) {
    this.controls = controls;
    this.clear();
    for (const id of ["text", "way", "deltas"]) {
      controls[id].addEventListener("input", () => this.filter());
    }
  }

  clear() {
    /** What a test may read: `{at_ms, way, type, text}`, way being "sent" or "received". */
    this.entries = [];
    this.controls.list.replaceChildren();
    this.tell();
  }

  /** Takes an event down. `type` is null for what is no JSON event. */
  add(at_ms, way, type, text) {
    const { list } = this.controls;
    const following = list.scrollHeight - list.scrollTop - list.clientHeight < 24;
    const entry = { at_ms, way, type, text };
    const row = rowOf(entry);
    row.hidden = !this.wants(entry);
    this.entries.push(entry);
    list.append(row);
    while (this.entries.length > EVENTS_KEPT_MAX) {
      this.entries.shift();
      list.firstElementChild.remove();
    }
    this.tell();
    if (following) list.scrollTop = list.scrollHeight;
  }

  wants({ way, type, text }) {
    const { text: words, way: ways, deltas } = this.controls;
    const wanted = words.value.trim().toLowerCase();
    return (ways.value === "both" || ways.value === way)
      && (!deltas.checked || !type?.endsWith(".delta"))
      && (!wanted || text.toLowerCase().includes(wanted));
  }

  filter() {
    const rows = this.controls.list.children;
    this.entries.forEach((entry, index) => { rows[index].hidden = !this.wants(entry); });
    this.tell();
  }

  tell() {
    const { list, count } = this.controls;
    const shown = [...list.children].filter((row) => !row.hidden).length;
    const all = this.entries.length;
    count.textContent = shown === all ? `${all} events` : `${shown} of ${all} events`;
    list.toggleAttribute("data-empty", shown === 0);
  }
}

function rowOf({ at_ms, way, type, text }) {
  const row = document.createElement("li");
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  const part = (name, className, words) => {
    const element = document.createElement(name);
    element.className = className;
    element.textContent = words;
    summary.append(element);
    return element;
  };
  part("time", "", `${(at_ms / 1000).toFixed(2)} s`);
  const arrow = part("span", `way ${way}`, way === "sent" ? "→" : "←");
  arrow.role = "img";
  arrow.ariaLabel = way;
  part("b", "", type ?? "no event");
  part("span", "preview", preview(type, text));
  details.append(summary);
  // Laid out only for those that are opened: there are hundreds.
  details.addEventListener("toggle", () => {
    if (details.children.length > 1) return;
    const whole = document.createElement("pre");
    whole.textContent = pretty(text);
    details.append(whole);
  });
  row.append(details);
  return row;
}

/** The beginning of the text, without what the row says already. */
function preview(type, text) {
  const short = text.slice(0, PREVIEW_CHARS_MAX);
  return type === null ? short : short.replace(/^\{\s*"type":\s*"[^"]*",?\s*/, "{");
}

function pretty(text) {
  let whole = text;
  try {
    whole = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // Shown as it came.
  }
  const more = whole.length - SHOWN_CHARS_MAX;
  return more > 0 ? `${whole.slice(0, SHOWN_CHARS_MAX)}\n… ${more} characters more` : whole;
}
