// The lines of two texts beside each other: [["same" | "out" | "in", text], ...]. Exact for what differs in the middle
// up to a bound, and above it one block out and one block in.

const MOST_CELLS = 4_000_000;

export function diffLines(before, after) {
  const old = before.split("\n");
  const now = after.split("\n");
  let start = 0;
  while (start < old.length && start < now.length && old[start] === now[start]) start += 1;
  let end = 0;
  while (end < old.length - start && end < now.length - start && old[old.length - 1 - end] === now[now.length - 1 - end]) end += 1;
  const middle = changed(old.slice(start, old.length - end), now.slice(start, now.length - end));
  const same = (lines) => (lines.length ? [["same", lines.join("\n")]] : []);
  return [...same(old.slice(0, start)), ...middle, ...same(end ? old.slice(-end) : [])];
}

function changed(old, now) {
  const blocks = [];
  const put = (kind, line) => {
    const last = blocks[blocks.length - 1];
    if (last && last[0] === kind) last[1] += `\n${line}`;
    else blocks.push([kind, line]);
  };
  if (old.length * now.length > MOST_CELLS) {
    old.forEach((line) => put("out", line));
    now.forEach((line) => put("in", line));
    return blocks;
  }
  const width = now.length + 1;
  const common = new Uint32Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      common[i * width + j] = old[i] === now[j]
        ? common[(i + 1) * width + j + 1] + 1
        : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  let i = 0;
  let j = 0;
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      put("same", old[i]);
      i += 1;
      j += 1;
    } else if (i < old.length && (j === now.length || common[(i + 1) * width + j] >= common[i * width + j + 1])) {
      put("out", old[i]);
      i += 1;
    } else {
      put("in", now[j]);
      j += 1;
    }
  }
  return blocks;
}
