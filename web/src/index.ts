// The module: anywidget's `render`, and `openPage` for pages without Python.
import kernel from "embed:kernel";
import style from "embed:style";
import worker from "embed:worker";
import { Host, type Model } from "./host.ts";
import { embedded, PageModel } from "./hosts/page.ts";
import { serverModel } from "./hosts/server.ts";
import { Viewer } from "./viewer.ts";

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

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const root = document.createElement("div");
  root.className = "headscape";
  el.append(root);
  addStyle(el);
  const wasm = Uint8Array.from(atob(kernel), (letter) => letter.charCodeAt(0));
  const viewer = new Viewer(root, new Host(model), worker, wasm);
  void viewer.open();
  return () => {
    viewer.close();
    root.remove();
  };
}

/** Show the packs in this page, or those of the server that `el` names. */
export async function openPage(el: HTMLElement): Promise<void> {
  const { server } = el.dataset;
  try {
    let model: PageModel;
    if (server !== undefined) model = await serverModel(server);
    else {
      model = new PageModel(async (message) => {
        throw new Error(`a page without a server cannot answer ${String(message["type"])}`);
      });
      model.set("packs", await embedded());
    }
    document.documentElement.classList.add("headscape-page");
    render({ model, el });
  } catch (error) {
    el.textContent = `The viewer could not start: ${(error as Error).message}.`;
    throw error;
  }
}

export default { render };
