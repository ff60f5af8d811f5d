// Heads ranked by the size of one number, as bars.

import { headName } from "./cards.ts";
import { h } from "./dom.ts";

export interface Ranked {
  layer: number;
  head: number;
  value: number;
  text: string;
}

/** Bars that are always shown, and pixels of a column and of a bar: more are shown where they fit on the screen. */
const LEAST = 60,
  WIDTH = 436,
  HEIGHT = 22;

export class Ranking {
  readonly element = h("div", { class: "ranking" });
  private drawn = "";

  constructor(private readonly open: (layer: number, head: number) => void) {}

  show(heads: Ranked[], title: string, room: { width: number; height: number }): void {
    const known = heads.filter(({ value }) => !Number.isNaN(value)),
      columns = Math.max(1, Math.floor((room.width + 16) / WIDTH)),
      fitting = Math.max(LEAST, columns * Math.floor((room.height - HEIGHT) / HEIGHT)),
      list = known.toSorted((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, fitting),
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
