// The turns of a session: each prompt against its budget, stacked by what became of its tokens, with its edits as marks.

import { fill, h } from "../parts/element.js";
import { count, short, tokens } from "../parts/format.js";
import { colour, KINDS } from "../parts/palette.js";
import { Plot } from "../parts/plot.js";

const HEIGHT = 150;
const TOP = 14;
const BOTTOM = 26;
const LEAST = 4;
const MOST = 44;
const STACK = ["kept", "precomputed", "moved", "computed"];

export function stackOf(receipt) {
  return {
    kept: receipt.kept_tokens - receipt.precomputed_tokens,
    precomputed: receipt.precomputed_tokens,
    moved: receipt.moved_tokens,
    computed: receipt.computed_tokens,
  };
}

export class Timeline {
  constructor({ choose }) {
    this.turns = [];
    this.from = 0;
    this.chosen = null;
    this.plot = new Plot({
      label: "Turns", height: HEIGHT,
      draw: (context, width) => this.draw(context, width), at: (x, width) => this.at(x, width),
      describe: (value) => describe(this.turns[value]), range: () => [0, this.turns.length - 1],
      choose: (value) => {
        this.chosen = value;
        choose(this.turns[value]);
      },
    });
    this.told = h("p", { class: "quiet" });
    this.element = h("section", { class: "panel", "aria-label": "Timeline" },
      h("div", { class: "bar" }, h("h2", {}, "Turns"), h("span", { class: "grow" }), h("ul", { class: "legend" },
        h("li", {}, h("span", { class: "glyph" }, "▲"), " edit"), h("li", {}, h("span", { class: "glyph bad" }, "▼"), " eviction"),
        h("li", {}, h("span", { class: "glyph" }, "!"), " move refused"), h("li", {}, h("span", { class: "dash" }), "budget"))),
      this.plot.element, h("ul", { class: "legend" }, STACK.map((kind) =>
        h("li", { title: KINDS[kind][1] }, h("span", { class: `swatch ${kind}` }), KINDS[kind][0]))), this.told);
  }

  set(turns) {
    const wasLast = this.plot.value >= this.turns.length - 1;
    this.turns = turns;
    this.plot.element.hidden = turns.length === 0;
    fill(this.told, turns.length === 0
      ? "No turn was recorded yet. Each request to the model makes one."
      : `Turns ${count(turns[0].index)} to ${count(turns[turns.length - 1].index)}.`);
    if (turns.length) this.plot.set(wasLast && this.chosen === null ? turns.length - 1 : this.plot.value);
  }

  clear() {
    this.chosen = null;
    this.plot.schedule();
  }

  scale(width) {
    const size = Math.max(LEAST, Math.min(MOST, width / Math.max(1, this.turns.length)));
    const seen = Math.max(1, Math.floor(width / size));
    this.from = Math.max(0, Math.min(this.from, this.turns.length - seen));
    if (this.plot.value < this.from) this.from = this.plot.value;
    else if (this.plot.value >= this.from + seen) this.from = this.plot.value - seen + 1;
    return { size, seen };
  }

  draw(context, width) {
    const { size, seen } = this.scale(width);
    const shown = this.turns.slice(this.from, this.from + seen);
    const most = Math.max(1, ...shown.map((turn) => Math.max(turn.prompt_tokens, turn.budget_tokens || 0)));
    const tall = (HEIGHT - TOP - BOTTOM) / most;
    const ground = HEIGHT - BOTTOM;
    const gap = size > 6 ? 1 : 0;
    context.font = "11px system-ui, sans-serif";
    shown.forEach((turn, place) => {
      const left = place * size;
      let position = ground;
      const stack = turn.receipt ? stackOf(turn.receipt) : { unknown: turn.prompt_tokens };
      for (const kind of turn.receipt ? STACK : ["unknown"]) {
        const height = stack[kind] * tall;
        context.fillStyle = colour(kind);
        context.fillRect(left, position - height, size - gap, height);
        position -= height;
      }
      if (turn.budget_tokens) {
        context.fillStyle = colour("ink");
        context.fillRect(left, ground - turn.budget_tokens * tall - 1, size, 2);
      }
      context.textAlign = "center";
      this.marks(context, turn, left + (size - gap) / 2, ground, position);
      if (this.from + place === this.chosen || (this.from + place === this.plot.value && document.activeElement === this.plot.element)) {
        context.strokeStyle = colour("ink");
        context.lineWidth = 2;
        context.strokeRect(left + 1, TOP - 8, Math.max(2, size - gap - 2), ground - TOP + 10);
      }
    });
    context.strokeStyle = colour("line");
    context.lineWidth = 1;
    context.strokeRect(0, ground + 0.5, width, 0);
    context.fillStyle = colour("quiet");
    // At the side that the frame of the chosen turn is not at.
    const isLeft = ((this.chosen === null ? this.plot.value : this.chosen) - this.from) * size > width / 2;
    context.textAlign = isLeft ? "left" : "right";
    context.fillText(`${short(most)} tokens`, isLeft ? 2 : width - 2, 10);
  }

  marks(context, turn, middle, ground, top) {
    if (turn.edits.length) {
      context.fillStyle = colour("ink");
      context.fillText("▲", middle, ground + 11);
    }
    if (turn.evictions.length) {
      context.fillStyle = colour("bad");
      context.fillText("▼", middle, ground + 22);
    }
    if (turn.receipt && turn.receipt.fallback_reason) {
      context.fillStyle = colour("ink");
      context.fillText("!", middle, Math.max(11, top - 3));
    }
  }

  at(x, width) {
    if (!this.turns.length) return null;
    const place = this.from + Math.floor(x / this.scale(width).size);
    return place < this.turns.length ? place : null;
  }

  close() {
    this.plot.close();
  }
}

export function describe(turn) {
  const parts = [`turn ${turn.index}: ${tokens(turn.prompt_tokens)}`];
  if (turn.budget_tokens) parts[0] += ` of ${count(turn.budget_tokens)}`;
  if (turn.receipt) {
    const stack = stackOf(turn.receipt);
    parts.push(STACK.filter((kind) => stack[kind]).map((kind) => `${KINDS[kind][0]} ${count(stack[kind])}`).join(", "));
  }
  if (turn.edits.length) parts.push(`edits: ${turn.edits.map((edit) => edit.kind).join(", ")}`);
  if (turn.evictions.length) parts.push(`evicted ${count(turn.evictions.reduce((sum, one) => sum + one.tokens, 0))}`);
  if (turn.receipt && turn.receipt.fallback_reason) parts.push(`move refused: ${turn.receipt.fallback_reason}`);
  return parts.filter(Boolean).join(" · ");
}
