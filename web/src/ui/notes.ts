// Notes at pairs, saved in the state and so in the link.
import { type App, captureOf, pairOf, setPair } from "./app.ts";
import { headName } from "./cards.ts";
import { button, h } from "./dom.ts";

export class Notes {
  readonly element: HTMLElement;
  readonly input: HTMLInputElement;
  private readonly list = h("ul", {});
  private drawn = "";

  constructor(private readonly app: App) {
    this.input = h("input", {
      type: "text",
      placeholder: "note at this pair",
      "aria-label": "Note at the pair",
      onkeydown: (event: KeyboardEvent) => {
        if (event.key === "Enter") this.add();
      },
    });
    this.element = h(
      "section",
      { class: "notes", "aria-label": "Notes" },
      h("h3", {}, "Notes"),
      h(
        "div",
        { class: "controls" },
        this.input,
        button("Add note", () => this.add()),
      ),
      this.list,
    );
  }

  private add(): void {
    const { state } = this.app.store,
      pair = pairOf(this.app),
      text = this.input.value.trim();
    if (!text) return;
    if (!pair) {
      this.app.fail("A note needs a pair: click a cell first.");
      return;
    }
    this.app.store.set({
      notes: [...state.notes, { capture: state.capture, layer: state.layer, head: state.head, ...pair, text }],
    });
    this.input.value = "";
  }

  draw(): void {
    const { notes } = this.app.store.state,
      name = JSON.stringify(notes);
    if (name === this.drawn) return;
    this.drawn = name;
    this.list.replaceChildren(
      ...notes.map((note, n) =>
        h(
          "li",
          {},
          button(`${headName(note.layer, note.head)}, query ${note.query}, key ${note.key}`, () => this.show(n), {
            class: "link",
          }),
          h("span", {}, ` ${note.text} `),
          button("Remove", () => this.app.store.set({ notes: notes.filter((_, k) => k !== n) }), {
            "aria-label": `Remove note: ${note.text}`,
          }),
        ),
      ),
    );
  }

  private show(n: number): void {
    const { capture, layer, head, query, key } = this.app.store.state.notes[n];
    this.app.store.set({
      ...(this.app.captures.has(capture) ? { capture } : {}),
      layer,
      head,
      screen: "head",
      locked: { query, key },
    });
    if (captureOf(this.app)) setPair(this.app, { query, key }, true);
  }
}
