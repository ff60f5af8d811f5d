// What the page and its workers say to each other.
import type { Factors } from "../core/capture.ts";
import type { Quantity } from "../core/pack.ts";

export const TILE = 256;

/** One map: which factors, which head among them (-1: all), what of it, and what is taken away. */
export interface Part {
  factors: string;
  head: number;
  quantity: Quantity;
  /** Name of constants loaded before: rows, distances or neither. */
  minus: { kind: "row" | "distance"; name: string } | null;
  /** What the positional part of the scores is multiplied by; absent is 1. */
  position?: number;
}

/** Rows of cells of a tile: queries from `query`, keys from `key`, both first tokens. */
export interface TileJob {
  type: "tile";
  part: Part;
  /** Taken away pair by pair before cells are pooled. */
  other: Part | null;
  level: number;
  query: number;
  rows: number;
  key: number;
}

/** Sums over some rows of a map, by distance, by row and by key. */
export interface ProfileJob {
  type: "profile";
  part: Part;
  query: number;
  rows: number;
}

/** Values of pairs. */
export interface ValuesJob {
  type: "values";
  part: Part;
  other: Part | null;
  query: number;
  rows: number;
  key: number;
  keys: number;
}

/** How far two maps are apart over some rows: number of pairs, sum and greatest of |difference|. */
export interface DistanceJob {
  type: "distance";
  part: Part;
  other: Part;
  query: number;
  rows: number;
  keys: number;
}

export type Job = TileJob | ProfileJob | ValuesJob | DistanceJob;

export type ToWorker =
  | { type: "start"; module: WebAssembly.Module }
  | { type: "load"; name: string; factors: Factors }
  | { type: "constants"; factors: string; name: string; values: Float64Array }
  | { type: "drop"; name: string }
  | { type: "job"; job: Job };

export type FromWorker =
  | { type: "started" }
  | { type: "not started"; error: string }
  | { type: "done"; result: Float32Array[] | Float64Array[]; milliseconds: number }
  /** `final`: the job cannot be done, here or in a different worker. */
  | { type: "failed"; error: string; final: boolean };

/** Distance d of a map of length t is entry d + t - 1 of a profile. */
export const PROFILE = { count: 0, sum: 1, square: 2, least: 3, greatest: 4, row: 5, column: 6 } as const;
