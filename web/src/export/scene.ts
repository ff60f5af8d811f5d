// A picture as a list of shapes, written either as PNG (through a canvas) or as SVG.
export type Shape =
  | {
      kind: "text";
      x: number;
      y: number;
      text: string;
      size: number;
      anchor: "start" | "middle" | "end";
      turned?: boolean;
      /** Outlined in the paper's colour, to be read on a picture. */
      halo?: boolean;
    }
  | { kind: "frame"; x: number; y: number; width: number; height: number }
  | { kind: "image"; x: number; y: number; width: number; height: number; canvas: HTMLCanvasElement };

export interface Scene {
  width: number;
  height: number;
  ink: string;
  paper: string;
  shapes: Shape[];
}

const FONT = "system-ui, sans-serif";

/** Ink and paper of pictures. */
export const PAPERS = {
  light: { ink: "#1b1f24", paper: "#ffffff" },
  dark: { ink: "#e6e8eb", paper: "#14171b" },
};

/** Have the browser save bytes under a name. */
export function save(root: HTMLElement, blob: Blob, name: string): void {
  const url = URL.createObjectURL(blob),
    link = document.createElement("a");
  link.href = url;
  link.download = name;
  root.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** The scene on a canvas, `ratio` pixels a unit. */
export function toCanvas(scene: Scene, ratio = 2): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = scene.width * ratio;
  canvas.height = scene.height * ratio;
  const context = canvas.getContext("2d")!;
  context.scale(ratio, ratio);
  context.fillStyle = scene.paper;
  context.fillRect(0, 0, scene.width, scene.height);
  context.imageSmoothingEnabled = false;
  context.strokeStyle = context.fillStyle = scene.ink;
  for (const shape of scene.shapes) {
    if (shape.kind === "frame") context.strokeRect(shape.x, shape.y, shape.width, shape.height);
    else if (shape.kind === "image") context.drawImage(shape.canvas, shape.x, shape.y, shape.width, shape.height);
    else {
      context.save();
      context.font = `${shape.size}px ${FONT}`;
      context.textAlign = shape.anchor === "middle" ? "center" : shape.anchor;
      context.translate(shape.x, shape.y);
      if (shape.turned) context.rotate(-Math.PI / 2);
      if (shape.halo) {
        context.strokeStyle = scene.paper;
        context.lineWidth = 3;
        context.lineJoin = "round";
        context.strokeText(shape.text, 0, 0);
      }
      context.fillText(shape.text, 0, 0);
      context.restore();
    }
  }
  return canvas;
}

/** The scene as PNG bytes. */
export function toPng(scene: Scene): Promise<Blob> {
  return new Promise((resolve, reject) =>
    toCanvas(scene).toBlob(
      (blob) => (blob ? resolve(blob) : reject(new Error("the picture is too large for this browser"))),
      "image/png",
    ),
  );
}

/** The scene as SVG text; text stays text, maps are embedded pictures. */
export function toSvg(scene: Scene): string {
  const space = "http://www.w3.org/2000/svg",
    root = document.createElementNS(space, "svg");
  const put = (tag: string, attributes: Record<string, string | number>, text = "") => {
    const element = document.createElementNS(space, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
    element.textContent = text;
    root.append(element);
  };
  for (const [name, value] of Object.entries({
    width: scene.width,
    height: scene.height,
    viewBox: `0 0 ${scene.width} ${scene.height}`,
    "font-family": FONT,
  }))
    root.setAttribute(name, String(value));
  put("rect", { width: scene.width, height: scene.height, fill: scene.paper });
  for (const shape of scene.shapes) {
    const { x, y } = shape;
    if (shape.kind === "frame")
      put("rect", { x, y, width: shape.width, height: shape.height, fill: "none", stroke: scene.ink });
    else if (shape.kind === "image")
      put("image", {
        x,
        y,
        width: shape.width,
        height: shape.height,
        preserveAspectRatio: "none",
        "image-rendering": "pixelated",
        href: shape.canvas.toDataURL("image/png"),
      });
    else
      put(
        "text",
        {
          x,
          y,
          "font-size": shape.size,
          fill: scene.ink,
          "text-anchor": shape.anchor,
          ...(shape.halo
            ? { stroke: scene.paper, "stroke-width": 3, "stroke-linejoin": "round", "paint-order": "stroke" }
            : {}),
          ...(shape.turned ? { transform: `rotate(-90 ${x} ${y})` } : {}),
        },
        shape.text,
      );
  }
  return new XMLSerializer().serializeToString(root);
}
