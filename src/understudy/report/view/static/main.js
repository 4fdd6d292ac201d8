// The page: list of episodes, one episode with all its parts on one clock, keys.
"use strict";

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
  byId("count").textContent = found.total > found.size ? `${first + 1} to ${last} of ${found.total}` : `${found.total} episodes`;
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
  const blocks = new Blocks(base(episode), episode.block, () => view.charts.forEach((chart) => chart.label()));
  view.charts = episode.curves.map((curve) => new Chart(curve, episode.length, blocks, seekPaused));
  byId("curves").replaceChildren(...view.charts.map((chart) => chart.view));
  view.tracks = [];
  byId("lanes").replaceChildren(...episode.lanes.map((lane) => track(lane)));
  facts(episode);
  byId("findings").replaceChildren();
  redraw();
  mark();
  seek(Math.min(frame, episode.length - 1));
  if (setup.predicts) showPredicted(own).catch(trouble);
  return showFindings(own).catch(trouble);
}

// Actions of the policy, dashed beside the recorded ones, and their mean absolute error.
async function showPredicted(own) {
  const found = await loadJson(`${base(state.episode)}/predicted.json`);
  const chart = view.charts.find((one) => one.curve.key === found.key);
  if (own !== turn || !chart) return;
  chart.predict(found);
  const lost = found.unreadable ? `; ${found.unreadable} observations cannot be read` : "";
  const text = `Dashed: predicted from the recorded observation every ${found.chunk} frames${lost}. Values: recorded → predicted, mean absolute error.`;
  chart.view.append(element("p", { className: "soft predicted", textContent: text }));
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
  view.charts.forEach((chart) => chart.move(state.frame));
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

function redraw() {
  view.charts.forEach((chart) => chart.draw());
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
  new ResizeObserver(redraw).observe(byId("curves"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const named = /^#(\d+)\/(\d+)(?:\/(\d+))?$/.exec(location.hash);
  search().then(() => {
    if (named) return openEpisode({ source: Number(named[1]), id: Number(named[2]) }, Number(named[3] || 0));
    return state.listed.length ? openEpisode(state.listed[0]) : trouble("there is no episode");
  }).catch(trouble);
}

start();
