// What is drawn under and over a map: hatching for hidden pairs, cross hairs, notes and search results.

import { lengthOf } from "../core/source.ts";
import { type App, matchesOf, pairOf, type Shown } from "./app.ts";
import type { Frame } from "./draw.ts";

/** Hatching where no pair is visible, a plain colour where values are still to come. */
export function background(
  context: CanvasRenderingContext2D,
  style: CSSStyleDeclaration,
  frame: Frame,
  shown: Shown,
): void {
  const length = lengthOf(shown.source);
  context.fillStyle = style.getPropertyValue("--page");
  context.fillRect(0, 0, frame.width, frame.height);
  const at = (token: number, first: number) => (token - first) * frame.pixels;
  const x0 = at(0, frame.key),
    y0 = at(0, frame.query),
    x1 = at(length, frame.key),
    y1 = at(length, frame.query);
  context.save();
  context.beginPath();
  context.rect(x0, y0, x1 - x0, y1 - y0);
  context.clip();
  context.fillStyle = style.getPropertyValue("--hidden");
  context.fillRect(0, 0, frame.width, frame.height);
  context.strokeStyle = style.getPropertyValue("--hatch");
  context.lineWidth = 1;
  context.beginPath();
  for (let x = -frame.height; x < frame.width; x += 8) {
    context.moveTo(x, frame.height);
    context.lineTo(x + frame.height, 0);
  }
  context.stroke();
  context.fillStyle = style.getPropertyValue("--pending");
  context.beginPath();
  context.moveTo(x0, y0);
  const { capture, layer } = shown.source,
    triangle = capture.header.causal && !shown.across,
    window = triangle ? (capture.kind(layer).window ?? length) : length;
  if (!triangle) context.lineTo(x1, y0);
  context.lineTo(x1, y1);
  if (window < length) {
    context.lineTo(at(length - window + 1, frame.key), y1);
    context.lineTo(x0, at(window - 1, frame.query));
  } else context.lineTo(x0, y1);
  context.fill();
  context.restore();
}

/** Keep to the lower triangle, one token above the diagonal so that its cells stay whole. */
export function clipLower(context: CanvasRenderingContext2D, frame: Frame): void {
  const offset = (frame.query - frame.key) * frame.pixels + frame.pixels;
  context.beginPath();
  context.moveTo(offset, 0);
  context.lineTo(offset + frame.height, frame.height);
  context.lineTo(-frame.width, frame.height);
  context.lineTo(-frame.width, 0);
  context.clip();
}

/** Keep to the upper triangle. */
export function clipUpper(context: CanvasRenderingContext2D, frame: Frame): void {
  const offset = (frame.query - frame.key) * frame.pixels;
  context.beginPath();
  context.moveTo(offset, 0);
  context.lineTo(offset + frame.height, frame.height);
  context.lineTo(2 * frame.width + frame.height, frame.height);
  context.lineTo(2 * frame.width, 0);
  context.clip();
}

/** Cross hairs, notes and search results. */
export function drawMarks(
  context: CanvasRenderingContext2D,
  style: CSSStyleDeclaration,
  frame: Frame,
  app: App,
  shown: Shown,
  pair = pairOf(app),
  ratio = window.devicePixelRatio || 1,
): void {
  const { state } = app.store;
  context.clearRect(0, 0, frame.width, frame.height);
  const accent = style.getPropertyValue("--accent");
  const box = (query: number, key: number) => {
    const size = Math.max(frame.pixels, 2);
    return [(key - frame.key) * frame.pixels, (query - frame.query) * frame.pixels, size, size] as const;
  };
  context.fillStyle = style.getPropertyValue("--found");
  for (const token of matchesOf(app)) {
    const y = (token - frame.query) * frame.pixels,
      x = (token - frame.key) * frame.pixels,
      size = Math.max(frame.pixels, 2);
    if (y > -size && y < frame.height) context.fillRect(0, y, 8 * ratio, size);
    if (x > -size && x < frame.width) context.fillRect(x, 0, size, 8 * ratio);
  }
  context.lineWidth = 2 * ratio;
  for (const note of state.notes) {
    if (note.layer !== state.layer || note.head !== state.head || note.capture !== shown.source.capture.id) continue;
    const [x, y, w] = box(note.query, note.key);
    context.strokeStyle = style.getPropertyValue("--found");
    context.beginPath();
    context.arc(x + w / 2, y + w / 2, Math.max(w, 6 * ratio), 0, 7);
    context.stroke();
  }
  if (!pair) return;
  const [x, y, w, height] = box(pair.query, pair.key);
  // Lines beside the row and the column: what is read keeps its colour.
  context.fillStyle = style.getPropertyValue("--cross");
  const line = Math.max(1, Math.round(ratio));
  for (const at of [y - line, y + height]) context.fillRect(0, Math.round(at), frame.width, line);
  for (const at of [x - line, x + w]) context.fillRect(Math.round(at), 0, line, frame.height);
  // Outside the cell, whose own colour stays visible, and in the middle of its lighter edge.
  const edge = state.locked ? 5 : 3;
  const outlined = shown.across ? [box(pair.query, pair.key), box(pair.key, pair.query)] : [box(pair.query, pair.key)];
  for (const [colour, width] of [
    [style.getPropertyValue("--page"), edge],
    [accent, edge - 2],
  ] as const) {
    context.strokeStyle = colour;
    context.lineWidth = width * ratio;
    for (const [left, top] of outlined) {
      const x0 = Math.floor(left + 1e-6) - (edge / 2) * ratio,
        y0 = Math.floor(top + 1e-6) - (edge / 2) * ratio,
        x1 = Math.ceil(left + w - 1e-6) + (edge / 2) * ratio,
        y1 = Math.ceil(top + height - 1e-6) + (edge / 2) * ratio;
      context.strokeRect(x0, y0, x1 - x0, y1 - y0);
    }
  }
}
