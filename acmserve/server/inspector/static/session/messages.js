// The messages of a session as a list: all or some of them, one or several selected.

import { h } from "../parts/element.js";
import { count, many } from "../parts/format.js";
import { VirtualList } from "../parts/list.js";
import { kindOf, KINDS } from "../parts/palette.js";

const SHOWN = {
  all: ["all", () => true],
  changed: ["shown otherwise than sent", (row) => row.state !== "whole" || row.num_tokens !== row.num_tokens_original],
  evicted: ["evicted", (row) => row.state === "evicted"],
  computed: ["to be computed", (row) => row.num_tokens > 0 && row.kv === "gone"],
};
const ORDERS = { order: "in order", size: "largest first", hidden: "most hidden first" };

export class Messages {
  // `select(from, to)` hears of a selection of messages `[from, to]`, `enter(index)` of one that is to be read.
  constructor({ select, enter }) {
    this.rows = [];
    this.places = [];
    this.from = 0;
    this.to = 0;
    this.list = new VirtualList({
      label: "Messages", rowHeight: 52, render: (place) => this.row(this.rows[this.places[place]]),
      choose: (place, extend) => {
        const index = this.places[place];
        this.take(extend && this.isWhole() ? this.anchor : index, index);
        select(this.from, this.to);
      },
      enter: (place) => enter(this.places[place]), isMarked: (place) => this.isMarked(this.places[place]),
    });
    this.anchor = 0;
    const choice = (id, options) => h("select", { id, onchange: () => this.reorder() },
      Object.entries(options).map(([name, label]) => h("option", { value: name }, Array.isArray(label) ? label[0] : label)));
    this.which = choice("which", SHOWN);
    this.order = choice("messageOrder", ORDERS);
    this.told = h("p", { class: "quiet", role: "status" });
    this.element = h("section", { class: "panel", "aria-label": "Messages" },
      h("div", { class: "bar" }, h("h2", {}, "Messages"), h("span", { class: "grow" }),
        h("span", { class: "field" }, h("label", { for: "which" }, "Show"), this.which),
        h("span", { class: "field" }, h("label", { for: "messageOrder" }, "Sort"), this.order)),
      this.told, this.list.element);
  }

  isWhole() {
    return this.which.value === "all" && this.order.value === "order";
  }

  isMarked(index) {
    return index >= this.from && index <= this.to;
  }

  take(anchor, index) {
    this.anchor = anchor;
    this.from = Math.min(anchor, index);
    this.to = Math.max(anchor, index);
  }

  set(rows) {
    this.rows = rows;
    this.to = Math.max(0, Math.min(this.to, rows.length - 1));
    this.from = Math.min(this.from, this.to);
    this.draw();
  }

  reorder() {
    this.draw();
    this.list.start();
  }

  draw() {
    const wanted = SHOWN[this.which.value][1];
    this.places = this.rows.filter(wanted).map((row) => row.index);
    const by = { size: (row) => row.num_tokens, hidden: (row) => row.num_tokens_original - row.num_tokens }[this.order.value];
    if (by) this.places.sort((a, b) => by(this.rows[b]) - by(this.rows[a]) || a - b);
    const range = this.isWhole() ? " Shift selects several." : " Select several in order, with all shown.";
    this.told.textContent = this.places.length === this.rows.length
      ? `${many(this.rows.length, "message")}.${this.rows.length ? range : ""}`
      : `${count(this.places.length)} of ${many(this.rows.length, "message")}.`;
    this.list.set(this.places.length);
  }

  // Selects a message from outside, and shows it in the list.
  select(index, extend) {
    this.take(extend ? this.anchor : index, index);
    const place = this.isWhole() ? index : this.places.indexOf(index);
    if (place >= 0) this.list.reveal(place);
    this.list.mark();
  }

  row(row) {
    const hidden = row.num_tokens_original - row.num_tokens;
    const kind = row.state === "evicted" ? "evicted" : row.state === "hidden" ? "folded" : kindOf(row);
    return [
      h("span", { class: `swatch ${kind}`, title: KINDS[kind][1] }),
      h("span", { class: "name" }, `${row.index} ${row.role}`),
      h("span", { class: "when" }, hidden > 0 ? `${count(row.num_tokens)} of ${count(row.num_tokens_original)}` : count(row.num_tokens)),
      h("span", { class: "quiet facts" },
        row.state === "evicted" ? "evicted · " : row.state === "hidden" ? `${row.fragments.join(", ")} hidden · ` : "", row.preview),
    ];
  }

  close() {
    this.list.close();
  }
}

export function selectionName(from, to) {
  return from === to ? `message ${from}` : `messages ${from} to ${to}`;
}

export function selectionSize(rows, from, to) {
  return rows.slice(from, to + 1).reduce((sum, row) => sum + row.num_tokens, 0);
}

export function hiddenFragments(rows, from, to) {
  return [...new Set(rows.slice(from, to + 1).flatMap((row) => row.fragments))];
}

