// What is visible as CSV: exact pairs where every pair is shown, cells where they are pooled.

import { lengthOf, pooled, positionOf } from "../core/source.ts";
import { TILE } from "../engine/messages.ts";
import { Tiles, valuesOf } from "../engine/tiles.ts";
import type { App } from "../ui/app.ts";
import { levelFor, wantedTiles } from "../ui/draw.ts";
import type { MapPanel } from "../ui/map.ts";

const quote = (text: string) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

/** Text for a cell; a spreadsheet must not take a token for a formula. */
export const field = (text: string) => quote(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text);

export const COLUMNS =
  "capture,layer,head,quantity,minus,position,less,reduction,query,query_end,key,key_end,query_token,key_token,value";

/** Rows for every visible pair or cell; layers and heads count from 0, as in Python. */
export function toCsv(app: App, panels: MapPanel[]): string {
  const lines = [COLUMNS];
  for (const panel of panels) {
    const { source } = panel.shown!,
      { frame } = panel,
      { capture } = source,
      level = levelFor(frame.pixels),
      size = 2 ** level,
      what = pooled(source, app.store.state.pooling);
    const stem = [
      capture.title,
      source.layer,
      source.head,
      source.quantity,
      source.minus,
      positionOf(source),
      source.less?.title ?? "",
      level ? what : "none",
    ]
      .map((part) => field(String(part)))
      .join();
    const length = lengthOf(source),
      from = (first: number) => Math.max(0, Math.floor(first / size));
    const to = (first: number, extent: number) =>
      Math.min(Math.ceil(length / size), Math.ceil((first + extent / frame.pixels) / size - 1e-9));
    const found = new Map(
      wantedTiles(source, frame).map(({ row, column }) => [
        `${row}|${column}`,
        app.tiles.peek(source, level, row, column),
      ]),
    );
    const exact = level === 0 && capture.arrays && !source.less && source.minus === "nothing",
      end = (at: number) => Math.min(length, (at + 1) * size);
    for (let r = from(frame.query); r < to(frame.query, frame.height); r++) {
      const row = exact ? app.rows.row(capture, source.layer, source.head, r, 0, positionOf(source)) : null;
      for (let c = from(frame.key); c < to(frame.key, frame.width); c++) {
        const tile = found.get(`${Math.floor(r / TILE)}|${Math.floor(c / TILE)}`);
        const value = row
          ? row[source.quantity][c]
          : tile
            ? valuesOf(tile, Tiles.index(source, tile), what)[(r % TILE) * TILE + (c % TILE)]
            : NaN;
        if (Number.isNaN(value)) continue;
        const names = size === 1 ? [field(capture.piece(r)), field(capture.piece(c))] : ["", ""];
        lines.push(`${stem},${r * size},${end(r)},${c * size},${end(c)},${names.join()},${value}`);
      }
    }
  }
  return `${lines.join("\n")}\n`;
}
