// The parts that need no browser: state, packs, colours, clustering, curves, CSV and text.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Capture, distinctTitles } from "../src/core/capture.ts";
import { correlation, groups } from "../src/core/cluster.ts";
import {
  along,
  automatic,
  barColours,
  diverges,
  inkOn,
  luminance,
  MAPS,
  middleOf,
  paint,
  place,
  type Scale,
  spacing,
  table,
  valueAlong,
} from "../src/core/colour.ts";
import { CARD, fit, SHEET } from "../src/core/layout.ts";
import { type Header, readPack } from "../src/core/pack.ts";
import type { Source, Whole } from "../src/core/source.ts";
import { complete, DEFAULT, difference, readState } from "../src/core/state.ts";
import { brief, formatted, number, roundStep, visible } from "../src/core/text.ts";
import { defaultMeasure, measuresOf, offeredMeasures } from "../src/engine/measures.ts";
import { fewPairs, type Profile } from "../src/engine/profiles.ts";
import { rank } from "../src/engine/rows.ts";
import { field } from "../src/export/csv.ts";
import { posterBlocks } from "../src/export/poster.ts";
import { literal } from "../src/export/python.ts";
import { levelFor } from "../src/ui/draw.ts";
import { reduceCurve } from "../src/ui/plots.ts";
import { outliers } from "../src/ui/scatter.ts";
import { checkState } from "./states.ts";

test("a state survives the way through a link", () => {
  const state = complete({
    capture: "p1",
    layer: 3,
    view: { query: 1.5, key: 2, span: 40 },
    colour: { clip: 2, limits: { "bias|nothing|": [-1, 2] } },
    notes: [{ capture: "p1", layer: 3, head: 0, query: 1, key: 0, text: "<script>" }],
  });
  const back = complete(JSON.parse(JSON.stringify(difference(state))));
  assert.deepEqual(back, state);
  assert.deepEqual(difference(DEFAULT), {});
  assert.equal(back.colour.map, "auto");
});

test("a map of one value is grey, with that value alone", () => {
  const cells = new Float32Array([NaN, 0, 0]),
    whole = { least: cells, greatest: cells } as Whole;
  const scale = automatic({ quantity: "bias", minus: "nothing" } as Source, DEFAULT.colour, [whole])!;
  assert.deepEqual([scale.low, scale.high], [0, 0]);
  const pixels = new Uint32Array(3);
  paint(cells, scale, pixels);
  assert.deepEqual(
    [...pixels].map((pixel) => (pixel & 0xffffff).toString(16)),
    ["0", "a9a7a6", "a9a7a6"],
  );
});

test("a layer is named with its note, and sound is made of frames", () => {
  const header = { layers: [2, 5], heads: [0], length: 4, notes: ["RoPE, window 64", ""] } as unknown as Header;
  const capture = new Capture("p0", "a", header, null);
  assert.equal(capture.place(2), "layer 3 (RoPE, window 64)");
  assert.equal(capture.place(5), "layer 6");
  assert.equal(capture.unit, "token");
  const sound = new Capture("p1", "b", { ...header, unit: "frame" }, null);
  assert.ok(measuresOf(sound).every(({ title }) => !title.includes("token")));
});

test("plain measures are offered first, each with a definition; Python's comes in place of the viewer's own", () => {
  const share = { name: "position_share", label: "position share", text: "t", form: ".2f", values: [[0.5, null]] };
  const header = { layers: [3], heads: [0, 7], length: 4, measures: [share] } as unknown as Header;
  const here = new Capture("p0", "a", header, new Map()),
    served = new Capture("p0", "a", header, null);
  const all = measuresOf(here),
    [first, ...rest] = all.toSorted(
      (a, b) => Number(b.name === "position_share") - Number(a.name === "position_share"),
    );
  assert.deepEqual([first.name, first.title, defaultMeasure(here)], ["position_share", "position share", first.name]);
  const plain = ["previous token", "first token", "mean distance", "same token"];
  assert.deepEqual(all.map(({ name }) => name).slice(0, 4), plain);
  for (const { text, short } of [...all, ...offeredMeasures(here, served)]) assert.ok(text && short);
  const value = (head: number) => first.of({} as never, { capture: here, layer: 3, head } as Source, null);
  assert.equal(value(0), 0.5);
  assert.equal(first.shown(0.5), "0.50");
  assert.ok(Number.isNaN(value(7)));
  assert.equal(first.shown(Number.NaN), "–");
  assert.ok(rest.every(({ name }) => !name.startsWith("position share")));
  // Of what the viewer's own share is, its name says; it is compared with nothing else.
  const { measures: _, ...bare } = header,
    without = (quantities: string[]) => new Capture("p2", "c", { ...bare, quantities } as Header, new Map()),
    [biases, weights] = [without(["content", "bias", "final", "weights"]), without(["weights"])];
  assert.ok(measuresOf(biases).some(({ title }) => title === "Position share (position only)"));
  assert.ok(measuresOf(weights).some(({ title }) => title === "Position share (weights)"));
  assert.ok(offeredMeasures(biases, weights).every(({ name }) => !name.includes("position share")));
  assert.ok(rest.some(({ name }) => name === "first token"));
  assert.ok(measuresOf(served).every(({ name }) => name !== "first token"));
});

test("captures of one title are told apart by a word in which their texts differ, or by a number", () => {
  const of = (ownTitle: string, text: string) => ({ ownTitle, header: { pieces: text.split(/(?= )/) } as Header });
  const storm = of("SmolLM2", "The old keeper said that the storm would pass"),
    ship = of("SmolLM2", "The old keeper said that the ship would pass");
  assert.deepEqual(distinctTitles([storm, ship, of("ALiBi", "The old keeper")]), [
    "SmolLM2, text 1 (storm)",
    "SmolLM2, text 2 (ship)",
    "ALiBi",
  ]);
  assert.deepEqual(distinctTitles([storm, storm]), ["SmolLM2", "SmolLM2 (2)"]);
  const longer = of("SmolLM2", "The old keeper said that the storm would pass by");
  assert.deepEqual(distinctTitles([storm, longer]), ["SmolLM2, text 1", "SmolLM2, text 2 (by)"]);
});

test("the outliers of a scatter are those far from the middle of either measure", () => {
  const cloud = Array.from({ length: 40 }, (_, n) => ({ x: n % 7, y: 0.01 * (n % 5) }));
  const wide = { x: 60, y: 0.02 },
    high = { x: 3, y: 0.9 };
  assert.deepEqual(new Set(outliers([wide, ...cloud, high], 2)), new Set([wide, high]));
  assert.equal(outliers([...cloud, high]).length, 5);
  assert.deepEqual(outliers([wide, wide, wide]), []);
});

test("numbers are printed as Python prints them", () => {
  const cases: [number | null, string, string][] = [
    [0.125, ".2f", "0.13"],
    [-3, ".0f", "−3"],
    [0.00031149, ".3g", "0.000311"],
    [0.5, "+.4f", "+0.5000"],
    [-0.5, "+.4f", "−0.5000"],
    [null, ".2f", "–"],
  ];
  for (const [value, form, text] of cases) assert.equal(formatted(value, form), text);
});

test("every field of a state is checked by value, and what is left out is named", () => {
  const evil = 'weights"); import os; os.system("x") #';
  const wrong = {
    quantity: evil,
    screen: "heads",
    layer: -1,
    head: 1.5,
    view: { query: 0, key: 0, span: 0 },
    locked: { query: 1 },
    four: "yes",
    colour: null,
    overview: [],
    notes: [null],
    theme: null,
    search: 3,
    capture: "x".repeat(20_000),
    unknown: 1,
    __proto__: { polluted: true },
  };
  const read = readState(JSON.parse(`{"__proto__": {"polluted": true}, ${JSON.stringify(wrong).slice(1)}`));
  assert.deepEqual(read.state, DEFAULT);
  assert.equal(read.dropped.length, 15);
  assert.ok(read.dropped.some((each) => each.startsWith('quantity = "weights')));
  assert.ok(read.dropped.every((each) => each.length < 100));
  assert.equal((DEFAULT as unknown as Record<string, unknown>).polluted, undefined);
  const part = readState({
    colour: { map: "toString", clip: 99, limits: { x: [0, 1], "bias|row|": [1, 0], "bias||": [0, 1] }, scale: "log" },
    notes: [{ capture: "p0", layer: 0, head: 0, query: 1, key: 0, text: "good" }, 7],
    overview: { least: "low", greatest: 2 },
  });
  assert.deepEqual(part.state.colour, { ...DEFAULT.colour, scale: "log" });
  assert.equal(part.state.notes.length, 1);
  assert.equal(part.state.overview.greatest, 2);
  assert.equal(part.dropped.length, 7);
  const reading = readState({ reading: { token: 5, marks: "waves" } });
  assert.deepEqual(reading.state.reading, { ...DEFAULT.reading, token: 5 });
  assert.deepEqual(reading.dropped, ['reading.marks = "waves"']);
  assert.deepEqual(readState({ head: 0 }).patch, { head: 0 });
  assert.equal(readState("half a link").dropped.length, 1);
  assert.deepEqual(readState(undefined).dropped, []);
});

test("random link states are read without an error, and what is left is right", () => {
  const kinds = new Set(Array.from({ length: 300 }, (_, seed) => checkState(seed)));
  assert.deepEqual([...kinds].sort(), ["not JSON", "part", "whole"]);
});

test("a damaged state falls back field by field", () => {
  assert.deepEqual(complete("nonsense"), DEFAULT);
  assert.deepEqual(complete({ layer: "three", unknown: 1, quantity: "bias" }), { ...DEFAULT, quantity: "bias" });
});

const BYTES: Record<string, string> = { F64: "8", F32: "4", F16: "2", BOOL: "1" };

function packOf(
  header: object,
  arrays: { name: string; dtype: string; shape: number[]; data: ArrayBufferView }[],
  same?: Record<string, string>,
): Uint8Array<ArrayBuffer> {
  const out = new Uint8Array(8000);
  const metadata = { headscape: JSON.stringify(same ? { ...header, same } : header) };
  const entries: Record<string, unknown> = { __metadata__: metadata };
  let offset = 0;
  for (const { name, dtype, shape, data } of arrays.toSorted(
    (a, b) => Number(BYTES[b.dtype]) - Number(BYTES[a.dtype]),
  )) {
    entries[name] = { dtype, shape, data_offsets: [offset, offset + data.byteLength] };
    out.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), 2008 + offset);
    offset += data.byteLength;
  }
  const text = new TextEncoder().encode(JSON.stringify(entries).padEnd(2000));
  new DataView(out.buffer).setBigUint64(0, BigInt(text.length), true);
  out.set(text, 8);
  return out.slice(0, 2008 + offset);
}

const HEADER = {
  format: 1,
  encoding: "nope",
  causal: true,
  length: 2,
  layers: [0],
  heads: [0],
  factors: [{ scale: 1, bias: null, mix: null }],
};

test("a pack is read from any offset of any buffer", () => {
  const values = Float32Array.of(1, -2, 3.5),
    doubles = Float64Array.of(0.1);
  const bytes = packOf(
    HEADER,
    [
      { name: "a", dtype: "F32", shape: [3], data: values },
      { name: "b", dtype: "F64", shape: [1], data: doubles },
    ],
    { c: "b" },
  );
  const shifted = new Uint8Array(bytes.length + 3);
  shifted.set(bytes, 3);
  for (const given of [bytes.buffer, bytes, new DataView(shifted.buffer, 3)]) {
    const { header, arrays } = readPack(given);
    assert.equal(header.encoding, "nope");
    assert.deepEqual(arrays.get("a")!.data, values);
    assert.deepEqual(arrays.get("b")!.data, doubles);
    assert.equal(arrays.get("c"), arrays.get("b"));
  }
});

test("what is not a whole pack of this format is refused in one sentence", () => {
  const bytes = packOf(HEADER, [{ name: "a", dtype: "F32", shape: [9], data: new Float32Array(9) }]);
  assert.throws(() => readPack(new Uint8Array(64)), /not a headscape pack/);
  assert.throws(() => readPack(bytes.slice(0, bytes.length - 16)), /ends inside array a/);
  assert.throws(() => readPack(packOf({ ...HEADER, format: 9 }, [])), /format 9 .* upgrade/);
  assert.throws(() => readPack(packOf({ ...HEADER, factors: undefined }, [])), /no field factors/);
  assert.throws(
    () => readPack(packOf(HEADER, [{ name: "a", dtype: "BOOL", shape: [0], data: new Uint8Array(0) }])),
    /dtype BOOL/,
  );
});

test("colours: limits are the ends, NaN is transparent, logarithms space both signs evenly", () => {
  const scale: Scale = { low: -2, high: 2, spacing: "linear", map: "signed" },
    pixels = new Uint32Array(5),
    colours = table("signed");
  paint(Float32Array.of(-2, 2, -99, 99, NaN), scale, pixels);
  assert.deepEqual([...pixels], [colours[0], colours[512], colours[0], colours[512], 0]);
  assert.equal(place(scale, 0), 0.5);
  const weights: Scale = { low: 1e-4, high: 1, spacing: "log", map: "viridis" };
  assert.ok(Math.abs(place(weights, 1e-2) - 0.5) < 1e-12);
  const both: Scale = { low: -8, high: 8, spacing: "symlog", map: "signed" },
    { to, from } = spacing(both);
  assert.ok(Math.abs(place(both, 1) + place(both, -1) - 1) < 1e-12);
  assert.ok(place(both, 1) > 0.7);
  for (const value of [-8, -0.01, 0, 0.3, 8]) assert.ok(Math.abs(from(to(value)) - value) < 1e-9);
});

test("colours diverge only where in every panel each sign takes a fifth of the range", () => {
  const source = { quantity: "bias", minus: "nothing", less: null } as Source;
  const map = (low: number, high: number) => {
    const whole = { least: Float32Array.of(low), greatest: Float32Array.of(high) } as Whole;
    return automatic(source, DEFAULT.colour, [whole])!;
  };
  assert.equal(map(-1, 9).map, "viridis");
  assert.deepEqual([map(-1, 9).low, map(-1, 9).high], [-1, 9]);
  assert.equal(map(-2, 8).map, "signed");
  assert.equal(map(-8, 2).map, "signed");
  assert.ok(diverges([[-2, 8], [0, 0]])); // biome-ignore format: one line reads better
  assert.ok(!diverges([[-2, 8], [1, 2]])); // biome-ignore format: one line reads better
});

test("grey is zero on a signed map, and each sign uses its half in full", () => {
  const scale: Scale = { low: -2, high: 8, spacing: "linear", map: "signed" };
  assert.deepEqual([-2, -1, 0, 4, 8].map((value) => place(scale, value)), [0, 0.25, 0.5, 0.75, 1]); // biome-ignore format: one line
  assert.deepEqual([-2, 0, 8].map((value) => along(scale, value)), [0, 0.2, 1]); // biome-ignore format: one line
  assert.equal(valueAlong(scale, 0.2), 0);
  const above: Scale = { ...scale, low: 4 };
  assert.deepEqual([place(above, 4), place(above, 8)], [0.5, 1]);
  const pixels = new Uint32Array(3);
  paint(Float32Array.of(-1, 0, 4), scale, pixels);
  assert.deepEqual([...pixels], [128, 256, 384].map((n) => table("signed")[n])); // biome-ignore format: one line
});

test("weights are coloured from 0.0001 to 1, their differences symmetrically in symlog", () => {
  const whole = { least: Float32Array.of(1e-9), greatest: Float32Array.of(0.3) } as Whole,
    capture = { length: 100 };
  const weights = { quantity: "weights", minus: "nothing", less: null, capture } as Source;
  assert.deepEqual(automatic(weights, DEFAULT.colour, [whole]), { low: 1e-4, high: 1, spacing: "log", map: "viridis" });
  const changed = { least: Float32Array.of(-0.25), greatest: Float32Array.of(0.5) } as Whole;
  const difference = automatic({ ...weights, less: capture } as Source, DEFAULT.colour, [changed]);
  assert.deepEqual(difference, { low: -0.5, high: 0.5, spacing: "symlog", map: "signed" });
});

test("all heads fit on one screen: few as cards, many as a sheet", () => {
  const room = { width: 1370, height: 640 },
    layers = (count: number, heads: number) => Array<number>(count).fill(heads),
    options = { byLayer: true, cards: true };
  for (const [count, heads] of [
    [1, 12],
    [2, 4],
  ]) {
    const found = fit(layers(count, heads), room.width, room.height, options);
    assert.equal(found.kind, "cards");
    assert.ok(found.columns * (found.size + CARD.gap) - CARD.gap <= room.width);
    const rows = count * Math.ceil(heads / found.columns);
    assert.ok(count * CARD.title + rows * (found.size + CARD.text + CARD.gap) <= room.height);
  }
  for (const [count, heads] of [
    [12, 12],
    [30, 9],
    [32, 32],
  ]) {
    const { kind, size, blocks } = fit(layers(count, heads), room.width, room.height, options);
    assert.equal(kind, "sheet");
    assert.ok(size >= SHEET.least);
    assert.ok(blocks * (SHEET.label + heads * (size + SHEET.gap)) + (blocks - 1) * SHEET.between <= room.width);
    assert.ok(SHEET.heading + Math.ceil(count / blocks) * (size + SHEET.gap) <= room.height);
  }
  const wide = fit(layers(4, 64), room.width, room.height, options);
  assert.deepEqual([wide.kind, wide.wrapped], ["sheet", true]);
  assert.ok(4 * (CARD.title + Math.ceil(64 / wide.columns) * (wide.size + SHEET.gap)) <= room.height);
  const flow = fit([1000, 24], room.width, room.height, { byLayer: false, cards: true });
  assert.ok(2 * CARD.title + (Math.ceil(1000 / flow.columns) + 1) * (flow.size + SHEET.gap) <= room.height);
});

test("heads of a narrow screen go on in further rows where a layer a row would be stamps", () => {
  const phone = fit([12], 374, 550, { byLayer: true, cards: true });
  assert.deepEqual([phone.kind, phone.wrapped, phone.columns], ["sheet", true, 3]);
  assert.ok(phone.size >= 90);
  const many = fit(Array<number>(30).fill(9), 374, 550, { byLayer: true, cards: true });
  assert.ok(!many.wrapped);
});

test("cards of several layers stand layer by layer, also where layers are side by side", () => {
  const room = { width: 1370, height: 640 },
    options = { byLayer: true, cards: true };
  const { kind, size, columns, blocks } = fit([4, 4, 4], room.width, room.height, options);
  assert.deepEqual([kind, columns, blocks], ["cards", 2, 3]);
  assert.ok(size > 200);
  assert.ok(blocks * columns * (size + CARD.gap) <= room.width);
  assert.ok(CARD.title + 2 * (size + CARD.text + CARD.gap) <= room.height);
});

test("a poster is near to 4:3, few layers stand in one block", () => {
  assert.equal(posterBlocks(2, 4, 258), 1);
  assert.equal(posterBlocks(12, 12, 130), 1);
  assert.equal(posterBlocks(30, 9, 52), 2);
  assert.equal(posterBlocks(1, 12, 130), 1);
  assert.ok(posterBlocks(64, 1, 258) > 6);
});

test("distances with few pairs are those of the figures", () => {
  const of = (count: number[], greatest = 1): Profile =>
    ({
      count: Float64Array.from(count),
      least: Float64Array.from(count, () => 0),
      greatest: Float64Array.from(count, () => greatest),
    }) as unknown as Profile;
  assert.deepEqual(fewPairs(of([0, 0, 64, 16, 15, 1])), [false, false, false, false, true, true]);
  assert.deepEqual(fewPairs(of([8, 2, 1])), [false, false, true]);
  assert.equal(fewPairs(of([64, 16])), null);
  assert.equal(fewPairs(of([64, 1], 0)), null);
});

test("a colour bar has a line at zero, and a label there where there is room", () => {
  const scale: Scale = { low: -2, high: 8, spacing: "linear", map: "signed" },
    bar = barColours(scale, scale, 101);
  assert.deepEqual([...bar.entries()].filter(([, colour]) => colour === 0xff000000).map(([at]) => at), [20]); // biome-ignore format: one line
  assert.equal(middleOf(scale), 0);
  assert.equal(middleOf({ ...scale, low: -0.5 }), 3.75);
  assert.equal(middleOf({ ...scale, low: 2 }), 5);
  assert.ok(!barColours({ ...scale, low: 2 }).includes(0xff000000));
});

test("every colour map is dark at one end and light at the other, steadily", () => {
  const light = (rgba: number) => 0.2126 * (rgba & 255) + 0.7152 * ((rgba >> 8) & 255) + 0.0722 * ((rgba >> 16) & 255);
  for (const name of ["signed", "viridis", "cividis", "magma", "grey"]) {
    const colours = table(name);
    for (let n = 1; n < 513; n++) assert.ok(light(colours[n]) >= light(colours[n - 1]) - 0.6, `${name} ${n}`);
    assert.ok(light(colours[512]) - light(colours[0]) > 120, name);
  }
});

test("the ink on a colour has a contrast of at least 4.5, and the better of black and white", () => {
  for (const name of Object.keys(MAPS)) {
    for (const colour of table(name)) {
      const light = luminance(colour) + 0.05,
        contrast = { black: light / 0.05, white: 1.05 / light };
      assert.ok(contrast[inkOn(colour)] >= 4.5, name);
      assert.equal(contrast[inkOn(colour)], Math.max(contrast.black, contrast.white));
    }
  }
  // Black on white is 21; the middle green of viridis was once written on in white.
  assert.equal(Math.round((luminance(0xffffffff) + 0.05) / (luminance(0xff000000) + 0.05)), 21);
  assert.equal(inkOn(table("viridis")[282]), "black");
});

test("numbers of small cells have two digits that count, and whole numbers all of theirs", () => {
  const cases: [number, string][] = [
    [0.04537, "0.045"],
    [-0.8799, "−0.88"],
    [1, "1"],
    [9.96, "10"],
    [128, "128"],
    [-1234.6, "−1235"],
    [2.34e7, "2.3e7"],
    [Number.NaN, "–"],
  ];
  for (const [value, text] of cases) assert.equal(brief(value), text);
});

test("similar maps share a group", () => {
  const a = Float32Array.of(1, 2, 3, 4, NaN),
    b = Float32Array.of(2, 4, 6, 8.1, NaN),
    c = Float32Array.of(4, 3, 1, 2, NaN),
    d = Float32Array.of(8, 6, 2.1, 4, 7);
  assert.ok(correlation(a, b) > 0.99);
  assert.equal(correlation(a, Float32Array.of(5, 5, 5, 5, 5)), 0);
  assert.deepEqual(
    groups([a, c, b, d])
      .map((members) => members.toSorted())
      .toSorted(),
    [
      [0, 2],
      [1, 3],
    ],
  );
  assert.deepEqual(groups([]), []);
  assert.deepEqual(groups([a]), [[0]]);
});

test("a curve keeps every spike however few pixels it has", () => {
  const values = new Float64Array(10_000);
  values[7777] = 5;
  values[1234] = -3;
  values[50] = NaN;
  const columns = reduceCurve(values, 0, 0, 9999, 100, (value) => value);
  assert.ok(columns.length <= 101);
  assert.equal(Math.max(...columns.map(({ high }) => high)), 5);
  assert.equal(Math.min(...columns.map(({ low }) => low)), -3);
  assert.deepEqual(
    reduceCurve([1, 2, 3, 4], 10, 11, 12, 100, (value) => value).map(({ x, low }) => [x, low]),
    [
      [11, 2],
      [12, 3],
    ],
  );
});

test("levels: a cell is never smaller than a pixel", () => {
  for (const pixels of [3, 1, 0.99, 0.5, 0.3, 0.01]) {
    const cell = 2 ** levelFor(pixels);
    assert.ok(cell * pixels >= 1 - 1e-6);
    assert.ok(cell === 1 || (cell / 2) * pixels < 1);
  }
});

test("ranks, texts and fields", () => {
  assert.deepEqual(rank(Float64Array.of(3, 9, 5, NaN), 2), { place: 2, of: 3 });
  assert.equal(number(-0.000012345, 3), "−1.23e−5");
  assert.equal(number(1234.5678), "1235");
  assert.equal(number(NaN), "hidden");
  assert.equal(visible(" a\nb"), "·a⏎b");
  assert.deepEqual([0.3, 1, 1.2, 4, 7, 60].map(roundStep), [0.5, 1, 2, 5, 10, 100]);
  assert.equal(field('=1+"x"'), `"'=1+""x"""`);
  assert.equal(literal('a"b\\'), '"a\\"b\\\\"');
  assert.equal(literal("é\n\u202e😀\ud800"), '"\\u00e9\\n\\u202e\\U0001f600\\ud800"');
});
