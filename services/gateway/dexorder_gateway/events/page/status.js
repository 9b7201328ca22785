// State of the connection, and expiry of the session.

import { byId, say } from "./dom.js";
import { left } from "./times.js";

const SOON_MS = 120_000;

export class Status {
  #state = { name: "off" };
  #expiresAt = 0;

  constructor() {
    setInterval(() => this.#show(), 1000);
  }

  set(state) {
    this.#state = state;
    this.#show();
  }

  /** Expiry of the session, milliseconds since the epoch; 0 for none. */
  expires(at) {
    this.#expiresAt = at;
    this.#show();
  }

  #show() {
    const { name, until, reason } = this.#state;
    document.documentElement.dataset.connection = name;
    const words = { off: "Signed out", connecting: "Connecting", live: "Live", waiting: "Connection lost", refused: "Refused" };
    say(byId("connection"), words[name]);
    const lost = name === "waiting" || name === "refused";
    byId("lost").hidden = !lost;
    say(byId("lost-reason"), reason || "The gateway is unavailable. Nothing is lost: events follow later.");
    say(byId("lost-wait"), name === "waiting" ? `Trying again in ${Math.max(0, Math.ceil((until - Date.now()) / 1000))} s` : "");
    const rest = this.#expiresAt - Date.now();
    byId("expiry").hidden = !this.#expiresAt || name === "off";
    byId("expiry").toggleAttribute("data-soon", rest < SOON_MS);
    say(byId("expiry-left"), rest > 0 ? left(rest) : "expired");
    byId("expires-soon").hidden = !(name === "live" && this.#expiresAt && rest < SOON_MS);
  }
}
