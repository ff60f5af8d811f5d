// Line plots as SVG: curves, a spread, one marked point, and axes with round numbers.
import { number, roundStep } from "../core/text.ts";
import { h, say, svg } from "./dom.ts";

export interface Curve {
  name: string;
  /** Value at first, first + 1, ...; NaN leaves a gap. */
  values: ArrayLike<number>;
  first: number;
  /** Where each value is, if not one step apart. */
  at?: number[];
  tone: "main" | "other";
  /** A part of the curve before it, and drawn faintly. */
  faint?: boolean;
}

interface Band {
  low: ArrayLike<number>;
  high: ArrayLike<number>;
  first: number;
  tone: "wide" | "narrow";
  faint?: boolean;
}

export interface PlotData {
  title: string;
  xTitle: string;
  yTitle: string;
  from: number;
  to: number;
  curves: Curve[];
  bands?: Band[];
  mark?: { x: number; y: number } | null;
  /** What stands in place of curves that are not there. */
  empty: string;
  /** A sentence for those who do not see the plot. */
  summary: string;
  log?: boolean;
  /** Spacing of the horizontal axis: log2(1 + |x|) on either side of 0. */
  spacing?: "linear" | "log";
  note?: string;
}

const logarithm = (x: number) => Math.sign(x) * Math.log2(1 + Math.abs(x));

const WIDTH = 320,
  HEIGHT = 132,
  LEFT = 44,
  BOTTOM = 30,
  TOP = 6,
  RIGHT = 8,
  /** Height of a name of a curve. */
  LINE = 13;

export class Plot {
  readonly element: HTMLElement;
  private readonly svg = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  private readonly title = h("h3", {});
  private readonly note = h("p", { class: "small" });

  constructor(name: string, extra?: HTMLElement) {
    this.element = h(
      "figure",
      { class: "plot", "data-plot": name },
      h("div", { class: "plothead" }, this.title, extra),
      this.svg as unknown as Node,
      this.note,
    );
  }

  private shown: PlotData | null = null;

  show(data: PlotData): void {
    if (this.shown && same(this.shown, data)) return;
    this.shown = data;
    say(this.title, data.title);
    say(this.note, data.note ?? "");
    this.note.hidden = !data.note;
    this.svg.setAttribute("aria-label", data.summary);
    // Names of several curves stand above the plot, each in a line of its own.
    const named = data.curves.filter(({ faint }) => !faint),
      top = TOP + (named.length > 1 ? LINE * named.length : 0),
      height = HEIGHT + top - TOP,
      inner = { w: WIDTH - LEFT - RIGHT, h: HEIGHT - TOP - BOTTOM };
    this.svg.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
    const to = (value: number) => (data.log ? Math.log10(Math.max(value, 1e-12)) : value);
    const columns = data.curves.map(({ values, at, first }) =>
      at ? points(values, at, to) : reduceCurve(values, first, data.from, data.to, inner.w, to),
    );
    const place = data.spacing === "log" ? logarithm : (x: number) => x,
      width = Math.max(1e-9, place(data.to) - place(data.from));
    const bands = (data.bands ?? []).map((band) => [
      reduceCurve(band.low, band.first, data.from, data.to, inner.w, to),
      reduceCurve(band.high, band.first, data.from, data.to, inner.w, to),
    ]);
    let low = Infinity,
      high = -Infinity;
    for (const column of [...columns, ...bands.flat()])
      for (const point of column) {
        low = Math.min(low, point.low);
        high = Math.max(high, point.high);
      }
    if (data.mark && Number.isFinite(data.mark.y)) {
      low = Math.min(low, to(data.mark.y));
      high = Math.max(high, to(data.mark.y));
    }
    const parts: SVGElement[] = [];
    if (low > high)
      parts.push(
        svg(
          "text",
          { x: LEFT + inner.w / 2, y: top + inner.h / 2, class: "axis", "text-anchor": "middle" },
          data.empty,
        ),
      );
    else {
      if (high - low < 1e-9) {
        low -= 0.5;
        high += 0.5;
      }
      const pad = 0.04 * (high - low),
        y = (value: number) => top + inner.h * (1 - (value - low + pad) / (high - low + 2 * pad));
      const x = (value: number) => LEFT + (inner.w * (place(value) - place(data.from))) / width;
      for (const tick of ticks(low, high, 4)) {
        parts.push(svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick), class: "grid" }));
        parts.push(
          svg(
            "text",
            { x: LEFT - 4, y: y(tick) + 3.5, class: "axis", "text-anchor": "end" },
            number(data.log ? 10 ** tick : tick, 3),
          ),
        );
      }
      for (const tick of data.spacing === "log" ? powers(data.from, data.to) : wholes(data.from, data.to))
        parts.push(
          svg("text", { x: x(tick), y: height - BOTTOM + 12, class: "axis", "text-anchor": "middle" }, String(tick)),
        );
      bands.forEach(([lows, highs], n) => {
        const { tone, faint } = data.bands![n],
          runs = [lows, highs].map(unbroken);
        runs[0].forEach((run, k) => {
          const points = [
            ...run.map((point) => `${x(point.x).toFixed(1)},${y(point.low).toFixed(1)}`),
            ...runs[1][k].toReversed().map((point) => `${x(point.x).toFixed(1)},${y(point.high).toFixed(1)}`),
          ];
          parts.push(svg("polygon", { points: points.join(" "), class: `band ${tone}${faint ? " faint" : ""}` }));
        });
      });
      columns.forEach((column, n) => {
        const { tone, faint } = data.curves[n];
        parts.push(svg("path", { d: path(column, x, y), class: `curve ${tone}${faint ? " faint" : ""}` }));
      });
      if (named.length > 1)
        named.forEach(({ name, tone }, n) => {
          const at = TOP + 2 + LINE * n;
          parts.push(
            svg("line", { x1: WIDTH - RIGHT - 22, x2: WIDTH - RIGHT - 4, y1: at, y2: at, class: `curve ${tone}` }),
            svg(
              "text",
              { x: WIDTH - RIGHT - 26, y: at + 3.5, class: "axis legend", "text-anchor": "end" },
              name.length > 34 ? `${name.slice(0, 33)}…` : name,
            ),
          );
        });
      if (data.mark && Number.isFinite(data.mark.y) && data.mark.x >= data.from && data.mark.x <= data.to)
        parts.push(svg("circle", { cx: x(data.mark.x), cy: y(to(data.mark.y)), r: 4, class: "mark" }));
    }
    parts.push(
      svg("text", { x: LEFT + inner.w / 2, y: height - 4, class: "axis", "text-anchor": "middle" }, data.xTitle),
    );
    this.svg.replaceChildren(...parts);
  }
}

/** Whether two plots would look alike: the same arrays by identity, the same words and numbers. */
function same(a: PlotData, b: PlotData): boolean {
  const arrays = ({ curves, bands }: PlotData) => [
    ...curves.map((curve) => curve.values),
    ...(bands ?? []).flatMap((band) => [band.low, band.high]),
  ];
  const words = ({ curves, bands, ...rest }: PlotData) =>
    JSON.stringify([rest, curves.map(({ name, first, tone, faint }) => [name, first, tone, faint]), bands?.length]);
  const before = arrays(a),
    now = arrays(b);
  return before.length === now.length && before.every((array, n) => array === now[n]) && words(a) === words(b);
}

/** A curve for a card: x is spaced as logarithms, and both axes have the numbers of their ends. */
export function sparkline(values: ArrayLike<number>, at: number[]): SVGElement {
  const width = 132,
    height = 60,
    left = 38,
    bottom = 14,
    line = points(values, at, (value) => value),
    element = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "spark", "aria-hidden": "true" });
  if (!line.length) return element;
  const low = Math.min(...line.map((point) => point.low)),
    high = Math.max(...line.map((point) => point.high)),
    ends = [at[0], at[at.length - 1]],
    [from, to] = ends.map(logarithm);
  const x = (value: number) => left + ((width - left - 8) * (logarithm(value) - from)) / (to - from || 1);
  const y = (value: number) => 6 + ((height - bottom - 10) * (high - value)) / (high - low || 1);
  const text = (where: { x: number; y: number }, words: string, anchor: string) =>
    svg("text", { ...where, class: "axis", "text-anchor": anchor }, words);
  element.append(
    svg("path", { d: `M${left},2V${height - bottom}H${width}`, class: "ends" }),
    ...(at[0] < 0 ? [svg("line", { x1: x(0), x2: x(0), y1: 0, y2: height - bottom, class: "grid" })] : []),
    ...(high > low ? [high, low] : [high]).map((value) =>
      text({ x: left - 3, y: y(value) + 3 }, number(value, 2), "end"),
    ),
    ...[ends[0], ...(at[0] < 0 ? [0] : []), ends[1]].map((value, n) =>
      text({ x: x(value), y: height - 4 }, number(value, 4), n === 0 ? "start" : value === ends[1] ? "end" : "middle"),
    ),
    svg("path", { d: path(line, x, y), class: "curve main" }),
  );
  return element;
}

interface Column {
  x: number;
  low: number;
  high: number;
  /** Whether there is nothing between this column and the one before it. */
  gap?: boolean;
}

/** The parts of a curve between its gaps. */
function unbroken(columns: Column[]): Column[][] {
  const runs: Column[][] = [];
  for (const column of columns)
    if (column.gap || !runs.length) runs.push([column]);
    else runs[runs.length - 1].push(column);
  return runs;
}

/** Every finite value as a column of its own. */
function points(values: ArrayLike<number>, at: number[], map: (value: number) => number): Column[] {
  return at.flatMap((x, n) => (Number.isFinite(values[n]) ? [{ x, low: map(values[n]), high: map(values[n]) }] : []));
}

/** At most one column a pixel, with the least and the greatest of what falls into it: no spike is lost. */
export function reduceCurve(
  values: ArrayLike<number>,
  first: number,
  from: number,
  to: number,
  pixels: number,
  map: (value: number) => number,
): Column[] {
  const out: Column[] = [],
    start = Math.max(0, Math.ceil(from - first)),
    stop = Math.min(values.length - 1, Math.floor(to - first)),
    step = Math.max(1, (stop - start + 1) / pixels);
  let gap = false;
  for (let at = start; at <= stop; at += step) {
    let low = Infinity,
      high = -Infinity;
    for (let n = Math.floor(at); n < Math.max(Math.floor(at) + 1, Math.min(stop + 1, Math.floor(at + step))); n++) {
      const value = map(values[n]);
      if (Number.isFinite(value)) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
    if (low <= high) out.push({ x: first + Math.floor(at), low, high, ...(gap && out.length ? { gap } : {}) });
    gap = !(low <= high);
  }
  return out;
}

function path(column: Column[], x: (value: number) => number, y: (value: number) => number): string {
  return column
    .map((point, n) => {
      const at = x(point.x).toFixed(1),
        low = y(point.low).toFixed(1),
        high = y(point.high).toFixed(1);
      const alone = (point.gap || n === 0) && (column[n + 1]?.gap ?? true);
      // A point alone is a dot: a line without length, with round ends.
      return `${n && !point.gap ? "L" : "M"}${at},${low}${low !== high ? `L${at},${high}` : alone ? "h0" : ""}`;
    })
    .join("");
}

/** Round whole numbers from a to b. */
const wholes = (a: number, b: number) => ticks(a, b, 6).filter(Number.isInteger);

/** 0, 1 and powers of 4 from a to b, on both sides of 0; every second where there are both. */
function powers(a: number, b: number): number[] {
  const marks = [0, ...Array.from({ length: 12 }, (_, n) => 4 ** n)].filter((_, n) => a >= 0 || n === 0 || n % 2 === 0);
  return [...marks.slice(1).map((mark) => -mark), ...marks].filter((mark) => mark >= a && mark <= b);
}

/** Round numbers from low to high, about `count` of them. */
export function ticks(low: number, high: number, count: number): number[] {
  const step = roundStep((high - low) / count),
    out: number[] = [];
  for (let value = Math.ceil(low / step) * step; value <= high + 1e-9 * step; value += step)
    out.push(Math.abs(value) < step / 1e6 ? 0 : Number(value.toPrecision(12)));
  return out;
}
