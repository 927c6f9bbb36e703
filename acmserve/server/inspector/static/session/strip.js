// The context as a strip of tokens to scale: of now by message, or of one turn as the engine laid it out.

import { fill, h } from "../parts/element.js";
import { count, share, tokens } from "../parts/format.js";
import { colour, KINDS, partsOf, piecesOf } from "../parts/palette.js";
import { Plot } from "../parts/plot.js";

const HEIGHT = 72;
const TOP = 8;
const AXIS = 16;

export class Strip {
  constructor({ choose, isMarked }) {
    this.isMarked = isMarked;
    this.rows = [];
    this.starts = new Float64Array(1);
    this.turn = null;
    this.zoom = 1;
    this.from = 0;
    this.plot = new Plot({
      label: "Context by message", height: HEIGHT,
      draw: (context, width) => this.draw(context, width), at: (x, width) => this.at(x, width),
      describe: (value) => this.describe(value), range: () => [0, this.blocks() - 1],
      choose: (value, extend) => {
        this.reveal(value);
        if (this.turn === null) choose(value, extend);
      },
    });
    this.head = h("h2", {}, "Context now");
    this.legend = h("ul", { class: "legend" });
    this.told = h("p", { class: "quiet", hidden: true }, "Places and counts, as the engine laid them out. The server keeps no "
      + "text of past prompts: the messages below are those of now.");
    this.element = h("section", { class: "panel", "aria-label": "Context" },
      h("div", { class: "bar" }, this.head, h("span", { class: "grow" }),
        h("button", { type: "button", "aria-label": "Zoom in", onclick: () => this.zoomBy(2) }, "+"),
        h("button", { type: "button", "aria-label": "Zoom out", onclick: () => this.zoomBy(0.5) }, "−"),
        (this.back = h("button", { type: "button", hidden: true }, "Back to now"))),
      this.plot.element, this.legend, this.told);
  }

  blocks() {
    return this.turn === null ? this.rows.length : this.pieces.length;
  }

  total() {
    return this.turn === null ? this.starts[this.rows.length] : this.turn.receipt.prompt_tokens;
  }

  setRows(rows) {
    this.rows = rows;
    this.starts = new Float64Array(rows.length + 1);
    for (let i = 0; i < rows.length; i += 1) {
      this.starts[i + 1] = this.starts[i] + Math.max(rows[i].num_tokens, rows[i].num_tokens_original);
    }
    if (this.turn === null) this.refresh();
  }

  setTurn(turn) {
    this.turn = turn !== null && turn.receipt ? turn : null;
    this.pieces = this.turn === null ? [] : piecesOf(turn.receipt);
    this.zoom = 1;
    this.from = 0;
    this.plot.value = 0;
    this.back.hidden = this.told.hidden = this.turn === null;
    this.head.textContent = this.turn === null ? "Context now" : `Prompt of turn ${turn.index}`;
    this.plot.element.setAttribute("aria-label", this.turn === null ? "Context by message" : `Prompt of turn ${turn.index}`);
    this.refresh();
  }

  refresh() {
    const sums = {};
    if (this.turn === null) {
      for (const row of this.rows) for (const [kind, size] of partsOf(row)) sums[kind] = (sums[kind] || 0) + size;
    } else {
      for (const [kind, start, end] of this.pieces) sums[kind] = (sums[kind] || 0) + end - start;
    }
    const all = this.total();
    fill(this.legend, Object.entries(KINDS).filter(([kind]) => sums[kind]).map(([kind, [name, meaning]]) =>
      h("li", { title: meaning }, h("span", { class: `swatch ${kind}` }), `${name} ${count(sums[kind])} `,
        h("span", { class: "quiet" }, share(sums[kind], all)))));
    this.plot.set(this.plot.value);
  }

  span(index) {
    if (this.turn === null) return [this.starts[index], this.starts[index + 1]];
    return [this.pieces[index][1], this.pieces[index][2]];
  }

  zoomBy(factor) {
    this.zoom = Math.max(1, Math.min(this.zoom * factor, Math.max(1, this.total() / 50)));
    this.reveal(this.plot.value);
  }

  reveal(index) {
    if (!this.blocks()) return;
    const seen = this.total() / this.zoom;
    const [start, end] = this.span(Math.min(index, this.blocks() - 1));
    if (start < this.from || end > this.from + seen) this.from = (start + end - seen) / 2;
    this.from = Math.max(0, Math.min(this.from, this.total() - seen));
    this.plot.schedule();
  }

  select(index) {
    if (this.turn !== null || !this.rows.length) return;
    this.plot.set(index);
    this.reveal(index);
  }

  draw(context, width) {
    const seen = this.total() / this.zoom || 1;
    const scale = width / seen;
    const bottom = HEIGHT - AXIS;
    const full = bottom - TOP;
    const block = (kind, start, end) => {
      const left = (start - this.from) * scale;
      if (left > width || (end - this.from) * scale < 0) return;
      context.fillStyle = colour(kind);
      const tall = full * KINDS[kind][2];
      context.fillRect(left, bottom - tall, Math.max(0.5, (end - start) * scale - ((end - start) * scale > 3 ? 1 : 0)), tall);
    };
    if (this.turn !== null) for (const [kind, start, end] of this.pieces) block(kind, start, end);
    else {
      for (let i = this.first(this.from); i < this.rows.length && this.starts[i] < this.from + seen; i += 1) {
        let position = this.starts[i];
        for (const [kind, size] of partsOf(this.rows[i])) block(kind, position, (position += size));
        if (this.isMarked(i)) this.frameAround(context, this.starts[i], this.starts[i + 1], scale);
      }
    }
    context.fillStyle = colour("quiet");
    context.font = "11px system-ui, sans-serif";
    const room = Math.max(2, Math.min(8, Math.floor(width / 110)));
    for (let tick = 0; tick <= room; tick += 1) {
      context.textAlign = tick === 0 ? "left" : tick === room ? "right" : "center";
      context.fillText(count(Math.round(this.from + (seen * tick) / room)), (width * tick) / room, HEIGHT - 3);
    }
  }

  frameAround(context, start, end, scale) {
    context.strokeStyle = colour("ink");
    context.lineWidth = 2;
    context.strokeRect((start - this.from) * scale, TOP - 4, Math.max(2, (end - start) * scale), HEIGHT - AXIS - TOP + 6);
  }

  first(position) {
    let low = 0;
    let high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.starts[middle + 1] <= position) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  at(x, width) {
    if (!this.blocks()) return null;
    const position = this.from + (x / width) * (this.total() / this.zoom);
    if (this.turn === null) return Math.min(this.first(position), this.rows.length - 1);
    const index = this.pieces.findIndex(([, , end]) => position < end);
    return index < 0 ? this.pieces.length - 1 : index;
  }

  describe(index) {
    if (this.turn !== null) {
      const [kind, start, end, source] = this.pieces[index];
      const from = source === undefined ? "" : `, from ${count(source)}`;
      return `${KINDS[kind][0]}: ${tokens(end - start)}, ${count(start)} to ${count(end)}${from}`;
    }
    const row = this.rows[index];
    const hidden = row.num_tokens_original - row.num_tokens;
    const gone = hidden > 0 ? `, ${count(hidden)} hidden` : "";
    return `message ${index}, ${row.role}: ${tokens(row.num_tokens)}${gone}, KV ${row.kv || "not known"}`;
  }

  close() {
    this.plot.close();
  }
}
