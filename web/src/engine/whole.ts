// The whole map of a head in few cells: for thumbnails, for colour limits and to tell which heads are alike.
import { type Stored, widen } from "../core/pack.ts";
import { lengthOf, positionOf, type Source, type Whole } from "../core/source.ts";
import { TILE } from "./messages.ts";
import { Tiles, valuesOf } from "./tiles.ts";

/** Cells a side of a thumbnail at most: fewer than its pixels, so that none is lost. */
export const CELLS = 64;

export function wholeLevel(length: number): number {
  return Math.max(0, Math.ceil(Math.log2(length / CELLS)));
}

const QUANTITY = { mean: "mean", least: "min", greatest: "max" } as const;

/** The map that the pack stores, if it has one. Of an atlas it has means alone. */
function stored(
  source: Source,
): { arrays: Record<keyof typeof QUANTITY, Stored>; index: number; edges: number[] } | null {
  const { capture, layer, quantity } = source;
  if (source.less || source.minus !== "nothing" || positionOf(source) !== 1) return null;
  const get = (name: string) => capture.stored(layer, `overview.${quantity}.${name}`);
  const mean = get("mean"),
    least = get("min") ?? mean,
    greatest = get("max") ?? mean;
  const edges = capture.stored(layer, "overview.edges") ?? capture.arrays?.get("edges");
  if (!mean || !least || !greatest || !edges) return null;
  return {
    arrays: { mean, least, greatest },
    index: capture.header.heads.indexOf(source.head),
    edges: Array.from(edges.data, Number),
  };
}

/** The stored map in at most CELLS cells a side; means are weighted by the pairs a cell can see. */
export function storedMap(source: Source): Whole | null {
  const found = stored(source);
  if (!found) return null;
  const { arrays, index, edges } = found,
    r = edges.length - 1,
    step = Math.ceil(r / CELLS),
    cells = Math.ceil(r / step);
  const pick = (key: keyof typeof QUANTITY) => {
    const cut = arrays[key].data.subarray(index * r * r, (index + 1) * r * r);
    return cut instanceof Uint16Array ? widen(cut) : (cut as Float32Array);
  };
  const from = { mean: pick("mean"), least: pick("least"), greatest: pick("greatest") };
  const out = {
    cells,
    complete: true,
    mean: new Float32Array(cells * cells).fill(NaN),
    least: new Float32Array(cells * cells).fill(NaN),
    greatest: new Float32Array(cells * cells).fill(NaN),
  };
  for (let y = 0; y < cells; y++)
    for (let x = 0; x < cells; x++) {
      let sum = 0,
        weight = 0,
        low = Infinity,
        high = -Infinity;
      for (let a = y * step; a < Math.min(r, (y + 1) * step); a++)
        for (let b = x * step; b < Math.min(r, (x + 1) * step); b++) {
          const at = a * r + b;
          if (Number.isNaN(from.mean[at])) continue;
          const pairs = visiblePairs(edges[a], edges[a + 1], edges[b], edges[b + 1], source.capture.header.causal);
          sum += pairs * from.mean[at];
          weight += pairs;
          low = Math.min(low, from.least[at]);
          high = Math.max(high, from.greatest[at]);
        }
      if (weight) {
        out.mean[y * cells + x] = sum / weight;
        out.least[y * cells + x] = low;
        out.greatest[y * cells + x] = high;
      }
    }
  return out;
}

function visiblePairs(q0: number, q1: number, k0: number, k1: number, causal: boolean): number {
  if (!causal) return (q1 - q0) * (k1 - k0);
  let sum = 0;
  for (let i = q0; i < q1; i++) sum += Math.max(0, Math.min(k1, i + 1) - k0);
  return sum;
}

/** The whole map if it is there (perhaps in part). Ask for it with `wholeTile`. */
export function wholeMap(tiles: Tiles, source: Source): Whole | null {
  const name = Tiles.key(source, -1, 0, 0) + source.head,
    kept = tiles.kept(name);
  if (kept) return kept;
  const fromStore = storedMap(source);
  if (fromStore) {
    tiles.keepWhole(name, fromStore);
    return fromStore;
  }
  const length = lengthOf(source),
    level = wholeLevel(length),
    tile = tiles.peek(source, level, 0, 0);
  if (!tile) return null;
  const cells = Math.ceil(length / 2 ** level),
    head = Tiles.index(source, tile);
  const cut = (what: "mean" | "least" | "greatest") => {
    const values = valuesOf(tile, head, what),
      out = new Float32Array(cells * cells);
    for (let y = 0; y < cells; y++) out.set(values.subarray(y * TILE, y * TILE + cells), y * cells);
    return out;
  };
  const whole = {
    cells,
    mean: cut("mean"),
    least: cut("least"),
    greatest: cut("greatest"),
    complete: Tiles.whole(tile),
  };
  if (whole.complete) tiles.keepWhole(name, whole);
  return whole;
}

/** The tile to ask for, or null where the pack stores the map. */
export function wholeTile(
  source: Source,
  priority: number,
): { source: Source; level: number; row: number; column: number; priority: number } | null {
  return stored(source) ? null : { source, level: wholeLevel(lengthOf(source)), row: 0, column: 0, priority };
}
