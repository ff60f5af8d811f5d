// What all parts of the viewer share: state, captures, engine, the pair looked at, and when to draw.
import type { Capture } from "../core/capture.ts";
import { automatic, commonRange, diverges, limitsName, type Scale, withLimits } from "../core/colour.ts";
import type { Quantity } from "../core/pack.ts";
import { type Source, sourceName, type Whole } from "../core/source.ts";
import type { State, Store } from "../core/state.ts";
import type { Engine } from "../engine/engine.ts";
import type { Profiles } from "../engine/profiles.ts";
import type { Rows } from "../engine/rows.ts";
import type { Tiles } from "../engine/tiles.ts";
import { wholeMap } from "../engine/whole.ts";
import type { Host } from "../hosts/host.ts";

export interface Pair {
  query: number;
  key: number;
}

export interface App {
  store: Store;
  host: Host;
  engine: Engine;
  tiles: Tiles;
  profiles: Profiles;
  rows: Rows;
  captures: Map<string, Capture>;
  root: HTMLElement;
  /** The pair under the pointer or the keyboard cursor. */
  hover: Pair | null;
  /** Whether the keyboard has moved the pair since it was last told to screen readers. */
  moved: boolean;
  /** Automatic colour scales worked out in this frame. */
  frame: Map<string, Scale | null>;
  /** The same with the maps they are made from: sorting cells in every frame would be slow. */
  scales: Map<string, { wholes: Whole[]; scale: Scale | null }>;
  /** Tokens that contain a text, for the text searched for last. */
  searched: { text: string; capture: string; found: Set<number> };
  /** Draw again in the next frame. */
  draw(): void;
  /** Say what went wrong; `again` offers to compute again what failed. */
  fail(message: string, again?: boolean): void;
}

/** The pair looked at: the locked one, otherwise the one hovered. */
export function pairOf(app: App): Pair | null {
  return app.store.state.locked ?? app.hover;
}

export function captureOf(app: App): Capture | undefined {
  return app.captures.get(app.store.state.capture);
}

/** The capture to compare with, if it has this head. */
export function otherOf(app: App): Capture | undefined {
  const { other, compare, layer, head } = app.store.state,
    found = app.captures.get(other);
  return compare !== "off" && found?.has(layer, head) ? found : undefined;
}

/** What the positional part of a head's scores is multiplied by; 1 where it cannot be scaled. */
export function positionFor(app: App, layer: number, head: number): number {
  const { scale, only } = app.store.state.position;
  if (only && (only.layer !== layer || only.head !== head)) return 1;
  return [captureOf(app), otherOf(app)].some((capture) => capture?.fixedPosition(layer)) ? 1 : scale;
}

/** What a panel shows; `across` is drawn in the upper triangle. */
export interface Shown {
  source: Source;
  across: Source | null;
}

/** What the maps show, one entry a panel. */
export function panelsOf(app: App): Shown[] {
  const { state } = app.store,
    capture = captureOf(app),
    other = otherOf(app);
  if (!capture) return [];
  const quantities: Quantity[] = state.four ? ["content", "bias", "final", "weights"] : [state.quantity];
  const { layer, head, minus } = state;
  return quantities.flatMap((quantity): Shown[] => {
    const position = positionFor(app, layer, head),
      source = (of: Capture): Source => ({ capture: of, layer, head, quantity, minus, less: null, position });
    if (!other) return [{ source: source(capture), across: null }];
    if (state.compare === "side") return [capture, other].map((of) => ({ source: source(of), across: null }));
    if (state.compare === "difference") return [{ source: { ...source(capture), less: other }, across: null }];
    return [{ source: source(capture), across: source(other) }];
  });
}

/** What stands before content, position, score and weight. */
const SIGNS = ["", "+", "=", "softmax →"];

/** The signs before maps. Four are an equation; two captures side by side make eight, two and two alike. */
export function signs(shown: Shown[]): string[] {
  return shown.map((_, n) => (shown.length === SIGNS.length ? SIGNS[n] : ""));
}

/** All sources whose limits a source shares. */
export function sharing(app: App, source: Source): Source[] {
  const { state } = app.store,
    other = otherOf(app);
  const captures =
    other && !source.less ? [source.capture, source.capture === other ? captureOf(app)! : other] : [source.capture];
  const one = captures.map((capture) => ({ ...source, capture }));
  if (state.colour.scope === "head") return one;
  return one.flatMap((each) =>
    each.capture.header.layers.flatMap((layer) =>
      each.capture.header.heads.map((head) => ({ ...each, layer, head, position: positionFor(app, layer, head) })),
    ),
  );
}

/** Whether the maps of an equation diverge, decided for all its scores together; undefined where a map stands alone. */
function signedTogether(app: App, source: Source): boolean | undefined {
  const { four, screen } = app.store.state;
  if (!four || screen !== "head" || source.quantity === "weights") return undefined;
  const ranges = (["content", "bias", "final"] as const).map((quantity): [number, number] => {
    const wholes = sharing(app, { ...source, quantity }).map((each) => wholeMap(app.tiles, each));
    return commonRange(wholes.filter((whole): whole is Whole => whole !== null));
  });
  return diverges(ranges);
}

/** Automatic scales that are kept: two for every head of a large model. */
const MOST_SCALES = 4096;

/** The scale without limits set by hand. Maps shown together have one colour map; `given` says whether it diverges. */
export function automaticFor(app: App, source: Source, given?: boolean): Scale | null {
  const signed = given ?? signedTogether(app, source);
  const { colour, compare, other, position } = app.store.state,
    { map, scope, range, scale: spacing, clip } = colour;
  const what =
    scope === "head"
      ? sourceName(source)
      : [source.capture.id, source.less?.id, source.quantity, source.minus, JSON.stringify(position)].join("|");
  const name = [what, compare, other, map, scope, range, spacing, clip, signed].join("|");
  const ready = app.frame.get(name);
  if (ready !== undefined) return ready;
  const wholes = sharing(app, source)
    .map((each) => wholeMap(app.tiles, each))
    .filter((whole): whole is Whole => whole !== null);
  let kept = app.scales.get(name);
  if (!kept || kept.wholes.length !== wholes.length || kept.wholes.some((whole, n) => whole !== wholes[n])) {
    if (app.scales.size > MOST_SCALES) app.scales.clear();
    kept = { wholes, scale: automatic(source, colour, wholes, signed) };
    app.scales.set(name, kept);
  }
  app.frame.set(name, kept.scale);
  return kept.scale;
}

/** The colour scale of a source: limits set by hand, otherwise automatic ones. */
export function scaleFor(app: App, source: Source, signed?: boolean): Scale | null {
  return withLimits(source, app.store.state.colour, automaticFor(app, source, signed));
}

export function setLimits(app: App, source: Source, limits: [number, number] | null): void {
  const { colour } = app.store.state,
    rest = { ...colour.limits };
  if (limits) rest[limitsName(source)] = limits;
  else delete rest[limitsName(source)];
  app.store.colour({ limits: rest });
}

/** What the view shows: first query, first key and tokens across, fitted where the state says nothing. */
export function viewOf(state: State, length: number): { query: number; key: number; span: number } {
  return state.view ?? { query: 0, key: 0, span: length };
}

/** Change the view so that it stays near the map. */
export function setView(app: App, view: { query: number; key: number; span: number }): void {
  const length = longest(app),
    span = Math.min(Math.max(view.span, 4), length * 1.5);
  const keep = (start: number) => round(Math.min(Math.max(start, -0.5 * span), length - 0.5 * span));
  app.store.set({ view: { query: keep(view.query), key: keep(view.key), span: round(span) } });
}

/** A thousandth of a token is less than a pixel; links stay short. */
const round = (value: number) => Math.round(value * 1000) / 1000;

export function longest(app: App): number {
  return Math.max(1, ...[captureOf(app), otherOf(app)].map((capture) => capture?.length ?? 0));
}

/** Move the pair looked at, and the view with it when it would leave the map. */
export function setPair(app: App, pair: Pair, follow: boolean): void {
  const length = longest(app),
    at = (token: number) => Math.min(Math.max(token, 0), length - 1);
  const moved = { query: at(pair.query), key: at(pair.key) };
  if (app.store.state.locked) app.store.set({ locked: moved });
  else app.hover = moved;
  if (follow) {
    const view = viewOf(app.store.state, length),
      last = Math.floor(view.span) - 1;
    const into = (start: number, token: number) =>
      token < start ? token : token > start + last ? token - last : start;
    const next = { ...view, query: into(view.query, moved.query), key: into(view.key, moved.key) };
    if (next.query !== view.query || next.key !== view.key) setView(app, next);
  }
  app.draw();
}

/** Lock a pair; locking the locked pair unlocks it. */
export function lock(app: App, pair: { query: number; key: number }): void {
  const { locked } = app.store.state;
  if (locked && locked.query === pair.query && locked.key === pair.key) app.store.set({ locked: null });
  else {
    app.store.set({ locked: pair });
    setPair(app, pair, false);
  }
}

/** Tokens that contain the text searched for. */
export function matchesOf(app: App): Set<number> {
  const { search, capture } = app.store.state,
    text = search.toLowerCase();
  if (app.searched.text !== text || app.searched.capture !== capture) {
    const pieces = text ? (captureOf(app)?.header.pieces ?? []) : [];
    app.searched = {
      text,
      capture,
      found: new Set(pieces.flatMap((piece, at) => (piece.toLowerCase().includes(text) ? [at] : []))),
    };
  }
  return app.searched.found;
}
