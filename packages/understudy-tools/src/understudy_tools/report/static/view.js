// The page of `understudy view`: list of episodes, one episode with all its parts on one clock, keys. Curves: curves.js.
"use strict";

// ---- resources: JSON from the server, or from script files next to an exported page

const setup = JSON.parse(document.getElementById("setup").textContent);
const isExport = setup.listed !== null;
const expected = new Map(); // name -> function that takes the value

// Called by the script files of an export.
function receive(name, value) {
  const take = expected.get(name);
  expected.delete(name);
  if (take) take(value);
}

async function loadJson(name) {
  if (isExport) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      expected.set(name, resolve);
      script.src = `${name}.js`;
      script.onload = () => script.remove();
      script.onerror = () => reject(new Error(`${name}.js is not next to this page`));
      document.head.append(script);
    });
  }
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

// Text of the error behind an image that did not load.
async function errorOf(name) {
  if (isExport) return `${name} is not next to this page`;
  try {
    const answer = await fetch(name);
    return answer.ok ? `${name} is not a readable image` : answer.text();
  } catch (error) {
    return "the server is gone";
  }
}

function byId(id) {
  return document.getElementById(id);
}

// ---- one camera of an episode; a frame is a part of a sheet (sheets.py)

const SHEETS_KEPT = 8;

class Film {
  constructor(base, number, camera, length) {
    this.base = `${base}/camera-${number}`;
    this.layout = camera.layout;
    this.length = length;
    this.error = camera.error;
    this.sheets = new Map(); // number -> {image, loaded}, the least recently used first
    this.wanted = -1;
    this.canvas = element("canvas");
    this.note = element("p", { className: "bad", hidden: true });
    const size = camera.layout ? ` ${camera.layout.recorded_width}x${camera.layout.recorded_height}` : "";
    this.view = element("div", { className: "film" }, this.canvas,
      element("p", { className: "soft", textContent: camera.key + size }), this.note);
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `images of ${camera.key}`);
    this.canvas.dataset.frame = "-1";
    if (this.layout) {
      this.canvas.width = this.layout.width;
      this.canvas.height = this.layout.height;
      this.canvas.classList.toggle("pixels", this.layout.recorded_width <= 128);
      if (this.layout.recorded_width <= 128) this.view.style.maxWidth = "320px";
    } else {
      this.canvas.hidden = true;
      this.fail(camera.error || "there is no frame");
    }
  }

  get perSheet() {
    return this.layout.columns * this.layout.rows;
  }

  fail(text) {
    this.error = text;
    this.note.textContent = text;
    this.note.hidden = false;
  }

  // Start to load the sheet of a frame; a later call with a frame of it marks it as used.
  request(frame) {
    const number = Math.floor(frame / this.perSheet);
    if (!this.layout || frame < 0 || frame >= this.length) return null;
    let sheet = this.sheets.get(number);
    if (sheet) {
      this.sheets.delete(number);
    } else {
      sheet = { image: new Image(), loaded: false, failed: false };
      const name = `${this.base}-${number}.${this.layout.extension}`;
      sheet.image.src = name;
      sheet.image.decode().then(() => { sheet.loaded = true; this.draw(); }, async () => {
        sheet.failed = true;
        this.fail(await errorOf(name));
        this.draw();
      });
    }
    this.sheets.set(number, sheet);
    while (this.sheets.size > SHEETS_KEPT) this.sheets.delete(this.sheets.keys().next().value);
    return sheet;
  }

  // Whether a frame can be drawn at once; a camera that cannot be read holds up no other.
  ready(frame) {
    if (!this.layout) return true;
    const sheet = this.request(frame);
    return sheet.loaded || sheet.failed;
  }

  show(frame) {
    this.wanted = frame;
    this.request(frame);
    this.draw();
  }

  prefetch(frame) {
    this.request(frame + this.perSheet);
    this.request(frame + 2 * this.perSheet);
    this.request(frame);
  }

  draw() {
    const sheet = this.layout && this.sheets.get(Math.floor(this.wanted / this.perSheet));
    if (!sheet || (!sheet.loaded && !sheet.failed)) return;
    const context = this.canvas.getContext("2d");
    const { width, height, columns } = this.layout;
    const place = this.wanted % this.perSheet;
    context.clearRect(0, 0, width, height);
    if (sheet.loaded) {
      const x = (place % columns) * width, y = Math.floor(place / columns) * height;
      context.drawImage(sheet.image, x, y, width, height, 0, 0, width, height);
      this.note.hidden = true;
    } else {
      this.note.hidden = false;
    }
    this.canvas.dataset.frame = String(this.wanted);
  }
}

// ---- the page

const state = { episode: null, frame: 0, playing: false, page: 0, total: 0, listed: [], origin: null, last: 0 };
const view = { films: [], charts: [], tracks: [] };
let turn = 0; // of the latest episode that was opened

const base = (episode) => `${episode.source}/${episode.id}`;

function trouble(error) {
  byId("trouble").textContent = error ? error.message || String(error) : "";
  byId("trouble").hidden = !error;
}

// ---- the list

async function search(page = 0) {
  const query = byId("search").value.trim();
  const found = isExport ? searchListed(query) : await loadJson(`episodes.json?${new URLSearchParams({ query, page })}`);
  if (query !== byId("search").value.trim()) return; // typed on meanwhile
  Object.assign(state, { page: found.page, total: found.total, listed: found.episodes, size: found.size });
  const first = found.page * found.size, last = first + found.episodes.length;
  byId("count").textContent = found.total > found.size ? `${first + 1} to ${last} of ${found.total}` : `${found.total} episode${found.total === 1 ? "" : "s"}`;
  byId("earlier").disabled = found.page === 0;
  byId("later").disabled = last >= found.total;
  byId("list").replaceChildren(...found.episodes.map((episode) => {
    const name = setup.sources.length > 1 ? `${setup.sources[episode.source].name} ${episode.id}` : String(episode.id);
    const button = element("button", { type: "button" }, name,
      element("span", { textContent: `${episode.seconds} s · ${episode.task || "no task"}` }));
    button.onclick = () => openEpisode(episode);
    return element("li", {}, button);
  }));
  mark();
}

function searchListed(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const episodes = setup.listed.filter((one) => words.every((word) => String(one.id) === word ||
    one.task.toLowerCase().includes(word) || (setup.sources.length > 1 && setup.sources[one.source].name.includes(word))));
  return { total: episodes.length, page: 0, size: Math.max(1, episodes.length), episodes };
}

function same(one, other) {
  return one && other && one.source === other.source && one.id === other.id;
}

function mark() {
  [...byId("list").querySelectorAll("button")].forEach((button, i) =>
    button.setAttribute("aria-current", String(Boolean(same(state.listed[i], state.episode)))));
  const place = state.listed.findIndex((one) => same(one, state.episode));
  byId("previous").disabled = place === 0 && state.page === 0;
  byId("next").disabled = place === state.listed.length - 1 && (state.page + 1) * state.size >= state.total;
}

async function neighbour(step) {
  const place = state.listed.findIndex((one) => same(one, state.episode)) + step;
  if (place >= 0 && place < state.listed.length) return openEpisode(state.listed[place]);
  const page = state.page + step;
  if (page < 0 || page * state.size >= state.total) return undefined;
  await search(page);
  return openEpisode(state.listed[step > 0 ? 0 : state.listed.length - 1]);
}

// ---- one episode

async function openEpisode(listed, frame = 0) {
  const own = ++turn;
  stop();
  let episode;
  try {
    episode = await loadJson(`${base(listed)}/episode.json`);
  } catch (error) {
    return trouble(error);
  }
  if (own !== turn) return undefined; // another one was opened meanwhile
  trouble(null);
  state.episode = episode;
  const name = setup.sources.length > 1 ? `${setup.sources[episode.source].name}, episode` : "Episode";
  byId("episode").textContent = `${name} ${episode.id}`;
  document.title = `${episode.id} · ${setup.title}`;
  byId("task").textContent = episode.task;
  byId("slider").max = Math.max(0, episode.length - 1);
  view.films = episode.cameras.map((camera, number) => new Film(base(episode), number, camera, episode.length));
  byId("films").replaceChildren(...view.films.map((film) => film.view));
  const blocks = new Blocks(base(episode), episode.block, () => view.charts.forEach(({ curves }) => curves.label()));
  joints(episode, blocks);
  view.tracks = [];
  byId("lanes").replaceChildren(...episode.lanes.map((lane) => track(lane)));
  facts(episode);
  byId("findings").replaceChildren();
  mark();
  seek(Math.min(frame, episode.length - 1));
  if (setup.predicts) showPredicted(own).catch(trouble);
  return showFindings(own).catch(trouble);
}

// A chart per dimension. State and action of one name share it; each column has a color.
function joints(episode, blocks) {
  const rows = new Map(); // name -> lines
  episode.curves.forEach((curve, number) => curve.names.forEach((dimension, i) => {
    const shared = ["observation.state", "action"].includes(curve.key) || curve.names.length === 1;
    const name = shared ? dimension : `${curve.key} ${dimension}`;
    const frames = curve.low[i].map((_, point) => (point + 0.5) * curve.bucket - 0.5);
    const line = { name: curve.key.replace(/^observation[.]/, ""), color: setup.colors[number % setup.colors.length], x: [frames], value: curve.low[i], curve, i };
    if (curve.high) {
      line.value = curve.low[i].map((low, point) => (low === null ? null : (low + curve.high[i][point]) / 2));
      Object.assign(line, { low: curve.low[i], high: curve.high[i] });
    }
    rows.set(name, [...(rows.get(name) || []), line]);
  }));
  const still = [];
  view.charts = [];
  for (const [name, lines] of rows) {
    if (lines.every((line) => constant(line) !== undefined)) still.push(...lines);
    else view.charts.push(joint(name, lines, episode, blocks));
  }
  const more = episode.curves.filter((curve) => curve.size > curve.names.length)
    .map((curve) => element("p", { className: "soft", textContent: `${curve.key}: the first ${curve.names.length} of ${curve.size}` }));
  const table = element("table", {}, ...still.map((line) => element("tr", {},
    element("td", { textContent: line.curve.names[line.i] }), element("td", { className: "soft", textContent: line.curve.key }),
    element("td", { className: "number", textContent: digits(constant(line)) }))));
  const fold = element("details", { className: "card still", open: !view.charts.length },
    element("summary", { textContent: `${still.length} constant` }), table);
  byId("curves").replaceChildren(...view.charts.map(({ box }) => box), ...(still.length ? [fold] : []), ...more);
}

// The only value of a line, null where it has none; undefined where it changes.
function constant(line) {
  const values = new Set([...line.curve.low[line.i], ...(line.curve.high ? line.curve.high[line.i] : [])]);
  return values.size > 1 ? undefined : values.size ? [...values][0] : null;
}

function joint(name, lines, episode, blocks) {
  const chart = { label: `${name} over the frames`, axes: [""], unit: "", lines, zero: false, bare: true, height: 104 };
  const read = (line, x) => {
    const frame = Math.round(x), { curve, i, predicted } = line;
    const values = curve.bucket === 1 ? curve.low.map((dimension) => dimension[frame]) : blocks.values(curve.key, frame);
    const text = values ? digits(values[i]) : "…";
    return predicted ? `${text} → ${digits(predicted.values[i][frame])}, ${digits(predicted.mae[i])}` : text;
  };
  const plot = element("div", { className: "curves" });
  const curves = new Curves(plot, chart, { range: [-0.5, episode.length - 0.5], read, seek: (x) => seekPaused(Math.round(x)) });
  const legend = element("div", { className: "legend" }, ...curves.buttons);
  const box = element("div", { className: "card joint" }, element("h3", { textContent: name }), legend, plot);
  box.dataset.name = name;
  return { box, curves, lines };
}

// Actions of the policy, dashed next to the recorded ones, and their mean absolute error.
async function showPredicted(own) {
  const found = await loadJson(`${base(state.episode)}/predicted.json`);
  if (own !== turn) return;
  const frames = [...Array(state.episode.length).keys()];
  for (const { box, curves, lines } of view.charts) {
    for (const line of lines.filter(({ curve }) => curve.key === found.key)) {
      line.predicted = found;
      line.also = { color: setup.colors[6], x: [frames], value: found.values[line.i], dashed: true, starts: found.starts };
      box.classList.add("foreseen");
      curves.draw();
    }
  }
  const lost = found.unreadable ? `; ${found.unreadable} observations cannot be read` : "";
  const text = `Dashed: predicted from the recorded observation every ${found.chunk} frames${lost}. Values: recorded → predicted, mean absolute error.`;
  byId("curves").prepend(element("p", { className: "soft predicted", textContent: text }));
}

// Exact values of a long episode, loaded around the frames that are looked at.
class Blocks {
  constructor(base, size, changed) {
    Object.assign(this, { base, size, changed, loaded: new Map() });
  }

  values(key, frame) {
    const number = Math.floor(frame / this.size);
    if (!this.loaded.has(number)) {
      this.loaded.set(number, null);
      loadJson(`${this.base}/rows-${number}.json`).then(
        (block) => { this.loaded.set(number, block); this.changed(); }, () => {});
    }
    const block = this.loaded.get(number);
    return block && block[key] ? block[key].map((values) => values[frame % this.size]) : null;
  }
}

function track(lane) {
  const length = state.episode.length;
  const label = element("p", {}, element("b", { textContent: lane.name }), " ", element("span", { className: "soft" }));
  const cursor = element("div", { className: "cursor" });
  const bar = element("div", { className: `track ${lane.kind}` }, ...lane.entries.map(([start, end, text]) => {
    const part = element("span", { textContent: lane.kind === "text" ? text : "", title: `${text}, frames ${start} to ${end - 1}` });
    part.style.left = `${start / length * 100}%`;
    part.style.width = `${(end - start) / length * 100}%`;
    return part;
  }), cursor);
  bar.onclick = (event) => {
    const box = bar.getBoundingClientRect();
    seekPaused(Math.floor((event.clientX - box.left) / box.width * length));
  };
  view.tracks.push({ lane, cursor, text: label.lastChild });
  return element("div", { className: "lane" }, label, bar);
}

function facts(episode) {
  const lines = [`${episode.length} frames at ${episode.fps} per second, ${episode.seconds} s`,
    ...Object.entries(episode.metadata).map(([name, value]) => `${name}: ${value}`), ...episode.notes];
  const wrong = Object.entries(episode.errors).map(([, text]) => element("li", { className: "bad", textContent: text }));
  byId("facts").replaceChildren(element("div", { className: "card" }, element("h3", { textContent: "Facts" }),
    element("ul", {}, ...wrong, ...lines.map((text) => element("li", { textContent: text })))));
}

async function showFindings(own) {
  const found = await loadJson(`${base(state.episode)}/findings.json`);
  if (own !== turn) return;
  const card = element("div", { className: "card" }, element("h3", { textContent: "Findings" }));
  byId("findings").replaceChildren(card);
  if (!found.known) {
    const button = element("button", { type: "button", id: "check", textContent: "check the rows of this dataset" });
    button.onclick = async () => {
      button.disabled = true;
      button.textContent = "checking …";
      try {
        await loadJson("check.json");
        if (state.episode) await showFindings(turn);
      } catch (error) {
        trouble(error);
        button.disabled = false;
      }
    };
    card.append(isExport ? element("p", { className: "soft", textContent: "The dataset was not checked." }) : button);
    return;
  }
  const marks = found.episode.filter((one) => one.frame !== null).map((one) => [one.frame, one.frame + 1, one.rule]);
  if (marks.length && !byId("lanes").querySelector(".findings"))
    byId("lanes").append(track({ name: "findings", kind: "findings", entries: marks }));
  card.append(findingList(found.episode, "No finding about this episode."));
  if (found.general.length)
    card.append(element("details", {}, element("summary", { textContent: `${found.general.length} about the whole dataset` }),
      findingList(found.general, "")));
  cursors();
}

function findingList(findings, none) {
  if (!findings.length) return element("p", { className: "soft", textContent: none });
  return element("ul", {}, ...findings.map((one) => {
    const item = element("li", {}, element("b", { className: one.severity === "error" ? "bad" : "", textContent: one.severity }),
      ` ${one.rule}: ${one.message}${one.where ? ` (${one.where})` : ""} `);
    if (one.frame !== null) {
      const jump = element("button", { type: "button", className: "small", textContent: `frame ${one.frame}` });
      jump.onclick = () => seekPaused(one.frame);
      item.append(jump);
    }
    if (one.fix) item.append(element("br"), element("small", { textContent: one.fix }));
    return item;
  }));
}

// ---- the clock

function seek(frame) {
  const episode = state.episode;
  if (!episode) return;
  state.frame = Math.max(0, Math.min(episode.length - 1, frame));
  view.films.forEach((film) => film.show(state.frame));
  byId("slider").value = state.frame;
  byId("clock").textContent = episode.length ? `${state.frame} / ${episode.length - 1} · ${(state.frame / episode.fps).toFixed(2)} s` : "no frame";
  cursors();
  remember();
}

function cursors() {
  view.charts.forEach(({ curves }) => curves.move(state.frame));
  for (const { lane, cursor, text } of view.tracks) {
    cursor.style.left = `${(state.frame + 0.5) / state.episode.length * 100}%`;
    const now = lane.entries.find(([start, end]) => start <= state.frame && state.frame < end);
    text.textContent = now ? now[2] : lane.kind === "keep" ? "left out" : "";
  }
}

function seekPaused(frame) {
  stop();
  seek(frame);
}

let remembering = 0;
function remember() { // browsers limit how often the address may change
  clearTimeout(remembering);
  remembering = setTimeout(() => {
    if (state.episode) history.replaceState(null, "", `#${base(state.episode)}/${state.frame}`);
  }, 250);
}

function stop() {
  state.playing = false;
  byId("play").textContent = "play";
  byId("play").setAttribute("aria-pressed", "false");
}

function play() {
  if (state.playing || !state.episode) return stop();
  if (state.frame >= state.episode.length - 1) seek(0);
  state.playing = true;
  byId("play").textContent = "pause";
  byId("play").setAttribute("aria-pressed", "true");
  state.origin = null;
  return requestAnimationFrame(tick);
}

// All cameras show the frame of one clock; it waits while the images of one of them are on their way.
function tick(now) {
  if (!state.playing) return;
  if (!state.origin || now - state.last > 500) state.origin = { frame: state.frame, time: now };
  state.last = now;
  const rate = state.episode.fps * Number(byId("speed").value);
  const due = Math.floor(state.origin.frame + (now - state.origin.time) / 1000 * rate);
  const target = Math.min(due, state.episode.length - 1);
  if (view.films.filter((film) => !film.ready(target)).length) {
    state.origin = { frame: state.frame, time: now };
  } else if (target !== state.frame) {
    seek(target);
  }
  view.films.forEach((film) => film.prefetch(target));
  if (state.frame >= state.episode.length - 1) return stop();
  requestAnimationFrame(tick);
}

// ---- keys and buttons

const KEYS = {
  " ": play,
  ArrowLeft: (event) => seekPaused(state.frame - (event.shiftKey ? 10 : 1)),
  ArrowRight: (event) => seekPaused(state.frame + (event.shiftKey ? 10 : 1)),
  Home: () => seekPaused(0),
  End: () => state.episode && seekPaused(state.episode.length - 1),
  "[": () => neighbour(-1),
  "]": () => neighbour(1),
  "/": () => byId("search").focus(),
};

document.addEventListener("keydown", (event) => {
  const at = event.target;
  if (at.id === "search") {
    if (event.key === "Escape") at.blur();
    if (event.key === "Enter" && state.listed.length) { at.blur(); openEpisode(state.listed[0]); }
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || at.tagName === "SELECT") return;
  if (event.key === " " && (at.tagName === "BUTTON" || at.tagName === "SUMMARY")) return; // they have their own meaning
  if (!KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key](event);
});

function start() {
  const [source] = setup.sources;
  byId("title").textContent = setup.title;
  byId("about").textContent = setup.sources.length > 1 ? `${setup.sources.length} datasets` :
    [`LeRobot ${source.version}`, source.robot].filter(Boolean).join(", ");
  byId("play").onclick = play;
  byId("back").onclick = () => seekPaused(state.frame - 1);
  byId("ahead").onclick = () => seekPaused(state.frame + 1);
  byId("previous").onclick = () => neighbour(-1);
  byId("next").onclick = () => neighbour(1);
  byId("earlier").onclick = () => search(state.page - 1).catch(trouble);
  byId("later").onclick = () => search(state.page + 1).catch(trouble);
  byId("slider").oninput = (event) => seekPaused(Number(event.target.value));
  byId("speed").onchange = () => { state.origin = null; };
  let typed = 0;
  byId("search").oninput = () => { clearTimeout(typed); typed = setTimeout(() => search().catch(trouble), 150); };
  const named = /^#(\d+)\/(\d+)(?:\/(\d+))?$/.exec(location.hash);
  search().then(() => {
    if (named) return openEpisode({ source: Number(named[1]), id: Number(named[2]) }, Number(named[3] || 0));
    return state.listed.length ? openEpisode(state.listed[0]) : trouble("there is no episode");
  }).catch(trouble);
}

start();
