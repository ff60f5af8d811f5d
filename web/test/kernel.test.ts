// The kernel against float64 arithmetic on the same factors, for every kind of bias and mixing.

import kernel from "embed:kernel";
import assert from "node:assert/strict";
import { test } from "node:test";
import { Exact } from "../src/core/exact.ts";
import { QUANTITIES, type Quantity, widen } from "../src/core/pack.ts";
import { compute } from "../src/engine/compute.ts";
import { Instance } from "../src/engine/instance.ts";
import { Kernel } from "../src/engine/kernel.ts";
import { PROFILE, TILE } from "../src/engine/messages.ts";
import { KINDS, makeFactors, type Options } from "./factors.ts";

const module = new WebAssembly.Module(Buffer.from(kernel, "base64"));

/** Whole maps [head][quantity][query][key] in float64, with the log-sum-exp put into the factors. */
function reference(options: Options) {
  const factors = makeFactors(options),
    exact = new Exact(factors),
    { heads, length } = factors;
  const maps = Array.from({ length: heads }, (_, h) => Array.from({ length }, (_, i) => exact.row(h, i)));
  const lse = new Float64Array(heads * length);
  maps.forEach((rows, h) =>
    rows.forEach(
      (row, i) =>
        (lse[h * length + i] = Math.log(row.final.reduce((sum, x) => (Number.isNaN(x) ? sum : sum + Math.exp(x)), 0))),
    ),
  );
  factors.arrays.lse = lse;
  return {
    factors,
    value: (h: number, what: Quantity, i: number, j: number) => (i < length && j < length ? maps[h][i][what][j] : NaN),
  };
}

/** float32 rounding: 1e-5, of the value itself where it is large. */
const close = (got: number, want: number, message: string) => {
  if (Number.isNaN(want) || Number.isNaN(got))
    assert.equal(Number.isNaN(got), Number.isNaN(want), `${message}: got ${got}, want ${want}`);
  else assert.ok(Math.abs(got - want) <= 1e-5 * Math.max(1, Math.abs(want)), `${message}: got ${got}, want ${want}`);
};

for (const [name, options] of Object.entries(KINDS)) {
  test(`tiles of ${name} are exact at every level`, () => {
    const { factors, value } = reference(options),
      instance = new Instance(new Kernel(module), factors);
    for (const quantity of QUANTITIES)
      for (let h = 0; h < factors.heads; h++)
        for (const level of [0, 1, 3]) {
          const part = { factors: "", head: h, quantity, minus: null },
            cell = 2 ** level;
          const rows = Math.ceil(factors.length / cell) + 1;
          const tile = compute(
            { type: "tile", part, other: null, level, query: 0, rows, key: 0 },
            () => instance,
          ) as Float32Array[];
          for (let r = 0; r < rows; r++)
            for (let c = 0; c < rows; c++) {
              const inside: number[] = [];
              for (let i = r * cell; i < (r + 1) * cell; i++)
                for (let j = c * cell; j < (c + 1) * cell; j++)
                  if (!Number.isNaN(value(h, quantity, i, j))) inside.push(value(h, quantity, i, j));
              const want = inside.length
                ? [inside.reduce((a, b) => a + b) / inside.length, Math.min(...inside), Math.max(...inside)]
                : [NaN, NaN, NaN];
              tile.forEach((array, n) =>
                close(array[r * TILE + c], want[n], `${quantity} head ${h} level ${level} cell ${r},${c} [${n}]`),
              );
            }
        }
  });

  test(`columns of ${name} are those of the rows`, () => {
    const { factors, value } = reference(options),
      exact = new Exact(factors);
    for (const quantity of QUANTITIES)
      for (const key of [0, 17, factors.length - 1]) {
        const column = exact.column(1, quantity, key);
        assert.equal(column === null, factors.kind.mix !== null);
        column?.forEach((got, query) => {
          const want = value(1, quantity, query, key);
          assert.equal(Number.isNaN(got), Number.isNaN(want));
          if (!Number.isNaN(want)) assert.ok(Math.abs(got - want) <= 1e-12 * Math.max(1, Math.abs(want)));
        });
      }
  });

  test(`windows of ${name} away from the origin are exact`, () => {
    const { factors, value } = reference(options),
      instance = new Instance(new Kernel(module), factors);
    for (const quantity of QUANTITIES) {
      const [got] = compute(
        {
          type: "values",
          part: { factors: "", head: 1, quantity, minus: null },
          other: null,
          query: 19,
          rows: 23,
          key: 7,
          keys: 21,
        },
        () => instance,
      );
      for (let r = 0; r < 23; r++)
        for (let c = 0; c < 21; c++) close(got[r * 21 + c], value(1, quantity, 19 + r, 7 + c), `${quantity} ${r},${c}`);
    }
  });
}

for (const [name, options] of Object.entries(KINDS))
  for (const sink of [false, true])
    test(`the positional part of ${name} is scaled${sink ? ", with a sink" : ""}`, () => {
      const { factors, value } = reference(options),
        { length, heads } = factors;
      if (sink) factors.arrays.sink = Float32Array.from({ length: heads }, (_, h) => h - 0.5);
      const instance = new Instance(new Kernel(module), factors),
        exact = new Exact(factors);
      for (const position of [0, 0.5, 2])
        for (let h = 0; h < heads; h++) {
          const job = { type: "tile" as const, other: null, level: 0, query: 0, rows: length, key: 0 },
            tile = Object.fromEntries(
              QUANTITIES.map((quantity) => [
                quantity,
                compute({ ...job, part: { factors: "", head: h, quantity, minus: null, position } }, () => instance)[0],
              ]),
            );
          for (let i = 0; i < length; i++) {
            const row = exact.row(h, i, position),
              scores = Array.from({ length }, (_, j) => {
                const content = value(h, "content", i, j);
                return content + position * (value(h, "final", i, j) - content);
              });
            const total = scores.reduce((sum, x) => (Number.isNaN(x) ? sum : sum + Math.exp(x)), 0),
              all = total + (sink ? Math.exp(h - 0.5) : 0);
            scores.forEach((score, j) => {
              const want = {
                content: value(h, "content", i, j),
                bias: position * value(h, "bias", i, j),
                final: score,
                weights: Math.exp(score) / all,
              };
              for (const quantity of QUANTITIES) {
                close(tile[quantity][i * TILE + j], want[quantity], `kernel, ${quantity} × ${position} at ${i},${j}`);
                const off = Math.abs(row[quantity][j] - want[quantity]);
                assert.ok(Number.isNaN(score) || off <= 1e-9, `float64, ${quantity} × ${position} at ${i},${j}`);
              }
            });
          }
        }
    });

test("all heads of a mixing layer come out of one pass", () => {
  const { factors, value } = reference(KINDS["dapev2, masked"]),
    instance = new Instance(new Kernel(module), factors);
  const tile = compute(
    {
      type: "tile",
      part: { factors: "", head: -1, quantity: "weights", minus: null },
      other: null,
      level: 1,
      query: 2,
      rows: 5,
      key: 4,
    },
    () => instance,
  ) as Float32Array[];
  assert.equal(tile.length, 3 * factors.heads);
  for (let h = 0; h < factors.heads; h++) {
    const inside = [
      value(h, "weights", 8, 6),
      value(h, "weights", 8, 7),
      value(h, "weights", 9, 6),
      value(h, "weights", 9, 7),
    ];
    close(tile[3 * h + 2][3 * TILE + 1], Math.max(...inside), `head ${h}`);
  }
});

test("a difference is pooled after the pairs are subtracted", () => {
  const a = reference(KINDS.toeplitz),
    b = reference({ ...KINDS.slope, length: 40 });
  const instances: Record<string, Instance> = {
    a: new Instance(new Kernel(module), a.factors),
    b: new Instance(new Kernel(module), b.factors),
  };
  const part = { factors: "a", head: 0, quantity: "bias" as const, minus: null };
  const tile = compute(
    { type: "tile", part, other: { ...part, factors: "b" }, level: 1, query: 0, rows: 23, key: 0 },
    (name) => instances[name],
  ) as Float32Array[];
  const pairs = [
    [30, 4],
    [30, 5],
    [31, 4],
    [31, 5],
  ].map(([i, j]) => a.value(0, "bias", i, j) - b.value(0, "bias", i, j));
  close(tile[1][15 * TILE + 2], Math.min(...pairs), "least");
  close(tile[2][15 * TILE + 2], Math.max(...pairs), "greatest");
  assert.ok(Number.isNaN(tile[0][21 * TILE]), "no difference past the shorter capture's end");
});

test("profiles give the sums by distance, by row and by key, band by band", () => {
  const { factors, value } = reference(KINDS["rope, interleaved"]),
    instance = new Instance(new Kernel(module), factors),
    t = factors.length;
  const bands = [
    [0, 20],
    [20, 25],
  ].map(([query, rows]) =>
    compute(
      { type: "profile", part: { factors: "", head: 2, quantity: "bias", minus: null }, query, rows },
      () => instance,
    ),
  );
  for (let d = 0; d < t; d++) {
    const all = Array.from({ length: t - d }, (_, n) => value(2, "bias", n + d, n));
    const at = d + t - 1,
      sum = (n: number) => bands[0][n][at] + bands[1][n][at];
    assert.equal(sum(PROFILE.count), t - d);
    close(
      sum(PROFILE.sum),
      all.reduce((a, b) => a + b),
      `sum at ${d}`,
    );
    close(
      sum(PROFILE.square),
      all.reduce((a, b) => a + b * b, 0),
      `square at ${d}`,
    );
    close(Math.min(bands[0][PROFILE.least][at], bands[1][PROFILE.least][at]), Math.min(...all), `least at ${d}`);
    close(
      Math.max(bands[0][PROFILE.greatest][at], bands[1][PROFILE.greatest][at]),
      Math.max(...all),
      `greatest at ${d}`,
    );
  }
  close(
    bands[1][PROFILE.row][30],
    Array.from({ length: 31 }, (_, j) => value(2, "bias", 30, j)).reduce((a, b) => a + b),
    "row",
  );
  close(
    bands[0][PROFILE.column][3] + bands[1][PROFILE.column][3],
    Array.from({ length: t - 3 }, (_, n) => value(2, "bias", n + 3, 3)).reduce((a, b) => a + b),
    "key",
  );
});

test("row constants and distance means are subtracted before pooling", () => {
  const { factors, value } = reference(KINDS["slope, weighted"]),
    instance = new Instance(new Kernel(module), factors),
    t = factors.length;
  const rows = Float64Array.from({ length: t }, (_, i) => i * 0.7),
    distances = Float64Array.from({ length: 2 * t - 1 }, (_, n) => (n - t + 1) ** 2);
  instance.keep("rows", rows);
  instance.keep("distances", distances);
  for (const [kind, away] of [
    ["row", (i: number) => 0.7 * i],
    ["distance", (i: number, j: number) => (i - j) ** 2],
  ] as const) {
    const minus = { kind, name: `${kind}s` };
    const tile = compute(
      {
        type: "tile",
        part: { factors: "", head: 1, quantity: "final", minus },
        other: null,
        level: 1,
        query: 20,
        rows: 10,
        key: 10,
      },
      () => instance,
    ) as Float32Array[];
    for (const [r, c] of [
      [0, 0],
      [2, 3],
      [5, 7],
      [9, 2],
    ]) {
      const pairs: number[] = [];
      for (const i of [20 + 2 * r, 21 + 2 * r])
        for (const j of [10 + 2 * c, 11 + 2 * c])
          if (!Number.isNaN(value(1, "final", i, j))) pairs.push(value(1, "final", i, j) - away(i, j));
      close(tile[2][r * TILE + c], Math.max(...pairs), `${kind} ${r},${c}`);
    }
  }
});

test("float16 factors are widened exactly", () => {
  const every = Uint16Array.from({ length: 65536 }, (_, n) => n),
    wide = widen(every);
  assert.equal(wide[0x3c00], 1);
  assert.equal(wide[0x0001], 2 ** -24);
  assert.equal(wide[0xfbff], -65504);
  const factors = makeFactors({ length: 64, dim: 1024, heads: 1 });
  factors.arrays.q = every;
  factors.arrays.k = Float32Array.from({ length: 65536 }, (_, n) => (n % 1024 === Math.floor(n / 1024) ? 1 : 0));
  const instance = new Instance(new Kernel(module), { ...factors, causal: false, kind: { ...factors.kind, scale: 1 } });
  const [got] = compute(
    {
      type: "values",
      part: { factors: "", head: 0, quantity: "content", minus: null },
      other: null,
      query: 0,
      rows: 31,
      key: 0,
      keys: 64,
    },
    () => instance,
  );
  for (let i = 0; i < 31; i++) for (let j = 0; j < 64; j++) assert.equal(got[i * 64 + j], wide[i * 1024 + j]);
});

test("heads of every kind share one memory, and what is dropped is used again", () => {
  const kernel = new Kernel(module),
    every = Object.values(KINDS).map((options) => reference(options)),
    check = (instance: Instance, n: number) => {
      const { factors, value } = every[n],
        part = { factors: "", head: 1, quantity: "final" as const, minus: null },
        rows = factors.length;
      const [got] = compute({ type: "values", part, other: null, query: 0, rows, key: 0, keys: rows }, () => instance);
      for (let i = 0; i < rows; i++)
        for (let j = 0; j < rows; j++) close(got[i * rows + j], value(1, "final", i, j), `kind ${n} ${i},${j}`);
    };
  const loaded = every.map(({ factors }) => new Instance(kernel, factors));
  for (let round = 0; round < 2; round++) loaded.forEach(check);
  loaded.forEach((instance, n) => n % 2 && instance.free());
  for (let n = 1; n < every.length; n += 2) loaded[n] = new Instance(kernel, every[n].factors);
  loaded.toReversed().forEach((instance, n) => check(instance, every.length - 1 - n));
  loaded.forEach((instance) => instance.free());
  const { factors } = every[0];
  new Instance(kernel, factors).free();
  const before = kernel.bytes;
  for (let n = 0; n < 500; n++) new Instance(kernel, factors).free();
  assert.equal(kernel.bytes, before);
});

test("space that is released is joined and given out again, zeroed", () => {
  const kernel = new Kernel(module),
    spaces = Array.from({ length: 8 }, () => kernel.reserve(100_000)),
    before = kernel.bytes;
  new Uint8Array(kernel.call.memory.buffer, spaces[0], 100_000).fill(7);
  for (const n of [0, 2, 4, 6, 1, 3, 7, 5]) kernel.release(spaces[n]);
  const at = kernel.reserve(700_000);
  assert.equal(kernel.bytes, before);
  assert.ok(new Uint8Array(kernel.call.memory.buffer, at, 700_000).every((byte) => byte === 0));
  assert.throws(() => kernel.release(at + 16), /nothing is reserved/);
});
