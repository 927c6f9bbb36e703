// What a session cost, and what that saved: one tile a number.

import { fill, h } from "../parts/element.js";
import { count, many, seconds, share, short } from "../parts/format.js";

export class Totals {
  constructor() {
    this.tiles = h("dl", { class: "tiles" });
    this.how = h("p", { class: "quiet" });
    this.element = h("section", { class: "panel", "aria-label": "Totals" },
      this.tiles, h("details", {}, h("summary", {}, "How savings are estimated"), this.how));
  }

  set({ totals, budget, rows, tokensShown, tokensSent }) {
    const all = totals.prompt_tokens;
    const { saved } = totals;
    const tile = (name, value, more) => h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, value),
      h("dd", { class: "quiet" }, more));
    const limit = budget.budget ? budget.budget.max_tokens : null;
    fill(this.tiles,
      tile("Context now", short(tokensShown), tokensSent > tokensShown
        ? `${short(tokensSent - tokensShown)} hidden of ${short(tokensSent)}` : many(rows.length, "message")),
      tile("Budget", limit === null ? "none" : short(limit),
        limit === null ? "nothing is evicted by itself" : `next prompt ${share(budget.tokens, limit)}, ${budget.budget.policy}`),
      tile("Turns", count(totals.turns), `${many(totals.edits, "edit")}, ${many(totals.fallbacks, "refused move")}`),
      tile("Kept", share(totals.kept_tokens, all), `${short(totals.kept_tokens)} of ${short(all)}`),
      tile("Moved", share(totals.moved_tokens, all), short(totals.moved_tokens)),
      tile("Computed", share(totals.computed_tokens, all), short(totals.computed_tokens)),
      tile("Precomputed", short(totals.precomputed_tokens), "of the kept ones"),
      tile("Evicted", short(totals.evicted_tokens), many(totals.evictions, "eviction")),
      tile("Saved", seconds(saved.seconds), `${count(Math.round(saved.money * 1e4) / 1e4)} ${saved.estimate.prices.currency}`));
    const rates = saved.estimate;
    fill(this.how, `${rates.method} Prefill at ${short(Math.round(rates.prefill_rate))} tokens a second, moves at `
      + `${short(Math.round(rates.move_rate))} (${rates.rates}).`);
  }
}
