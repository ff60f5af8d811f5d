// Type a text: where the host can run a model, it does, and the views follow.
import { type App, captureOf } from "./app.ts";
import { button, h, say } from "./dom.ts";

export class Typing {
  readonly element: HTMLElement;
  private readonly area: HTMLTextAreaElement;
  private readonly status = h("p", { class: "small", role: "status" });
  private readonly run: HTMLButtonElement;

  constructor(
    private readonly app: App,
    private readonly follow: (id: string) => Promise<void>,
  ) {
    this.area = h("textarea", {
      rows: 3,
      "aria-label": "Text for the model to read",
      placeholder: "Type a text for the model to read",
    });
    this.run = button("Run the model", () => void this.start());
    this.element = h(
      "section",
      { class: "typing", "aria-label": "Type a text" },
      h("h3", {}, "Type a text"),
      this.area,
      h("div", { class: "controls" }, this.run),
      this.status,
    );
  }

  private async start(): Promise<void> {
    const text = this.area.value,
      capture = captureOf(this.app);
    if (!text || !capture) return;
    this.run.disabled = true;
    say(this.status, "Running the model …");
    try {
      const { content } = await this.app.host.ask({ type: "run", text, id: capture.id });
      await this.follow(String(content.id));
      say(this.status, "The views show your text.");
    } catch (error) {
      say(this.status, `The model did not run: ${(error as Error).message}`);
    }
    this.run.disabled = false;
  }

  draw(): void {
    this.element.hidden = this.app.host.model.get("can_run") !== true;
  }
}
