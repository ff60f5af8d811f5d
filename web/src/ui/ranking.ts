// Heads ranked by the size of one number, as bars.

import { headName } from "./cards.ts";
import { h } from "./dom.ts";

export interface Ranked {
  layer: number;
  head: number;
  value: number;
  text: string;
}

/** Bars that fit on one screen. */
const MOST = 60;

export class Ranking {
  readonly element = h("div", { class: "ranking" });
  private drawn = "";

  constructor(private readonly open: (layer: number, head: number) => void) {}

  show(heads: Ranked[], title: string): void {
    const known = heads.filter(({ value }) => !Number.isNaN(value)),
      list = known.toSorted((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, MOST),
      name = JSON.stringify([list, title, heads.length]);
    if (name === this.drawn) return;
    this.drawn = name;
    const most = Math.abs(list[0]?.value ?? 0) || 1,
      signed = list.some(({ value }) => value < 0);
    const some = list.length < known.length ? ` The first ${list.length} of ${known.length} heads.` : "";
    this.element.replaceChildren(
      h("p", { class: "small" }, `${title}, greatest size first.${some}`),
      h(
        "ol",
        { class: signed ? "signed" : "" },
        ...list.map(({ layer, head, value, text }) => {
          const bar = h("span", { class: value < 0 ? "amount below" : "amount" });
          bar.style.width = `${((signed ? 50 : 100) * Math.abs(value)) / most}%`;
          return h(
            "li",
            {},
            h(
              "button",
              { type: "button", "data-layer": layer, "data-head": head, onclick: () => this.open(layer, head) },
              h("span", { class: "name" }, headName(layer, head)),
              h("span", { class: "amounts", "aria-hidden": "true" }, bar),
              h("span", { class: "value" }, text),
            ),
          );
        }),
      ),
    );
  }
}
