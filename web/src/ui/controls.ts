// The controls above the map: what is shown, how cells are pooled, what it is compared with, and its colours.

import { MAPS, sameLimits } from "../core/colour.ts";
import { QUANTITIES, type Quantity } from "../core/pack.ts";
import { WORDS } from "../core/source.ts";
import type { Compare, Minus, Pooling, State } from "../core/state.ts";
import { type App, captureOf } from "./app.ts";
import { Dial } from "./dial.ts";
import { button, check, choice, fresh, h } from "./dom.ts";
import { DEFINITIONS } from "./equation.ts";

type Colour = State["colour"];
/** Pixels up to which the settings are folded: a phone's screen is for the picture. */
const NARROW = 560;

/** Radio buttons for the quantity. */
function quantities(app: App): { element: HTMLElement; show(): void } {
  const name = fresh("quantity"),
    inputs = new Map<Quantity, HTMLInputElement>();
  const element = h("fieldset", { class: "choices" }, h("legend", {}, "Quantity"));
  QUANTITIES.forEach((quantity, n) => {
    const input = h("input", { type: "radio", name, value: quantity, onchange: () => app.store.set({ quantity }) });
    inputs.set(quantity, input);
    const tip = h(
      "span",
      { class: "tip", role: "tooltip", id: fresh("tip") },
      `${DEFINITIONS[quantity]} Key ${n + 1}.`,
    );
    input.setAttribute("aria-describedby", tip.id);
    element.append(h("span", { class: "defined" }, h("label", {}, input, h("span", {}, WORDS[quantity])), tip));
  });
  return {
    element,
    show: () =>
      inputs.forEach((input, quantity) => {
        input.checked = quantity === app.store.state.quantity;
        input.disabled = captureOf(app)?.knows(quantity) === false;
      }),
  };
}

export class Controls {
  readonly element: HTMLDetailsElement;
  private narrow = false;
  private readonly updates: (() => void)[] = [];

  /** `heads` are the settings of the overview. */
  constructor(
    private readonly app: App,
    heads: HTMLElement,
  ) {
    const { store } = app,
      show = (update: () => void) => this.updates.push(update),
      state = () => store.state;
    const quantity = quantities(app);
    show(quantity.show);
    const minus = choice<Minus>(
      "Subtract",
      [
        ["nothing", "nothing"],
        ["row", "row mean"],
        ["distance", "distance mean"],
      ],
      (value) => store.set({ minus: value }),
    );
    show(() => minus.show(state().minus));
    const four = check("Equation", (on) => store.set({ four: on, screen: "head" }));
    four.box.ariaLabel = "Equation: all four maps";
    show(() => (four.box.checked = state().four));
    const what = h("div", { class: "controls" }, quantity.element, minus.element, four.element);
    // The text shows values as they are: what acts on maps is left out.
    const maps = [minus.element, four.element];
    show(() => maps.forEach((each) => (each.hidden = state().screen === "reading")));
    const dial = new Dial(app);
    show(() => dial.draw());
    this.element = h(
      "details",
      { class: "fold", open: true },
      h("summary", {}, "Settings"),
      h("div", { class: "settings" }, what, dial.element, this.compare(show), this.colours(show), heads),
    );
    show(() => (heads.hidden = state().screen !== "overview"));
  }

  private compare(show: (update: () => void) => void): HTMLElement {
    const { app } = this,
      { store } = app;
    const other = choice<string>("Compare with", [], (id) =>
      store.set({
        other: id,
        compare: id ? (store.state.compare === "off" ? "side" : store.state.compare) : "off",
      }),
    );
    const how = choice<Compare>(
      "shown",
      [
        ["side", "side by side"],
        ["difference", "as a difference"],
        ["triangles", "one in each triangle"],
      ],
      (compare) => store.set({ compare }),
    );
    const swap = button("Swap", () => store.set({ capture: store.state.other, other: store.state.capture }));
    const element = h(
      "div",
      { class: "controls", role: "group", "aria-label": "Compare" },
      other.element,
      how.element,
      swap,
    );
    show(() => {
      const { capture, other: id, compare } = store.state,
        list = [...app.captures.values()].filter((each) => each.id !== capture);
      element.hidden = list.length === 0 || store.state.screen === "reading";
      other.options([["", "nothing"], ...list.map((each): [string, string] => [each.id, each.title])]);
      other.show(compare === "off" ? "" : id);
      how.element.hidden = swap.hidden = compare === "off";
      how.show(compare);
    });
    return element;
  }

  private colours(show: (update: () => void) => void): HTMLElement {
    const { store } = this.app,
      colour = () => store.state.colour;
    const map = choice<string>(
      "Colours",
      [["auto", "automatic"], ...Object.entries(MAPS).map(([name, { title }]): [string, string] => [name, title])],
      (value) => store.colour({ map: value }),
    );
    const scope = choice<Colour["scope"]>(
      "Limits",
      [
        ["head", "of this head"],
        ["shared", "shared by all heads"],
      ],
      (value) => store.colour({ scope: value }),
    );
    const range = choice<Colour["range"]>(
      "Range",
      [
        ["auto", "automatic"],
        ["symmetric", "symmetric around 0"],
        ["full", "least to greatest"],
      ],
      (value) => store.colour({ range: value }),
    );
    const scale = choice<Colour["scale"]>(
      "Scale",
      [
        ["auto", "automatic"],
        ["linear", "linear"],
        ["log", "logarithmic"],
        ["symlog", "logarithmic on both sides of 0"],
      ],
      (value) => store.colour({ scale: value }),
    );
    const clip = choice<string>(
      "Clip",
      [
        ["0", "nothing"],
        ["0.5", "0.5% at either end"],
        ["1", "1%"],
        ["2", "2%"],
        ["5", "5%"],
        ["10", "10%"],
      ],
      (value) => store.colour({ clip: Number(value) }),
    );
    const pooling = choice<Pooling>(
      "Zoomed-out cell shows",
      [
        ["auto", "automatic"],
        ["mean", "mean"],
        ["least", "least"],
        ["greatest", "greatest"],
      ],
      (value) => store.set({ pooling: value }),
    );
    const reset = button("Reset limits", () => store.colour({ limits: {} }));
    show(() => {
      element.hidden = store.state.screen === "reading";
      map.show(colour().map);
      pooling.show(store.state.pooling);
      const { quantity, minus, compare } = store.state;
      scope.element.hidden = sameLimits(quantity, minus, compare === "difference", colour());
      scope.show(colour().scope);
      range.show(colour().range);
      scale.show(colour().scale);
      clip.show(String(colour().clip));
      reset.disabled = Object.keys(colour().limits).length === 0;
    });
    const element = h(
      "details",
      { class: "colours" },
      h("summary", {}, "Colours"),
      h(
        "div",
        { class: "controls" },
        map.element,
        scope.element,
        range.element,
        scale.element,
        clip.element,
        pooling.element,
        reset,
      ),
    );
    return element;
  }

  draw(): void {
    const narrow = this.app.root.clientWidth <= NARROW;
    if (narrow !== this.narrow) this.element.open = !narrow;
    this.narrow = narrow;
    if (captureOf(this.app)) for (const update of this.updates) update();
  }
}
