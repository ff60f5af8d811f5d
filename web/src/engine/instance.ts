// One head in the kernel, or all heads of a layer that mixes them: loads factors and computes parts of their maps.
import type { Factors } from "../core/capture.ts";
import { type Numbers, QUANTITIES, type Quantity } from "../core/pack.ts";
import type { Kernel } from "./kernel.ts";
import { type Part, PROFILE, TILE } from "./messages.ts";

const CHUNK = 256;
/** Log-sum-exps that are kept: of some factors of the positional part. */
const KEPT = 4;
const TABLE = { toeplitz: 1, dense: 4 };
const up4 = (n: number) => (n + 3) & ~3;

/** A job that a different worker could not carry out either. */
export class Refused extends Error {}

export class Instance {
  private readonly constants = new Map<string, number>();
  private readonly reserved: number[] = [];
  private readonly globals: Uint8Array;
  private raw = 0;
  /** Log-sum-exp of the rows known, by head and factor of the positional part; NaN where it is not known. */
  private readonly norms = new Map<string, Float64Array>();

  constructor(
    private readonly kernel: Kernel,
    readonly factors: Factors,
  ) {
    try {
      kernel.clear();
      this.load();
      this.globals = kernel.snapshot();
    } catch (error) {
      this.free();
      throw error;
    }
  }

  /** Give the memory back; the instance is not used any more. */
  free(): void {
    for (const at of this.reserved.splice(0)) this.kernel.release(at);
  }

  private reserve(bytes: number): number {
    const at = this.kernel.reserve(bytes);
    this.reserved.push(at);
    return at;
  }

  private get memory(): ArrayBuffer {
    return this.kernel.call.memory.buffer;
  }

  private put(values: Numbers, Type: typeof Float32Array | typeof Float64Array | typeof Int32Array, extra = 0): number {
    if (values instanceof Uint16Array && Type === Float32Array) {
      const to = this.reserve(4 * (values.length + extra)),
        from = this.kernel.scratch("copied", values.byteLength);
      new Uint16Array(this.memory, from, values.length).set(values);
      this.kernel.call.widen(from, to, values.length);
      return to;
    }
    const at = this.reserve(Type.BYTES_PER_ELEMENT * (values.length + extra));
    new Type(this.memory, at, values.length).set(values as Float32Array);
    return at;
  }

  /** Queries or keys with the head dim padded to a multiple of 4, and room to read 4 tokens past the end. */
  private vectors(name: "q" | "k"): { plain: number; turned: number } {
    const { arrays, dim, length, shapes, kind } = this.factors,
      wide = up4(dim);
    const count = arrays[name].length / dim;
    let plain = this.put(arrays[name], Float32Array, 4 * wide);
    if (wide !== dim) {
      const padded = this.reserve(4 * (count + 4) * wide),
        floats = new Float32Array(this.memory);
      for (let n = 0; n < count; n++)
        floats.copyWithin(padded / 4 + n * wide, plain / 4 + n * dim, plain / 4 + (n + 1) * dim);
      plain = padded;
    }
    const angles = arrays[`turn.${name}`];
    if (!angles) return { plain, turned: plain };
    const turned = this.reserve(4 * (count + 4) * wide);
    this.kernel.call.turn(
      plain,
      turned,
      count / length,
      length,
      wide,
      this.put(angles, Float32Array),
      shapes[`turn.${name}`][2],
      kind.pairing === "halves" ? 0 : 1,
    );
    return { plain, turned };
  }

  private load(): void {
    const { factors } = this,
      kernel = this.kernel.call,
      { arrays, kind, heads, length, dim } = factors;
    const q = this.vectors("q"),
      k = this.vectors("k");
    const lse = arrays.lse ? this.put(arrays.lse, Float64Array) : 0;
    kernel.set_layer(
      heads,
      factors.group,
      length,
      up4(dim),
      factors.causal ? 1 : 0,
      kind.scale,
      q.turned,
      k.turned,
      q.plain,
      k.plain,
      this.put(factors.positions, Int32Array),
      lse,
    );
    kernel.set_bend(
      kind.window ?? 0,
      kind.softcap ?? 0,
      arrays.temperature ? this.put(arrays.temperature, Float32Array) : 0,
    );
    const floats = (name: string) => this.put(arrays[name], Float32Array),
      doubles = (name: string) => (arrays[name] ? this.put(arrays[name], Float64Array) : 0);
    const bias = kind.bias;
    if (bias?.kind === "toeplitz")
      kernel.set_table(TABLE.toeplitz, floats("bias.table"), factors.shapes["bias.table"][1], bias.zero);
    if (bias?.kind === "dense") kernel.set_table(TABLE.dense, floats("bias.map"), length, 0);
    if (bias?.kind === "slope") kernel.set_slope(doubles("bias.weight"), doubles("bias.row"), doubles("bias.col"));
    if (bias?.kind === "perceptron") {
      kernel.set_perceptron(
        doubles("bias.near"),
        arrays["bias.near"].length,
        bias.zero,
        doubles("bias.far"),
        arrays["bias.in_weight"].length,
        floats("bias.in_weight"),
        floats("bias.in_bias"),
        floats("bias.out_weight"),
        floats("bias.out_bias"),
        bias.leak,
      );
    }
    if (kind.mix?.kind === "cope") {
      const positions = factors.shapes["mix.table"][1],
        table = new Float32Array(up4(dim) * positions);
      table.set(arrays["mix.table"] as Float32Array);
      kernel.set_cope(
        this.put(table, Float32Array),
        positions,
        kind.mix.divide === "sum" ? 1 / Math.sqrt(dim) : 1,
        this.reserve(4 * (positions + 8 + 2 * 264)),
      );
    } else if (kind.mix) this.loadDape();
  }

  private loadDape(): void {
    const { arrays, kind, heads, shapes } = this.factors,
      mix = kind.mix!;
    const [hidden, channels] = shapes["mix.inner.weight"],
      width = mix.kind === "dapev2" ? mix.kernel : 1;
    const wide = up4(hidden),
      outputs = up4(heads);
    const inner = new Float32Array(wide * channels * width),
      outer = new Float32Array(outputs * wide * width);
    inner.set(arrays["mix.inner.weight"] as Float32Array);
    const given = arrays["mix.outer.weight"] as Float32Array;
    for (let h = 0; h < heads; h++)
      outer.set(given.subarray(h * hidden * width, (h + 1) * hidden * width), h * wide * width);
    const padded = (name: string, size: number) => {
      const values = new Float32Array(size);
      values.set(arrays[name] as Float32Array);
      return this.put(values, Float32Array);
    };
    const columns = 4096 + 4 * width + 64;
    const scratch = [channels, wide, outputs].map((rows) => this.reserve(4 * rows * columns));
    const added = mix.kind !== "dape" || mix.added,
      released = mix.kind === "dapev2" && mix.boundary === "released";
    this.kernel.call.set_dape(
      channels,
      wide,
      outputs,
      width,
      added ? 1 : 0,
      released ? 1 : 0,
      this.put(inner, Float32Array),
      padded("mix.inner.bias", wide),
      this.put(outer, Float32Array),
      padded("mix.outer.bias", outputs),
      ...scratch,
    );
  }

  /** Keep constants to subtract: one per row, or one per distance from 1 - t to t - 1. */
  keep(name: string, values: Float64Array): void {
    const margin = this.factors.length + 8192,
      at = this.reserve(8 * (values.length + 2 * margin));
    new Float64Array(this.memory, at + 8 * margin, values.length).set(values);
    this.constants.set(name, at + 8 * margin);
  }

  /** Address of values [heads, count, columns] of some queries and keys. */
  block(part: Omit<Part, "factors">, query: number, count: number, key: number, columns: number): number {
    const { head, quantity, minus, position = 1 } = part;
    if (quantity === "weights" && !this.factors.arrays.lse)
      throw new Refused("this capture has no log-sum-exp, so its weights are not known");
    const { kernel } = this,
      { shift } = kernel.call,
      heads = head < 0 ? this.factors.heads : 1;
    this.raw = kernel.scratch("block", 4 * heads * count * columns);
    if (position === 1 || quantity === "content") this.rows(head, quantity, query, count, key, columns, this.raw);
    else this.scaled(head, quantity, position, query, count, key, columns);
    if (minus) {
      const at = this.constants.get(minus.name);
      if (at === undefined) throw new Error(`constants ${minus.name} were not loaded`);
      const first = query - key - columns + 1 + this.factors.length - 1;
      if (minus.kind === "row") shift(this.raw, count, columns, at + 8 * query, 0);
      else shift(this.raw, count, columns, 0, at + 8 * first);
    }
    return this.raw;
  }

  /** Write the kernel's values to an address. */
  private rows(
    head: number,
    quantity: Quantity,
    query: number,
    count: number,
    key: number,
    columns: number,
    to: number,
  ): void {
    const space = this.kernel.scratch("row", 4 * 4 * Math.max(4096, columns + 4));
    this.kernel.restore(this, this.globals);
    this.kernel.call.rows(head, QUANTITIES.indexOf(quantity), query, count, key, columns, to, space);
  }

  /** Write content + position (final - content), or what follows from it, to `raw`. */
  private scaled(
    head: number,
    quantity: Quantity,
    position: number,
    query: number,
    count: number,
    key: number,
    columns: number,
  ): void {
    const heads = head < 0 ? this.factors.heads : 1,
      size = heads * count * columns,
      lse = quantity === "weights" ? this.normsOf(head, position, query, count) : null,
      content = this.kernel.scratch("content", 4 * size);
    this.rows(head, "bias", query, count, key, columns, this.raw);
    if (quantity !== "bias") this.rows(head, "content", query, count, key, columns, content);
    const values = this.floats(this.raw, size),
      added = this.floats(content, size);
    if (quantity === "bias") for (let n = 0; n < size; n++) values[n] *= position;
    else for (let n = 0; n < size; n++) values[n] = added[n] + position * values[n];
    if (lse)
      for (let row = 0, n = 0; row < heads * count; row++)
        for (let c = 0; c < columns; c++, n++) values[n] = Math.exp(values[n] - lse[row]);
  }

  /** Log-sum-exp [heads, count] of some rows, over all keys they see and the sink, with the positional part scaled. */
  private normsOf(head: number, position: number, query: number, count: number): Float64Array {
    const { length, causal, arrays, kind } = this.factors,
      heads = head < 0 ? this.factors.heads : 1,
      name = `${head}|${position}`,
      known = this.norms.get(name) ?? new Float64Array(heads * length).fill(NaN);
    this.norms.delete(name);
    this.norms.set(name, known);
    for (const old of this.norms.keys()) if (this.norms.size > KEPT) this.norms.delete(old);
    const last = Math.min(length, query + count),
      step = 16,
      at = this.kernel.scratch("norms", 4 * heads * step * CHUNK),
      content = this.kernel.scratch("norms of content", 4 * heads * step * CHUNK);
    for (let row = query; row < last; row += step) {
      const rows = Math.min(step, last - row);
      if (!known.subarray(row, row + rows).some(Number.isNaN)) continue;
      const top = new Float64Array(heads * rows).fill(-Infinity),
        sum = new Float64Array(heads * rows);
      for (let h = 0; arrays.sink && h < heads; h++)
        for (let r = 0; r < rows; r++) {
          top[h * rows + r] = Number(arrays.sink[head < 0 ? h : head]);
          sum[h * rows + r] = 1;
        }
      const first = Math.max(0, row + 1 - (kind.window ?? length)),
        stop = causal ? row + rows : length;
      for (let key = first - (first % CHUNK); key < stop; key += CHUNK) {
        this.rows(head, "bias", row, rows, key, CHUNK, at);
        this.rows(head, "content", row, rows, key, CHUNK, content);
        const bias = this.floats(at, heads * rows * CHUNK),
          scores = this.floats(content, bias.length);
        for (let r = 0, n = 0; r < heads * rows; r++) {
          const start = n;
          let most = top[r];
          for (let c = 0; c < CHUNK; c++, n++) {
            scores[n] += position * bias[n];
            if (scores[n] > most) most = scores[n];
          }
          if (most === -Infinity) continue;
          let total = sum[r] * Math.exp(top[r] - most);
          for (let c = start; c < n; c++) if (scores[c] === scores[c]) total += Math.exp(scores[c] - most);
          top[r] = most;
          sum[r] = total;
        }
      }
      for (let h = 0; h < heads; h++)
        for (let r = 0; r < rows; r++) known[h * length + row + r] = top[h * rows + r] + Math.log(sum[h * rows + r]);
    }
    const out = new Float64Array(heads * count);
    for (let h = 0; h < heads; h++) out.set(known.subarray(h * length + query, h * length + last), h * count);
    return out;
  }

  floats(at: number, count: number): Float32Array {
    return new Float32Array(this.memory, at, count);
  }

  /** Subtract another instance's block from the one just computed. */
  less(other: Float32Array): void {
    const at = this.kernel.scratch("other", other.byteLength);
    this.floats(at, other.length).set(other);
    this.kernel.call.subtract(this.raw, at, other.length);
  }

  /** Pool one row of cells (the block just computed, one head of it) to mean, least and greatest. */
  pool(head: number, cell: number, cells: number, out: Float32Array[], at: number): void {
    const scratch = this.kernel.scratch("pool", 4 * 4 * cell * cells + 3 * 4 * TILE),
      result = scratch + 4 * 4 * cell * cells;
    const raw = this.raw + 4 * head * cell * cell * cells;
    this.kernel.call.pool(raw, cell, cells, result, result + 4 * cells, result + 8 * cells, scratch);
    const floats = this.floats(result, 3 * cells);
    for (let n = 0; n < 3; n++) out[n].set(floats.subarray(n * cells, (n + 1) * cells), at);
  }

  /** Sums of some rows of a head over all visible keys; arrays as in PROFILE. */
  profile(part: Omit<Part, "factors">, query: number, count: number): Float64Array[] {
    const t = this.factors.length,
      size = 4 * t + 2 * CHUNK;
    const sums = Array.from({ length: 7 }, (_, n) => this.kernel.scratch(`profile ${n}`, 8 * size));
    const arrays = sums.map((at) => new Float64Array(this.memory, at, size));
    arrays.forEach((array, n) => array.fill(n === PROFILE.least ? Infinity : n === PROFILE.greatest ? -Infinity : 0));
    const last = Math.min(t, query + count),
      stop = this.factors.causal ? last : t;
    const window = this.factors.kind.window ?? t,
      start = Math.max(0, query - window + 1);
    for (let key = start - (start % CHUNK); key < stop; key += CHUNK)
      for (let row = query; row < last; row += 32) {
        const rows = Math.min(32, last - row);
        if (this.factors.causal && key > row + rows - 1) continue;
        const raw = this.block({ ...part, minus: null }, row, rows, key, CHUNK);
        const d = 8 * (row - key - CHUNK + 1 + t - 1 + CHUNK); // distances start CHUNK entries in
        const [number, sum, square, least, greatest, rowSum, column] = sums;
        this.kernel.call.profile(
          raw,
          rows,
          CHUNK,
          number + d,
          sum + d,
          square + d,
          least + d,
          greatest + d,
          rowSum + 8 * row,
          column + 8 * key,
        );
      }
    return sums.map((at, n) => {
      const array = new Float64Array(this.memory, at, size);
      return n < 5 ? array.slice(CHUNK, CHUNK + 2 * t - 1) : array.slice(0, t);
    });
  }
}
