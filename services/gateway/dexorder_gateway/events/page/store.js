// State that survives a reload of the page, in this tab only: token, cursor and newest events.

const NAME = "dexorder-events";
const SAVE_MS = 250;

export class Store {
  #pending = 0;
  #collect;

  /** `collect()` returns the state to store, or null for none. */
  constructor(collect) {
    this.#collect = collect;
    addEventListener("pagehide", () => this.#write());
  }

  load() {
    try {
      return JSON.parse(sessionStorage.getItem(NAME));
    } catch {
      return null;
    }
  }

  /** Save soon, so that a burst of events is written once. */
  save() {
    this.#pending ||= setTimeout(() => this.#write(), SAVE_MS);
  }

  #write() {
    clearTimeout(this.#pending);
    this.#pending = 0;
    const kept = this.#collect();
    try {
      if (kept) sessionStorage.setItem(NAME, JSON.stringify(kept));
      else sessionStorage.removeItem(NAME);
    } catch {
      sessionStorage.removeItem(NAME); // too much for the browser: a reload then asks for the token again
    }
  }
}
