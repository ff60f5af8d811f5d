// A head as a card: its map in few cells, its name and one number. The overview and the atlas are made of them.
import type { Scale } from "../core/colour.ts";
import type { Whole } from "../core/source.ts";
import { h } from "./dom.ts";
import { type Reduction, wholeImage } from "./draw.ts";

export interface Card {
  layer: number;
  head: number;
  element: HTMLButtonElement;
  canvas: HTMLCanvasElement;
  value: HTMLElement;
  /** What a screen reader says after name and value. */
  spoken: HTMLElement;
  painted: string;
}

/** Make a card; layer and head count from 0, `place` is the layer in words. */
export function makeCard(layer: number, head: number, place: string, open: () => void, ...below: Node[]): Card {
  const canvas = h("canvas", { width: 64, height: 64, "aria-hidden": "true" }),
    value = h("span", { class: "value" }),
    spoken = h("span", { class: "unseen" });
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
    h("span", { class: "name" }, `L${layer + 1} H${head + 1}`),
    " ",
    value,
    ...below,
    spoken,
  );
  return { layer, head, element, canvas, value, spoken, painted: "" };
}

/** Draw a whole map on a canvas. */
export function paintWhole(canvas: HTMLCanvasElement, whole: Whole, what: Reduction, scale: Scale): void {
  canvas.width = canvas.height = whole.cells;
  canvas.getContext("2d")?.drawImage(wholeImage(whole, what, scale), 0, 0);
}

/** A titled row of cards. */
export function section(title: string, cards: Card[]): HTMLElement {
  return h(
    "section",
    { class: "row", "aria-label": title },
    h("h3", {}, title),
    h("div", { class: "cards" }, ...cards.map(({ element }) => element)),
  );
}
