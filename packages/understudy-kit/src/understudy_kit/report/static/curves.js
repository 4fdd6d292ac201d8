// Curves over one axis: axes, legend with the values under the pointer or at a cursor, switches of lines and of the scale.
"use strict";

const LEFT = 52, RIGHT = 14, HEAD = 24, FOOT = 38, ENTRIES = 12;

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function shape(name, attributes, parent, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function digits(value) {
  if (value === null || value === undefined) return "none";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e12) return value.toLocaleString("en-US");
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(5)));
}

function tickText(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(6))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(6))}k`;
  return size && size < 1e-3 ? value.toExponential(0) : String(Number(value.toPrecision(6)));
}

function linearTicks(low, high, count, whole = false) {
  const rough = (high - low) / count, base = 10 ** Math.floor(Math.log10(rough));
  const nice = [1, 2, 5, 10].map((factor) => factor * base).find((size) => size >= rough * 0.999);
  const step = whole ? Math.max(1, Math.round(nice)) : nice, ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(k * step);
  return ticks;
}

function logTicks(low, high) {
  const ticks = [], factors = Math.log10(high / low) > 3 ? [1] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    ticks.push(...factors.map((factor) => factor * 10 ** power).filter((tick) => tick >= low * 0.999 && tick <= high * 1.001));
  return ticks.length > 1 ? ticks : linearTicks(low, high, 4);
}

// curves.py makes the data of a chart. `range` limits the axis, `read(line, x)` gives exact values.
class Curves {
  constructor(box, chart, options = {}) {
    Object.assign(this, { box, chart, options, axis: 0, log: chart.log === true, hidden: new Set(), cursorAt: null, hovered: null });
    this.plot = element("div", { className: "plot" });
    this.cursor = element("div", { className: "cursor", hidden: true });
    this.hover = element("div", { className: "cursor hover", hidden: true });
    this.area = element("div", { className: "area" }, this.hover, this.cursor);
    this.note = element("small", { className: "note", hidden: true });
    this.position = element("output", { className: "position" });
    this.buttons = chart.lines.map((line) => this.button(line));
    const keys = element("div", { className: "legend" }, ...this.buttons);
    const row = element("div", { className: "switches" }, this.position);
    if (chart.log !== null && chart.log !== undefined) row.append(this.scaleButton());
    if (chart.lines.length > 2) row.append(this.action("all", () => this.set(() => true)), this.action("none", () => this.set(() => false)));
    this.readout = element("output", { className: "readout" });
    box.replaceChildren(this.plot, this.note, ...(chart.bare ? [] : [row, keys]));
    this.listen();
    new ResizeObserver(() => this.draw()).observe(box); // also when a folded chart opens
  }

  // Pixels above and below the plot; a chart without a unit or the name of its axis needs less.
  get top() {
    return this.chart.unit ? HEAD : 8;
  }

  get foot() {
    return this.chart.axes[this.axis] ? FOOT : 22;
  }

  action(text, act) {
    return element("button", { type: "button", className: "small", textContent: text, onclick: act });
  }

  scaleButton() {
    const button = this.action("logarithmic", () => {
      this.log = !this.log;
      button.setAttribute("aria-pressed", String(this.log));
      this.draw();
    });
    button.setAttribute("aria-pressed", String(this.log));
    return button;
  }

  button(line) {
    const mark = element("i");
    mark.style.background = line.color;
    if (line.dashed) mark.className = "dashed";
    const button = element("button", { type: "button", title: "show or hide; with shift: show it alone" }, mark,
      element("b", { textContent: line.name }), element("output"));
    button.setAttribute("aria-pressed", "true");
    button.onclick = (event) => this.set(event.shiftKey ? (other) => other === line : (other) => this.hidden.has(other) === (other === line));
    return button;
  }

  set(isShown) {
    const hidden = this.chart.lines.filter((line) => !isShown(line));
    this.hidden = new Set(hidden);
    this.chart.lines.forEach((line, i) => this.buttons[i].setAttribute("aria-pressed", String(!this.hidden.has(line))));
    this.draw();
  }

  listen() {
    const pointed = (event) => {
      const box = this.area.getBoundingClientRect(), [low, high] = this.across;
      return Math.max(low, Math.min(high, low + (event.clientX - box.left) / box.width * (high - low)));
    };
    this.area.onpointerdown = (event) => {
      if (this.options.seek && event.pointerType === "mouse") this.area.setPointerCapture(event.pointerId);
      this.hovered = pointed(event);
      if (this.options.seek) this.options.seek(this.hovered);
      this.label();
    };
    this.area.onpointermove = (event) => {
      this.hovered = pointed(event);
      if (this.options.seek && event.buttons) this.options.seek(this.hovered);
      this.label();
    };
    this.area.onpointerleave = () => { this.hovered = null; this.label(); };
  }

  lines() {
    return this.chart.lines.filter((line) => !this.hidden.has(line) && line.x[this.axis][0] !== null);
  }

  // Ends of the vertical axis, and the number of values beyond them.
  ends(lines) {
    const sorted = (choice) => lines.flatMap(choice).filter((value) => value !== null).sort((a, b) => a - b);
    const values = sorted((line) => line.value), lows = sorted((line) => line.low || line.value), highs = sorted((line) => line.high || line.value);
    if (!values.length) return [0, 1, 0];
    this.isLog = this.log && values[0] > 0;
    const quantile = (from, share) => from[Math.floor(share * (from.length - 1))];
    let low = lows[0], high = highs[highs.length - 1];
    if (this.isLog) {
      low = Math.min(values[0], ...lows.filter((value) => value > 0).slice(0, 1));
      return low === high ? [low / 2, high * 2, 0] : [low, high, 0];
    }
    if (this.chart.cut) {
      const points = lines.filter((line) => line.points).flatMap((line) => line.value);
      high = Math.min(high, Math.max(quantile(highs, 0.98) * 1.1, quantile(values, 0.98) * 1.1, ...points));
      low = Math.max(low, Math.min(0, values[0]), -Math.abs(high));
    }
    if (this.chart.zero) [low, high] = [Math.min(0, low), Math.max(0, high)];
    const beyond = highs.filter((value) => value > high + Math.abs(high) * 1e-4).length;
    return low === high ? [low - 0.5, high + 0.5, 0] : [low, high, beyond];
  }

  draw() {
    const width = this.box.clientWidth, height = this.chart.height;
    if (!width) return;
    const lines = this.lines().flatMap((line) => (line.also ? [line, line.also] : [line]));
    const [low, high, beyond] = this.ends(lines);
    const xs = lines.flatMap((line) => line.x[this.axis]);
    const ends = xs.reduce(([least, most], x) => [Math.min(least, x), Math.max(most, x)], [0, -Infinity]);
    this.across = this.options.range || (ends[1] > ends[0] ? ends : [ends[0], ends[0] + 1]);
    const [first, last] = this.across, right = width - RIGHT, bottom = height - this.foot;
    const x = (value) => LEFT + (value - first) / (last - first) * (right - LEFT);
    const share = (value) => (this.isLog ? Math.log(Math.max(value, low / 2) / low) / Math.log(high / low) : (value - low) / (high - low));
    const y = (value) => bottom - Math.min(1.03, Math.max(-0.03, share(value))) * (bottom - this.top);
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${this.chart.label} by ${this.chart.axes[this.axis]}` }, this.plot);
    this.plot.replaceChildren(svg, this.area, ...(this.chart.bare && !this.options.read ? [this.readout] : []));
    this.axes(svg, x, y, { low, high, right, bottom, whole: xs.every(Number.isInteger) });
    lines.forEach((line) => this.line(svg, line, x, y));
    Object.assign(this.area.style, { left: `${LEFT}px`, right: `${RIGHT}px`, top: `${this.top}px`, bottom: `${this.foot}px` });
    this.note.hidden = !beyond;
    this.note.textContent = `The axis ends at ${digits(Number(high.toPrecision(3)))}: ${beyond} ${beyond === 1 ? "value lies" : "values lie"} above it.`;
    this.label();
  }

  axes(svg, x, y, { low, high, right, bottom, whole }) {
    const text = { "font-size": 12, fill: "currentColor" }, ink = { stroke: "currentColor", "stroke-opacity": 0.14 };
    for (const tick of this.isLog ? logTicks(low, high) : linearTicks(low, high, Math.max(2, (bottom - this.top) / 36))) {
      shape("line", { x1: LEFT, x2: right, y1: y(tick), y2: y(tick), ...ink }, svg);
      shape("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end", ...text }, svg, tickText(tick));
    }
    for (const tick of linearTicks(...this.across, right > 600 ? 8 : right > 300 ? 4 : 2, whole)) {
      shape("line", { x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + 4, ...ink, "stroke-opacity": 0.5 }, svg);
      shape("text", { x: x(tick), y: bottom + 16, "text-anchor": x(tick) > right - 12 ? "end" : "middle", ...text }, svg, tickText(tick));
    }
    shape("line", { x1: LEFT, x2: right, y1: bottom, y2: bottom, ...ink, "stroke-opacity": 0.4 }, svg);
    shape("text", { x: 2, y: 13, ...text }, svg, this.chart.unit);
    shape("text", { x: (LEFT + right) / 2, y: bottom + 33, "text-anchor": "middle", ...text }, svg, this.chart.axes[this.axis]);
  }

  line(svg, line, x, y) {
    const xs = line.x[this.axis], starts = new Set(line.starts), ink = { stroke: line.color, fill: "none", "stroke-linejoin": "round" };
    if (line.points) {
      xs.forEach((at, i) => {
        if (line.value[i] === null) return;
        if (line.low) shape("line", { ...ink, x1: x(at), x2: x(at), y1: y(line.low[i]), y2: y(line.high[i]), "stroke-opacity": 0.6 }, svg);
        shape("circle", { cx: x(at), cy: y(line.value[i]), r: xs.length > 60 ? 1.5 : 3, fill: line.color }, svg);
      });
    } else if (line.low) {
      // Gaps end an area, so that it is drawn piece by piece.
      let from = 0;
      for (let i = 0; i <= xs.length; i++) {
        if (i < xs.length && line.low[i] !== null) continue;
        const up = [], back = [];
        for (let j = from; j < i; j++) {
          up.push(`${x(xs[j]).toFixed(1)} ${y(line.high[j]).toFixed(1)}`);
          back.unshift(`${x(xs[j]).toFixed(1)} ${y(line.low[j]).toFixed(1)}`);
        }
        if (up.length) shape("path", { d: `M${[...up, ...back].join("L")}Z`, fill: line.color, "fill-opacity": 0.18, stroke: line.color, "stroke-opacity": 0.35, "stroke-width": 0.8 }, svg);
        from = i + 1;
      }
    }
    let path = "", pen = false;
    xs.forEach((at, i) => {
      if (line.value[i] === null) { pen = false; return; }
      const point = `${x(at).toFixed(1)} ${y(line.value[i]).toFixed(1)}`;
      const alone = !pen && (i + 1 === xs.length || line.value[i + 1] === null); // a value between gaps
      path += alone ? `M${point}h1` : `${pen && !starts.has(at) ? "L" : "M"}${point}`;
      pen = true;
    });
    const style = { "stroke-width": line.faint ? 1 : 1.7, "stroke-opacity": line.faint ? 0.5 : 1, "stroke-dasharray": line.dashed ? "5 3" : "none" };
    shape("path", { ...ink, ...style, class: "line", d: path }, svg);
  }

  move(x) {
    this.cursorAt = x;
    this.label();
  }

  // The cursor, the one under the pointer, and the values at the latter or else at the former.
  label() {
    if (!this.across) return;
    const [low, high] = this.across, percent = (x) => `${(x - low) / (high - low) * 100}%`;
    this.cursor.hidden = this.cursorAt === null;
    this.hover.hidden = this.hovered === null;
    this.cursor.style.left = percent(this.cursorAt);
    this.hover.style.left = percent(this.hovered);
    const x = this.hovered === null ? this.cursorAt : this.hovered;
    this.position.textContent = x === null ? "" : `${this.chart.axes[this.axis]} ${digits(this.options.read ? Math.round(x) : this.near(x))}`;
    this.chart.lines.forEach((line, i) => { this.buttons[i].lastChild.textContent = x === null ? "" : this.read(line, x); });
    const named = this.chart.lines.filter((line) => line.name);
    this.readout.textContent = x === null || !named.length ? "" : [this.position.textContent, ...named.map((line) => this.read(line, x))].join(" · ");
  }

  // The position of a value that is nearest to x.
  near(x) {
    const lines = this.lines();
    return lines.length ? lines.map((line) => line.x[this.axis][this.index(line, x)]).reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a)) : x;
  }

  index(line, x) {
    const xs = line.x[this.axis];
    let low = 0, high = xs.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle + 1; else high = middle;
    }
    return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
  }

  read(line, x) {
    if (this.options.read) return this.options.read(line, x);
    const i = this.index(line, x), [low, value, high] = [line.low, line.value, line.high].map((values) => values && digits(values[i]));
    if (!line.low || (low === value && high === value)) return value;
    return low === high ? `${low}, smoothed ${value}` : `${value} (${low} to ${high})`;
  }
}

// Draws the charts of a page.
function startPage() {
  const data = JSON.parse(document.getElementById("charts").textContent);
  document.querySelectorAll("[data-chart]").forEach((box) => new Curves(box, data[Number(box.dataset.chart)]));
}
