// Three sentences for a first visit. Closing them is remembered by the browser.

import { button, h } from "./dom.ts";

const NAME = "headscape-welcome";

/** What the browser remembers; a browser that keeps nothing explains itself every time. */
function seen(): boolean {
  try {
    return localStorage.getItem(NAME) !== null;
  } catch {
    return false;
  }
}

/** The note; `closed` is called when it gives its room back. */
export function welcome(closed: () => void): HTMLElement {
  const close = () => {
    element.hidden = true;
    closed();
    try {
      localStorage.setItem(NAME, "seen");
    } catch {
      // Nothing is kept in private windows.
    }
  };
  const element = h(
    "div",
    { class: "welcome", role: "note", "aria-label": "What this shows" },
    h(
      "p",
      {},
      "Every square is one attention head: a row is a token that looks (query), a column a token looked at (key), and the colour is how much. ",
      "Open a head and point at a pair to see content + position = score and its weight, or open Text to read what each token looks at. ",
      "Turn the dial Position to 0 to see the same head without position.",
    ),
    button("Got it", close),
  );
  element.hidden = seen();
  return element;
}
