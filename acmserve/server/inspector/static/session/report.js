// A session as a file: JSON with all that the routes say, or one HTML page that needs no server and runs no script.

import { get } from "../parts/api.js";
import { fill, h, svg } from "../parts/element.js";
import { count, seconds, share, time } from "../parts/format.js";
import { KINDS, partsOf } from "../parts/palette.js";
import { textOf } from "./message.js";
import { stackOf } from "./timeline.js";

const WIDTH = 960;
const HEIGHT = 140;
const MOST_BARS = 2000;

export async function collect(model) {
  const [context, lanes] = await Promise.all([get(model.path("/context"), model.signal), model.lanes()]);
  const { info, totals, budget, turns, waiting, rows } = model;
  return { exported_at: Date.now() / 1000, session: info, totals, budget, turns, waiting, messages: rows, context, ...lanes };
}

export function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

export const fileName = (id, ending) => `${id.replace(/[^\w.-]+/g, "_").slice(0, 80)}.${ending}`;

// The report is in the colours of the page that is open.
function style() {
  const now = getComputedStyle(document.documentElement);
  const names = [...Object.keys(KINDS), "ground", "ink", "quiet", "line"];
  const colours = names.map((name) => `--${name}:${now.getPropertyValue(`--${name}`).trim()}`).join(";");
  return `:root{${colours}}body{background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,sans-serif;max-width:960px;`
    + "margin:2rem auto;padding:0 1rem}table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid var(--line);"
    + "text-align:left;padding:.25rem .5rem;vertical-align:top}pre{white-space:pre-wrap;overflow-wrap:anywhere}"
    + `svg{width:100%;height:auto}.quiet{color:var(--quiet)}${Object.keys(KINDS).map((kind) => `.${kind}{fill:var(--${kind});background:var(--${kind})}`).join("")}`
    + ".swatch{display:inline-block;width:.8em;height:.8em;margin-right:.3em}";
}

export function reportOf(data) {
  const page = document.implementation.createHTMLDocument(`acmserve: ${data.session.session_id}`);
  page.documentElement.lang = "en";
  page.head.append(h("meta", { charset: "utf-8" }), h("meta", { name: "viewport", content: "width=device-width" }));
  fill(page.body,
    h("h1", {}, data.session.session_id),
    h("p", { class: "quiet" }, `${time(data.exported_at)} · ${count(data.messages.length)} messages · ${count(data.totals.turns)} turns`),
    h("p", {}, Object.entries(KINDS).map(([kind, [name]]) => [h("span", { class: `swatch ${kind}` }), `${name} `])),
    h("h2", {}, "Context"), strip(data.messages), totals(data.totals), turnsOf(data.turns),
    h("h2", {}, "Messages"), data.messages.map((row) => message(row, data.context.messages[row.index])));
  // A style element would be checked against the policy of this page, so it is written, not made.
  const text = page.documentElement.outerHTML.replace("</head>", `<style>${style()}</style></head>`);
  return `<!doctype html>\n${text}\n`;
}

function picture(label, children) {
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, children);
}

function bar(kind, x, y, width, height) {
  return svg("rect", { class: kind, x: x.toFixed(2), y: y.toFixed(2), width: width.toFixed(2), height: height.toFixed(2) });
}

function strip(rows) {
  const all = rows.reduce((sum, row) => sum + Math.max(row.num_tokens, row.num_tokens_original), 0) || 1;
  const bars = [];
  let position = 0;
  for (const row of rows) {
    for (const [kind, size] of partsOf(row)) {
      const width = (size / all) * WIDTH;
      const tall = HEIGHT * KINDS[kind][2];
      if (width > 0.2 || rows.length < MOST_BARS) bars.push(bar(kind, (position / all) * WIDTH, HEIGHT - tall, width, tall));
      position += size;
    }
  }
  return picture("The context by message", bars);
}

function totals(sums) {
  const names = ["kept", "moved", "computed", "precomputed", "evicted"];
  const rows = names.map((name) => [name, sums[`${name}_tokens`], share(sums[`${name}_tokens`], sums.prompt_tokens)]);
  const { saved } = sums;
  return [h("h2", {}, "Totals"), h("table", {}, rows.map(([name, size, part]) => h("tr", {}, h("th", {}, name), h("td", {}, count(size)), h("td", {}, part)))),
    h("p", {}, `Saved against stock vLLM, as an estimate: ${seconds(saved.seconds)}, ${saved.money.toFixed(4)} ${saved.estimate.prices.currency}. ${saved.estimate.method}`)];
}

function turnsOf(turns) {
  const most = Math.max(1, ...turns.map((turn) => turn.prompt_tokens));
  const width = WIDTH / Math.max(1, turns.length);
  const bars = turns.slice(-MOST_BARS).flatMap((turn, place) => {
    let y = HEIGHT;
    const stack = turn.receipt ? stackOf(turn.receipt) : { unknown: turn.prompt_tokens };
    return Object.entries(stack).filter(([, size]) => size > 0).map(([kind, size]) => {
      const height = (size / most) * HEIGHT;
      y -= height;
      return bar(kind, place * width, y, Math.max(0.5, width - 1), height);
    });
  });
  const heads = ["Turn", "Prompt", "Kept", "Moved", "Computed", "First token", "Edits", "Evicted", "Refused"];
  const rows = turns.map((turn) => [turn.index, count(turn.prompt_tokens),
    ...["kept_tokens", "moved_tokens", "computed_tokens"].map((key) => count(turn.receipt && turn.receipt[key])), seconds(turn.ttft_s),
    turn.edits.map((edit) => `${edit.kind} ${edit.fragment_ids.join(" ")}`).join(", "),
    count(turn.evictions.reduce((sum, one) => sum + one.tokens, 0)), (turn.receipt && turn.receipt.fallback_reason) || ""]);
  return [h("h2", {}, "Turns"), picture("Prompts of the turns", bars),
    h("table", {}, h("thead", {}, h("tr", {}, heads.map((head) => h("th", {}, head)))), rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell)))))];
}

function message(row, shown) {
  const text = shown ? textOf(shown.message) : "";
  return h("details", {},
    h("summary", {}, `${row.index} ${row.role}: ${count(row.num_tokens)} of ${count(row.num_tokens_original)} tokens, ${row.state}`),
    h("pre", {}, text || "Nothing is seen of it."));
}
