// The screen of one head: its maps, and beside them values, plots, measures, search, notes and exports.

import { sourceName } from "../core/source.ts";
import { wholeTile } from "../engine/whole.ts";
import { type App, captureOf, panelsOf, sharing, signs } from "./app.ts";
import { button, h } from "./dom.ts";
import type { Wanted } from "./draw.ts";
import { Equation } from "./equation.ts";
import { Export } from "./export.ts";
import { Linked } from "./linked.ts";
import { MapPanel } from "./map.ts";
import { measureTable } from "./measuretable.ts";
import { Notes } from "./notes.ts";
import { Readout } from "./readout.ts";
import { Search } from "./search.ts";
import { Typing } from "./typing.ts";

/** A button that scrolls to a part of the panel and puts the focus on its first control. */
function jump(label: string, part: HTMLElement): HTMLElement {
  return button(label, () => {
    part.scrollIntoView({ block: "start" });
    part.querySelector<HTMLElement>("input, button, select, textarea")?.focus();
  });
}

export class HeadScreen {
  readonly element: HTMLElement;
  panels: MapPanel[] = [];
  readonly search: Search;
  readonly notes: Notes;
  readonly export: Export;
  private readonly maps = h("div", { class: "maps" });
  private readonly equation: Equation;
  private readonly readout: Readout;
  private readonly linked: Linked;
  private readonly typing: Typing;
  private readonly measures = h("section", { "aria-label": "Measures of this head" });
  private measured = "";

  constructor(
    private readonly app: App,
    follow: (id: string) => Promise<void>,
  ) {
    this.equation = new Equation(app);
    this.readout = new Readout(app);
    this.linked = new Linked(app);
    this.search = new Search(app);
    this.notes = new Notes(app);
    this.export = new Export(app, () => this.panels);
    this.typing = new Typing(app, follow);
    const beside = h(
      "div",
      { class: "beside" },
      this.readout.element,
      h(
        "nav",
        { class: "jumps", "aria-label": "Parts of this panel" },
        jump("Search", this.search.element),
        jump("Notes", this.notes.element),
        jump("Export", this.export.element),
      ),
      this.linked.element,
      this.measures,
      this.search.element,
      this.notes.element,
      this.export.element,
      this.typing.element,
    );
    this.element = h(
      "section",
      { class: "headscreen", "aria-label": "One head" },
      h("h2", { class: "unseen" }, "One head"),
      h("div", { class: "left" }, this.equation.element, this.maps),
      beside,
    );
  }

  /** Lay the panels out and read their sizes; returns the tiles they need. */
  prepare(): Wanted[] {
    const { app } = this,
      shown = panelsOf(app);
    while (this.panels.length < shown.length) this.panels.push(new MapPanel(app));
    this.panels.length = shown.length;
    // Panels stay in the document while others come and go, so that the focus stays too.
    while (this.maps.children.length > shown.length) this.maps.lastElementChild!.remove();
    for (const panel of this.panels) if (!panel.element.isConnected) this.maps.append(panel.element);
    this.element.dataset.count = this.maps.dataset.count = String(shown.length);
    const top = this.maps.getBoundingClientRect().top - app.root.getBoundingClientRect().top;
    this.maps.style.setProperty("--room", `${Math.round(innerHeight - top)}px`);
    this.panels.forEach((panel, n) => {
      panel.sign = signs(shown)[n];
      panel.measure(shown[n]);
    });
    const names = new Set<string>(),
      wholes: Wanted[] = [];
    for (const { source, across } of shown)
      for (const each of [source, across].flatMap((of) => (of ? sharing(app, of) : []))) {
        if (names.has(sourceName(each))) continue;
        names.add(sourceName(each));
        const tile = wholeTile(each, each.head === source.head && each.layer === source.layer ? -1 : 10);
        if (tile) wholes.push(tile);
      }
    return [...wholes, ...this.panels.flatMap((panel) => panel.wanted())];
  }

  /** The measures that the capture brings, of the head shown. */
  private drawMeasures(): void {
    const capture = captureOf(this.app),
      { layer, head } = this.app.store.state,
      name = `${capture?.id}|${layer}|${head}`;
    this.measures.hidden = !capture?.header.measures?.length;
    if (!capture || name === this.measured) return;
    this.measured = name;
    const { measures = [], layers, heads } = capture.header;
    const table = measureTable(measures, layers.indexOf(layer), heads.indexOf(head));
    this.measures.replaceChildren(h("h3", {}, "Measures"), table);
  }

  draw(): void {
    this.equation.draw();
    for (const panel of this.panels) panel.draw();
    this.readout.draw();
    this.linked.draw();
    this.drawMeasures();
    this.search.draw();
    this.notes.draw();
    this.export.draw();
    this.typing.draw();
  }
}
