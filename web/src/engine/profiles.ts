// Sums over a whole map by distance, by query and by key: one exact pass in the workers, kept.
import type { Capture } from "../core/capture.ts";
import { asBytes, type Quantity } from "../core/pack.ts";
import { positionOf, type Source } from "../core/source.ts";
import type { Host } from "../hosts/host.ts";
import { Dropped, type Engine } from "./engine.ts";
import { PROFILE } from "./messages.ts";

export interface Profile {
  /** Entry n is distance n - zero. */
  zero: number;
  count: Float64Array;
  mean: Float64Array;
  deviation: Float64Array;
  least: Float64Array;
  greatest: Float64Array;
  /** Mean over visible keys of every query. */
  row: Float64Array;
  /** Sum over visible queries of every key; empty where the host computed the profile. */
  column: Float64Array;
}

/** Pairs below which a distance is faint, as in figures; in a short text, a quarter of its tokens. */
const FEW = 16;

/** Where distances have few pairs, in heads whose values differ at a distance; null where that is nowhere. */
export function fewPairs({ count, least, greatest }: Profile): boolean[] | null {
  const limit = Math.min(FEW, count.reduce((a, b) => Math.max(a, b)) / 4);
  if (!least.some((value, n) => greatest[n] > value)) return null;
  const few = Array.from(count, (pairs) => pairs > 0 && pairs < limit);
  return few.includes(true) ? few : null;
}

/** How far two maps are apart, over the pairs that both have. */
export interface Distance {
  /** Mean of |difference|. */
  mean: number;
  greatest: number;
}

const PAIRS = 1 << 21;

export class Profiles {
  private readonly done = new Map<string, Profile>();
  private readonly started = new Map<string, number>();
  private readonly failed = new Set<string>();
  private readonly distances = new Map<string, Distance | "running">();

  constructor(
    private readonly engine: Engine,
    private readonly host: Host,
    private readonly changed: () => void,
    private readonly fail: (message: string, again: boolean) => void,
  ) {}

  static key(capture: Capture, layer: number, head: number, quantity: Quantity, position: number): string {
    return `${capture.id}|${layer}|${head}|${quantity}|${position}`;
  }

  /** The profile if it is there; otherwise it is computed and `changed` is called. `position` multiplies the
   *  positional part of the scores. */
  get(capture: Capture, layer: number, head: number, quantity: Quantity, priority = 5, position = 1): Profile | null {
    const key = Profiles.key(capture, layer, head, quantity, position),
      found = this.done.get(key);
    if (found) return found;
    const before = this.started.get(key);
    if (before === undefined && !this.failed.has(key)) {
      this.started.set(key, priority);
      const run = capture.arrays
        ? this.compute(capture, layer, head, quantity, position, key)
        : this.ask(capture, layer, head, quantity, position);
      run
        .then(
          (profile) => {
            this.done.set(key, profile);
            this.changed();
          },
          (error) => {
            if (error instanceof Dropped) return;
            this.failed.add(key);
            this.fail(`The distance profile could not be computed: ${error.message}`, true);
          },
        )
        .finally(() => this.started.delete(key));
    } else if (before !== undefined) this.started.set(key, Math.min(before, priority));
    return null;
  }

  /** Compute again what failed. */
  retry(): void {
    this.failed.clear();
  }

  /** How far a head's map is from the other capture's, if it is there; otherwise it is computed and `changed` called.
   *  Both captures must be here. */
  distance(source: Source, other: Capture): Distance | null {
    const { capture, layer, head, quantity } = source,
      position = positionOf(source),
      key = `${other.id}|${Profiles.key(capture, layer, head, quantity, position)}`,
      found = this.distances.get(key);
    if (found) return found === "running" ? null : found;
    if (this.failed.has(key)) return null;
    this.distances.set(key, "running");
    this.apart(source, other, position).then(
      (distance) => {
        this.distances.set(key, distance);
        this.changed();
      },
      (error) => {
        this.distances.delete(key);
        if (error instanceof Dropped) return;
        this.failed.add(key);
        this.fail(`The difference of two heads could not be computed: ${error.message}`, true);
      },
    );
    return null;
  }

  private async apart(source: Source, other: Capture, position: number): Promise<Distance> {
    const { capture, layer, head, quantity } = source;
    const part = (of: Capture) => ({
      factors: this.engine.know(of, layer, head),
      head: of.together(layer) ? of.header.heads.indexOf(head) : 0,
      quantity,
      minus: null,
      position,
    });
    const t = Math.min(capture.length, other.length),
      rows = Math.max(16, Math.min(t, Math.floor(PAIRS / t))),
      bands: Promise<Float32Array[] | Float64Array[]>[] = [];
    for (let query = 0; query < t; query += rows) {
      const job = { part: part(capture), other: part(other), query, rows: Math.min(rows, t - query), keys: t };
      bands.push(this.engine.run({ job: { type: "distance", ...job }, priority: () => 20 }));
    }
    let count = 0,
      sum = 0,
      greatest = 0;
    for (const [[pairs, size, most]] of await Promise.all(bands)) {
      count += pairs;
      sum += size;
      greatest = Math.max(greatest, most);
    }
    return { mean: sum / count, greatest };
  }

  private async compute(
    capture: Capture,
    layer: number,
    head: number,
    quantity: Quantity,
    position: number,
    key: string,
  ): Promise<Profile> {
    const t = capture.length,
      factors = this.engine.know(capture, layer, head);
    const index = capture.together(layer) ? capture.header.heads.indexOf(head) : 0;
    const part = { factors, head: index, quantity, minus: null, position },
      rows = Math.max(16, Math.min(t, Math.floor(PAIRS / t)));
    const sums = [0, 0, 0, Infinity, -Infinity].map((start) => new Float64Array(2 * t - 1).fill(start));
    sums.push(new Float64Array(t), new Float64Array(t));
    const bands: Promise<void>[] = [];
    for (let query = 0; query < t; query += rows) {
      const job = { type: "profile" as const, part, query, rows: Math.min(rows, t - query) };
      bands.push(
        this.engine
          .run({ job, priority: () => this.started.get(key) ?? 5 })
          .then((band) => merge(sums, band as Float64Array[])),
      );
    }
    await Promise.all(bands);
    const [count, sum, square, least, greatest, row, column] = sums;
    const mean = sum.map((value, n) => (count[n] ? value / count[n] : NaN));
    const deviation = square.map((value, n) =>
      count[n] ? Math.sqrt(Math.max(0, value / count[n] - mean[n] ** 2)) : NaN,
    );
    const window = capture.kind(layer).window ?? t;
    const seen = (query: number) => (capture.header.causal ? Math.min(query + 1, window) : t);
    return {
      zero: t - 1,
      count,
      mean,
      deviation,
      least,
      greatest,
      row: row.map((value, query) => value / seen(query)),
      column,
    };
  }

  private async ask(
    capture: Capture,
    layer: number,
    head: number,
    quantity: Quantity,
    position: number,
  ): Promise<Profile> {
    const asked = { type: "profile", id: capture.id, layer, head, quantity, position },
      { content, buffers } = await this.host.ask(asked);
    const [count, mean, deviation, least, greatest, row] = buffers.map(
      (buffer) => new Float64Array(asBytes(buffer).slice().buffer),
    );
    return {
      zero: -Number(content.first),
      count,
      mean,
      deviation,
      least,
      greatest,
      row,
      column: new Float64Array(0),
    };
  }
}

function merge(sums: Float64Array[], band: Float64Array[]): void {
  band.forEach((array, n) => {
    const into = sums[n];
    if (n === PROFILE.least) for (let d = 0; d < array.length; d++) into[d] = Math.min(into[d], array[d]);
    else if (n === PROFILE.greatest) for (let d = 0; d < array.length; d++) into[d] = Math.max(into[d], array[d]);
    else for (let d = 0; d < array.length; d++) into[d] += array[d];
  });
}
