// What every worker did: one row a worker, on a canvas, for it must stay fluid with a hundred thousand items. Items below a pixel are added up by
// pixel column and drawn as high as the share of that time they cover, so an idle gap is visible at every zoom.
"use strict";
const Timelines = (() => {
  const MAIN = 16, THIN = 5, GAP = 5, RULER = 34, MAX_ROWS_PX = 1500;
  const WHAT = { compute: "c0", put: "c4", commit: "c3", publish: "c5", load: "c1", receive: "c2", evaluate: "c7", read: "c8", export: "c6" };
  const MARKS = { died: ["✕", "bad"], restarted: ["▲", "good"], slow: ["", "c5"], stall: ["", "bad"], failed: ["✕", "bad"], stop: ["", "muted"] };
  const views = [];

  const colourOf = (kind) => (kind.startsWith("paused") ? Theme.css("paused") : Theme.css(WHAT[kind.split(" ")[1]] || "c6"));
  const paused = (kind) => kind.startsWith("paused");

  class View {
    constructor(run, home, shared) {
      this.run = run;
      this.shared = shared; // {from, to, until}: two runs move together
      const line = run.timeline;
      this.tick = line.tick_s;
      this.kinds = line.kinds;
      this.lanes = line.lanes.map((lane) => ({ ...lane, start: this.absolute(lane.start) }));
      this.canvas = element("canvas", { tabindex: "0", role: "img", "aria-label": `Timeline of ${run.name}: plus and minus zoom, arrows move, 0 shows all` });
      this.tip = element("div", { class: "tip" });
      this.tip.hidden = true;
      this.frame = element("div", { class: "lanes" }, this.canvas, this.tip);
      home.append(this.frame);
      this.layOut();
      this.listen();
    }

    absolute(differences) {
      let at = 0;
      return differences.map((step) => (at += step));
    }

    layOut() {
      let full = 0, worker = null;
      const rows = this.lanes.map((lane) => {
        const high = lane.thread === "main" ? MAIN : THIN;
        if (lane.worker !== worker) full += GAP;
        worker = lane.worker;
        const row = { lane, top: full, high };
        full += high + 1;
        return row;
      });
      const scale = Math.min(1, MAX_ROWS_PX / full); // hundreds of workers: thinner rows rather than a canvas that no browser makes
      this.rows = rows.map((row) => ({ ...row, top: RULER + row.top * scale, high: Math.max(1, row.high * scale) }));
      this.height = Math.ceil(RULER + full * scale + GAP);
    }

    // ---------------------------------------------------------- drawing

    draw() {
      const width = this.frame.clientWidth, ratio = devicePixelRatio || 1;
      this.narrow = width < 600;
      this.gutter = this.narrow ? 92 : 132;
      this.plotWidth = Math.max(50, width - this.gutter - 4);
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
      this.canvas.style.height = `${this.height}px`;
      const pen = this.canvas.getContext("2d");
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, width, this.height);
      this.drawRuler(pen);
      for (const row of this.rows) this.drawLane(pen, row);
      this.drawNames(pen);
      this.drawMarks(pen);
    }

    x(seconds) { return this.gutter + ((seconds - this.shared.from) / (this.shared.to - this.shared.from)) * this.plotWidth; }
    seconds(x) { return this.shared.from + ((x - this.gutter) / this.plotWidth) * (this.shared.to - this.shared.from); }

    drawRuler(pen) {
      const span = this.shared.to - this.shared.from;
      const step = niceStep(span / Math.max(2, this.plotWidth / 110));
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "top";
      pen.textAlign = "center";
      for (let at = Math.ceil(this.shared.from / step) * step; at <= this.shared.to + 1e-9; at += step) {
        const x = this.x(at);
        pen.fillStyle = Theme.css("line");
        pen.fillRect(x, 14, 1, this.height - 14);
        pen.fillStyle = Theme.css("muted");
        if (x > this.gutter + 14 && x < this.gutter + this.plotWidth - 14) pen.fillText(Units.seconds(Math.abs(at) < step / 1e3 ? 0 : at, step), x, 0);
      }
      pen.textAlign = "left";
      pen.fillText("commits", 0, 18);
      pen.fillStyle = Theme.css("c3");
      let before = -2;
      for (const at of this.run.commits_s) {
        const x = Math.round(this.x(at));
        if (x <= before || x < this.gutter || x > this.gutter + this.plotWidth) continue;
        pen.fillRect(x, 19, 1, 10);
        before = x;
      }
    }

    drawLane(pen, { lane, top, high }) {
      const main = lane.thread === "main";
      pen.fillStyle = Theme.css(main ? "wait" : "thin");
      for (let i = 0; i < lane.alive.length; i += 2) {
        const from = Math.max(this.gutter, this.x(lane.alive[i] * this.tick));
        const to = Math.min(this.gutter + this.plotWidth, this.x(lane.alive[i + 1] * this.tick));
        if (to > from) pen.fillRect(from, top, to - from, high);
      }
      const columns = []; // by kind: Float32Array of the covered share of each pixel column
      const pixel = (this.shared.to - this.shared.from) / this.plotWidth / this.tick; // ticks a pixel
      const from = this.shared.from / this.tick, to = this.shared.to / this.tick;
      const heights = { start: -1, used: 0 }; // of the cell being drawn: several kinds may share one
      for (let i = firstVisible(lane, from); i < lane.start.length && lane.start[i] <= to; i++) {
        if (lane.start[i] + lane.length[i] < from) continue;
        if (lane.length[i] < 2 * pixel) this.addUp(columns, lane, i, from, pixel);
        else this.drawItem(pen, lane, i, top, high, heights);
      }
      this.drawColumns(pen, columns, top, high);
    }

    addUp(columns, lane, i, from, pixel) {
      const kind = lane.kind[i];
      const sums = columns[kind] || (columns[kind] = new Float32Array(this.plotWidth + 1));
      let begin = (lane.start[i] - from) / pixel;
      const end = begin + lane.length[i] / pixel, share = lane.share[i] / 100;
      begin = Math.max(0, begin);
      for (let column = Math.floor(begin); column < Math.min(end, this.plotWidth); column++) {
        sums[column] += share * (Math.min(end, column + 1) - Math.max(begin, column));
      }
    }

    drawItem(pen, lane, i, top, high, heights) {
      const kind = this.kinds[lane.kind[i]], share = lane.share[i] / 100;
      const left = Math.max(this.gutter, this.x(lane.start[i] * this.tick));
      const right = Math.min(this.gutter + this.plotWidth, this.x((lane.start[i] + lane.length[i]) * this.tick));
      if (right <= left) return;
      if (heights.start !== lane.start[i]) Object.assign(heights, { start: lane.start[i], used: 0 });
      const used = share < 1 ? heights.used : 0;
      heights.used += share;
      pen.fillStyle = colourOf(kind);
      pen.fillRect(left, top + high * Math.max(0, 1 - used - share), right - left, high * share);
      if (paused(kind)) hatch(pen, left, top, right - left, high);
    }

    /** Pixel by pixel into an image that is then laid over the lane: tens of thousands of rectangles a frame would not be fluid. */
    drawColumns(pen, columns, top, high) {
      if (!columns.length) return;
      const width = this.plotWidth, tall = Math.max(1, Math.round(high * (devicePixelRatio || 1)));
      const image = new ImageData(width, tall);
      const pixels = new Uint32Array(image.data.buffer);
      const used = new Uint16Array(width);
      columns.forEach((sums, kind) => {
        const colour = packed(colourOf(this.kinds[kind]));
        for (let column = 0; column < width; column++) {
          const share = sums[column];
          if (share <= 0.004) continue;
          const until = Math.min(tall, used[column] + Math.max(1, Math.round(share * tall)));
          for (let row = used[column]; row < until; row++) pixels[(tall - 1 - row) * width + column] = colour;
          used[column] = until;
        }
      });
      const sheet = this.sheet || (this.sheet = document.createElement("canvas"));
      sheet.width = width;
      sheet.height = tall;
      sheet.getContext("2d").putImageData(image, 0, 0);
      pen.imageSmoothingEnabled = false;
      pen.drawImage(sheet, this.gutter, top, width, high);
    }

    drawNames(pen) {
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "middle";
      pen.textAlign = "left";
      let last = -99;
      for (const { lane, top, high } of this.rows) {
        if (lane.thread !== "main" || top - last < 11) continue;
        last = top;
        pen.fillStyle = Theme.css("ink");
        pen.fillText(lane.worker, 0, top + high / 2, this.gutter - (this.narrow ? 6 : 44));
        if (lane.busy_share === null || this.narrow) continue;
        pen.fillStyle = Theme.css("muted");
        pen.textAlign = "right";
        pen.fillText(`${Math.round(100 * lane.busy_share)} %`, this.gutter - 8, top + high / 2);
        pen.textAlign = "left";
      }
    }

    drawMarks(pen) {
      pen.font = "11px system-ui, sans-serif";
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      for (const mark of this.run.marks) {
        const [sign, colour] = MARKS[mark.kind] || [];
        const x = this.x(mark.t_s);
        if (sign === undefined || x < this.gutter || x > this.gutter + this.plotWidth) continue;
        pen.fillStyle = Theme.css(colour);
        const row = this.rows.find((candidate) => candidate.lane.worker === mark.worker);
        if (!row) pen.fillRect(x, 14, 1.5, this.height - 14);
        else {
          pen.fillRect(x, row.top - 2, 1.5, row.high + 4);
          pen.fillText(sign, x, row.top + row.high / 2);
        }
      }
    }

    // ---------------------------------------------------------- pointing

    at(x, y) {
      const row = this.rows.find((candidate) => y >= candidate.top - 2 && y <= candidate.top + candidate.high + 2);
      const seconds = this.seconds(x);
      const near = (4 / this.plotWidth) * (this.shared.to - this.shared.from);
      const lines = this.run.marks.filter((mark) => MARKS[mark.kind] && Math.abs(mark.t_s - seconds) < near && (!row || !mark.worker || mark.worker === row.lane.worker))
        .slice(0, 3).map((mark) => mark.text);
      if (y < RULER) {
        const commit = nearestIndex(this.run.commits_s, seconds);
        if (commit >= 0 && Math.abs(this.run.commits_s[commit] - seconds) < near) lines.push(`commit at ${Units.seconds(this.run.commits_s[commit])}`);
      }
      if (row) lines.push(...this.describe(row.lane, seconds));
      return lines.length ? [row ? `${row.lane.worker}${row.lane.thread === "main" ? "" : `, ${row.lane.thread} thread`}` : Units.seconds(seconds), ...lines] : [];
    }

    describe(lane, seconds) {
      const tick = seconds / this.tick;
      if (!lane.alive.some((from, i) => i % 2 === 0 && from <= tick && tick <= lane.alive[i + 1])) return ["nothing recorded here"];
      const found = [];
      let before = null, after = null;
      for (let i = Math.max(0, firstVisible(lane, tick)); i < lane.start.length; i++) {
        const start = lane.start[i], end = start + lane.length[i];
        if (start > tick) { after = start; break; }
        if (end >= tick) found.push(i);
        else before = Math.max(before ?? end, end);
      }
      if (found.length) return found.map((i) => this.item(lane, i));
      const from = (before ?? lane.alive[0]) * this.tick, to = (after ?? lane.alive[lane.alive.length - 1]) * this.tick;
      return [`${lane.thread === "main" ? "waiting" : "idle"} for ${Units.seconds(to - from)}`, `${Units.seconds(from)} to ${Units.seconds(to)}`];
    }

    item(lane, i) {
      const kind = this.kinds[lane.kind[i]].replace(/^busy /, "");
      const from = lane.start[i] * this.tick, length = lane.length[i] * this.tick;
      return lane.share[i] < 100 ? `${kind}: ${lane.share[i]} % of the ${Units.seconds(length)} from ${Units.seconds(from)}`
        : `${kind} for ${Units.seconds(length)}, from ${Units.seconds(from)}`;
    }

    point(event) {
      const box = this.canvas.getBoundingClientRect();
      const x = event.clientX - box.left, y = event.clientY - box.top;
      const [title, ...lines] = x < this.gutter ? [] : this.at(x, y);
      this.tip.hidden = !title;
      if (!title) return;
      this.tip.replaceChildren(element("b", {}, title), ...lines.map((line) => element("div", {}, line)));
      const right = x > box.width / 2;
      this.tip.style.left = right ? "" : `${x + 14}px`;
      this.tip.style.right = right ? `${box.width - x + 14}px` : "";
      this.tip.style.top = `${y + 14}px`;
    }

    listen() {
      const canvas = this.canvas, touches = new Map();
      canvas.addEventListener("wheel", (event) => {
        const box = canvas.getBoundingClientRect();
        const across = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
        if (!across && event.deltaY > 0 && this.shared.to - this.shared.from >= this.shared.until) return; // all is seen: the page scrolls on
        event.preventDefault();
        if (across) pan(this.shared, ((event.deltaX || event.deltaY) / this.plotWidth) * (this.shared.to - this.shared.from));
        else zoom(this.shared, this.seconds(event.clientX - box.left), Math.exp(Math.max(-200, Math.min(200, event.deltaY)) * 0.004));
      }, { passive: false });
      canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); touches.set(event.pointerId, event); this.tip.hidden = true; });
      canvas.addEventListener("pointermove", (event) => {
        const before = touches.get(event.pointerId);
        if (!before) { this.point(event); return; }
        const span = this.shared.to - this.shared.from;
        if (touches.size === 1) pan(this.shared, ((before.clientX - event.clientX) / this.plotWidth) * span);
        else {
          const other = [...touches.values()].find((touch) => touch.pointerId !== event.pointerId);
          const [was, is] = [before, event].map((touch) => Math.max(10, Math.abs(touch.clientX - other.clientX)));
          zoom(this.shared, this.seconds((event.clientX + other.clientX) / 2 - canvas.getBoundingClientRect().left), was / is);
        }
        touches.set(event.pointerId, event);
      });
      for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, (event) => touches.delete(event.pointerId));
      canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
      canvas.addEventListener("dblclick", () => showAll(this.shared));
      canvas.addEventListener("keydown", (event) => {
        const span = this.shared.to - this.shared.from, middle = (this.shared.to + this.shared.from) / 2;
        const keys = { "+": () => zoom(this.shared, middle, 0.6), "=": () => zoom(this.shared, middle, 0.6), "-": () => zoom(this.shared, middle, 1.6),
          ArrowLeft: () => pan(this.shared, -0.2 * span), ArrowRight: () => pan(this.shared, 0.2 * span), 0: () => showAll(this.shared) };
        if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
      });
    }
  }

  // -------------------------------------------------------------- moving

  function zoom(shared, around, factor) {
    const span = Math.min(shared.until, Math.max(0.005, (shared.to - shared.from) * factor));
    const part = (around - shared.from) / (shared.to - shared.from);
    shared.from = around - part * span;
    shared.to = shared.from + span;
    keepInside(shared);
  }

  function pan(shared, seconds) {
    shared.from += seconds;
    shared.to += seconds;
    keepInside(shared);
  }

  function showAll(shared) {
    shared.from = 0;
    shared.to = shared.until;
    keepInside(shared);
  }

  function keepInside(shared) {
    const shift = shared.from < 0 ? -shared.from : shared.to > shared.until ? shared.until - shared.to : 0;
    shared.from += shift;
    shared.to += shift;
    redraw();
  }

  let due = false;
  function redraw() {
    if (due) return; // once a frame, however many events came
    due = true;
    requestAnimationFrame(() => { due = false; views.forEach((view) => view.draw()); });
  }

  // -------------------------------------------------------------- helpers

  /** The first item that may reach into view: items are sorted by start, and the one before may last. */
  function firstVisible(lane, tick) {
    let low = 0, high = lane.start.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.start[middle] < tick) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low - 8); // kinds of one cell share their start
  }

  /** "#rrggbb" as a pixel of an image, in the byte order that every browser's machine has. */
  function packed(colour) {
    const value = parseInt(colour.slice(1), 16);
    return (0xff000000 | ((value & 0xff) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
  }

  function nearestIndex(values, wanted) {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] < wanted) low = middle + 1;
      else high = middle;
    }
    if (low > 0 && (low === values.length || wanted - values[low - 1] < values[low] - wanted)) low--;
    return low < values.length ? low : -1;
  }

  function niceStep(least) {
    const steps = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
    return steps.find((step) => step >= least) || 86400 * Math.ceil(least / 86400);
  }

  function hatch(pen, left, top, width, high) {
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width, high);
    pen.clip();
    pen.strokeStyle = Theme.css("back");
    pen.beginPath();
    for (let x = left - high; x < left + width; x += 5) {
      pen.moveTo(x, top + high);
      pen.lineTo(x + high, top);
    }
    pen.stroke();
    pen.restore();
  }

  function key(runs) {
    const kinds = [...new Set(runs.flatMap((run) => run.timeline.kinds))];
    const shown = [...new Map(kinds.map((kind) => [paused(kind) ? "paused" : kind.split(" ")[1], colourOf(kind)]))];
    const entries = [...shown, ["waiting", Theme.css("wait")]].map(([name, colour]) => {
      const swatch = element("i", {});
      swatch.style.background = colour;
      return element("span", {}, swatch, name);
    });
    return entries;
  }

  function build(runs) {
    const home = document.getElementById("timeline");
    const recorded = runs.filter((run) => run.timeline);
    if (!home) return 0;
    if (!recorded.length) {
      home.append(element("p", { class: "absent" }, "not recorded: there is no timeline.jsonl (an older run, or one that ended before its first heartbeat)"));
      return 0;
    }
    const until = Math.max(...recorded.map((run) => run.timeline.until_s), 0.01);
    const shared = { from: 0, to: until, until };
    const legend = element("p", { class: "key" }, ...key(recorded));
    const button = (text, title, act) => element("button", { type: "button", title, "aria-label": title, onclick: act }, text);
    const middle = () => (shared.from + shared.to) / 2;
    home.append(element("div", { class: "tools" }, legend, element("span", { class: "zooms" },
      button("+", "zoom in", () => zoom(shared, middle(), 0.5)), button("−", "zoom out", () => zoom(shared, middle(), 2)), button("all", "show all", () => showAll(shared)))));
    for (const run of runs) {
      if (runs.length > 1) home.append(element("h4", {}, element("i", { class: `swatch run${runs.indexOf(run)}` }), run.name));
      if (!run.timeline) home.append(element("p", { class: "absent" }, "not recorded"));
      else {
        views.push(new View(run, home, shared));
        home.append(element("p", { class: "says" }, resolution(run.timeline)));
      }
    }
    new ResizeObserver(redraw).observe(home);
    views.forEach((view) => view.draw());
    Theme.onChange(() => { legend.replaceChildren(...key(recorded)); views.forEach((view) => view.draw()); });
    return views.length;
  }

  function resolution(line) {
    const count = line.spans.toLocaleString("en");
    const exact = line.cell_s === 0 ? `all ${count} recorded spans, to the millisecond` : `${count} recorded spans; those shorter than ${Units.seconds(line.cell_s)} are put together`;
    return `${exact}. Wide rows: what the worker's main thread does; thin rows: its writer and receiver. Wheel zooms, drag moves, double-click shows all. Percentages: busy share.`;
  }

  return { build };
})();
