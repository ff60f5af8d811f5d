// Two measures of every head against each other: a point a head, hovered for its name, clicked to open it.

import { table } from "../core/colour.ts";
import { number } from "../core/text.ts";
import { headName } from "./cards.ts";
import { h, svg } from "./dom.ts";
import { ticks } from "./plots.ts";

export interface Point {
  layer: number;
  head: number;
  x: number;
  y: number;
  /** The two numbers in words. */
  text: string;
}

/** Points that carry their names. */
const NAMED = 5;

/** The points farthest from the median of both measures, in units of the median distance from it; farthest first.
 *  None where every point is the same. */
export function outliers<T extends { x: number; y: number }>(points: T[], count = NAMED): T[] {
  const median = (values: number[]) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
  const far = (["x", "y"] as const).map((axis) => {
    const middle = median(points.map((point) => point[axis])),
      away = points.map((point) => Math.abs(point[axis] - middle)),
      spread = median(away) || Math.max(...away) || 1;
    return away.map((each) => each / spread);
  });
  return points
    .map((point, n) => ({ point, distance: Math.hypot(far[0][n], far[1][n]) }))
    .filter(({ distance }) => distance > 0)
    .toSorted((a, b) => b.distance - a.distance)
    .slice(0, count)
    .map(({ point }) => point);
}

const STEPS: Record<string, number> = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
/** About how wide a letter of a name is. */
const LETTER = 6.5,
  LEFT = 64,
  BOTTOM = 46,
  TOP = 12,
  RIGHT = 16;

export class Scatter {
  readonly element = h("figure", { class: "scatter" });
  private readonly tip = h("p", { class: "small named", "aria-hidden": "true" });
  private drawn = "";

  constructor(private readonly open: (layer: number, head: number) => void) {}

  show(
    points: Point[],
    titles: { x: string; y: string },
    layers: number[],
    room: { width: number; height: number },
  ): void {
    const name = JSON.stringify([points, titles, room]);
    if (name === this.drawn) return;
    this.drawn = name;
    const width = Math.max(280, Math.round(room.width)),
      height = Math.max(240, Math.round(room.height - 30)),
      root = svg("svg", {
        viewBox: `0 0 ${width} ${height}`,
        role: "group",
        "aria-label": `${titles.y} against ${titles.x}, a point a head`,
      });
    const axis = (values: number[], from: number, to: number) => {
      let low = Math.min(...values),
        high = Math.max(...values);
      if (!(high > low)) [low, high] = [low - 0.5, high + 0.5];
      const pad = 0.04 * (high - low);
      return {
        at: (value: number) => from + ((to - from) * (value - low + pad)) / (high - low + 2 * pad),
        ticks: ticks(low, high, 6),
      };
    };
    if (points.length) {
      const x = axis(
          points.map((point) => point.x),
          LEFT,
          width - RIGHT,
        ),
        y = axis(
          points.map((point) => point.y),
          height - BOTTOM,
          TOP,
        );
      for (const tick of x.ticks) {
        root.append(svg("line", { x1: x.at(tick), x2: x.at(tick), y1: TOP, y2: height - BOTTOM, class: "grid" }));
        const at = { x: x.at(tick), y: height - BOTTOM + 15, class: "axis", "text-anchor": "middle" };
        root.append(svg("text", at, number(tick, 3)));
      }
      for (const tick of y.ticks) {
        root.append(svg("line", { x1: LEFT, x2: width - RIGHT, y1: y.at(tick), y2: y.at(tick), class: "grid" }));
        const at = { x: LEFT - 6, y: y.at(tick) + 4, class: "axis", "text-anchor": "end" };
        root.append(svg("text", at, number(tick, 3)));
      }
      const marks = points
        .toSorted((a, b) => a.x - b.x)
        .map((point, n, sorted) => this.mark(point, n === 0, layers, x.at(point.x), y.at(point.y), sorted.length));
      root.append(...marks, ...this.names(points, x.at, y.at, width));
      root.addEventListener("keydown", (event) => {
        const by = STEPS[(event as KeyboardEvent).key],
          at = marks.indexOf(event.target as SVGElement);
        if (!by || at < 0) return;
        event.preventDefault();
        event.stopPropagation();
        const next = marks[Math.min(marks.length - 1, Math.max(0, at + by))];
        marks[at].setAttribute("tabindex", "-1");
        next.setAttribute("tabindex", "0");
        next.focus();
      });
    }
    root.append(
      svg(
        "text",
        { x: (LEFT + width - RIGHT) / 2, y: height - 8, class: "axis name", "text-anchor": "middle" },
        titles.x,
      ),
      svg(
        "text",
        {
          x: 14,
          y: height / 2,
          class: "axis name",
          "text-anchor": "middle",
          transform: `rotate(-90 14 ${height / 2})`,
        },
        titles.y,
      ),
    );
    this.tip.textContent = HINT;
    const ends = [layers[0] + 1, layers[layers.length - 1] + 1],
      bar = h("span", { class: "bar" });
    bar.style.background = `linear-gradient(to right, ${[0, 0.25, 0.5, 0.75, 1].map(colourOf).join()})`;
    const key = h("p", { class: "small key" }, `layer ${ends[0]}`, bar, String(ends[1]));
    key.hidden = layers.length < 2;
    this.element.replaceChildren(h("div", { class: "legend-row" }, this.tip, key), root as unknown as Node);
  }

  /** The names of outliers, on the side of their points where there is room, without one that would lie on another. */
  private names(points: Point[], x: (value: number) => number, y: (value: number) => number, width: number) {
    const boxes: { left: number; right: number; y: number }[] = [];
    return outliers(points).flatMap((point) => {
      const text = headName(point.layer, point.head),
        long = LETTER * text.length,
        at = { x: x(point.x), y: y(point.y) + 4 },
        before = at.x + 10 + long > width - RIGHT,
        left = before ? at.x - 10 - long : at.x + 10;
      if (boxes.some((box) => Math.abs(box.y - at.y) < 14 && box.left < left + long && left < box.right)) return [];
      boxes.push({ left, right: left + long, y: at.y });
      const place = { x: before ? at.x - 10 : at.x + 10, y: at.y, "text-anchor": before ? "end" : "start" };
      return [svg("text", { ...place, class: "axis label", "aria-hidden": "true" }, text)];
    });
  }

  private mark(point: Point, first: boolean, layers: number[], x: number, y: number, count: number): SVGElement {
    const colour = colourOf(layers.indexOf(point.layer) / Math.max(1, layers.length - 1)),
      name = headName(point.layer, point.head),
      text = `${name}: ${point.text}`;
    const mark = svg("circle", {
      cx: x.toFixed(1),
      cy: y.toFixed(1),
      r: count > 300 ? 4 : 6,
      fill: colour,
      class: "point",
      role: "button",
      tabindex: first ? 0 : -1,
      "aria-label": `${text}. Open.`,
      "data-layer": point.layer,
      "data-head": point.head,
    });
    const tell = () => (this.tip.textContent = `${name[0].toUpperCase()}${text.slice(1)}`);
    mark.addEventListener("pointerenter", tell);
    mark.addEventListener("focus", tell);
    mark.addEventListener("pointerleave", () => (this.tip.textContent = HINT));
    mark.addEventListener("click", () => this.open(point.layer, point.head));
    mark.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      event.stopPropagation();
      this.open(point.layer, point.head);
    });
    return mark;
  }
}

/** The colour of a layer, 0 for the first and 1 for the last. */
function colourOf(part: number): string {
  // The light end of the map is left out: it would be lost on paper.
  const rgba = table("viridis")[Math.round(400 * part)];
  return `rgb(${rgba & 255} ${(rgba >> 8) & 255} ${(rgba >> 16) & 255})`;
}

const HINT = "A point is a head. Point at one for its name, click to open it.";
