// The buttons: edits of what is selected, an eviction with its plan first, a preparation, and exports.

import { ask } from "../parts/dialog.js";
import { get, post } from "../parts/api.js";
import { fill, h, note, table } from "../parts/element.js";
import { count, tokens } from "../parts/format.js";
import { hiddenFragments, selectionName, selectionSize } from "./messages.js";

const DONE = { fold: "Folded", summarize: "Summarized", restore: "Restored", redact: "Redacted" };
const WAIT_MS = 1000;

export class Actions {
  // `selection()` gives `[from, to]` or null where nothing can be selected, `done()` is called after a change.
  constructor({ model, selection, done, exports }) {
    Object.assign(this, { model, selection, done });
    const button = (label, act) => h("button", { type: "button", onclick: () => this.run(act) }, label);
    this.target = h("span", { class: "target", role: "status" });
    this.onRange = [
      button("Fold", () => this.range("fold")), button("Summarize", () => this.range("summarize")),
      (this.restore = button("Restore", () => this.restoreAll())),
      button("Redact…", () => this.redact({ messages: this.messages() }, this.name())), button("Prepare a fold", () => this.prepare()),
    ];
    this.buttons = [...this.onRange, button("Evict…", () => this.evict())];
    this.element = h("section", { class: "panel actions", "aria-label": "Actions" },
      h("div", { class: "bar" }, this.target, h("span", { class: "grow" }), this.buttons,
        Object.entries(exports).map(([label, act]) => button(label, act))));
  }

  messages() {
    const [from, to] = this.selection();
    return { start: from, end: to + 1 };
  }

  name() {
    return selectionName(...this.selection());
  }

  set() {
    const selected = this.selection();
    for (const button of this.onRange) button.disabled = this.isBusy || selected === null;
    if (selected === null) return fill(this.target, "No message yet.");
    const [from, to] = selected;
    this.restore.disabled = this.isBusy || hiddenFragments(this.model.rows, from, to).length === 0;
    return fill(this.target, `${this.name()}, ${tokens(selectionSize(this.model.rows, from, to))}`);
  }

  async run(act) {
    this.isBusy = true;
    for (const button of this.buttons) button.disabled = true;
    try {
      await act();
    } catch (error) {
      note(error.message, "bad");
    } finally {
      this.isBusy = false;
      for (const button of this.buttons) button.disabled = false;
      this.set();
    }
  }

  async send(edits) {
    const answer = await post(this.model.path("/edits"), { edits });
    const { next_turn: next } = answer;
    const what = [...new Set(answer.edits.map((edit) => DONE[edit.op]))].join(" and ");
    note(`${what}: ${count(answer.tokens_before)} → ${tokens(answer.tokens_after)}. The next turn computes `
      + `${count(next.recomputed_tokens)} of the old ones again and moves ${count(next.moved_tokens)}.`
      + `${answer.storage ? ` ${answer.storage.warning}` : ""}`);
    await this.done();
  }

  range(op) {
    return this.send([{ op, messages: this.messages() }]);
  }

  restoreAll() {
    const [from, to] = this.selection();
    return this.send(hiddenFragments(this.model.rows, from, to).map((id) => ({ op: "restore", fragment_id: id })));
  }

  fragment(op, id) {
    return this.run(() => (op === "redact" ? this.redact({ fragment_id: id }, `fragment ${id}`) : this.send([{ op, fragment_id: id }])));
  }

  // Asks twice, since nobody can take it back.
  async redact(target, name) {
    const isSure = await ask({
      title: `Redact ${name}?`, yes: "Redact…", isGrave: true,
      body: "The text is erased from the session, its file and its KV. What follows it is computed anew.",
    });
    if (!isSure) return;
    const isVerySure = await ask({
      title: `Erase ${name} for good?`, yes: "Erase for good", isGrave: true,
      body: "No restore brings it back. This is the last question.",
    });
    if (isVerySure) await this.send([{ op: "redact", ...target }]);
  }

  async evict() {
    const plan = await post(this.model.path("/evict?dry_run=true"));
    if (!plan.evicted.length) {
      note(plan.unmet ? plan.unmet.message : `Nothing would go. The next prompt has ${tokens(plan.tokens_before)}, the low watermark is ${count(plan.target)}.`);
      return;
    }
    const rows = plan.evicted.map((one) => [one.episode, count(one.tokens), Object.keys(one.levels).join(", ")]);
    const { exact, reuse } = plan.next_turn;
    const isSure = await ask({
      title: `Evict ${tokens(plan.tokens_before - plan.tokens_after)}?`, yes: "Evict now",
      body: [
        h("p", {}, `The next prompt has ${tokens(plan.tokens_after)} then, and the low watermark is ${count(plan.target)}. `
          + `The next turn computes ${count(exact.recomputed_tokens)} again under exact, and ${count(reuse.recomputed_tokens)} under reuse.`),
        table("What would go", ["Episode", "Tokens", "Levels"], rows),
        plan.unmet ? h("p", { class: "bad" }, plan.unmet.message) : null,
        h("p", { class: "quiet" }, "The transcript keeps it, and a search finds it. No restore brings it back into the prompt."),
      ],
    });
    if (!isSure) return;
    const done = await post(this.model.path("/evict"));
    note(`Evicted ${tokens(done.tokens_before - done.tokens_after)}.`);
    await this.done();
  }

  // Has the result of a fold computed while nobody waits. Nothing of the session changes.
  async prepare() {
    const name = this.name();
    let made = await post(this.model.path("/prepare"), { edits: [{ op: "fold", messages: this.messages() }] });
    note(`The fold of ${name} is prepared. The session is as it was.`);
    while (made.status === "pending" && !this.model.signal.aborted) {
      await new Promise((resolve) => setTimeout(resolve, WAIT_MS));
      made = await get(this.model.path(`/prepare/${encodeURIComponent(made.prepare_id)}`), this.model.signal);
    }
    if (made.status === "ready") note(`Ready: ${tokens(made.ready_tokens || 0)} of the folded prompt are in the cache. Fold ${name} to use them.`);
    else note(`The preparation was dropped: ${made.reason || "the session's next request came first"}.`, "bad");
  }
}
