// One number per head: those that the capture brings, and some from exact sums over its maps.
import type { Capture } from "../core/capture.ts";
import type { Source, Whole } from "../core/source.ts";
import { formatted, number } from "../core/text.ts";
import type { Profile, Profiles } from "./profiles.ts";

export interface Measure {
  name: string;
  title: string;
  /** The title in few words, for cards. */
  short: string;
  /** What it is, in one plain sentence. */
  text: string;
  /** The number, or null while it is computed. */
  of(profiles: Profiles, source: Source, whole: Whole | null): number | null;
  /** The number as text. */
  shown(value: number): string;
}

const shown = (value: number) => number(value, 3);

function fromWeights(
  name: string,
  title: string,
  text: string,
  value: (profile: Profile, capture: Capture) => number,
): Measure {
  return {
    name,
    title,
    short: name,
    text,
    shown,
    of(profiles, { capture, layer, head }) {
      const profile = profiles.get(capture, layer, head, "weights", 20);
      return profile ? value(profile, capture) : null;
    },
  };
}

/** Mean weight at one distance, over the queries that have it. */
const at = (distance: number) => (profile: Profile) => profile.mean[profile.zero + distance] ?? NaN;

/** How much of the variation of what is stored the distance explains, by one-way analysis of variance. */
function positionShare(quantity: "bias" | "weights"): Measure {
  const [word, words] =
    quantity === "bias" ? ["position only", "the positional part of the scores"] : ["weights", "the weights"];
  return {
    name: `position share (${word})`,
    title: `Position share (${word})`,
    short: "position share",
    text: `Share of the variation of ${words} that the distance explains; 1 is all of it.`,
    shown,
    of(profiles, { capture, layer, head }) {
      const profile = profiles.get(capture, layer, head, quantity, 20);
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
      return all > 1e-12 * square ? Math.max(0, 1 - within / all) : NaN;
    },
  };
}

const OWN: Measure[] = [
  fromWeights(
    "previous token",
    "Weight on the previous token",
    "Mean attention weight of a query on the token before it.",
    at(1),
  ),
  fromWeights(
    "first token",
    "Weight on the first token",
    "Mean attention weight of a query on the first token: a sink if it is large.",
    (profile, capture) => (profile.column.length ? profile.column[0] / capture.length : NaN),
  ),
  fromWeights("same token", "Weight on the token itself", "Mean attention weight of a query on its own token.", at(0)),
  fromWeights(
    "mean distance",
    "Mean distance attended to (tokens)",
    "How many tokens away a query attends, mean over its attention weights.",
    ({ zero, count, mean }) => {
      let sum = 0,
        total = 0;
      for (let n = 0; n < mean.length; n++)
        if (count[n]) {
          sum += Math.abs(n - zero) * count[n] * mean[n];
          total += count[n] * mean[n];
        }
      return sum / total;
    },
  ),
  {
    name: "greatest",
    title: "Greatest value shown",
    short: "greatest value",
    text: "The greatest value of the head's map as it is shown.",
    shown,
    of: (_profiles, _source, whole) =>
      whole?.complete ? whole.greatest.reduce((a, b) => Math.max(a, Number.isNaN(b) ? a : b), -Infinity) : null,
  },
];

/** Measures that need no theory, in the order in which they are offered before all others. */
const PLAIN = ["previous token", "first token", "sink_score", "reach_mean", "mean distance", "entropy", "same token"];

/** Needs the sums of columns, which only a capture that is here has. */
const BY_COLUMN = "first token";

/** Every measure a capture offers, plain ones first; the viewer adds what the capture does not bring. */
export function measuresOf(capture: Capture): Measure[] {
  const { measures = [], layers, heads } = capture.header,
    names = new Set(measures.map(({ name }) => name));
  const brought = measures.map(
    ({ name, label, text, form, values }): Measure => ({
      name,
      title: label,
      short: label.replace(/ \(.*\)$/, ""),
      text,
      of: (_profiles, { layer, head }) => values[layers.indexOf(layer)]?.[heads.indexOf(head)] ?? NaN,
      shown: (value) => formatted(value, form),
    }),
  );
  const { unit } = capture,
    named = (text: string) => text.replaceAll("token", unit),
    own = OWN.filter(({ name }) => !names.has(name) && (capture.arrays || name !== BY_COLUMN)),
    share = names.has("position_share") ? [] : [positionShare(capture.knows("bias") ? "bias" : "weights")];
  const place = ({ name }: Measure) => (PLAIN.includes(name) ? PLAIN.indexOf(name) : PLAIN.length);
  return [...brought, ...share, ...own]
    .toSorted((a, b) => place(a) - place(b))
    .map((each) =>
      brought.includes(each)
        ? each
        : {
            ...each,
            name: named(each.name),
            title: named(each.title),
            short: named(each.short),
            text: named(each.text),
          },
    );
}

/** Every measure of a head in two captures: how far its maps are apart, then how much each measure differs. */
function comparedMeasures(capture: Capture, other: Capture): Measure[] {
  const apart = (name: string, title: string, what: "mean" | "greatest"): Measure => ({
    name,
    title,
    short: name,
    text: `The ${what} size of the difference of two captures' maps, over pairs that both have.`,
    shown,
    of(profiles, source) {
      if (!other.has(source.layer, source.head)) return NaN;
      return profiles.distance(source, other)?.[what] ?? null;
    },
  });
  const theirs = new Map(measuresOf(other).map((measure) => [measure.name, measure]));
  const changes = measuresOf(capture).flatMap((measure): Measure[] => {
    const twin = theirs.get(measure.name);
    // A share of position is not compared with one of weights.
    if (!twin || twin.title !== measure.title || measure.name === "greatest") return [];
    return [
      {
        name: `change of ${measure.name}`,
        title: `${measure.title}: change`,
        short: `change of ${measure.short}`,
        text: `${measure.text} Shown is what it is here minus what it is in ${other.title}.`,
        shown: (value) => (value > 0 ? "+" : "") + measure.shown(value),
        of(profiles, source) {
          if (!other.has(source.layer, source.head)) return NaN;
          const here = measure.of(profiles, { ...source, less: null }, null),
            there = twin.of(profiles, { ...source, capture: other, less: null }, null);
          return here === null || there === null ? null : here - there;
        },
      },
    ];
  });
  const local = capture.arrays && other.arrays;
  return [
    ...(local
      ? [
          apart("mean difference", "Mean |difference|", "mean"),
          apart("greatest difference", "Greatest |difference|", "greatest"),
        ]
      : []),
    ...changes,
  ];
}

/** The measures to choose from: of a capture, or of what two captures differ in. */
export function offeredMeasures(capture: Capture, other: Capture | undefined): Measure[] {
  return other ? comparedMeasures(capture, other) : measuresOf(capture);
}

/** What is shown when nothing was chosen: what the capture brings, otherwise what a short map makes cheap. */
export function defaultMeasure(capture: Capture): string {
  if (capture.header.measures?.length) return capture.header.measures[0].name;
  return capture.arrays && capture.length <= 4096 ? "mean distance" : "greatest";
}
