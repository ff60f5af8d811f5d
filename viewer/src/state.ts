// The whole view as one plain object: what a link restores, and what a notebook reads and sets.
import { type Quantity } from "./pack.ts";

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
  screen: "overview" | "head";
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
  /** First query and key shown and how many tokens the map is wide; null shows everything. */
  view: { query: number; key: number; span: number } | null;
  /** The locked pair. */
  locked: { query: number; key: number } | null;
  colour: {
    map: string;
    scope: "head" | "shared";
    range: "auto" | "symmetric" | "full";
    scale: "auto" | "linear" | "log";
    /** Percent of the overview's cells left out at either end. */
    clip: number;
    /** Limits set by hand, by what is shown. */
    limits: Record<string, [number, number]>;
  };
  overview: {
    measure: string;
    order: "model" | "rising" | "falling" | "similar";
    least: number | null;
    greatest: number | null;
  };
  profile: "bias" | "shown";
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
  view: null,
  locked: null,
  colour: { map: "auto", scope: "head", range: "auto", scale: "auto", clip: 0, limits: {} },
  overview: { measure: "", order: "model", least: null, greatest: null },
  profile: "bias",
  search: "",
  theme: "auto",
  notes: [],
};

/** The fields of a state that differ from the default. */
export function difference(state: State): Partial<State> {
  const out: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(state)) {
    if (JSON.stringify(value) !== JSON.stringify(DEFAULT[name as keyof State])) out[name] = value;
  }
  return out as Partial<State>;
}

/** A whole state from some fields; unknown fields and fields of a wrong type are left out. */
export function complete(given: unknown): State {
  const state = structuredClone(DEFAULT) as unknown as Record<string, unknown>;
  if (typeof given !== "object" || given === null) return state as unknown as State;
  for (const [name, value] of Object.entries(given)) {
    const known = state[name];
    if (known === undefined || value === undefined) continue;
    if (known !== null && value !== null && !Array.isArray(known) && typeof known === "object")
      state[name] = { ...known, ...(value as object) };
    else if (known === null || value === null || typeof value === typeof known) state[name] = value;
  }
  return state as unknown as State;
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

  overview(patch: Partial<State["overview"]>): void {
    this.set({ overview: { ...this.state.overview, ...patch } });
  }
}
