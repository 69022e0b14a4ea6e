"use strict";
// Draws the heatmap and the bars. Names of the job are set as text alone.

const $ = (id) => document.getElementById(id);
const head = JSON.parse($("head").textContent);
const { rows, columns } = head;
const NONE = 65535;
const GUTTER = 128;
const TOP = head.changes.length ? 36 : 4;
const BOTTOM = 34;
const LATE_PX = 10;

const words = (name) => name.replaceAll("_", " ").replace(/^[cg]pu/, (unit) => unit.toUpperCase());
const FIGURES = [
  { name: "own", label: "own time per step, against the median of its group", signed: true, meaning: "Own time: a step less its waits for others. Red: the rank needs longer than the median, and the others wait for it. Blue: it needs less." },
  { name: "waits", label: "waits for others, ms per step", meaning: "Dark: it waits for other ranks or its device. A pale row among dark ones is a rank that the others wait for." },
  { name: "step", label: "length of a step, ms", meaning: "Ranks that step together have steps of the same length: dark columns are slow steps of all." },
  ...head.classes.map((name) => ({ name, label: `${words(name)}, ms per step`, meaning: `Time in ${words(name)}, as in the bars below.` })),
];

const milliseconds = (ms) => (ms >= 100 ? ms.toFixed(0) : ms >= 10 ? ms.toFixed(1) : ms.toFixed(2));
const time = (at) => new Date(head.first_ms + at).toISOString().slice(11, 23);
const firstStep = (column) => head.first_step + column * 2 ** head.shift;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const rgb = (name) => [1, 3, 5].map((at) => parseInt(colour(name).slice(at, at + 2), 16));

/** Planes by name, as functions of a cell's index that return ms, or NaN. */
async function load() {
  const packed = Uint8Array.from(atob($("cells").textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = new DataView(await new Response(stream).arrayBuffer());
  const ratio = Math.log1p(head.most_ms / head.unit_ms) / (NONE - 1);
  const cells = rows.length * columns;
  const starts = (cell) => data.getUint32(cell * 4, true);
  const planes = {};
  head.planes.forEach((name, plane) => {
    const values = new Float32Array(cells);
    for (let cell = 0; cell < cells; cell += 1) {
      const value = data.getUint16(cells * 4 + (plane * cells + cell) * 2, true);
      values[cell] = value === NONE ? NaN : head.unit_ms * Math.expm1(value * ratio);
    }
    planes[name] = values;
  });
  return { planes, starts };
}

function heatmap({ planes, starts }) {
  const canvas = $("heat");
  const value = (figure, cell) => (figure.signed ? planes.own[cell] - planes.typical[cell] : planes[figure.name][cell]);
  const slowness = rows.map((_, row) => {
    let [sum, count] = [0, 0];
    for (let cell = row * columns; cell < (row + 1) * columns; cell += 1) {
      const more = planes.own[cell] - planes.typical[cell];
      if (!Number.isNaN(more)) [sum, count] = [sum + more, count + 1];
    }
    return count ? sum / count : -Infinity;
  });
  let order = [];
  let tops = [];
  let [low, high] = [0, 1];
  let cursor = null;
  let picture = null; // Without the cursor.

  function sort() {
    order = rows.map((_, row) => row);
    if ($("order").value === "slowest") order.sort((a, b) => rows[b].late - rows[a].late || slowness[b] - slowness[a] || a - b);
    const height = Math.max(1, Math.min(24, Math.floor(600 / rows.length)));
    tops = [TOP];
    for (const row of order) tops.push(tops.at(-1) + (rows[row].late ? Math.max(height, LATE_PX) : height));
  }

  /** The ends of the scale: single cells, such as a checkpoint's, do not set it. */
  function scale(figure) {
    const ends = rows.map((_, row) => {
      const own = [];
      for (let cell = row * columns; cell < (row + 1) * columns; cell += 1) {
        const ms = value(figure, cell);
        if (!Number.isNaN(ms)) own.push(figure.signed ? Math.abs(ms) : ms);
      }
      own.sort((a, b) => a - b);
      return [own[Math.floor(own.length / 20)] ?? Infinity, own[Math.floor(own.length * 0.95)] ?? 0];
    });
    high = ends.reduce((most, [, end]) => Math.max(most, end), 0);
    low = figure.name === "step" ? ends.reduce((least, [end]) => Math.min(least, end), high) : 0;
    if (figure.signed) {
      // A twentieth of a step is what counts as late.
      const lengths = rows.map((row) => row.step_ms ?? 0).sort((a, b) => a - b);
      high = Math.max(high, lengths[Math.floor(lengths.length / 2)] / 20);
      low = -high;
    }
    if (figure.name === "step") high = Math.max(high, low * 1.1);
    if (high <= low) high = low + 1;
  }

  function ramp(figure) {
    const [middle, most, cold, hot] = ["--middle", "--most", "--low", "--high"].map(rgb);
    return (ms) => {
      const part = Math.max(0, Math.min(1, (ms - low) / (high - low)));
      const end = figure.signed ? (part < 0.5 ? cold : hot) : most;
      const by = figure.signed ? Math.abs(2 * part - 1) : part;
      return middle.map((from, at) => Math.round(from + by * (end[at] - from)));
    };
  }

  /** One pixel for each cell. */
  function pixels(figure) {
    const tint = ramp(figure);
    const image = new ImageData(columns, rows.length);
    for (let cell = 0; cell < rows.length * columns; cell += 1) {
      const ms = value(figure, cell);
      if (!Number.isNaN(ms)) image.data.set([...tint(ms), 255], cell * 4);
    }
    const small = document.createElement("canvas");
    [small.width, small.height] = [columns, rows.length];
    small.getContext("2d").putImageData(image, 0, 0);
    return small;
  }

  const width = () => canvas.clientWidth - GUTTER;
  const left = (column) => GUTTER + (column / columns) * width();
  const columnOf = (step) => (step - head.first_step) / 2 ** head.shift;

  function labels(context) {
    context.textBaseline = "middle";
    let free = -Infinity;
    const late = order.map((row, at) => (rows[row].late ? (tops[at] + tops[at + 1]) / 2 : NaN));
    order.forEach((row, at) => {
      const y = (tops[at] + tops[at + 1]) / 2;
      const near = late.some((other) => Math.abs(other - y) < 12);
      if (y - free < 12 || (near && !rows[row].late)) return;
      context.fillStyle = colour(rows[row].late ? "--slow" : "--dim");
      context.font = `${rows[row].late ? "bold " : ""}11px system-ui, sans-serif`;
      context.fillText(`${rows[row].late ? "▶ " : ""}${rows[row].name}`, 0, y, GUTTER - 8);
      free = y;
    });
  }

  function axis(context) {
    const bottom = tops.at(-1);
    const every = [1, 2, 5, 10, 20, 50, 100].find((each) => each * width() / columns > 90) ?? 200;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colour("--dim");
    context.textAlign = "center";
    for (let column = 0; column < columns; column += every) {
      const x = left(column);
      if (x > canvas.clientWidth - 40) break;
      context.fillRect(x, bottom, 1, 4);
      context.textAlign = column ? "center" : "left";
      context.fillText(`${column ? "" : "step "}${firstStep(column)}`, x, bottom + 11);
      const cell = rows.map((_, row) => row * columns + column).find((each) => !Number.isNaN(planes.step[each]));
      if (cell !== undefined) context.fillText(`${time(starts(cell)).slice(0, 8)}${column ? "" : " UTC"}`, x, bottom + 25);
    }
    context.textAlign = "left";
  }

  function changes(context) {
    let free = -Infinity;
    for (const change of head.changes) {
      const x = left(columnOf(change.step));
      const [from, to] = [left(columnOf(change.low)), left(columnOf(change.high))];
      context.fillStyle = colour("--slow");
      context.fillRect(from, TOP - 8, Math.max(3, to - from), 5);
      context.strokeStyle = colour("--fore");
      context.setLineDash([4, 3]);
      context.beginPath();
      context.moveTo(x, TOP - 14);
      context.lineTo(x, tops.at(-1));
      context.stroke();
      context.setLineDash([]);
      context.font = "bold 12px system-ui, sans-serif";
      const length = context.measureText(change.text).width;
      const at = Math.max(0, Math.min(x + 4, canvas.clientWidth - length));
      if (at > free) {
        context.fillText(change.text, at, 10);
        free = at + length + 12;
      }
    }
  }

  function paint() {
    if (width() <= 0) return;
    const figure = FIGURES[$("figure").selectedIndex];
    const ratio = window.devicePixelRatio || 1;
    const height = tops.at(-1) + BOTTOM;
    canvas.style.height = `${height}px`;
    [canvas.width, canvas.height] = [Math.round(canvas.clientWidth * ratio), Math.round(height * ratio)];
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    const small = pixels(figure);
    order.forEach((row, at) => {
      const gap = tops[at + 1] - tops[at] > 6 ? 1 : 0;
      context.drawImage(small, 0, row, columns, 1, GUTTER, tops[at], width(), tops[at + 1] - tops[at] - gap);
    });
    labels(context);
    axis(context);
    changes(context);
    picture = document.createElement("canvas");
    [picture.width, picture.height] = [canvas.width, canvas.height];
    picture.getContext("2d").drawImage(canvas, 0, 0);
    legend(figure);
    mark();
  }

  function legend(figure) {
    $("meaning").textContent = `${figure.meaning} No colour: no step.`;
    $("scale-low").textContent = `${figure.signed ? "−" : ""}${milliseconds(Math.abs(low))} ms`;
    $("scale-high").textContent = `${figure.signed ? "+" : ""}${milliseconds(high)} ms`;
    const context = $("scale-bar").getContext("2d");
    const tint = ramp(figure);
    for (let x = 0; x < 160; x += 1) {
      context.fillStyle = `rgb(${tint(low + (x / 159) * (high - low)).join(",")})`;
      context.fillRect(x, 0, 1, 12);
    }
  }

  /** Draws the cursor's frame, and says what is below it. */
  function mark() {
    if (!picture) return;
    const context = canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(picture, 0, 0);
    $("tip").hidden = !cursor;
    if (!cursor) return;
    const ratio = window.devicePixelRatio || 1;
    context.scale(ratio, ratio);
    const { at, column } = cursor;
    const box = [left(column), tops[at], left(column + 1) - left(column), tops[at + 1] - tops[at]];
    for (const [name, wide] of [["--back", 4], ["--fore", 2]]) {
      [context.strokeStyle, context.lineWidth] = [colour(name), wide];
      context.strokeRect(...box);
    }
    const place = canvas.getBoundingClientRect();
    tip(said(order[at], column), place.left + box[0] + box[2], place.top + box[1] + box[3]);
  }

  function said(row, column) {
    const cell = row * columns + column;
    const { name, host, pid, ranks } = rows[row];
    const [from, to] = [firstStep(column), firstStep(column + 1) - 1];
    const lines = [name, ranks > 1 ? `${host}; medians of ${ranks} ranks` : `${host}, pid ${pid}`];
    const steps = from === to ? `step ${from}` : `steps ${from} to ${to}`;
    const ms = (plane) => planes[plane][cell];
    if (Number.isNaN(ms("step"))) return [...lines, `${steps}: none of this rank is known`];
    const more = ms("own") - ms("typical");
    lines.push(`${steps}, from ${time(starts(cell))} UTC (aligned clock)`);
    lines.push(`own time ${milliseconds(ms("own"))} ms per step: ${more < 0 ? "−" : "+"}${milliseconds(Math.abs(more))} against the median`);
    lines.push(`waits for others ${milliseconds(ms("waits"))} ms, step ${milliseconds(ms("step"))} ms`);
    const classes = head.classes.filter((each) => ms(each) >= ms("step") / 100);
    lines.push(classes.map((each) => `${words(each)} ${milliseconds(ms(each))}`).join(", "));
    return lines;
  }

  function point(event) {
    const place = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - place.left, event.clientY - place.top];
    const at = tops.findIndex((top, row) => top <= y && y < (tops[row + 1] ?? 0));
    const column = Math.floor(((x - GUTTER) / width()) * columns);
    cursor = at >= 0 && column >= 0 && column < columns ? { at, column } : null;
    mark();
  }

  function key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -columns], End: [0, columns] };
    if (event.key === "Escape") cursor = null;
    else if (moves[event.key]) {
      const bound = (value, most) => Math.max(0, Math.min(most - 1, value));
      const [down, right] = cursor ? moves[event.key] : [0, 0];
      cursor = { at: bound((cursor?.at ?? 0) + down, rows.length), column: bound((cursor?.column ?? 0) + right, columns) };
    } else return;
    event.preventDefault();
    mark();
  }

  function choose() {
    sort();
    scale(FIGURES[$("figure").selectedIndex]);
    paint();
  }

  for (const figure of FIGURES) $("figure").append(new Option(figure.label, figure.name));
  if (rows.length > 64) $("order").value = "slowest";
  $("figure").addEventListener("change", choose);
  $("order").addEventListener("change", choose);
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerleave", () => mark((cursor = null)));
  canvas.addEventListener("blur", () => mark((cursor = null)));
  canvas.addEventListener("keydown", key);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  new ResizeObserver(paint).observe($("map"));
  choose();
}

function tip(lines, x, y) {
  const box = $("tip");
  box.replaceChildren(...lines.map((line) => Object.assign(document.createElement("div"), { textContent: line })));
  const [wide, high] = [box.offsetWidth, box.offsetHeight];
  box.style.left = `${Math.max(6, Math.min(x + 10, innerWidth - wide - 6))}px`;
  box.style.top = `${Math.max(6, y + 10 + high > innerHeight ? y - high - 30 : y + 10)}px`;
}

function bars() {
  const make = (name, className = "", text = "") => Object.assign(document.createElement(name), { className, textContent: text });
  head.classes.forEach((name, at) => {
    const item = make("li");
    item.append(make("i", `c${at}`), words(name));
    $("legend").append(item);
  });
  const titles = make("tr");
  for (const [text, kind] of [["rank", ""], ["host", ""], ["ms/step", "number"], ["share of the time", "all"]]) titles.append(make("th", kind, text));
  const body = make("tbody");
  for (const { name, host, late, step_ms, shares } of head.bars) {
    const row = make("tr", late ? "odd" : "");
    const bar = make("div", "bar");
    const parts = shares.map((share, at) => `${words(head.classes[at])} ${(share * 100).toFixed(1)} %`);
    shares.forEach((share, at) => {
      const part = make("i", `c${at}`);
      part.style.width = `${share * 100}%`;
      part.title = parts[at];
      bar.append(part);
    });
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", parts.filter((_, at) => shares[at] >= 0.001).join(", "));
    const cell = make("td", "all");
    cell.append(bar);
    row.append(make("th", "", name), make("td", "", host), make("td", "number", step_ms === null ? "" : milliseconds(step_ms)), cell);
    body.append(row);
  }
  const top = make("thead");
  top.append(titles);
  $("bars").append(top, body);
}

bars();
if (columns && $("heat")) load().then(heatmap);
