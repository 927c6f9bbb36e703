// One session: what is in its context, what its turns cost, and the buttons that change it. Puts the parts together.

import { listen } from "../parts/api.js";
import { fill, h, note } from "../parts/element.js";
import { tokens } from "../parts/format.js";
import { Actions } from "../session/actions.js";
import { Lanes } from "../session/lanes.js";
import { MessagePanel } from "../session/message.js";
import { Messages } from "../session/messages.js";
import { SessionModel } from "../session/model.js";
import { collect, fileName, reportOf, save } from "../session/report.js";
import { Strip } from "../session/strip.js";
import { Timeline } from "../session/timeline.js";
import { Totals } from "../session/totals.js";
import { TurnPanel } from "../session/turn.js";

export async function showSession(view, id, signal, say) {
  const shown = new SessionView(id, signal);
  await shown.refresh();
  fill(view, shown.element);
  shown.sized();
  shown.listen(say);
}

class SessionView {
  constructor(id, signal) {
    this.model = new SessionModel(id, signal);
    this.signal = signal;
    this.totals = new Totals();
    this.messages = new Messages({ select: () => this.selected(), enter: () => this.message.focus() });
    this.message = new MessagePanel({
      read: (index) => this.model.message(index), edit: (op, fragment) => this.actions.fragment(op, fragment),
    });
    this.strip = new Strip({ choose: (index, extend) => this.select(index, extend), isMarked: (index) => this.messages.isMarked(index) });
    this.timeline = new Timeline({ choose: (turn) => this.showTurn(turn) });
    this.turn = new TurnPanel({
      close: () => this.showTurn(null), find: (id) => this.model.messageOf(id), open: (index) => this.openMessage(index),
    });
    this.lanes = new Lanes({ choose: (from, to) => this.selectRange(from, to) });
    this.actions = new Actions({
      model: this.model, done: () => this.refresh(),
      selection: () => (this.model.rows.length ? [this.messages.from, this.messages.to] : null),
      exports: { "Export JSON": () => this.exportJson(), "Export report": () => this.exportReport() },
    });
    this.strip.back.addEventListener("click", () => this.showTurn(null));
    this.kin = h("p", { class: "quiet" });
    this.waiting = h("p", { class: "quiet" });
    this.element = h("div", { class: "session" },
      h("p", { class: "crumb" }, h("a", { href: "#/" }, "Sessions"), " / "), h("h1", {}, id), this.kin, this.totals.element,
      this.timeline.element, this.turn.element, this.strip.element, this.waiting, this.actions.element,
      h("div", { class: "columns" }, this.messages.element, this.message.element), this.lanes.element);
    signal.addEventListener("abort", () => this.close());
  }

  async refresh() {
    await this.model.refresh(() => this.draw());
    this.showMessage();
    this.lanes.set(await this.model.lanes(), this.model.rows);
  }

  draw() {
    const { model } = this;
    this.totals.set(model);
    this.timeline.set(model.turns);
    this.strip.setRows(model.rows);
    this.messages.set(model.rows);
    this.actions.set();
    const { edits, evictions } = model.waiting;
    const waits = [...edits.map((edit) => edit.kind), ...evictions.map((one) => `eviction of ${tokens(one.tokens)}`)];
    fill(this.waiting, waits.length ? `The next turn will be the first to see: ${waits.join(", ")}.` : null);
    fill(this.kin, kinOf(model.info));
  }

  // What is as wide as the page can be drawn only once it is in the page.
  sized() {
    this.messages.list.draw(true);
    this.strip.refresh();
    this.timeline.plot.schedule();
  }

  selected() {
    this.strip.select(this.messages.to);
    return this.showMessage();
  }

  showMessage() {
    this.actions.set();
    if (!this.model.rows.length) return this.message.empty("The session has no message yet.");
    return this.message.show(this.messages.to).catch((error) => this.signal.aborted || note(error.message, "bad"));
  }

  select(index, extend) {
    this.messages.select(index, extend);
    this.selected();
  }

  async openMessage(index) {
    this.messages.select(index, false);
    await this.selected();
    this.message.focus();
  }

  selectRange(from, to) {
    this.messages.select(from, false);
    this.messages.select(to, true);
    this.selected();
  }

  showTurn(turn) {
    this.turn.show(turn);
    this.strip.setTurn(turn);
    if (turn === null) {
      this.timeline.clear();
      this.selected();
    }
  }

  listen(say) {
    let timer = 0;
    let isFirst = true;
    let isGone = false;
    const later = () => {
      if (timer) return;
      timer = setTimeout(() => {
        timer = 0;
        this.refresh().catch((error) => this.signal.aborted || isGone || note(error.message, "bad"));
      }, this.model.pause);
    };
    const hear = (event) => {
      if (event.type === "turn_started") say("a turn runs", true);
      else if (event.type === "turn_failed") note("The turn failed: see the log of the server or of its client.", "bad");
      else if (event.type === "changed") say("live", true);
      else if (event.type === "deleted") {
        isGone = true;
        clearTimeout(timer);
        return note("The session was deleted.", "bad");
      }
      if (event.type !== "opened" || !isFirst) later();
      isFirst = false;
      return undefined;
    };
    listen(this.model.path("/events"), this.signal, hear, say);
  }

  async exportJson() {
    save(fileName(this.model.id, "json"), "application/json", JSON.stringify(await collect(this.model), null, 1));
  }

  async exportReport() {
    save(fileName(this.model.id, "html"), "text/html", reportOf(await collect(this.model)));
  }

  close() {
    this.strip.close();
    this.timeline.close();
    this.messages.close();
  }
}

function kinOf({ branch_of: parent, thread_of: main, threads }) {
  const link = (id, label) => h("a", { href: `#/s/${encodeURIComponent(id)}` }, label);
  const kin = [];
  if (parent) kin.push(["Branch of ", link(parent, parent), ". "]);
  if (main) kin.push(["Side thread of ", link(main, main), ". "]);
  if (threads.length) kin.push("Side threads: ", threads.map((thread) => [link(thread.session_id, thread.name), " "]));
  return kin;
}
