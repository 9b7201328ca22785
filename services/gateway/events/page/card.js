// One event in the list of live events.

import { icon, make } from "./dom.js";
import { timeElement } from "./times.js";
import { typeWord } from "./protocol.js";

const ICONS = { ORDER: "order", ALERT: "alert", POSITION: "position", STRATEGY: "strategy", BACKTEST: "backtest",
                CONTAINER: "container", WORKSPACE: "chart", CHART: "chart", INDICATOR: "chart" };
const BAD = /REJECTED|LIQUIDATED|ERROR|EXPIRED/;
const GOOD = /FILLED|COMPLETED|READY|TRIGGERED|POSITION_OPENED/;

export const iconOf = (type) => ICONS[String(type).split("_")[0]] ?? "event";
export const toneOf = (type) => (BAD.test(type) ? "bad" : GOOD.test(type) ? "good" : "plain");

/** The card of an event; `onSeen()` is called by its button. */
export function cardOf(event, onSeen) {
  const facts = event.fields && Object.keys(event.fields).length > 0 ? detailsOf(event.fields) : null;
  return make(
    "article",
    { class: "card", "data-priority": event.priority, "data-tone": toneOf(event.type), "data-key": event.key },
    make("div", { class: "badge" }, icon(iconOf(event.type))),
    make(
      "div",
      { class: "card-text" },
      make("h3", {}, event.title),
      event.body ? make("p", { class: "card-body" }, event.body) : null,
      make(
        "p",
        { class: "card-facts" },
        priorityTag(event.priority),
        timeElement(event.at),
        make("span", { title: "Container" }, event.container),
        make("span", { class: "faint" }, typeWord(event.type)),
        event.settled ? make("span", { class: "faint" }, "reached you before") : null,
      ),
      facts,
    ),
    event.sequence > 0 ? make("button", { type: "button", class: "seen-button", onclick: onSeen }, "Mark as seen") : null,
  );
}

/** Priority as a word with a colour; nothing for NORMAL, which needs no word. */
export function priorityTag(priority) {
  if (priority === "NORMAL") return null;
  return make("span", { class: "tag", "data-priority": priority }, priority === "CRITICAL" ? "Critical" : "Info");
}

/** The button stays where it is, so that whoever came to it by keyboard does not lose their place. */
export function showSeen(card) {
  card.classList.add("seen");
  const button = card.querySelector(".seen-button");
  if (!button) return;
  button.setAttribute("aria-disabled", "true");
  button.replaceChildren(icon("check"), "Seen");
}

function detailsOf(fields) {
  const details = make("details", {}, make("summary", {}, "All fields"));
  details.addEventListener("toggle", () => details.append(listOf(fields)), { once: true });
  return details;
}

function listOf(fields) {
  const list = make("dl", {});
  for (const [name, value] of Object.entries(fields)) {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    list.append(make("dt", {}, name), make("dd", {}, text));
  }
  return list;
}
