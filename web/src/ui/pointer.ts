// The pointer on a map: hovering, clicking, dragging, the wheel and two fingers.
import { type App, lock, longest, type Pair, type Shown, setView, viewOf } from "./app.ts";
import type { Frame } from "./draw.ts";

/** What the pointer needs to know of its panel. */
interface Target {
  stage: HTMLElement;
  frame: Frame;
  shown: Shown | null;
}

type Place = { clientX: number; clientY: number };

export class Pointer {
  /** `pans` is false for a finger on a map that was neither tapped nor zoomed: it scrolls the page. */
  private drag: { x: number; y: number; moved: boolean; pans: boolean; query: number; key: number } | null = null;
  private readonly touches = new Map<number, { x: number; y: number }>();

  constructor(
    private readonly app: App,
    private readonly target: Target,
  ) {}

  /** Listen on the panel's stage. */
  listen(): void {
    const { stage } = this.target;
    stage.addEventListener("wheel", (event) => this.wheel(event));
    stage.addEventListener("pointerdown", (event) => this.down(event));
    stage.addEventListener("pointermove", (event) => this.move(event));
    stage.addEventListener("pointerup", (event) => this.up(event));
    stage.addEventListener("pointercancel", (event) => {
      this.touches.delete(event.pointerId);
      this.drag = null;
    });
    stage.addEventListener("pointerleave", () => this.leave());
    stage.addEventListener("dblclick", (event) => this.zoom(event, 0.5));
  }

  private locate(event: Place): Pair {
    const box = this.target.stage.getBoundingClientRect(),
      { frame } = this.target,
      ratio = frame.width / box.width;
    return {
      query: frame.query + ((event.clientY - box.top) * ratio) / frame.pixels,
      key: frame.key + ((event.clientX - box.left) * ratio) / frame.pixels,
    };
  }

  private zoom(event: Place, factor: number): void {
    const at = this.locate(event),
      view = viewOf(this.app.store.state, longest(this.app));
    const span = Math.min(Math.max(view.span * factor, 4), longest(this.app) * 1.5),
      share = span / view.span;
    setView(this.app, {
      query: at.query - (at.query - view.query) * share,
      key: at.key - (at.key - view.key) * share,
      span,
    });
  }

  /** On a page of its own the wheel zooms. In a notebook it scrolls the page, unless the map was clicked or Ctrl is held. */
  private wheel(event: WheelEvent): void {
    const own = typeof this.app.host.model.get("link") === "string";
    if (!own && !event.ctrlKey && !event.metaKey && !this.focused) return;
    event.preventDefault();
    this.zoom(event, Math.exp(Math.max(-80, Math.min(80, event.deltaY)) * 0.004));
  }

  private get focused(): boolean {
    return (this.target.stage.getRootNode() as Document | ShadowRoot).activeElement === this.target.stage;
  }

  private down(event: PointerEvent): void {
    const { state } = this.app.store,
      pans = event.pointerType !== "touch" || this.focused || state.view !== null;
    this.target.stage.setPointerCapture(event.pointerId);
    if (pans) this.target.stage.focus({ preventScroll: true });
    this.touches.set(event.pointerId, { x: event.clientX, y: event.clientY });
    const view = viewOf(state, longest(this.app));
    this.drag = { x: event.clientX, y: event.clientY, moved: false, pans, query: view.query, key: view.key };
  }

  private move(event: PointerEvent): void {
    const { app, drag } = this,
      before = this.touches.get(event.pointerId);
    if (before && this.touches.size === 2) {
      const [a, b] = [...this.touches.values()],
        wide = Math.hypot(a.x - b.x, a.y - b.y);
      before.x = event.clientX;
      before.y = event.clientY;
      const now = Math.hypot(a.x - b.x, a.y - b.y);
      if (now > 10 && wide > 10) this.zoom({ clientX: (a.x + b.x) / 2, clientY: (a.y + b.y) / 2 }, wide / now);
      if (drag) drag.moved = true;
      return;
    }
    if (drag && before) {
      const dx = event.clientX - drag.x,
        dy = event.clientY - drag.y;
      if (Math.hypot(dx, dy) > 4) drag.moved = true;
      if (drag.moved) {
        if (!drag.pans) return;
        const pixels = this.target.frame.pixels / (window.devicePixelRatio || 1),
          view = viewOf(app.store.state, longest(app));
        setView(app, { ...view, query: drag.query - dy / pixels, key: drag.key - dx / pixels });
        return;
      }
    }
    if (app.store.state.locked) return;
    const at = this.inside(event);
    app.hover = at;
    app.draw();
  }

  private inside(event: PointerEvent): Pair | null {
    const at = this.locate(event),
      query = Math.floor(at.query),
      key = Math.floor(at.key),
      length = longest(this.app);
    if (query < 0 || key < 0 || query >= length || key >= length) return null;
    return this.target.shown?.across && key > query ? { query: key, key: query } : { query, key };
  }

  private up(event: PointerEvent): void {
    const drag = this.drag;
    this.touches.delete(event.pointerId);
    this.drag = null;
    if (!drag || drag.moved) return;
    this.target.stage.focus({ preventScroll: true });
    const at = this.inside(event);
    if (at) lock(this.app, at);
  }

  private leave(): void {
    if (this.app.store.state.locked || document.activeElement === this.target.stage) return;
    this.app.hover = null;
    this.app.draw();
  }
}
