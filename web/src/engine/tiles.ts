// Tiles of 256 x 256 cells, a cell 2^level pairs a side, anchored to token 0. Computed in bands, cached, never sampled.
import type { Capture } from "../core/capture.ts";
import { asBytes } from "../core/pack.ts";
import type { Whole } from "../core/source.ts";
import { family, lengthOf, positionOf, type Source } from "../core/source.ts";
import type { Host } from "../hosts/host.ts";
import { Dropped, type Engine } from "./engine.ts";
import { type Part, TILE, type TileJob } from "./messages.ts";
import { Profiles } from "./profiles.ts";

const BUDGET = 320e6;
/** Pairs of one job: some 30 ms, so that a worker is soon free for what is looked at now. */
const PAIRS = 1 << 21;
/** Whole maps that are kept: some 50 kB each, four of every head of a model with 1,024. */
const MOST_WHOLES = 4096;
/** Milliseconds after which a host that is still computing is asked again. */
const AGAIN = 3000;

/** One tile of one head, or of all heads that are computed together. */
export interface Tile {
  key: string;
  level: number;
  row: number;
  column: number;
  /** Per head: mean, least, greatest of `rows` x TILE cells; at level 0 the three are one array. NaN: hidden, or not
   *  computed yet. */
  heads: Float32Array[][];
  /** Rows of cells within the map, and rows of one band. */
  rows: number;
  step: number;
  /** Bands not yet computed, as first rows. */
  todo: number[];
  running: number;
  /** Bands that could not be computed, as first rows. */
  failed: number[];
  version: number;
  used: number;
  bytes: number;
  /** Not exact, or not yet: how far the host is, and which of mean, min and max are exact all the same. */
  preview: { done: number | null; left: number | null; exact: string[]; note: string } | null;
  /** Ask the host again. */
  stale: boolean;
  /** Coloured pictures by what they show. */
  images: Map<string, { signature: string; canvas: HTMLCanvasElement }>;
}

export class Tiles {
  /** Whole maps that are complete, by source. */
  private readonly wholes = new Map<string, Whole>();
  /** Pictures of whole maps, by source. */
  readonly pictures = new Map<string, { signature: string; canvas: HTMLCanvasElement }>();
  private readonly cache = new Map<string, Tile>();
  private readonly wanted = new Map<string, Map<string, number>>();
  private bytes = 0;
  private clock = 0;
  private failure = "";

  constructor(
    private readonly engine: Engine,
    private readonly host: Host,
    private readonly profiles: Profiles,
    private readonly changed: () => void,
    private readonly fail: (message: string, again: boolean) => void,
  ) {}

  static key(source: Source, level: number, row: number, column: number): string {
    const joint =
      source.capture.arrays !== null &&
      !source.less &&
      source.minus === "nothing" &&
      source.capture.together(source.layer);
    return `${family(source)}|${joint ? "all" : source.head}|${level}|${row}|${column}`;
  }

  /** Index of a source's head among the heads of its tiles. */
  static index(source: Source, tile: Tile): number {
    return tile.heads.length > 1 ? source.capture.header.heads.indexOf(source.head) : 0;
  }

  /** The whole map kept under a name. */
  kept(name: string): Whole | undefined {
    return this.wholes.get(name);
  }

  /** Keep a complete whole map; the oldest ones go first. */
  keepWhole(name: string, whole: Whole): void {
    this.wholes.set(name, whole);
    if (this.wholes.size > MOST_WHOLES) this.wholes.delete(this.wholes.keys().next().value!);
  }

  /** The tile if anything of it is there. */
  peek(source: Source, level: number, row: number, column: number): Tile | undefined {
    const tile = this.cache.get(Tiles.key(source, level, row, column));
    if (tile) tile.used = ++this.clock;
    return tile?.version ? tile : undefined;
  }

  /** Whether a tile has every band. */
  static whole(tile: Tile | undefined): boolean {
    return tile !== undefined && tile.todo.length + tile.failed.length + tile.running === 0;
  }

  /** Say what a viewer of tiles wants now; what nobody wants any more is not computed. */
  want(viewer: string, list: { source: Source; level: number; row: number; column: number; priority: number }[]): void {
    const wanted = new Map<string, number>();
    this.wanted.set(viewer, wanted);
    for (const { source, level, row, column, priority } of list)
      wanted.set(Tiles.key(source, level, row, column), priority);
    for (const { source, level, row, column } of list) this.start(source, level, row, column);
    this.evict();
  }

  /** Number of tiles that are wanted and not complete. */
  get missing(): number {
    let count = 0;
    for (const wanted of this.wanted.values())
      for (const key of wanted.keys()) if (!Tiles.whole(this.cache.get(key))) count++;
    return count;
  }

  /** Whether a part of a map could not be computed. */
  get anyFailed(): boolean {
    return [...this.cache.values()].some((tile) => tile.failed.length > 0);
  }

  private priority(key: string): number {
    let least = Infinity;
    for (const wanted of this.wanted.values()) least = Math.min(least, wanted.get(key) ?? Infinity);
    return least;
  }

  private start(source: Source, level: number, row: number, column: number): void {
    const key = Tiles.key(source, level, row, column),
      cell = 2 ** level,
      length = lengthOf(source);
    let tile = this.cache.get(key);
    if (!tile) {
      const joint = key.includes("|all|"),
        heads = joint ? source.capture.header.heads.length : 1,
        copies = level ? 3 : 1;
      const rows = Math.min(TILE, Math.ceil((length - row * TILE * cell) / cell));
      const step = source.capture.arrays
        ? Math.max(1, Math.min(TILE, Math.floor(PAIRS / (cell * cell * TILE * heads))))
        : TILE;
      const todo = Array.from({ length: Math.ceil(rows / step) }, (_, n) => n * step);
      tile = {
        key,
        level,
        row,
        column,
        rows,
        step,
        todo,
        running: 0,
        failed: [],
        version: 0,
        used: ++this.clock,
        bytes: 4 * rows * TILE * copies * heads,
        preview: null,
        stale: false,
        images: new Map(),
        heads: Array.from({ length: heads }, () =>
          Array.from({ length: copies }, () => new Float32Array(rows * TILE).fill(NaN)),
        ),
      };
      this.cache.set(key, tile);
      this.bytes += tile.bytes;
    }
    if (!source.capture.arrays) {
      if (!tile.running && (tile.todo.length || tile.stale)) void this.ask(source, tile);
    } else if (tile.todo.length) this.compute(source, tile);
  }

  private part(source: Source, capture: Capture, all: boolean): Part | null {
    const { layer, head, quantity } = source,
      position = positionOf(source),
      index = capture.together(layer) ? capture.header.heads.indexOf(head) : 0;
    const part: Part = {
      factors: this.engine.know(capture, layer, head),
      head: all ? -1 : index,
      quantity,
      minus: null,
      position,
    };
    if (source.minus === "nothing") return part;
    const name = `${Profiles.key(capture, layer, head, quantity, position)}|${source.minus}`;
    if (!this.engine.hasConstants(name)) {
      const profile = this.profiles.get(capture, layer, head, quantity, 1, position);
      if (!profile) return null;
      this.engine.keep(
        name,
        source.minus === "row" ? profile.row : profile.mean.map((value) => (Number.isNaN(value) ? 0 : value)),
      );
    }
    return { ...part, minus: { kind: source.minus, name } };
  }

  private compute(source: Source, tile: Tile): void {
    const cell = 2 ** tile.level,
      side = TILE * cell,
      all = tile.heads.length > 1;
    const part = this.part(source, source.capture, all),
      other = source.less ? this.part(source, source.less, false) : null;
    if (!part || (source.less && !other)) return; // constants are on their way; `changed` asks again
    for (const first of tile.todo.splice(0)) {
      const rows = Math.min(tile.step, tile.rows - first);
      const job: TileJob = {
        type: "tile",
        part,
        other,
        level: tile.level,
        query: tile.row * side + first * cell,
        rows,
        key: tile.column * side,
      };
      tile.running++;
      this.engine
        .run({ job, priority: () => this.priority(tile.key) + first / TILE / 1e4 })
        .then(
          (result) => {
            tile.heads.forEach((arrays, h) =>
              arrays.forEach((array, k) => array.set((result as Float32Array[])[h * arrays.length + k], first * TILE)),
            );
            tile.version++;
          },
          (error) => {
            if (error instanceof Dropped) tile.todo.push(first);
            else {
              tile.failed.push(first);
              this.report(error);
            }
          },
        )
        .finally(() => {
          tile.running--;
          tile.todo.sort((a, b) => a - b);
          this.changed();
        });
    }
  }

  private async ask(source: Source, tile: Tile): Promise<void> {
    tile.todo = [];
    tile.stale = false;
    tile.running = 1;
    const other = source.less ? { id: source.less.id } : null;
    try {
      const { content, buffers } = await this.host.ask({
        type: "tile",
        id: source.capture.id,
        layer: source.layer,
        head: source.head,
        quantity: source.quantity,
        minus: source.minus,
        position: positionOf(source),
        other,
        level: tile.level,
        row: tile.row,
        column: tile.column,
      });
      const arrays = buffers.map((buffer) => new Float32Array(asBytes(buffer).slice().buffer));
      tile.heads[0] = tile.level && arrays.length === 1 ? [arrays[0], arrays[0], arrays[0]] : arrays;
      const progress = content.progress as { done?: number; left_seconds?: number | null; note?: string } | undefined;
      tile.preview =
        content.preview === true
          ? {
              done: progress?.done ?? null,
              left: progress?.left_seconds ?? null,
              note: progress?.note ?? "",
              exact: (content.exact as string[] | undefined) ?? [],
            }
          : null;
      tile.version++;
      const askAgain = () => {
        tile.stale = true;
        this.changed();
      };
      if (progress) setTimeout(askAgain, AGAIN);
    } catch (error) {
      tile.failed = [0];
      this.report(error as Error);
    }
    tile.running = 0;
    this.changed();
  }

  /** Compute again what failed. */
  retry(): void {
    this.failure = "";
    for (const tile of this.cache.values()) tile.todo.push(...tile.failed.splice(0));
  }

  private report(error: Error): void {
    if (error.message !== this.failure) this.fail(`A part of the map could not be computed: ${error.message}`, true);
    this.failure = error.message;
  }

  private evict(): void {
    if (this.bytes <= BUDGET) return;
    const old = [...this.cache.values()]
      .filter((tile) => tile.running === 0 && this.priority(tile.key) === Infinity)
      .sort((a, b) => a.used - b.used);
    for (const tile of old) {
      if (this.bytes <= 0.8 * BUDGET) break;
      this.cache.delete(tile.key);
      this.bytes -= tile.bytes;
    }
  }
}

/** Values of a tile as shown. */
export function valuesOf(tile: Tile, head: number, what: "mean" | "least" | "greatest"): Float32Array {
  const arrays = tile.heads[head];
  return arrays[Math.min(arrays.length - 1, ["mean", "least", "greatest"].indexOf(what))];
}
