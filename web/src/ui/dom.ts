// Elements without a framework. Text is always textContent, never HTML.
type Child = Node | string | null | undefined;
type Props = Record<string, string | number | boolean | ((event: never) => void) | undefined>;

/** Make an element; `on...` properties are listeners, booleans are attributes that are there or not. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value as EventListener);
    else if (typeof value === "boolean") element.toggleAttribute(name, value);
    else if (value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child): child is Node | string => child !== null && child !== undefined));
  return element;
}

/** Make an SVG element. */
export function svg(tag: string, props: Record<string, string | number>, text = ""): SVGElement {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, String(value));
  if (text) element.textContent = text;
  return element;
}

let names = 0;
/** An id that no other element has. */
export function fresh(stem: string): string {
  return `headscape-${stem}-${++names}`;
}

export interface Choice<T extends string> {
  element: HTMLElement;
  select: HTMLSelectElement;
  show(value: T): void;
  options(list: [T, string][]): void;
}

/** A labelled select. */
export function choice<T extends string>(label: string, list: [T, string][], change: (value: T) => void): Choice<T> {
  const select = h("select", { onchange: () => change(select.value as T) });
  const element = h("label", { class: "field" }, h("span", {}, label), select);
  let known = "";
  const options = (given: [T, string][]) => {
    const text = JSON.stringify(given);
    if (text === known) return;
    known = text;
    const before = select.value;
    select.replaceChildren(...given.map(([value, title]) => h("option", { value }, title)));
    if (given.some(([value]) => value === before)) select.value = before;
  };
  options(list);
  const show = (value: T) => {
    if (select.value !== value) select.value = value;
  };
  return { element, select, options, show };
}

/** A button with text. */
export function button(text: string, press: () => void, props: Props = {}): HTMLButtonElement {
  return h("button", { type: "button", onclick: press, ...props }, text);
}

/** A labelled check box. */
export function check(label: string, change: (on: boolean) => void): { element: HTMLElement; box: HTMLInputElement } {
  const box = h("input", { type: "checkbox", onchange: () => change(box.checked) });
  return { element: h("label", { class: "check" }, box, h("span", {}, label)), box };
}

/** Give text to an element only when it changed, so that screen readers are not told twice. */
export function say(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}
