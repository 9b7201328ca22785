// Elements made by hand: text only ever becomes a Text node, so nothing in an event can become markup.

export const byId = (id) => document.getElementById(id);

/** An element. `attributes` are strings (null leaves one out); names that begin with "on" are listeners. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** A symbol of index.html; decoration, hidden from screen readers. */
export function icon(name) {
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  picture.setAttribute("class", "icon");
  picture.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  picture.append(use);
  return picture;
}

/** Set a text if it differs, so that live regions announce only changes. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
