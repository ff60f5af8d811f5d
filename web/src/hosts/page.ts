// The host of a page: packs are in the page or come from a server, the state is in the address.
import type { Model, Traits } from "./host.ts";

type Listener = Parameters<Model["on"]>[1];

/** A model without Python: values, listeners, and messages handed to `answer`. */
export class PageModel implements Model {
  private readonly values: Traits;
  private readonly listeners = new Map<string, Set<Listener>>();
  /** The place of the entry shown; null before the first. */
  private place: string | null = null;

  constructor(
    private readonly answer: (
      message: Record<string, unknown>,
    ) => Promise<{ content: unknown; buffers: ArrayBuffer[] }>,
  ) {
    this.values = { state: fromAddress(), link: location.href.split("#")[0] };
    addEventListener("hashchange", () => {
      this.values.state = fromAddress();
      this.place = placeOf(this.values.state);
      this.emit("change:state");
    });
  }

  get<K extends keyof Traits>(name: K): Traits[K] {
    return this.values[name];
  }

  set<K extends keyof Traits>(name: K, value: Traits[K]): void {
    this.values[name] = value;
  }

  on(event: string, listener: Listener): void {
    const known = this.listeners.get(event) ?? new Set();
    this.listeners.set(event, known.add(listener));
  }

  off(event?: string | null, listener?: Listener | null): void {
    if (event && listener) this.listeners.get(event)?.delete(listener);
  }

  save_changes(): void {
    const text = JSON.stringify(this.values.state ?? {}),
      hash = text === "{}" ? "" : `#${encodeURIComponent(text)}`;
    if (location.hash === hash) return;
    // A different screen or head is a new entry, so that Back returns to the one before; a view of it is not.
    const address = `${location.pathname}${location.search}${hash}`,
      place = placeOf(this.values.state);
    if (this.place !== null && this.place !== place) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
    this.place = place;
  }

  send(message: unknown): void {
    const { request } = message as { request: number };
    this.answer(message as Record<string, unknown>).then(
      ({ content, buffers }) => this.emit("msg:custom", content, buffers),
      (error: Error) => this.emit("msg:custom", { type: "error", request, message: error.message }, []),
    );
  }

  private emit(event: string, ...args: unknown[]): void {
    for (const listener of this.listeners.get(event) ?? []) listener(...args);
  }
}

/** What makes a view a different place: its screen, capture, layer and head. */
function placeOf(state: unknown): string {
  const { screen, capture, layer, head } = (state ?? {}) as Record<string, unknown>;
  return JSON.stringify([screen ?? "overview", capture ?? null, layer ?? 0, head ?? 0]);
}

/** The state in the address; its text where it cannot be read. */
function fromAddress(): unknown {
  const text = location.hash.slice(1);
  try {
    return text ? JSON.parse(decodeURIComponent(text)) : {};
  } catch {
    return text;
  }
}

/** Bytes from base64 text. */
function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const direct = (Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array<ArrayBuffer> }).fromBase64;
  if (direct) return direct(text);
  const clean = text.trim(),
    size = 1 << 20,
    parts: Uint8Array[] = [];
  for (let start = 0; start < clean.length; start += size)
    parts.push(Uint8Array.from(atob(clean.slice(start, start + size)), (letter) => letter.charCodeAt(0)));
  const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

async function inflate(bytes: Uint8Array<ArrayBuffer>): Promise<ArrayBuffer> {
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).arrayBuffer();
}

interface Embedded {
  id: string;
  title: string;
  bytes: ArrayBuffer;
}

/** The packs or the atlas written into the page; their text is let go once read. */
export async function embedded(kind: "pack" | "atlas"): Promise<Embedded[]> {
  const packs: Embedded[] = [];
  for (const element of document.querySelectorAll<HTMLScriptElement>(`script[data-${kind}]`)) {
    const id = element.dataset[kind] ?? "",
      title = element.dataset.title ?? "";
    const bytes = await inflate(fromBase64(element.textContent ?? ""));
    element.textContent = "";
    packs.push({ id, title, bytes });
  }
  return packs;
}
