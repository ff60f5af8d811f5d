// The view as a scene: every map with its tokens, its colour bar and a caption.

import { place, spacing, table } from "../core/colour.ts";
import { describe, pooled } from "../core/source.ts";
import { number, roundStep, visible } from "../core/text.ts";
import { type App, longest, scaleFor, viewOf } from "../ui/app.ts";
import { levelFor } from "../ui/draw.ts";
import type { MapPanel } from "../ui/map.ts";
import type { Scene, Shape } from "./scene.ts";

const MAP = 420,
  LEFT = 84,
  TOP = 84,
  GAP = 24,
  BAR = 12,
  LINE = 11,
  BELOW = 100;

/** What the view shows, in words. */
export function caption(app: App, panel: MapPanel): string {
  const { source, across } = panel.shown!,
    { header } = source.capture,
    view = viewOf(app.store.state, longest(app)),
    cell = 2 ** levelFor(panel.frame.pixels);
  const first = (at: number) => Math.max(0, Math.floor(at)),
    last = (at: number) => Math.min(source.capture.length, Math.ceil(at + view.span)) - 1;
  const what = `${describe(source.quantity, source.minus)}, ${source.capture.title} (${header.encoding}), ${source.capture.place(source.layer)}, head ${source.head + 1}`;
  const compared = source.less
    ? `, minus ${source.less.title}`
    : across
      ? `; above the diagonal ${across.capture.title}`
      : "";
  const cells = cell > 1 ? ` A cell is ${cell} × ${cell} pairs: ${pooled(source, app.store.state.pooling)}.` : "";
  return `${what}${compared}. Queries ${first(view.query)} to ${last(view.query)}, keys ${first(view.key)} to ${last(view.key)} of ${source.capture.length} ${source.capture.unit}s.${cells}`;
}

function wrap(text: string, width: number): string[] {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines[lines.length - 1].length + word.length > width) lines.push("");
    lines[lines.length - 1] += (lines[lines.length - 1] ? " " : "") + word;
  }
  return lines;
}

export function makeScene(app: App, panels: MapPanel[]): Scene {
  const style = getComputedStyle(app.root),
    ink = style.getPropertyValue("--ink").trim(),
    paper = style.getPropertyValue("--page").trim();
  const across = Math.min(2, panels.length),
    height = TOP + MAP + BELOW;
  const shapes = panels.flatMap((panel, n) =>
    panelShapes(app, panel, LEFT + (n % across) * (MAP + LEFT + GAP), TOP + Math.floor(n / across) * height),
  );
  return { width: across * (MAP + LEFT + GAP), height: Math.ceil(panels.length / across) * height, ink, paper, shapes };
}

function panelShapes(app: App, panel: MapPanel, x: number, y: number): Shape[] {
  const { source } = panel.shown!,
    { frame } = panel,
    tall = (MAP * frame.height) / frame.width;
  const shapes: Shape[] = [
    { kind: "image", x, y, width: MAP, height: tall, canvas: panel.canvas },
    { kind: "frame", x, y, width: MAP, height: tall },
  ];
  const size = (frame.pixels / frame.width) * MAP,
    step = Math.max(1, roundStep(LINE / size)),
    middle = step === 1 ? size / 2 : 0;
  const label = (at: number) =>
    (step === 1 && source.capture.piece(at) ? "" : `${at} `) + visible(source.capture.piece(at)).slice(0, 12);
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
  each(frame.key, MAP, (at, pixels) =>
    shapes.push({ kind: "text", x: x + pixels, y: y - 4, text: label(at), size: 9, anchor: "start", turned: true }),
  );
  const scale = scaleFor(app, source),
    below = y + tall + 12;
  if (scale) {
    const bar = document.createElement("canvas"),
      colours = table(scale.map),
      one = scale.low === scale.high;
    bar.width = 256;
    bar.height = 1;
    bar
      .getContext("2d")!
      .putImageData(
        new ImageData(
          new Uint8ClampedArray(Uint32Array.from({ length: 256 }, (_, n) => colours[one ? 256 : n * 2]).buffer),
          256,
        ),
        0,
        0,
      );
    shapes.push(
      { kind: "image", x, y: below, width: MAP, height: BAR, canvas: bar },
      { kind: "frame", x, y: below, width: MAP, height: BAR },
    );
    const { to, from } = spacing(scale),
      low = to(scale.low),
      high = to(scale.high);
    for (const part of one ? [0.5] : [0, 0.25, 0.5, 0.75, 1]) {
      const value = from(low + part * (high - low)),
        text = number(Math.abs(value) < 1e-12 ? 0 : value, 3);
      shapes.push({
        kind: "text",
        x: x + MAP * place(scale, value),
        y: below + BAR + 11,
        text,
        size: 9,
        anchor: part === 0 ? "start" : part === 1 ? "end" : "middle",
      });
    }
  }
  wrap(caption(app, panel), 84).forEach((line, n) =>
    shapes.push({ kind: "text", x, y: below + BAR + 30 + 13 * n, text: line, size: 10, anchor: "start" }),
  );
  return shapes;
}
