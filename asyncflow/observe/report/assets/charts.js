// Curves of one or two runs, drawn by uPlot. Two runs share a chart's axes: one colour a run, one dash a curve; charts of many curves are split.
"use strict";
const Charts = (() => {
  const HEIGHT = 230;
  const DASHES = [[], [6, 4], [2, 3]];
  const SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
  const LABELS = { version: "version", seconds: "time since the start" };
  const drawn = []; // {card, chart of each run, plot}
  let axis = "version";

  // ------------------------------------------------------------ data

  /** One uPlot table a grid: x ascending and without doubles, as a join demands. */
  function tables(runs, panel) {
    const found = [], names = [];
    runs.forEach((run, place) => {
      const byGrid = new Map();
      for (const curve of panel.curves[place] || []) byGrid.set(curve.grid, [...(byGrid.get(curve.grid) || []), curve]);
      for (const [grid, curves] of byGrid) {
        const x = run.grids[grid].axes[panel.x || axis];
        found.push(ascending([x, ...curves.map((curve) => curve.y)]));
        names.push(...curves.map((curve) => ({ ...curve, place, run: run.name })));
      }
    });
    return { data: uPlot.join(found), curves: names };
  }

  function ascending(table) {
    const x = table[0];
    const last = new Map(x.map((value, i) => [value, i])); // of equal x the last counts: a version that was trained again
    const order = [...last.entries()].sort((a, b) => a[0] - b[0]).map((entry) => entry[1]);
    return table.map((column) => order.map((i) => column[i]));
  }

  /** Panels of a section: what is drawn into one frame. With two runs, a chart of more than three curves becomes one panel a curve. */
  function panels(runs, section) {
    const keys = [...new Set(runs.flatMap((run) => run.charts.filter((chart) => chart.section === section).map((chart) => chart.key)))];
    return keys.flatMap((key) => {
      const charts = runs.map((run) => run.charts.find((chart) => chart.key === key));
      const spec = charts.find((chart) => chart && chart.curves.length) || charts.find(Boolean);
      const names = [...new Set(charts.flatMap((chart) => (chart ? chart.curves.map((curve) => curve.name) : [])))];
      const whole = { ...spec, curves: charts.map((chart) => (chart ? chart.curves : [])) };
      if (runs.length < 2 || names.length <= 3) return [{ ...whole, names }];
      return names.map((name) => ({
        ...whole, names: [name], title: `${spec.title}: ${name}`, curves: whole.curves.map((curves) => curves.filter((curve) => curve.name === name)),
      }));
    });
  }

  // ------------------------------------------------------------ drawing

  function colour(curve, panel, runs) {
    return runs.length > 1 ? Theme.css(`run${curve.place}`) : Theme.series(panel.names.indexOf(curve.name));
  }

  function series(curve, panel, runs) {
    const stroke = colour(curve, panel, runs);
    const few = curve.y.filter((value) => value !== null).length < 2;
    const stairs = curve.shape === "stairs";
    return {
      label: label(curve, panel, runs),
      stroke,
      width: 1.6,
      dash: runs.length > 1 ? DASHES[panel.names.indexOf(curve.name) % DASHES.length] : [],
      fill: stairs && panel.x ? stroke + "22" : undefined,
      paths: stairs ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: curve.shape === "points" || few, size: 6, fill: stroke },
    };
  }

  function label(curve, panel, runs) {
    if (runs.length < 2) return curve.name;
    return panel.names.length > 1 ? `${curve.run}: ${curve.name}` : curve.run;
  }

  function yRange(panel) {
    return (plot, low, high) => {
      if (low === null || high === null) return [0, 1];
      if (!panel.from_zero) return low === high ? [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)] : uPlot.rangeNum(low, high, 0.1, true);
      return [Math.min(0, low), high > 0 ? high * 1.06 : 1];
    };
  }

  /** All charts over versions or time show the same stretch, so that they can be read one below the other; a zoom is left as it is. */
  function xRange(panel, runs) {
    const [first, last] = panel.x ? [Infinity, -Infinity] : extent(runs);
    return (plot, low, high) => {
      const x = plot.data[0];
      if (low === null || !x.length) return [0, 1];
      if (low > x[0] || high < x[x.length - 1]) return [low, high];
      const [from, to] = [Math.min(x[0], first), Math.max(x[x.length - 1], last)];
      return from === to ? [from - 0.5, to + 0.5] : [from, to];
    };
  }

  function extent(runs) {
    const ends = runs.flatMap((run) => Object.values(run.grids)).flatMap((grid) => (grid.axes[axis] || []).slice(-1));
    return [0, Math.max(1e-3, ...ends)];
  }

  function axes(panel) {
    const seconds = !panel.x && axis === "seconds";
    const common = { stroke: Theme.css("muted"), font: "11px system-ui, sans-serif", labelFont: "11px system-ui, sans-serif", labelSize: 16, labelGap: 0,
      grid: { stroke: Theme.css("line"), width: 1 }, ticks: { stroke: Theme.css("line"), width: 1, size: 4 } };
    return [
      { ...common, label: panel.x || LABELS[axis], space: seconds ? 72 : 52, size: 30,
        incrs: seconds ? SECONDS : panel.x || axis === "version" ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6] : undefined,
        values: (plot, splits) => splits.map((value, i) => (seconds ? Units.seconds(value, splits[1] - splits[0]) : Units.number(value))) },
      { ...common, label: panel.unit, size: 52, values: (plot, splits) => splits.map(Units.number) },
    ];
  }

  /** The nearest measured point of each curve: two runs have their points in different places. */
  function nearest(plot, place, index) {
    const values = plot.data[place];
    if (values[index] !== null && values[index] !== undefined) return index;
    for (let away = 1; away < values.length; away++) {
      for (const i of [index - away, index + away]) if (values[i] !== null && values[i] !== undefined) return i;
      if (index - away < 0 && index + away >= values.length) break;
    }
    return index;
  }

  function tooltip(panel, curves) {
    const box = element("div", { class: "tip", role: "status" });
    return { hooks: {
      init: (plot) => plot.over.append(box),
      setCursor: (plot) => {
        const { left, top, idxs } = plot.cursor;
        const rows = left >= 0 && idxs && plot.over.matches(":hover") ? // other charts show the same moment by their line alone
           curves.map((curve, i) => [curve, plot.data[i + 1][idxs[i + 1]], plot.data[0][idxs[i + 1]]])
          .filter((row, i) => plot.series[i + 1].show && row[1] !== null && row[1] !== undefined) : [];
        box.hidden = !rows.length;
        if (!rows.length) return;
        const x = rows[0][2];
        box.replaceChildren(element("b", {}, panel.x ? `${Units.number(x)} ${panel.x}` : axis === "seconds" ? Units.seconds(x) : `version ${x}`),
          ...rows.map(([curve, value], i) => {
            const swatch = element("i", {});
            swatch.style.background = plot.series[curves.indexOf(curve) + 1]._stroke || plot.series[curves.indexOf(curve) + 1].stroke();
            return element("div", {}, swatch, `${plot.series[curves.indexOf(curve) + 1].label} `, element("span", {}, `${Units.number(value)} ${panel.unit}`));
          }));
        const right = left > plot.over.clientWidth / 2;
        box.style.left = right ? "" : `${left + 12}px`;
        box.style.right = right ? `${plot.over.clientWidth - left + 12}px` : "";
        box.style.top = `${Math.max(0, Math.min(top, plot.over.clientHeight - box.offsetHeight))}px`;
      },
    } };
  }

  function legend(card, plot, panel, curves, runs) {
    const entries = curves.map((curve, i) => {
      const line = element("i", {});
      line.style.borderTop = `3px ${["solid", "dashed", "dotted"][runs.length > 1 ? panel.names.indexOf(curve.name) % 3 : 0]} ${colour(curve, panel, runs)}`;
      const button = element("button", { type: "button", "aria-pressed": "true", title: "show or hide" }, line, label(curve, panel, runs));
      button.addEventListener("click", () => {
        const show = !plot.series[i + 1].show;
        plot.setSeries(i + 1, { show });
        button.setAttribute("aria-pressed", show);
      });
      return button;
    });
    card.querySelector(".legend").replaceChildren(...(curves.length > 1 ? entries : []));
  }

  function plotInto(entry, runs) {
    const { card, panel } = entry;
    const frame = card.querySelector(".plot");
    const { data, curves } = tables(runs, panel);
    if (entry.plot) entry.plot.destroy();
    frame.replaceChildren();
    const sync = panel.x ? undefined : { key: `x-${axis}`, scales: ["x", null], setSeries: false };
    entry.plot = new uPlot({
      width: Math.max(200, frame.clientWidth), height: HEIGHT, legend: { show: false },
      cursor: { y: false, sync, dataIdx: nearest, points: { size: 6 }, focus: { prox: -1 } },
      scales: { x: { time: false, range: xRange(panel, runs) }, y: { range: yRange(panel) } },
      series: [{}, ...curves.map((curve) => series(curve, panel, runs))],
      axes: axes(panel),
      plugins: [tooltip(panel, curves)],
    }, data, frame);
    legend(card, entry.plot, panel, curves, runs);
  }

  function cardOf(panel, runs) {
    const steps = Math.max(...panel.curves.flatMap((curves, place) => curves.map((curve) => runs[place].grids[curve.grid].steps_a_point)), 1);
    const says = steps > 1 ? `${panel.says} One point stands for ${steps} steps.` : panel.says;
    return element("figure", { class: "chart", id: `chart-${panel.key}` }, element("figcaption", {}, element("h3", {}, panel.title), element("p", {}, says)),
      element("div", { class: "legend" }), element("div", { class: "plot" }));
  }

  function build(runs) {
    const resize = new ResizeObserver((changes) => {
      for (const change of changes) {
        const entry = drawn.find((candidate) => candidate.card.querySelector(".plot") === change.target);
        const width = Math.floor(change.contentRect.width);
        if (entry && entry.plot && width > 0 && Math.abs(entry.plot.width - width) > 1) entry.plot.setSize({ width, height: HEIGHT });
      }
    });
    for (const place of document.querySelectorAll(".charts")) {
      for (const panel of panels(runs, place.dataset.section)) {
        const card = cardOf(panel, runs);
        place.append(card);
        const empty = runs.filter((run, i) => !panel.curves[i].length);
        if (empty.length === runs.length) card.querySelector(".plot").replaceChildren(element("p", { class: "absent" }, panel.absent || "not recorded"));
        else {
          if (empty.length) card.querySelector("figcaption p").append(` Not recorded by ${empty.map((run) => run.name).join(", ")}.`);
          drawn.push({ card, panel });
          resize.observe(card.querySelector(".plot"));
        }
      }
    }
    redraw(runs);
  }

  function redraw(runs) {
    for (const entry of drawn) plotInto(entry, runs);
  }

  return { build, redraw, setAxis(name, runs) { axis = name; redraw(runs); }, count: () => drawn.length };
})();
