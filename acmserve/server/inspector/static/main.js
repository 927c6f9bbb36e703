// The page: which view is shown (the part of the address behind `#`), and with which key.

import { ApiError, credentials, setCredentials } from "./parts/api.js";
import { fill, h } from "./parts/element.js";
import { showMaps } from "./views/maps.js";
import { showSession } from "./views/session.js";
import { showSessions } from "./views/sessions.js";

const view = document.getElementById("view");
const live = document.getElementById("live");
let leaving = new AbortController();

function say(text, isGood) {
  live.textContent = text;
  live.className = isGood ? "live good" : "live";
}

async function show() {
  leaving.abort();
  const mine = (leaving = new AbortController());
  const [, room, id] = location.hash.split("/");
  say("connecting", false);
  fill(view, h("p", { class: "quiet" }, "Loading."));
  try {
    if (room === "s" && id) {
      document.title = `${decodeURIComponent(id)} · acmserve inspector`;
      await showSession(view, decodeURIComponent(id), mine.signal, say);
    } else if (room === "maps") {
      document.title = "Maps · acmserve inspector";
      await showMaps(view, id ? decodeURIComponent(id) : null, mine.signal, say);
    } else {
      document.title = "Sessions · acmserve inspector";
      await showSessions(view, mine.signal, say);
    }
  } catch (error) {
    if (mine.signal.aborted) return;
    say("not connected", false);
    if (error instanceof ApiError && error.status === 401) askForKey("The server asks for an API key.");
    else fill(view, h("h1", {}, "That did not work"), h("p", { role: "alert" }, error.message),
      h("p", {}, h("a", { href: "#/" }, "All sessions")));
  }
}

function askForKey(why) {
  const { key, salt } = credentials();
  const keyField = h("input", { id: "keyField", type: "password", autocomplete: "off", value: key });
  const saltField = h("input", { id: "saltField", type: "text", autocomplete: "off", value: salt });
  fill(view,
    h("h1", {}, "API key"),
    h("p", {}, why),
    h("form", {
      class: "stack",
      onsubmit: (event) => {
        event.preventDefault();
        setCredentials({ key: keyField.value.trim(), salt: saltField.value.trim() });
        show();
      },
    },
    h("label", { for: "keyField" }, "Key, as a client sends it behind “Bearer”"), keyField,
    h("label", { for: "saltField" }, "Cache salt (only where your clients send one)"), saltField,
    h("button", { type: "submit", class: "main" }, "Use")),
    h("p", { class: "quiet" }, "It stays in this tab until you close it, and goes to this server only."));
  keyField.focus();
}

document.getElementById("key").addEventListener("click", () => {
  leaving.abort();
  askForKey("Sessions belong to the key that made them. You see those of this key.");
});
addEventListener("hashchange", () => {
  if (!location.hash.startsWith("#/") && location.hash) return;
  show();
  view.focus();
});
show();
