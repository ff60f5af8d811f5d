// What one map shows: a head's quantity, what is taken away from it, and the capture it is compared with.
import type { Capture } from "./capture.ts";
import type { Quantity } from "./pack.ts";
import type { Minus, Pooling } from "./state.ts";

export interface Source {
  capture: Capture;
  layer: number;
  head: number;
  quantity: Quantity;
  minus: Minus;
  /** Subtracted pair by pair. */
  less: Capture | null;
  /** What the positional part of the scores is multiplied by; absent is 1. */
  position?: number;
}

/** The factor of the positional part; content has none, so that its map is the same one for every factor. */
export function positionOf(source: Source): number {
  return source.quantity === "content" ? 1 : (source.position ?? 1);
}

/** A whole map in few cells. */
export interface Whole {
  cells: number;
  mean: Float32Array;
  least: Float32Array;
  greatest: Float32Array;
  complete: boolean;
}

/** A name for everything but the head. */
export function family(source: Source): string {
  return `${source.capture.id}|${source.less?.id ?? ""}|${source.layer}|${source.quantity}|${source.minus}|${positionOf(source)}`;
}

export function sourceName(source: Source): string {
  return `${family(source)}|${source.head}`;
}

/** Which reduction of a cell is shown. */
export function pooled(source: Source, pooling: Pooling): "mean" | "least" | "greatest" {
  if (pooling !== "auto") return pooling;
  return source.quantity === "weights" && source.minus === "nothing" && !source.less ? "greatest" : "mean";
}

/** Tokens that a map covers: the shorter capture's of a difference. */
export function lengthOf(source: Source): number {
  return source.less ? Math.min(source.capture.length, source.less.length) : source.capture.length;
}

/** What people read of a quantity; `bias` and `final` are its names in captures and links. */
export const WORDS: Record<Quantity, string> = {
  content: "content",
  bias: "position",
  final: "score",
  weights: "weights",
};

const NAMES: Record<Quantity, string> = {
  content: "Content",
  bias: "Position",
  final: "Score",
  weights: "Attention weight",
};

/** The quantity in words; `position` is the factor of the positional part. */
export function describe(quantity: Quantity, minus: Minus, position = 1): string {
  const less = minus === "row" ? " minus row mean" : minus === "distance" ? " minus distance mean" : "",
    part = quantity === "bias" ? "" : ", position",
    scaled = position === 1 ? "" : position === 0 ? `${part} off` : `${part} × ${position}`;
  return NAMES[quantity] + less + scaled;
}
