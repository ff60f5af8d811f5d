// The legend of all pictures on a screen: what their colours mean, in which unit, and whose limits these are.

import { along, barColours, middleOf, type Scale } from "../core/colour.ts";
import type { Quantity } from "../core/pack.ts";
import { number } from "../core/text.ts";
import { h, say } from "./dom.ts";

/** What a quantity is counted in. */
export const UNITS: Record<Quantity, string> = {
  content: "part of the score",
  bias: "part of the score",
  final: "before the softmax",
  weights: "share of a query's attention",
};

/** A label of a colour bar and where it stands, 0 to 1. */
export interface Label {
  text: string;
  at: number;
}

/** The lowest, a middle and the highest value of a scale; one where there is one value. */
export function labels(scale: Scale): Label[] {
  if (scale.low === scale.high) return [{ text: number(scale.low, 3), at: 0.5 }];
  return [scale.low, middleOf(scale), scale.high].map((value) => ({ text: number(value, 3), at: along(scale, value) }));
}

export class Legend {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  private readonly title = h("span", { class: "what" });
  private readonly ends = [0, 1, 2].map(() => h("span", { class: "limit" }));

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
    const words = own ? ownLabels(scale) : labels(scale);
    this.ends.forEach((end, n) => {
      const { text, at } = words[n] ?? { text: "", at: 1 };
      say(end, text);
      end.style.left = `${(100 * at).toFixed(1)}%`;
      end.style.translate = `-${(100 * at).toFixed(1)}% 0`;
    });
    this.element.setAttribute("aria-label", `${title}: from ${words[0].text} to ${words[words.length - 1].text}`);
  }
}

/** What is written where each head has its own limits. */
export function ownLabels({ low, high, map }: Scale): Label[] {
  const words =
    low === -high
      ? ["− the head's greatest size", "0", "+ its greatest size"]
      : ["least of the head", map === "signed" ? "0" : "", "its greatest"];
  return words.map((text, n) => ({ text, at: n / 2 }));
}

/** The title of a bar, with its unit and its spacing where that is not seen from its numbers. */
export function barTitle(what: string, unit: string, scale: Scale | null): string {
  return `${what} (${unit}${scale?.spacing === "symlog" ? "; symlog" : ""})`;
}

/** The colours of a legend; evenly from end to end where the limits are not said. */
export function legendColours(scale: Scale, own: boolean, size: number): Uint32Array<ArrayBuffer> {
  if (!own) return barColours(scale, undefined, size);
  const { map } = scale;
  return barColours({ low: map === "signed" ? -1 : 0, high: 1, spacing: "linear", map }, undefined, size);
}
