// One turn in words: what was edited in front of it, what it cost, and why nothing was moved where nothing was.

import { fill, h } from "../parts/element.js";
import { count, seconds, time, tokens } from "../parts/format.js";
import { KINDS } from "../parts/palette.js";
import { stackOf } from "./timeline.js";

export class TurnPanel {
  // `find(fragmentId)` gives the message in which a fragment hides something now, or null. `open(index)` goes there.
  constructor({ close, find, open }) {
    Object.assign(this, { find, open });
    this.head = h("h2", {}, "Turn");
    this.body = h("div", { class: "facts" });
    this.element = h("section", { class: "panel", "aria-label": "Turn", hidden: true },
      h("div", { class: "bar" }, this.head, h("span", { class: "grow" }),
        h("button", { type: "button", onclick: close }, "Close")), this.body);
  }

  show(turn) {
    this.element.hidden = turn === null;
    if (turn === null) return;
    this.head.textContent = `Turn ${turn.index}`;
    fill(this.body, h("p", {}, sentence(turn)), moved(turn), list("Edits since the turn before", turn.edits.map((one) => this.edit(one))),
      list("Evictions that it was the first to see", turn.evictions.map(eviction)), facts(turn));
  }

  edit({ kind, fragment_ids: ids, tokens_saved: saved, by }) {
    const effect = saved >= 0 ? `${tokens(saved)} fewer in the prompt` : `${tokens(-saved)} more in the prompt`;
    return [`${kind} `, ids.flatMap((id, place) => [place ? ", " : "", this.fragment(id)]), ` by the ${by}: ${effect}`];
  }

  // What it hides is a click away, as long as it hides it. The turn itself has no text.
  fragment(id) {
    const index = this.find(id);
    if (index === null) return h("code", {}, id);
    return h("button", { type: "button", class: "link", title: `Show message ${index}`, onclick: () => this.open(index) }, id);
  }
}

function sentence(turn) {
  if (!turn.receipt) return `${tokens(turn.prompt_tokens)}. The engine said no receipt before the turn ended (${turn.end}).`;
  const stack = stackOf(turn.receipt);
  const parts = Object.entries(stack).filter(([, size]) => size).map(([kind, size]) => `${count(size)} ${KINDS[kind][0]}`);
  const wait = turn.ttft_s === null ? "" : ` The first token came after ${seconds(turn.ttft_s)}.`;
  return `${tokens(turn.receipt.prompt_tokens)}: ${parts.join(", ")}.${wait}`;
}

// Why nothing was moved, in the words of the receipt.
export function whyNothingMoved({ receipt, edits, evictions }) {
  if (!receipt || receipt.moved_tokens > 0) return null;
  if (receipt.fallback_reason) return `Nothing was moved: ${receipt.fallback_reason}.`;
  if (receipt.chosen && receipt.chosen !== "reuse" && receipt.chosen !== "repair") {
    return `Nothing was moved: auto chose ${receipt.chosen}${receipt.reason ? ` (${receipt.reason})` : ""}.`;
  }
  if (!edits.length && !evictions.length) return "Nothing was moved: nothing was edited in front of it.";
  if (receipt.fidelity === "exact") return "Nothing was moved: the fidelity exact computes again what stands behind an edit.";
  return "Nothing was moved: nothing that was served before lies behind the edit.";
}

function moved(turn) {
  const why = whyNothingMoved(turn);
  return why === null ? null : h("p", { class: turn.receipt.fallback_reason ? "bad" : "" }, why);
}

const list = (head, items) => (items.length ? [h("h3", {}, head), h("ul", {}, items.map((item) => h("li", {}, item)))] : null);

function eviction({ kind, name, tokens: gone, levels }) {
  const steps = Object.entries(levels).map(([level, size]) => `${level} ${count(size)}`).join(", ");
  return `${tokens(gone)} by ${kind} (${name})${steps ? `: ${steps}` : ""}`;
}

function facts(turn) {
  const { receipt } = turn;
  const rows = [
    ["Sent", time(turn.created_at)], ["Route", turn.step === null ? turn.route : `${turn.route}, step ${turn.step}`],
    ["End", turn.end], ["Purpose", turn.purpose], ["Answer", tokens(turn.output_tokens)],
    ["In all", seconds(turn.total_s)], ["Budget", turn.budget_tokens === null ? "none" : tokens(turn.budget_tokens)],
    ...(receipt ? [["Fidelity", receipt.chosen ? `${receipt.fidelity}, chose ${receipt.chosen}` : receipt.fidelity],
      ["Repaired", tokens(receipt.repaired_tokens)], ["Pieces moved", count(receipt.moves.length)]] : []),
    ["Request", turn.request_id],
  ];
  return h("dl", { class: "pairs" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
