// The exact values of the pair looked at, in words.

import type { Capture } from "../core/capture.ts";
import { QUANTITIES, type Quantity } from "../core/pack.ts";
import { WORDS } from "../core/source.ts";
import { number, quoted } from "../core/text.ts";
import { rank } from "../engine/rows.ts";
import { type App, captureOf, otherOf, pairOf, positionFor } from "./app.ts";
import { h, say } from "./dom.ts";

/** Significant digits of one value, and of two beside their difference. */
const DIGITS = 7,
  FEWER = 6,
  /** Of values from float16 queries and keys. */
  ROUGH = 3;

/** Milliseconds after which the keyboard has come to rest. */
const REST = 400;

/** What is known of a pair in one capture. */
export interface PairValues {
  values: Record<Quantity, number>;
  place: number;
  of: number;
  /** Whether the whole row is known, so that the place counts. */
  whole: boolean;
}

export function pairValues(app: App, capture: Capture, query: number, key: number): PairValues | null {
  const { layer, head, quantity } = app.store.state;
  if (!capture.visible(layer, query, key)) return null;
  const row = app.rows.row(capture, layer, head, query, key, positionFor(app, layer, head));
  if (!row) return null;
  const values = Object.fromEntries(
    QUANTITIES.map((name) => [name, capture.knows(name) ? row[name][key - row.first] : NaN]),
  ) as Record<Quantity, number>;
  if (Number.isNaN(values.weights)) return null;
  return { values, ...rank(row[quantity], key - row.first), whole: row[quantity].length === capture.length };
}

const digits = (value: number, two: boolean, half: boolean) =>
  Number.isNaN(value) ? "–" : number(value, half ? ROUGH : two ? FEWER : DIGITS);

function fill(cell: HTMLElement, shown: boolean, text: string): void {
  cell.hidden = !shown;
  say(cell, text);
}

export class Readout {
  readonly element: HTMLElement;
  private readonly where = h("p", { class: "where" });
  private readonly lines = new Map<Quantity, { row: HTMLElement; values: HTMLElement[] }>();
  private readonly body: HTMLElement;
  private readonly less: { row: HTMLElement; values: HTMLElement[] };
  private readonly head: HTMLElement[];
  private readonly footer = h("p", { class: "small" });
  /** What screen readers are told: one sentence, when the keyboard has come to rest; hovering says nothing. */
  private readonly spoken = h("p", { class: "unseen", role: "status" });
  private speaking = 0;

  constructor(private readonly app: App) {
    this.head = [h("th", { scope: "col" }), h("th", { scope: "col" }), h("th", { scope: "col" })];
    const body = h("tbody", {});
    for (const quantity of QUANTITIES) {
      const values = [h("td", {}), h("td", {}), h("td", {})];
      const row = h("tr", { "data-quantity": quantity }, h("th", { scope: "row" }, WORDS[quantity]), ...values);
      this.lines.set(quantity, { row, values });
      body.append(row);
    }
    const values = [h("td", {}), h("td", {}), h("td", {})];
    this.less = {
      row: h("tr", { "data-quantity": "minus", class: "shown" }, h("th", { scope: "row" }), ...values),
      values,
    };
    this.body = body;
    const table = h(
      "table",
      {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "quantity"), ...this.head)),
      body,
    );
    this.element = h(
      "section",
      { class: "readout", "aria-label": "Values of the pair" },
      this.where,
      table,
      this.footer,
      this.spoken,
    );
  }

  /** The value shown where a row or distance mean is taken away. */
  private drawLess(captures: (Capture | undefined)[], sides: (PairValues | null)[], two: boolean): void {
    const { app } = this,
      { minus, quantity, layer, head } = app.store.state,
      position = quantity === "content" ? 1 : positionFor(app, layer, head),
      pair = pairOf(app);
    if (minus === "nothing") {
      this.less.row.remove();
      return;
    }
    if (!this.less.row.isConnected) this.body.append(this.less.row);
    say(this.less.row.firstElementChild!, `${WORDS[quantity]} − ${minus} mean`);
    const [a, b] = captures.map((capture, n) => {
      const profile =
        capture && pair && sides[n] ? app.profiles.get(capture, layer, head, quantity, 1, position) : null;
      if (!profile || !pair) return NaN;
      return (
        sides[n]!.values[quantity] -
        (minus === "row" ? profile.row[pair.query] : profile.mean[pair.query - pair.key + profile.zero])
      );
    });
    [a, b, a - b].forEach((value, n) => fill(this.less.values[n], n === 0 || two, digits(value, two, this.half)));
  }

  private get half(): boolean {
    return [captureOf(this.app), otherOf(this.app)].some((of) => of?.header.precision === "float16");
  }

  private speak(values: PairValues | null): void {
    const { app } = this,
      { quantity } = app.store.state,
      pair = pairOf(app);
    if (!pair || !app.moved) return;
    app.moved = false;
    clearTimeout(this.speaking);
    const value = values ? `${WORDS[quantity]} ${number(values.values[quantity], 3)}` : "hidden";
    this.speaking = window.setTimeout(() => say(this.spoken, `Query ${pair.query}, key ${pair.key}: ${value}.`), REST);
  }

  draw(): void {
    const { app } = this,
      { state } = app.store,
      capture = captureOf(app),
      other = otherOf(app),
      pair = pairOf(app);
    if (!capture) return;
    this.element.classList.toggle("locked", state.locked !== null);
    this.element.classList.toggle("two", other !== undefined);
    const two = other !== undefined;
    this.head.forEach((cell, n) => fill(cell, n === 0 || two, !two ? "value" : ["first", "second", "difference"][n]));
    let place = "";
    const sides = [capture, other].map((of) => (of && pair ? pairValues(app, of, pair.query, pair.key) : null));
    for (const [quantity, { row, values }] of this.lines) {
      const [a, b] = sides.map((side) => side?.values[quantity] ?? NaN);
      row.classList.toggle("shown", quantity === state.quantity && state.minus === "nothing");
      [a, b, a - b].forEach((value, n) => fill(values[n], n === 0 || two, pair ? digits(value, two, this.half) : "–"));
    }
    this.drawLess([capture, other], sides, two);
    if (!pair) say(this.where, "Point at a pair, or move with the arrow keys.");
    else {
      const token = (at: number) => `${at} ${quoted(capture.piece(at))}`.trim();
      if (sides[0])
        place = ` ${WORDS[state.quantity]}: rank ${sides[0].place} of ${sides[0].of} ${sides[0].whole ? "in its row" : "among the keys near it"}.`;
      const hidden = capture.visible(state.layer, pair.query, pair.key) ? "" : " This query does not see this key.";
      say(
        this.where,
        `Query ${token(pair.query)}, key ${token(pair.key)}, distance ${pair.query - pair.key}.${place}${hidden}${state.locked ? " Locked." : ""}`,
      );
    }
    this.speak(sides[0]);
    say(
      this.footer,
      this.half
        ? "Computed in float64 from float16 queries and keys: good to about 3 digits."
        : capture.arrays
          ? "Exact: float64 arithmetic on the stored float32 factors."
          : "Exact: computed in float64 by the program that serves this page.",
    );
  }
}
