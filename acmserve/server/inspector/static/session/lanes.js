// Episodes and branches as lanes: which messages belong to each, as a bar over the whole conversation.

import { fill, h, svg, table } from "../parts/element.js";
import { count } from "../parts/format.js";

const WIDTH = 200;

export class Lanes {
  constructor({ choose }) {
    this.choose = choose;
    this.body = h("div", {});
    this.element = h("section", { class: "panel", "aria-label": "Episodes and branches", hidden: true },
      h("h2", {}, "Episodes and branches"), this.body);
  }

  set({ episodes, branches }, rows) {
    const lanes = [...episodes.map((episode) => ofEpisode(episode, rows)), ...branches.map((branch) => ofBranch(branch, rows))];
    this.element.hidden = lanes.length === 0;
    fill(this.body, table("Lanes", ["Name", "Kind", "State", "Tokens seen", "Messages", "Place"],
      lanes.map((lane) => [lane.name, lane.kind, lane.state, lane.tokens, this.range(lane), bar(lane, rows.length)])));
  }

  range({ start, end }) {
    if (start >= end) return start > 0 ? `behind ${start - 1}` : "none";
    return h("button", { type: "button", class: "link", onclick: () => this.choose(start, end - 1) },
      end - start === 1 ? String(start) : `${start} to ${end - 1}`);
  }
}

function ofEpisode(episode, rows) {
  return {
    name: episode.name || `work ${episode.number}`, kind: episode.type === "expl" ? "exploration" : "act", state: episode.state,
    tokens: `${count(episode.num_tokens_shown)} of ${count(episode.num_tokens)}`,
    start: episode.start, end: episode.end === null ? rows.length : episode.end,
  };
}

function ofBranch(branch, rows) {
  const name = branch.description || branch.branch_id;
  const lane = { name, kind: "branch", state: branch.state, tokens: count(branch.num_tokens) };
  if (branch.kind === "session") {
    const link = h("a", { href: `#/s/${encodeURIComponent(branch.branch_id)}` }, name);
    return { ...lane, name: link, start: Math.min(branch.num_messages || 0, rows.length), end: rows.length };
  }
  const inside = rows.filter((row) => row.branch === branch.branch_id);
  return inside.length ? { ...lane, start: inside[0].index, end: inside[inside.length - 1].index + 1 } : { ...lane, start: 0, end: 0 };
}

function bar({ start, end, kind }, length) {
  const scale = WIDTH / Math.max(1, length);
  return svg("svg", { class: "lane", width: WIDTH, height: 12, "aria-hidden": "true" },
    svg("rect", { class: "ground", width: WIDTH, height: 12 }),
    svg("rect", { class: kind === "branch" ? "moved" : "kept", x: start * scale, width: Math.max(2, (end - start) * scale), height: 12 }));
}
