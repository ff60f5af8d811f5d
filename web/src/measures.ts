// One number per head: those that the capture brings, and some from exact sums over its maps.
import { type App } from "./app.ts";
import { type Capture } from "./capture.ts";
import { type Profile } from "./profiles.ts";
import { type Source } from "./source.ts";
import { type Whole } from "./whole.ts";

export interface Measure {
  name: string;
  title: string;
  /** The number, or null while it is computed. */
  of(app: App, source: Source, whole: Whole | null): number | null;
}

function fromWeights(name: string, title: string, value: (profile: Profile, capture: Capture) => number): Measure {
  return {
    name,
    title,
    of(app, { capture, layer, head }) {
      const profile = app.profiles.get(capture, layer, head, "weights", 20);
      return profile ? value(profile, capture) : null;
    },
  };
}

/** Mean weight at one distance, over the queries that have it. */
const at = (distance: number) => (profile: Profile) => profile.mean[profile.zero + distance] ?? NaN;

const OWN: Measure[] = [
  fromWeights("mean distance", "Mean distance attended to", ({ zero, count, mean }) => {
    let sum = 0,
      total = 0;
    for (let n = 0; n < mean.length; n++)
      if (count[n]) {
        sum += Math.abs(n - zero) * count[n] * mean[n];
        total += count[n] * mean[n];
      }
    return sum / total;
  }),
  fromWeights("previous token", "Weight on the previous token", at(1)),
  fromWeights("same token", "Weight on the token itself", at(0)),
  fromWeights("first token", "Weight on the first token", (profile, capture) =>
    profile.column.length ? profile.column[0] / capture.length : NaN,
  ),
  {
    name: "explained by distance",
    title: "Share of the bias explained by distance",
    of(app, { capture, layer, head }) {
      const profile = app.profiles.get(capture, layer, head, "bias", 20);
      if (!profile) return null;
      let within = 0,
        sum = 0,
        square = 0,
        number = 0;
      for (let n = 0; n < profile.mean.length; n++) {
        const count = profile.count[n];
        if (!count) continue;
        within += count * profile.deviation[n] ** 2;
        sum += count * profile.mean[n];
        square += count * (profile.deviation[n] ** 2 + profile.mean[n] ** 2);
        number += count;
      }
      const all = square - sum ** 2 / number;
      return all > 1e-12 * square ? Math.max(0, 1 - within / all) : 1;
    },
  },
  {
    name: "greatest",
    title: "Greatest value shown",
    of: (_app, _source, whole) =>
      whole?.complete ? whole.greatest.reduce((a, b) => (b > a ? b : a), -Infinity) : null,
  },
];

/** Every measure a capture offers, its own first. */
export function measuresOf(capture: Capture): Measure[] {
  const { measures = {}, layers, heads } = capture.header;
  const brought = Object.entries(measures).map(([name, values]): Measure => ({
    name: `capture: ${name}`,
    title: name,
    of: (_app, { layer, head }) => values[layers.indexOf(layer)]?.[heads.indexOf(head)] ?? NaN,
  }));
  const { unit } = capture;
  return [
    ...brought,
    ...OWN.map((each) => ({
      ...each,
      name: each.name.replace("token", unit),
      title: each.title.replace("token", unit),
    })),
  ];
}

/** What is shown when nothing was chosen: what the capture brings, otherwise what a short map makes cheap. */
export function defaultMeasure(capture: Capture): string {
  if (capture.header.measures && Object.keys(capture.header.measures).length) return measuresOf(capture)[0].name;
  return capture.arrays && capture.length <= 4096 ? "mean distance" : "greatest";
}
