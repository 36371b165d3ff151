// SPDX-License-Identifier: Apache-2.0
// The page for callers without valid credentials.

import { html, useState } from "../vendor/htm-preact.js";
import { SERVER, basic, signIn, signOut } from "../api.js";

export function SignIn({ onEnter }) {
  const [kind, setKind] = useState("token");
  const [message, setMessage] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    const values = new FormData(event.target);
    const token = (values.get("token") ?? "").trim().replace(/^token:/, "");
    signIn(kind === "token" ? `Bearer ${token}` : basic(values.get("user"), values.get("password")));
    try {
      setMessage(null);
      await onEnter();
    } catch (error) {
      signOut();
      setMessage(error.status === 401 ? "These credentials are not accepted; the log says what is wrong with them." : error.message);
    }
  };
  return html`<main class="alone">
    <h1>penstock</h1>
    <p>This ${SERVER} asks who you are. What you type stays in this tab until you sign out or close it.</p>
    <form onSubmit=${submit}>
      <fieldset><legend>Sign in with</legend>
        ${[["token", "a token"], ["basic", "user and password"]].map(([value, label]) => html`<label class="choice" key=${value}>
          <input type="radio" name="kind" value=${value} checked=${kind === value} onChange=${() => setKind(value)} /> ${label}</label>`)}
      </fieldset>
      ${kind === "token"
        ? html`<label>Token<textarea name="token" rows="5" required spellcheck="false" autocomplete="off"></textarea></label>`
        : html`<label>User<input name="user" required autocomplete="username" /></label>
            <label>Password<input name="password" type="password" required autocomplete="current-password" /></label>`}
      ${message && html`<p class="notice bad" role="alert">${message}</p>`}
      <button type="submit">Sign in</button>
    </form>
  </main>`;
}
