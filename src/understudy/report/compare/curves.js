// Draws the curves of a comparison: axes, legend, values under the pointer. Without it the page has its tables.
(() => {
  const data = JSON.parse(document.getElementById("curve-data").textContent);
  const panel = document.querySelector(".panel");
  const hidden = new Set();
  const SPACE = "http://www.w3.org/2000/svg";
  const LEFT = 58, RIGHT = 12, TOP = 8, BOTTOM = 36;
  panel.hidden = false;
  document.getElementById("no-script").remove();

  const make = (name, attributes, parent, text) => {
    const element = document.createElementNS(SPACE, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  };
  const chosen = (name) => document.querySelector(`input[name=${name}]:checked`).value;
  const short = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e5 && Number.isInteger(value)) return value.toLocaleString("en-US");
    return size >= 1e-3 && size < 1e7 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
  };
  const tick = (value) => {
    const size = Math.abs(value);
    if (size >= 1e6) return `${Number((value / 1e6).toPrecision(6))}M`;
    if (size >= 1e4) return `${Number((value / 1e3).toPrecision(6))}k`;
    return size && size < 1e-3 ? value.toExponential(0) : String(Number(value.toPrecision(6)));
  };
  // A step as the chosen horizontal axis, linear between the run's knots.
  const along = (run, axis, step) => {
    if (axis === "step") return step;
    const { step: steps, [axis]: values } = run.knots;
    if (!values.length) return null;
    let high = steps.findIndex((at) => at >= step);
    if (high < 0) high = steps.length - 1;
    if (high === 0 || steps[high] === step) return values[high];
    const share = (step - steps[high - 1]) / (steps[high] - steps[high - 1]);
    return values[high - 1] + Math.min(1, share) * (values[high] - values[high - 1]);
  };
  const linearTicks = (low, high, count) => {
    const rough = (high - low) / count, base = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * base).find((s) => s >= rough);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
    return found;
  };
  const logTicks = (low, high) => {
    const found = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
      for (const m of Math.log10(high / low) > 3 ? [1] : [1, 2, 5])
        if (m * 10 ** e >= low * 0.999 && m * 10 ** e <= high * 1.001) found.push(m * 10 ** e);
    return found.length > 1 ? found : linearTicks(low, high, 4);
  };
  const quantile = (values, share) => [...values].sort((a, b) => a - b)[Math.floor(share * (values.length - 1))];

  const draw = (box) => {
    const chart = data.charts[Number(box.dataset.chart)], axis = chosen("over");
    const lines = data.runs.filter((run) => chart.series[run.letter] && !hidden.has(run.letter)).map((run) => {
      const s = chart.series[run.letter];
      return { run, ...s, low: s.low || s.value, high: s.high || s.value, x: s.step.map((at) => along(run, axis, at)) };
    }).filter((line) => line.x[0] !== null);
    const points = chart.title.includes("interval") || chart.title.includes("Open-loop");
    const width = Math.max(260, box.clientWidth), height = box.closest(".two") ? 190 : 260;
    box.replaceChildren();
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${chart.title} per ${axis}` }, box);
    if (!lines.length) {
      make("text", { x: LEFT, y: height / 2, "font-size": 13, fill: "currentColor" }, svg, "no values of the chosen runs");
      return;
    }
    const values = lines.flatMap((line) => line.value), lows = lines.flatMap((line) => line.low);
    const highs = lines.flatMap((line) => line.high);
    const positive = Math.min(...values) > 0, log = chosen("scale") === "log" && positive;
    let bottom, top;
    if (log) {
      const above = lows.filter((low) => low > 0);
      bottom = points ? Math.min(...values) : Math.min(...above, ...values);
      top = Math.max(...highs);
      if (bottom === top) [bottom, top] = [bottom / 2, top * 2];
    } else {
      // A few first values would flatten the rest.
      top = points ? Math.max(...highs) : Math.max(quantile(highs, 0.98), quantile(values, 0.98)) * 1.1;
      bottom = Math.min(0, points ? Math.max(Math.min(...lows), -top) : quantile(lows, 0.02) * 1.1);
      if (points && top === bottom) top = bottom + 1;
      if (top <= bottom) top = bottom + 1;
    }
    const right = Math.max(...lines.flatMap((line) => line.x)) || 1;
    const px = (x) => LEFT + (x / right) * (width - LEFT - RIGHT);
    const share = (y) => (log ? Math.log(y / bottom) / Math.log(top / bottom) : (y - bottom) / (top - bottom));
    const py = (y) => height - BOTTOM - Math.min(1.02, Math.max(-0.02, log && y <= 0 ? -0.02 : share(y))) * (height - BOTTOM - TOP);
    for (const y of log ? logTicks(bottom, top) : linearTicks(bottom, top, 4)) {
      make("line", { x1: LEFT, x2: width - RIGHT, y1: py(y), y2: py(y), stroke: "currentColor", "stroke-opacity": 0.13 }, svg);
      make("text", { x: LEFT - 6, y: py(y) + 4, "text-anchor": "end", "font-size": 12, fill: "currentColor" }, svg, tick(y));
    }
    for (const x of linearTicks(0, right, width > 600 ? 8 : 4)) {
      const anchor = px(x) > width - 24 ? "end" : "middle";
      make("line", { x1: px(x), x2: px(x), y1: height - BOTTOM, y2: height - BOTTOM + 4, stroke: "currentColor", "stroke-opacity": 0.5 }, svg);
      make("text", { x: px(x), y: height - BOTTOM + 17, "text-anchor": anchor, "font-size": 12, fill: "currentColor" }, svg, tick(x));
    }
    make("line", { x1: LEFT, x2: width - RIGHT, y1: height - BOTTOM, y2: height - BOTTOM, stroke: "currentColor", "stroke-opacity": 0.4 }, svg);
    const unit = { step: "step", samples: "samples", hours: "training time in hours" }[axis];
    make("text", { x: (LEFT + width - RIGHT) / 2, y: height - 4, "text-anchor": "middle", "font-size": 12, fill: "currentColor" }, svg, unit);
    const path = (xs, ys) => xs.map((x, i) => `${i ? "L" : "M"}${px(x).toFixed(1)} ${py(ys[i]).toFixed(1)}`).join("");
    for (const line of lines) {
      const ink = { stroke: line.run.color, fill: "none", "stroke-linejoin": "round" };
      if (points) {
        line.x.forEach((x, i) => {
          if (line.low[i] !== line.high[i])
            make("line", { ...ink, x1: px(x), x2: px(x), y1: py(line.low[i]), y2: py(line.high[i]), "stroke-opacity": 0.55 }, svg);
          make("circle", { cx: px(x), cy: py(line.value[i]), r: line.x.length > 60 ? 1.5 : 3, fill: line.run.color }, svg);
        });
      } else if (line.low !== line.value) {
        const area = path(line.x, line.high) + path([...line.x].reverse(), [...line.low].reverse()).replace("M", "L") + "Z";
        make("path", { d: area, fill: line.run.color, "fill-opacity": 0.16, stroke: line.run.color, "stroke-opacity": 0.25, "stroke-width": 0.6 }, svg);
      }
      make("path", { ...ink, d: path(line.x, line.value), "stroke-width": 1.7 }, svg);
    }
    const above = log ? 0 : highs.filter((y) => y > top * 1.0001).length;
    if (above) {
      const note = document.createElement("small");
      note.textContent = `The axis ends at ${short(top)}: ${above} of ${highs.length} points have values above it.`;
      box.append(note);
    }
    watch(box, svg, lines, { px, width, right, height, axis });
  };

  const watch = (box, svg, lines, { px, width, right, height, axis }) => {
    const cursor = make("line", { y1: TOP, y2: height - BOTTOM, stroke: "currentColor", "stroke-opacity": 0.5, visibility: "hidden" }, svg);
    const values = document.createElement("div");
    values.className = "values";
    values.hidden = true;
    box.append(values);
    const show = (event) => {
      const frame = svg.getBoundingClientRect();
      const x = Math.min(right, Math.max(0, ((event.clientX - frame.left) * (width / frame.width) - LEFT) / (width - LEFT - RIGHT) * right));
      cursor.setAttribute("x1", px(x));
      cursor.setAttribute("x2", px(x));
      cursor.setAttribute("visibility", "visible");
      const rows = lines.map((line) => {
        let near = 0;
        line.x.forEach((at, i) => { if (Math.abs(at - x) < Math.abs(line.x[near] - x)) near = i; });
        const row = document.createElement("div"), key = document.createElement("span");
        key.className = "key";
        key.style.background = line.run.color;
        const [low, value, high] = [line.low, line.value, line.high].map((each) => short(each[near]));
        const smoothed = low === high && low !== value;
        const text = low === high ? (smoothed ? `${low}, smoothed ${value}` : value) : `${value} (${low} to ${high})`;
        row.append(key, `${line.run.letter} ${text}, step ${line.step[near].toLocaleString("en-US")}`);
        return row;
      });
      const title = document.createElement("div");
      title.textContent = `${axis} ${short(axis === "hours" ? x : Math.round(x))}`;
      values.replaceChildren(title, ...rows);
      values.hidden = false;
      const at = px(x) * (frame.width / width), wide = values.offsetWidth;
      values.style.left = `${Math.max(0, at + 12 + wide > frame.width ? at - 12 - wide : at + 12)}px`;
    };
    const hide = () => { values.hidden = true; cursor.setAttribute("visibility", "hidden"); };
    svg.addEventListener("pointermove", show);
    svg.addEventListener("pointerdown", show);
    svg.addEventListener("pointerleave", hide);
  };

  const boxes = [...document.querySelectorAll(".curve")];
  const all = () => boxes.forEach(draw);
  panel.addEventListener("change", all);
  panel.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const shown = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!shown));
    hidden[shown ? "add" : "delete"](button.dataset.run);
    all();
  });
  let last = window.innerWidth;
  addEventListener("resize", () => { if (window.innerWidth !== last) { last = window.innerWidth; all(); } });
  all();
})();
