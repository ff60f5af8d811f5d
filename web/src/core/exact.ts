// Exact values: float64 arithmetic on the stored factors. The kernel is tested against this, and hovering reads it.
import type { Factors } from "./capture.ts";
import { type Numbers, type Quantity, widen } from "./pack.ts";

const LEAK = 0.01;

/** All four quantities of one query with keys from `first` on; NaN where a key is hidden. */
export type Row = Record<Quantity, Float64Array> & { first: number };

/** Rows of one head (or of all heads of a mixing layer) from its factors. */
export class Exact {
  private readonly floats = new Map<string, ArrayLike<number>>();
  private readonly turnedKeys = new Map<number, Float64Array>();

  constructor(readonly factors: Factors) {}

  private get(name: string): ArrayLike<number> {
    let found = this.floats.get(name);
    if (!found) {
      const given: Numbers | undefined = this.factors.arrays[name];
      if (!given) throw new Error(`the capture has no array ${name}`);
      found = given instanceof Uint16Array ? widen(given) : (given as Float32Array);
      this.floats.set(name, found);
    }
    return found;
  }

  private has(name: string): boolean {
    return name in this.factors.arrays;
  }

  /** How many keys a query sees; hidden keys come last. */
  seen(query: number): number {
    return this.factors.causal ? query + 1 : this.factors.length;
  }

  private vector(name: "q" | "k", head: number, token: number, turned: boolean): Float64Array {
    const { dim, length, kind } = this.factors,
      at = (head * length + token) * dim;
    const x = Float64Array.from({ length: dim }, (_, e) => this.get(name)[at + e]);
    if (!turned || !this.has(`turn.${name}`)) return x;
    const angles = this.get(`turn.${name}`),
      p = this.factors.shapes[`turn.${name}`][2],
      out = x.slice();
    for (let m = 0; m < p; m++) {
      const cos = angles[token * p + m],
        sin = angles[(length + token) * p + m];
      const a = kind.pairing === "halves" ? m : 2 * m,
        b = kind.pairing === "halves" ? m + p : 2 * m + 1;
      out[a] = x[a] * cos - x[b] * sin;
      out[b] = x[b] * cos + x[a] * sin;
    }
    return out;
  }

  private keys(head: number): Float64Array {
    let all = this.turnedKeys.get(head);
    if (!all) {
      const { length, dim } = this.factors;
      all = new Float64Array(length * dim);
      for (let t = 0; t < length; t++) all.set(this.vector("k", head, t, true), t * dim);
      this.turnedKeys.set(head, all);
    }
    return all;
  }

  /** Whether a query sees a key. */
  private sees(query: number, key: number): boolean {
    return key < this.seen(query) && query - key < (this.factors.kind.window ?? this.factors.length);
  }

  /** Scores of a query with the keys of a range, by default with all it sees and those before. */
  private scores(head: number, query: number, turned: boolean, from = 0, to = this.seen(query)): Float64Array {
    const { dim, group, length } = this.factors,
      q = this.vector("q", head, query, turned);
    const kv = Math.floor(head / group),
      rotate = turned && this.has("turn.k");
    const keys = rotate ? this.keys(kv) : this.get("k"),
      base = rotate ? 0 : kv * length * dim;
    const out = new Float64Array(to - from);
    for (let j = from; j < to; j++) {
      let sum = 0;
      for (let e = 0, at = base + j * dim; e < dim; e++) sum += q[e] * keys[at + e];
      out[j - from] = sum * this.factors.kind.scale;
    }
    return out;
  }

  private added(head: number, query: number, from = 0, to = this.seen(query)): Float64Array | null {
    const { kind, length, positions, shapes } = this.factors,
      bias = kind.bias;
    if (!bias) return null;
    const out = new Float64Array(to - from);
    const column = (j: number, zero: number, columns: number) =>
      Math.min(columns - 1, Math.max(0, positions[query] - positions[j] + zero));
    if (bias.kind === "toeplitz") {
      const table = this.get("bias.table"),
        columns = shapes["bias.table"][1];
      for (let j = from; j < to; j++) out[j - from] = table[head * columns + column(j, bias.zero, columns)];
    } else if (bias.kind === "slope") {
      const weight = this.has("bias.weight") ? this.get("bias.weight")[head * length + query] : 1;
      const row = this.get("bias.row")[head * length + query],
        col = this.get("bias.col");
      for (let j = from; j < to; j++) out[j - from] = weight * (row - col[head * length + j]);
    } else if (bias.kind === "perceptron") {
      const near = this.get("bias.near"),
        far = this.get("bias.far")[query];
      const inWeight = this.get("bias.in_weight"),
        inBias = this.get("bias.in_bias"),
        outWeight = this.get("bias.out_weight"),
        m = inWeight.length;
      for (let j = from; j < to; j++) {
        const u = near[column(j, bias.zero, near.length)] / far;
        let sum = this.get("bias.out_bias")[head];
        for (let o = 0; o < m; o++) {
          const z = u * inWeight[o] + inBias[o];
          sum += outWeight[head * m + o] * (z > 0 ? z : bias.leak * z);
        }
        out[j - from] = sum;
      }
    } else {
      const map = this.get("bias.map");
      for (let j = from; j < to; j++) out[j - from] = map[(head * length + query) * length + j];
    }
    return out;
  }

  /** What acts on scores after the bias: a temperature and a softcap. */
  private transformed(head: number, query: number, scores: Float64Array): Float64Array {
    const cap = this.factors.kind.softcap,
      factor = this.has("temperature") ? this.get("temperature")[head * this.factors.length + query] : 1;
    if (!cap && factor === 1) return scores;
    return scores.map((score) => (cap ? cap * Math.tanh((factor * score) / cap) : factor * score));
  }

  /** Whether position does nothing but add a bias. */
  private get additive(): boolean {
    const { kind } = this.factors;
    return !kind.mix && !this.has("turn.q") && !this.has("temperature") && !kind.softcap;
  }

  private cope(head: number, query: number, scores: Float64Array): Float64Array {
    const { dim, kind, shapes } = this.factors,
      table = this.get("mix.table"),
      n = shapes["mix.table"][1];
    const q = this.vector("q", head, query, true),
      z = new Float64Array(n),
      out = scores.slice();
    const sum = kind.mix?.kind === "cope" && kind.mix.divide === "sum";
    for (let m = 0; m < n; m++)
      for (let e = 0; e < dim; e++) z[m] += (q[e] * table[e * n + m]) / (sum ? Math.sqrt(dim) : 1);
    let count = 0;
    for (let j = scores.length - 1; j >= 0; j--) {
      count += 1 / (1 + Math.exp(-scores[j]));
      const at = Math.min(count, n - 1),
        below = Math.floor(at),
        above = Math.ceil(at);
      out[j] += z[below] + (at - below) * (z[above] - z[below]);
    }
    return out;
  }

  /** DAPE and DAPEv2: one head's final scores from all heads' scores and biases. */
  private dape(head: number, query: number): Float64Array {
    const { kind, heads, length, shapes } = this.factors,
      mix = kind.mix,
      n = this.seen(query);
    const inner = this.get("mix.inner.weight"),
      innerBias = this.get("mix.inner.bias");
    const outer = this.get("mix.outer.weight"),
      outerBias = this.get("mix.outer.bias");
    const [hidden, channels] = shapes["mix.inner.weight"];
    const width = mix?.kind === "dapev2" ? mix.kernel : 1,
      half = (width - 1) / 2;
    const released = mix?.kind === "dapev2" && mix.boundary === "released";
    const x = Array.from({ length: channels }, (_, c) =>
      c < heads ? this.scores(c, query, true) : this.added(c - heads, query)!,
    );
    const units = Array.from({ length: hidden }, (_, m) =>
      Float64Array.from({ length: n + 2 * half }, (_, column) => {
        const key = column - half;
        if (key < 0 || (released && key >= length)) return 0;
        let sum = innerBias[m];
        for (let c = 0; c < channels; c++)
          for (let tap = 0; tap < width; tap++) {
            const at = key + tap - half;
            if (at >= 0 && at < n) sum += inner[(m * channels + c) * width + tap] * x[c][at];
          }
        return sum > 0 ? sum : LEAK * sum;
      }),
    );
    const added = channels > heads && !(mix?.kind === "dape" && !mix.added);
    return Float64Array.from({ length: n }, (_, j) => {
      let sum = outerBias[head] + x[head][j] + (added ? x[heads + head][j] : 0);
      for (let m = 0; m < hidden; m++)
        for (let tap = 0; tap < width; tap++) sum += outer[(head * hidden + m) * width + tap] * units[m][j + tap];
      return sum;
    });
  }

  /** All quantities of a query; `head` is the index among these factors. `position` multiplies the positional part:
   *  the score is content + position (final - content), and weights are the softmax of that. */
  row(head: number, query: number, position = 1): Row {
    const { kind, length } = this.factors;
    const content = this.scores(head, query, false),
      turned = this.has("turn.q") ? this.scores(head, query, true) : content;
    const added = this.added(head, query),
      n = content.length;
    let final: Float64Array;
    if (kind.mix?.kind === "cope") final = this.cope(head, query, turned);
    else if (kind.mix) final = this.dape(head, query);
    else final = added ? turned.map((score, j) => score + added[j]) : turned;
    final = this.transformed(head, query, final);
    const { additive } = this,
      first = Math.max(0, query + 1 - (kind.window ?? length));
    const bias = final.map((score, j) => (additive ? (added ? added[j] : 0) : score - content[j]) * position);
    if (position !== 1) final = content.map((score, j) => score + bias[j]);
    const sink = this.has("sink") ? [this.get("sink")[head]] : [],
      lse =
        position === 1 && this.has("lse")
          ? this.get("lse")[head * length + query]
          : logSumExp([...final.subarray(first), ...sink]);
    const spread = (value: (j: number) => number) =>
      Float64Array.from({ length }, (_, j) => (j < n && this.sees(query, j) ? value(j) : NaN));
    return {
      first: 0,
      content: spread((j) => content[j]),
      bias: spread((j) => bias[j]),
      final: spread((j) => final[j]),
      weights: spread((j) => Math.exp(final[j] - lse)),
    };
  }

  /** One quantity of a key with every query, NaN where it is hidden; null where it depends on other heads or keys. */
  column(head: number, quantity: Quantity, key: number, position = 1): Float64Array | null {
    const { kind, length } = this.factors;
    if (kind.mix || (quantity === "weights" && (position !== 1 || !this.has("lse")))) return null;
    const one = (query: number): number => {
      if (!this.sees(query, key)) return NaN;
      const [content] = this.scores(head, query, false, key, key + 1),
        added = this.added(head, query, key, key + 1)?.[0] ?? 0;
      if (quantity === "content") return content;
      if (quantity === "bias" && this.additive) return position * added;
      const turned = this.has("turn.q") ? this.scores(head, query, true, key, key + 1)[0] : content;
      const [final] = this.transformed(head, query, Float64Array.of(turned + added));
      if (quantity === "final") return position === 1 ? final : content + position * (final - content);
      return quantity === "bias"
        ? position * (final - content)
        : Math.exp(final - this.get("lse")[head * length + query]);
    };
    return Float64Array.from({ length }, (_, query) => one(query));
  }
}

function logSumExp(values: number[]): number {
  let top = -Infinity,
    sum = 0;
  for (const value of values) top = Math.max(top, value);
  for (const value of values) sum += Math.exp(value - top);
  return top + Math.log(sum);
}
