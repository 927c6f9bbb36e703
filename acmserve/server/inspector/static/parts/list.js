// A list of any length of which only the rows in sight are in the page. One row is the active one, by arrow keys.

import { h } from "./element.js";

const SPARE = 8;
let lists = 0;

export class VirtualList {
  // `render(index)` gives the children of a row, `choose(index, extend)` hears of a choice, `enter(index)` of Enter.
  constructor({ label, rowHeight, render, choose, enter, isMarked }) {
    this.rowHeight = rowHeight;
    this.render = render;
    this.choose = choose;
    this.enter = enter || choose;
    this.isMarked = isMarked || (() => false);
    this.active = 0;
    this.length = 0;
    this.prefix = `list${(lists += 1)}-`;
    this.rows = new Map();
    this.space = h("div", { class: "space", role: "presentation" });
    this.element = h("div", {
      class: "list", role: "listbox", tabindex: "0", "aria-label": label, "aria-multiselectable": "true",
      onscroll: () => this.schedule(), onkeydown: (event) => this.key(event),
    }, this.space);
    this.watcher = new ResizeObserver(() => this.schedule());
    this.watcher.observe(this.element);
  }

  set(length) {
    this.length = length;
    this.active = Math.max(0, Math.min(this.active, length - 1));
    this.space.style.height = `${length * this.rowHeight}px`;
    this.element.style.setProperty("--content", `${length * this.rowHeight + 2}px`);
    this.element.hidden = length === 0;
    this.draw(true);
  }

  schedule() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw(false);
    });
  }

  draw(anew) {
    const top = this.element.scrollTop;
    const first = Math.max(0, Math.floor(top / this.rowHeight) - SPARE);
    const last = Math.min(this.length, Math.ceil((top + this.element.clientHeight) / this.rowHeight) + SPARE);
    for (const [index, row] of this.rows) {
      if (anew || index < first || index >= last) {
        row.remove();
        this.rows.delete(index);
      }
    }
    const added = document.createDocumentFragment();
    for (let index = first; index < last; index += 1) {
      if (!this.rows.has(index)) added.append(this.row(index));
    }
    this.space.append(added);
    this.mark();
  }

  row(index) {
    const row = h("div", {
      class: "row", role: "option", id: this.prefix + index, "aria-setsize": this.length, "aria-posinset": index + 1,
      onclick: (event) => this.go(index, event.shiftKey, true),
      ondblclick: () => this.enter(index),
    }, this.render(index));
    row.style.transform = `translateY(${index * this.rowHeight}px)`;
    row.style.height = `${this.rowHeight}px`;
    this.rows.set(index, row);
    return row;
  }

  mark() {
    for (const [index, row] of this.rows) {
      const marked = this.isMarked(index);
      row.setAttribute("aria-selected", String(marked));
      row.classList.toggle("marked", marked);
      row.classList.toggle("active", index === this.active);
    }
    if (this.rows.has(this.active)) this.element.setAttribute("aria-activedescendant", this.prefix + this.active);
    else this.element.removeAttribute("aria-activedescendant");
  }

  reveal(index) {
    this.active = index;
    const top = index * this.rowHeight;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + this.rowHeight > scrollTop + clientHeight) this.element.scrollTop = top + this.rowHeight - clientHeight;
    this.draw(false);
  }

  // Shows the first row. What was in sight stands elsewhere now.
  start() {
    this.element.scrollTop = 0;
    this.active = 0;
    this.draw(true);
  }

  go(index, extend, clicked) {
    this.reveal(Math.max(0, Math.min(index, this.length - 1)));
    this.choose(this.active, extend, clicked);
    this.mark();
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.rowHeight) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) this.go(this.active + steps[event.key], event.shiftKey, false);
    else if (event.key === "Enter") this.enter(this.active);
    else return;
    event.preventDefault();
  }

  close() {
    this.watcher.disconnect();
  }
}
