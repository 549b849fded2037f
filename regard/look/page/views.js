// The views. Each returns an element; `VIEWS` has their keys, titles and functions.

const message = (title, text) => make("div", {class: "message"}, make("strong", {}, title), text);
const pair = (map, i, j) => `${axisOf(map, "queries").labels[i]} → ${axisOf(map, "keys").labels[j]}`;

// --- all heads -------------------------------------------------------------------------------------------------------

async function gridView(map, width) {
  const maps = mapsOf(state.kind), small = await thumbnails(), most = Math.max(...maps.map((each) => each.heads));
  const first = maps[0], shape = Math.min(Math.max(axisOf(first, "queries").size / axisOf(first, "keys").size, 0.35), 1.6);
  const gutter = width < 600 ? 22 : 58, gap = width < 600 ? 3 : 6;
  const fit = Math.floor((width - gutter - gap * most - 8) / most);
  const side = Math.max(Math.min(fit, most < 5 ? 240 : 150), width < 600 ? 24 : 44);
  const grid = make("div", {class: "grid", style: `grid-template-columns: ${gutter}px repeat(${most}, ${side}px)`});
  grid.append(make("div", {class: "label"}));
  for (let head = 1; head <= most; head++) grid.append(make("div", {class: "label"}, side > 60 ? `head ${head}` : head));
  for (const each of maps) {
    grid.append(make("div", {class: "label row"}, width < 600 ? each.layer : `layer ${each.layer}`));
    for (let head = 1; head <= most; head++) {
      if (head > each.heads) { grid.append(make("div")); continue; }
      const name = `layer ${each.layer}, head ${head}`;
      const button = make("button", {
        title: name, "aria-label": name, style: `width:${side}px;height:${Math.round(side * shape)}px`,
        "data-layer": each.layer, "data-head": head,
        "aria-current": each.layer === state.layer && head === state.head,
        onclick: () => change({layer: each.layer, head, view: axisOf(each, "keys").textual ? "matrix" : "from"}),
      });
      const {rows, columns, bytes} = small.get(`${each.blob}:${head}`);
      const zero = Math.round(-each.low[head - 1] / each.step[head - 1]);  // the byte of the weight 0
      const values = Float32Array.from(bytes, (byte) => Math.max(byte - zero, 0));
      button.append(paint({rows, columns, values, high: Math.max(...values, 1)}));
      grid.append(button);
    }
  }
  grid.addEventListener("pointermove", (event) => {
    const button = event.target.closest("button");
    if (button) showTip(event, {text: `${button.title}: click for details`});
    else hideTip();
  });
  grid.addEventListener("pointerleave", hideTip);
  return grid;
}

// --- one head as a matrix --------------------------------------------------------------------------------------------

const CELL = {least: 11, most: 34}, LENS = 10;  // pixels of a cell with a label; cells beside that under the pointer

async function matrixView(map, width) {
  const matrix = await matrixOf(map, state.head);
  const holder = make("div", {class: "matrix"}), panel = make("div", {class: "panel"});
  const left = gutterOf(axisOf(map, "queries"), width), room = width - left - 40;
  const fits = room / matrix.columns >= CELL.least && matrix.rows <= 400;
  const lens = make("div", {class: "panel lens", hidden: fits ? "" : null});
  const range = {top: 0, left: 0, rows: matrix.rows, columns: matrix.columns};
  if (fits) {
    const cell = Math.min(Math.max(Math.floor(room / matrix.columns), CELL.least), CELL.most);
    panel.append(cellCanvas(map, matrix, range, cell));
  } else {
    panel.append(overviewCanvas(map, matrix, Math.min(room + left, 860), (i, j) => {
      const top = Math.min(Math.max(i - LENS, 0), Math.max(matrix.rows - 2 * LENS - 1, 0));
      const begin = Math.min(Math.max(j - LENS, 0), Math.max(matrix.columns - 2 * LENS - 1, 0));
      const part = {
        top, left: begin, rows: Math.min(2 * LENS + 1, matrix.rows), columns: Math.min(2 * LENS + 1, matrix.columns),
      };
      lens.replaceChildren(make("h2", {}, "details"), cellCanvas(map, matrix, part, width < 600 ? 12 : 16, [i, j]));
    }));
    panel.append(make("p", {class: "hint"}, "Every pixel shows the largest weight of its area. Move over the map for details, click to keep them."));
  }
  panel.append(legend(matrix.high));
  holder.append(panel, lens);
  return holder;
}

function gutterOf(axis, width) {
  const context = make("canvas").getContext("2d");
  context.font = "12px system-ui, sans-serif";
  const longest = Math.max(...axis.labels.slice(0, 2000).map((each) => context.measureText(each).width), 10);
  return Math.min(longest + 12, width < 600 ? 84 : 150);
}

function cut(context, text, most) {
  if (context.measureText(text).width <= most) return text;
  while (text.length > 1 && context.measureText(text + "…").width > most) text = text.slice(0, -1);
  return text + "…";
}

function cellCanvas(map, matrix, range, cell, center = null) {
  const queries = axisOf(map, "queries"), keys = axisOf(map, "keys");
  const left = gutterOf({labels: queries.labels.slice(range.top, range.top + range.rows)}, 500);
  const top = Math.min(gutterOf({labels: keys.labels.slice(range.left, range.left + range.columns)}, 500), 120);
  const [canvas, context] = sharpCanvas(left + range.columns * cell + 2, top + range.rows * cell + 2);
  canvas.className = "cells";
  const draw = (at) => {
    context.clearRect(0, 0, 1e5, 1e5);
    context.font = `${Math.min(cell - 1, 12.5)}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    for (let i = 0; i < range.rows; i++) {
      for (let j = 0; j < range.columns; j++) {
        const value = matrix.values[(range.top + i) * matrix.columns + range.left + j];
        const color = 4 * Math.round(255 * Math.min(share(value, matrix.high), 1));
        context.fillStyle = `rgb(${colors[color]}, ${colors[color + 1]}, ${colors[color + 2]})`;
        context.fillRect(left + j * cell, top + i * cell, cell - (cell > 9), cell - (cell > 9));
      }
    }
    context.textAlign = "right";
    for (let i = 0; i < range.rows; i++) {
      context.fillStyle = css(at && at[0] === range.top + i ? "--mark" : "--ink");
      context.fillText(cut(context, queries.labels[range.top + i], left - 8), left - 6, top + (i + 0.5) * cell);
    }
    context.textAlign = "left";
    for (let j = 0; j < range.columns; j++) {
      context.save();
      context.translate(left + (j + 0.5) * cell, top - 6);
      context.rotate(-Math.PI / 2);
      context.fillStyle = css(at && at[1] === range.left + j ? "--mark" : "--ink");
      context.fillText(cut(context, keys.labels[range.left + j], top - 8), 0, 0);
      context.restore();
    }
    if (at) outline(context, left + (at[1] - range.left) * cell, top + (at[0] - range.top) * cell, cell - 1, cell - 1, css("--mark"), 1.5);
  };
  draw(center);
  track(canvas, map, matrix, (x, y) => {
    const i = Math.floor((y - top) / cell), j = Math.floor((x - left) / cell);
    return i >= 0 && j >= 0 && i < range.rows && j < range.columns ? [range.top + i, range.left + j] : null;
  }, draw, () => draw(center), ([i]) => change({view: "from", query: i, by: false}));
  return canvas;
}

function overviewCanvas(map, matrix, width, onmove) {
  const height = Math.round(Math.min(Math.max(width * matrix.rows / matrix.columns, 90), window.innerHeight * 0.72, width));
  const [canvas, context] = sharpCanvas(width, height), ratio = window.devicePixelRatio || 1;
  canvas.className = "overview";
  const image = paint(pool(matrix, Math.round(height * ratio), Math.round(width * ratio)));
  let kept = false;
  const draw = (at) => {
    context.imageSmoothingEnabled = false;
    context.drawImage(image, 0, 0, width, height);
    if (!at) return;
    const x = (at[1] + 0.5) / matrix.columns * width, y = (at[0] + 0.5) / matrix.rows * height;
    context.fillStyle = css("--mark");
    context.globalAlpha = 0.6;
    context.fillRect(0, y, width, 1);
    context.fillRect(x, 0, 1, height);
    context.globalAlpha = 1;
  };
  draw(null);
  const place = (x, y) => [Math.floor(y / height * matrix.rows), Math.floor(x / width * matrix.columns)];
  const valid = (x, y) => x >= 0 && y >= 0 && x < width && y < height ? place(x, y) : null;
  track(canvas, map, matrix, valid, (at) => { if (!kept) { draw(at); onmove(...at); } }, () => {}, (at) => {
    kept = !kept;
    draw(at);
    onmove(...at);
  });
  onmove(Math.floor(matrix.rows / 2), Math.floor(matrix.columns / 2));
  return canvas;
}

function track(canvas, map, matrix, find, onmove, onleave, onclick) {
  const at = (event) => {
    const area = canvas.getBoundingClientRect();
    return find(event.clientX - area.left, event.clientY - area.top);
  };
  canvas.addEventListener("pointermove", (event) => {
    const found = at(event);
    if (!found) { hideTip(); return; }
    onmove(found);
    showTip(event, {text: pair(map, ...found), value: matrix.values[found[0] * matrix.columns + found[1]]});
  });
  canvas.addEventListener("pointerleave", () => { hideTip(); onleave(); });
  canvas.addEventListener("click", (event) => { const found = at(event); if (found) onclick(found); });
}

function legend(high) {
  const values = Float32Array.from({length: 256}, (_, i) => i);
  return make("div", {class: "legend"}, "0", paint({rows: 1, columns: 256, values, high: 255}), number(high));
}

// --- two columns with lines ------------------------------------------------------------------------------------------

const ENTRY = 24, HEADING = 34;  // pixels of a row, and of the heading above

async function linesView(map) {
  const matrix = await matrixOf(map, state.head), canvas = make("canvas");
  const sides = ["queries", "keys"], holder = make("div", {class: "panel lines"});
  let focus = null;  // [side, index] under the pointer
  const columns = sides.map((side, number) => {
    const axis = axisOf(map, side), column = make("div", {class: `column ${number ? "right" : "left"}`});
    axis.labels.forEach((label, i) => column.append(make("div", {class: "entry", "data-index": i, title: label}, label)));
    column.addEventListener("pointermove", (event) => {
      const entry = event.target.closest(".entry");
      if (!entry) return;
      focus = [number, Number(entry.dataset.index)];
      draw();
      const found = best(matrix, ...focus);
      showTip(event, {text: `most: ${number ? pair(map, found, focus[1]) : pair(map, focus[1], found)}`, value: valueAt(matrix, number, focus[1], found)});
    });
    column.addEventListener("pointerleave", () => { focus = null; hideTip(); draw(); });
    column.addEventListener("click", (event) => {
      const entry = event.target.closest(".entry");
      if (entry) change({query: Number(entry.dataset.index), by: number === 1});
    });
    return column;
  });
  const self = map.queries === map.keys, names = self ? ["from", "to"] : sides.map((side) => axisOf(map, side).name);
  const headings = make("div", {class: "columns headings"}, make("h2", {class: "left"}, names[0]), make("span"), make("h2", {}, names[1]));
  holder.append(headings, make("div", {class: "columns"}, columns[0], make("div", {class: "middle"}, canvas), columns[1]));
  const draw = () => drawLines(holder, canvas, matrix, focus || (state.query === null ? null : [state.by ? 1 : 0, state.query]));
  holder.addEventListener("scroll", draw, {passive: true});
  requestAnimationFrame(() => {
    if (state.query !== null) columns[state.by ? 1 : 0].querySelectorAll(".entry")[state.query]?.classList.add("chosen");
    draw();
  });
  return holder;
}

const valueAt = (matrix, side, own, other) => matrix.values[side ? other * matrix.columns + own : own * matrix.columns + other];
function best(matrix, side, own) {
  const values = side ? columnOf(matrix, own) : rowOf(matrix, own);
  return values.reduce((found, value, i) => value > values[found] ? i : found, 0);
}

function drawLines(holder, canvas, matrix, focus) {
  const width = canvas.parentElement.clientWidth, height = holder.clientHeight - HEADING;
  const [, context] = sharpCanvas(width, height, canvas);
  const y = (i) => (i + 0.5) * ENTRY - holder.scrollTop;
  const line = (i, j, value) => {
    if (value < 0.03) return;
    const from = y(i), to = y(j);
    if (Math.max(from, to) < 0 || Math.min(from, to) > height) return;
    context.globalAlpha = value;
    context.lineWidth = 0.6 + 2.2 * value;
    context.beginPath();
    context.moveTo(0, from);
    context.bezierCurveTo(width * 0.45, from, width * 0.55, to, width, to);
    context.stroke();
  };
  context.strokeStyle = css("--accent");
  const threshold = 0.06 * matrix.high;
  if (focus) {
    const values = focus[0] ? columnOf(matrix, focus[1]) : rowOf(matrix, focus[1]), high = Math.max(...values, 1e-9);
    values.forEach((value, i) => focus[0] ? line(i, focus[1], strength(value, high)) : line(focus[1], i, strength(value, high)));
    return;
  }
  const first = Math.max(Math.floor(holder.scrollTop / ENTRY) - 40, 0);
  const last = Math.min(first + Math.ceil(height / ENTRY) + 80, matrix.rows);
  for (let i = first; i < last; i++) {
    rowOf(matrix, i).forEach((value, j) => { if (value > threshold) line(i, j, 0.85 * strength(value, matrix.high)); });
  }
}

// --- from one position -----------------------------------------------------------------------------------------------

// The position that is chosen at first; null: the mean over all, where no position stands for the whole.
function firstQuery(axis, self) {
  const objects = axis.segments.find((each) => each.kind === "queries");
  if (objects) return objects.start + objects.scores.indexOf(Math.max(...objects.scores));
  if (!axis.segments.some((each) => each.kind === "tokens")) return null;
  return axis.textual && self ? Math.min(1, axis.size - 1) : 0;
}

async function fromView(map) {
  const matrix = await matrixOf(map, state.head), self = map.queries === map.keys;
  const sides = state.by ? ["keys", "queries"] : ["queries", "keys"];
  const [own, other] = sides.map((side) => axisOf(map, side));
  if (state.query === null || state.query >= own.size) state.query = firstQuery(own, self);
  const chosen = state.query, name = chosen === null ? "mean over all positions" : own.labels[chosen];
  const values = chosen === null ? meanOf(matrix, state.by) : state.by ? columnOf(matrix, chosen) : rowOf(matrix, chosen);
  const high = Math.max(...values, 1e-9), box = boxOf(own, chosen);
  const describe = (i) => ({text: `${name} ${state.by ? "←" : "→"} ${other.labels[i]}`, value: values[i]});
  const pick = (query) => change({query});
  const axes = make("div", {class: "axes"});
  if (self) {
    axes.append(make("div", {class: "panel"}, make("h2", {}, own.name), drawAxis(own, {values, high, chosen, box, onpick: pick, describe})));
  } else {
    const label = (i) => ({text: own.labels[i]}), wide = [own, other].some((axis) => axis.segments.some((each) => each.kind === "frames"));
    axes.classList.toggle("two", !wide);
    axes.append(
      make("div", {class: "panel"}, make("h2", {}, state.by ? `to this ${own.name}` : `from this ${own.name}`),
        drawAxis(own, {values: null, chosen, onpick: pick, describe: label})),
      make("div", {class: "panel"}, make("h2", {}, other.name),
        drawAxis(other, {values, high, chosen: null, box, onpick: null, describe})),
    );
  }
  return make("div", {class: "from"}, axes, topPanel(name, other, values, high));
}

function meanOf(matrix, by) {
  const rows = by ? matrix.columns : matrix.rows, sums = new Float32Array(by ? matrix.rows : matrix.columns);
  for (let i = 0; i < rows; i++) (by ? columnOf(matrix, i) : rowOf(matrix, i)).forEach((value, j) => { sums[j] += value / rows; });
  return sums;
}

function boxOf(axis, index) {
  if (index === null) return null;
  const objects = axis.segments.find((each) => each.kind === "queries" && index >= each.start && index < each.start + each.count);
  return objects ? objects.boxes[index - objects.start] : null;
}

function topPanel(title, other, values, high) {
  const order = Array.from(values.keys()).sort((a, b) => values[b] - values[a]).slice(0, 10);
  const list = make("ol", {class: "top"});
  for (const i of order) {
    const bar = make("i", {style: `width:${(100 * share(values[i], high)).toFixed(1)}%`});
    list.append(make("li", {}, make("span", {class: "name"}, other.labels[i]),
      make("span", {class: "value"}, number(values[i])), make("span", {class: "bar"}, bar)));
  }
  const direction = make("div", {class: "switch", role: "group", "aria-label": "direction"},
    make("button", {"aria-pressed": !state.by, onclick: () => change({by: false, query: turned()})}, "attends to"),
    make("button", {"aria-pressed": state.by, onclick: () => change({by: true, query: turned()})}, "attended by"));
  const name = make("h2", {style: "text-transform:none;letter-spacing:0;font-size:15px;color:var(--ink)"}, title);
  return make("div", {class: "panel"}, name, direction, list);
}

function turned() {
  const map = currentMap();
  return map.queries === map.keys ? state.query : null;
}

// --- n-grams beside the encoder of a classifier ----------------------------------------------------------------------

function decisionView(map) {
  const found = DATA.decision;
  if (!found) return message("No n-grams here", "Only a classifier may have n-grams beside its encoder.");
  const signed = found.contributions.map((row) => row[0]), values = Float32Array.from(signed, (value) => Math.max(value, 0));
  const high = Math.max(...values, 1e-9), axis = axisOf(map, "keys"), label = found.labels[0];
  const describe = (i) => ({text: `${axis.labels[i]} → ${label}`, value: signed[i]});
  const tokens = make("div", {class: "panel"}, make("h2", {}, `n-grams for ${label}, by ${axis.name}`),
    make("p", {class: "hint decision"}, found.summary), drawAxis(axis, {values, high, chosen: null, onpick: null, describe}),
    make("p", {class: "hint"}, "Attention shows the encoder alone. The values here are exact: those of all tokens and a constant sum to the logit of the n-grams."));
  const lists = found.labels.map((name, i) => {
    const list = make("ol", {class: "top"}), most = Math.max(...found.top[i].map((each) => each.value), 1e-9);
    for (const each of found.top[i]) {
      list.append(make("li", {title: each.kind}, make("span", {class: "name"}, visible(each.text)), make("span", {class: "value"}, number(each.value)),
        make("span", {class: "bar"}, make("i", {style: `width:${(100 * each.value / most).toFixed(1)}%`}))));
    }
    return make("div", {class: "panel"}, make("h2", {}, `${name}: encoder ${found.encoder[i].toFixed(2)}, n-grams ${found.ngrams[i].toFixed(2)}`), list);
  });
  return make("div", {class: "from"}, make("div", {class: "axes"}, tokens, ...lists.slice(1)), lists[0]);
}

// --- alignment -------------------------------------------------------------------------------------------------------

async function alignmentView() {
  const maps = mapsOf("cross"), map = state.kind === "cross" ? currentMap() : maps[Math.max(maps.length - 2, 0)];
  if (!map || !axisOf(map, "queries").textual) {
    return message("No alignment here", "Words align where a decoder reads a source by cross-attention.");
  }
  const matrix = await matrixOf(map, Math.min(state.head, map.heads)), queries = axisOf(map, "queries"), keys = axisOf(map, "keys");
  const rows = matrix.rows - (queries.ended && matrix.rows > 1), columns = matrix.columns - (keys.ended && matrix.columns > 1);
  const links = [];
  for (let i = 0; i < rows; i++) {
    const values = rowOf(matrix, i).subarray(0, columns);
    const found = values.reduce((top, value, j) => value > values[top] ? j : top, 0);
    links.push({i, j: found, value: values[found]});
  }
  const panel = make("div", {class: "panel alignment"});
  const about = `The most attended ${keys.name} of every ${queries.name} token: layer ${map.layer}, ${state.head ? `head ${state.head}` : `mean of ${map.heads} heads`}.`;
  const frames = keys.segments.find((each) => each.kind === "frames");
  if (frames) {
    const canvas = make("canvas", {style: "width:100%"}), marks = links.map(({i, j}) => ({place: j, label: bare(queries.labels[i])}));
    panel.append(make("div", {}, canvas));  // the canvas is as wide as its parent, without padding
    requestAnimationFrame(() => drawSpectrogram(canvas, frames, null, {marks}));
  } else if (keys.textual) panel.append(alignmentCanvas(map, links, rows, columns));
  else return message("No alignment here", "The source has no words; the picture shows where each position attends.");
  panel.append(make("p", {class: "hint"}, about));
  return panel;
}

function alignmentCanvas(map, links, rows, columns) {
  const texts = [axisOf(map, "keys").labels.slice(0, columns), axisOf(map, "queries").labels.slice(0, rows)].map((each) => each.map(bare));
  const measure = make("canvas").getContext("2d"), font = "15px system-ui, sans-serif";
  measure.font = font;
  const places = texts.map((words) => {
    let x = 10;
    return words.map((word) => { const half = measure.measureText(word).width / 2; x += 2 * half + 16; return x - half - 16; });
  });
  const ends = places.map((each, i) => (each.at(-1) || 0) + measure.measureText(texts[i].at(-1) || "").width / 2 + 10);
  const width = Math.max(...ends), height = 190;
  const [canvas, context] = sharpCanvas(width, height), shift = ends.map((end) => (width - end) / 2);
  const draw = (only) => {
    context.clearRect(0, 0, width, height);
    context.strokeStyle = css("--accent");
    for (const {i, j, value} of links) {
      context.globalAlpha = only === null || only === i ? 0.35 + 0.65 * Math.min(value, 1) : 0.12;
      context.lineWidth = 1 + 3 * Math.min(value, 1);
      const from = places[0][j] + shift[0], to = places[1][i] + shift[1];
      context.beginPath();
      context.moveTo(from, 38);
      context.bezierCurveTo(from, 95, to, 95, to, 150);
      context.stroke();
    }
    context.globalAlpha = 1;
    context.font = font;
    context.textAlign = "center";
    context.fillStyle = css("--ink");
    texts[0].forEach((word, j) => context.fillText(word, places[0][j] + shift[0], 28));
    context.fillStyle = css("--accent");
    texts[1].forEach((word, i) => context.fillText(word, places[1][i] + shift[1], 170));
  };
  draw(null);
  canvas.addEventListener("pointermove", (event) => {
    const area = canvas.getBoundingClientRect(), x = event.clientX - area.left, down = event.clientY - area.top > 95;
    const own = places[down ? 1 : 0].map((each) => Math.abs(each + shift[down ? 1 : 0] - x)), near = own.indexOf(Math.min(...own));
    const link = down ? links[near] : links.find((each) => each.j === near);
    draw(link ? link.i : null);
    if (link) showTip(event, {text: pair(map, link.i, link.j), value: link.value});
    else hideTip();
  });
  canvas.addEventListener("pointerleave", () => { hideTip(); draw(null); });
  return canvas;
}
