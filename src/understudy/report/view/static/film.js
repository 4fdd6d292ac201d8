// One camera of an episode. A frame is a part of a sheet: see sheets.py.
"use strict";

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
