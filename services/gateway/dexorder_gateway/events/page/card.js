// One event in the list of live events.

import { icon, make } from "./dom.js";
import { timeElement } from "./times.js";

const ICONS = { ORDER: "order", ALERT: "alert", POSITION: "position", STRATEGY: "strategy", BACKTEST: "backtest",
                CONTAINER: "container", WORKSPACE: "chart", CHART: "chart", INDICATOR: "chart" };
const BAD = /REJECTED|LIQUIDATED|ERROR|EXPIRED/;
const GOOD = /FILLED|COMPLETED|READY|TRIGGERED|POSITION_OPENED/;

const FACT = /^([^:]{1,40}): (.+)$/;
const TIME_LINE = /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$/;
const PROFIT = /profit|pnl/i;
const MOST_FACTS = 8;

export const iconOf = (type) => ICONS[String(type).split("_")[0]] ?? "event";
export const toneOf = (type) => (BAD.test(type) ? "bad" : GOOD.test(type) ? "good" : "plain");

/** The card of an event; `onSeen()` is called by its button. */
export function cardOf(event, onSeen) {
  return make(
    "article",
    { class: "card", "data-priority": event.priority, "data-tone": toneOf(event.type), "data-key": event.key },
    make("div", { class: "badge" }, icon(iconOf(event.type))),
    make(
      "div",
      { class: "card-text" },
      make("h3", {}, event.title),
      ...bodyOf(event),
      make(
        "p",
        { class: "card-facts" },
        priorityTag(event.priority),
        timeElement(event.at),
        make("span", { title: "Container" }, event.container),
        event.settled ? make("span", {}, "reached you before") : null,
      ),
    ),
    event.sequence > 0 ? make("button", { type: "button", class: "seen-button", onclick: onSeen }, "Mark as seen") : null,
  );
}

/** Priority as a coloured word; nothing for NORMAL. */
export function priorityTag(priority) {
  if (priority === "NORMAL") return null;
  return make("span", { class: "tag", "data-priority": priority }, priority === "CRITICAL" ? "Critical" : "Info");
}

/** The button stays in place, so that keyboard users keep their focus. */
export function showSeen(card) {
  card.classList.add("seen");
  const button = card.querySelector(".seen-button");
  if (!button) return;
  button.setAttribute("aria-disabled", "true");
  button.replaceChildren(icon("check"), "Seen");
}

/** The body's lines: those of the form "Label: value" side by side, unless the title says the value; the rest as text. */
function bodyOf({ title, body }) {
  const said = new Set(title.split(/[\s:]+/));
  const lines = body.split("\n").filter((line) => line && !TIME_LINE.test(line)); // the card has its own time
  const facts = lines.map((line) => FACT.exec(line)).filter((fact) => fact && !said.has(fact[2]));
  const text = lines.filter((line) => !FACT.test(line)).join("\n");
  const more = facts.slice(MOST_FACTS);
  return [
    text ? make("p", { class: "card-body" }, text) : null,
    facts.length ? listOf(facts.slice(0, MOST_FACTS)) : null,
    more.length ? make("details", {}, make("summary", {}, `${more.length} more`), listOf(more)) : null,
  ];
}

function listOf(facts) {
  const pairs = facts.map(([, label, value]) => {
    const sign = PROFIT.test(label) ? (value.startsWith("-") ? "minus" : "plus") : null;
    return make("div", {}, make("dt", {}, label), make("dd", { "data-sign": sign }, value));
  });
  return make("dl", { class: "facts" }, ...pairs);
}
