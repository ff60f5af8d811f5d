// The host: whatever implements anywidget's model. Requests get a number, replies carry it back.
import type { AnyModel } from "@anywidget/types";
import type { Header } from "../core/pack.ts";

export interface PackEntry {
  id: string;
  title?: string;
  header?: Header;
  bytes?: ArrayBuffer | ArrayBufferView;
  tiles?: boolean;
}

/** What the module reads from the host and writes back; a state or selection is checked when it is read. */
export interface Traits {
  packs?: PackEntry[];
  can_run?: boolean;
  link?: string;
  state?: unknown;
  selection?: unknown;
  hover?: unknown;
}

export type Model = Pick<AnyModel<Traits>, "get" | "set" | "on" | "off" | "save_changes" | "send">;

export interface Reply {
  content: Record<string, unknown>;
  buffers: (ArrayBuffer | ArrayBufferView)[];
}

interface Pending {
  resolve: (reply: Reply) => void;
  reject: (error: Error) => void;
  progress?: (done: number, left: number | null) => void;
}

/** Sends requests to the host and matches its replies. */
export class Host {
  private next = 1;
  private readonly pending = new Map<number, Pending>();
  private readonly listener = (content: Record<string, unknown>, buffers: Reply["buffers"]) =>
    this.receive(content, buffers ?? []);

  constructor(readonly model: Model) {
    model.on("msg:custom", this.listener);
  }

  ask(message: Record<string, unknown>, progress?: Pending["progress"]): Promise<Reply> {
    return new Promise((resolve, reject) => {
      const request = this.next++;
      this.pending.set(request, { resolve, reject, ...(progress ? { progress } : {}) });
      this.model.send({ ...message, request });
    });
  }

  /** Number of requests without an answer. */
  get waiting(): number {
    return this.pending.size;
  }

  close(): void {
    this.model.off("msg:custom", this.listener);
  }

  private receive(content: Record<string, unknown>, buffers: Reply["buffers"]): void {
    const pending = this.pending.get(content.request as number);
    if (!pending) return;
    if (content.type === "progress") {
      pending.progress?.(Number(content.done), content.left_seconds == null ? null : Number(content.left_seconds));
      return;
    }
    this.pending.delete(content.request as number);
    if (content.type === "error") pending.reject(new Error(String(content.message)));
    else pending.resolve({ content, buffers });
  }
}
