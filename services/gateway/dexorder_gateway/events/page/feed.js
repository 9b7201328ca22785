// The list of live events, newest first. An event is listed once, even if the gateway sends it again.

import { cardOf, showSeen } from "./card.js";
import { byId, say } from "./dom.js";

const MAX_CARDS = 300; // older ones are in the log
const MOST_KEYS = 20_000;
const LOOK_MS = 3_000; // an event on screen for this long counts as seen; CRITICAL ones need a click
const RESEND_MS = 300_000; // an ack that may be lost with a connection is sent again

export class Feed {
  #items = new Map(); // key -> {event, card, seenAt, told}, oldest first
  #keys = new Set();
  #seenBefore = new Map(); // key -> time, for events that a reset sends again
  #filter = "ALL";
  #words = "";
  #looking = new Map();
  #tell;
  #observer = new IntersectionObserver((entries) => this.#look(entries), { threshold: 0.6 });

  /** `tell(event)` sends SEEN to the gateway; false if there is no connection. */
  constructor(tell) {
    this.#tell = tell;
    for (const choice of document.querySelectorAll("[name=filter]")) {
      choice.addEventListener("change", () => { this.#filter = choice.value; this.#sift(); });
    }
    byId("search").addEventListener("input", (input) => {
      this.#words = input.target.value.trim().toLowerCase();
      this.#sift();
    });
    byId("all-seen").addEventListener("click", () => {
      for (const item of this.#items.values()) if (this.#shown(item)) this.#see(item);
    });
    document.addEventListener("visibilitychange", () => this.#lookAgain());
    this.#count();
  }

  /** True for an event that was not in the list before. */
  add(event, kept = {}) {
    if (this.#keys.has(event.key)) return false;
    this.#keys.add(event.key);
    const seenAt = this.#seenBefore.get(event.key) ?? 0;
    const item = { event, seenAt, told: seenAt > 0, ...kept };
    item.card = cardOf(event, () => this.#see(item));
    item.card.hidden = !this.#shown(item);
    this.#items.set(event.key, item);
    byId("feed").prepend(item.card);
    if (item.seenAt) showSeen(item.card);
    else if (event.sequence > 0 && event.priority !== "CRITICAL") this.#observer.observe(item.card);
    this.#trim();
    this.#count();
    return true;
  }

  /** A new log sends all stored events again: drop the events but keep the times at which they were seen. */
  reset() {
    for (const [key, item] of this.#items) {
      if (item.event.sequence === 0) continue;
      if (item.seenAt) this.#seenBefore.set(key, item.seenAt);
      this.#remove(key, item);
    }
    this.#keys = new Set(this.#items.keys());
    this.#count();
  }

  clear() {
    for (const [key, item] of this.#items) this.#remove(key, item);
    this.#keys.clear();
    this.#seenBefore.clear();
    this.#count();
  }

  /** Mark an event that was seen elsewhere, by the gateway's log. */
  seenElsewhere(key, seenAt) {
    const item = this.#items.get(key);
    if (!item || item.seenAt) return;
    Object.assign(item, { seenAt, told: true });
    this.#showSeen(item);
  }

  /** Send SEEN again where the gateway may have missed it. */
  retell() {
    for (const item of this.#items.values()) {
      const unsure = item.seenAt && (!item.told || Date.now() - item.seenAt < RESEND_MS);
      if (unsure) item.told = this.#tell(item.event);
    }
  }

  /** State for the store. */
  kept() {
    return [...this.#items.values()].map(({ event, seenAt, told }) => ({ event, seenAt, told }));
  }

  #see(item) {
    if (item.seenAt || item.event.sequence === 0) return;
    item.seenAt = Date.now();
    item.told = this.#tell(item.event);
    this.#showSeen(item);
  }

  #showSeen(item) {
    this.#observer.unobserve(item.card);
    showSeen(item.card);
    this.#count();
  }

  #look(entries) {
    for (const { target, isIntersecting } of entries) {
      clearTimeout(this.#looking.get(target));
      this.#looking.delete(target);
      const item = this.#items.get(target.dataset.key);
      if (!isIntersecting || !item || document.hidden) continue;
      this.#looking.set(target, setTimeout(() => this.#see(item), LOOK_MS));
    }
  }

  #lookAgain() {
    for (const timer of this.#looking.values()) clearTimeout(timer);
    this.#looking.clear();
    for (const { event, card, seenAt } of this.#items.values()) {
      this.#observer.unobserve(card);
      if (!seenAt && event.sequence > 0 && event.priority !== "CRITICAL") this.#observer.observe(card);
    }
  }

  #shown({ event, seenAt }) {
    if (this.#filter === "CRITICAL" && event.priority !== "CRITICAL") return false;
    if (this.#filter === "UNSEEN" && (seenAt || event.sequence === 0)) return false;
    return `${event.title} ${event.body} ${event.container}`.toLowerCase().includes(this.#words);
  }

  #sift() {
    for (const item of this.#items.values()) item.card.hidden = !this.#shown(item);
    this.#count();
  }

  #trim() {
    for (const [key, item] of this.#items) {
      if (this.#items.size <= MAX_CARDS) break;
      this.#remove(key, item);
    }
    for (const key of this.#keys) {
      if (this.#keys.size <= MOST_KEYS) break;
      this.#keys.delete(key);
    }
  }

  #remove(key, item) {
    this.#observer.unobserve(item.card);
    item.card.remove();
    this.#items.delete(key);
  }

  #count() {
    const all = [...this.#items.values()];
    const unseen = all.filter(({ event, seenAt }) => event.sequence > 0 && !seenAt);
    const critical = unseen.filter(({ event }) => event.priority === "CRITICAL").length;
    say(byId("unseen-count"), String(unseen.length));
    say(byId("critical-count"), String(critical));
    byId("critical-count").toggleAttribute("data-some", critical > 0);
    byId("all-seen").setAttribute("aria-disabled", String(unseen.length === 0));
    byId("feed-empty").hidden = all.some((item) => !item.card.hidden);
    say(byId("feed-empty-text"), all.length ? "Nothing here matches the filter." : "No events yet. They appear here as they happen.");
    document.title = `${unseen.length ? `(${unseen.length}) ` : ""}Events · dexorder`;
  }
}
