// The whole view as one plain object: what a link restores, and what a notebook reads and sets.
import { MAPS } from "./colour.ts";
import { QUANTITIES, type Quantity } from "./pack.ts";

export type Minus = "nothing" | "row" | "distance";
export type Pooling = "auto" | "mean" | "least" | "greatest";
export type Compare = "off" | "side" | "difference" | "triangles";

export interface Note {
  capture: string;
  layer: number;
  head: number;
  query: number;
  key: number;
  text: string;
}

export interface State {
  screen: "overview" | "head" | "reading";
  capture: string;
  other: string;
  compare: Compare;
  /** Layer and head ids, from 0. */
  layer: number;
  head: number;
  quantity: Quantity;
  minus: Minus;
  four: boolean;
  pooling: Pooling;
  /** What the positional part of the scores is multiplied by, from 0 to 2: in one head, or with null in all. */
  position: { scale: number; only: { layer: number; head: number } | null };
  /** First query and key shown and how many tokens the map is wide; null shows everything. */
  view: { query: number; key: number; span: number } | null;
  /** The locked pair. */
  locked: { query: number; key: number } | null;
  colour: {
    map: string;
    scope: "head" | "shared";
    range: "auto" | "symmetric" | "full";
    scale: "auto" | "linear" | "log" | "symlog";
    /** Percent of the overview's cells left out at either end. */
    clip: number;
    /** Limits set by hand, by what is shown. */
    limits: Record<string, [number, number]>;
  };
  overview: {
    /** "auto": maps; of two captures in order of their difference, or a ranking where maps would be small. */
    view: "auto" | "maps" | "measure" | "scatter" | "ranking";
    measure: string;
    /** The other measure of the scatter. */
    against: string;
    order: "model" | "rising" | "falling" | "similar";
    least: number | null;
    greatest: number | null;
  };
  profile: "bias" | "shown";
  /** The reading view: the locked token, whether it looks or is looked at, and heads besides the one shown. */
  reading: {
    token: number | null;
    side: "to" | "from";
    marks: "shading" | "arcs";
    heads: { layer: number; head: number }[];
    beside: boolean;
  };
  search: string;
  theme: "auto" | "light" | "dark";
  notes: Note[];
}

export const DEFAULT: State = {
  screen: "overview",
  capture: "",
  other: "",
  compare: "off",
  layer: 0,
  head: 0,
  quantity: "weights",
  minus: "nothing",
  four: false,
  pooling: "auto",
  position: { scale: 1, only: null },
  view: null,
  locked: null,
  colour: { map: "auto", scope: "head", range: "auto", scale: "auto", clip: 0, limits: {} },
  overview: { view: "auto", measure: "", against: "", order: "model", least: null, greatest: null },
  profile: "bias",
  reading: { token: null, side: "to", marks: "shading", heads: [], beside: true },
  search: "",
  theme: "auto",
  notes: [],
};

/** The greatest factor of the positional part. */
export const MOST_POSITION = 2;

/** The fields of a state that differ from the default. */
export function difference(state: State): Partial<State> {
  const out: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(state)) {
    if (JSON.stringify(value) !== JSON.stringify(DEFAULT[name as keyof State])) out[name] = value;
  }
  return out as Partial<State>;
}

/** A check of one value: whether a state may contain it. */
type Check = (value: unknown) => boolean;
type Fields = Record<string, Check>;

const MOST_TEXT = 10_000,
  MOST_NUMBER = 1e9;
const among =
  (...values: string[]): Check =>
  (value) =>
    values.includes(value as string);
const finite: Check = (value) => typeof value === "number" && Math.abs(value) <= MOST_NUMBER;
const limit: Check = (value) => typeof value === "number" && Number.isFinite(value);
const index: Check = (value) => Number.isInteger(value) && (value as number) >= 0 && finite(value);
const text: Check = (value) => typeof value === "string" && value.length <= MOST_TEXT;
const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const object =
  (fields: Fields): Check =>
  (value) =>
    isObject(value) &&
    Object.keys(value).length === Object.keys(fields).length &&
    Object.entries(fields).every(([name, check]) => Object.hasOwn(value, name) && check(value[name]));
const orNull =
  (check: Check): Check =>
  (value) =>
    value === null || check(value);

const MINUS = ["nothing", "row", "distance"];
const NAMES = QUANTITIES.flatMap((quantity) =>
  MINUS.flatMap((minus) => ["", "difference"].map((less) => `${quantity}|${minus}|${less}`)),
);
const limits: Check = (value) =>
  Array.isArray(value) && value.length === 2 && value.every(limit) && value[0] < value[1];

const COLOUR: Fields = {
  map: (value) => typeof value === "string" && (value === "auto" || Object.hasOwn(MAPS, value)),
  scope: among("head", "shared"),
  range: among("auto", "symmetric", "full"),
  scale: among("auto", "linear", "log", "symlog"),
  clip: (value) => finite(value) && (value as number) >= 0 && (value as number) < 50,
};
const OVERVIEW: Fields = {
  view: among("auto", "maps", "measure", "scatter", "ranking"),
  measure: text,
  against: text,
  order: among("model", "rising", "falling", "similar"),
  least: orNull(limit),
  greatest: orNull(limit),
};
const READING: Fields = {
  token: orNull(index),
  side: among("to", "from"),
  marks: among("shading", "arcs"),
  heads: (value) => Array.isArray(value) && value.length < 6 && value.every(object({ layer: index, head: index })),
  beside: (value) => typeof value === "boolean",
};
const NOTE = object({ capture: text, layer: index, head: index, query: index, key: index, text });

/** Fields that are right or wrong as a whole; `colour`, `overview`, `reading` and `notes` are read part by part. */
const WHOLE: Fields = {
  screen: among("overview", "head", "reading"),
  capture: text,
  other: text,
  compare: among("off", "side", "difference", "triangles"),
  layer: index,
  head: index,
  quantity: among(...QUANTITIES),
  minus: among(...MINUS),
  four: (value) => typeof value === "boolean",
  pooling: among("auto", "mean", "least", "greatest"),
  position: object({
    scale: (value) => finite(value) && (value as number) >= 0 && (value as number) <= MOST_POSITION,
    only: orNull(object({ layer: index, head: index })),
  }),
  view: orNull(object({ query: finite, key: finite, span: (value) => finite(value) && (value as number) > 0 })),
  locked: orNull(object({ query: index, key: index })),
  profile: among("bias", "shown"),
  search: text,
  theme: among("auto", "light", "dark"),
};

/** What a link or a notebook gives: a whole state, the fields of it that were given, and in words what was left out. */
export function readState(given: unknown): { state: State; patch: Partial<State>; dropped: string[] } {
  const state = structuredClone(DEFAULT),
    dropped: string[] = [];
  /** Give the entries of an object that pass, and note the others. */
  const passing = (value: unknown, fields: (name: string) => Check | undefined, where: string) => {
    if (!isObject(value)) {
      dropped.push(`${where || "the state"} = ${shortened(value)}`);
      return [];
    }
    return Object.entries(value).filter(([name, each]) => {
      const right = fields(name)?.(each) === true;
      if (!right) dropped.push(`${where && `${where}.`}${shortened(name, false)} = ${shortened(each)}`);
      return right;
    });
  };
  const own = (fields: Fields) => (name: string) => (Object.hasOwn(fields, name) ? fields[name] : undefined);
  const parts: Record<string, (value: unknown) => void> = {
    colour(value) {
      const fields = (name: string) => (name === "limits" ? () => true : own(COLOUR)(name));
      for (const [name, each] of passing(value, fields, "colour"))
        if (name !== "limits") Object.assign(state.colour, { [name]: each });
        else
          state.colour.limits = Object.fromEntries(
            passing(each, (key) => (NAMES.includes(key) ? limits : undefined), "colour.limits"),
          ) as State["colour"]["limits"];
    },
    overview: (value) => Object.assign(state.overview, Object.fromEntries(passing(value, own(OVERVIEW), "overview"))),
    reading: (value) => Object.assign(state.reading, Object.fromEntries(passing(value, own(READING), "reading"))),
    notes(value) {
      if (!Array.isArray(value)) dropped.push(`notes = ${shortened(value)}`);
      else
        state.notes = value.filter((note, n): note is Note => {
          if (!NOTE(note)) dropped.push(`notes[${n}] = ${shortened(note)}`);
          return NOTE(note);
        });
    },
  };
  const fields = (name: string) => (Object.hasOwn(parts, name) ? () => true : own(WHOLE)(name));
  const kept = passing(given ?? {}, fields, "");
  for (const [name, value] of kept)
    if (Object.hasOwn(parts, name)) parts[name](value);
    else Object.assign(state, { [name]: structuredClone(value) });
  const patch = Object.fromEntries(kept.map(([name]) => [name, state[name as keyof State]]));
  return { state, patch: patch as Partial<State>, dropped };
}

/** The state alone. */
export function complete(given: unknown): State {
  return readState(given).state;
}

function shortened(value: unknown, quoted = true): string {
  const shown = quoted ? (JSON.stringify(value) ?? String(value)) : String(value);
  return shown.length > 40 ? `${shown.slice(0, 40)}…` : shown;
}

/** Holds the state and says when it changed. */
export class Store {
  private readonly listeners = new Set<(before: State) => void>();

  constructor(public state: State) {}

  on(listener: (before: State) => void): void {
    this.listeners.add(listener);
  }

  set(patch: Partial<State>): void {
    const before = this.state;
    this.state = { ...before, ...patch };
    for (const listener of this.listeners) listener(before);
  }

  colour(patch: Partial<State["colour"]>): void {
    this.set({ colour: { ...this.state.colour, ...patch } });
  }

  reading(patch: Partial<State["reading"]>): void {
    this.set({ reading: { ...this.state.reading, ...patch } });
  }

  overview(patch: Partial<State["overview"]>): void {
    this.set({ overview: { ...this.state.overview, ...patch } });
  }
}
