// The atlas page: every head of a model as a thumbnail, sortable by any measure.
// Data is JSON in the page; nothing is fetched. Layers and heads are shown counted from 1.

const data = JSON.parse(document.getElementById("data").textContent);
const byName = new Map(data.measures.map((measure) => [measure.name, measure]));
const state = { sort: data.importance, least: false, kind: "", order: "layers" };
const SVG = "http://www.w3.org/2000/svg";

/** A number as Python's format would print it: .2f, .3g or +.4f. */
function shown(measure, value) {
  if (value === null || value === undefined) return "–";
  const [, sign, digits, form] = /^(\+?)\.(\d+)([fg])$/.exec(measure.form);
  const text = form === "f" ? value.toFixed(+digits) : String(+value.toPrecision(+digits));
  return (sign && value >= 0 ? "+" : "") + text.replace("-", "−");
}

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick" || name === "onchange") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

const title = (head) => `layer ${head.layer + 1}, head ${head.head + 1}`;
const value = (head, name) => (head.values[name] || [null])[0];
const place = (d) => Math.sign(d) * Math.log2(1 + Math.abs(d));

/** Attention weights by cells: queries down, keys across; darker is more. */
function drawMap(canvas, head) {
  const side = data.side;
  const bytes = Uint8Array.from(atob(head.map), (c) => c.charCodeAt(0));
  canvas.width = canvas.height = side;
  const context = canvas.getContext("2d");
  const image = context.createImageData(side, side);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const [from, to] = dark ? [[28, 32, 36], [255, 209, 102]] : [[255, 255, 255], [11, 60, 120]];
  bytes.forEach((byte, at) => {
    for (let c = 0; c < 3; c++) {
      image.data[4 * at + c] = from[c] + ((to[c] - from[c]) * byte) / 255;
    }
    image.data[4 * at + 3] = 255;
  });
  context.putImageData(image, 0, 0);
}

/** The kernel against distance on a logarithmic axis, with the closed form as a dashed line. */
function curve(head, width, height, labelled) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("class", "curve");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `kernel of ${title(head)}`);
  const bottom = labelled ? 18 : 2;
  const left = labelled ? 40 : 2;
  const finite = [...head.kernel, ...(labelled ? head.closed || [] : [])].filter((y) => y !== null);
  const low = Math.min(...finite);
  const high = Math.max(...finite);
  const first = place(data.distances[0]);
  const last = place(data.distances.at(-1));
  const x = (d) => left + ((place(d) - first) / (last - first || 1)) * (width - left - 4);
  const y = (s) => 8 + ((high - s) / (high - low || 1)) * (height - bottom - 14);
  const add = (name, attributes, text) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, each] of Object.entries(attributes)) node.setAttribute(key, each);
    if (text !== undefined) node.textContent = text;
    svg.append(node);
  };
  const line = (values, kind) => {
    const points = values
      .map((s, at) => (s === null ? null : `${x(data.distances[at]).toFixed(1)},${y(s).toFixed(1)}`))
      .filter((point) => point !== null);
    add("polyline", { points: points.join(" "), class: kind });
  };
  if (labelled) {
    add("line", { x1: left, x2: width - 4, y1: height - bottom, y2: height - bottom, class: "axis" });
    for (const d of data.ticks) {
      add("line", { x1: x(d), x2: x(d), y1: height - bottom, y2: height - bottom + 3, class: "axis" });
      add("text", { x: x(d), y: height - 4, class: "tick", "text-anchor": "middle" }, d);
    }
    for (const s of [low, high]) {
      add("text", { x: left - 4, y: y(s) + 3, class: "tick", "text-anchor": "end" }, +s.toPrecision(2));
    }
    if (head.closed) line(head.closed, "closed");
  } else if (data.distances[0] < 0) {
    add("line", { x1: x(0), x2: x(0), y1: 0, y2: height, class: "axis" });
  }
  line(head.kernel, "kernel");
  return svg;
}

function card(head, name) {
  const measure = byName.get(name);
  const canvas = make("canvas", { class: "map", "aria-hidden": "true" });
  drawMap(canvas, head);
  const kinds = make("span", { class: "kinds" }, head.kinds.join(", ") || " ");
  return make(
    "button",
    { class: "card", type: "button", "aria-haspopup": "dialog", onclick: () => open(head) },
    make("span", { class: "name" }, `${head.layer + 1}.${head.head + 1}`),
    make("span", { class: "value" }, shown(measure, value(head, name))),
    canvas,
    curve(head, 96, 40, false),
    kinds,
  );
}

/** All measures of one head with their intervals. */
function open(head) {
  const dialog = document.getElementById("head");
  const rows = data.measures
    .filter((measure) => head.values[measure.name] && value(head, measure.name) !== null)
    .map((measure) => {
      const [mean, low, high] = head.values[measure.name];
      const range = low === null ? "" : `${shown(measure, low)} to ${shown(measure, high)}`;
      return make(
        "tr",
        {},
        make("th", { scope: "row", title: measure.text }, measure.label),
        make("td", {}, shown(measure, mean)),
        make("td", { class: "quiet" }, range),
        ...data.multiples.map((multiple) => {
          const at = head.drift[multiple] || {};
          const has = at[measure.name] !== undefined;
          return make("td", { class: "quiet" }, has ? shown(measure, at[measure.name]) : "");
        }),
      );
    });
  const headings = ["measure", "mean", "95% interval", ...data.multiples.map((m) => `at ${m}×`)];
  const canvas = make("canvas", { class: "map large" });
  drawMap(canvas, head);
  const viewer = head.link ? [make("p", {}, make("a", { href: head.link }, "open in the viewer"))] : [];
  const note = head.closed ? "mean final score by distance; dashed: closed form" : "mean final score by distance";
  dialog.replaceChildren(
    make("form", { method: "dialog" }, make("button", { class: "close", "aria-label": "close" }, "×")),
    make("h2", {}, title(head)),
    make("p", { class: "quiet" }, head.kinds.join(", ") || "no kind recognised"),
    make(
      "div",
      { class: "pictures" },
      make("figure", {}, canvas, make("figcaption", {}, "weights: queries down, keys across")),
      make("figure", {}, curve(head, 360, 190, true), make("figcaption", {}, note)),
    ),
    ...viewer,
    make(
      "div",
      { class: "wide" },
      make(
        "table",
        {},
        make("thead", {}, make("tr", {}, ...headings.map((text) => make("th", { scope: "col" }, text)))),
        make("tbody", {}, ...rows),
      ),
    ),
  );
  dialog.showModal();
  location.hash = `${head.layer + 1}.${head.head + 1}`;
}

function ranked(name, least) {
  const size = name.startsWith("effect_") ? Math.abs : (number) => number;
  const known = data.heads.filter((head) => value(head, name) !== null);
  known.sort((a, b) => size(value(b, name)) - size(value(a, name)));
  return least ? known.reverse() : known;
}

function draw() {
  const kept = (head) => !state.kind || head.kinds.includes(state.kind);
  const all = document.getElementById("all");
  const grid = state.order === "layers" && !state.kind;
  all.classList.toggle("layers", grid);
  const heads = state.order === "layers" ? data.heads : ranked(state.sort, state.least);
  const cards = heads.filter(kept).map((head) => card(head, state.sort));
  if (grid) {
    const rows = [];
    for (let layer = 0; layer < data.about.layers; layer++) {
      const own = cards.slice(layer * data.about.heads, (layer + 1) * data.about.heads);
      rows.push(make("div", { class: "row" }, make("span", { class: "label" }, `${layer + 1}`), ...own));
    }
    all.replaceChildren(...rows);
  } else all.replaceChildren(...cards);
  document.getElementById("count").textContent = cards.length === 1 ? "1 head" : `${cards.length} heads`;
  const measure = byName.get(state.sort);
  document.getElementById("meaning").textContent = `${measure.text} (${measure.reference})`;
}

function choose(id, options, change) {
  const select = document.getElementById(id);
  select.append(...options.map(([key, text]) => make("option", { value: key }, text)));
  select.onchange = () => {
    change(select.value);
    draw();
  };
}

choose(
  "order",
  [["layers", "layer and head"], ["most", "largest first"], ["least", "smallest first"]],
  (key) => {
    state.order = key === "layers" ? "layers" : "ranked";
    state.least = key === "least";
  },
);
const present = data.measures.filter((each) => data.heads.some((head) => value(head, each.name) !== null));
choose("sort", present.map((each) => [each.name, each.label]), (key) => {
  state.sort = key;
});
document.getElementById("sort").value = state.sort;
const kinds = [...new Set(data.heads.flatMap((head) => head.kinds))];
choose("kind", [["", "all"], ...kinds.map((kind) => [kind, kind])], (key) => {
  state.kind = key;
});
function drawRanking() {
  for (const [id, least] of [["most", false], ["fewest", true]]) {
    const heads = ranked(data.importance, least).slice(0, 10);
    document.getElementById(id).replaceChildren(...heads.map((head) => card(head, data.importance)));
  }
}
drawRanking();
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  drawRanking();
  draw();
});
const linked = /^#(\d+)\.(\d+)$/.exec(location.hash);
const target = linked && data.heads.find((h) => h.layer + 1 === +linked[1] && h.head + 1 === +linked[2]);
if (target) open(target);
document.getElementById("head").addEventListener("close", () => history.replaceState(null, "", " "));
