// A head as a card: its map in few cells, its name and one number. The overview and the atlas are made of them.
import type { Scale } from "../core/colour.ts";
import type { Whole } from "../core/source.ts";
import { h, say } from "./dom.ts";
import { type Reduction, wholeImage } from "./draw.ts";

export interface Card {
  layer: number;
  head: number;
  element: HTMLButtonElement;
  canvas: HTMLCanvasElement;
  /** What the number is, cut where it is too long, and the number. */
  measure: HTMLElement;
  value: HTMLElement;
  painted: string;
}

/** A head in words; layer and head count from 0. */
export function headName(layer: number, head: number): string {
  return `layer ${layer + 1}, head ${head + 1}`;
}

/** Make a card; layer and head count from 0, `place` is the layer in words. */
export function makeCard(layer: number, head: number, place: string, open: () => void, ...below: Node[]): Card {
  const canvas = h("canvas", { width: 64, height: 64, "aria-hidden": "true" }),
    measure = h("span", { class: "measure" }),
    value = h("span", { class: "value" });
  const element = h(
    "button",
    {
      type: "button",
      class: "card",
      "data-layer": layer,
      "data-head": head,
      title: `${place}, head ${head + 1}`,
      onclick: open,
    },
    canvas,
    h("span", { class: "name" }, headName(layer, head)),
    " ",
    measure,
    " ",
    value,
    ...below,
  );
  return { layer, head, element, canvas, measure, value, painted: "" };
}

/** Write a measure and its number on a card, where they are also told to those who do not see them. */
export function label(card: Card, measure: string, text: string): void {
  const spoken = `${headName(card.layer, card.head)} ${measure} ${text}. Open.`;
  say(card.measure, measure);
  say(card.value, text);
  if (card.element.ariaLabel !== spoken) card.element.ariaLabel = spoken;
}

/** Draw a whole map on a canvas. */
export function paintWhole(canvas: HTMLCanvasElement, whole: Whole, what: Reduction, scale: Scale): void {
  canvas.width = canvas.height = whole.cells;
  canvas.getContext("2d")?.drawImage(wholeImage(whole, what, scale), 0, 0);
}

/** A titled row of cards; `label` is written instead of the title where there is little room. */
export function section(title: string, cards: Card[], label?: string): HTMLElement {
  const heading =
    label === undefined ? h("h3", {}, title) : h("h3", { title }, h("span", { class: "unseen" }, "Layer "), label);
  return h(
    "section",
    { class: "row", "aria-label": title },
    heading,
    h("div", { class: "cards" }, ...cards.map(({ element }) => element)),
  );
}
