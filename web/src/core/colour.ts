// Colours: maps that survive colour blindness and grey print, limits, and painting values.
import type { Quantity } from "./pack.ts";
import type { Source, Whole } from "./source.ts";
import type { Minus, State } from "./state.ts";

type Stop = [number, string];
const even = (...colours: string[]): Stop[] => colours.map((colour, n) => [n / (colours.length - 1), colour]);

/** Signed maps change steadily in lightness, so the sign survives in grey; the middle is grey, never white. */
export const MAPS: Record<string, { title: string; stops: Stop[]; signed: boolean }> = {
  signed: {
    title: "Signed (navy, grey, yellow)",
    signed: true,
    stops: [
      [0, "#0a1a3f"],
      [0.36, "#2a6fc4"],
      [0.5, "#a6a7a9"],
      [0.64, "#f2ab3d"],
      [1, "#fff3a0"],
    ],
  },
  viridis: {
    title: "Viridis",
    signed: false,
    // Matplotlib's, every eighth colour, so that maps look as in the figures.
    stops: even(
      ...(
        "440154 470d60 48186a 482374 472d7b 453781 424086 3e4989 3b528b 375b8d 33638d 2f6b8e 2c728e 297a8e 26828e 23898e " +
        "21918c 1f988b 1fa088 22a785 28ae80 32b67a 3fbc73 4ec36b 5ec962 70cf57 84d44b 98d83e addc30 c2df23 d8e219 ece51b fde725"
      )
        .split(" ")
        .map((colour) => `#${colour}`),
    ),
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

/** Odd, so that the middle of a map is one of its colours. */
const STEPS = 513;
const tables = new Map<string, Uint32Array>();

/** 513 colours as RGBA in memory order. */
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

export type Spacing = "linear" | "log" | "symlog";

/** How values become colours. */
export interface Scale {
  low: number;
  high: number;
  spacing: Spacing;
  map: string;
}

/** A function that spaces values evenly in colour: the logarithm, on both sides of zero where there are two. */
export function spacing(scale: Scale): { to: (value: number) => number; from: (even: number) => number } {
  if (scale.spacing === "linear") return { to: (value) => value, from: (value) => value };
  if (scale.spacing === "log" && scale.low > 0)
    return { to: (value) => Math.log(value > 0 ? value : 1e-300), from: Math.exp };
  const small = Math.max(Math.abs(scale.low), Math.abs(scale.high), 1e-300) / 1000;
  return { to: (value) => Math.asinh(value / small), from: (value) => small * Math.sinh(value) };
}

/** The range in even spacing as two straight pieces that meet at `bend`, where the colour is `middle` (0 to 1).
 *  Grey is zero on a signed map, and each sign uses its half in full; other maps have one piece. */
function pieces(scale: Scale): { low: number; bend: number; high: number; middle: number } {
  const { to } = spacing(scale),
    low = to(scale.low),
    high = to(scale.high);
  if (!MAPS[scale.map].signed) return { low, bend: high, high, middle: 1 };
  return { low, bend: Math.min(high, Math.max(low, to(0))), high, middle: 0.5 };
}

/** Where a value lies in the colour map: 0 to 1. */
export function place(scale: Scale, value: number): number {
  const { low, bend, high, middle } = pieces(scale),
    at = Math.min(high, Math.max(low, spacing(scale).to(value)));
  if (!(high > low)) return 0.5;
  if (at < bend) return (middle * (at - low)) / (bend - low);
  return high > bend ? middle + ((1 - middle) * (at - bend)) / (high - bend) : middle;
}

/** Where a value lies on an axis from low to high in the scale's spacing, 0 to 1: colour bars are drawn so. */
export function along(scale: Scale, value: number): number {
  const { to } = spacing(scale),
    low = to(scale.low),
    high = to(scale.high);
  return high > low ? Math.min(1, Math.max(0, (to(value) - low) / (high - low))) : 0.5;
}

/** The value at a part of that axis: the inverse of `along`. */
export function valueAlong(scale: Scale, part: number): number {
  const { to, from } = spacing(scale),
    low = to(scale.low),
    value = from(low + part * (to(scale.high) - low));
  return Math.abs(value) < 1e-12 ? 0 : value;
}

/** The colours of that axis as RGBA pixels. */
export function barColours(scale: Scale, axis: Scale = scale, size = 512): Uint32Array<ArrayBuffer> {
  const colours = table(scale.map);
  const bar = Uint32Array.from({ length: size }, (_, n) => {
    const part = size > 1 ? n / (size - 1) : 0.5;
    return colours[Math.round((STEPS - 1) * place(scale, valueAlong(axis, part)))];
  });
  // A line marks zero where it lies inside.
  if (scale.low < 0 && scale.high > 0) {
    const at = Math.round((size - 1) * along(axis, 0));
    bar[at] = inkOn(bar[at]) === "black" ? 0xff000000 : 0xffffffff;
  }
  return bar;
}

/** Relative luminance of a colour by the Web Content Accessibility Guidelines, 0 for black to 1 for white. */
export function luminance(rgba: number): number {
  const linear = (shift: number) => {
    const part = ((rgba >> shift) & 255) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * linear(0) + 0.7152 * linear(8) + 0.0722 * linear(16);
}

/** Black or white, whichever has the larger contrast with a colour: at least 4.5 on every colour. */
export function inkOn(rgba: number): "black" | "white" {
  // The contrasts (L + 0.05) / 0.05 and 1.05 / (L + 0.05) are equal where (L + 0.05)^2 = 0.05 * 1.05.
  return (luminance(rgba) + 0.05) ** 2 > 0.0525 ? "black" : "white";
}

/** The value of a colour bar's middle label: 0 where there is room for it, otherwise what lies in the middle. */
export function middleOf(scale: Scale): number {
  const zero = along(scale, 0);
  return scale.low < 0 && zero > 0.15 && zero < 0.85 ? 0 : valueAlong(scale, 0.5);
}

/** Write colours of values into RGBA pixels; NaN becomes transparent. */
export function paint(values: Float32Array, scale: Scale, pixels: Uint32Array): void {
  const colours = table(scale.map),
    { to } = spacing(scale),
    { low, bend, high, middle } = pieces(scale),
    linear = scale.spacing === "linear",
    last = STEPS - 1;
  const below = bend > low ? (middle * last) / (bend - low) : 0,
    above = high > bend ? ((1 - middle) * last) / (high - bend) : 0,
    offset = high > low ? 0.5 : (STEPS - 1) / 2 - middle * last;
  for (let n = 0; n < values.length; n++) {
    const value = values[n];
    if (value !== value) {
      pixels[n] = 0;
      continue;
    }
    const even = linear ? value : to(value),
      at = middle * last + (even < bend ? below : above) * (even - bend) + offset;
    pixels[n] = colours[at < 0 ? 0 : at >= STEPS ? last : at | 0];
  }
}

export const signature = (scale: Scale) => `${scale.low}|${scale.high}|${scale.spacing}|${scale.map}`;

/** Under which name limits set by hand are kept. */
export function limitsName(source: Source): string {
  return `${source.quantity}|${source.minus}|${source.less ? "difference" : ""}`;
}

const ranges = new WeakMap<Whole, [number, number]>();

/** The least and the greatest value of a whole map; NaN where it has none. */
export function rangeOf(whole: Whole): [number, number] {
  let found = ranges.get(whole);
  if (!found) {
    let low = NaN,
      high = NaN;
    for (const value of whole.least) if (!(low <= value) && value === value) low = value;
    for (const value of whole.greatest) if (!(high >= value) && value === value) high = value;
    found = [low, high];
    ranges.set(whole, found);
  }
  return found;
}

/** The range of several whole maps; NaN where they have no value. */
export function commonRange(wholes: Whole[]): [number, number] {
  const known = wholes.map(rangeOf).filter(([low]) => !Number.isNaN(low));
  return known.reduce((a, b) => [Math.min(a[0], b[0]), Math.max(a[1], b[1])], known[0] ?? [NaN, NaN]);
}

/** The range of whole maps without some percent of their cells at either end. */
function limitsOf(wholes: Whole[], percent: number): [number, number] {
  if (percent === 0) return commonRange(wholes);
  const sorted = (what: "least" | "greatest") =>
    Float32Array.from(wholes.flatMap((whole) => Array.from(whole[what]).filter((value) => value === value))).sort();
  const least = sorted("least"),
    greatest = sorted("greatest");
  if (!least.length) return [NaN, NaN];
  const at = Math.floor((percent / 100) * (least.length - 1));
  return [least[at], greatest[greatest.length - 1 - at]];
}

/** The least part of a range that lies on either side of zero where colours diverge, as in the figures. */
const SHARE = 0.2;

/** Whether colours diverge: in every panel each sign takes at least a fifth of the range. One value counts for nothing. */
export function diverges(panels: [number, number][]): boolean {
  const spread = panels.filter(([low, high]) => low < high);
  return spread.length > 0 && spread.every(([low, high]) => Math.min(-low, high) >= SHARE * (high - low));
}

/** Least weight that is coloured differently from 0; less where a text is so long that weights are smaller. */
const leastWeight = (length: number) => Math.min(1e-4, 0.1 / length);

const isPlainWeights = (quantity: Quantity, minus: Minus, less: boolean) =>
  quantity === "weights" && minus === "nothing" && !less;

/** Whether all heads have the same limits anyway: weights, from the least that is coloured to 1. */
export function sameLimits(quantity: Quantity, minus: Minus, less: boolean, colour: State["colour"]): boolean {
  const logarithmic = colour.scale === "auto" || colour.scale === "log";
  return isPlainWeights(quantity, minus, less) && logarithmic && colour.range === "auto" && colour.clip === 0;
}

/** The scale of whole maps by the rule of the figures: limits are the range of the maps' pairs, or of all but some
 *  percent of their cells. Maps shown together have one colour map; `signed` says whether it diverges. */
export function automatic(source: Source, colour: State["colour"], wholes: Whole[], signed?: boolean): Scale | null {
  const [low, high] = limitsOf(wholes, colour.clip);
  if (Number.isNaN(low) || Number.isNaN(high)) return null;
  // One value everywhere, such as the bias of NoPE: the middle of the signed map, which is grey.
  if (low === high) return { low, high, spacing: "linear", map: "signed" };
  const weights = source.quantity === "weights",
    plain = isPlainWeights(source.quantity, source.minus, Boolean(source.less));
  const auto: Spacing = plain ? "log" : weights && source.less ? "symlog" : "linear",
    spacing = colour.scale === "auto" ? auto : colour.scale;
  const named = (both: boolean) => (colour.map !== "auto" ? colour.map : both ? "signed" : "viridis");
  if (colour.range === "symmetric" || (colour.range === "auto" && source.less)) {
    const top = Math.max(Math.abs(low), Math.abs(high));
    return { low: -top, high: top, spacing, map: named(true) };
  }
  if (plain && spacing === "log") {
    const least = leastWeight(source.capture.length);
    if (sameLimits(source.quantity, source.minus, false, colour))
      return { low: least, high: 1, spacing, map: named(false) };
    return { low: Math.max(low, high * least), high, spacing, map: named(false) };
  }
  return { low, high, spacing, map: named(signed ?? diverges([[low, high]])) };
}

/** The scale with the limits set by hand, if any. */
export function withLimits(source: Source, colour: State["colour"], scale: Scale | null): Scale | null {
  const limits = colour.limits[limitsName(source)];
  if (!limits) return scale;
  const base = scale ?? { spacing: "linear", map: colour.map === "auto" ? "viridis" : colour.map };
  return { ...base, low: limits[0], high: limits[1] };
}
