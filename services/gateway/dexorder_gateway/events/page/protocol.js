// The gateway's messages as plain objects. Protobuf's JSON omits zeros and empty values and writes 64-bit numbers as text.

import { CHANNEL_WORDS } from "./channels.js"; // the gateway writes it from its channels

const PRIORITIES = ["INFORMATIONAL", "NORMAL", "CRITICAL"];
const CHANNELS = Object.keys(CHANNEL_WORDS); // in the order of their numbers
const STATUSES = ["DELIVERED", "QUEUED", "ACK_ERROR"];

/** Name of an enum value, given as a name, a number or omitted (the first one). */
function named(names, value, unknown) {
  if (value === undefined || value === null) return names[0];
  if (names.includes(value)) return value;
  return names[value] ?? unknown(value);
}

const priority = (value) => named(PRIORITIES, value, () => "CRITICAL"); // as the gateway treats an unknown one
const channel = (value) => named(CHANNELS, value, (other) => `channel ${other}`);

export const channelWord = (name) => CHANNEL_WORDS[name] ?? name;

/** "ORDER_FILLED" as "Order filled"; an unknown type is a number. */
export function typeWord(type) {
  if (typeof type === "number") return `Event ${type}`;
  const words = type.replaceAll("_", " ").toLowerCase();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** Fields of a payload, given as base64; null if it is not a JSON object. */
function fields(payload) {
  try {
    const bytes = Uint8Array.from(atob(payload ?? ""), (char) => char.charCodeAt(0));
    const value = JSON.parse(new TextDecoder().decode(bytes));
    return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

function userEvent(json = {}) {
  return {
    eventId: json.eventId ?? "",
    type: json.eventType ?? "ORDER_PLACED",
    at: Number(json.timestamp ?? 0),
    priority: priority(json.delivery?.priority),
    fields: fields(json.payload),
  };
}

/** A SessionEvent. `sequence` is 0 for an event that is not stored and takes no ack. */
export function sessionEvent(json) {
  const event = userEvent(json.event);
  const container = json.container ?? "";
  return {
    ...event, container, key: keyOf(container, event.eventId), sequence: Number(json.sequence ?? 0),
    title: json.title || typeWord(event.type), body: json.body ?? "", settled: json.settled === true,
  };
}

const keyOf = (container, eventId) => JSON.stringify([container, eventId]);

/** Opened: cursor of the session, and its expiry in milliseconds since the epoch. */
export function opened({ cursor, expiresMs }) {
  const place = { epoch: cursor?.epoch ?? "", sequence: Number(cursor?.sequence ?? 0) };
  return { cursor: place, expiresAt: Number(expiresMs ?? 0) };
}

/** ListEventsResponse. `via` is null unless the event was delivered. */
export function records(json) {
  return { records: (json.records ?? []).map(record), nextPageToken: json.nextPageToken ?? "" };
}

function record(json) {
  const event = userEvent(json.event);
  const container = json.container ?? "";
  const status = named(STATUSES, json.status, () => "ACK_ERROR");
  return {
    ...event, container, status, key: keyOf(container, event.eventId),
    via: status === "DELIVERED" && json.deliveredVia !== undefined ? channel(json.deliveredVia) : null,
    error: json.errorMessage ?? "", acceptedAt: Number(json.acceptedMs ?? 0),
    completedAt: Number(json.completedMs ?? 0), seenAt: Number(json.seenMs ?? 0),
    attempts: (json.attempts ?? []).map(attempt),
  };
}

function attempt(json) {
  return {
    number: json.number ?? 0, channel: channel(json.channel), startedAt: Number(json.startedMs ?? 0),
    endedAt: Number(json.endedMs ?? 0), outcome: json.outcome ?? "", retryAt: Number(json.retryMs ?? 0),
  };
}

/** User and expiry that a token claims; for display only, as the gateway alone verifies it. */
export function claims(token) {
  const [, middle = ""] = token.split(".");
  const found = fields(middle.replaceAll("-", "+").replaceAll("_", "/")) ?? {};
  return { user: typeof found.sub === "string" ? found.sub : "", expiresAt: Number(found.exp ?? 0) * 1000 };
}
