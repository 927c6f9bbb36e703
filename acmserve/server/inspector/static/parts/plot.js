// A picture on a canvas that is also a slider: arrows move, a pointer hovers and clicks, a reader hears the value.

import { h } from "./element.js";

export class Plot {
  // `draw(context, width, height)`, `at(x, width)` -> value or null, `describe(value)` -> text,
  // `choose(value, extend)`, `range()` -> [first, last].
  constructor({ label, height, draw, at, describe, choose, range }) {
    Object.assign(this, { draw, at, describe, choose, range });
    this.value = 0;
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.tip = h("div", { class: "tip", "aria-hidden": "true", hidden: true });
    this.element = h("div", {
      class: "plot", role: "slider", tabindex: "0", "aria-label": label, "aria-orientation": "horizontal",
      onkeydown: (event) => this.key(event), onclick: (event) => this.click(event),
      onpointermove: (event) => this.hover(event), onpointerleave: () => (this.tip.hidden = true),
    }, this.canvas, this.tip);
    this.element.style.height = `${height}px`;
    this.watcher = new ResizeObserver(() => this.schedule());
    this.watcher.observe(this.element);
    this.theme = matchMedia("(prefers-color-scheme: dark)");
    this.onTheme = () => this.schedule();
    this.theme.addEventListener("change", this.onTheme);
  }

  schedule() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const { clientWidth: width, clientHeight: height } = this.element;
      const scale = devicePixelRatio || 1;
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
      const context = this.canvas.getContext("2d");
      context.scale(scale, scale);
      this.draw(context, width, height);
    });
  }

  set(value) {
    const [first, last] = this.range();
    this.value = Math.max(first, Math.min(value, last));
    this.element.setAttribute("aria-valuemin", first);
    this.element.setAttribute("aria-valuemax", Math.max(first, last));
    this.element.setAttribute("aria-valuenow", this.value);
    this.element.setAttribute("aria-valuetext", last < first ? "empty" : this.describe(this.value));
    this.schedule();
  }

  place(event) {
    const box = this.element.getBoundingClientRect();
    return this.at(event.clientX - box.left, box.width);
  }

  click(event) {
    const value = this.place(event);
    if (value === null) return;
    this.set(value);
    this.choose(value, event.shiftKey);
  }

  hover(event) {
    const value = this.place(event);
    this.tip.hidden = value === null;
    if (value === null) return;
    this.tip.textContent = this.describe(value);
    const box = this.element.getBoundingClientRect();
    const left = Math.max(0, Math.min(event.clientX - box.left + 12, box.width - this.tip.offsetWidth));
    this.tip.style.transform = `translate(${left}px, -100%)`;
  }

  key(event) {
    const [first, last] = this.range();
    if (last < first) return;
    const page = Math.max(2, Math.round((last - first) / 10));
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: page, PageDown: -page };
    let value = this.value;
    if (event.key in steps) value += steps[event.key];
    else if (event.key === "Home") value = first;
    else if (event.key === "End") value = last;
    else if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    this.set(value);
    this.choose(this.value, event.shiftKey);
  }

  close() {
    this.watcher.disconnect();
    this.theme.removeEventListener("change", this.onTheme);
  }
}
