// Records of this user's events with every attempt: a table in pages, newest first.

import { byId, icon, make, say } from "./dom.js";
import { channelWord, typeWord } from "./protocol.js";
import { iconOf, priorityTag, toneOf } from "./card.js";
import { duration, timeElement } from "./times.js";

const PAGE_SIZE = 20;
const SOON_MS = 700; // after an event, so that its outcome is known
const QUEUED_MS = 5_000; // while an event on the page is not final
const GOOD_OUTCOMES = new Set(["sent", "received"]);
const CALM_OUTCOMES = new Set(["no ack", "not active"]);

export class Log {
  #list;
  #seen;
  #tokens = [""]; // page tokens up to the current page
  #expanded = new Set();
  #timer = 0;

  /** `list(pageSize, pageToken)` queries the gateway; `seen(key, at)` is called for each record that was seen. */
  constructor(list, seen) {
    this.#list = list;
    this.#seen = seen;
    byId("log-newer").addEventListener("click", () => this.#turn(() => this.#tokens.length > 1 && this.#tokens.pop()));
    byId("log-older").addEventListener("click", (click) => {
      const { token } = click.currentTarget.dataset;
      this.#turn(() => token && this.#tokens.push(token));
    });
    byId("log-refresh").addEventListener("click", () => this.refresh());
  }

  /** Refresh soon; several calls cause one refresh. */
  soon(ms = SOON_MS) {
    this.#timer ||= setTimeout(() => this.refresh(), ms);
  }

  async refresh() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    const token = this.#tokens.at(-1);
    try {
      const page = await this.#list(PAGE_SIZE, token);
      if (token === this.#tokens.at(-1)) this.#show(page);
    } catch {
      // the connection is lost, which is shown; the next one refreshes
    }
  }

  clear() {
    this.#tokens = [""];
    this.#expanded.clear();
    this.#show({ records: [], nextPageToken: "" });
  }

  #turn(change) {
    if (change()) this.refresh();
  }

  #show({ records, nextPageToken }) {
    const focused = document.activeElement?.dataset?.row;
    byId("log-rows").replaceChildren(...records.map((record) => this.#rowsOf(record)));
    if (focused) byId("log-rows").querySelector(`[data-row="${CSS.escape(focused)}"]`)?.focus();
    byId("log-empty").hidden = records.length > 0;
    byId("log-older").dataset.token = nextPageToken;
    byId("log-older").setAttribute("aria-disabled", String(!nextPageToken));
    byId("log-newer").setAttribute("aria-disabled", String(this.#tokens.length === 1));
    say(byId("log-page"), `Page ${this.#tokens.length}`);
    for (const { key, seenAt } of records) if (seenAt) this.#seen(key, seenAt);
    if (records.some(({ status }) => status === "QUEUED")) this.soon(QUEUED_MS);
  }

  #rowsOf(record) {
    const attempts = make("tr", { class: "attempts" }, make("td", { colspan: "5" }, attemptsOf(record)));
    attempts.hidden = !this.#expanded.has(record.key);
    const button = make(
      "button",
      { type: "button", class: "row-button", "aria-expanded": String(!attempts.hidden), "data-row": record.key },
      icon("more"), make("span", { class: "sr-only" }, `Attempts of ${record.eventId}`),
    );
    button.addEventListener("click", () => {
      attempts.hidden = !attempts.hidden;
      button.setAttribute("aria-expanded", String(!attempts.hidden));
      if (attempts.hidden) this.#expanded.delete(record.key);
      else this.#expanded.add(record.key);
    });
    const rows = document.createDocumentFragment();
    rows.append(rowOf(record, button), attempts);
    return rows;
  }
}

function rowOf(record, button) {
  const took = record.completedAt ? duration(record.completedAt - record.acceptedAt) : "";
  return make(
    "tr",
    { class: "record", "data-status": record.status, "data-tone": toneOf(record.type) },
    make("td", { class: "when" }, timeElement(record.acceptedAt)),
    make("td", { class: "what" },
      make("span", { class: "what-line" }, icon(iconOf(record.type)), make("b", {}, typeWord(record.type)), priorityTag(record.priority)),
      make("span", { class: "faint what-about" }, aboutOf(record))),
    make("td", { class: "status" }, statusOf(record), make("span", { class: "faint took" }, took)),
    make("td", { class: "ways" }, waysOf(record)),
    make("td", { class: "open" }, button),
  );
}

/** Market or strategy, and the container. */
function aboutOf({ fields, container }) {
  const names = ["symbol", "strategy_name", "strategyName", "strategy_id", "strategyId", "workspace_id", "workspaceId"];
  const about = names.map((name) => fields?.[name]).find(Boolean);
  return typeof about === "string" ? `${about} · ${container}` : container;
}

function statusOf(record) {
  const word = { DELIVERED: record.via ? `Delivered · ${channelWord(record.via)}` : "Delivered", QUEUED: "Queued",
                 ACK_ERROR: "Failed" }[record.status];
  const text = make("span", { class: "state" }, word);
  if (!record.error) return text;
  return make("span", {}, text, make("span", { class: "error-text" }, record.error));
}

/** The channels in the order in which they were tried, each with its outcome. */
function waysOf({ attempts }) {
  if (attempts.length === 0) return make("span", { class: "faint" }, "no attempt");
  return make("ol", {}, ...attempts.map((attempt) => make(
    "li", { "data-outcome": toneOfOutcome(attempt) },
    make("b", {}, channelWord(attempt.channel)), ` ${attempt.outcome || "in progress"}`,
  )));
}

function toneOfOutcome({ outcome }) {
  if (!outcome) return "open";
  if (GOOD_OUTCOMES.has(outcome)) return "good";
  return CALM_OUTCOMES.has(outcome) ? "calm" : "bad";
}

function attemptsOf({ attempts, eventId, container, seenAt }) {
  const facts = make("p", { class: "card-facts" }, make("span", {}, "id ", make("code", {}, eventId)),
    make("span", {}, `from ${container}`), make("span", {}, "seen ", timeElement(seenAt)));
  const head = make("tr", {}, ...["#", "Channel", "Began", "Took", "Outcome", "Not before"].map(
    (word) => make("th", { scope: "col" }, word)));
  const rows = attempts.map((attempt) => make(
    "tr", { "data-outcome": toneOfOutcome(attempt) },
    make("td", {}, String(attempt.number)),
    make("td", {}, channelWord(attempt.channel)),
    make("td", {}, timeElement(attempt.startedAt)),
    make("td", {}, attempt.endedAt ? duration(attempt.endedAt - attempt.startedAt) : "–"),
    make("td", { class: "outcome" }, attempt.outcome || "in progress"),
    make("td", {}, timeElement(attempt.retryAt)),
  ));
  const table = attempts.length ? make("table", {}, make("caption", { class: "sr-only" }, "Attempts"),
    make("thead", {}, head), make("tbody", {}, ...rows)) : null;
  return make("div", {}, facts, table);
}
