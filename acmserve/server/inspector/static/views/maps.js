// Context maps: all of this key, and one with its items and what changed it.

import { get } from "../parts/api.js";
import { fill, h, table } from "../parts/element.js";
import { count, time, tokens } from "../parts/format.js";

const address = (id) => `maps/${encodeURIComponent(id)}`;

export async function showMaps(view, id, signal, say) {
  say("not live here", false);
  if (id !== null) return showMap(view, id, signal);
  const { data } = await get("maps", signal);
  return fill(view, h("h1", {}, "Context maps"),
    data.length === 0 ? h("p", { class: "quiet" }, "No map yet. A chat request with acm.map makes one.")
      : table("Maps", ["Map", "Items", "Version", "State"], data.map((map) => [
        h("a", { href: `#/${address(map.external_context_id)}` }, map.external_context_id),
        count(map.num_items), map.version, map.frozen ? "frozen" : "learns"])));
}

async function showMap(view, id, signal) {
  const [map, history] = await Promise.all([get(address(id), signal), get(`${address(id)}/history`, signal)]);
  const state = map.pinned ? "pinned" : map.frozen ? "frozen" : `learns, ${map.num_steps} of ${map.evolve_steps} updates done`;
  fill(view,
    h("p", { class: "crumb" }, h("a", { href: "#/maps" }, "Maps"), " / "), h("h1", {}, id),
    h("p", {}, `${tokens(map.tokens)} of ${count(map.budget)} · version ${map.version} · ${state}`,
      map.num_pending ? ` · ${map.num_pending} updates wait` : ""),
    map.items.length === 0 ? h("p", { class: "quiet" }, "It has no items.")
      : table("Items", ["Section", "Item", "Score"], map.items.map((item) => [item.section, item.text, item.score])),
    h("h2", {}, "What changed it"),
    history.data.length === 0 ? h("p", { class: "quiet" }, "Nothing yet.") : [...history.data].reverse().map(change));
}

function change(one) {
  const done = one.operations.map((operation) => {
    const what = operation.item_id ? `${operation.kind} ${operation.item_id}` : `${operation.kind} in ${operation.section}`;
    return h("li", {}, `${what}: ${operation.content}`, operation.refused ? h("span", { class: "bad" }, ` refused: ${operation.refused}`) : "");
  });
  const session = one.session_id ? h("a", { href: `#/s/${encodeURIComponent(one.session_id)}` }, one.session_id) : "an edit by hand";
  return h("details", { class: "panel", open: true },
    h("summary", {}, `Version ${one.version}, ${time(one.at)}: ${tokens(one.num_tokens)}`),
    h("p", {}, one.kind === "model" ? "Learned from " : "Made by ", session, "."),
    one.error ? h("p", { class: "bad" }, one.error) : null,
    one.diagnosis ? h("p", {}, one.diagnosis) : null,
    one.reasoning ? h("p", { class: "quiet" }, one.reasoning) : null,
    done.length ? h("ul", {}, done) : null,
    one.evicted.length ? h("p", {}, `Evicted: ${one.evicted.map((item) => item.text).join("; ")}`) : null);
}
