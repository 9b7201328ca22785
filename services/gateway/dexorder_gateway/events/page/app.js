// Connections between the parts of the page.

import { Connection } from "./connection.js";
import { byId, say } from "./dom.js";
import { Feed } from "./feed.js";
import { Log } from "./log.js";
import { claims } from "./protocol.js";
import { SignIn } from "./sign_in.js";
import { Status } from "./status.js";
import { Store } from "./store.js";
import "./theme.js";

const PASTE = "Paste the token that you were given. It stays in this tab.";

let user = "";
let cursor = null; // last position received
let pasted = false; // the gateway has not answered to a new token yet

const status = new Status();
const feed = new Feed((event) => {
  store.save();
  log.soon();
  if (event.epoch !== cursor?.epoch) return true; // the log was replaced, so it can't be acknowledged
  return connection.ack(event, "SEEN");
});
const connection = new Connection({ cursor: () => cursor, state, opened, event: received, renewed: welcome, notRenewed });
const log = new Log((size, token) => connection.list(size, token), (key, at) => feed.seenElsewhere(key, at));
const signIn = new SignIn(given, signOut);
const store = new Store(() =>
  connection.token || user ? { token: connection.token, user, cursor, events: feed.kept() } : null);

function given(token) {
  const other = claims(token).user;
  if (user && other && other !== user) {
    signIn.complain(`This token is for ${other}. Sign out first: this page shows the events of ${user}.`);
    return;
  }
  wait(true);
  connection.renew(token);
}

function wait(now) {
  pasted = now;
  byId("sign-in-submit").setAttribute("aria-busy", String(now));
}

function opened({ cursor: place, expiresAt }, reset) {
  if (reset) feed.reset();
  cursor = place;
  user = claims(connection.token).user || user;
  welcome(expiresAt);
  feed.retell();
  log.refresh();
}

function welcome(expiresAt) {
  say(byId("user"), user || "signed in");
  byId("session").hidden = false;
  status.expires(expiresAt);
  if (pasted) signIn.close(); // but not while a token is being pasted and the session resumed by itself
  wait(false);
  store.save();
}

function notRenewed(reason) {
  wait(false);
  signIn.ask({ must: false, title: "The token was not accepted", text: PASTE, problem: reason });
}

/** RECEIVED is sent before drawing, because the gateway waits for it before it tries the next channel. */
function received(shown) {
  const event = { ...shown, epoch: cursor.epoch };
  if (event.sequence > 0) {
    cursor = { epoch: cursor.epoch, sequence: Math.max(cursor.sequence, event.sequence) };
    if (!event.settled) connection.ack(event, "RECEIVED");
  }
  if (feed.add(event)) announce(event);
  store.save();
  log.soon();
}

/** For screen readers: CRITICAL interrupts, other events wait. */
function announce(event) {
  byId(event.priority === "CRITICAL" ? "speak-now" : "speak").textContent = event.title;
}

function state(now) {
  status.set(now);
  if (now.name !== "refused") return;
  wait(false);
  const title = user ? "Your session has ended" : "Sign in";
  const text = user ? `${PASTE} Events since then will follow.` : PASTE;
  signIn.ask({ must: true, leave: user !== "", title, text, problem: now.reason || "The gateway refused this token." });
  store.save();
}

function signOut() {
  connection.stop();
  user = "";
  cursor = null;
  feed.clear();
  log.clear();
  status.expires(0);
  byId("session").hidden = true;
  store.save();
  signIn.ask({ must: true, title: "Sign in", text: PASTE });
}

function begin() {
  const kept = store.load();
  ({ user, cursor } = kept ?? { user: "", cursor: null });
  for (const { event, ...rest } of kept?.events ?? []) feed.add(event, rest);
  if (kept?.token) connection.start(kept.token);
  else signIn.ask({ must: true, leave: user !== "", title: "Sign in", text: PASTE });
}

byId("sign-out").addEventListener("click", signOut);
byId("try-now").addEventListener("click", () => connection.retry());
for (const id of ["renew", "renew-soon"]) {
  byId(id).addEventListener("click", () =>
    signIn.ask({ must: false, title: "Continue with a new token", text: `${PASTE} The session stays open.` }));
}
for (const choice of document.querySelectorAll("[name=view]")) {
  choice.addEventListener("change", () => (document.body.dataset.view = choice.value));
}
begin();
