// Random factors of every kind, for tests.
import type { Factors } from "../src/core/capture.ts";
import type { BiasKind, LayerKind, MixKind, Numbers } from "../src/core/pack.ts";

/** Numbers that are the same in every run. */
export function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 31 - 1;
  };
}

export interface Options {
  length?: number;
  dim?: number;
  heads?: number;
  group?: number;
  causal?: boolean;
  pairing?: "halves" | "interleaved";
  pairs?: number;
  bias?: BiasKind | null;
  mix?: MixKind | null;
  hidden?: number;
  window?: number;
  softcap?: number;
  temperature?: boolean;
}

export function makeFactors(options: Options = {}, seed = 1): Factors {
  const {
    length: t = 45,
    dim: e = 10,
    heads = 3,
    group = 1,
    causal = true,
    bias = null,
    mix = null,
    hidden = 5,
  } = options;
  const next = random(seed),
    arrays: Record<string, Numbers> = {},
    shapes: Record<string, number[]> = {};
  const put = (
    name: string,
    shape: number[],
    value: (n: number) => number,
    Type: typeof Float32Array | typeof Float64Array = Float32Array,
  ) => {
    arrays[name] = new Type(Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, n) => value(n)));
    shapes[name] = shape;
  };
  put("q", [heads, t, e], () => 2 * next());
  put("k", [heads / group, t, e], () => 2 * next());
  if (options.pairing) {
    const p = options.pairs ?? e / 2;
    for (const name of ["turn.q", "turn.k"])
      put(name, [2, t, p], (n) => (n < t * p ? Math.cos : Math.sin)((Math.floor(n / p) % t) / 10 ** (n % p)));
  }
  if (options.temperature) put("temperature", [heads, t], () => 1.2 + next() / 2);
  if (bias?.kind === "toeplitz") put("bias.table", [heads, bias.zero + t], () => 3 * next());
  if (bias?.kind === "dense") put("bias.map", [heads, t, t], () => 3 * next());
  if (bias?.kind === "slope") {
    put("bias.row", [heads, t], (n) => -1000 - 0.3 * (n % t), Float64Array);
    put("bias.col", [heads, t], (n) => -1000 - 0.3 * (n % t), Float64Array);
    if (bias.weighted) put("bias.weight", [heads, t], () => 1.5 + next(), Float64Array);
  }
  if (bias?.kind === "perceptron") {
    put("bias.near", [bias.zero + t], (n) => Math.log1p(0.1 * Math.abs(n - bias.zero)));
    put("bias.far", [t], (n) => Math.log1p(0.1 * Math.max(n, 20)));
    put("bias.in_weight", [7], () => 3 * next());
    put("bias.in_bias", [7], next);
    put("bias.out_weight", [heads, 7], next);
    put("bias.out_bias", [heads], next);
  }
  const width = mix?.kind === "dapev2" ? mix.kernel : 1;
  if (mix?.kind === "cope") put("mix.table", [e, 9], next);
  else if (mix) {
    const channels = bias ? 2 * heads : heads;
    put("mix.inner.weight", [hidden, channels, width], () => 0.5 * next());
    put("mix.inner.bias", [hidden], next);
    put("mix.outer.weight", [heads, hidden, width], () => 0.5 * next());
    put("mix.outer.bias", [heads], next);
  }
  const kind: LayerKind = {
    scale: e ** -0.5,
    group,
    bias,
    mix,
    ...(options.pairing ? { pairing: options.pairing } : {}),
    ...(options.window ? { window: options.window } : {}),
    ...(options.softcap ? { softcap: options.softcap } : {}),
  };
  return {
    kind,
    heads,
    group,
    length: t,
    dim: e,
    causal,
    positions: Int32Array.from({ length: t }, (_, n) => n),
    arrays,
    shapes,
  };
}

/** Every way position enters, by name. */
export const KINDS: Record<string, Options> = {
  none: {},
  "grouped keys": { heads: 4, group: 2 },
  "rope, interleaved": { pairing: "interleaved" },
  "rope, halves, partial": { pairing: "halves", pairs: 3 },
  toeplitz: { bias: { kind: "toeplitz", zero: 0 } },
  "toeplitz, both sides": { causal: false, bias: { kind: "toeplitz", zero: 44 } },
  slope: { bias: { kind: "slope", weighted: false } },
  "slope, weighted": { bias: { kind: "slope", weighted: true } },
  perceptron: { bias: { kind: "perceptron", zero: 0, leak: 0.01 } },
  dense: { bias: { kind: "dense" } },
  "rope and toeplitz": { pairing: "halves", bias: { kind: "toeplitz", zero: 0 } },
  window: { window: 7, bias: { kind: "toeplitz", zero: 0 } },
  "window and rope": { window: 16, pairing: "halves" },
  softcap: { softcap: 3, bias: { kind: "slope", weighted: false } },
  "softcap and rope": { softcap: 50, pairing: "interleaved" },
  temperature: { temperature: true, bias: { kind: "toeplitz", zero: 0 } },
  "all three": { window: 9, softcap: 4, temperature: true, pairing: "halves", bias: { kind: "dense" } },
  dape: { bias: { kind: "toeplitz", zero: 0 }, mix: { kind: "dape", added: true } },
  "dape, channel only": { bias: { kind: "toeplitz", zero: 0 }, mix: { kind: "dape", added: false } },
  "dape without bias": { mix: { kind: "dape", added: true } },
  "dapev2, masked": { bias: { kind: "slope", weighted: true }, mix: { kind: "dapev2", kernel: 3, boundary: "masked" } },
  "dapev2, released": { bias: { kind: "toeplitz", zero: 0 }, mix: { kind: "dapev2", kernel: 5, boundary: "released" } },
  "dapev2, rope": { pairing: "interleaved", mix: { kind: "dapev2", kernel: 3, boundary: "masked" } },
  "cope, scores": { mix: { kind: "cope", divide: "scores" } },
  "cope, sum": { mix: { kind: "cope", divide: "sum" } },
};
