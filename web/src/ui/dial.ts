// The dial: multiplies the positional part of the scores, from 0 (position off) over 1 (as the model has it) to 2.

import { MOST_POSITION } from "../core/state.ts";
import { type App, captureOf, otherOf } from "./app.ts";
import { button, type Choice, choice, fresh, h, say } from "./dom.ts";

type Reach = "all" | "one";

/** The factor that the dial shows: that of the head on the screen, or on the overview that of all heads. */
export function dialOf(app: App): number {
  const { screen, layer, head, position } = app.store.state,
    { scale, only } = position;
  if (!only) return scale;
  return screen !== "overview" && only.layer === layer && only.head === head ? scale : 1;
}

/** Set the factor of the head shown or of all heads, as the dial stands. */
export function setPosition(app: App, scale: number, reach?: Reach): void {
  const { screen, layer, head, position } = app.store.state,
    one = screen !== "overview" && (reach ? reach === "one" : position.only !== null),
    rounded = Math.round(100 * Math.min(MOST_POSITION, Math.max(0, scale))) / 100;
  if (fixed(app)) return;
  app.store.set({ position: { scale: rounded, only: one ? { layer, head } : null } });
}

/** Why the positional part cannot be scaled here; null where it can. */
function fixed(app: App): string | null {
  const { screen, layer } = app.store.state,
    captures = [captureOf(app), otherOf(app)].filter((capture) => capture !== undefined);
  if (screen !== "overview")
    return captures.map((capture) => capture.fixedPosition(layer)).find((reason) => reason !== null) ?? null;
  const reasons = captures.flatMap((capture) => capture.header.layers.map((each) => capture.fixedPosition(each)));
  return reasons.every((reason) => reason !== null) ? (reasons[0] ?? null) : null;
}

export class Dial {
  readonly element: HTMLElement;
  private readonly slider: HTMLInputElement;
  private readonly shown = h("output", {});
  private readonly off: HTMLButtonElement;
  private readonly reset: HTMLButtonElement;
  private readonly reach: Choice<Reach>;
  private readonly why = h("span", { class: "small why", id: fresh("why") });

  constructor(private readonly app: App) {
    this.slider = h("input", {
      type: "range",
      min: 0,
      max: MOST_POSITION,
      step: 0.05,
      "aria-label": "Position: factor of the positional part",
      "aria-describedby": this.why.id,
      oninput: () => setPosition(app, Number(this.slider.value)),
    });
    this.off = button("Off", () => setPosition(app, 0), { "aria-label": "Switch position off" });
    this.reset = button("× 1", () => setPosition(app, 1), { "aria-label": "× 1: position as the model has it" });
    this.reach = choice<Reach>(
      "in",
      [
        ["all", "all heads"],
        ["one", "this head"],
      ],
      (reach) => setPosition(app, dialOf(app), reach),
    );
    this.element = h(
      "div",
      { class: "controls dial", role: "group", "aria-label": "Position" },
      h("span", { class: "field" }, h("span", {}, "Position"), this.slider, this.shown),
      this.off,
      this.reset,
      this.reach.element,
      this.why,
    );
  }

  draw(): void {
    const { app } = this,
      scale = dialOf(app),
      reason = fixed(app);
    for (const part of [this.slider, this.off, this.reset, this.reach.select]) part.disabled = reason !== null;
    this.slider.value = String(reason ? 1 : scale);
    this.slider.setAttribute("aria-valuetext", scale === 0 ? "off" : `times ${scale}`);
    say(this.shown, `× ${reason ? 1 : scale}`);
    this.off.setAttribute("aria-pressed", String(!reason && scale === 0));
    this.reset.disabled ||= scale === 1;
    this.reach.element.hidden = app.store.state.screen === "overview";
    this.reach.show(app.store.state.position.only ? "one" : "all");
    this.element.classList.toggle("turned", !reason && scale !== 1);
    say(this.why, reason ? `Cannot be scaled in this layer: ${reason}.` : "");
  }
}
