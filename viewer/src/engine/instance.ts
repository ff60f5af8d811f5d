// One layer inside the kernel: loads factors into a WebAssembly instance and computes parts of its maps.
import { type Factors } from "../capture.ts";
import { type Numbers, type Quantity, QUANTITIES } from "../pack.ts";
import { PROFILE, TILE } from "./messages.ts";

type Call = (...numbers: number[]) => number;
interface Kernel {
  memory: WebAssembly.Memory;
  allocate: Call;
  widen: Call;
  turn: Call;
  rows: Call;
  subtract: Call;
  shift: Call;
  pool: Call;
  profile: Call;
  set_layer: Call;
  set_bend: Call;
  set_table: Call;
  set_slope: Call;
  set_perceptron: Call;
  set_dape: Call;
  set_cope: Call;
}

const CHUNK = 256;
const TABLE = { toeplitz: 1, dense: 4 };
const up4 = (n: number) => (n + 3) & ~3;

export class Instance {
  private readonly kernel: Kernel;
  private readonly constants = new Map<string, number>();
  private readonly scratch: number;
  private raw = { at: 0, size: 0 };
  private sums: number[] | null = null;

  constructor(
    module: WebAssembly.Module,
    readonly factors: Factors,
  ) {
    this.kernel = new WebAssembly.Instance(module, {}).exports as unknown as Kernel;
    this.scratch = this.reserve(4 * 4 * 4096);
    this.load();
  }

  private reserve(bytes: number): number {
    const at = this.kernel.allocate(bytes);
    if (!at) throw new Error(`the browser has no memory left for ${Math.round(bytes / 1e6)} MB of factors`);
    return at;
  }

  private put(values: Numbers, Type: typeof Float32Array | typeof Float64Array | typeof Int32Array, extra = 0): number {
    if (values instanceof Uint16Array && Type === Float32Array) {
      const from = this.reserve(values.byteLength),
        to = this.reserve(4 * (values.length + extra));
      new Uint16Array(this.kernel.memory.buffer, from, values.length).set(values);
      this.kernel.widen(from, to, values.length);
      return to;
    }
    const at = this.reserve(Type.BYTES_PER_ELEMENT * (values.length + extra));
    new Type(this.kernel.memory.buffer, at, values.length).set(values as Float32Array);
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
        floats = new Float32Array(this.kernel.memory.buffer);
      for (let n = 0; n < count; n++)
        floats.copyWithin(padded / 4 + n * wide, plain / 4 + n * dim, plain / 4 + (n + 1) * dim);
      plain = padded;
    }
    const angles = arrays[`turn.${name}`];
    if (!angles) return { plain, turned: plain };
    const turned = this.reserve(4 * (count + 4) * wide);
    this.kernel.turn(
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
    const { factors, kernel } = this,
      { arrays, kind, heads, length, dim } = factors;
    const q = this.vectors("q"),
      k = this.vectors("k");
    const lse = arrays["lse"] ? this.put(arrays["lse"], Float64Array) : 0;
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
      arrays["temperature"] ? this.put(arrays["temperature"], Float32Array) : 0,
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
    this.kernel.set_dape(
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
    new Float64Array(this.kernel.memory.buffer, at + 8 * margin, values.length).set(values);
    this.constants.set(name, at + 8 * margin);
  }

  /** Address of values [heads, count, columns] of some queries and keys. */
  block(
    head: number,
    quantity: Quantity,
    minus: { kind: "row" | "distance"; name: string } | null,
    query: number,
    count: number,
    key: number,
    columns: number,
  ): number {
    if (quantity === "weights" && !this.factors.arrays["lse"])
      throw new Error("this capture has no log-sum-exp, so its weights are not known");
    const { kernel } = this,
      heads = head < 0 ? this.factors.heads : 1,
      size = 4 * heads * count * columns;
    if (size > this.raw.size) this.raw = { at: this.reserve(size), size };
    kernel.rows(head, QUANTITIES.indexOf(quantity), query, count, key, columns, this.raw.at, this.scratch);
    if (minus) {
      const at = this.constants.get(minus.name);
      if (at === undefined) throw new Error(`constants ${minus.name} were not loaded`);
      const first = query - key - columns + 1 + this.factors.length - 1;
      if (minus.kind === "row") kernel.shift(this.raw.at, count, columns, at + 8 * query, 0);
      else kernel.shift(this.raw.at, count, columns, 0, at + 8 * first);
    }
    return this.raw.at;
  }

  floats(at: number, count: number): Float32Array {
    return new Float32Array(this.kernel.memory.buffer, at, count);
  }

  /** Subtract another instance's block from the one just computed. */
  less(other: Float32Array): void {
    const at = this.reserveSpare(other.byteLength);
    this.floats(at, other.length).set(other);
    this.kernel.subtract(this.raw.at, at, other.length);
  }

  private spare = { at: 0, size: 0 };
  private reserveSpare(size: number): number {
    if (size > this.spare.size) this.spare = { at: this.reserve(size), size };
    return this.spare.at;
  }

  /** Pool one row of cells (the block just computed, one head of it) to mean, least and greatest. */
  pool(head: number, cell: number, cells: number, out: Float32Array[], at: number): void {
    const scratch = this.pooled(cell * cells),
      result = scratch + 4 * 4 * cell * cells;
    const raw = this.raw.at + 4 * head * cell * cell * cells;
    this.kernel.pool(raw, cell, cells, result, result + 4 * cells, result + 8 * cells, scratch);
    const floats = this.floats(result, 3 * cells);
    for (let n = 0; n < 3; n++) out[n].set(floats.subarray(n * cells, (n + 1) * cells), at);
  }

  private pooling = { at: 0, size: 0 };
  private pooled(columns: number): number {
    const size = 4 * 4 * columns + 3 * 4 * TILE;
    if (size > this.pooling.size) this.pooling = { at: this.reserve(size), size };
    return this.pooling.at;
  }

  /** Sums of some rows of a head over all visible keys; arrays as in PROFILE. */
  profile(head: number, quantity: Quantity, query: number, count: number): Float64Array[] {
    const t = this.factors.length,
      size = 4 * t + 2 * CHUNK;
    this.sums ??= Array.from({ length: 7 }, () => this.reserve(8 * size));
    const arrays = this.sums.map((at) => new Float64Array(this.kernel.memory.buffer, at, size));
    arrays.forEach((array, n) => array.fill(n === PROFILE.least ? Infinity : n === PROFILE.greatest ? -Infinity : 0));
    const last = Math.min(t, query + count),
      stop = this.factors.causal ? last : t;
    const window = this.factors.kind.window ?? t,
      start = Math.max(0, query - window + 1);
    for (let key = start - (start % CHUNK); key < stop; key += CHUNK)
      for (let row = query; row < last; row += 32) {
        const rows = Math.min(32, last - row);
        if (this.factors.causal && key > row + rows - 1) continue;
        const raw = this.block(head, quantity, null, row, rows, key, CHUNK);
        const d = 8 * (row - key - CHUNK + 1 + t - 1 + CHUNK); // distances start CHUNK entries in
        const [number, sum, square, least, greatest, rowSum, column] = this.sums;
        this.kernel.profile(
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
    return this.sums.map((at, n) => {
      const array = new Float64Array(this.kernel.memory.buffer, at, size);
      return n < 5 ? array.slice(CHUNK, CHUNK + 2 * t - 1) : array.slice(0, t);
    });
  }
}
