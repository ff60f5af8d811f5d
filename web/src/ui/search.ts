// Token search: matches are marked on the strips; next and previous move the pair's key or query to them.
import { type App, captureOf, matchesOf, pairOf, setPair } from "./app.ts";
import { button, choice, h, say } from "./dom.ts";

export class Search {
  readonly element: HTMLElement;
  readonly input: HTMLInputElement;
  private readonly count = h("p", { class: "small", role: "status" });
  private axis: "query" | "key" = "query";

  constructor(private readonly app: App) {
    this.input = h("input", {
      type: "search",
      placeholder: "token text",
      "aria-label": "Search tokens",
      oninput: () => app.store.set({ search: this.input.value }),
      onkeydown: (event: KeyboardEvent) => {
        if (event.key === "Enter") this.go(event.shiftKey ? -1 : 1);
      },
    });
    const axis = choice<"query" | "key">(
      "moves the",
      [
        ["query", "query"],
        ["key", "key"],
      ],
      (value) => {
        this.axis = value;
      },
    );
    this.element = h(
      "section",
      { class: "search", "aria-label": "Token search" },
      h("h3", {}, "Find a token"),
      h(
        "div",
        { class: "controls" },
        this.input,
        button("Previous", () => this.go(-1)),
        button("Next", () => this.go(1)),
        axis.element,
      ),
      this.count,
    );
  }

  go(by: 1 | -1): void {
    const found = [...matchesOf(this.app)],
      pair = pairOf(this.app) ?? { query: -1, key: 0 };
    if (!found.length) return;
    const here = pair[this.axis],
      next =
        by > 0
          ? (found.find((at) => at > here) ?? found[0])
          : (found.findLast((at) => at < here) ?? found[found.length - 1]);
    const moved = { query: Math.max(0, pair.query), key: pair.key, [this.axis]: next };
    if (captureOf(this.app)?.header.causal && moved.key > moved.query)
      moved[this.axis === "query" ? "key" : "query"] = next;
    setPair(this.app, moved, true);
  }

  draw(): void {
    const { search } = this.app.store.state;
    this.element.hidden = captureOf(this.app)?.unit === "frame";
    if (document.activeElement !== this.input && this.input.value !== search) this.input.value = search;
    const count = matchesOf(this.app).size;
    say(this.count, search ? `${count} ${count === 1 ? "token contains" : "tokens contain"} “${search}”.` : "");
  }
}
