// Light or dark theme: the system's until the button changes it.

import { byId } from "./dom.js";

const NAME = "dexorder-theme";
const root = document.documentElement;
const kept = localStorage.getItem(NAME);
if (kept) root.dataset.theme = kept;

byId("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem(NAME, root.dataset.theme);
});
