// Colours and units, read from the page's style, so that light, dark and print share one drawing code.
"use strict";
const Theme = (() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const listeners = [];
  let chosen = null; // null: what the system prefers
  let cache = {};

  function apply() {
    root.dataset.theme = chosen || (dark.matches ? "dark" : "light");
    cache = {};
    for (const listener of listeners) listener();
  }

  function css(name) {
    if (!(name in cache)) cache[name] = getComputedStyle(root).getPropertyValue(`--${name}`).trim();
    return cache[name];
  }

  dark.addEventListener("change", apply);
  addEventListener("beforeprint", () => { root.dataset.before = chosen || ""; chosen = "light"; apply(); });
  addEventListener("afterprint", () => { chosen = root.dataset.before || null; apply(); });
  apply();
  return {
    css,
    series: (i) => css(`c${i % 8}`),
    toggle() { chosen = root.dataset.theme === "dark" ? "light" : "dark"; apply(); },
    onChange(listener) { listeners.push(listener); },
  };
})();

const Units = (() => {
  const trim = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

  function number(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 1e9) return trim((value / 1e9).toFixed(2)) + " G";
    if (size >= 1e6) return trim((value / 1e6).toFixed(2)) + " M";
    if (size >= 1e4) return trim((value / 1e3).toFixed(1)) + " k";
    if (size >= 100 || Number.isInteger(value)) return trim(value.toFixed(1));
    if (size >= 0.001 || size === 0) return trim(value.toPrecision(4));
    return value.toExponential(2);
  }

  // `step`: the distance of two labels, which decides how many digits are worth saying
  function seconds(value, step = 0) {
    if (Math.abs(value) < 1 && step < 0.01 && value !== 0) return `${trim((value * 1e3).toFixed(1))} ms`;
    if (Math.abs(value) < 100) return `${trim(value.toFixed(step && step < 0.1 ? 3 : 2))} s`;
    const whole = Math.round(value);
    if (whole < 3600) return `${Math.floor(whole / 60)} min${whole % 60 ? ` ${String(whole % 60).padStart(2, "0")} s` : ""}`;
    const minutes = Math.floor((whole % 3600) / 60), rest = whole % 60;
    return `${Math.floor(whole / 3600)} h${minutes || rest ? ` ${String(minutes).padStart(2, "0")} min` : ""}${rest ? ` ${String(rest).padStart(2, "0")} s` : ""}`;
  }

  return { number, seconds };
})();

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children); // texts become text nodes: nothing of a run is ever read as markup
  return made;
}
