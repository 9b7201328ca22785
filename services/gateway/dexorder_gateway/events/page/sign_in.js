// Dialog for a token: the first one, one after an expiry, or a new one in an open session.

import { byId, say } from "./dom.js";

export class SignIn {
  #dialog = byId("sign-in");
  #must = false; // the page can't be used without a token

  /** `given(token)` receives the pasted token; `leave()` is called to sign out instead. */
  constructor(given, leave) {
    byId("sign-in-form").addEventListener("submit", (submit) => {
      submit.preventDefault();
      const token = byId("token").value.trim();
      if (!token) return;
      this.complain("");
      given(token);
    });
    byId("sign-in-cancel").addEventListener("click", () => this.close());
    byId("sign-in-leave").addEventListener("click", leave);
    this.#dialog.addEventListener("close", () => this.#must && this.#dialog.showModal()); // Escape must not close it
  }

  ask({ must, leave = false, title, text, problem = "" }) {
    this.#must = must;
    say(byId("sign-in-title"), title);
    say(byId("sign-in-text"), text);
    byId("sign-in-cancel").hidden = must;
    byId("sign-in-leave").hidden = !leave;
    this.complain(problem);
    if (!this.#dialog.open) this.#dialog.showModal();
    byId("token").focus();
  }

  /** Show why a token was not accepted. */
  complain(problem) {
    say(byId("sign-in-problem"), problem);
    byId("sign-in-problem").hidden = !problem;
    byId("token").setAttribute("aria-invalid", String(problem !== ""));
  }

  close() {
    this.#must = false;
    byId("token").value = "";
    if (this.#dialog.open) this.#dialog.close();
  }
}
