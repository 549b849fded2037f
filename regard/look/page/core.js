"use strict";
// Data, decompression, state and colors. Text of users reaches the page by textContent alone.

const DATA = JSON.parse(document.getElementById("data").textContent);
const KINDS = {
  encoder: "Encoder self-attention", decoder: "Decoder self-attention", cross: "Cross-attention",
  order: "Positional attention", rollout: "Rollout",
};
const state = {view: "grid", kind: "", layer: 1, head: 0, query: null, by: false, gamma: 0.6, dark: false};
const $ = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const visible = (label) => label.replace(/\s/g, "·");  // white space of a token

// --- axes ------------------------------------------------------------------------------------------------------------

for (const axis of DATA.axes) {
  axis.labels = [];
  for (const segment of axis.segments) {
    segment.start = axis.labels.length;
    if (segment.kind === "patches") {
      for (let i = 0; i < segment.count; i++) {
        axis.labels.push(`row ${Math.floor(i / segment.columns) + 1}, column ${i % segment.columns + 1}`);
      }
    } else if (segment.kind === "frames") {
      for (let i = 0; i < segment.count; i++) axis.labels.push(`${(segment.first + i * segment.step).toFixed(2)} s`);
    } else if (segment.kind === "queries") {
      segment.labels.forEach((label, i) => axis.labels.push(`${label} ${segment.scores[i].toFixed(2)}`));
    } else {
      for (const label of segment.labels) axis.labels.push(visible(label));
    }
  }
  axis.size = axis.labels.length;
  axis.textual = axis.segments.every((each) => each.kind === "tokens");
}

const mapsOf = (kind) => DATA.maps.filter((each) => each.kind === kind);
const kindsShown = () => [...new Set(DATA.maps.map((each) => each.kind))].filter((kind) => kind !== "rollout");
const axisOf = (map, side) => DATA.axes[map[side]];
const bare = (label) => visible(label.replace(/^(▁|Ġ|##)(?=.)/, ""));

// --- weights ---------------------------------------------------------------------------------------------------------

const CACHE = new Map();  // "map:head" -> promise of a matrix; the most recent ones

async function inflate(number) {
  const text = atob($("b" + number).textContent);
  const packed = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function remember(key, build) {
  const found = CACHE.get(key) || build();
  CACHE.delete(key);
  CACHE.set(key, found);
  if (CACHE.size > 40) CACHE.delete(CACHE.keys().next().value);
  return found;
}

async function decodeHead(map, head) {
  const bytes = await inflate(map.blob + head);
  const values = new Float32Array(bytes.length), low = map.low[head], step = map.step[head];
  for (let i = 0; i < bytes.length; i++) values[i] = low + step * bytes[i];
  return values;
}

// The weights of a head (from 1), or the mean over the heads (0): {rows, columns, values, low, high}.
function matrixOf(map, head) {
  const key = `${map.blob}:${head}`;
  return remember(key, async () => {
    const rows = axisOf(map, "queries").size, columns = axisOf(map, "keys").size;
    let values;
    if (head > 0) values = await decodeHead(map, head - 1);
    else {
      values = new Float32Array(rows * columns);
      for (let i = 0; i < map.heads; i++) {
        const own = await decodeHead(map, i);
        for (let j = 0; j < own.length; j++) values[j] += own[j] / map.heads;
      }
    }
    let low = 0, high = 1e-9;
    for (const value of values) { if (value > high) high = value; if (value < low) low = value; }
    return {rows, columns, values, low, high};
  });
}

const rowOf = (matrix, i) => matrix.values.subarray(i * matrix.columns, (i + 1) * matrix.columns);
function columnOf(matrix, j) {
  return Float32Array.from({length: matrix.rows}, (_, i) => matrix.values[i * matrix.columns + j]);
}

let overview = null;
async function thumbnails() {
  if (!overview) {
    overview = (async () => {
      const bytes = await inflate(DATA.overview), found = new Map();
      let start = 0;
      for (const map of DATA.maps) {
        const rows = Math.min(axisOf(map, "queries").size, DATA.thumbnail);
        const columns = Math.min(axisOf(map, "keys").size, DATA.thumbnail);
        for (let head = 0; head < map.heads; head++) {
          found.set(`${map.blob}:${head + 1}`, {rows, columns, bytes: bytes.subarray(start, start + rows * columns)});
          start += rows * columns;
        }
      }
      return found;
    })();
  }
  return overview;
}

const currentMap = () => mapsOf(state.kind).find((each) => each.layer === state.layer) || mapsOf(state.kind)[0];
const number = (value) => Math.abs(value) >= 0.0995 ? value.toFixed(2) : Math.abs(value) >= 0.00095 ? value.toFixed(3) : value.toFixed(4);

// --- colors ----------------------------------------------------------------------------------------------------------

const STOPS = {
  light: [[251, 252, 253], [221, 233, 246], [141, 185, 226], [43, 112, 184], [10, 42, 92]],
  dark: [[18, 24, 32], [24, 51, 82], [38, 105, 165], [112, 190, 244], [242, 250, 255]],
};
const HEAT = [[255, 214, 102], [255, 159, 28], [230, 57, 70], [157, 2, 8]];

function ramp(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1), i = Math.min(Math.floor(place), stops.length - 2);
  return stops[i].map((each, channel) => each + (stops[i + 1][channel] - each) * (place - i));
}

let colors = new Uint8ClampedArray(1024);
function fillColors() {
  const stops = STOPS[state.dark ? "dark" : "light"];
  for (let i = 0; i < 256; i++) colors.set([...ramp(stops, (i / 255) ** state.gamma), 255], 4 * i);
}

const share = (value, high) => Math.max(value, 0) / (high || 1);
const strength = (value, high) => Math.min(share(value, high), 1) ** state.gamma;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A canvas for sharp lines and letters: drawing uses CSS pixels.
function sharpCanvas(width, height, canvas = make("canvas")) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(Math.round(width * ratio), 1);
  canvas.height = Math.max(Math.round(height * ratio), 1);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return [canvas, context];
}

// The largest value of each area, so that no strong weight disappears in an overview.
function pool(matrix, rows, columns) {
  if (rows >= matrix.rows && columns >= matrix.columns) return matrix;
  rows = Math.min(rows, matrix.rows); columns = Math.min(columns, matrix.columns);
  const values = new Float32Array(rows * columns).fill(-Infinity);
  for (let i = 0; i < matrix.rows; i++) {
    const row = Math.floor(i * rows / matrix.rows) * columns;
    for (let j = 0; j < matrix.columns; j++) {
      const place = row + Math.floor(j * columns / matrix.columns), value = matrix.values[i * matrix.columns + j];
      if (value > values[place]) values[place] = value;
    }
  }
  return {rows, columns, values, low: matrix.low, high: matrix.high};
}

function paint(matrix) {
  const image = new ImageData(matrix.columns, matrix.rows);
  for (let i = 0; i < matrix.values.length; i++) {
    const color = 4 * Math.round(255 * Math.min(share(matrix.values[i], matrix.high), 1));
    for (let channel = 0; channel < 4; channel++) image.data[4 * i + channel] = colors[color + channel];
  }
  const canvas = make("canvas");
  canvas.width = matrix.columns; canvas.height = matrix.rows;
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
