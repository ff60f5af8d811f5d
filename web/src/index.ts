// The module: anywidget's `render`, and `openPage` for pages without Python.

import kernel from "embed:kernel";
import style from "embed:style";
import worker from "embed:worker";
import type { RenderProps } from "@anywidget/types";
import { Host, type Model, type Traits } from "./hosts/host.ts";
import { embedded, PageModel } from "./hosts/page.ts";
import { serverModel } from "./hosts/server.ts";
import { showAtlas } from "./pages/atlas.ts";
import { Viewer } from "./pages/viewer.ts";

const sheets = new WeakMap<Node, CSSStyleSheet>();

/** Constructed, so that no policy has to allow inline styles. */
function addStyle(el: HTMLElement): void {
  const root = el.getRootNode() as Document | ShadowRoot,
    place = "adoptedStyleSheets" in root ? root : document;
  if (sheets.has(place)) return;
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(style);
  sheets.set(place, sheet);
  place.adoptedStyleSheets = [...place.adoptedStyleSheets, sheet];
}

function makeRoot(el: HTMLElement): HTMLElement {
  const root = document.createElement("div");
  root.className = "headscape";
  el.append(root);
  addStyle(el);
  return root;
}

function show(model: Model, el: HTMLElement): () => void {
  const root = makeRoot(el);
  const wasm = Uint8Array.from(atob(kernel), (letter) => letter.charCodeAt(0));
  const viewer = new Viewer(root, new Host(model), worker, wasm);
  void viewer.open();
  return () => {
    viewer.close();
    root.remove();
  };
}

/** Show the atlas or the packs in this page, or those of the server that `el` names. */
export async function openPage(el: HTMLElement): Promise<void> {
  const { server } = el.dataset;
  document.documentElement.classList.add("headscape-page");
  try {
    if (server !== undefined) {
      show(await serverModel(server), el);
      return;
    }
    const [atlas] = await embedded("atlas");
    if (atlas) {
      showAtlas(makeRoot(el), atlas.bytes);
      return;
    }
    const model = new PageModel(async (message) => {
      throw new Error(`a page without a server cannot answer ${String(message.type)}`);
    });
    model.set("packs", await embedded("pack"));
    show(model, el);
  } catch (error) {
    el.textContent = `The viewer could not start: ${(error as Error).message}.`;
    throw error;
  }
}

export default { render: ({ model, el }: RenderProps<Traits>) => show(model, el) };
