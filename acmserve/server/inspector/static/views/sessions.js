// The list of sessions: all of this key, with search and sort, kept current by events.

import { get, listen } from "../parts/api.js";
import { fill, h } from "../parts/element.js";
import { ago, count, many, time } from "../parts/format.js";
import { VirtualList } from "../parts/list.js";

const PAGE = 1000;
const ORDERS = {
  used: ["last used", (a, b) => b.used_at - a.used_at],
  created: ["newest", (a, b) => b.created_at - a.created_at],
  messages: ["most messages", (a, b) => b.num_messages - a.num_messages],
  hidden: ["most hidden", (a, b) => b.num_hidden_fragments - a.num_hidden_fragments],
  name: ["name", (a, b) => a.session_id.localeCompare(b.session_id)],
};

export async function showSessions(view, signal, say) {
  const all = new Map();
  let found = [];
  const open = (index) => {
    if (found[index]) location.hash = `#/s/${encodeURIComponent(found[index].session_id)}`;
  };
  const list = new VirtualList({
    label: "Sessions", rowHeight: 56, render: (index) => row(found[index]),
    choose: (index, _extend, clicked) => clicked && open(index), enter: open, isMarked: () => false,
  });
  const search = h("input", { type: "search", id: "search", placeholder: "Part of a name", oninput: () => draw() });
  const order = h("select", { id: "order", onchange: () => draw() },
    Object.entries(ORDERS).map(([name, [label]]) => h("option", { value: name }, label)));
  const told = h("p", { class: "quiet", role: "status" });
  fill(view,
    h("h1", {}, "Sessions"),
    h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); open(0); } },
      
      h("span", { class: "field wide" }, h("label", { for: "search" }, "Search"), search),
      h("span", { class: "field" }, h("label", { for: "order" }, "Sort by"), order)),
    told, list.element);
  signal.addEventListener("abort", () => list.close());

  function draw() {
    const wanted = search.value.trim().toLowerCase();
    found = [...all.values()].filter((session) =>
      [session.session_id, session.branch_of, session.thread_of].some((name) => (name || "").toLowerCase().includes(wanted)));
    found.sort(ORDERS[order.value][1]);
    told.textContent = all.size === 0
      ? "No session yet. A chat request with a session id makes one."
      : `${count(found.length)} of ${many(all.size, "session")}.`;
    list.set(found.length);
  }

  async function load() {
    const fresh = [];
    for (let after = null, more = true; more;) {
      const page = await get(`sessions?limit=${PAGE}${after ? `&after=${encodeURIComponent(after)}` : ""}`, signal);
      fresh.push(...page.data);
      more = page.has_more;
      after = page.last_id;
    }
    all.clear();
    for (const session of fresh) all.set(session.session_id, session);
    draw();
  }

  let timer = 0;
  let first = true;
  function hear(event) {
    if (event.type === "opened" && first) first = false;
    else if (event.type === "changed" && all.has(event.session_id)) {
      Object.assign(all.get(event.session_id), event);
      clearTimeout(timer);
      timer = setTimeout(draw, 200);
    } else if (event.type === "deleted") {
      all.delete(event.session_id);
      draw();
    } else if (["opened", "changed", "dropped"].includes(event.type)) {
      clearTimeout(timer);
      timer = setTimeout(() => load().catch(() => {}), 300);
    }
  }

  await load();
  listen("events", signal, hear, say);
}

function row(session) {
  const kin = session.branch_of ? `branch of ${session.branch_of}` : session.thread_of ? `thread of ${session.thread_of}` : "";
  const hidden = session.num_hidden_fragments;
  return [
    h("span", { class: "name" }, session.session_id),
    h("span", { class: "quiet when", title: time(session.used_at) }, ago(session.used_at)),
    h("span", { class: "quiet facts" },
      many(session.num_messages, "message"),
      hidden ? ` · ${count(hidden)} hidden of ${many(session.num_fragments, "fragment")}` : "",
      kin ? ` · ${kin}` : "",
      session.precompute && session.precompute.working ? " · precomputing" : ""),
  ];
}
