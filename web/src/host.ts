// The host: whatever implements anywidget's model. Requests get a number, replies carry it back.
export interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  on(event: string, listener: (...args: never[]) => void): void;
  off(event: string, listener: (...args: never[]) => void): void;
  save_changes(): void;
  send(message: unknown): void;
}

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
    model.on("msg:custom", this.listener as (...args: never[]) => void);
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
    this.model.off("msg:custom", this.listener as (...args: never[]) => void);
  }

  private receive(content: Record<string, unknown>, buffers: Reply["buffers"]): void {
    const pending = this.pending.get(content["request"] as number);
    if (!pending) return;
    if (content["type"] === "progress") {
      pending.progress?.(
        Number(content["done"]),
        content["left_seconds"] == null ? null : Number(content["left_seconds"]),
      );
      return;
    }
    this.pending.delete(content["request"] as number);
    if (content["type"] === "error") pending.reject(new Error(String(content["message"])));
    else pending.resolve({ content, buffers });
  }
}
