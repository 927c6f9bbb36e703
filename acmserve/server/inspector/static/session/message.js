// One message: as the client sent it, as the model sees it, and what differs. With its fragments.

import { fill, h } from "../parts/element.js";
import { count, tokens } from "../parts/format.js";
import { diffLines } from "./diff.js";

const MOST_CHARS = 200_000;
const MODES = { diff: "Difference", shown: "What the model sees", sent: "What was sent" };

// All that a message says, as one text: its texts, then its calls, then what else it has.
export function textOf(message) {
  if (message === null) return "";
  const { role, content, tool_calls: calls, ...rest } = message;
  const parts = [];
  if (typeof content === "string") parts.push(content);
  else if (Array.isArray(content)) {
    for (const part of content) parts.push(part && typeof part.text === "string" ? part.text : JSON.stringify(part, null, 2));
  }
  for (const call of calls || []) {
    const made = call.function || call;
    const given = typeof made.arguments === "string" ? made.arguments : JSON.stringify(made.arguments);
    parts.push(`call ${made.name || ""} ${given}`);
  }
  const others = Object.entries(rest).filter(([, value]) => value !== null && value !== undefined);
  if (others.length) parts.push(others.map(([name, value]) => `${name}: ${JSON.stringify(value)}`).join("\n"));
  return parts.join("\n");
}

export class MessagePanel {
  // `read(index)` gives a message, `edit(op, fragmentId)` changes one of its fragments.
  constructor({ read, edit }) {
    this.read = read;
    this.edit = edit;
    this.message = null;
    this.wanted = -1;
    this.mode = "diff";
    this.isWhole = false;
    this.head = h("h2", { tabindex: "-1" }, "Message");
    this.modes = h("div", { class: "bar", role: "group", "aria-label": "What to show" },
      Object.entries(MODES).map(([mode, label]) => h("button", {
        type: "button", "aria-pressed": String(mode === this.mode), "data-mode": mode, onclick: () => this.setMode(mode),
      }, label)));
    this.body = h("div", { class: "text", tabindex: "0", role: "region", "aria-label": "Text of the message" });
    this.facts = h("p", { class: "quiet" });
    this.fragments = h("div", {});
    this.element = h("section", { class: "panel", "aria-label": "Message" }, this.head, this.facts, this.modes, this.body, this.fragments);
  }

  async show(index) {
    this.wanted = index;
    const message = await this.read(index);
    if (this.wanted !== index) return;
    // Who reads stays at the place in a text that is as it was.
    if (JSON.stringify(message) === JSON.stringify(this.message)) return;
    this.message = message;
    this.isWhole = false;
    this.draw();
  }

  empty(text) {
    this.wanted = -1;
    this.message = null;
    this.head.textContent = "Message";
    fill(this.facts, text);
    fill(this.body);
    fill(this.fragments);
  }

  focus() {
    this.head.focus();
    this.element.scrollIntoView({ block: "nearest" });
  }

  setMode(mode) {
    this.mode = mode;
    for (const button of this.modes.children) button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
    this.draw();
  }

  draw() {
    const { message } = this;
    if (!message) return;
    this.head.textContent = `Message ${message.index}, ${message.role}`;
    fill(this.facts, this.say(message));
    const sent = textOf(message.sent);
    const shown = textOf(message.shown);
    const pieces = this.mode === "diff" ? diffLines(sent, shown) : [["same", this.mode === "sent" ? sent : shown]];
    fill(this.body, this.pieces(pieces), this.mode === "shown" && message.shown === null
      ? h("p", { class: "quiet" }, "The model sees nothing of it.") : null);
    fill(this.fragments, message.cut.length ? h("h3", {}, "Fragments") : null, message.cut.map((cut) => this.fragment(cut)));
  }

  say(message) {
    const gone = message.num_tokens_original - message.num_tokens;
    const kv = message.kv === null ? "not known" : message.kv;
    const facts = [`${tokens(message.num_tokens)} of ${count(message.num_tokens_original)} are seen`, `written by: ${message.origin}`, `KV: ${kv}`];
    if (message.branch) facts.push(`in branch ${message.branch}`);
    if (message.state === "evicted") {
      facts.push("evicted: the transcript keeps it and a search finds it, and no restore brings it back");
    } else if (gone > 0) facts.push("a restore of its fragments brings it back");
    return facts.join(" · ");
  }

  pieces(pieces) {
    const made = [];
    let left = this.isWhole ? Infinity : MOST_CHARS;
    for (const [kind, text] of pieces) {
      if (left <= 0) break;
      const tag = { same: "span", out: "del", in: "ins" }[kind];
      const label = { same: null, out: "Not seen by the model: ", in: "Seen instead: " }[kind];
      made.push(h(tag, {}, label ? h("span", { class: "unseen" }, label) : null, text.slice(0, left)));
      left -= text.length;
    }
    if (left < 0) {
      made.push(h("button", { type: "button", onclick: () => { this.isWhole = true; this.draw(); } }, "Show all of it"));
    }
    return made;
  }

  fragment(cut) {
    const hidden = cut.state === "folded" || cut.state === "summarized";
    const act = (op, label) => h("button", { type: "button", onclick: () => this.edit(op, cut.fragment_id) }, label);
    return h("div", { class: "fragment" },
      h("p", {}, h("code", {}, cut.fragment_id), ` ${cut.state}: ${tokens(cut.num_tokens_shown)} of ${count(cut.num_tokens)} seen`,
        cut.waits ? ", takes effect later" : "", cut.focus ? `, focus “${cut.focus}”` : ""),
      cut.preview ? h("p", { class: "quiet preview" }, cut.preview) : null,
      h("div", { class: "bar" }, hidden ? act("restore", "Restore") : null,
        cut.state === "visible" ? [act("fold", "Fold"), act("summarize", "Summarize")] : null,
        cut.state === "redacted" ? h("span", { class: "quiet" }, "Erased for good.") : act("redact", "Redact…")));
  }
}
