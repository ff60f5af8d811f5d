// The measures of one head as a table: those that Python wrote into the header.
import type { MeasureValues } from "../core/pack.ts";
import { formatted } from "../core/text.ts";
import { h } from "./dom.ts";

/** A column: its heading, and the text of a measure in it. */
export type Column = [heading: string, text: (measure: MeasureValues) => string];

/** The table of the head that is stored at a layer and head index; without measures that do not apply to it. */
export function measureTable(measures: MeasureValues[], layer: number, head: number, more: Column[] = []): HTMLElement {
  const value = ({ values }: MeasureValues) => values[layer]?.[head] ?? null;
  const columns: Column[] = [["value", (measure) => formatted(value(measure), measure.form)], ...more];
  const rows = measures
    .filter((measure) => value(measure) !== null)
    .map((measure) =>
      h(
        "tr",
        { "data-measure": measure.name },
        h("th", { scope: "row", title: measure.text }, measure.label),
        ...columns.map(([, text]) => h("td", {}, text(measure))),
      ),
    );
  const headings = ["measure", ...columns.map(([heading]) => heading)];
  return h(
    "table",
    { class: "measures" },
    h("thead", {}, h("tr", {}, ...headings.map((heading) => h("th", { scope: "col" }, heading)))),
    h("tbody", {}, ...rows),
  );
}
