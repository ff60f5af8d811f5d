// All layers and heads on one screen: their maps, one measure as a heat map, two as a scatter, or a ranking.

import type { Capture } from "../core/capture.ts";
import { groups } from "../core/cluster.ts";
import { diverges, inkOn, paint, rangeOf, type Scale, sameLimits, signature } from "../core/colour.ts";
import { fit } from "../core/layout.ts";
import { describe, pooled, type Source, sourceName, type Whole, WORDS } from "../core/source.ts";
import type { State } from "../core/state.ts";
import { brief, number } from "../core/text.ts";
import { defaultMeasure, type Measure, offeredMeasures } from "../engine/measures.ts";
import { wholeMap, wholeTile } from "../engine/whole.ts";
import { posterScene } from "../export/poster.ts";
import { save, toPng, toSvg } from "../export/scene.ts";
import { type App, captureOf, positionFor, scaleFor } from "./app.ts";
import { type Card, headName, label, makeCard, paintWhole } from "./cards.ts";
import { button, type Choice, choice, h, say } from "./dom.ts";
import { type Wanted, wholeImage } from "./draw.ts";
import { barTitle, Legend, UNITS } from "./legend.ts";
import { Ranking } from "./ranking.ts";
import { Scatter } from "./scatter.ts";
import { type Row, Sheet } from "./sheet.ts";

type Settings = State["overview"];
type View = Exclude<Settings["view"], "auto">;
type Colour = State["colour"];

/** Pixels that heads have at least, and that stand above them at most in a window. */
const LEAST_HEIGHT = 320,
  CONTROLS = 280;

/** What is known of a head in this frame. */
interface Known {
  card: Card;
  source: Source;
  whole: Whole | null;
  /** The chosen measure; null while it is computed, NaN where it does not apply. */
  value: number | null;
  against: number | null;
}

export class Overview {
  readonly element: HTMLElement;
  readonly settings: HTMLElement;
  private readonly count = h("p", { class: "small count" });
  /** The same for screen readers, once all heads are there. */
  private readonly spoken = h("p", { class: "unseen", role: "status" });
  private readonly meaning = h("p", { class: "small meaning" });
  private readonly pointed = h("p", { class: "small pointed", "aria-hidden": "true" });
  private readonly preview = h("canvas", { class: "preview", "aria-hidden": "true", hidden: true });
  private readonly legend = new Legend();
  private readonly sheet = new Sheet((card) => this.point(card));
  private under: Card | null = null;
  private readonly scatter = new Scatter((layer, head) => this.open(layer, head));
  private readonly ranking = new Ranking((layer, head) => this.open(layer, head));
  private readonly view: Choice<View>;
  private readonly measure: Choice<string>;
  private readonly against: Choice<string>;
  private readonly order: Choice<Settings["order"]>;
  private readonly scope: Choice<Colour["scope"]>;
  private readonly spacing: Choice<Colour["scale"]>;
  private readonly limits: HTMLInputElement[];
  private readonly posters: HTMLElement;
  private readonly paper: Choice<"page" | "light" | "dark">;
  private readonly body: HTMLElement;
  private cards = new Map<string, Card>();
  private known: Known[] = [];
  private colours: { scale: Scale | null; own: boolean; title: string } = { scale: null, own: false, title: "" };
  private chosen: Measure | null = null;
  private built = "";
  private grouped: { name: string; groups: number[][] } = { name: "", groups: [] };

  constructor(private readonly app: App) {
    const { store } = app;
    this.view = choice<View>(
      "Show",
      [
        ["maps", "maps"],
        ["measure", "heat map"],
        ["scatter", "scatter"],
        ["ranking", "ranking"],
      ],
      (view) => store.overview({ view }),
    );
    this.measure = choice<string>("Measure", [], (measure) => store.overview({ measure, least: null, greatest: null }));
    this.against = choice<string>("against", [], (against) => store.overview({ against }));
    this.order = choice<Settings["order"]>(
      "Order",
      [
        ["model", "by layer and head"],
        ["rising", "measure, rising"],
        ["falling", "measure, falling"],
        ["similar", "similar heads together"],
      ],
      (order) => store.overview({ order, view: this.viewFor(this.other()) }),
    );
    this.scope = choice<Colour["scope"]>(
      "Limits",
      [
        ["head", "each head's own"],
        ["shared", "shared by all heads"],
      ],
      (scope) => store.colour({ scope }),
    );
    this.spacing = choice<Colour["scale"]>(
      "Scale",
      [
        ["auto", "automatic"],
        ["linear", "linear"],
        ["log", "log"],
        ["symlog", "symlog"],
      ],
      (scale) => store.colour({ scale }),
    );
    const limit = (which: "least" | "greatest") =>
      h("input", {
        type: "number",
        step: "any",
        "aria-label": which === "least" ? "Least measure shown" : "Greatest measure shown",
        onchange: (event: Event) => {
          const { value } = event.target as HTMLInputElement;
          store.overview({ [which]: value === "" ? null : Number(value) });
        },
      });
    this.limits = [limit("least"), limit("greatest")];
    const filter = h(
      "div",
      { class: "field filter" },
      h("span", {}, "Filter: measure from"),
      this.limits[0],
      h("span", {}, "to"),
      this.limits[1],
      button("Clear filter", () => store.overview({ least: null, greatest: null })),
    );
    this.paper = choice<"page" | "light" | "dark">(
      "on",
      [
        ["page", "this theme"],
        ["light", "light"],
        ["dark", "dark"],
      ],
      () => {},
    );
    this.posters = h(
      "div",
      { class: "controls poster", role: "group", "aria-label": "Poster of every head" },
      h("span", {}, "Poster"),
      button("PNG", () => void this.poster("png")),
      button("SVG", () => void this.poster("svg")),
      this.paper.element,
    );
    this.settings = h(
      "div",
      { class: "controls heads-settings", role: "group", "aria-label": "Heads" },
      this.view.element,
      this.measure.element,
      this.against.element,
      this.order.element,
      filter,
      this.scope.element,
      this.spacing.element,
      this.posters,
    );
    this.body = h("div", { class: "body" }, this.sheet.element, this.preview);
    this.element = h(
      "section",
      { class: "overview", "aria-label": "Overview of layers and heads" },
      h("h2", { class: "unseen" }, "All heads"),
      h(
        "div",
        { class: "said" },
        this.legend.element,
        h("div", { class: "words" }, this.meaning, this.count, this.pointed),
        this.spoken,
      ),
      this.body,
    );
  }

  /** Focus the head that was looked at last. */
  focus(): void {
    const { layer, head } = this.app.store.state,
      card = this.cards.get(`${layer}.${head}`);
    if (card?.element.isConnected) this.sheet.choose(card);
    this.sheet.focus();
  }

  /** The capture to compare with. */
  private other(): Capture | undefined {
    const { compare, other } = this.app.store.state;
    return compare === "off" ? undefined : this.app.captures.get(other);
  }

  private source(capture: Capture, layer: number, head: number): Source {
    const { quantity, minus } = this.app.store.state;
    const position = positionFor(this.app, layer, head);
    return { capture, layer, head, quantity, minus, less: this.other() ?? null, position };
  }

  /** Tiles that the thumbnails need; layers in order, so that the top of the page comes first. */
  wanted(): Wanted[] {
    // A complete whole map is kept apart, so its tile may go.
    return this.known.flatMap(({ source, whole }, n) => (!whole?.complete && wholeTile(source, 1 + n / 1000)) || []);
  }

  private build(capture: Capture): void {
    const { layers, heads } = capture.header,
      name = `${capture.id}|${layers}|${heads}`;
    if (name === this.built) return;
    this.built = name;
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
      { overview } = state,
      other = this.other(),
      list = offeredMeasures(capture, other).map((measure) => asMeasured(measure, state.position.scale)),
      named = (name: string) => list.find((each) => each.name === name),
      chosen = named(overview.measure) ?? named(defaultMeasure(capture)) ?? list[0],
      against = named(overview.against) ?? list.find((each) => each !== chosen) ?? chosen,
      view = this.viewFor(other);
    this.chosen = chosen;
    this.known = [...this.cards.values()]
      .filter(({ layer, head }) => !other || other.has(layer, head))
      .map((card) => {
        const source = this.source(capture, card.layer, card.head),
          whole = wholeMap(app.tiles, source),
          value = chosen.of(app.profiles, source, whole);
        return {
          card,
          source,
          whole,
          value,
          against: view === "scatter" ? against.of(app.profiles, source, whole) : 0,
        };
      });
    this.showControls(view, list, chosen, against);
    const shown = this.filtered();
    this.colours = view === "measure" ? this.measureColours(chosen) : this.mapColours();
    this.legend.show(this.colours.title, this.colours.scale, this.colours.own);
    this.legend.element.hidden ||= view === "scatter" || view === "ranking";
    for (const known of this.known) this.paint(known, view, chosen);
    this.sayCount(view, shown, other);
    const explained = view === "scatter" ? [...new Set([chosen, against])] : [chosen];
    say(this.meaning, explained.map(({ title, text }) => `${title}: ${text}`).join(" "));
    this.arrange(capture, view, shown, chosen, against);
  }

  /** The view chosen; two captures are shown as maps where these are large, otherwise as a ranking. */
  private viewFor(other: Capture | undefined): View {
    const { view } = this.app.store.state.overview;
    if (view !== "auto") return view;
    if (!other) return "maps";
    const { root } = this.app,
      room = { width: root.clientWidth - 24, height: Math.max(LEAST_HEIGHT, innerHeight - CONTROLS) },
      { kind } = fit([this.cards.size], room.width, room.height, { byLayer: false, cards: true });
    return kind === "cards" ? "maps" : "ranking";
  }

  /** The order chosen; maps that nobody ordered show the largest difference first. */
  private get ordered(): Settings["order"] {
    const { view, order } = this.app.store.state.overview;
    return view === "auto" && this.other() && order === "model" ? "falling" : order;
  }

  private showControls(view: View, list: Measure[], chosen: Measure, against: Measure): void {
    const { overview, colour } = this.app.store.state,
      names = list.map(({ name, title }): [string, string] => [name, title]),
      sheet = view === "maps" || view === "measure";
    this.view.show(view);
    this.measure.options(names);
    this.measure.show(chosen.name);
    this.against.options(names);
    this.against.show(against.name);
    this.against.element.hidden = view !== "scatter";
    this.order.show(this.ordered);
    this.order.element.hidden = !sheet;
    this.scope.show(colour.scope);
    this.spacing.show(colour.scale);
    this.spacing.element.hidden = view !== "maps";
    const { quantity, minus } = this.app.store.state;
    this.scope.element.hidden = view !== "maps" || sameLimits(quantity, minus, this.other() !== undefined, colour);
    this.posters.hidden = !sheet;
    this.limits.forEach((input, n) => {
      const value = overview[n ? "greatest" : "least"];
      if (document.activeElement !== input) input.value = value === null ? "" : String(value);
    });
    const ready = this.known.every(({ whole, value }) => (view === "measure" ? value !== null : whole?.complete));
    for (const each of this.posters.querySelectorAll("button")) each.disabled = !ready;
  }

  private filtered(): Known[] {
    const { least, greatest } = this.app.store.state.overview;
    return this.known.filter(
      ({ value }) => value === null || ((least === null || value >= least) && (greatest === null || value <= greatest)),
    );
  }

  private sayCount(view: View, shown: Known[], other: Capture | undefined): void {
    const { quantity, minus } = this.app.store.state,
      done = this.known.filter(({ whole }) => whole?.complete).length,
      less = other ? ` minus ${other.title}` : "",
      waiting = view === "maps" && done < this.known.length ? ` ${done} are drawn.` : "";
    const what =
      view === "maps"
        ? describe(quantity, minus) + less
        : this.chosen!.title + (other ? `, compared with ${other.title}` : "");
    const text = `${what}: ${shown.length} of ${this.cards.size} heads.`,
      ready = this.known.every(({ whole, value }) => (view === "maps" ? whole?.complete : value !== null));
    say(this.count, `${text}${waiting} Click a head to open it.`);
    if (ready) say(this.spoken, text);
  }

  /** The colours of all maps: one colour map, with limits of each head or shared. */
  private mapColours(): Overview["colours"] {
    const { state } = this.app.store,
      known = this.known.filter(({ whole }) => whole),
      signed = diverges(known.map(({ whole }) => rangeOf(whole!))),
      scales = known.map(({ source }) => scaleFor(this.app, source, signed));
    this.signed = signed;
    const spread = scales.filter((scale): scale is Scale => scale !== null && scale.low < scale.high),
      scale = spread[0] ?? scales.find((each) => each !== null) ?? null,
      own = spread.some((each) => signature(each) !== signature(spread[0])),
      { quantity, minus } = state;
    return {
      scale,
      own,
      title: barTitle(describe(quantity, minus) + (this.other() ? ", difference" : ""), UNITS[quantity], scale),
    };
  }

  private signed = false;

  private measureColours(measure: Measure): Overview["colours"] {
    const values = this.known.flatMap(({ value }) => (value !== null && Number.isFinite(value) ? [value] : [])),
      low = Math.min(...values),
      high = Math.max(...values);
    if (!values.length) return { scale: null, own: false, title: measure.title };
    const map = low === high || diverges([[low, high]]) ? "signed" : "viridis";
    return { scale: { low, high, spacing: "linear", map }, own: false, title: measure.title };
  }

  private paint({ card, source, whole, value }: Known, view: View, measure: Measure): void {
    const text = view === "measure" ? brief : measure.shown;
    label(card, measure.short, value === null ? "…" : text(value));
    if (view === "measure") {
      const { scale } = this.colours,
        name = `${value}|${scale && signature(scale)}`;
      card.element.dataset.complete = String(value !== null);
      if (name === card.painted || !scale || value === null) return;
      card.painted = name;
      paintNumber(card, value, scale);
      this.sheet.put(card);
      return;
    }
    const scale = scaleFor(this.app, source, this.signed);
    delete card.element.dataset.ink;
    if (!whole || !scale) {
      card.element.dataset.complete = "false";
      return;
    }
    const what = pooled(source, this.app.store.state.pooling),
      name = `${sourceName(source)}|${what}|${signature(scale)}|${whole.complete}`;
    card.element.dataset.complete = String(whole.complete);
    if (name === card.painted && whole.complete) return;
    card.painted = name;
    paintWhole(card.canvas, whole, what, scale);
    this.sheet.put(card);
  }

  private arrange(capture: Capture, view: View, shown: Known[], chosen: Measure, against: Measure): void {
    const sheet = view === "maps" || view === "measure",
      part = sheet ? this.sheet.element : view === "scatter" ? this.scatter.element : this.ranking.element;
    if (this.body.firstElementChild !== part) this.body.replaceChildren(part, this.preview);
    this.body.dataset.view = view;
    const box = this.body.getBoundingClientRect(),
      top = box.top - this.app.root.getBoundingClientRect().top,
      room = { width: Math.max(240, box.width), height: Math.max(LEAST_HEIGHT, innerHeight - top - 20) };
    const { layers } = capture.header;
    if (sheet) {
      this.sheet.show(this.rows(capture, shown), room, view === "maps");
      this.describePointed();
      return;
    }
    this.preview.hidden = true;
    say(this.pointed, "");
    if (view === "scatter")
      this.scatter.show(
        shown.flatMap(({ card: { layer, head }, value, against: other }) =>
          value !== null && other !== null && Number.isFinite(value) && Number.isFinite(other)
            ? [
                {
                  layer,
                  head,
                  x: value,
                  y: other,
                  text: `${chosen.title} ${chosen.shown(value)}, ${against.title} ${against.shown(other)}`,
                },
              ]
            : [],
        ),
        { x: chosen.title, y: against.title },
        layers,
        room,
      );
    else
      this.ranking.show(
        shown.flatMap(({ card: { layer, head }, value }) =>
          value === null ? [] : [{ layer, head, value, text: chosen.shown(value) }],
        ),
        chosen.title,
        room,
      );
  }

  private rows(capture: Capture, shown: Known[]): Row[] {
    const order = this.ordered,
      cards = (list: Known[]) => list.map(({ card }) => card);
    if (order === "model")
      return capture.header.layers
        .map(
          (layer): Row => ({
            title: capture.place(layer).replace("layer", "Layer"),
            layer,
            cards: cards(shown.filter(({ card }) => card.layer === layer)),
          }),
        )
        .filter((row) => row.cards.length);
    if (order === "similar") return this.similar(shown);
    const side = order === "rising" ? 1 : -1,
      key = ({ value }: Known) => value ?? NaN;
    const sorted = shown.toSorted((a, b) =>
      Number.isNaN(key(a)) ? 1 : Number.isNaN(key(b)) ? -1 : side * (key(a) - key(b)),
    );
    return [{ title: `By measure, ${order}`, layer: null, cards: cards(sorted) }];
  }

  private similar(shown: Known[]): Row[] {
    const all = shown.map(({ card }) => card);
    if (shown.some(({ whole }) => !whole?.complete))
      return [{ title: "Computing maps to compare …", layer: null, cards: all }];
    const name = shown.map(({ source }) => sourceName(source)).join();
    if (this.grouped.name !== name) this.grouped = { name, groups: groups(shown.map(({ whole }) => whole!.mean)) };
    const several = this.grouped.groups.filter((members) => members.length > 1),
      alone = this.grouped.groups.filter((members) => members.length === 1).flat();
    const rows = several.map(
      (members, n): Row => ({
        title: `Group ${n + 1}: ${members.length} heads`,
        layer: null,
        cards: members.map((member) => all[member]),
      }),
    );
    if (alone.length)
      rows.push({
        title: `Like no other: ${alone.length} ${alone.length === 1 ? "head" : "heads"}`,
        layer: null,
        cards: alone.map((member) => all[member]),
      });
    return rows;
  }

  private point(card: Card | null): void {
    this.under = card;
    this.describePointed();
  }

  /** Name the head under the pointer, otherwise the one that has the focus or had it last, and show its map larger
   *  where cells are small. */
  private describePointed(): void {
    const card = this.under ?? this.sheet.chosen,
      known = this.known.find((each) => each.card === card),
      { free, size } = this.sheet.roomBeside(),
      side = Math.min(free - 24, Math.max(420, this.sheet.element.clientHeight - 30));
    // Beside small cells and where cards leave much room.
    this.preview.hidden = !known?.whole || side < Math.max(120, 1.5 * size);
    if (!known || !this.chosen) {
      say(this.pointed, "");
      return;
    }
    const { whole, source, value } = known,
      name = headName(known.card.layer, known.card.head),
      text = value === null ? "…" : this.chosen.shown(value),
      range = whole
        ? `; ${WORDS[source.quantity]} ${rangeOf(whole)
            .map((each) => number(each, 3))
            .join(" to ")}`
        : "";
    say(this.pointed, `${name[0].toUpperCase()}${name.slice(1)}: ${this.chosen.title} ${text}${range}`);
    const scale = scaleFor(this.app, source, this.signed);
    if (this.preview.hidden || !scale || !whole) return;
    this.preview.style.setProperty("--side", `${side}px`);
    this.preview.style.setProperty("--left", `${this.body.clientWidth - free + 24}px`);
    paintWhole(this.preview, whole, pooled(source, this.app.store.state.pooling), scale);
  }

  /** Save a picture of every head as it is shown: maps, or the measure as a heat map. */
  private async poster(ending: "png" | "svg"): Promise<void> {
    const { app } = this,
      capture = captureOf(app)!,
      { state } = app.store,
      measured = this.body.dataset.view === "measure",
      what = pooled(this.known[0].source, state.pooling),
      paper = this.paper.select.value === "page" ? theme(app.root) : (this.paper.select.value as "light" | "dark");
    const pictures = this.known.map(({ card, source, whole, value }) => ({
      layer: card.layer,
      head: card.head,
      picture: measured ? card.canvas : wholeImage(whole!, what, scaleFor(app, source, this.signed)!),
      text: measured && value !== null ? brief(value) : "",
    }));
    const less = this.other() ? ` minus ${this.other()!.title}` : "",
      { title, scale, own } = this.colours,
      cell = this.known[0].whole && Math.ceil(capture.length / this.known[0].whole.cells);
    const note = measured
      ? `${capture.length} ${capture.unit}s.`
      : `${capture.length} ${capture.unit}s, queries down and keys across${cell && cell > 1 ? `; a cell is the ${what} of ${cell} × ${cell} pairs` : ""}.`;
    const scene = posterScene({
      title: `${capture.title}${less}: every head`,
      note,
      legend: { title, scale, own },
      pictures,
      paper,
    });
    try {
      const blob = ending === "png" ? await toPng(scene) : new Blob([toSvg(scene)], { type: "image/svg+xml" });
      const shown = measured ? this.chosen!.name.replaceAll(" ", "-") : state.quantity;
      save(app.root, blob, `headscape-heads-${shown}-${paper}.${ending}`);
    } catch (error) {
      app.fail(`The poster could not be made: ${(error as Error).message}`);
    }
  }
}

/** The theme that a viewer has now. */
function theme(root: HTMLElement): "light" | "dark" {
  return getComputedStyle(root).colorScheme === "dark" ? "dark" : "light";
}

/** Fill a card's picture with the colour of a number; the number is written on it in the ink that can be read. */
function paintNumber(card: Card, value: number, scale: Scale): void {
  const pixels = new Uint32Array(1);
  paint(Float32Array.of(value), scale, pixels);
  card.canvas.width = card.canvas.height = 1;
  card.canvas.getContext("2d")!.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), 1), 0, 0);
  card.element.dataset.ink = inkOn(pixels[0]);
}

/** A measure whose title says that the dial does not change it, while the maps beside it are changed. */
const asMeasured = (measure: Measure, scale: number): Measure =>
  scale === 1 ? measure : { ...measure, title: `${measure.title} (with position × 1)` };
