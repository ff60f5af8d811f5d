// The keyboard: one table that is both the key bindings and the help.

import { QUANTITIES } from "../core/pack.ts";
import { WORDS } from "../core/source.ts";
import type { Compare, Minus, Pooling } from "../core/state.ts";
import { type App, captureOf, lock, longest, otherOf, pairOf, setPair, setView, viewOf } from "./app.ts";
import { dialOf, setPosition } from "./dial.ts";
import { button, h } from "./dom.ts";
import { step, stepsOf } from "./topbar.ts";

interface Binding {
  keys: string[];
  shown: string;
  what: string;
  act: (event: KeyboardEvent) => void;
}

export interface Actions {
  search(): void;
  note(): void;
  map(): void;
  link(): void;
}

const cycle = <T>(list: readonly T[], value: T): T => list[(list.indexOf(value) + 1) % list.length];

function bindings(app: App, help: () => void, actions: Actions): Binding[] {
  const { store } = app,
    state = () => store.state,
    view = () => viewOf(state(), longest(app));
  const move = (query: number, key: number) => (event: KeyboardEvent) => {
    const by = event.shiftKey ? 10 : 1,
      from = view(),
      pair = pairOf(app) ?? {
        query: Math.floor(from.query + from.span / 2),
        key: Math.floor(from.key + from.span / 4),
      };
    app.moved = true;
    setPair(app, { query: pair.query + by * query, key: pair.key + by * key }, true);
  };
  const zoom = (factor: number) => () => {
    const from = view(),
      pair = pairOf(app),
      centre = pair
        ? { query: pair.query + 0.5, key: pair.key + 0.5 }
        : { query: from.query + from.span / 2, key: from.key + from.span / 2 };
    setView(app, {
      query: centre.query - (centre.query - from.query) * factor,
      key: centre.key - (centre.key - from.key) * factor,
      span: from.span * factor,
    });
  };
  const pan = (query: number, key: number) => () =>
    setView(app, {
      ...view(),
      query: view().query + (query * view().span) / 8,
      key: view().key + (key * view().span) / 8,
    });
  return [
    { keys: ["ArrowUp"], shown: "↑", what: "pair one query up (Shift: 10)", act: move(-1, 0) },
    { keys: ["ArrowDown"], shown: "↓", what: "pair one query down (Shift: 10)", act: move(1, 0) },
    { keys: ["ArrowLeft"], shown: "←", what: "pair one key left (Shift: 10)", act: move(0, -1) },
    { keys: ["ArrowRight"], shown: "→", what: "pair one key right (Shift: 10)", act: move(0, 1) },
    {
      keys: ["Enter", "l"],
      shown: "Enter or L",
      what: "lock or unlock the pair",
      act: () => {
        const pair = pairOf(app);
        if (pair) lock(app, pair);
      },
    },
    {
      keys: ["Escape"],
      shown: "Esc",
      what: "unlock; close this list",
      act: () => store.set({ locked: null, reading: { ...state().reading, token: null } }),
    },
    { keys: ["+", "=", "e"], shown: "+ or E", what: "zoom in", act: zoom(0.7) },
    { keys: ["-", "_", "q"], shown: "− or Q", what: "zoom out", act: zoom(1 / 0.7) },
    { keys: ["0"], shown: "0", what: "show the whole map", act: () => store.set({ view: null }) },
    { keys: ["w"], shown: "W", what: "pan up", act: pan(-1, 0) },
    { keys: ["s"], shown: "S", what: "pan down", act: pan(1, 0) },
    { keys: ["a"], shown: "A", what: "pan left", act: pan(0, -1) },
    { keys: ["d"], shown: "D", what: "pan right", act: pan(0, 1) },
    ...QUANTITIES.map(
      (quantity, n): Binding => ({
        keys: [String(n + 1)],
        shown: String(n + 1),
        what: `show ${WORDS[quantity]}`,
        act: () => store.set({ quantity }),
      }),
    ),
    {
      keys: ["m"],
      shown: "M",
      what: "subtract nothing, the row mean, the distance mean",
      act: () => store.set({ minus: cycle<Minus>(["nothing", "row", "distance"], state().minus) }),
    },
    {
      keys: ["p"],
      shown: "P",
      what: "zoomed-out cells: automatic, mean, least, greatest",
      act: () => store.set({ pooling: cycle<Pooling>(["auto", "mean", "least", "greatest"], state().pooling) }),
    },
    {
      keys: ["z"],
      shown: "Z",
      what: "switch position off and on",
      act: () => setPosition(app, dialOf(app) === 0 ? 1 : 0),
    },
    { keys: ["<"], shown: "<", what: "less position", act: () => setPosition(app, dialOf(app) - 0.1) },
    { keys: [">"], shown: ">", what: "more position", act: () => setPosition(app, dialOf(app) + 0.1) },
    {
      keys: ["f"],
      shown: "F",
      what: "the equation: all four quantities side by side",
      act: () => store.set({ four: !state().four, screen: "head" }),
    },
    {
      keys: ["o"],
      shown: "O",
      what: "overview or head",
      act: () => store.set({ screen: state().screen === "head" ? "overview" : "head" }),
    },
    {
      keys: ["k"],
      shown: "K",
      what: "the text, or the head",
      act: () => store.set({ screen: state().screen === "reading" ? "head" : "reading" }),
    },
    { keys: ["["], shown: "[", what: "previous head", act: () => step(app, "head", -1) },
    { keys: ["]"], shown: "]", what: "next head", act: () => step(app, "head", 1) },
    { keys: ["{"], shown: "{", what: "previous layer", act: () => step(app, "layer", -1) },
    { keys: ["}"], shown: "}", what: "next layer", act: () => step(app, "layer", 1) },
    { keys: ["c"], shown: "C", what: "compare: off, side by side, difference, triangles", act: () => compareNext(app) },
    { keys: [","], shown: ",", what: "earlier training step", act: () => stepTraining(app, -1) },
    { keys: ["."], shown: ".", what: "later training step", act: () => stepTraining(app, 1) },
    {
      keys: ["h"],
      shown: "H",
      what: "colour limits of this head or shared",
      act: () => store.colour({ scope: state().colour.scope === "head" ? "shared" : "head" }),
    },
    {
      keys: ["g"],
      shown: "G",
      what: "colours linear, logarithmic, symlog",
      act: () => store.colour({ scale: cycle(["auto", "linear", "log", "symlog"] as const, state().colour.scale) }),
    },
    {
      keys: ["r"],
      shown: "R",
      what: "colour range: automatic, symmetric, least to greatest",
      act: () => store.colour({ range: cycle(["auto", "symmetric", "full"] as const, state().colour.range) }),
    },
    { keys: ["x"], shown: "X", what: "reset colour limits", act: () => store.colour({ limits: {} }) },
    { keys: ["/"], shown: "/", what: "find a token", act: actions.search },
    { keys: ["n"], shown: "N", what: "write a note at the pair", act: actions.note },
    { keys: ["v"], shown: "V", what: "go to the map, or to the heads of the overview", act: actions.map },
    { keys: ["y"], shown: "Y", what: "copy a link to this view", act: actions.link },
    {
      keys: ["t"],
      shown: "T",
      what: "theme: system, light, dark",
      act: () => store.set({ theme: cycle(["auto", "light", "dark"] as const, state().theme) }),
    },
    { keys: ["?"], shown: "?", what: "show this list", act: help },
  ];
}

function compareNext(app: App): void {
  const { store } = app,
    other = [...app.captures.values()].find((capture) => capture.id !== store.state.capture);
  if (!other) return;
  const compare = cycle<Compare>(
    ["off", "side", "difference", "triangles"],
    otherOf(app) ? store.state.compare : "off",
  );
  store.set({ compare, other: app.captures.has(store.state.other) ? store.state.other : other.id });
}

function stepTraining(app: App, by: 1 | -1): void {
  const steps = stepsOf(app),
    at = steps.indexOf(captureOf(app)!) + by;
  if (steps[at]) app.store.set({ capture: steps[at].id });
}

/** Listens for keys on the viewer, and shows them all in a dialog. */
export class Keys {
  readonly dialog: HTMLDialogElement;
  private readonly table: Map<string, Binding>;

  constructor(app: App, actions: Actions) {
    const all = bindings(app, () => this.help(), actions);
    this.table = new Map(all.flatMap((binding) => binding.keys.map((key) => [key, binding])));
    const rows = all.map(({ shown, what }) =>
      h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, shown)), h("td", {}, what)),
    );
    const mouse =
      "Drag pans, the wheel or two fingers zoom, a click locks a pair, a double click zooms in. The ends of the colour bar can be dragged; arrow keys move them too.";
    this.dialog = h(
      "dialog",
      { class: "keys", "aria-label": "All keys" },
      h(
        "div",
        { class: "plothead" },
        h("h2", {}, "Keys"),
        button("Close", () => this.dialog.close()),
      ),
      h("p", {}, mouse),
      h("table", {}, h("tbody", {}, ...rows)),
    );
    // A page of its own listens everywhere; in a notebook keys outside the viewer are the notebook's.
    const own = typeof app.host.model.get("link") === "string";
    (own ? document : app.root).addEventListener("keydown", (event) => this.press(event as KeyboardEvent));
  }

  help(): void {
    if (!this.dialog.open) this.dialog.showModal();
  }

  private press(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || this.dialog.open) return;
    const typing = target.matches("input:not([type=checkbox]):not([type=radio]), textarea, select");
    if (typing) {
      if (event.key === "Escape") target.blur();
      return;
    }
    const control = target.matches("button, summary, input, [role=slider]");
    if (control && ["Enter", " ", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"].includes(event.key)) return;
    const binding = this.table.get(event.key) ?? this.table.get(event.key.toLowerCase());
    if (!binding) return;
    event.preventDefault();
    binding.act(event);
  }
}
