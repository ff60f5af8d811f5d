// Export: pictures, numbers, the Python line and a link.

import { difference } from "../core/state.ts";
import { toCsv } from "../export/csv.ts";
import { toFilm } from "../export/film.ts";
import { makeScene } from "../export/picture.ts";
import { pythonLine } from "../export/python.ts";
import { save, toPng, toSvg } from "../export/scene.ts";
import type { App } from "./app.ts";
import { button, h, say } from "./dom.ts";
import type { MapPanel } from "./map.ts";
import { stepsOf } from "./topbar.ts";

export class Export {
  readonly element: HTMLElement;
  private readonly status = h("p", { class: "small", role: "status" });
  private readonly code = h("textarea", { readonly: true, rows: 8, "aria-label": "Text to copy", spellcheck: "false" });

  private readonly film = h("span", { class: "field film" });

  constructor(
    private readonly app: App,
    private readonly panels: () => MapPanel[],
  ) {
    this.code.hidden = true;
    this.film.append(
      h("span", { class: "small" }, "Film of the steps"),
      button("GIF", () => void this.record("gif")),
      button("WebM", () => void this.record("webm")),
    );
    this.element = h(
      "section",
      { class: "export", "aria-label": "Export" },
      h("h3", {}, "Export"),
      h(
        "div",
        { class: "controls" },
        button("PNG", () => void this.picture("png")),
        button("SVG", () => void this.picture("svg")),
        button("CSV", () => this.csv()),
        button("Python", () => this.python()),
        button("Link", () => this.link()),
        this.film,
      ),
      this.code,
      this.status,
    );
  }

  private name(ending: string): string {
    const { layer, head, quantity } = this.app.store.state;
    return `headscape-layer${layer + 1}-head${head + 1}-${quantity}.${ending}`;
  }

  private save(blob: Blob, ending: string): void {
    save(this.app.root, blob, this.name(ending));
    say(this.status, `Saved ${this.name(ending)}.`);
  }

  async picture(ending: "png" | "svg"): Promise<void> {
    try {
      const scene = await makeScene(this.app);
      this.save(ending === "png" ? await toPng(scene) : new Blob([toSvg(scene)], { type: "image/svg+xml" }), ending);
    } catch (error) {
      this.app.fail(`The picture could not be made: ${(error as Error).message}`);
    }
  }

  private async record(kind: "gif" | "webm"): Promise<void> {
    try {
      const film = await toFilm(this.app, kind, (done, of) => say(this.status, `Drawing step ${done} of ${of} …`));
      this.save(film, kind);
    } catch (error) {
      this.app.fail(`The film could not be made: ${(error as Error).message}.`);
    }
  }

  draw(): void {
    this.film.hidden = stepsOf(this.app).length < 2;
  }

  csv(): void {
    this.save(new Blob([toCsv(this.app, this.panels())], { type: "text/csv" }), "csv");
  }

  python(): void {
    const panel = this.panels()[0];
    if (panel?.shown) this.offer(pythonLine(panel.shown.source, panel.frame), "Python that makes the same array");
  }

  link(): void {
    const base = this.app.host.model.get("link"),
      text = JSON.stringify(difference(this.app.store.state));
    if (typeof base === "string") this.offer(`${base}#${encodeURIComponent(text)}`, "Link to this view");
    else this.offer(text, "This view; set it as `state` of the widget");
  }

  private offer(text: string, what: string): void {
    this.code.hidden = false;
    this.code.value = text;
    this.code.select();
    const done = () => say(this.status, `${what}: copied.`),
      not = () => say(this.status, `${what}: select and copy it above.`);
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, not);
    else not();
  }
}
