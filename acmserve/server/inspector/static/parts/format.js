// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en-US");
const clock = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export const count = (number) => (number === null || number === undefined ? "–" : whole.format(number));

export function tokens(number) {
  if (number === null || number === undefined) return "–";
  return `${whole.format(number)} ${number === 1 ? "token" : "tokens"}`;
}

export const many = (number, thing) => `${count(number)} ${number === 1 ? thing : `${thing}s`}`;

export function short(number) {
  if (number >= 1e6) return `${(number / 1e6).toFixed(number >= 1e7 ? 0 : 1)}M`;
  if (number >= 1e4) return `${Math.round(number / 1e3)}k`;
  if (number >= 1e3) return `${(number / 1e3).toFixed(1)}k`;
  return String(number);
}

export const seconds = (number) =>
  number === null || number === undefined ? "–" : number < 1 ? `${Math.round(number * 1000)} ms` : `${number.toFixed(2)} s`;

export const time = (epoch) => clock.format(new Date(epoch * 1000));

export function ago(epoch) {
  const past = Math.max(0, Date.now() / 1000 - epoch);
  if (past < 60) return "just now";
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  return `${Math.floor(past / 86400)} d ago`;
}

export const share = (part, all) => (all > 0 ? `${((100 * part) / all).toFixed(part * 10 < all ? 1 : 0)} %` : "–");
