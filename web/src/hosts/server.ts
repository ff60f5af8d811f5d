// The host of the loopback server: every message is one POST, answered with JSON and buffers.
import type { PackEntry } from "./host.ts";
import { PageModel } from "./page.ts";

const STORED = "headscape-token";
/** Milliseconds before a request that did not reach the server is sent again. */
const AGAIN = [200, 1000];

/** Ask the server; asked again where it cannot be reached or is busy, refusals are errors. */
async function ask(address: string, options: RequestInit): Promise<Response> {
  for (let tries = 0; ; tries++) {
    try {
      const answer = await fetch(address, options);
      if (answer.ok) return answer;
      if (answer.status !== 503 || tries >= AGAIN.length)
        throw new Refusal(`the server answered ${answer.status}: ${await answer.text()}`);
    } catch (error) {
      if (error instanceof Refusal || tries >= AGAIN.length) throw error;
    }
    await new Promise((done) => setTimeout(done, AGAIN[tries]));
  }
}

class Refusal extends Error {}

/** The token: exchanged for the code in this address, which then disappears from it, or kept from an earlier one. */
async function enter(server: string): Promise<string> {
  const code = /^\/open\/([\w-]+)$/.exec(location.pathname)?.[1];
  if (code === undefined) return storage()?.getItem(STORED) ?? "";
  const headers = { "Content-Type": "application/json" };
  const answer = await ask(`${server}/enter`, { method: "POST", headers, body: JSON.stringify({ code }) });
  const { token } = (await answer.json()) as { token: string };
  storage()?.setItem(STORED, token);
  history.replaceState(null, "", `/${location.hash}`);
  return token;
}

/** Storage of this address and port; absent where the browser has none or forbids it. */
function storage(): Storage | null {
  try {
    return localStorage;
  } catch {
    return null;
  }
}

export async function serverModel(server: string): Promise<PageModel> {
  const headers = { "X-Headscape-Token": await enter(server) };
  const list = async () => {
    const answer = await ask(`${server}/packs`, { headers });
    return (await answer.json()) as { packs: PackEntry[]; can_run: boolean };
  };
  const model = new PageModel(async (message) => {
    const answer = await ask(`${server}/message`, {
      method: "POST",
      headers: { ...headers, "Content-Type": "application/json" },
      body: JSON.stringify(message),
    });
    const reply = decode(await answer.arrayBuffer());
    if (message.type === "run") model.set("packs", (await list()).packs);
    return reply;
  });
  const { packs, can_run } = await list();
  document.title = packs.map(({ title }) => title).join(", ");
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
  const cut = (bytes: number) => {
    at += bytes;
    return body.slice(at - bytes, at);
  };
  return { content, buffers: buffers.map(cut) };
}
