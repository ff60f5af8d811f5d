// One map with its strips and colour bar: panning, zooming, hovering, locking.
import { type App, captureOf, longest, pairOf, scaleFor, setPair, setView, type Shown, viewOf } from "../app.ts";
import { describe, lengthOf, pooled, type Source } from "../source.ts";
import { wholeMap } from "../whole.ts";
import { ColourBar } from "./colourbar.ts";
import { h, say } from "./dom.ts";
import { drawSource, type Frame, levelFor, previewText, type Wanted, wantedTiles } from "./draw.ts";
import { Strip } from "./strips.ts";

const swap = (frame: Frame): Frame => ({ ...frame, query: frame.key, key: frame.query, width: frame.height, height: frame.width });

export class MapPanel {
  readonly element: HTMLElement;
  readonly canvas = h("canvas", { class: "pixels" });
  private readonly overlay = h("canvas", { class: "overlay", "aria-hidden": "true" });
  private readonly queries = new Strip("query");
  private readonly keys = new Strip("key");
  private readonly title = h("h3", { class: "title" });
  private readonly status = h("p", { class: "status" });
  private readonly stage: HTMLElement;
  readonly bar: ColourBar;
  shown: Shown | null = null;
  frame: Frame = { query: 0, key: 0, pixels: 1, width: 1, height: 1 };
  private drag: { x: number; y: number; moved: boolean; query: number; key: number } | null = null;
  private readonly touches = new Map<number, { x: number; y: number }>();

  constructor(private readonly app: App) {
    this.bar = new ColourBar(app);
    this.stage = h("div", {
      class: "stage", tabindex: 0, role: "application", "aria-roledescription": "attention map",
      onwheel: (event: WheelEvent) => this.wheel(event), onpointerdown: (event: PointerEvent) => this.down(event), onpointermove: (event: PointerEvent) => this.move(event),
      onpointerup: (event: PointerEvent) => this.up(event), onpointercancel: (event: PointerEvent) => this.touches.delete(event.pointerId),
      onpointerleave: () => this.leave(), ondblclick: (event: MouseEvent) => this.zoom(event, 0.5),
    }, this.canvas, this.overlay);
    const corner = h("div", { class: "corner", "aria-hidden": "true" }, h("span", { class: "to" }, "key →"), h("span", { class: "from" }, "query ↓"));
    this.element = h("figure", { class: "panel" }, this.title, h("div", { class: "frame" }, corner, this.keys.element, this.queries.element, this.stage), this.bar.element, this.status);
  }

  focus(): void {
    this.stage.focus();
  }

  /** Tiles that this panel needs. */
  wanted(): Wanted[] {
    if (!this.shown) return [];
    const list = wantedTiles(this.shown.source, this.frame);
    return this.shown.across ? [...list, ...wantedTiles(this.shown.across, swap(this.frame))] : list;
  }

  /** Read sizes and the view; call before `wanted` and `draw`. */
  measure(shown: Shown): void {
    this.shown = shown;
    const box = this.stage.getBoundingClientRect(), ratio = window.devicePixelRatio || 1, view = viewOf(this.app.store.state, longest(this.app));
    const width = Math.max(1, Math.round(box.width * ratio)), height = Math.max(1, Math.round(box.height * ratio));
    this.frame = { query: view.query, key: view.key, pixels: width / view.span, width, height };
  }

  draw(): void {
    const { app, frame, shown } = this;
    if (!shown) return;
    const { source, across } = shown, { state } = app.store, what = pooled(source, state.pooling), level = levelFor(frame.pixels);
    const name = (of: Source) => of.capture.title;
    const titles = source.less ? `${name(source)} minus ${source.less.title}` : across ? `${name(source)} below, ${name(across)} above the diagonal` : name(source);
    say(this.title, `${describe(source.quantity, source.minus)} · layer ${source.layer + 1}, head ${source.head + 1} · ${titles}`);
    this.stage.setAttribute("aria-label", `${this.title.textContent}. ${lengthOf(source)} tokens. Arrow keys move by one cell, Enter locks, question mark lists all keys.`);
    if (this.canvas.width !== frame.width || this.canvas.height !== frame.height) for (const canvas of [this.canvas, this.overlay]) (canvas.width = frame.width), (canvas.height = frame.height);
    const context = this.canvas.getContext("2d")!, scale = scaleFor(app, source);
    context.imageSmoothingEnabled = false;
    this.background(context, across !== null);
    let complete = false;
    if (scale) {
      context.save();
      if (across) {
        this.clipUpper(context);
        context.transform(0, 1, 1, 0, 0, 0);
        complete = drawSource(context, app.tiles, across, swap(frame), scale, what, wholeMap(app.tiles, across));
        context.restore();
        context.save();
        this.clipLower(context);
      } else complete = true;
      complete = drawSource(context, app.tiles, source, frame, scale, what, wholeMap(app.tiles, source)) && complete;
      context.restore();
    }
    this.bar.show(source, scale);
    this.marks();
    this.strips();
    const cell = 2 ** level, preview = previewText(app.tiles, source, frame);
    say(this.status, (complete ? (cell > 1 ? `A cell is ${cell} × ${cell} pairs: ${what}.` : "Every pair is shown.") : "Computing …") + preview);
    this.element.dataset["complete"] = String(complete);
    this.element.dataset["level"] = String(level);
  }

  /** Hatching where no pair is visible, a plain colour where values are still to come. */
  private background(context: CanvasRenderingContext2D, both: boolean): void {
    const style = getComputedStyle(this.element), { frame } = this, length = lengthOf(this.shown!.source);
    context.fillStyle = style.getPropertyValue("--page");
    context.fillRect(0, 0, frame.width, frame.height);
    const at = (token: number, first: number) => (token - first) * frame.pixels;
    const x0 = at(0, frame.key), y0 = at(0, frame.query), x1 = at(length, frame.key), y1 = at(length, frame.query);
    context.save();
    context.beginPath();
    context.rect(x0, y0, x1 - x0, y1 - y0);
    context.clip();
    context.fillStyle = style.getPropertyValue("--hidden");
    context.fillRect(0, 0, frame.width, frame.height);
    context.strokeStyle = style.getPropertyValue("--hatch");
    context.lineWidth = 1;
    context.beginPath();
    for (let x = -frame.height; x < frame.width; x += 8) context.moveTo(x, frame.height), context.lineTo(x + frame.height, 0);
    context.stroke();
    context.fillStyle = style.getPropertyValue("--pending");
    context.beginPath();
    context.moveTo(x0, y0);
    if (both || !this.shown!.source.capture.header.causal) context.lineTo(x1, y0);
    context.lineTo(x1, y1);
    context.lineTo(x0, y1);
    context.fill();
    context.restore();
  }

  /** The stairs of the diagonal would need a path per token; half a cell up keeps the diagonal cells below. */
  private clipLower(context: CanvasRenderingContext2D): void {
    const { frame } = this, offset = (frame.query - frame.key) * frame.pixels + frame.pixels;
    context.beginPath();
    context.moveTo(offset, 0);
    context.lineTo(offset + frame.height, frame.height);
    context.lineTo(-frame.width, frame.height);
    context.lineTo(-frame.width, 0);
    context.clip();
  }

  private clipUpper(context: CanvasRenderingContext2D): void {
    const { frame } = this, offset = (frame.query - frame.key) * frame.pixels;
    context.beginPath();
    context.moveTo(offset, 0);
    context.lineTo(offset + frame.height, frame.height);
    context.lineTo(2 * frame.width + frame.height, frame.height);
    context.lineTo(2 * frame.width, 0);
    context.clip();
  }

  /** Cross hairs, notes and search results. */
  private marks(): void {
    const context = this.overlay.getContext("2d")!, { frame, app } = this, { state } = app.store, pair = pairOf(app);
    context.clearRect(0, 0, frame.width, frame.height);
    const style = getComputedStyle(this.element), accent = style.getPropertyValue("--accent"), ratio = window.devicePixelRatio || 1;
    const box = (query: number, key: number) => {
      const size = Math.max(frame.pixels, 2);
      return [(key - frame.key) * frame.pixels, (query - frame.query) * frame.pixels, size, size] as const;
    };
    context.fillStyle = style.getPropertyValue("--found");
    for (const token of matchesOf(app)) {
      const y = (token - frame.query) * frame.pixels, x = (token - frame.key) * frame.pixels, size = Math.max(frame.pixels, 2);
      if (y > -size && y < frame.height) context.fillRect(0, y, 8 * ratio, size);
      if (x > -size && x < frame.width) context.fillRect(x, 0, size, 8 * ratio);
    }
    context.lineWidth = 2 * ratio;
    for (const note of state.notes) {
      if (note.layer !== state.layer || note.head !== state.head || note.capture !== this.shown!.source.capture.id) continue;
      const [x, y, w] = box(note.query, note.key);
      context.strokeStyle = style.getPropertyValue("--found");
      context.beginPath();
      context.arc(x + w / 2, y + w / 2, Math.max(w, 6 * ratio), 0, 7);
      context.stroke();
    }
    if (!pair) return;
    const [x, y, w, height] = box(pair.query, pair.key);
    context.fillStyle = style.getPropertyValue("--cross");
    context.fillRect(0, y, frame.width, Math.max(height, ratio));
    context.fillRect(x, 0, Math.max(w, ratio), frame.height);
    const outlined = this.shown!.across ? [box(pair.query, pair.key), box(pair.key, pair.query)] : [box(pair.query, pair.key)];
    for (const [colour, width] of [[style.getPropertyValue("--page"), state.locked ? 5 : 3], [accent, state.locked ? 3 : 1]] as const) {
      context.strokeStyle = colour;
      context.lineWidth = width * ratio;
      for (const [left, top] of outlined) context.strokeRect(left - ratio, top - ratio, w + 2 * ratio, height + 2 * ratio);
    }
  }

  private strips(): void {
    const { frame, app } = this, ratio = window.devicePixelRatio || 1, size = frame.pixels / ratio, pair = pairOf(app), capture = this.shown!.source.capture;
    const matches = matchesOf(app);
    this.queries.show(capture, frame.query, size, frame.height / ratio, pair?.query ?? null, matches);
    this.keys.show(capture, frame.key, size, frame.width / ratio, pair?.key ?? null, matches);
  }

  private locate(event: { clientX: number; clientY: number }): { query: number; key: number } {
    const box = this.stage.getBoundingClientRect(), { frame } = this, ratio = frame.width / box.width;
    return { query: frame.query + ((event.clientY - box.top) * ratio) / frame.pixels, key: frame.key + ((event.clientX - box.left) * ratio) / frame.pixels };
  }

  zoom(event: { clientX: number; clientY: number }, factor: number): void {
    const at = this.locate(event), view = viewOf(this.app.store.state, longest(this.app));
    const span = Math.min(Math.max(view.span * factor, 4), longest(this.app) * 1.5), share = span / view.span;
    setView(this.app, { query: at.query - (at.query - view.query) * share, key: at.key - (at.key - view.key) * share, span });
  }

  private wheel(event: WheelEvent): void {
    event.preventDefault();
    this.zoom(event, Math.exp(Math.max(-80, Math.min(80, event.deltaY)) * 0.004));
  }

  private down(event: PointerEvent): void {
    this.stage.setPointerCapture(event.pointerId);
    this.touches.set(event.pointerId, { x: event.clientX, y: event.clientY });
    const view = viewOf(this.app.store.state, longest(this.app));
    this.drag = { x: event.clientX, y: event.clientY, moved: false, query: view.query, key: view.key };
  }

  private move(event: PointerEvent): void {
    const { app, drag } = this, before = this.touches.get(event.pointerId);
    if (before && this.touches.size === 2) {  // two fingers zoom
      const [a, b] = [...this.touches.values()], wide = Math.hypot(a.x - b.x, a.y - b.y);
      before.x = event.clientX;
      before.y = event.clientY;
      const now = Math.hypot(a.x - b.x, a.y - b.y);
      if (now > 10 && wide > 10) this.zoom({ clientX: (a.x + b.x) / 2, clientY: (a.y + b.y) / 2 }, wide / now);
      if (drag) drag.moved = true;
      return;
    }
    if (drag && before) {
      const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
      if (Math.hypot(dx, dy) > 4) drag.moved = true;
      if (drag.moved) {
        const pixels = this.frame.pixels / (window.devicePixelRatio || 1), view = viewOf(app.store.state, longest(app));
        setView(app, { ...view, query: drag.query - dy / pixels, key: drag.key - dx / pixels });
        return;
      }
    }
    if (app.store.state.locked) return;
    const at = this.inside(event);
    app.hover = at;
    app.draw();
  }

  private inside(event: PointerEvent): { query: number; key: number } | null {
    const at = this.locate(event), query = Math.floor(at.query), key = Math.floor(at.key), length = longest(this.app);
    if (query < 0 || key < 0 || query >= length || key >= length) return null;
    return this.shown?.across && key > query ? { query: key, key: query } : { query, key };
  }

  private up(event: PointerEvent): void {
    const drag = this.drag;
    this.touches.delete(event.pointerId);
    this.drag = null;
    if (!drag || drag.moved) return;
    const at = this.inside(event);
    if (at) lock(this.app, at);
  }

  private leave(): void {
    if (this.app.store.state.locked || document.activeElement === this.stage) return;
    this.app.hover = null;
    this.app.draw();
  }
}

/** Lock a pair; locking the locked pair unlocks it. */
export function lock(app: App, pair: { query: number; key: number }): void {
  const { locked } = app.store.state;
  if (locked && locked.query === pair.query && locked.key === pair.key) app.store.set({ locked: null });
  else {
    app.store.set({ locked: pair });
    setPair(app, pair, false);
  }
}

let searched = { text: "", capture: "", found: new Set<number>() };

/** Tokens that contain the text searched for. */
export function matchesOf(app: App): Set<number> {
  const { search, capture } = app.store.state, text = search.toLowerCase();
  if (searched.text !== text || searched.capture !== capture) {
    const pieces = text ? captureOf(app)?.header.pieces ?? [] : [];
    searched = { text, capture, found: new Set(pieces.flatMap((piece, at) => (piece.toLowerCase().includes(text) ? [at] : []))) };
  }
  return searched.found;
}
