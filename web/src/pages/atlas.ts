// The atlas: every head of a model with its map, its kernel and its measures, sorted by any of them.
import { Capture } from "../core/capture.ts";
import { automatic, type Scale } from "../core/colour.ts";
import { FORMAT, type Header, type MeasureValues, readArrays, type Stored } from "../core/pack.ts";
import type { Source } from "../core/source.ts";
import { DEFAULT } from "../core/state.ts";
import { formatted } from "../core/text.ts";
import { storedMap } from "../engine/whole.ts";
import { type Card, makeCard, paintWhole, section } from "../ui/cards.ts";
import { type Choice, choice, h, say } from "../ui/dom.ts";
import { Legend, UNITS } from "../ui/legend.ts";
import { type Column, measureTable } from "../ui/measuretable.ts";
import { type Curve, Plot, sparkline } from "../ui/plots.ts";

/** A measure over several sequences. */
interface Estimate extends MeasureValues {
  reference: string;
  low: (number | null)[][];
  high: (number | null)[][];
  /** Heads are ranked by the size of the number, whatever its sign. */
  by_size: boolean;
}

export interface AtlasHeader extends Header {
  /** What was measured, as paragraphs. */
  about: string[];
  recognised: string[];
  /** The measure that ranks heads by how much position matters. */
  importance: string;
  measures: Estimate[];
  /** Names of heads, by layer and head. */
  kinds: string[][][];
  /** Measures at multiples of the trained length. */
  drift: Record<string, Record<string, (number | null)[][]>>;
  /** Distances of the kernels' points. */
  distances: number[];
  /** Address of a viewer page that shows the same heads. */
  viewer: string | null;
}

/** Heads in the ranking of either end: at most ten, and at most a quarter of all. */
const TOP = 10;
type Order = "model" | "falling" | "rising";

/** One head: where it is stored and what is drawn of it. */
interface Entry {
  layer: number;
  head: number;
  kinds: string[];
}

export class Atlas {
  private readonly capture: Capture;
  private readonly entries: Entry[];
  private readonly dialog = h("dialog", { class: "measured", "aria-label": "One head" });
  private readonly all = h("div", { class: "grid", id: "all" });
  private readonly count = h("p", { class: "small", role: "status", id: "count" });
  private readonly meaning = h("p", { class: "small", id: "meaning" });
  private readonly legend = new Legend();
  private readonly order: Choice<Order>;
  private readonly measure: Choice<string>;
  private readonly kind: Choice<string>;

  constructor(
    root: HTMLElement,
    private readonly header: AtlasHeader,
    arrays: Map<string, Stored>,
  ) {
    const { layers, heads, measures, importance } = header;
    this.capture = new Capture("atlas", header.title ?? "", header, arrays);
    this.entries = layers.flatMap((_, layer) =>
      heads.map((_, head) => ({ layer, head, kinds: header.kinds[layer]?.[head] ?? [] })),
    );
    const draw = () => this.draw();
    this.order = choice<Order>(
      "Order",
      [
        ["model", "by layer and head"],
        ["falling", "measure, falling"],
        ["rising", "measure, rising"],
      ],
      draw,
    );
    const known = measures.filter(({ values }) => values.flat().some((value) => value !== null));
    this.measure = choice(
      "Measure",
      known.map(({ name, label }) => [name, label]),
      draw,
    );
    this.measure.show(importance);
    const kinds = [...new Set(this.entries.flatMap((entry) => entry.kinds))];
    this.kind = choice("Kind", [["", "all"], ...kinds.map((kind): [string, string] => [kind, kind])], draw);
    const ranks = this.find(importance),
      top = Math.max(1, Math.min(TOP, Math.floor(this.entries.length / 4))),
      number = top === 1 ? "The head" : `${top} heads`;
    root.append(
      h("h1", {}, `${header.title}: what position does in every head`),
      ...header.about.map((text) => h("p", { class: "small" }, text)),
      h("h2", {}, "Recognised"),
      h("pre", {}, header.recognised.join("\n")),
      h(
        "p",
        { class: "small" },
        "Layers and heads count from 1. The picture shows mean attention weights, queries down and keys across; the " +
          "curve shows the kernel, the mean score at each distance, query − key, spaced as logarithms. Colours and " +
          "names are the viewer's. Click a head for all its measures.",
      ),
      this.legend.element,
      h("h2", {}, `${number} where position matters most`),
      h("p", { class: "small" }, `Ranked by ${ranks.label}: ${ranks.text}`),
      h("div", { class: top === TOP ? "cards ten" : "cards", id: "most" }, ...this.ranking(false, top)),
      h("h2", {}, `${number} where position matters least`),
      h("div", { class: top === TOP ? "cards ten" : "cards", id: "least" }, ...this.ranking(true, top)),
      h("h2", {}, "All heads"),
      h("div", { class: "controls" }, this.order.element, this.measure.element, this.kind.element),
      this.count,
      this.meaning,
      this.all,
      h("h2", {}, "Definitions"),
      h(
        "p",
        { class: "small" },
        "A score is the number before the softmax, a weight the number after it; the distance is query − key. In a " +
          "bidirectional model the middle half of the queries takes the place of the second half. Every measure is a " +
          "mean over sequences, with its 95% bootstrap interval from 6 sequences on.",
      ),
      definitions(measures),
      this.dialog,
    );
    this.draw();
    const first = this.source(this.entries[0]),
      scale = this.scale(first);
    this.legend.show(`Mean attention weight (${UNITS.weights})`, scale, false);
    this.dialog.addEventListener("close", () => history.replaceState(null, "", " "));
    this.openLinked();
    addEventListener("hashchange", () => this.openLinked());
  }

  private find(name: string): Estimate {
    const found = this.header.measures.find((measure) => measure.name === name);
    if (!found) throw new Error(`the atlas has no measure ${name}`);
    return found;
  }

  private source({ layer, head }: Entry): Source {
    const { layers, heads } = this.header;
    const at = { layer: layers[layer], head: heads[head] };
    return { capture: this.capture, ...at, quantity: "weights", minus: "nothing", less: null };
  }

  private place({ layer, head }: Entry): string {
    return `${this.capture.place(this.header.layers[layer])}, head ${this.header.heads[head] + 1}`;
  }

  /** The colours of weights, which are the same for all heads. */
  private scale(source: Source): Scale | null {
    const whole = storedMap(source);
    return whole && automatic(source, DEFAULT.colour, [whole]);
  }

  private paint(canvas: HTMLCanvasElement, entry: Entry): void {
    const source = this.source(entry),
      whole = storedMap(source),
      scale = this.scale(source);
    if (whole && scale) paintWhole(canvas, whole, "mean", scale);
  }

  /** The kernel of a head, or its closed form. */
  private curve({ layer, head }: Entry, name: "kernel" | "closed_form"): Float32Array | null {
    const stored = this.capture.stored(this.header.layers[layer], name),
      size = this.header.distances.length;
    const values = stored?.data.subarray(head * size, (head + 1) * size) as Float32Array | undefined;
    return values?.some(Number.isFinite) ? values : null;
  }

  private card(entry: Entry, measure: Estimate): Card {
    const { layer, head, kinds } = entry,
      place = this.capture.place(this.header.layers[layer]);
    const curve = sparkline(this.curve(entry, "kernel") ?? [], this.header.distances);
    const card = makeCard(
      this.header.layers[layer],
      this.header.heads[head],
      place,
      () => this.open(entry),
      curve,
      h("span", { class: "kinds" }, kinds.join(", ")),
      h("span", { class: "unseen" }, " Open."),
    );
    say(card.measure, measure.label);
    say(card.value, formatted(measure.values[layer][head], measure.form));
    this.paint(card.canvas, entry);
    return card;
  }

  /** Heads that have a measure, sorted by it. */
  private ranked({ values, by_size }: Estimate, rising: boolean): Entry[] {
    const size = ({ layer, head }: Entry) => {
      const value = values[layer][head] ?? 0;
      return by_size ? Math.abs(value) : value;
    };
    return this.entries
      .filter(({ layer, head }) => values[layer][head] !== null)
      .sort((a, b) => (rising ? size(a) - size(b) : size(b) - size(a)));
  }

  private ranking(rising: boolean, top: number): HTMLElement[] {
    const measure = this.find(this.header.importance),
      ranked = this.ranked(measure, false);
    // Both ends of one order, so that no head is at both.
    return (rising ? ranked.slice(-top).reverse() : ranked.slice(0, top)).map(
      (entry) => this.card(entry, measure).element,
    );
  }

  private draw(): void {
    const measure = this.find(this.measure.select.value),
      order = this.order.select.value,
      kind = this.kind.select.value;
    const list = order === "model" ? this.entries : this.ranked(measure, order === "rising"),
      shown = list.filter(({ kinds }) => !kind || kinds.includes(kind));
    const rows: [string, Entry[]][] =
      order === "model"
        ? this.header.layers.map((layer, n) => [
            this.capture.place(layer).replace("layer", "Layer"),
            shown.filter((entry) => entry.layer === n),
          ])
        : [[`By measure, ${order}`, shown]];
    this.all.replaceChildren(
      ...rows
        .filter(([, entries]) => entries.length)
        .map(([title, entries]) =>
          section(
            title,
            entries.map((entry) => this.card(entry, measure)),
          ),
        ),
    );
    say(this.count, shown.length === 1 ? "1 head" : `${shown.length} heads`);
    say(this.meaning, `${measure.label}: ${measure.text} (${measure.reference})`);
  }

  /** All measures of one head with their intervals. */
  private open(entry: Entry): void {
    const { layer, head, kinds } = entry,
      { header } = this,
      canvas = h("canvas", { class: "large", "aria-hidden": "true" });
    this.paint(canvas, entry);
    const interval: Column = [
      "95% interval",
      (measure) => {
        const { low, high, form } = measure as Estimate;
        return low[layer][head] === null
          ? ""
          : `${formatted(low[layer][head], form)} to ${formatted(high[layer][head], form)}`;
      },
    ];
    const drift = Object.entries(header.drift).map(
      ([multiple, values]): Column => [
        `at ${multiple}×`,
        ({ name, form }) => (values[name] ? formatted(values[name][layer][head], form) : ""),
      ],
    );
    const shown = { screen: "head", capture: "p0", layer: header.layers[layer], head: header.heads[head] },
      link = header.viewer && `${header.viewer}#${encodeURIComponent(JSON.stringify(shown))}`;
    this.dialog.replaceChildren(
      h("form", { method: "dialog" }, h("button", { "aria-label": "Close" }, "×")),
      h("h2", {}, this.place(entry)),
      h("p", { class: "small" }, kinds.join(", ") || "no kind recognised"),
      h(
        "div",
        { class: "pictures" },
        h(
          "figure",
          {},
          canvas,
          h("figcaption", { class: "small" }, "Mean attention weight: queries down, keys across"),
        ),
        this.kernelPlot(entry),
      ),
      ...(link ? [h("p", {}, h("a", { href: link }, "Open in the viewer"))] : []),
      h("div", { class: "wide", tabindex: 0 }, measureTable(header.measures, layer, head, [interval, ...drift])),
    );
    if (!this.dialog.open) this.dialog.showModal();
    const hash = `#layer-${header.layers[layer] + 1}-head-${header.heads[head] + 1}`;
    if (location.hash !== hash) history.replaceState(null, "", hash);
  }

  private kernelPlot(entry: Entry): HTMLElement {
    const { distances } = this.header,
      plot = new Plot("kernel"),
      closed = this.curve(entry, "closed_form"),
      kernel = this.curve(entry, "kernel");
    const curves = [closed, kernel].flatMap((values, n): Curve[] =>
      values
        ? [{ name: n ? "kernel" : "closed form", values, at: distances, first: 0, tone: n ? "main" : "other" }]
        : [],
    );
    plot.show({
      title: "Kernel",
      xTitle: "distance, query − key",
      yTitle: "mean score",
      from: distances[0],
      to: distances[distances.length - 1],
      spacing: "log",
      curves,
      empty: "This head has no kernel.",
      summary: `Mean score of ${this.place(entry)} by distance.`,
      note: closed ? "Line: mean score. Dashed: closed form." : "Line: mean score.",
    });
    return plot.element;
  }

  /** Open the head that the address names, as in atlas.html#layer-2-head-10; #2.10 is an older form. */
  private openLinked(): void {
    const found = /^#(?:layer-)?(\d+)(?:-head-|\.)(\d+)$/.exec(location.hash);
    if (!found) return;
    const [layer, head] = [
      this.header.layers.indexOf(Number(found[1]) - 1),
      this.header.heads.indexOf(Number(found[2]) - 1),
    ];
    const entry = this.entries.find((each) => each.layer === layer && each.head === head);
    if (entry) this.open(entry);
  }
}

function definitions(measures: Estimate[]): HTMLElement {
  const headings = ["measure", "definition", "after"];
  return h(
    "div",
    { class: "wide", tabindex: 0 },
    h(
      "table",
      { class: "definitions" },
      h("thead", {}, h("tr", {}, ...headings.map((text) => h("th", { scope: "col" }, text)))),
      h(
        "tbody",
        {},
        ...measures.map(({ label, text, reference }) =>
          h("tr", {}, h("th", { scope: "row" }, label), h("td", {}, text), h("td", {}, reference)),
        ),
      ),
    ),
  );
}

/** Read an atlas from a pack's bytes and draw it. */
export function showAtlas(root: HTMLElement, bytes: ArrayBuffer): Atlas {
  const { header, arrays } = readArrays(bytes),
    read = header as AtlasHeader;
  if (read.format > FORMAT) throw new Error(`the atlas has format ${read.format} and this page reads up to ${FORMAT}`);
  root.classList.add("atlas");
  return new Atlas(root, read, arrays);
}
