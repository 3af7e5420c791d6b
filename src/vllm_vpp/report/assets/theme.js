"use strict";
// Owns the colours of the charts, the list of all charts, and drawing them anew when the reader's
// scheme changes or the page is printed. Series keep their colours in both schemes.

const NS = 1e-9;
const RUN_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
const RUN_MARKS = ["circle", "diamond", "square", "triangle-up", "cross", "star"];
const SWEEPS = ["#0072B2", "#009E73", "#56B4E9", "#CC79A7"];
const SWEEP_TEXT = ["#ffffff", "#000000", "#000000", "#000000"];
const PARTS = {
  compute: ["compute", "#0072B2", ""],
  exposed: ["exposed communication", "#D55E00", "/"],
  fill: ["fill", "#BBBBBB", ""],
  drain: ["drain", "#7F7F7F", "\\"],
  stall: ["stall", "#E69F00", "x"],
  host: ["host (launch-blocked)", "#CC79A7", "."],
  starved: ["starved", "#80808040", ""],
};
const TRANSFER = "#D55E00";

const page = JSON.parse(document.getElementById("data").textContent);
const charts = [];
const PRINT_PX = 690; // of the width between the margins of an A4 page
let printing = false;

function theme() {
  const style = getComputedStyle(document.documentElement);
  const light = { paper: "#ffffff", text: "#000000", dim: "#444444", line: "#bbbbbb", panel: "#f6f7f8" };
  if (printing) return light;
  const found = {};
  for (const name of Object.keys(light)) found[name] = style.getPropertyValue(`--${name}`).trim();
  return found;
}

function layoutOf(extra) {
  const look = theme();
  const axis = { gridcolor: look.line, linecolor: look.line, zerolinecolor: look.line, automargin: true };
  return {
    paper_bgcolor: look.paper,
    plot_bgcolor: look.paper,
    width: printing ? PRINT_PX : undefined,
    font: { color: look.text, family: "system-ui, sans-serif", size: 13 },
    hoverlabel: { bgcolor: look.panel, bordercolor: look.dim, font: { color: look.text } },
    margin: { l: 70, r: 20, t: 60, b: 45 }, // buttons, then the legend, above the plot
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    hovermode: "closest",
    ...extra,
    xaxis: { ...axis, ...extra.xaxis },
    yaxis: { ...axis, ...extra.yaxis },
  };
}

const CONFIG = {
  responsive: true,
  displaylogo: false,
  doubleClick: "reset",
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
};

function seconds(value) {
  if (value === 0) return "0 s";
  const size = Math.abs(value);
  if (size < 1e-3) return `${(value * 1e6).toPrecision(3)} µs`;
  return size < 1 ? `${(value * 1e3).toPrecision(4)} ms` : `${value.toFixed(3)} s`;
}

function drawAll() {
  for (const chart of charts) chart.draw();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
addEventListener("beforeprint", () => { printing = true; drawAll(); });
addEventListener("afterprint", () => { printing = false; drawAll(); });

for (const mark of document.querySelectorAll("[data-colour]")) {
  const [key, number] = mark.dataset.colour.split(":");
  mark.style.background = key === "sweep" ? SWEEPS[number % SWEEPS.length]
    : key === "transfer" ? TRANSFER : PARTS[key][1];
}
