// An axis as people read it: words, a picture, a spectrogram, objects. `options` has values (one for every position, or
// null), high (their largest), chosen, box (drawn over a picture), onpick(index) and describe(index).

function drawAxis(axis, options) {
  const parts = axis.segments.map((segment) => DRAW[segment.kind](axis, segment, options));
  return make("div", {class: "axis"}, ...parts);
}

const DRAW = {
  tokens(axis, segment, options) {
    const flow = make("div", {class: "flow"});
    segment.labels.forEach((label, i) => {
      const index = segment.start + i, special = /^(\[.+\]|<.+>|□|■)$/.test(label);
      const token = make("span", {class: "token", "data-index": index, tabindex: i === 0 ? 0 : -1}, bare(label));
      token.classList.toggle("space", /^(▁|Ġ)/.test(label) || (!special && !label.startsWith("##") && !/[▁Ġ]/.test(axis.labels.join(""))));
      token.classList.toggle("special", special);
      shade(token, index, options);
      flow.append(token);
    });
    listen(flow, options);
    return flow;
  },

  queries(axis, segment, options) {
    const list = make("div", {class: "queries"});
    const order = segment.scores.map((_, i) => i).sort((a, b) => segment.scores[b] - segment.scores[a]);
    for (const i of order) {
      const token = make("span", {class: "token", "data-index": segment.start + i}, axis.labels[segment.start + i]);
      token.classList.toggle("weak", segment.scores[i] < 0.5);
      shade(token, segment.start + i, options);
      list.append(token);
    }
    listen(list, options);
    if (!options.values) return list;
    const boxes = segment.boxes.map((box, i) => ({box, value: strength(options.values[segment.start + i], options.high)}));
    return make("div", {}, list, picture(segment.image, {boxes, chosen: options.box}));
  },

  patches(axis, segment, options) {
    const values = options.values ? options.values.subarray(segment.start, segment.start + segment.count) : null;
    const chosen = options.chosen === null ? null : options.chosen - segment.start;
    const canvas = picture(segment.image, {segment, values, high: options.high, chosen, box: options.box});
    const index = (event) => {
      const area = canvas.getBoundingClientRect();
      const column = Math.floor((event.clientX - area.left) / area.width * segment.columns);
      const row = Math.floor((event.clientY - area.top) / area.height * segment.rows);
      const inside = row >= 0 && column >= 0 && row < segment.rows && column < segment.columns;
      return inside ? segment.start + row * segment.columns + column : null;
    };
    follow(canvas, index, options);
    return make("div", {class: "picture"}, canvas);
  },

  frames(axis, segment, options) {
    const values = options.values ? options.values.subarray(segment.start, segment.start + segment.count) : null;
    const holder = make("div", {class: "sound"});
    const canvas = make("canvas", {style: "width:100%;cursor:crosshair"});
    holder.append(canvas);
    const draw = () => drawSpectrogram(canvas, segment, values, options);
    requestAnimationFrame(draw);
    follow(canvas, (event) => {
      const area = canvas.getBoundingClientRect();
      const place = Math.floor((event.clientX - area.left) / area.width * segment.count);
      return place >= 0 && place < segment.count ? segment.start + place : null;
    }, options);
    return holder;
  },
};

function shade(token, index, options) {
  if (options.values) {
    const value = strength(options.values[index], options.high);
    token.style.setProperty("--v", value.toFixed(3));
    token.classList.toggle("strong", value > 0.58);
  }
  token.classList.toggle("chosen", index === options.chosen);
}

function listen(list, options) {
  const index = (event) => {
    const token = event.target.closest("[data-index]");
    return token ? Number(token.dataset.index) : null;
  };
  follow(list, index, options);
}

// Hover shows a value, a click chooses.
function follow(element, index, options) {
  element.addEventListener("pointermove", (event) => {
    const found = index(event);
    if (found === null) hideTip();
    else showTip(event, options.describe(found));
  });
  element.addEventListener("pointerleave", hideTip);
  if (!options.onpick) return;
  element.addEventListener("click", (event) => {
    const found = index(event);
    if (found !== null) options.onpick(found);
  });
}

// --- pictures --------------------------------------------------------------------------------------------------------

const IMAGES = new Map();
function loadImage(url) {
  if (!IMAGES.has(url)) {
    IMAGES.set(url, new Promise((done) => {
      const image = new Image();
      image.onload = () => done(image);
      image.src = url;
    }));
  }
  return IMAGES.get(url);
}

// The picture with weights over its patches, the chosen patch, boxes of queries, and the box of the chosen query.
function picture(about, {segment, values, high, chosen = null, box, boxes}) {
  const scale = Math.max(1, 640 / Math.max(about.width, about.height));
  const width = Math.round(about.width * scale), height = Math.round(about.height * scale);
  const canvas = make("canvas", {width, height, style: `width:100%;max-width:${width}px`, class: "overlay"});
  loadImage(about.url).then((image) => {
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = about.width > 100;
    context.drawImage(image, 0, 0, width, height);
    if (values && segment) {
      context.fillStyle = state.dark ? "rgba(8, 12, 18, .52)" : "rgba(20, 26, 36, .42)";
      context.fillRect(0, 0, width, height);
      const across = width / segment.columns, down = height / segment.rows;
      for (let i = 0; i < segment.count; i++) {
        const value = strength(values[i], high), [red, green, blue] = ramp(HEAT, 1 - value);
        context.fillStyle = `rgba(${red | 0}, ${green | 0}, ${blue | 0}, ${(0.82 * value).toFixed(3)})`;
        const x = (i % segment.columns) * across, y = Math.floor(i / segment.columns) * down;
        context.fillRect(x, y, across + 0.5, down + 0.5);
        if (i === chosen) outline(context, x, y, across, down, "#ffffff", 3);
      }
    }
    for (const each of boxes || []) drawBox(context, each.box, width, height, each.value);
    if (box) drawBox(context, box, width, height, 1, "#4ade80");
  });
  return canvas;
}

function outline(context, x, y, width, height, color, line) {
  context.lineWidth = line + 2;
  context.strokeStyle = "rgba(0, 0, 0, .6)";
  context.strokeRect(x, y, width, height);
  context.lineWidth = line;
  context.strokeStyle = color;
  context.strokeRect(x, y, width, height);
}

function drawBox(context, [left, top, right, bottom], width, height, alpha, color = "#ffb703") {
  if (alpha < 0.04) return;
  context.globalAlpha = alpha;
  outline(context, left * width, top * height, (right - left) * width, (bottom - top) * height, color, 3);
  context.globalAlpha = 1;
}

// --- sound -----------------------------------------------------------------------------------------------------------

// The spectrogram, the weights over time as an area below it, seconds, and marks [{place, label}].
function drawSpectrogram(canvas, segment, values, {high, chosen = null, marks = []} = {}) {
  const width = Math.max(canvas.parentElement ? canvas.parentElement.clientWidth : 600, 200);
  const levels = marks.length ? 4 : 0, above = 18 * levels, body = 150, below = values ? 64 : 0;
  const [, context] = sharpCanvas(width, above + body + below + 22, canvas);
  const x = (place) => (place + 0.5) / segment.count * width;
  const finish = () => {
    const length = segment.count * segment.step;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = css("--soft");
    context.textAlign = "center";
    const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20].find((each) => length / each * 46 < width) || 60;
    for (let second = 0; second <= length; second += step) {
      const at = (second - segment.first + segment.step / 2) / length * width;
      if (at < 8 || at > width - 14) continue;
      context.fillRect(at, above + body + below, 1, 4);
      context.fillText(`${+second.toFixed(1)} s`, at, above + body + below + 16);
    }
    if (values) drawArea(context, segment, values, high, x, above, body, below, width);
    if (chosen !== null) outline(context, x(chosen) - 1, above, 2, body, css("--mark"), 1);
    drawMarks(context, marks, x, above, body, levels);
  };
  if (!segment.image) { finish(); return; }
  loadImage(segment.image.url).then((image) => {
    context.save();
    context.imageSmoothingEnabled = true;
    if (!state.dark) context.filter = "invert(1)";
    context.drawImage(image, 0, above, width, body);
    context.restore();
    finish();
  });
}

function drawArea(context, segment, values, high, x, above, body, below, width) {
  const band = width / segment.count;
  values.forEach((value, i) => {
    context.fillStyle = `rgba(230, 90, 30, ${(0.7 * strength(value, high)).toFixed(3)})`;
    context.fillRect(x(i) - band / 2, above, band + 0.5, body);
  });
  context.beginPath();
  context.moveTo(0, above + body + below);
  values.forEach((value, i) => context.lineTo(x(i), above + body + below - (below - 8) * Math.min(share(value, high), 1)));
  context.lineTo(width, above + body + below);
  context.closePath();
  context.fillStyle = `rgba(${css("--accent-rgb")}, .45)`;
  context.fill();
}

function drawMarks(context, marks, x, above, body, levels) {
  const ends = new Array(levels).fill(-Infinity);
  context.textAlign = "center";
  context.font = "600 12px system-ui, sans-serif";
  for (const {place, label} of [...marks].sort((a, b) => a.place - b.place)) {
    const at = x(place), half = context.measureText(label).width / 2 + 3;
    let level = ends.findIndex((end) => at - half > end);
    if (level < 0) level = ends.indexOf(Math.min(...ends));
    ends[level] = at + half;
    context.strokeStyle = css("--mark");
    context.globalAlpha = 0.75;
    context.beginPath();
    context.moveTo(at, above - 18 * level - 2);
    context.lineTo(at, above + body);
    context.stroke();
    context.globalAlpha = 1;
    context.fillStyle = css("--ink");
    context.fillText(label, at, above - 18 * level - 5);
  }
}

// --- the value under the pointer -------------------------------------------------------------------------------------

function showTip(event, {text, value}) {
  const tip = $("tip");
  tip.replaceChildren(text);
  if (value !== undefined) tip.append("  ", make("b", {}, number(value)));
  $("readout").textContent = tip.textContent;
  tip.hidden = false;
  const area = tip.getBoundingClientRect();
  const left = event.clientX + 14 + area.width > window.innerWidth ? event.clientX - area.width - 10 : event.clientX + 14;
  const top = event.clientY + 18 + area.height > window.innerHeight ? event.clientY - area.height - 10 : event.clientY + 18;
  tip.style.left = `${Math.max(left, 4)}px`;
  tip.style.top = `${Math.max(top, 4)}px`;
}

function hideTip() {
  $("tip").hidden = true;
  $("readout").textContent = "";
}
