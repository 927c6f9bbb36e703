// Asks before something is done. The answer that changes nothing has the focus.

import { h } from "./element.js";

let dialogs = 0;

// True where the user agrees. `body` is text or elements.
export function ask({ title, body, yes, isGrave = false }) {
  return new Promise((resolve) => {
    const id = `dialog${(dialogs += 1)}`;
    const no = h("button", { type: "button", onclick: () => box.close("no") }, "Cancel");
    const box = h("dialog", { "aria-labelledby": id },
      h("h2", { id }, title),
      h("div", { class: "body" }, body),
      h("div", { class: "bar end" }, no,
        h("button", { type: "button", class: isGrave ? "grave" : "main", onclick: () => box.close("yes") }, yes)));
    box.addEventListener("close", () => {
      box.remove();
      resolve(box.returnValue === "yes");
    });
    document.body.append(box);
    box.showModal();
    no.focus();
  });
}
