// The controls above the map: what is shown, how cells are pooled, what it is compared with, and its colours.

import { MAPS } from "../core/colour.ts";
import { QUANTITIES, type Quantity } from "../core/pack.ts";
import type { Compare, Minus, Pooling, State } from "../core/state.ts";
import { type App, captureOf } from "./app.ts";
import { button, check, choice, fresh, h } from "./dom.ts";

type Colour = State["colour"];

/** Radio buttons for the quantity. */
function quantities(app: App): { element: HTMLElement; show(): void } {
  const name = fresh("quantity"),
    inputs = new Map<Quantity, HTMLInputElement>();
  const element = h("fieldset", { class: "choices" }, h("legend", {}, "Quantity"));
  QUANTITIES.forEach((quantity, n) => {
    const input = h("input", { type: "radio", name, value: quantity, onchange: () => app.store.set({ quantity }) });
    inputs.set(quantity, input);
    element.append(h("label", { title: `Key ${n + 1}` }, input, h("span", {}, quantity)));
  });
  return {
    element,
    show: () => inputs.forEach((input, quantity) => (input.checked = quantity === app.store.state.quantity)),
  };
}

export class Controls {
  readonly element: HTMLElement;
  private readonly updates: (() => void)[] = [];

  constructor(private readonly app: App) {
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
    show(() => pooling.show(state().pooling));
    const four = check("All four side by side", (on) => store.set({ four: on, screen: "head" }));
    show(() => (four.box.checked = state().four));
    const what = h("div", { class: "controls" }, quantity.element, minus.element, pooling.element, four.element);
    this.element = h("div", { class: "settings" }, what, this.compare(show), this.colours(show));
  }

  private compare(show: (update: () => void) => void): HTMLElement {
    const { app } = this,
      { store } = app;
    const other = choice<string>("Compare with", [], (id) =>
      store.set({
        other: id,
        compare: id ? (store.state.compare === "off" ? "side" : store.state.compare) : "off",
        screen: "head",
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
      element.hidden = list.length === 0;
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
    const reset = button("Reset limits", () => store.colour({ limits: {} }));
    show(() => {
      map.show(colour().map);
      scope.show(colour().scope);
      range.show(colour().range);
      scale.show(colour().scale);
      clip.show(String(colour().clip));
      reset.disabled = Object.keys(colour().limits).length === 0;
    });
    return h(
      "details",
      { class: "colours" },
      h("summary", {}, "Colour"),
      h("div", { class: "controls" }, map.element, scope.element, range.element, scale.element, clip.element, reset),
    );
  }

  draw(): void {
    if (captureOf(this.app)) for (const update of this.updates) update();
  }
}
