// The view as a scene: every map with its axes, tokens, marks and notes, its colour bar and a caption.
// It is made of whole cells at a size of its own, so it does not depend on the window.

import { along, barColours, middleOf, valueAlong } from "../core/colour.ts";
import { describe, lengthOf, pooled, positionOf } from "../core/source.ts";
import { number, roundStep, visible } from "../core/text.ts";
import { Tiles } from "../engine/tiles.ts";
import { type App, longest, panelsOf, type Shown, scaleFor, signs, viewOf } from "../ui/app.ts";
import { type Frame, levelFor } from "../ui/draw.ts";
import { pairSentence } from "../ui/equation.ts";
import { drawShown, wantedOf } from "../ui/map.ts";
import { background, drawMarks } from "../ui/marks.ts";
import type { Scene, Shape } from "./scene.ts";

/** Pixels a side of a map at most, and pixels of a picture a unit of its scene. */
const SIDE = 840;
export const RATIO = 2;
const MAP = SIDE / RATIO,
  LEFT = 100,
  TOP = 100,
  GAP = 24,
  BAR = 12,
  LINE = 11,
  /** From a map's edge to the line that names its colour bar. */
  NAMED = 12 + BAR + 23,
  /** From that line, and from one line of a caption to the next. */
  CAPTION = 17,
  NEXT = 13,
  /** Below the last line. */
  MARGIN = 12,
  /** Letters of a caption below a map. */
  LETTERS = 80;
/** Milliseconds that tiles are waited for. */
const PATIENCE = 120_000;

/** The view in whole cells of whole pixels; tokens start at a cell's edge. */
export function pictureFrame(app: App, { source }: Shown): Frame {
  const view = viewOf(app.store.state, longest(app)),
    length = lengthOf(source);
  const inside = (at: number) => Math.min(length - 1, Math.max(0, Math.floor(at + 1e-6))),
    end = (at: number) => Math.min(length, Math.ceil(at + view.span - 1e-6));
  const tokens = Math.max(1, end(view.query) - inside(view.query), end(view.key) - inside(view.key)),
    level = Math.max(0, Math.ceil(Math.log2(tokens / SIDE) - 1e-9)),
    cell = 2 ** level;
  const first = (at: number) => Math.floor(inside(at) / cell) * cell,
    cells = (at: number) => Math.ceil((end(at) - first(at)) / cell);
  const per = Math.max(1, Math.floor(SIDE / Math.max(cells(view.query), cells(view.key))));
  return {
    query: first(view.query),
    key: first(view.key),
    pixels: per / cell,
    width: per * cells(view.key),
    height: per * cells(view.query),
  };
}

/** What is said of the locked pair below a map; null while it is computed. */
function lockedSentence(app: App, { source, across }: Shown): string | null {
  const { locked } = app.store.state,
    captures = [source.capture, source.less, across?.capture].filter((each) => each != null);
  if (!locked) return "";
  const sentences = captures.map((capture) => pairSentence(app, capture, locked));
  if (sentences.includes(null)) return null;
  return sentences.map((text, n) => (text ? ` ${n ? `${captures[n].title}: ` : ""}${text}` : "")).join("");
}

/** Wait until every tile of some frames is there, and the values of the locked pair. */
async function computed(app: App, frames: { shown: Shown; frame: Frame }[]): Promise<void> {
  const list = frames.flatMap(({ shown, frame }) => wantedOf(shown, frame)),
    start = performance.now();
  const there = () =>
    list.every(({ source, level, row, column }) => Tiles.whole(app.tiles.peek(source, level, row, column))) &&
    frames.every(({ shown }) => scaleFor(app, shown.source) && lockedSentence(app, shown) !== null);
  try {
    while (!there()) {
      if (app.tiles.anyFailed) throw new Error("a part of the map could not be computed");
      if (performance.now() - start > PATIENCE) throw new Error("the map is still being computed");
      app.tiles.want("picture", list);
      app.draw();
      await new Promise((done) => setTimeout(done, 30));
    }
  } finally {
    app.tiles.want("picture", []);
  }
}

/** The map of a panel on a canvas of its own, marks included. */
function mapCanvas(app: App, shown: Shown, frame: Frame): HTMLCanvasElement {
  const [canvas, marks] = [0, 1].map(() => {
    const each = document.createElement("canvas");
    each.width = frame.width;
    each.height = frame.height;
    return each;
  });
  const context = canvas.getContext("2d")!,
    style = getComputedStyle(app.root),
    scale = scaleFor(app, shown.source);
  context.imageSmoothingEnabled = false;
  background(context, style, frame, shown);
  if (scale) drawShown(context, app, shown, frame, scale, pooled(shown.source, app.store.state.pooling));
  drawMarks(marks.getContext("2d")!, style, frame, app, shown, app.store.state.locked, RATIO);
  context.drawImage(marks, 0, 0);
  return canvas;
}

/** What a map shows, in words; of an equation, what all four show. */
function caption(app: App, shown: Shown, frame: Frame, equation: boolean): string {
  const { source, across } = shown,
    { header } = source.capture,
    cell = 2 ** levelFor(frame.pixels);
  const last = (first: number, extent: number) =>
    Math.min(lengthOf(source), Math.round(first + extent / frame.pixels)) - 1;
  const quantity = equation
    ? "Content + position = score, softmax → weight"
    : describe(source.quantity, source.minus, positionOf(source));
  const what = `${quantity}, ${source.capture.title} (${header.encoding}), ${source.capture.place(source.layer)}, head ${source.head + 1}`;
  const compared = source.less
    ? `, minus ${source.less.title}`
    : across
      ? `; above the diagonal ${across.capture.title}`
      : "";
  const { pooling } = app.store.state,
    reduction = pooled(source, pooling),
    ofWeights = pooled({ ...source, quantity: "weights" }, pooling),
    weights = equation && ofWeights !== reduction ? `, ${ofWeights} of the weights` : "",
    cells = cell > 1 ? ` A cell is ${cell} × ${cell} pairs: ${reduction}${weights}.` : "";
  const { notes } = app.store.state,
    noted = notes
      .filter(
        ({ capture, layer, head }) => capture === source.capture.id && layer === source.layer && head === source.head,
      )
      .map(({ query, key, text }) => ` Note at query ${query}, key ${key}: ${text}`);
  return `${what}${compared}. Queries ${frame.query} to ${last(frame.query, frame.height)}, keys ${frame.key} to ${last(frame.key, frame.width)} of ${source.capture.length} ${source.capture.unit}s.${cells}${lockedSentence(app, shown) ?? ""}${noted.join("")}`;
}

function wrap(text: string, width: number): string[] {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines[lines.length - 1].length + word.length > width) lines.push("");
    lines[lines.length - 1] += (lines[lines.length - 1] ? " " : "") + word;
  }
  return lines;
}

/** The scene of what the view shows; maps that are not there yet are waited for. */
export async function makeScene(app: App): Promise<Scene> {
  const panels = panelsOf(app),
    frames = panels.map((shown) => ({ shown, frame: pictureFrame(app, shown) }));
  await computed(app, frames);
  const style = getComputedStyle(app.root),
    ink = style.getPropertyValue("--ink").trim(),
    paper = style.getPropertyValue("--page").trim();
  const across = Math.min(2, frames.length),
    rows = Math.ceil(frames.length / across),
    width = across * (MAP + LEFT + GAP),
    tall = Math.max(...frames.map(({ frame }) => frame.height)) / RATIO,
    equation = signs(panels).some(Boolean);
  const letters = equation ? Math.floor((LETTERS * (width - LEFT - GAP)) / MAP) : LETTERS,
    captions = (equation ? frames.slice(0, 1) : frames).map(({ shown, frame }) =>
      wrap(caption(app, shown, frame, equation), letters),
    ),
    lines = Math.max(...captions.map((each) => each.length)),
    below = CAPTION + (lines - 1) * NEXT + MARGIN,
    height = TOP + tall + NAMED + (equation ? MARGIN : below);
  const at = (n: number) => ({ x: LEFT + (n % across) * (MAP + LEFT + GAP), y: TOP + Math.floor(n / across) * height });
  const shapes = frames.flatMap(({ shown, frame }, n) =>
    panelShapes(app, shown, frame, at(n).x, at(n).y, signs(panels)[n]),
  );
  // Maps of an equation share the caption below the last row.
  captions.forEach((caption, n) => {
    const { x, y } = at(equation ? frames.length - across : n);
    caption.forEach((text, line) => {
      const down = y + tall + NAMED + CAPTION + NEXT * line;
      shapes.push({ kind: "text", x, y: down, text, size: 10, anchor: "start" });
    });
  });
  return { width, height: rows * height + (equation ? below - MARGIN : 0), ink, paper, shapes };
}

function panelShapes(app: App, shown: Shown, frame: Frame, x: number, y: number, sign: string): Shape[] {
  const { source } = shown,
    wide = frame.width / RATIO,
    tall = frame.height / RATIO;
  const shapes: Shape[] = [
    { kind: "image", x, y, width: wide, height: tall, canvas: mapCanvas(app, shown, frame) },
    { kind: "frame", x, y, width: wide, height: tall },
    { kind: "text", x: x + wide / 2, y: y - TOP + 14, text: "key", size: 10, anchor: "middle" },
  ];
  // A sign takes the place of the axis name, which the first map has.
  const words = sign ? sign.split(" ") : ["query"];
  words.forEach((text, n) => {
    const at = { x: x - LEFT + 12, y: y + tall / 2 + 20 * n, anchor: "middle" } as const;
    shapes.push({ kind: "text", ...at, text, size: !sign ? 10 : text.length > 1 ? 11 : 22, turned: !sign });
  });
  const size = frame.pixels / RATIO,
    step = Math.max(1, roundStep(LINE / size)),
    middle = step === 1 ? size / 2 : 0;
  const label = (at: number) =>
    (step === 1 && source.capture.piece(at) ? "" : `${at} `) + visible(source.capture.piece(at)).slice(0, 11);
  const each = (first: number, extent: number, put: (at: number, pixels: number) => void) => {
    for (
      let at = Math.max(0, Math.ceil(first / step) * step);
      at < source.capture.length && (at - first) * size < extent - 4;
      at += step
    )
      put(at, (at - first) * size + middle + 3);
  };
  each(frame.query, tall, (at, pixels) =>
    shapes.push({ kind: "text", x: x - 4, y: y + pixels, text: label(at), size: 9, anchor: "end" }),
  );
  each(frame.key, wide, (at, pixels) =>
    shapes.push({ kind: "text", x: x + pixels, y: y - 4, text: label(at), size: 9, anchor: "start", turned: true }),
  );
  const scale = scaleFor(app, source),
    below = y + tall + 12;
  if (scale) {
    const bar = document.createElement("canvas"),
      one = scale.low === scale.high;
    bar.width = 256;
    bar.height = 1;
    const pixels = new Uint8ClampedArray(barColours(scale, scale, bar.width).buffer);
    bar.getContext("2d")!.putImageData(new ImageData(pixels, bar.width), 0, 0);
    shapes.push(
      { kind: "image", x, y: below, width: wide, height: BAR, canvas: bar },
      { kind: "frame", x, y: below, width: wide, height: BAR },
    );
    const parts = one ? [0.5] : [0, 0.25, 0.5, 0.75, 1];
    const zero = middleOf(scale) === 0 ? along(scale, 0) : null;
    // Zero takes the place of the nearest label.
    if (zero !== null) parts.splice(Math.min(3, Math.max(1, Math.round(4 * zero))), 1, zero);
    for (const part of parts)
      shapes.push({
        kind: "text",
        x: x + wide * part,
        y: below + BAR + 11,
        text: number(part === zero ? 0 : valueAlong(scale, part), 3),
        size: 9,
        anchor: part === 0 ? "start" : part === 1 ? "end" : "middle",
      });
  }
  const title =
    describe(source.quantity, source.minus, positionOf(source)) +
    (source.less ? ", difference" : "") +
    (scale?.spacing === "symlog" ? " (symlog)" : "");
  shapes.push({ kind: "text", x: x + wide / 2, y: y + tall + NAMED, text: title, size: 9, anchor: "middle" });
  return shapes;
}
