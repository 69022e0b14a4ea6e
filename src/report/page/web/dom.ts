// Elements. Texts are set by textContent alone.

type Attributes = Record<string, string | number | boolean | ((event: any) => void)>;

export function element<K extends keyof HTMLElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: (Node | string)[]): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (typeof value === "boolean") made.toggleAttribute(name, value);
    else made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

export function byId<T extends HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element #${id}`);
  return found as T;
}

/** A canvas's context for lengths in CSS pixels. */
export function sized(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  const [w, h] = [Math.max(Math.round(width * ratio), 1), Math.max(Math.round(height * ratio), 1)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d")!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** Draws as a single picture. Chromium prints what was drawn last by drawing it again, and of many figures only the last ones. */
export function drawnAtOnce(canvas: HTMLCanvasElement, draw: (picture: HTMLCanvasElement) => void): void {
  const picture = element("canvas");
  draw(picture);
  const context = canvas.getContext("2d")!;
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.drawImage(picture, 0, 0);
}

/** A colour of the style. */
export const colour = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Not there from file:// in some browsers.
    const area = element("textarea", { "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** The text at the pointer. */
export function showTip(lines: string[] | null, x: number, y: number): void {
  const tip = byId("tip");
  tip.hidden = !lines;
  if (!lines) return;
  tip.replaceChildren(...lines.map((line, at) => element("div", { class: at ? "" : "first" }, line)));
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(Math.min(x + 14, innerWidth - width - 8), 4)}px`;
  tip.style.top = `${y + 18 + height > innerHeight ? Math.max(y - height - 10, 4) : y + 18}px`;
}

/** Tabs that the arrow keys move between. */
export function tabList(label: string, tabs: { id: string; title: string }[], show: (id: string) => void): HTMLElement {
  const buttons = tabs.map(({ id, title }) => element("button", { role: "tab", "aria-controls": "table", "data-table": id, click: () => show(id) }, title));
  const list = element("div", { role: "tablist", "aria-label": label }, ...buttons);
  list.addEventListener("keydown", (event) => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    const next = buttons[buttons.indexOf(event.target as HTMLButtonElement) + by];
    if (!by || !next) return;
    event.preventDefault();
    next.focus();
    next.click();
  });
  return list;
}

export function chooseTab(id: string): void {
  byId("tabs")
    .querySelectorAll<HTMLElement>("[role=tablist]")
    .forEach((list) => {
      const tabs = [...list.querySelectorAll("button")];
      const chosen = tabs.find((tab) => tab.dataset.table === id);
      // One tab of each list can be reached by the Tab key.
      for (const tab of tabs) {
        tab.setAttribute("aria-selected", String(tab === chosen));
        tab.tabIndex = tab === (chosen ?? tabs[0]) ? 0 : -1;
      }
    });
}
