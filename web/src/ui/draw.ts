// Draws a source's tiles on a canvas: coarser ones first, so that nothing flickers while finer ones are computed.
import { paint, type Scale, signature } from "../core/colour.ts";
import { lengthOf, type Source, sourceName, type Whole } from "../core/source.ts";
import { TILE } from "../engine/messages.ts";
import { type Tile, Tiles, valuesOf } from "../engine/tiles.ts";
import { wholeLevel } from "../engine/whole.ts";

export type Reduction = "mean" | "least" | "greatest";

/** Where tokens are on the canvas: device pixels per token, and the first query and key. */
export interface Frame {
  query: number;
  key: number;
  pixels: number;
  width: number;
  height: number;
}

/** The finest level whose cells are at least one pixel wide. */
export function levelFor(pixels: number): number {
  return Math.max(0, Math.ceil(Math.log2(1 / pixels) - 1e-9));
}

export interface Wanted {
  source: Source;
  level: number;
  row: number;
  column: number;
  priority: number;
}

/** The tiles that a frame shows, nearest to its middle first. */
export function wantedTiles(source: Source, frame: Frame): Wanted[] {
  const level = levelFor(frame.pixels),
    side = TILE * 2 ** level,
    length = lengthOf(source),
    out: Wanted[] = [];
  const bottom = Math.min(length, frame.query + frame.height / frame.pixels),
    right = Math.min(length, frame.key + frame.width / frame.pixels);
  const middle = [(frame.query + bottom) / 2 / side - 0.5, (frame.key + right) / 2 / side - 0.5];
  for (let row = Math.max(0, Math.floor(frame.query / side)); row * side < bottom; row++) {
    for (let column = Math.max(0, Math.floor(frame.key / side)); column * side < right; column++) {
      if (source.capture.header.causal && column > row) continue;
      out.push({ source, level, row, column, priority: Math.hypot(row - middle[0], column - middle[1]) / 1000 });
    }
  }
  return out;
}

function image(tile: Tile, head: number, what: Reduction, scale: Scale): HTMLCanvasElement {
  const name = `${head}|${tile.level ? what : ""}`,
    sign = `${signature(scale)}|${tile.version}`,
    found = tile.images.get(name);
  if (found?.signature === sign) return found.canvas;
  const canvas = found?.canvas ?? document.createElement("canvas");
  canvas.width = canvas.height = TILE;
  colourOn(canvas, valuesOf(tile, head, what), scale);
  tile.images.set(name, { signature: sign, canvas });
  return canvas;
}

function colourOn(canvas: HTMLCanvasElement, values: Float32Array, scale: Scale): void {
  const pixels = new Uint32Array(values.length);
  paint(values, scale, pixels);
  canvas.getContext("2d")!.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), canvas.width), 0, 0);
}

/** A whole map as a picture of cells x cells pixels. */
export function wholeImage(whole: Whole, what: Reduction, scale: Scale): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = whole.cells;
  colourOn(canvas, whole[what], scale);
  return canvas;
}

/** The whole map's picture, kept for the head shown last. */
function baseImage(
  bases: Tiles["pictures"],
  source: Source,
  whole: Whole,
  what: Reduction,
  scale: Scale,
): HTMLCanvasElement {
  const name = sourceName(source),
    sign = `${signature(scale)}|${what}|${whole.complete}`,
    found = bases.get(name);
  if (found && found.signature === sign && whole.complete) return found.canvas;
  if (bases.size > 16) bases.clear();
  const canvas = wholeImage(whole, what, scale);
  bases.set(name, { signature: sign, canvas });
  return canvas;
}

/** Draw what is there; returns whether every tile was complete. */
export function drawSource(
  context: CanvasRenderingContext2D,
  tiles: Tiles,
  source: Source,
  frame: Frame,
  scale: Scale,
  what: Reduction,
  whole: Whole | null,
): boolean {
  const at = (token: number, first: number) => Math.round((token - first) * frame.pixels);
  const put = (
    picture: HTMLCanvasElement,
    sx: number,
    sy: number,
    cells: number,
    query: number,
    key: number,
    side: number,
  ) => {
    const x = at(key, frame.key),
      y = at(query, frame.query);
    context.drawImage(
      picture,
      sx,
      sy,
      cells,
      cells,
      x,
      y,
      at(key + side, frame.key) - x,
      at(query + side, frame.query) - y,
    );
  };
  const list = wantedTiles(source, frame),
    found = list.map(({ level, row, column }) => tiles.peek(source, level, row, column));
  const complete = found.every((tile) => Tiles.whole(tile)),
    top = wholeLevel(lengthOf(source));
  if (!complete && whole) {
    const side =
      whole.complete && source.capture.stored(source.layer, "overview.edges")
        ? lengthOf(source)
        : whole.cells * 2 ** top;
    put(baseImage(tiles.pictures, source, whole, what, scale), 0, 0, whole.cells, 0, 0, side);
  }
  list.forEach(({ level, row, column }, n) => {
    const tile = found[n],
      side = TILE * 2 ** level;
    if (!Tiles.whole(tile)) {
      for (let up = 1; level + up <= top + 8 && up <= 8; up++) {
        const share = 2 ** up,
          coarse = tiles.peek(source, level + up, Math.floor(row / share), Math.floor(column / share));
        if (!coarse) continue;
        const cells = TILE / share,
          picture = image(coarse, Tiles.index(source, coarse), what, scale);
        put(picture, (column % share) * cells, (row % share) * cells, cells, row * side, column * side, side);
        break;
      }
      for (let part = 0; level > 0 && part < 4; part++) {
        const r = 2 * row + (part >> 1),
          c = 2 * column + (part & 1),
          fine = tiles.peek(source, level - 1, r, c);
        if (fine)
          put(
            image(fine, Tiles.index(source, fine), what, scale),
            0,
            0,
            TILE,
            (r * side) / 2,
            (c * side) / 2,
            side / 2,
          );
      }
    }
    if (tile) put(image(tile, Tiles.index(source, tile), what, scale), 0, 0, TILE, row * side, column * side, side);
  });
  return complete;
}

const REDUCTION = { mean: "mean", least: "min", greatest: "max" };

/** A sentence where what is shown of a tile is a preview; empty otherwise. */
export function previewText(tiles: Tiles, source: Source, frame: Frame, what: "mean" | "least" | "greatest"): string {
  const found = wantedTiles(source, frame)
    .map(({ level, row, column }) => tiles.peek(source, level, row, column)?.preview)
    .find((preview) => preview && !preview.exact.includes(REDUCTION[what]));
  if (!found) return "";
  if (found.exact.length)
    return ` This is a preview from some pairs of every cell; the ${found.exact.join(", ")} is exact.`;
  const done = found.done === null ? "" : `: ${Math.floor(100 * found.done)}% done`,
    minutes = found.left === null ? "" : `, ${Math.ceil(found.left / 60)} min left`;
  return ` This is a preview from some whole rows; the exact map is being computed${done}${minutes}. ${found.note}`.trimEnd();
}
