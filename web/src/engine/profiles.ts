// Sums over a whole map by distance, by query and by key: one exact pass in the workers, kept.
import type { Capture } from "../core/capture.ts";
import { asBytes, type Quantity } from "../core/pack.ts";
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

const PAIRS = 1 << 21;

export class Profiles {
  private readonly done = new Map<string, Profile>();
  private readonly started = new Map<string, number>();
  private readonly failed = new Set<string>();

  constructor(
    private readonly engine: Engine,
    private readonly host: Host,
    private readonly changed: () => void,
    private readonly fail: (message: string, again: boolean) => void,
  ) {}

  static key(capture: Capture, layer: number, head: number, quantity: Quantity): string {
    return `${capture.id}|${layer}|${head}|${quantity}`;
  }

  /** The profile if it is there; otherwise it is computed and `changed` is called. */
  get(capture: Capture, layer: number, head: number, quantity: Quantity, priority = 5): Profile | null {
    const key = Profiles.key(capture, layer, head, quantity),
      found = this.done.get(key);
    if (found) return found;
    const before = this.started.get(key);
    if (before === undefined && !this.failed.has(key)) {
      this.started.set(key, priority);
      const run = capture.arrays
        ? this.compute(capture, layer, head, quantity, key)
        : this.ask(capture, layer, head, quantity);
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

  private async compute(
    capture: Capture,
    layer: number,
    head: number,
    quantity: Quantity,
    key: string,
  ): Promise<Profile> {
    const t = capture.length,
      factors = this.engine.know(capture, layer, head);
    const index = capture.together(layer) ? capture.header.heads.indexOf(head) : 0;
    const part = { factors, head: index, quantity, minus: null },
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

  private async ask(capture: Capture, layer: number, head: number, quantity: Quantity): Promise<Profile> {
    const { content, buffers } = await this.host.ask({ type: "profile", id: capture.id, layer, head, quantity });
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
