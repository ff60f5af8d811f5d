// The legend of all pictures on a screen: what their colours mean, in which unit, and whose limits these are.

import { barColours, type Scale, valueAlong } from "../core/colour.ts";
import type { Quantity } from "../core/pack.ts";
import { number } from "../core/text.ts";
import { h, say } from "./dom.ts";

/** What a quantity is counted in. */
export const UNITS: Record<Quantity, string> = {
  content: "score before the softmax",
  bias: "score before the softmax",
  final: "score before the softmax",
  weights: "share of a query's attention",
};

/** Five values from the lowest to the highest of a scale, as text; one where there is one value. */
export function labels(scale: Scale, count = 3): string[] {
  if (scale.low === scale.high) return [number(scale.low, 3)];
  return Array.from({ length: count }, (_, n) => number(valueAlong(scale, n / (count - 1)), 3));
}

export class Legend {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  private readonly title = h("span", { class: "what" });
  private readonly ends = [h("span", {}), h("span", {}), h("span", {})];

  constructor() {
    this.element = h(
      "figure",
      { class: "legend" },
      h("figcaption", {}, this.title),
      this.canvas,
      h("div", { class: "limits" }, ...this.ends),
    );
  }

  /** Show a scale; `own` where it is one of many that differ in their limits alone. */
  show(title: string, scale: Scale | null, own: boolean): void {
    this.element.hidden = !scale;
    if (!scale) return;
    say(this.title, title);
    const pixels = new Uint8ClampedArray(legendColours(scale, own, 256).buffer);
    this.canvas.getContext("2d")!.putImageData(new ImageData(pixels, 256), 0, 0);
    const [low, middle = "", high = ""] = own ? ownLabels(scale) : labels(scale);
    [low, middle, high].forEach((text, n) => say(this.ends[n], text));
    this.element.setAttribute("aria-label", `${title}: from ${low} to ${high}`);
  }
}

/** What is written where each head has its own limits. */
export function ownLabels({ low, high, map }: Scale): string[] {
  if (low === -high) return ["− the head's greatest size", "0", "+ its greatest size"];
  return ["least of the head", map === "signed" ? "0" : "", "its greatest"];
}

/** The colours of a legend; evenly from end to end where the limits are not said. */
export function legendColours(scale: Scale, own: boolean, size: number): Uint32Array<ArrayBuffer> {
  if (!own) return barColours(scale, undefined, size);
  const { map } = scale;
  return barColours({ low: map === "signed" ? -1 : 0, high: 1, spacing: "linear", map }, undefined, size);
}
