// Curves of one column over the frames of an episode, with a legend that switches dimensions.
"use strict";

class Chart {
  constructor(curve, length, blocks, seek) {
    Object.assign(this, { curve, length, blocks, predicted: null, hovered: null, frame: 0 });
    const count = curve.names.length;
    this.shown = curve.names.map(() => true);
    this.canvas = element("canvas");
    this.top = element("small", { className: "top" });
    this.bottom = element("small", { className: "bottom" });
    this.cursor = element("div", { className: "cursor" });
    this.hover = element("div", { className: "cursor hover", hidden: true });
    this.plot = element("div", { className: "plot" }, this.canvas, this.hover, this.cursor, this.top, this.bottom);
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `${curve.key} over the frames, ${count} dimensions`);
    this.buttons = curve.names.map((name, i) => this.button(name, i));
    const all = element("button", { type: "button", className: "small", textContent: "all" });
    const none = element("button", { type: "button", className: "small", textContent: "none" });
    all.onclick = () => this.set(() => true);
    none.onclick = () => this.set(() => false);
    const more = curve.size > count ? ` (the first ${count} of ${curve.size})` : "";
    const switches = count > 1 ? [element("span", { className: "row" }, all, none)] : [];
    this.view = element("div", { className: "card chart" },
      element("div", { className: "row" }, element("h3", { textContent: curve.key + more }), ...switches), this.plot,
      element("div", { className: "legend" }, ...this.buttons));
    this.view.dataset.key = curve.key;
    this.follow(seek);
  }

  button(name, i) {
    const mark = element("i");
    mark.style.background = this.color(i);
    const button = element("button", { type: "button", title: "show or hide; with shift: show it alone" }, mark,
      element("b", { textContent: name }), element("output"));
    button.setAttribute("aria-pressed", "true");
    button.onclick = (event) => this.set(event.shiftKey ? (j) => j === i : (j) => this.shown[j] !== (j === i));
    return button;
  }

  set(choice) {
    this.shown = this.shown.map((_, i) => choice(i));
    this.buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(this.shown[i])));
    this.draw();
  }

  predict(found) {
    this.predicted = found;
    this.draw();
    this.label();
  }

  color(i) {
    return setup.colors[i % setup.colors.length];
  }

  follow(seek) {
    const frameAt = (event) => {
      const box = this.plot.getBoundingClientRect();
      const frame = Math.floor((event.clientX - box.left) / box.width * this.length);
      return Math.max(0, Math.min(this.length - 1, frame));
    };
    this.plot.onpointerdown = (event) => {
      if (event.pointerType === "mouse") this.plot.setPointerCapture(event.pointerId);
      seek(frameAt(event));
    };
    this.plot.onpointermove = (event) => {
      this.hovered = frameAt(event);
      if (event.buttons) seek(this.hovered);
      this.label();
    };
    this.plot.onpointerleave = () => { this.hovered = null; this.label(); };
  }

  // Range of the curves that are shown: [low, high].
  range() {
    let low = Infinity, high = -Infinity;
    const take = (values) => {
      for (const value of values || []) {
        if (value === null) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    };
    this.shown.forEach((shown, i) => {
      if (!shown) return;
      take(this.curve.low[i]);
      take(this.curve.high && this.curve.high[i]);
      take(this.predicted && this.predicted.values[i]);
    });
    return low > high ? [0, 1] : low === high ? [low - 0.5, high + 0.5] : [low, high];
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    const width = this.plot.clientWidth, height = this.plot.clientHeight;
    if (!width) return;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const [low, high] = this.range();
    const y = (value) => 6 + (high - value) / (high - low) * (height - 12);
    const x = (frame) => (frame + 0.5) / this.length * width;
    context.strokeStyle = getComputedStyle(document.body).getPropertyValue("--line");
    context.strokeRect(-1, y(high), width + 2, y(low) - y(high));
    this.shown.forEach((shown, i) => {
      if (!shown) return;
      context.strokeStyle = this.color(i);
      context.lineWidth = 1.4;
      context.setLineDash([]);
      this.line(context, x, y, this.curve.low[i], this.curve.high && this.curve.high[i]);
      if (!this.predicted) return;
      context.setLineDash([5, 3]);
      this.pieces(context, x, y, this.predicted.values[i]);
    });
    this.top.textContent = digits(high);
    this.bottom.textContent = digits(low);
  }

  line(context, x, y, lows, highs) {
    const bucket = this.curve.bucket;
    let pen = false;
    context.beginPath();
    lows.forEach((low, point) => {
      if (low === null) { pen = false; return; }
      const at = x((point + 0.5) * bucket - 0.5);
      if (pen) context.lineTo(at, y(low)); else context.moveTo(at, y(low));
      if (highs) context.lineTo(at, y(highs[point]));
      else if (!pen && lows[point + 1] === null) context.lineTo(at + 0.5, y(low)); // a point between gaps
      pen = true;
    });
    context.stroke();
  }

  // Predicted chunks, each from the frame on at which the policy predicted it.
  pieces(context, x, y, values) {
    const starts = new Set(this.predicted.starts);
    context.beginPath();
    values.forEach((value, frame) => {
      if (value === null) return;
      if (starts.has(frame)) context.moveTo(x(frame), y(value)); else context.lineTo(x(frame), y(value));
    });
    context.stroke();
  }

  move(frame) {
    this.frame = frame;
    this.cursor.style.left = `${(frame + 0.5) / this.length * 100}%`;
    this.label();
  }

  label() {
    const frame = this.hovered === null ? this.frame : this.hovered;
    this.hover.hidden = this.hovered === null;
    this.hover.style.left = `${(frame + 0.5) / this.length * 100}%`;
    const values = this.curve.bucket === 1 ? this.curve.low.map((one) => one[frame]) : this.blocks.values(this.curve.key, frame);
    this.buttons.forEach((button, i) => {
      let text = values ? digits(values[i]) : "…";
      if (this.predicted) text += ` → ${digits(this.predicted.values[i][frame])}, ${digits(this.predicted.mae[i])}`;
      button.lastChild.textContent = text;
    });
  }
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
