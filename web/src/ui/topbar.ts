// The bar on top: which screen, capture, training step, layer and head; theme and help.

import type { Capture } from "../core/capture.ts";
import type { State } from "../core/state.ts";
import { type App, captureOf } from "./app.ts";
import { button, type Choice, choice, h, say } from "./dom.ts";

/** Captures of the same text at different steps of the training run shown, in training order; none where there is only one. */
export function stepsOf(app: App): Capture[] {
  const run = ({ header }: Capture) =>
    JSON.stringify([header.encoding, header.provenance?.run ?? null, header.length, header.pieces ?? null]);
  const shown = captureOf(app);
  const stepped = [...app.captures.values()].filter(
    (capture) => typeof capture.header.step === "number" && shown && run(capture) === run(shown),
  );
  const steps = new Set(stepped.map((capture) => capture.header.step));
  return steps.size === stepped.length && steps.size > 1 ? stepped.sort((a, b) => a.header.step! - b.header.step!) : [];
}

/** Move to the next or previous layer or head. */
export function step(app: App, axis: "layer" | "head", by: number): void {
  const capture = captureOf(app);
  if (!capture) return;
  const ids = axis === "layer" ? capture.header.layers : capture.header.heads,
    at = ids.indexOf(app.store.state[axis]);
  app.store.set({ [axis]: ids[(at + by + ids.length) % ids.length], ...single(app) });
}

/** A head that is chosen is shown: on the screen of one head, or in the text. */
function single(app: App): Partial<State> {
  return app.store.state.screen === "overview" ? { screen: "head" } : {};
}

/** Milliseconds between two training steps while they play. */
const EACH = 700;
const THEMES = { auto: "light", light: "dark", dark: "auto" } as const;

export class TopBar {
  readonly element: HTMLElement;
  private readonly title = h("h1", {});
  private readonly screens: HTMLButtonElement[];
  private readonly capture: Choice<string>;
  private readonly layer: Choice<string>;
  private readonly head: Choice<string>;
  private readonly theme: HTMLButtonElement;
  private readonly slider: HTMLInputElement;
  private readonly sliderText = h("output", {});
  private readonly steps: HTMLElement;
  private readonly play: HTMLButtonElement;
  private playing = 0;
  private readonly place: HTMLElement;

  constructor(
    private readonly app: App,
    help: () => void,
  ) {
    const { store } = app;
    this.screens = [
      button("Overview", () => store.set({ screen: "overview" })),
      button("Head", () => store.set({ screen: "head" })),
      button("Text", () => store.set({ screen: "reading" })),
    ];
    this.capture = choice<string>("Capture", [], (id) =>
      store.set({ capture: id, ...(store.state.other === id ? { compare: "off" as const } : {}) }),
    );
    this.layer = choice<string>("Layer", [], (id) => store.set({ layer: Number(id), ...single(app) }));
    this.head = choice<string>("Head", [], (id) => store.set({ head: Number(id), ...single(app) }));
    this.theme = button("", () => store.set({ theme: THEMES[store.state.theme] }));
    this.slider = h("input", {
      type: "range",
      min: 0,
      step: 1,
      "aria-label": "Training step",
      oninput: () => store.set({ capture: stepsOf(app)[Number(this.slider.value)].id }),
    });
    this.play = button("▶ Play", () => (this.playing ? this.stop() : this.next()));
    this.steps = h(
      "span",
      { class: "field steps" },
      h("label", { class: "field" }, h("span", {}, "Training step"), this.slider, this.sliderText),
      this.play,
    );
    const arrows = (axis: "layer" | "head") => [
      button("‹", () => step(app, axis, -1), { "aria-label": `Previous ${axis}`, class: "arrow" }),
      button("›", () => step(app, axis, 1), { "aria-label": `Next ${axis}`, class: "arrow" }),
    ];
    const [layerBack, layerOn] = arrows("layer"),
      [headBack, headOn] = arrows("head");
    this.place = h(
      "div",
      { class: "place" },
      h("span", { class: "pair" }, this.layer.element, layerBack, layerOn),
      h("span", { class: "pair" }, this.head.element, headBack, headOn),
    );
    this.element = h(
      "div",
      { class: "top", role: "toolbar", "aria-label": "Where to look" },
      this.title,
      h("div", { class: "screens", role: "group", "aria-label": "Screen" }, ...this.screens),
      this.capture.element,
      this.place,
      this.steps,
      h("span", { class: "spring" }),
      this.theme,
      button("? Keys", help),
    );
  }

  /** Show the next step, from the last the first, as soon as the one shown is complete. */
  private next(): void {
    const steps = stepsOf(this.app);
    if (steps.length < 2) {
      this.stop();
      return;
    }
    if (this.app.root.dataset.pending === "0") {
      const at = steps.indexOf(captureOf(this.app)!);
      this.app.store.set({ capture: steps[(at + 1) % steps.length].id });
    }
    this.playing = window.setTimeout(() => this.next(), EACH);
    say(this.play, "⏸ Pause");
  }

  private stop(): void {
    clearTimeout(this.playing);
    this.playing = 0;
    say(this.play, "▶ Play");
  }

  draw(): void {
    const { app } = this,
      { state } = app.store,
      capture = captureOf(app);
    if (!capture) return;
    say(this.title, capture.title);
    this.screens.forEach((each, n) =>
      each.setAttribute("aria-pressed", String(state.screen === (["overview", "head", "reading"] as const)[n])),
    );
    const all = [...app.captures.values()];
    this.capture.element.hidden = all.length < 2;
    this.capture.options(all.map((each) => [each.id, each.title]));
    this.capture.show(state.capture);
    const name = (ids: number[]): [string, string][] => ids.map((id) => [String(id), String(id + 1)]);
    this.layer.options(name(capture.header.layers));
    this.layer.show(String(state.layer));
    this.head.options(name(capture.header.heads));
    this.head.show(String(state.head));
    say(this.theme, `Theme: ${state.theme === "auto" ? "system" : state.theme}`);
    const steps = stepsOf(app);
    this.steps.hidden = steps.length < 2;
    if (steps.length < 2 && this.playing) this.stop();
    if (steps.length > 1) {
      this.slider.max = String(steps.length - 1);
      this.slider.value = String(Math.max(0, steps.indexOf(capture)));
      this.slider.setAttribute("aria-valuetext", `step ${capture.header.step ?? "unknown"}`);
      say(this.sliderText, String(capture.header.step ?? "–"));
    }
  }
}
