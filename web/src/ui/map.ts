// One map with its title, strips, colour bar and a line on what its cells are.

import type { Scale } from "../core/colour.ts";
import { describe, lengthOf, pooled, positionOf, type Source, sourceName } from "../core/source.ts";
import { wholeMap } from "../engine/whole.ts";
import { type App, longest, matchesOf, pairOf, type Shown, scaleFor, viewOf } from "./app.ts";
import { ColourBar } from "./colourbar.ts";
import { h, say } from "./dom.ts";
import { drawSource, type Frame, levelFor, previewText, type Reduction, type Wanted, wantedTiles } from "./draw.ts";
import { headOf, isEquation } from "./equation.ts";
import { background, clipLower, clipUpper, drawMarks } from "./marks.ts";
import { Pointer } from "./pointer.ts";
import { Strip } from "./strips.ts";

const swap = (frame: Frame): Frame => ({
  ...frame,
  query: frame.key,
  key: frame.query,
  width: frame.height,
  height: frame.width,
});

/** Draw what a panel shows, one source or one in each triangle; returns whether every tile was complete. */
export function drawShown(
  context: CanvasRenderingContext2D,
  { tiles }: App,
  { source, across }: Shown,
  frame: Frame,
  scale: Scale,
  what: Reduction,
): boolean {
  let complete = true;
  context.save();
  if (across) {
    clipUpper(context, frame);
    context.transform(0, 1, 1, 0, 0, 0);
    complete = drawSource(context, tiles, across, swap(frame), scale, what, wholeMap(tiles, across));
    context.restore();
    context.save();
    clipLower(context, frame);
  }
  complete = drawSource(context, tiles, source, frame, scale, what, wholeMap(tiles, source)) && complete;
  context.restore();
  return complete;
}

/** Tiles that a frame needs. */
export function wantedOf({ source, across }: Shown, frame: Frame): Wanted[] {
  const list = wantedTiles(source, frame);
  return across ? [...list, ...wantedTiles(across, swap(frame))] : list;
}

export class MapPanel {
  readonly element: HTMLElement;
  readonly canvas = h("canvas", { class: "pixels" });
  private readonly overlay = h("canvas", { class: "overlay", "aria-hidden": "true" });
  private readonly queries = new Strip("query");
  private readonly keys = new Strip("key");
  private readonly title = h("h3", { class: "title" });
  private readonly before = h("span", { class: "sign", "aria-hidden": "true" });
  /** The sign before this map where several make an equation; it takes the place of the names of the queries. */
  sign = "";
  private readonly status = h("p", { class: "status" });
  readonly stage: HTMLElement;
  readonly bar: ColourBar;
  shown: Shown | null = null;
  frame: Frame = { query: 0, key: 0, pixels: 1, width: 1, height: 1 };
  /** What was complete last: shown while the same map with a different factor of position is computed. */
  private last: { source: Source; scale: Scale } | null = null;

  constructor(private readonly app: App) {
    this.bar = new ColourBar(app);
    this.stage = h(
      "div",
      {
        class: "stage",
        tabindex: 0,
        role: "application",
        "aria-roledescription": "attention map",
      },
      this.canvas,
      this.overlay,
    );
    new Pointer(app, this).listen();
    const corner = h(
      "div",
      { class: "corner", "aria-hidden": "true" },
      h("span", { class: "to" }, "key →"),
      h("span", { class: "from" }, "query ↓"),
    );
    this.element = h(
      "figure",
      { class: "panel" },
      this.title,
      h("div", { class: "frame" }, corner, this.keys.element, this.queries.element, this.before, this.stage),
      this.bar.element,
      this.status,
    );
  }

  focus(): void {
    this.stage.focus();
  }

  /** Tiles that this panel needs. */
  wanted(): Wanted[] {
    if (!this.shown) return [];
    return wantedOf(this.shown, this.frame);
  }

  /** Read sizes and the view; call before `wanted` and `draw`. */
  measure(shown: Shown): void {
    this.shown = shown;
    this.stage.classList.toggle("zoomed", this.app.store.state.view !== null);
    const box = this.stage.getBoundingClientRect(),
      ratio = window.devicePixelRatio || 1,
      view = viewOf(this.app.store.state, longest(this.app));
    const width = Math.max(1, Math.round(box.width * ratio)),
      height = Math.max(1, Math.round(box.height * ratio));
    this.frame = { query: view.query, key: view.key, pixels: width / view.span, width, height };
  }

  draw(): void {
    const { app, frame, shown } = this;
    if (!shown) return;
    const { source, across } = shown,
      { state } = app.store,
      what = pooled(source, state.pooling),
      level = levelFor(frame.pixels);
    say(this.before, this.sign);
    this.before.hidden = !this.sign;
    const quantity = describe(source.quantity, source.minus, positionOf(source)),
      title = `${quantity} · ${headOf(shown)}`;
    // The equation above names the head of all four.
    say(this.title, isEquation(app) ? quantity : title);
    this.stage.setAttribute(
      "aria-label",
      `${title}. ${lengthOf(source)} ${source.capture.unit}s. Arrow keys move by one cell, Enter locks, question mark lists all keys.`,
    );
    if (this.canvas.width !== frame.width || this.canvas.height !== frame.height)
      for (const canvas of [this.canvas, this.overlay]) {
        canvas.width = frame.width;
        canvas.height = frame.height;
      }
    const context = this.canvas.getContext("2d")!,
      style = getComputedStyle(this.element),
      scale = scaleFor(app, source);
    context.imageSmoothingEnabled = false;
    background(context, style, frame, shown);
    let complete = false;
    if (scale) {
      if (!across) this.drawLast(context, source, what);
      complete = drawShown(context, app, shown, frame, scale, what);
      if (complete) this.last = across ? null : { source, scale };
    } else this.drawLast(context, source, what);
    this.bar.show(source, scale ?? (this.replaces(source) ? this.last!.scale : null));
    drawMarks(this.overlay.getContext("2d")!, style, frame, app, shown);
    this.strips();
    const cell = 2 ** level,
      preview = previewText(app.tiles, source, frame, what);
    const computing = app.engine.pending || !app.tiles.anyFailed ? "Computing …" : "A part could not be computed.";
    say(
      this.status,
      (complete ? (cell > 1 ? `A cell is ${cell} × ${cell} pairs: ${what}.` : "Every pair is shown.") : computing) +
        preview,
    );
    this.element.dataset.complete = String(complete);
    this.element.dataset.level = String(level);
  }

  /** Whether what was complete last differs from a source in the factor of position alone. */
  private replaces(source: Source): boolean {
    return (
      this.last !== null && sourceName({ ...this.last.source, position: 1 }) === sourceName({ ...source, position: 1 })
    );
  }

  private drawLast(context: CanvasRenderingContext2D, source: Source, what: Reduction): void {
    if (!this.last || !this.replaces(source) || sourceName(this.last.source) === sourceName(source)) return;
    const { source: before, scale } = this.last;
    drawSource(context, this.app.tiles, before, this.frame, scale, what, wholeMap(this.app.tiles, before));
  }

  private strips(): void {
    const { frame, app } = this,
      ratio = window.devicePixelRatio || 1,
      size = frame.pixels / ratio,
      pair = pairOf(app),
      capture = this.shown!.source.capture;
    const matches = matchesOf(app);
    this.queries.show(capture, frame.query, size, frame.height / ratio, pair?.query ?? null, matches);
    this.keys.show(capture, frame.key, size, frame.width / ratio, pair?.key ?? null, matches);
  }
}
