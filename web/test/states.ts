// Random and mutated link states through the reader of states: `npm run fuzz -- INPUTS FIRST`. Not a test by itself.
//
// Each seed is one state. The reader must not throw; its result must pass the reader again with nothing left out, be
// the same after a link, and give a Python line that consists of literals only.
import assert from "node:assert/strict";
import type { Capture } from "../src/core/capture.ts";
import { QUANTITIES } from "../src/core/pack.ts";
import { DEFAULT, difference, readState } from "../src/core/state.ts";
import { pythonLine } from "../src/export/python.ts";
import { random } from "./factors.ts";

const GOOD = {
  screen: "head",
  capture: "p1",
  other: "p0",
  compare: "side",
  layer: 3,
  head: 2,
  quantity: "bias",
  minus: "row",
  four: true,
  pooling: "mean",
  view: { query: 1.5, key: -2, span: 40 },
  locked: { query: 5, key: 3 },
  colour: { map: "viridis", scope: "shared", range: "full", scale: "log", clip: 2, limits: { "bias|row|": [-1, 2] } },
  overview: {
    view: "scatter",
    against: "first token",
    measure: "greatest",
    order: "rising",
    least: 0.5,
    greatest: null,
  },
  profile: "shown",
  search: "cat",
  theme: "dark",
  notes: [{ capture: "p1", layer: 3, head: 0, query: 1, key: 0, text: "here" }],
};
const VALUES: unknown[] = [
  null,
  true,
  0,
  1,
  -1,
  0.5,
  1e9,
  1e308,
  -1e308,
  2 ** 53,
  "",
  "auto",
  "bias",
  "weights",
  '"); import os #',
  "toString",
  "__proto__",
  "constructor",
  "\ud800",
  "\u202e",
  "x".repeat(20_000),
  [],
  [null],
  [1, 2],
  [2, 1],
  [[], {}],
  {},
  { query: 1 },
  { query: 1, key: 2, span: 1e-9 },
  { toString: 1 },
  { limits: { "bias|row|": [1, Number.POSITIVE_INFINITY] } },
  { limits: null },
];
const CAPTURE = {
  header: { source: 'a"\\\n\u2028.safetensors' },
  title: "t",
  length: 64,
  knows: () => true,
} as unknown as Capture;
/** What the Python line may consist of: these lines, with a string literal and numbers in them. */
const LINE =
  /^import headscape as hs\nimport numpy as np\n\n\ndef shown\(cap\):\n {4}values = cap\.map\("\w+", layer=\d+, head=\d+(, position=[\d.]+)?\)\.astype\(np\.float64\)\n {4}values\[np\.isnan\(cap\.map\("\w+", layer=\d+, head=\d+\)\)\] = np\.nan\n( {4,12}[ -~]+\n)* {4}return values\[\d+:\d+, \d+:\d+\]\n\n\nvalues = shown\(hs\.Capture\.load\("(?:[ !#-[\]-~]|\\["\\nu\w])*"\)\)\n$/;

/** The text of a link's state. */
export function stateText(seed: number): string {
  const next = random(seed * 7919 + 1),
    upTo = (count: number) => Math.floor(((next() + 1) / 2) * count) % count;
  const mutate = (value: unknown, depth: number): unknown => {
    if (depth === 0 || typeof value !== "object" || value === null) return VALUES[upTo(VALUES.length)];
    const names = Object.keys(value),
      name = upTo(6) ? names[upTo(names.length)] : ["unknown", "__proto__", "toString"][upTo(3)];
    if (Array.isArray(value)) return value.map((each, n) => (String(n) === name ? mutate(each, depth - 1) : each));
    const out = Object.entries(value).filter(([key]) => key !== name || upTo(5) > 0);
    const old = (value as Record<string, unknown>)[name];
    return Object.fromEntries([...out, [name, mutate(Object.hasOwn(value, name) ? old : null, upTo(depth + 1))]]);
  };
  let state: unknown = structuredClone(GOOD);
  for (let n = upTo(5); n >= 0; n--) state = mutate(state, 1 + upTo(3));
  const text = JSON.stringify(state);
  if (upTo(8)) return text;
  const at = upTo(text.length);
  return text.slice(0, at) + ["", "1e999", "null", '"', "{"][upTo(5)] + text.slice(at + upTo(4));
}

/** Check one state; says whether it was whole, cut down, or not JSON. */
export function checkState(seed: number): "whole" | "part" | "not JSON" {
  const text = stateText(seed);
  let given: unknown = text,
    isJson = true;
  try {
    given = JSON.parse(text);
  } catch {
    isJson = false;
  }
  const { state, dropped } = readState(given);
  assert.deepEqual(Object.keys(state), Object.keys(DEFAULT));
  const again = readState(state);
  assert.deepEqual(again.dropped, []);
  assert.deepEqual(again.state, state);
  assert.deepEqual(readState(JSON.parse(JSON.stringify(difference(state)))).state, state);
  assert.ok(dropped.every((each) => each.length < 150));
  assert.ok(QUANTITIES.includes(state.quantity));
  const { layer, head, quantity, minus, view } = state,
    { query, key } = view ?? { query: 0, key: 0 };
  const line = pythonLine(
    { capture: CAPTURE, layer, head, quantity, minus, less: null, position: state.position.scale },
    { query, key, pixels: 4, width: 400, height: 400 },
  );
  assert.match(line, LINE);
  assert.equal(({} as Record<string, unknown>).polluted, undefined);
  return !isJson ? "not JSON" : dropped.length ? "part" : "whole";
}

declare const process: { argv: string[]; exitCode: number };
if (process.argv[1]?.endsWith("states.mjs")) {
  const [inputs, first] = [Number(process.argv[2] ?? 10_000), Number(process.argv[3] ?? 0)],
    kinds: Record<string, number> = {};
  let findings = 0;
  for (let seed = first; seed < first + inputs; seed++)
    try {
      const kind = checkState(seed);
      kinds[kind] = (kinds[kind] ?? 0) + 1;
    } catch (error) {
      findings++;
      console.error(`seed ${seed}: ${stateText(seed).slice(0, 2000)}\n${(error as Error).stack}`);
    }
  const counts = Object.entries(kinds).map(([kind, count]) => `${count} ${kind}`);
  console.log(`${inputs} link states: ${counts.join(", ")}; findings: ${findings}`);
  process.exitCode = findings ? 1 : 0;
}
