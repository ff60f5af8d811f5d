// Colours: maps that survive colour blindness and grey print, limits, and painting values.
import type { Source, Whole } from "./source.ts";
import type { State } from "./state.ts";

type Stop = [number, string];
const even = (...colours: string[]): Stop[] => colours.map((colour, n) => [n / (colours.length - 1), colour]);

/** Signed maps change steadily in lightness, so the sign survives in grey; the middle is grey, never white. */
export const MAPS: Record<string, { title: string; stops: Stop[]; signed: boolean }> = {
  signed: {
    title: "Signed (navy, grey, yellow)",
    signed: true,
    stops: [
      [0, "#0a1a3f"],
      [0.3, "#2a6fc4"],
      [0.5, "#a6a7a9"],
      [0.7, "#f2ab3d"],
      [1, "#fff3a0"],
    ],
  },
  viridis: {
    title: "Viridis",
    signed: false,
    stops: even("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"),
  },
  cividis: {
    title: "Cividis",
    signed: false,
    stops: even(
      "#00224e",
      "#123570",
      "#3b496c",
      "#575d6d",
      "#707173",
      "#8a8678",
      "#a59c74",
      "#c3b369",
      "#e1cc55",
      "#fee838",
    ),
  },
  magma: {
    title: "Magma",
    signed: false,
    stops: even("#000004", "#1d1147", "#51127c", "#832681", "#b73779", "#e75263", "#fc8961", "#fec488", "#fcfdbf"),
  },
  grey: { title: "Grey", signed: false, stops: even("#111111", "#f2f2f2") },
};

const STEPS = 512;
const tables = new Map<string, Uint32Array>();

/** 512 colours as RGBA in memory order. */
export function table(name: string): Uint32Array {
  let found = tables.get(name);
  if (!found) {
    const { stops } = MAPS[name],
      rgb = (text: string) => [1, 3, 5].map((n) => parseInt(text.slice(n, n + 2), 16));
    found = Uint32Array.from({ length: STEPS }, (_, n) => {
      const x = n / (STEPS - 1);
      let s = 1;
      while (s < stops.length - 1 && stops[s][0] < x) s++;
      const [x0, c0] = stops[s - 1],
        [x1, c1] = stops[s],
        f = (x - x0) / (x1 - x0),
        a = rgb(c0),
        b = rgb(c1);
      const [r, g, bl] = a.map((value, k) => Math.round(value + f * (b[k] - value)));
      return ((255 << 24) | (bl << 16) | (g << 8) | r) >>> 0;
    });
    tables.set(name, found);
  }
  return found;
}

/** How values become colours. */
export interface Scale {
  low: number;
  high: number;
  log: boolean;
  map: string;
}

/** A function that spaces values evenly in colour: the logarithm, on both sides of zero where there are two. */
export function spacing(scale: Scale): { to: (value: number) => number; from: (even: number) => number } {
  if (!scale.log) return { to: (value) => value, from: (value) => value };
  if (scale.low > 0) return { to: (value) => Math.log(value > 0 ? value : 1e-300), from: Math.exp };
  const small = Math.max(Math.abs(scale.low), Math.abs(scale.high), 1e-300) / 1000;
  return { to: (value) => Math.asinh(value / small), from: (value) => small * Math.sinh(value) };
}

/** Where a value lies between the limits: 0 to 1. */
export function place(scale: Scale, value: number): number {
  const { to } = spacing(scale),
    low = to(scale.low),
    high = to(scale.high);
  return high > low ? Math.min(1, Math.max(0, (to(value) - low) / (high - low))) : 0.5;
}

/** Write colours of values into RGBA pixels; NaN becomes transparent. */
export function paint(values: Float32Array, scale: Scale, pixels: Uint32Array): void {
  const colours = table(scale.map),
    { to } = spacing(scale),
    low = to(scale.low),
    high = to(scale.high);
  const factor = high > low ? (STEPS - 1) / (high - low) : 0,
    offset = high > low ? 0.5 : STEPS / 2;
  for (let n = 0; n < values.length; n++) {
    const value = values[n];
    if (value !== value) {
      pixels[n] = 0;
      continue;
    }
    const at = ((scale.log ? to(value) : value) - low) * factor + offset;
    pixels[n] = colours[at < 0 ? 0 : at >= STEPS ? STEPS - 1 : at | 0];
  }
}

export const signature = (scale: Scale) => `${scale.low}|${scale.high}|${scale.log}|${scale.map}`;

/** Under which name limits set by hand are kept. */
export function limitsName(source: Source): string {
  return `${source.quantity}|${source.minus}|${source.less ? "difference" : ""}`;
}

function percentile(values: Float32Array[], percent: number, fromTop: boolean): number {
  if (percent === 0) {
    let best = NaN;
    for (const array of values)
      for (const value of array)
        if (fromTop ? !(best >= value) && value === value : !(best <= value) && value === value) best = value;
    return best;
  }
  const sorted = Float32Array.from(
    values.flatMap((array) => Array.from(array).filter((value) => !Number.isNaN(value))),
  ).sort();
  if (!sorted.length) return NaN;
  const at = Math.floor((percent / 100) * (sorted.length - 1));
  return sorted[fromTop ? sorted.length - 1 - at : at];
}

/** Limits from whole maps: the range of their pairs, or of all but some percent of their cells. */
export function automatic(source: Source, colour: State["colour"], wholes: Whole[]): Scale | null {
  const low = percentile(
      wholes.map((whole) => whole.least),
      colour.clip,
      false,
    ),
    high = percentile(
      wholes.map((whole) => whole.greatest),
      colour.clip,
      true,
    );
  if (Number.isNaN(low) || Number.isNaN(high)) return null;
  // One value everywhere, such as the bias of NoPE: the middle of the signed map, which is grey.
  if (low === high) return { low, high, log: false, map: "signed" };
  const plainWeights = source.quantity === "weights" && source.minus === "nothing" && !source.less;
  const log = colour.scale === "log" || (colour.scale === "auto" && plainWeights);
  const crosses = low < 0 && high > 0,
    symmetric = colour.range === "symmetric" || (colour.range === "auto" && crosses);
  const top = Math.max(Math.abs(low), Math.abs(high)) || 1;
  const map = colour.map !== "auto" ? colour.map : symmetric ? "signed" : "viridis";
  if (symmetric) return { low: -top, high: top, log, map };
  if (log && low >= 0)
    return { low: Math.max(low, high * Math.min(1e-4, 0.1 / source.capture.length)), high, log, map };
  return { low, high, log, map };
}

/** The scale with the limits set by hand, if any. */
export function withLimits(source: Source, colour: State["colour"], scale: Scale | null): Scale | null {
  const limits = colour.limits[limitsName(source)];
  if (!limits) return scale;
  const base = scale ?? { log: false, map: colour.map === "auto" ? "viridis" : colour.map };
  return { ...base, low: limits[0], high: limits[1] };
}
