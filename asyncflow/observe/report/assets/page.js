// Puts the page together. `data-report` on the root element says how it went: "drawn", or what was raised.
"use strict";
(() => {
  const root = document.documentElement;
  addEventListener("error", (event) => { root.dataset.report = `error: ${event.message}`; });

  const runs = JSON.parse(document.getElementById("data").textContent);

  for (const section of document.querySelectorAll("main section[id]")) {
    document.querySelector("nav .links").append(element("a", { href: `#${section.id}` }, section.querySelector("h2").textContent));
  }

  const lanes = Timelines.build(runs);
  Charts.build(runs);
  Theme.onChange(() => Charts.redraw(runs));
  document.querySelector(".theme").addEventListener("click", () => Theme.toggle());
  const switches = [...document.querySelectorAll("[data-axis]")];
  for (const button of switches) {
    button.addEventListener("click", () => {
      for (const other of switches) other.setAttribute("aria-pressed", other === button);
      Charts.setAxis(button.dataset.axis, runs);
    });
  }
  root.dataset.charts = Charts.count();
  root.dataset.timelines = lanes;
  if (!root.dataset.report) root.dataset.report = "drawn";
})();
