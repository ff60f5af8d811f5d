// Token strips beside the map: every token where there is room, every n-th otherwise, the pair's own always.
import type { Capture } from "../core/capture.ts";
import { roundStep, visible } from "../core/text.ts";
import { h } from "./dom.ts";

const LINE = 13;

export class Strip {
  readonly element: HTMLElement;
  private readonly labels: HTMLElement[] = [];
  private readonly active: HTMLElement;

  constructor(readonly axis: "query" | "key") {
    this.active = h("span", { class: "token active" });
    this.element = h("div", { class: `strip ${axis}`, role: "group" }, this.active);
  }

  /** Show the tokens from `first` on, `size` pixels each, over `extent` pixels. */
  show(
    capture: Capture,
    first: number,
    size: number,
    extent: number,
    token: number | null,
    matches: Set<number>,
  ): void {
    const step = Math.max(1, roundStep(LINE / size)),
      every = step === 1;
    this.element.setAttribute("aria-label", `${this.axis === "query" ? "Query" : "Key"} ${capture.unit}s`);
    const place = (label: HTMLElement, pixels: number) => {
      label.style[this.axis === "query" ? "top" : "left"] = `${pixels.toFixed(1)}px`;
    };
    const centred = (at: number) => (at - first + 0.5) * size - LINE / 2,
      inside =
        token !== null && token < capture.length && (token - first + 1) * size > 0 && (token - first) * size < extent,
      active = inside ? Math.min(Math.max(centred(token), 0), extent - LINE) : Number.NEGATIVE_INFINITY;
    let used = 0;
    for (
      let at = Math.max(0, Math.ceil(first / step) * step);
      at < capture.length && (at - first) * size < extent;
      at += step
    ) {
      const pixels = every ? centred(at) : (at - first) * size,
        covered = Math.abs(pixels - active) < LINE - 0.5;
      if ((inside && at === token) || covered || (at - first) * size < -2 || (at - first) * size > extent - 9) continue;
      if (used === this.labels.length) this.labels.push(this.element.appendChild(h("span", { class: "token" })));
      const label = this.labels[used];
      const text = every && capture.piece(at) ? visible(capture.piece(at)) : `${at} ${visible(capture.piece(at))}`;
      if (label.textContent !== text) label.textContent = text;
      label.classList.toggle("match", matches.has(at));
      place(label, pixels);
      label.hidden = false;
      used++;
    }
    for (let n = used; n < this.labels.length; n++) this.labels[n].hidden = true;
    this.active.hidden = !inside;
    if (inside) {
      this.active.textContent = `${token} ${visible(capture.piece(token))}`;
      place(this.active, active);
    }
  }
}
