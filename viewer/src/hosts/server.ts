// The host of the loopback server: every message is one POST, answered with JSON and buffers.
import { PageModel } from "./page.ts";

export async function serverModel(server: string, token: string): Promise<PageModel> {
  const headers = { "X-Headscape-Token": token };
  const list = async () => {
    const answer = await fetch(`${server}/packs`, { headers });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}: ${await answer.text()}`);
    return (await answer.json()) as { packs: unknown[]; can_run: boolean };
  };
  const model = new PageModel(async (message) => {
    const answer = await fetch(`${server}/message`, {
      method: "POST",
      headers: { ...headers, "Content-Type": "application/json" },
      body: JSON.stringify(message),
    });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}: ${await answer.text()}`);
    const reply = decode(await answer.arrayBuffer());
    if (message["type"] === "run") model.set("packs", (await list()).packs);
    return reply;
  });
  const { packs, can_run } = await list();
  model.set("packs", packs);
  model.set("can_run", can_run);
  return model;
}

/** uint32 length of a JSON text, the text, then the buffers it lists. */
function decode(body: ArrayBuffer): { content: unknown; buffers: ArrayBuffer[] } {
  const size = new DataView(body).getUint32(0, true);
  const { content, buffers } = JSON.parse(new TextDecoder().decode(new Uint8Array(body, 4, size))) as {
    content: unknown;
    buffers: number[];
  };
  let at = 4 + size;
  return { content, buffers: buffers.map((bytes) => body.slice(at, (at += bytes))) };
}
