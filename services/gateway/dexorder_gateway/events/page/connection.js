// The WebSocket: authorization, reconnection with growing waits, detection of a silent peer.

import * as protocol from "./protocol.js";

const FIRST_WAIT_MS = 500;
const MAX_WAIT_MS = 30_000;
const STEADY_MS = 5_000; // a connection that lasted this long resets the waits
const ANSWER_MS = 10_000; // without an answer for this long the connection is dead, whatever the browser reports
const PROBE_MS = 20_000;
const NEEDS_TOKEN = new Set([4401, 4403]);

export class Connection {
  #hooks;
  #socket = null;
  #token = "";
  #newToken = ""; // sent in band, not yet confirmed
  #open = false;
  #failures = 0;
  #error = null; // last error of the gateway before it closed
  #lists = []; // callers of {"list"}; answers come in order
  #timers = {};

  /**
   * `hooks`: `cursor()` returns the position to resume from (null for none); `state({name, ...})` receives
   * "connecting", "live", "waiting" (with until, reason), "refused" (with reason) and "off"; `opened(opened, reset)`,
   * `event(event)`, `renewed(expiresAt)` and `notRenewed(reason)` receive the gateway's messages.
   */
  constructor(hooks) {
    this.#hooks = hooks;
    addEventListener("online", () => this.retry());
    document.addEventListener("visibilitychange", () => document.hidden || this.retry());
  }

  get token() {
    return this.#token;
  }

  start(token) {
    this.stop();
    this.#token = token;
    this.#failures = 0;
    this.#connect();
  }

  stop() {
    this.#drop("signed out");
    this.#token = "";
    this.#hooks.state({ name: "off" });
  }

  /** Reconnect now. */
  retry() {
    if (this.#timers.retry && this.#token) this.#connect();
  }

  /** Use a new token, in the open session or for a new one. */
  renew(token) {
    if (!this.#open) {
      this.start(token);
      return;
    }
    this.#newToken = token;
    this.#authorize(token);
  }

  /** Acknowledge an event; false if there is no connection. */
  ack({ epoch, sequence }, kind) {
    const cursor = { epoch, sequence: String(sequence) };
    return this.#open && this.#send({ ack: { cursor, kind: `ACK_KIND_${kind}` } });
  }

  /** Request a page of this user's records; rejected if the connection is lost. */
  list(pageSize, pageToken) {
    if (!this.#open) return Promise.reject(new Error("not connected"));
    this.#send({ list: { pageSize, pageToken } });
    this.#expectAnswer();
    return new Promise((resolve, reject) => this.#lists.push({ resolve, reject }));
  }

  #connect() {
    this.#clear("retry");
    this.#error = null;
    this.#hooks.state({ name: "connecting" });
    const url = new URL("v1/events", document.baseURI);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = (this.#socket = new WebSocket(url));
    socket.onopen = () => this.#authorize(this.#token);
    socket.onmessage = (message) => this.#take(JSON.parse(message.data));
    socket.onclose = (closed) => this.#lost(closed.code);
    this.#expectAnswer();
  }

  #take(message) {
    this.#clear("answer");
    if (message.error) this.#error = message.error;
    else if (message.opened || message.reset) this.#begin(protocol.opened(message.opened ?? message.reset), message);
    else if (message.event) this.#hooks.event(protocol.sessionEvent(message.event));
    else if (message.records) this.#lists.shift()?.resolve(protocol.records(message.records));
    if (this.#lists.length > 0) this.#expectAnswer();
  }

  #begin(opened, message) {
    if (this.#newToken) {
      this.#token = this.#newToken;
      this.#newToken = "";
      this.#hooks.renewed(opened.expiresAt);
      return;
    }
    this.#open = true;
    this.#timers.steady = setTimeout(() => (this.#failures = 0), STEADY_MS);
    this.#timers.probe = setInterval(() => this.list(1, "").catch(() => {}), PROBE_MS);
    this.#hooks.opened(opened, message.reset !== undefined);
    this.#hooks.state({ name: "live" });
  }

  #lost(code) {
    const newToken = this.#newToken;
    const reason = this.#error?.message ?? "";
    this.#drop("connection lost");
    if (newToken && NEEDS_TOKEN.has(code)) {
      this.#hooks.notRenewed(reason); // the previous token may still be valid; otherwise the next answer refuses it
    } else if (newToken) {
      this.#token = newToken; // not checked yet
    } else if (NEEDS_TOKEN.has(code)) {
      this.#token = "";
      this.#hooks.state({ name: "refused", reason });
      return;
    }
    const wait = Math.min(MAX_WAIT_MS, FIRST_WAIT_MS * 2 ** this.#failures++) * (0.5 + Math.random() / 2);
    this.#timers.retry = setTimeout(() => this.#connect(), wait);
    this.#hooks.state({ name: "waiting", until: Date.now() + wait, reason });
  }

  #drop(why) {
    for (const name of Object.keys(this.#timers)) this.#clear(name);
    if (this.#socket) {
      this.#socket.onopen = this.#socket.onmessage = this.#socket.onclose = null;
      this.#socket.close(); // a dead peer never answers; nothing waits for it
    }
    this.#socket = null;
    this.#open = false;
    this.#newToken = "";
    for (const asker of this.#lists.splice(0)) asker.reject(new Error(why));
  }

  #authorize(token) {
    this.#send({ authorize: { token, cursor: this.#hooks.cursor(), clientName: "web" } });
  }

  #send(message) {
    this.#socket.send(JSON.stringify(message));
    return true;
  }

  #expectAnswer() {
    this.#timers.answer ??= setTimeout(() => this.#lost(0), ANSWER_MS);
  }

  #clear(name) {
    clearTimeout(this.#timers[name]);
    delete this.#timers[name];
  }
}
