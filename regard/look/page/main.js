// Controls: tabs, layers, heads, keys, colors.

const VIEWS = {
  grid: {key: "g", title: () => "All heads", draw: gridView},
  matrix: {key: "m", title: () => "Matrix", draw: matrixView},
  lines: {key: "l", title: () => "Lines", draw: linesView},
  from: {key: "w", title: fromTitle, draw: fromView},
  alignment: {key: "a", title: () => "Alignment", draw: alignmentView},
  decision: {key: "n", title: () => "N-grams", draw: decisionView},
  rollout: {key: "r", title: () => "Rollout", draw: rolloutView},
};
const HELP = [
  [["←", "→"], "previous, next head (0: the mean)"], [["↑", "↓"], "previous, next layer"], [["k"], "other kind of attention"],
  [["[", "]"], "previous, next position"], [["d"], "attends to, attended by"], [["0"], "mean over the heads"], [["t"], "dark or light"], [["?"], "these keys"],
];

function fromTitle() {
  const kinds = DATA.maps.flatMap((map) => axisOf(map, "keys").segments.map((each) => each.kind));
  return kinds.includes("patches") ? "Picture" : kinds.includes("frames") ? "Spectrogram" : "From this word";
}

async function rolloutView() {
  const maps = mapsOf("rollout");
  if (!maps.length) {
    const encoder = mapsOf("encoder").length;
    return message("No rollout here", encoder
      ? "Rollout multiplies the attention of all encoder layers, and not all of them are recorded."
      : "Rollout multiplies the attention of all layers of an encoder. In a causal decoder later positions see more than earlier ones, and rollout would count that as attention.");
  }
  const map = maps.find((each) => each.layer === state.layer) || maps.at(-1), kept = [state.head, state.by];
  state.head = 1;
  const view = await fromView(map);
  state.head = kept[0];
  view.querySelector(".axes").prepend(make("p", {class: "hint wide", style: "margin:0"}, `How layers 1 to ${map.layer} combine: the mean over the heads and the residual connection, multiplied.`));
  return view;
}

// --- drawing ---------------------------------------------------------------------------------------------------------

let drawing = 0;
async function render() {
  const own = ++drawing, main = $("main"), map = currentMap();
  const width = main.clientWidth - (window.innerWidth < 720 ? 24 : 40);
  showControls(map);
  hideTip();
  const element = await VIEWS[state.view].draw(map, width);
  if (own !== drawing) return;  // something else was asked for meanwhile
  const kept = main.querySelector(".flow, .queries, .lines")?.scrollTop || 0;
  main.replaceChildren(element);
  const scrolled = main.querySelector(".flow, .queries, .lines");
  if (scrolled) scrolled.scrollTop = kept;
  if (own === 1) performance.mark("ready");
  main.dataset.ready = `${state.view} ${state.kind} ${state.layer} ${state.head}`;
}

function change(changes) {
  const before = currentMap();
  Object.assign(state, changes);
  const map = currentMap();
  state.layer = map.layer;
  state.head = Math.min(state.head, map.heads);
  if (before && (before.queries !== map.queries || before.keys !== map.keys) && !("query" in changes)) {
    state.query = null;
  }
  render();
}

function showControls(map) {
  for (const button of $("tabs").children) {
    button.setAttribute("aria-selected", button.dataset.view === state.view);
    if (button.dataset.view === state.view) button.scrollIntoView({block: "nearest", inline: "nearest"});
  }
  for (const button of $("kinds").children) button.setAttribute("aria-pressed", button.dataset.kind === state.kind);
  const count = DATA.counts[state.kind] || mapsOf(state.kind).length;
  $("layer").querySelector("output").textContent = `layer ${map.layer} of ${count}`;
  $("head").querySelector("output").textContent = state.head ? `head ${state.head} of ${map.heads}` : `mean of ${map.heads}`;
  const notes = [map.note];
  if (DATA.largest) notes.push(`the ${DATA.largest} largest weights of every query`);
  for (const [kind, text] of Object.entries(DATA.leftOut)) notes.push(`${KINDS[kind]} left out: ${text}`);
  $("note").textContent = notes.filter(Boolean).join(" · ");
}

function setTheme(dark) {
  state.dark = dark;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  fillColors();
}

// --- controls --------------------------------------------------------------------------------------------------------

function step(name, by) {
  if (name === "head") {
    const most = currentMap().heads + 1;
    change({head: (state.head + by + most) % most});
  } else {
    const layers = mapsOf(state.kind).map((each) => each.layer), place = layers.indexOf(state.layer) + by;
    if (place >= 0 && place < layers.length) change({layer: layers[place]});
  }
}

function nextKind() {
  const kinds = kindsShown();
  change({kind: kinds[(kinds.indexOf(state.kind) + 1) % kinds.length]});
}

function moveQuery(by) {
  const axis = axisOf(currentMap(), state.by ? "keys" : "queries");
  change({query: ((state.query ?? -1) + by + axis.size) % axis.size});
}

function toggleHelp() {
  const shown = $("keys").toggleAttribute("hidden") === false;
  $("help").setAttribute("aria-expanded", shown);
}

const ACTIONS = {
  ArrowLeft: () => step("head", -1), ArrowRight: () => step("head", 1),
  ArrowUp: () => step("layer", -1), ArrowDown: () => step("layer", 1),
  "[": () => moveQuery(-1), "]": () => moveQuery(1), k: nextKind, 0: () => change({head: 0}), d: () => change({by: !state.by, query: turned()}),
  t: () => { setTheme(!state.dark); render(); }, "?": toggleHelp,
};
for (const [name, view] of Object.entries(VIEWS)) ACTIONS[view.key] = () => show(name);

function show(view) {
  const rollouts = mapsOf("rollout");
  if (view !== "rollout" || !rollouts.length || state.view === view) change({view});
  else change({view, kind: "encoder", layer: rollouts.at(-1).layer});
}

// The texts that are read and written, as people write them.
function plainText() {
  const main = mapsOf(mapsOf("cross").length ? "cross" : kindsShown()[0])[0];
  const texts = [...new Set([main.keys, main.queries])].map((number) => DATA.axes[number]).filter((axis) => axis.textual);
  const read = (axis) => axis.labels.filter((label) => !/^(\[.+\]|<.+>|□|■)$/.test(label)).join(/[▁Ġ]|##/.test(axis.labels.join("")) ? "" : " ");
  return texts.map((axis) => read(axis).replace(/ ?##/g, "").replace(/[▁Ġ]/g, " ").trim()).join("  →  ");
}

function listenToControls() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
    const action = ACTIONS[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  for (const name of ["layer", "head"]) {
    for (const button of $(name).querySelectorAll("button")) button.onclick = () => step(name, Number(button.dataset.step));
  }
  $("theme").onclick = ACTIONS.t;
  $("help").onclick = toggleHelp;
  $("contrast").oninput = (event) => {
    state.gamma = 1 - 0.9 * event.target.value / 100;
    fillColors();
    render();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => { setTheme(event.matches); render(); });
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; render(); } });
}

function start() {
  $("title").textContent = DATA.title || "attention";
  $("text").textContent = plainText().slice(0, 300);
  const textual = mapsOf("cross").length && axisOf(mapsOf("cross")[0], "queries").textual;
  for (const [name, view] of Object.entries(VIEWS)) {
    if ((name === "alignment" && !textual) || (name === "decision" && !DATA.decision)) continue;
    $("tabs").append(make("button", {role: "tab", "data-view": name, title: `${view.title()} (${view.key})`, onclick: () => show(name)}, view.title()));
  }
  const kinds = kindsShown();
  if (kinds.length > 1) {
    for (const kind of kinds) {
      const short = KINDS[kind].replace(" self-attention", "").replace("-attention", "").replace(" attention", "");
      $("kinds").append(make("button", {"data-kind": kind, title: `${KINDS[kind]} (k)`, onclick: () => change({kind})}, short));
    }
  }
  for (const [keys, text] of [...Object.values(VIEWS).map((view) => [[view.key], view.title()]), ...HELP]) {
    $("keys").append(make("div", {}, ...keys.map((key) => make("kbd", {}, key)), " ", text));
  }
  const first = DATA.first;
  state.kind = first.kind && kinds.includes(first.kind) ? first.kind : kinds.includes("cross") ? "cross" : kinds[0];
  const maps = mapsOf(state.kind);
  const begin = state.kind === "cross" ? first.cross : {layer: maps[maps.length >> 1].layer};
  state.layer = Number.isInteger(first.layer) ? first.layer : begin.layer;
  state.head = Number.isInteger(first.head) ? first.head : Number.isInteger(first.layer) ? 0 : begin.head || 0;
  const pictured = !axisOf(maps[0], "keys").textual, single = maps.length * maps[0].heads < 5;
  state.view = Number.isInteger(first.layer) || Number.isInteger(first.head) ? "matrix" : pictured ? "from" : single ? "matrix" : "grid";
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
  listenToControls();
  render();
}

start();
