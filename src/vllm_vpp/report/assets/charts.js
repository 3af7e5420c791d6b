"use strict";
// Owns the other charts: parts of the makespan, chunk times with their line, times to first token.
// Every number drawn is read from the page's data; only shares and points on lines are computed.

class Chart {
  constructor(id, make) {
    this.div = document.getElementById(id);
    this.make = make;
    if (this.div) {
      this.draw();
      charts.push(this);
    }
  }

  draw() {
    const [traces, layout] = this.make();
    Plotly.react(this.div, traces, layoutOf(layout), CONFIG);
  }
}

function parts() {
  const bars = page.runs.flatMap((run) =>
    run.metrics.ranks.map((rank) => ({ rank, label: `${run.name}, rank ${rank.rank}` })));
  const look = theme();
  const traces = Object.entries(PARTS).map(([part, [name, colour, pattern]]) => ({
    type: "bar", orientation: "h", name, y: bars.map((b) => b.label), x: bars.map((b) => b.rank[part]),
    marker: {
      color: colour, line: { color: look.paper, width: 0.5 },
      pattern: { shape: pattern, fgcolor: "#00000055", size: 6, fillmode: "overlay" },
    },
    customdata: bars.map((b) => b.rank[part] / b.rank.makespan),
    hovertemplate: "%{y}<br>%{x:.3f} s, %{customdata:.1%}<extra>" + name + "</extra>",
  }));
  return [traces, {
    barmode: "stack", height: 160 + 30 * bars.length, bargap: 0.25,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
    xaxis: { title: { text: "seconds" } }, yaxis: { autorange: "reversed", showgrid: false },
  }];
}

function chunkTimes() {
  const traces = [];
  page.runs.forEach((run, i) => {
    const { seconds: tau, line } = run.chunk_times;
    if (!tau.length) return;
    const colour = RUN_COLOURS[i % RUN_COLOURS.length], k = tau.map((_, n) => n);
    if (line) {
      traces.push({
        type: "scatter", mode: "lines", x: [...k, ...[...k].reverse()], legendgroup: run.name,
        y: [...line.high, ...[...line.low].reverse()], fill: "toself", fillcolor: `${colour}33`,
        line: { width: 0 }, hoverinfo: "skip", showlegend: false, name: `${run.name}, band`,
      }, {
        type: "scatter", mode: "lines", x: k, y: k.map((n) => line.intercept + line.slope * n),
        line: { color: colour, dash: ["solid", "dash", "dot", "dashdot"][i % 4], width: 1.5 },
        legendgroup: run.name, showlegend: false, hoverinfo: "skip", name: `${run.name}, line`,
      });
    }
    traces.push({
      type: "scatter", mode: "markers", x: k, y: tau, name: run.name, legendgroup: run.name,
      marker: { color: colour, symbol: RUN_MARKS[i % RUN_MARKS.length], size: 8 },
      hovertemplate: "chunk %{x}: %{y:.4g} s<extra>" + run.name + "</extra>",
    });
  });
  return [traces, {
    height: 420, xaxis: { title: { text: "chunk k" } },
    yaxis: { title: { text: "seconds over all stages" }, rangemode: "tozero" },
  }];
}

function firstTokens() {
  const shown = page.runs.filter((run) => run.first_token_seconds.length);
  const traces = shown.map((run, i) => {
    const colour = RUN_COLOURS[page.runs.indexOf(run) % RUN_COLOURS.length];
    return {
      type: "box", orientation: "h", x: run.first_token_seconds, name: run.name, boxpoints: "all",
      jitter: 0.5, pointpos: 0, showlegend: false, fillcolor: `${colour}33`, line: { color: colour },
      marker: { color: colour, symbol: RUN_MARKS[i % RUN_MARKS.length], size: 7 },
      hovertemplate: "%{x:.3f} s<extra>" + run.name + "</extra>",
    };
  });
  return [traces, {
    height: 90 + 60 * shown.length, margin: { l: 70, r: 20, t: 30, b: 45 }, xaxis: { title: { text: "seconds" }, rangemode: "normal" },
    yaxis: { autorange: "reversed", showgrid: false },
  }];
}

drawTimelines();
new Chart("parts", parts);
new Chart("chunk-times", chunkTimes);
new Chart("first-tokens", firstTokens);
