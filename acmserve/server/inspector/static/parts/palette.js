// What a token is drawn as. Colours stand in style.css; hidden text is also lower, so that nobody depends on colour.

export const KINDS = {
  kept: ["kept", "KV in place", 1],
  precomputed: ["precomputed", "KV computed before it was asked for", 1],
  moved: ["moved", "KV moved to a new position", 1],
  computed: ["computed", "prefilled, or will be", 1],
  unknown: ["not known", "visible, nothing known of its KV", 1],
  folded: ["folded", "hidden behind a marker or a summary", 0.55],
  evicted: ["evicted", "taken out under a budget", 0.3],
};

const OF_KV = { kept: "kept", moved: "moved", "partly moved": "moved", gone: "computed" };

export const kindOf = (row) => OF_KV[row.kv] || "unknown";

// A message as [kind, tokens]: what the model sees of it, then what is hidden.
export function partsOf(row) {
  const hidden = Math.max(0, row.num_tokens_original - row.num_tokens);
  const parts = row.num_tokens > 0 ? [[kindOf(row), row.num_tokens]] : [];
  if (hidden > 0) parts.push([row.state === "evicted" || row.branch ? "evicted" : "folded", hidden]);
  return parts;
}

// A served prompt as [kind, start, end], from its receipt. Moves say where they lie; kept tokens stand in front of the
// computed ones in what is left, and precomputed ones are the last of the kept.
export function piecesOf(receipt) {
  const moves = [...receipt.moves].sort((a, b) => a.dst_start - b.dst_start);
  const gaps = [];
  let position = 0;
  for (const move of [...moves, { dst_start: receipt.prompt_tokens, num_tokens: 0 }]) {
    if (move.dst_start > position) gaps.push([position, move.dst_start]);
    position = Math.max(position, move.dst_start + move.num_tokens);
  }
  const pieces = moves.map((move) => ["moved", move.dst_start, move.dst_start + move.num_tokens, move.src_start]);
  const left = [["kept", receipt.kept_tokens - receipt.precomputed_tokens], ["precomputed", receipt.precomputed_tokens],
    ["computed", Infinity]];
  for (let [start, end] of gaps) {
    while (start < end && left.length) {
      const taken = Math.min(end - start, left[0][1]);
      if (taken > 0) pieces.push([left[0][0], start, start + taken]);
      start += taken;
      left[0][1] -= taken;
      if (left[0][1] <= 0) left.shift();
    }
  }
  return pieces.sort((a, b) => a[1] - b[1]);
}

let colours = null;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (colours = null));

export function colour(name) {
  if (colours === null) {
    const style = getComputedStyle(document.documentElement);
    colours = Object.fromEntries([...Object.keys(KINDS), "line", "ink", "quiet", "accent", "bad"].map((each) =>
      [each, style.getPropertyValue(`--${each}`).trim()]));
  }
  return colours[name];
}
