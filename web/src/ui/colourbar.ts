// The colour bar: shows the scale, and its two handles set the limits by pointer or keyboard.

import { along, barColours, middleOf, type Scale, valueAlong } from "../core/colour.ts";
import type { Source } from "../core/source.ts";
import { number } from "../core/text.ts";
import { type App, automaticFor, setLimits } from "./app.ts";
import { h, say } from "./dom.ts";

export class ColourBar {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { width: 512, height: 1, "aria-hidden": "true" });
  private readonly handles: HTMLElement[];
  private readonly texts: HTMLElement[];
  private readonly track: HTMLElement;
  private source: Source | null = null;
  private scale: Scale | null = null;
  private domain: Scale | null = null;

  constructor(private readonly app: App) {
    const handle = (which: 0 | 1) =>
      h("div", {
        class: "handle",
        role: "slider",
        tabindex: 0,
        "aria-label": which ? "Upper colour limit" : "Lower colour limit",
        onpointerdown: (event: PointerEvent) => this.drag(event, which),
        onkeydown: (event: KeyboardEvent) => this.key(event, which),
      });
    this.handles = [handle(0), handle(1)];
    this.texts = [h("span", { class: "limit" }), h("span", { class: "limit" }), h("span", { class: "limit" })];
    this.track = h(
      "div",
      { class: "track", ondblclick: () => this.source && setLimits(app, this.source, null) },
      this.canvas,
      ...this.handles,
    );
    this.element = h(
      "div",
      { class: "bar", title: "Drag the ends to set limits; double-click to reset" },
      this.track,
      h("div", { class: "limits" }, ...this.texts),
    );
  }

  show(source: Source, scale: Scale | null): void {
    this.source = source;
    this.scale = scale;
    this.element.classList.toggle("empty", !scale);
    if (!scale) return;
    const auto = automaticFor(this.app, source) ?? scale;
    this.domain = { ...scale, low: Math.min(auto.low, scale.low), high: Math.max(auto.high, scale.high) };
    this.colour();
    for (const handle of this.handles) handle.hidden = scale.low === scale.high;
    [scale.low, scale.high].forEach((limit, n) => {
      const handle = this.handles[n];
      handle.style.left = `${(100 * along(this.domain!, limit)).toFixed(2)}%`;
      handle.setAttribute("aria-valuenow", String(limit));
      handle.setAttribute("aria-valuemin", String(this.domain!.low));
      handle.setAttribute("aria-valuemax", String(this.domain!.high));
      handle.setAttribute("aria-valuetext", number(limit));
    });
    // A label stands where its value is on the bar, under its handle; the middle one only where there is room.
    const one = scale.low === scale.high,
      limits = [scale.low, middleOf(scale), scale.high],
      places = limits.map((limit) => (one ? 0.5 : along(this.domain!, limit))),
      room = places[2] - places[0] > 0.4;
    const spaced = scale.spacing === "symlog" ? " (symlog)" : "";
    limits.forEach((limit, n) => {
      const middle = n === 1;
      say(this.texts[n], (middle ? room || one : !one) ? number(limit, 3) + (middle ? spaced : "") : "");
      this.texts[n].style.left = `${(100 * places[n]).toFixed(2)}%`;
      // Labels stay within the bar, and those of two close limits stand on either side.
      const shift =
        n === 1
          ? 50
          : room
            ? 100 * places[n]
            : n === 0
              ? 100 * Math.min(1, 4 * places[0])
              : 100 - 100 * Math.min(1, 4 * (1 - places[2]));
      this.texts[n].style.translate = `-${shift.toFixed(0)}% 0`;
    });
  }

  private colour(): void {
    const pixels = barColours(this.scale!, this.domain!);
    this.canvas.getContext("2d")!.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), 512), 0, 0);
  }

  private move(which: 0 | 1, part: number): void {
    if (!this.source || !this.scale || !this.domain) return;
    const limits: [number, number] = [this.scale.low, this.scale.high];
    limits[which] = valueAlong(this.domain, Math.min(1, Math.max(0, part)));
    if (limits[0] < limits[1]) setLimits(this.app, this.source, limits);
  }

  private drag(event: PointerEvent, which: 0 | 1): void {
    const handle = this.handles[which],
      box = this.track.getBoundingClientRect();
    handle.setPointerCapture(event.pointerId);
    handle.onpointermove = (move) => this.move(which, (move.clientX - box.left) / box.width);
    handle.onpointerup = () => (handle.onpointermove = handle.onpointerup = null);
  }

  private key(event: KeyboardEvent, which: 0 | 1): void {
    const steps: Record<string, number> = {
      ArrowLeft: -0.01,
      ArrowDown: -0.01,
      ArrowRight: 0.01,
      ArrowUp: 0.01,
      PageDown: -0.1,
      PageUp: 0.1,
    };
    const step = steps[event.key];
    if (event.key === "Home" && this.source) setLimits(this.app, this.source, null);
    else if (step && this.scale && this.domain)
      this.move(which, along(this.domain, which ? this.scale.high : this.scale.low) + step);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
