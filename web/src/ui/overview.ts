// All layers and heads as thumbnails: one measure each, sorted, filtered or grouped by likeness.

import type { Capture } from "../core/capture.ts";
import { groups } from "../core/cluster.ts";
import { signature } from "../core/colour.ts";
import { describe, pooled, type Source, sourceName, type Whole } from "../core/source.ts";
import { defaultMeasure, type Measure, measuresOf } from "../engine/measures.ts";
import { wholeMap, wholeTile } from "../engine/whole.ts";
import { type App, captureOf, scaleFor } from "./app.ts";
import { type Card, makeCard, paintWhole, section } from "./cards.ts";
import { button, type Choice, choice, h, say } from "./dom.ts";
import type { Wanted } from "./draw.ts";

type Order = "model" | "rising" | "falling" | "similar";

export class Overview {
  readonly element: HTMLElement;
  private readonly grid = h("div", { class: "grid" });
  private readonly count = h("p", { class: "small", role: "status" });
  private readonly measure: Choice<string>;
  private readonly order: Choice<Order>;
  private readonly limits: HTMLInputElement[];
  private cards = new Map<string, Card>();
  private built = "";
  private arranged = "";
  private grouped: { name: string; groups: number[][] } = { name: "", groups: [] };

  constructor(private readonly app: App) {
    this.measure = choice<string>("Measure", [], (measure) =>
      app.store.overview({ measure, least: null, greatest: null }),
    );
    this.order = choice<Order>(
      "Order",
      [
        ["model", "by layer and head"],
        ["rising", "measure, rising"],
        ["falling", "measure, falling"],
        ["similar", "similar heads together"],
      ],
      (order) => app.store.overview({ order }),
    );
    const limit = (which: "least" | "greatest") =>
      h("input", {
        type: "number",
        step: "any",
        "aria-label": which === "least" ? "Least measure shown" : "Greatest measure shown",
        onchange: (event: Event) =>
          app.store.overview({
            [which]:
              (event.target as HTMLInputElement).value === "" ? null : Number((event.target as HTMLInputElement).value),
          }),
      });
    this.limits = [limit("least"), limit("greatest")];
    const controls = h(
      "div",
      { class: "controls" },
      this.measure.element,
      this.order.element,
      h(
        "div",
        { class: "field" },
        h("span", {}, "Filter: measure from"),
        this.limits[0],
        h("span", {}, "to"),
        this.limits[1],
      ),
      button("Clear filter", () => app.store.overview({ least: null, greatest: null })),
    );
    this.element = h(
      "section",
      { class: "overview", "aria-label": "Overview of layers and heads" },
      h("h2", { class: "unseen" }, "All heads"),
      controls,
      this.count,
      this.grid,
    );
  }

  private source(capture: Capture, layer: number, head: number): Source {
    const { quantity, minus } = this.app.store.state;
    return { capture, layer, head, quantity, minus, less: null };
  }

  /** Tiles that the thumbnails need; layers in order, so that the top of the page comes first. */
  wanted(): Wanted[] {
    const capture = captureOf(this.app);
    if (!capture) return [];
    return [...this.cards.values()].flatMap(
      ({ layer, head }, n) => wholeTile(this.source(capture, layer, head), 1 + n / 1000) ?? [],
    );
  }

  private build(capture: Capture): void {
    const { layers, heads } = capture.header,
      name = `${capture.id}|${layers}|${heads}`;
    if (name === this.built) return;
    this.built = name;
    this.arranged = "";
    this.cards = new Map(
      layers.flatMap((layer) =>
        heads.map((head): [string, Card] => [
          `${layer}.${head}`,
          makeCard(layer, head, capture.place(layer), () => this.open(layer, head)),
        ]),
      ),
    );
  }

  private open(layer: number, head: number): void {
    this.app.store.set({ screen: "head", layer, head });
  }

  draw(): void {
    const { app } = this,
      capture = captureOf(app);
    if (!capture) return;
    this.build(capture);
    const { state } = app.store,
      list = measuresOf(capture),
      chosen = list.find(({ name }) => name === (state.overview.measure || defaultMeasure(capture))) ?? list[0];
    this.measure.options(list.map(({ name, title }) => [name, title]));
    this.measure.show(chosen.name);
    this.order.show(state.overview.order);
    this.limits.forEach((input, n) => {
      const value = state.overview[n ? "greatest" : "least"];
      if (document.activeElement !== input) input.value = value === null ? "" : String(value);
    });
    const wholes = new Map<Card, Whole | null>(),
      numbers = new Map<Card, number | null>();
    for (const card of this.cards.values()) {
      const source = this.source(capture, card.layer, card.head),
        whole = wholeMap(app.tiles, source);
      wholes.set(card, whole);
      numbers.set(card, chosen.of(app.profiles, source, whole));
      this.paint(card, source, whole, numbers.get(card)!, chosen);
    }
    this.arrange(capture, wholes, numbers);
  }

  private paint(card: Card, source: Source, whole: Whole | null, value: number | null, measure: Measure): void {
    const text = value === null ? "…" : measure.shown(value);
    say(card.value, text);
    say(card.spoken, ` ${measure.title}. Open.`);
    const scale = scaleFor(this.app, source);
    if (!whole || !scale) return;
    const what = pooled(source, this.app.store.state.pooling),
      name = `${sourceName(source)}|${what}|${signature(scale)}|${whole.complete}`;
    if (name === card.painted && whole.complete) return;
    card.painted = name;
    paintWhole(card.canvas, whole, what, scale);
    card.element.dataset.complete = String(whole.complete);
  }

  private arrange(capture: Capture, wholes: Map<Card, Whole | null>, numbers: Map<Card, number | null>): void {
    const { overview, quantity, minus } = this.app.store.state,
      { least, greatest } = overview;
    const shown = [...this.cards.values()].filter((card) => {
      const value = numbers.get(card);
      return (
        value === null ||
        value === undefined ||
        ((least === null || value >= least) && (greatest === null || value <= greatest))
      );
    });
    const sections = this.sections(capture, overview.order, shown, wholes, numbers);
    const name = JSON.stringify([
      this.built,
      overview.order,
      sections.map(([title, cards]) => [title, cards.map((card) => `${card.layer}.${card.head}`)]),
    ]);
    say(
      this.count,
      `${describe(quantity, minus)} of ${shown.length} of ${this.cards.size} heads. Click a head to open it.`,
    );
    if (name === this.arranged) return;
    this.arranged = name;
    const focused = document.activeElement;
    this.grid.replaceChildren(...sections.map(([title, cards]) => section(title, cards)));
    if (focused instanceof HTMLElement && this.grid.contains(focused)) focused.focus();
  }

  private sections(
    capture: Capture,
    order: Order,
    shown: Card[],
    wholes: Map<Card, Whole | null>,
    numbers: Map<Card, number | null>,
  ): [string, Card[]][] {
    if (order === "model")
      return capture.header.layers
        .map(
          (layer) =>
            [capture.place(layer).replace("layer", "Layer"), shown.filter((card) => card.layer === layer)] as [
              string,
              Card[],
            ],
        )
        .filter(([, cards]) => cards.length);
    if (order === "similar") {
      const ready = shown.filter((card) => wholes.get(card)?.complete);
      if (ready.length < shown.length) return [["Computing maps to compare …", shown]];
      const name = ready.map((card) => `${sourceName(this.source(capture, card.layer, card.head))}`).join();
      if (this.grouped.name !== name)
        this.grouped = { name, groups: groups(ready.map((card) => wholes.get(card)!.mean)) };
      return this.grouped.groups.map((members, n) => [
        `Group ${n + 1}: ${members.length} ${members.length === 1 ? "head" : "heads"}`,
        members.map((member) => ready[member]),
      ]);
    }
    const side = order === "rising" ? 1 : -1,
      key = (card: Card) => numbers.get(card) ?? NaN;
    return [
      [
        `By measure, ${order}`,
        shown.toSorted((a, b) => (Number.isNaN(key(a)) ? 1 : Number.isNaN(key(b)) ? -1 : side * (key(a) - key(b)))),
      ],
    ];
  }
}
