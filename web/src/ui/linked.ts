// The three plots beside the map: against distance, along the query's row, along the key's column.

import type { Capture } from "../core/capture.ts";
import type { Quantity } from "../core/pack.ts";
import { describe } from "../core/source.ts";
import { number, quoted } from "../core/text.ts";
import { fewPairs, type Profile } from "../engine/profiles.ts";
import { type App, captureOf, longest, otherOf, pairOf, positionFor, viewOf } from "./app.ts";
import { type Choice, choice, h } from "./dom.ts";
import { type Curve, Plot } from "./plots.ts";

/** What is drawn of a profile: its mean and its bands, NaN where they are not drawn. */
interface Drawn {
  mean: Float64Array;
  wide: { low: Float64Array; high: Float64Array };
  /** One standard deviation on either side of the mean. */
  narrow: { low: Float64Array; high: Float64Array };
}

/** A profile where distances have many pairs, and where they have few. */
interface Parts {
  many: Drawn;
  few: Drawn | null;
}

const drawn = new WeakMap<Profile, Parts>();

function partsOf(profile: Profile): Parts {
  let found = drawn.get(profile);
  if (!found) {
    const { mean, deviation, least, greatest } = profile,
      few = fewPairs(profile);
    const where = (is: (n: number) => boolean): Drawn => {
      const only = (values: Float64Array) => values.map((value, n) => (is(n) ? value : NaN)),
        at = (side: 1 | -1) => only(mean.map((value, n) => value + side * deviation[n]));
      return {
        mean: only(mean),
        wide: { low: only(least), high: only(greatest) },
        narrow: { low: at(-1), high: at(1) },
      };
    };
    found = {
      many: where((n) => !few?.[n]),
      // The faint part begins where the strong one ends.
      few: few && where((n) => few[n] || few[n - 1] || few[n + 1]),
    };
    drawn.set(profile, found);
  }
  return found;
}

export class Linked {
  readonly element: HTMLElement;
  private readonly distance: Plot;
  private readonly row = new Plot("row");
  private readonly column = new Plot("column");
  private readonly of: Choice<"bias" | "shown">;

  constructor(private readonly app: App) {
    this.of = choice(
      "of",
      [
        ["bias", "position"],
        ["shown", "quantity shown"],
      ],
      (profile) => app.store.set({ profile }),
    );
    this.distance = new Plot("distance", this.of.element);
    this.element = h(
      "section",
      { class: "linked", "aria-label": "Linked plots" },
      this.distance.element,
      this.row.element,
      this.column.element,
    );
  }

  draw(): void {
    const capture = captureOf(this.app);
    if (!capture) return;
    this.of.show(this.app.store.state.profile);
    this.drawDistance(capture);
    this.drawRow(capture);
    this.drawColumn(capture);
  }

  private get position(): number {
    const { layer, head } = this.app.store.state;
    return positionFor(this.app, layer, head);
  }

  private both(capture: Capture): Capture[] {
    const other = otherOf(this.app);
    return other ? [capture, other] : [capture];
  }

  private drawDistance(capture: Capture): void {
    const { app } = this,
      { state } = app.store,
      quantity: Quantity = state.profile === "bias" ? "bias" : state.quantity,
      pair = pairOf(app);
    const profiles = this.both(capture).map((of) =>
        app.profiles.get(of, state.layer, state.head, quantity, 4, quantity === "content" ? 1 : this.position),
      ),
      first = profiles[0];
    const to = longest(app) - 1,
      from = capture.header.causal ? 0 : -to;
    const name = describe(quantity, "nothing").toLowerCase();
    const curves: Curve[] = profiles.flatMap((profile, n) => {
      if (!profile) return [];
      const { many, few } = partsOf(profile),
        named = { name: this.both(capture)[n].title, first: -profile.zero, tone: n ? "other" : "main" } as const;
      return [{ ...named, values: many.mean }, ...(few ? [{ ...named, values: few.mean, faint: true }] : [])];
    });
    const parts = first && partsOf(first);
    const value = pair ? this.value(capture, quantity, pair.query, pair.key) : NaN;
    this.distance.show({
      title: `${describe(quantity, "nothing")} against distance`,
      xTitle: "distance, query − key",
      yTitle: name,
      from,
      to,
      curves,
      bands: [parts?.many, parts?.few].flatMap((part, n) =>
        part
          ? (["wide", "narrow"] as const).map((tone) => ({
              ...part[tone],
              first: -first!.zero,
              tone,
              faint: n === 1,
            }))
          : [],
      ),
      mark: pair ? { x: pair.query - pair.key, y: value } : null,
      empty: "Computing …",
      summary: first
        ? `Mean ${name} by distance: ${number(first.mean[first.zero])} at distance 0, ${number(first.mean[first.zero + Math.min(to, Math.floor(to / 2))])} at distance ${Math.floor(to / 2)}.`
        : "Computing the mean by distance.",
      note: first
        ? `Line: mean. Dark band: one standard deviation. Light band: least to greatest.${parts!.few ? " Faint: few pairs." : ""}`
        : "Computing …",
    });
  }

  private value(capture: Capture, quantity: Quantity, query: number, key: number): number {
    const { layer, head } = this.app.store.state;
    if (!capture.visible(layer, query, key)) return NaN;
    const row = this.app.rows.row(capture, layer, head, query, key, this.position);
    return row?.[quantity]?.[key - row.first] ?? NaN;
  }

  private range(axis: "query" | "key"): [number, number] {
    const { state } = this.app.store,
      length = longest(this.app),
      view = viewOf(state, length);
    return [Math.max(0, Math.floor(view[axis])), Math.min(length - 1, Math.ceil(view[axis] + view.span))];
  }

  private drawRow(capture: Capture): void {
    const { app } = this,
      { state } = app.store,
      pair = pairOf(app),
      [from, to] = this.range("key"),
      name = describe(state.quantity, "nothing");
    const curves: Curve[] = !pair
      ? []
      : this.both(capture).flatMap((of, n) => {
          const row =
            pair.query < of.length
              ? app.rows.row(of, state.layer, state.head, pair.query, pair.key, this.position)
              : null;
          return row
            ? [
                {
                  name: of.title,
                  values: row[state.quantity],
                  first: row.first,
                  tone: n ? ("other" as const) : ("main" as const),
                },
              ]
            : [];
        });
    const value = pair ? this.value(capture, state.quantity, pair.query, pair.key) : NaN;
    const title = pair ? `Row of query ${pair.query} ${quoted(capture.piece(pair.query))}` : "Row of a query";
    this.row.show({
      title,
      xTitle: "key",
      yTitle: name,
      from,
      to,
      curves,
      mark: pair ? { x: pair.key, y: value } : null,
      empty: pair ? "Computing …" : "Point at a pair.",
      summary: pair
        ? `${name} of query ${pair.query} over keys ${from} to ${to}; ${number(value)} at key ${pair.key}.`
        : "Point at a pair to see its row.",
    });
  }

  private drawColumn(capture: Capture): void {
    const { app } = this,
      { state } = app.store,
      pair = pairOf(app),
      [from, to] = this.range("query"),
      name = describe(state.quantity, "nothing");
    const curves: Curve[] = !pair
      ? []
      : this.both(capture).flatMap((of, n) => {
          const part =
            pair.key < of.length
              ? app.rows.column(of, state.layer, state.head, state.quantity, pair.key, pair.query, this.position)
              : null;
          return part ? [{ name: of.title, ...part, tone: n ? ("other" as const) : ("main" as const) }] : [];
        });
    const value = pair ? this.value(capture, state.quantity, pair.query, pair.key) : NaN;
    const title = pair ? `Column of key ${pair.key} ${quoted(capture.piece(pair.key))}` : "Column of a key";
    this.column.show({
      title,
      xTitle: "query",
      yTitle: name,
      from,
      to,
      curves,
      mark: pair ? { x: pair.query, y: value } : null,
      empty: pair ? "Computing …" : "Point at a pair.",
      summary: pair
        ? `${name} of key ${pair.key} over queries ${from} to ${to}.`
        : "Point at a pair to see its column.",
    });
  }
}
