// content + position = score, softmax, weight: with the numbers of the pair looked at, and every word explained.

import type { Capture } from "../core/capture.ts";
import type { Quantity } from "../core/pack.ts";
import { percent, quotedWord } from "../core/text.ts";
import { type App, captureOf, type Pair, pairOf, panelsOf, positionFor, type Shown, signs } from "./app.ts";
import { fresh, h, say } from "./dom.ts";
import { pairValues } from "./readout.ts";

/** What the words mean; by the quantity they stand for. */
export const DEFINITIONS: Record<Quantity, string> = {
  content: "Content: the scaled product q · k before position acts: how well query and key fit.",
  bias: "Position: what the encoding adds to content, score − content: a bias, or the change that a rotation makes.",
  final: "Score: content + position. It is what the softmax takes.",
  weights: "Weight: the softmax of a query's scores: the share of its attention that a key gets. A row sums to 1.",
};

/** A word whose definition is one hover, or one Tab, away. */
function term(word: string, definition: string): HTMLElement {
  const tip = h("span", { class: "tip", role: "tooltip", id: fresh("tip") }, definition);
  return h(
    "span",
    { class: "defined" },
    h("button", { type: "button", class: "term", "aria-describedby": tip.id }, word),
    tip,
  );
}

const size = (value: number) => Math.abs(value).toFixed(2),
  signed = (value: number) => (value < 0 ? "−" : "") + size(value);

/** Whether the maps shown are content, position, score and weight of one head. */
export function isEquation(app: App): boolean {
  return signs(panelsOf(app)).some(Boolean);
}

/** The layer, the head and the captures of a map. */
export function headOf({ source, across }: Shown): string {
  const { title } = source.capture,
    captures = source.less
      ? `${title} minus ${source.less.title}`
      : across
        ? `${title} below, ${across.capture.title} above the diagonal`
        : title;
  return `${source.capture.place(source.layer)}, head ${source.head + 1} · ${captures}`;
}

/** The pair and its values in a capture as a sentence: "" where the query does not see the key, null while they are computed. */
export function pairSentence(app: App, capture: Capture, { query, key }: Pair): string | null {
  const { layer } = app.store.state,
    token = (at: number) => `${at} ${quotedWord(capture.piece(at))}`.trim();
  if (Math.max(query, key) >= capture.length || !capture.visible(layer, query, key)) return "";
  const values = pairValues(app, capture, query, key)?.values;
  if (!values) return null;
  const sum = capture.knows("bias")
    ? `${signed(values.content)} ${values.bias < 0 ? "−" : "+"} ${size(values.bias)} = ${signed(values.final)} → `
    : "";
  // An equation is not broken into lines.
  return `Query ${token(query)}, key ${token(key)}: ${`${sum}${percent(values.weights)}`.replaceAll(" ", "\u00a0")}.`;
}

export class Equation {
  readonly element: HTMLElement;
  private readonly content = h("b", {});
  private readonly plus = h("b", {});
  private readonly score = h("b", {});
  private readonly weight = h("b", {});
  private readonly scaled = h("span", { class: "small" });

  private readonly where = h("span", { class: "of" });

  constructor(private readonly app: App) {
    this.element = h(
      "p",
      { class: "equation" },
      this.content,
      term("content", DEFINITIONS.content),
      this.plus,
      term("position", DEFINITIONS.bias),
      this.scaled,
      h("b", {}, "="),
      this.score,
      term("score", DEFINITIONS.final),
      h("b", {}, "softmax →"),
      this.weight,
      term("weight", DEFINITIONS.weights),
      this.where,
    );
  }

  draw(): void {
    const { app } = this,
      { layer, head } = app.store.state,
      capture = captureOf(app),
      pair = pairOf(app);
    this.element.hidden = !capture?.knows("bias");
    say(this.where, isEquation(app) ? headOf(panelsOf(app)[0]) : "");
    const known = capture && pair ? pairValues(app, capture, pair.query, pair.key) : null,
      values = known?.values,
      position = positionFor(app, layer, head);
    say(this.content, values ? signed(values.content) : "");
    say(this.plus, values ? `${values.bias < 0 ? "−" : "+"} ${size(values.bias)}` : "+");
    say(this.scaled, position === 1 ? "" : position === 0 ? "(off)" : `(× ${position})`);
    say(this.score, values ? signed(values.final) : "");
    say(this.weight, values ? percent(values.weights) : "");
  }
}
