// The viewer: puts the parts together, draws when something changed, and keeps the host informed.

import { Capture, distinctTitles } from "../core/capture.ts";
import { checkHeader, type Header, readPack } from "../core/pack.ts";
import { DEFAULT, difference, readState, type State, Store } from "../core/state.ts";
import { Engine } from "../engine/engine.ts";
import { offeredMeasures } from "../engine/measures.ts";
import { Profiles } from "../engine/profiles.ts";
import { Rows } from "../engine/rows.ts";
import { Tiles } from "../engine/tiles.ts";
import type { Host, PackEntry } from "../hosts/host.ts";
import { type App, captureOf, pairOf } from "../ui/app.ts";
import { Controls } from "../ui/controls.ts";
import { button, h, say } from "../ui/dom.ts";
import { HeadScreen } from "../ui/headscreen.ts";
import { Keys } from "../ui/keys.ts";
import { Overview } from "../ui/overview.ts";
import { Reading } from "../ui/reading.ts";
import { pairValues } from "../ui/readout.ts";
import { TopBar } from "../ui/topbar.ts";
import { welcome } from "../ui/welcome.ts";

const SAVE_AFTER = 150;
const HOVER_EVERY = 60;

/** The theme of the notebook around the viewer: JupyterLab's, VS Code's; undefined on a page of its own. */
function themeAround(): "light" | "dark" | undefined {
  const { dataset, classList } = document.body;
  if (dataset.jpThemeLight !== undefined) return dataset.jpThemeLight === "false" ? "dark" : "light";
  if (classList.contains("vscode-dark") || classList.contains("vscode-high-contrast")) return "dark";
  if (classList.contains("vscode-light") || classList.contains("vscode-high-contrast-light")) return "light";
  if (dataset.theme === "dark" || dataset.theme === "light") return dataset.theme;
  return undefined;
}

export class Viewer implements App {
  readonly store: Store;
  readonly engine: Engine;
  readonly tiles: Tiles;
  readonly profiles: Profiles;
  readonly rows: Rows;
  readonly captures = new Map<string, Capture>();
  hover: App["hover"] = null;
  moved = false;
  readonly frame: App["frame"] = new Map();
  readonly scales: App["scales"] = new Map();
  searched: App["searched"] = { text: "", capture: "", found: new Set() };
  private readonly top: TopBar;
  private readonly controls: Controls;
  private readonly overview: Overview;
  private readonly screen: HeadScreen;
  private readonly reading: Reading;
  private readonly alert = h("div", { class: "alert", role: "alert", hidden: true });
  private readonly busy = h("p", { class: "small busy", role: "status" });
  private readonly observer: ResizeObserver;
  private readonly themes: MutationObserver;
  private readonly end = new AbortController();
  private readonly listeners: [string, () => void][] = [
    ["change:state", () => this.receiveState()],
    ["change:selection", () => this.receiveSelection()],
    ["change:packs", () => void this.open()],
  ];
  private asked = false;
  private saving = 0;
  /** What the state given by the host asks for and the viewer cannot show; reported once. */
  private dropped: string[] = [];
  private closed = false;

  constructor(
    readonly root: HTMLElement,
    readonly host: Host,
    worker: string,
    wasm: Uint8Array<ArrayBuffer>,
  ) {
    const fail = (message: string, again = false) => this.fail(message, again),
      changed = () => this.draw();
    const { state, patch, dropped } = readState(host.model.get("state"));
    this.store = new Store({ ...state, ...this.fromSelection(), ...patch });
    this.dropped = dropped;
    this.engine = new Engine(worker, wasm, Math.max(1, Math.min(4, navigator.hardwareConcurrency || 2)), fail);
    this.profiles = new Profiles(this.engine, host, changed, fail);
    this.tiles = new Tiles(this.engine, host, this.profiles, changed, fail);
    this.rows = new Rows(this.engine, host, changed, fail);
    this.screen = new HeadScreen(this, (id) => this.follow(id));
    this.overview = new Overview(this);
    this.controls = new Controls(this, this.overview.settings);
    this.reading = new Reading(this);
    const keys = new Keys(this, {
      search: () => this.focusOn(() => this.screen.search.input),
      note: () => this.focusOn(() => this.screen.notes.input),
      map: () => this.skip(),
      link: () => this.screen.export.link(),
    });
    this.top = new TopBar(this, () => keys.help());
    const skip = button("Skip to the heads", () => this.skip(), { class: "skip" });
    root.append(
      skip,
      this.top.element,
      welcome(changed),
      this.alert,
      this.busy,
      this.controls.element,
      this.overview.element,
      this.screen.element,
      this.reading.element,
      keys.dialog,
    );
    this.store.on(() => {
      this.draw();
      this.save();
    });
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(root);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed, { signal: this.end.signal });
    this.themes = new MutationObserver(changed);
    this.themes.observe(document.body, {
      attributes: true,
      attributeFilter: ["class", "data-jp-theme-light", "data-theme"],
    });
    for (const [event, listener] of this.listeners) host.model.on(event, listener);
  }

  /** Focus what the screen is about, past all controls. */
  private skip(): void {
    const { screen } = this.store.state;
    this.drawNow(); // a screen that was asked for in this frame is not there yet
    if (screen === "reading") this.reading.focus();
    else if (screen === "head") this.screen.panels[0]?.focus();
    else this.overview.focus();
  }

  /** Show the screen of one head and focus a part of it. */
  private focusOn(part: () => { focus(): void } | undefined): void {
    this.store.set({ screen: "head" });
    this.drawNow();
    part()?.focus();
  }

  /** Read the captures that the host has; asks for those that come without bytes. */
  async open(): Promise<void> {
    const entries = this.host.model.get("packs") ?? [];
    for (const entry of entries) if (!this.captures.has(entry.id)) await this.add(entry);
    if (!this.captures.size) this.fail(entries.length ? "No capture could be read." : "There is no capture to show.");
    const all = [...this.captures.values()];
    distinctTitles(all).forEach((title, n) => (all[n].title = title));
    this.fitState(true);
    this.draw();
  }

  private async add(entry: PackEntry): Promise<void> {
    const name = (header: Header) => entry.title || header.title || header.encoding;
    try {
      if (entry.tiles && !entry.bytes && entry.header) {
        const header = checkHeader(entry.header);
        this.captures.set(entry.id, new Capture(entry.id, name(header), header, null));
        return;
      }
      say(this.busy, `Loading ${entry.title ?? "a capture"} …`);
      const bytes = entry.bytes ?? (await this.host.ask({ type: "pack", id: entry.id })).buffers[0],
        { header, arrays } = readPack(bytes);
      this.captures.set(entry.id, new Capture(entry.id, name(header), header, arrays));
    } catch (error) {
      this.fail(`${entry.title ?? "A capture"} could not be read: ${(error as Error).message}.`);
    } finally {
      say(this.busy, "");
    }
  }

  /** Show a capture that the host made. */
  private async follow(id: string): Promise<void> {
    await this.open();
    if (!this.captures.has(id)) throw new Error("the host did not send the new capture");
    this.hover = null;
    this.store.set({ capture: id, view: null, locked: null, reading: { ...this.store.state.reading, token: null } });
  }

  /** Make the state fit the captures: one that is there, a layer and head that it has. With `tell`, say what of a
   *  state that somebody gave could not be kept. */
  private fitState(tell = false): void {
    const { state } = this.store,
      capture = this.captures.get(state.capture) ?? this.captures.values().next().value;
    if (!capture) return;
    const { layers, heads } = capture.header,
      patch: Partial<State> = {};
    if (capture.id !== state.capture) patch.capture = capture.id;
    if (!layers.includes(state.layer)) patch.layer = layers[0];
    if (!heads.includes(state.head)) patch.head = heads[0];
    if (state.locked && (state.locked.query >= capture.length || state.locked.key >= capture.length))
      patch.locked = null;
    if (!capture.knows(state.quantity)) patch.quantity = "weights";
    if (!capture.knows("bias")) {
      if (state.four) patch.four = false;
      if (state.profile === "bias") patch.profile = "shown";
    }
    if (this.hover && Math.max(this.hover.query, this.hover.key) >= capture.length) this.hover = null;
    const { token, heads: extra } = state.reading,
      there = extra.filter((each) => capture.has(each.layer, each.head));
    if ((token !== null && token >= capture.length) || there.length < extra.length)
      patch.reading = {
        ...state.reading,
        token: token !== null && token >= capture.length ? null : token,
        heads: there,
      };
    if (!this.captures.has(state.other) && state.other) Object.assign(patch, { other: "", compare: "off" });
    const { view } = state,
      length = Math.max(capture.length, this.captures.get(state.other)?.length ?? 0),
      outside = (first: number, span: number) => first >= length || first + span <= 0;
    if (view && (outside(view.query, view.span) || outside(view.key, view.span))) patch.view = null;
    // A measure of two captures stays chosen while they are not compared.
    const names = new Set(
        [undefined, this.captures.get(state.other)]
          .flatMap((other) => offeredMeasures(capture, other))
          .map(({ name }) => name),
      ),
      unknown = (["measure", "against"] as const).filter(
        (each) => state.overview[each] && !names.has(state.overview[each]),
      );
    if (unknown.length)
      patch.overview = { ...state.overview, ...Object.fromEntries(unknown.map((each) => [each, ""])) };
    if (tell) {
      const asked = Object.keys(patch).filter(
        (name) => JSON.stringify(state[name as keyof State]) !== JSON.stringify(DEFAULT[name as keyof State]),
      );
      const missing = asked.map((name) => `${name} = ${JSON.stringify(state[name as keyof State])}`);
      this.tellDropped([...this.dropped.splice(0), ...missing]);
    }
    if (Object.keys(patch).length) this.store.set(patch);
  }

  private tellDropped(parts: string[]): void {
    if (!parts.length) return;
    const some = parts.slice(0, 5).join("; "),
      more = parts.length > 5 ? ` and ${parts.length - 5} more` : "";
    this.fail(`This link asks for what the viewer does not have, so it was left out: ${some}${more}.`);
  }

  fail(message: string, again = false): void {
    this.alert.replaceChildren(
      h("span", {}, message),
      ...(again ? [button("Try again", () => this.retry())] : []),
      button("Close", () => (this.alert.hidden = true)),
    );
    this.alert.hidden = false;
  }

  /** Ask again for what failed. */
  private retry(): void {
    this.alert.hidden = true;
    this.tiles.retry();
    this.profiles.retry();
    this.rows.retry();
    this.draw();
  }

  draw(): void {
    if (this.asked || this.closed) return;
    this.asked = true;
    this.root.dataset.pending = "frame"; // until the frame is drawn, then the number of jobs
    requestAnimationFrame(() => this.drawNow());
  }

  private drawNow(): void {
    this.asked = false;
    this.frame.clear();
    if (this.closed || !captureOf(this)) return;
    this.fitState();
    const { state } = this.store,
      single = state.screen === "head";
    const theme = state.theme === "auto" ? themeAround() : state.theme;
    if (theme) this.root.dataset.theme = theme;
    else delete this.root.dataset.theme;
    const opened = state.screen !== "overview" && this.root.dataset.screen === "overview";
    this.root.dataset.screen = state.screen;
    this.overview.element.hidden = state.screen !== "overview";
    this.reading.element.hidden = state.screen !== "reading";
    this.screen.element.hidden = !single;
    this.top.draw();
    this.controls.draw();
    if (single) {
      this.tiles.want("overview", []);
      this.tiles.want("head", this.screen.prepare());
      this.screen.draw();
    } else if (state.screen === "reading") {
      this.tiles.want("overview", []);
      this.tiles.want("head", []);
      this.reading.draw();
    } else {
      this.tiles.want("head", []);
      this.overview.draw();
      this.tiles.want("overview", this.overview.wanted());
    }
    // A head opened from far down the overview starts at its top.
    if (opened && this.root.getBoundingClientRect().top < 0) this.root.scrollIntoView();
    this.tellHover();
    this.root.dataset.pending = String(this.engine.pending + this.host.waiting);
  }

  /** Tell the host the state and the selection, a moment after the last change. */
  private save(): void {
    clearTimeout(this.saving);
    this.saving = window.setTimeout(() => {
      const { model } = this.host,
        { state } = this.store;
      model.set("state", difference(state));
      model.set("selection", this.selection());
      model.save_changes();
    }, SAVE_AFTER);
  }

  private selection(): Record<string, unknown> {
    const { capture, layer, head, quantity, locked } = this.store.state;
    return { capture, layer, head, query: locked?.query ?? null, key: locked?.key ?? null, quantity };
  }

  private sentHover = "null";
  private telling = 0;

  /** Tell the host the pair looked at, at most every HOVER_EVERY milliseconds. */
  private tellHover(): void {
    if (this.telling) return;
    this.telling = window.setTimeout(() => {
      this.telling = 0;
      if (!this.closed) this.tellNow();
    }, HOVER_EVERY);
  }

  private tellNow(): void {
    const pair = pairOf(this),
      { capture, layer, head, quantity } = this.store.state,
      of = captureOf(this);
    const known = pair && of ? pairValues(this, of, pair.query, pair.key) : null;
    const hover =
      pair && known
        ? {
            capture,
            layer,
            head,
            ...pair,
            quantity,
            value: known.values[quantity],
            weight: known.values.weights,
            distance: pair.query - pair.key,
            rank: known.place,
          }
        : null;
    const text = JSON.stringify(hover);
    if (text === this.sentHover) return;
    this.sentHover = text;
    this.host.model.set("hover", hover);
    this.host.model.save_changes();
  }

  private fromSelection(): Partial<State> {
    const given = this.host.model.get("selection") as Record<string, unknown> | undefined;
    if (!given || !Object.keys(given).length) return {};
    const { capture, layer, head, quantity, query, key } = given as Partial<Record<string, never>>;
    const pair = query != null && key != null ? { locked: { query, key } } : {};
    const known = Object.entries({ capture, layer, head, quantity, ...pair }).filter(
      ([, value]) => value !== undefined && value !== null,
    );
    return readState(Object.fromEntries(known)).patch;
  }

  private receiveState(): void {
    const given = this.host.model.get("state");
    if (JSON.stringify(given) === JSON.stringify(difference(this.store.state))) return;
    const { capture, layer, head } = this.store.state,
      { state, patch, dropped } = readState(given);
    this.dropped = dropped;
    // An address says the whole view; a notebook's state leaves the head to its selection.
    const kept = typeof this.host.model.get("link") === "string" ? {} : { capture, layer, head };
    this.store.set({ ...state, ...kept, ...patch });
    this.fitState(true);
  }

  private receiveSelection(): void {
    const given = this.host.model.get("selection");
    if (JSON.stringify(given) === JSON.stringify(this.selection())) return;
    const patch = this.fromSelection();
    this.store.set({ ...patch, locked: patch.locked ?? null, screen: "head" });
  }

  close(): void {
    this.closed = true;
    this.observer.disconnect();
    this.themes.disconnect();
    this.end.abort();
    for (const [event, listener] of this.listeners) this.host.model.off(event, listener);
    this.engine.close();
    this.host.close();
    clearTimeout(this.saving);
  }
}
