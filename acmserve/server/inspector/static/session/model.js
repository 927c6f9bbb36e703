// What is known of one session, read page by page and kept current. Knows nothing of the page.

import { find, get, sessionPath } from "../parts/api.js";

const ROWS = 2000;
const TURNS = 500;

export class SessionModel {
  constructor(id, signal) {
    this.id = id;
    this.signal = signal;
    this.info = null;
    this.rows = [];
    this.turns = [];
    this.waiting = { edits: [], evictions: [] };
    this.totals = null;
    this.budget = null;
    this.running = null;
    this.asked = false;
  }

  path(rest = "") {
    return sessionPath(this.id, rest);
  }

  // Reads everything anew. `tell` hears of each page, so that a long session shows its beginning at once. Asked for
  // while it runs, it runs once more.
  refresh(tell) {
    if (this.running) {
      this.asked = true;
      return this.running;
    }
    this.running = this.read(tell).finally(() => {
      this.running = null;
    });
    return this.running.then(() => {
      if (!this.asked) return undefined;
      this.asked = false;
      return this.refresh(tell);
    });
  }

  async read(tell) {
    this.info = await get(this.path(), this.signal);
    const [totals, budget] = await Promise.all([
      get(this.path("/totals"), this.signal), get(this.path("/budget"), this.signal), this.readTurns(),
    ]);
    this.totals = totals;
    this.budget = budget;
    tell();
    await this.readRows(tell);
    tell();
  }

  async readTurns() {
    for (let more = true; more;) {
      const last = this.turns.length ? this.turns[this.turns.length - 1].index : -1;
      const page = await get(this.path(`/turns?after=${last}&limit=${TURNS}`), this.signal);
      if (page.num_turns <= last) this.turns = [];
      this.turns.push(...page.data);
      this.waiting = page.waiting;
      more = page.has_more;
    }
  }

  async readRows(tell) {
    const fresh = [];
    for (let more = true; more;) {
      const page = await get(this.path(`/messages?start=${fresh.length}&limit=${ROWS}`), this.signal);
      fresh.push(...page.data);
      more = page.has_more && page.data.length > 0;
      if (fresh.length > this.rows.length) {
        this.rows = [...fresh];
        if (more) tell();
      }
    }
    this.rows = fresh;
  }

  message(index) {
    return get(this.path(`/messages/${index}`), this.signal);
  }

  // The first message in which a fragment hides something now. Null where it hides nothing any more.
  messageOf(fragment) {
    const row = this.rows.find((each) => each.fragments.includes(fragment));
    return row === undefined ? null : row.index;
  }

  // Where the session stands in time: episodes that were marked, and branches.
  async lanes() {
    const [episodes, branches] = await Promise.all([
      find(this.path("/episodes"), this.signal), find(this.path("/branches"), this.signal),
    ]);
    return { episodes: episodes ? episodes.data : [], branches: branches ? branches.data : [] };
  }

  get tokensShown() {
    return this.rows.reduce((sum, row) => sum + row.num_tokens, 0);
  }

  get tokensSent() {
    return this.rows.reduce((sum, row) => sum + row.num_tokens_original, 0);
  }

  // How long to wait before everything is read again: a long session is read less often.
  get pause() {
    return 250 + this.rows.length / 4;
  }
}
