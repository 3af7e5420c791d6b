"use strict";
// Owns the timelines: one row per rank, one filled trace per kind of span, drawn for what is in view
// only. Neighbours narrower than two pixels become one block, so that a view never holds more blocks
// than pixels, however many spans there are. All timelines share one time axis.

const LOD_PX = 2;
const GAP_PX = 1;

// Rows of spans of one kind by rank, sorted by start; `lift` is the row's place within the rank's.
class Lane {
  constructor(name, colour, low, high) {
    Object.assign(this, { name, colour, low, high, rows: new Map(), longest: 0 });
  }

  add(span) {
    if (!this.rows.has(span.rank)) this.rows.set(span.rank, []);
    this.rows.get(span.rank).push(span);
    this.longest = Math.max(this.longest, span.end - span.start);
  }

  // Position in a row of the first span that may reach past `time`.
  from(row, time) {
    let low = 0, high = row.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row[middle].start < time - this.longest) low = middle + 1; else high = middle;
    }
    return low;
  }

  at(rank, time) {
    const row = this.rows.get(rank) || [];
    for (let i = this.from(row, time); i < row.length && row[i].start <= time; i++) {
      if (row[i].end >= time) return row[i];
    }
    return null;
  }

  blocks(rank, from, to, pixel) {
    const row = this.rows.get(rank) || [], found = [];
    let last = null;
    for (let i = this.from(row, from); i < row.length && row[i].start < to; i++) {
      const span = row[i];
      if (span.end < from) continue;
      const narrow = span.end - span.start < LOD_PX * pixel;
      if (last && last.narrow && narrow && span.start - last.end < GAP_PX * pixel) {
        last.end = Math.max(last.end, span.end);
      } else {
        last = { rank, start: span.start, end: span.end, narrow, span };
        found.push(last);
      }
    }
    return found;
  }
}

function lanesOf(run) {
  const lanes = [];
  const idle = {};
  for (const [reason, [name, colour]] of Object.entries(PARTS)) {
    if (reason === "compute" || reason === "exposed") continue;
    idle[reason] = new Lane(name, colour, -0.36, 0.3);
    lanes.push(idle[reason]);
  }
  const sweeps = [];
  for (let sweep = 0; sweep < run.sweeps; sweep++) {
    sweeps.push(new Lane(`compute, sweep ${sweep}`, SWEEPS[sweep % SWEEPS.length], -0.36, 0.3));
  }
  const transfer = new Lane("transfer", TRANSFER, 0.33, 0.43);
  const spans = run.spans, idles = run.idle;
  spans.start.forEach((start, i) => {
    const span = {
      rank: spans.rank[i], kind: page.kinds[spans.kind[i]], stage: spans.stage[i],
      batch: spans.batch[i], start: start * NS, end: spans.end[i] * NS,
    };
    span.sweep = Math.floor(span.stage / run.ranks);
    (span.kind === "compute" ? sweeps[span.sweep] : transfer).add(span);
  });
  idles.start.forEach((start, i) => {
    const reason = idles.reason[i];
    idle[reason].add({ rank: idles.rank[i], kind: reason, start: start * NS, end: idles.end[i] * NS });
  });
  lanes.push(...sweeps, transfer);
  for (const lane of lanes) for (const row of lane.rows.values()) row.sort((a, b) => a.start - b.start);
  return { lanes, sweeps, transfer, idle: Object.values(idle) };
}

function describe(run, span) {
  const took = `${seconds(span.end - span.start)}, from ${seconds(span.start)} to ${seconds(span.end)}`;
  if (PARTS[span.kind] && span.kind !== "compute") {
    return `rank ${span.rank}: idle, ${PARTS[span.kind][0]}\n${took}`;
  }
  const chunks = (run.batches[span.batch] || []).map(
    ([request, prefix, tokens]) => `${tokens.toLocaleString("en")} tokens after ${prefix.toLocaleString("en")} (${request})`);
  const more = chunks.length > 4 ? [...chunks.slice(0, 4), `and ${chunks.length - 4} more`] : chunks;
  return [`rank ${span.rank}: ${span.kind} C${span.batch}, stage ${span.stage}`, took, ...more].join("\n");
}

class Timeline {
  constructor(run, div, longest) {
    Object.assign(this, { run, div, longest, rank: 0, chosen: null, ...lanesOf(run) });
    this.range = [0, longest];
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.detail = document.getElementById(`${div.id}-detail`);
    this.draw();
    div.append(this.tip);
    div.on("plotly_relayout", (event) => this.moved(event));
    div.addEventListener("mousemove", (event) => this.point(event));
    div.addEventListener("mouseleave", () => { this.tip.hidden = true; });
    div.addEventListener("keydown", (event) => this.key(event));
  }

  draw() {
    const ranks = this.run.ranks;
    const layout = layoutOf({
      height: 95 + 54 * ranks,
      margin: { l: 70, r: 20, t: 30, b: 45 },
      showlegend: false,
      dragmode: this.div.layout?.dragmode ?? "zoom",
      xaxis: { range: [...this.range], title: { text: "seconds" }, zeroline: false },
      yaxis: {
        range: [ranks - 0.5, -0.5], fixedrange: true, showgrid: false, zeroline: false,
        tickvals: [...Array(ranks).keys()], ticktext: [...Array(ranks).keys()].map((r) => `rank ${r}`),
      },
    });
    Plotly.react(this.div, this.traces(), layout, CONFIG);
  }

  traces() {
    const [from, to] = this.range, pixel = (to - from) / Math.max(this.div.clientWidth - 90, 200);
    const paper = theme().paper, traces = [], labels = { x: [], y: [], text: [], colour: [] };
    this.drawn = 0;
    for (const lane of this.lanes) {
      const x = [], y = [];
      for (let rank = 0; rank < this.run.ranks; rank++) {
        for (const block of lane.blocks(rank, from, to, pixel)) {
          const low = rank + lane.low, high = rank + lane.high;
          const end = Math.max(block.end, block.start + pixel / 2);
          x.push(block.start, end, end, block.start, block.start, null);
          y.push(low, low, high, high, low, null);
          this.drawn += 1;
          const label = String(block.span.batch);
          if (block.span.kind === "compute" && (end - block.start) / pixel > 8 * label.length + 6) {
            const visible = (Math.max(block.start, from) + Math.min(end, to)) / 2;
            labels.x.push(visible); labels.y.push(rank - 0.03); labels.text.push(label);
            labels.colour.push(SWEEP_TEXT[block.span.sweep % SWEEP_TEXT.length]);
          }
        }
      }
      traces.push({
        type: "scatter", mode: "lines", name: lane.name, x, y, fill: "toself", fillcolor: lane.colour,
        line: { color: lane === this.transfer ? lane.colour : paper, width: 0.6, simplify: false },
        hoverinfo: "skip",
      });
    }
    traces.push({
      type: "scatter", mode: "text", x: labels.x, y: labels.y, text: labels.text, hoverinfo: "skip",
      textfont: { color: labels.colour, size: 12 }, name: "micro-batch", cliponaxis: true,
    });
    traces.push(this.outline());
    return traces;
  }

  outline() {
    const s = this.chosen, x = [], y = [];
    if (s) {
      const moves = s.kind === "send" || s.kind === "recv";
      const low = s.rank + (moves ? 0.31 : -0.39), high = s.rank + (moves ? 0.45 : 0.33);
      x.push(s.start, s.end, s.end, s.start, s.start);
      y.push(low, low, high, high, low);
    }
    const line = { color: theme().text, width: 2.5, simplify: false };
    return { type: "scatter", mode: "lines", x, y, line, hoverinfo: "skip", name: "chosen" };
  }

  moved(event) {
    const low = event["xaxis.range[0]"] ?? event["xaxis.range"]?.[0];
    const high = event["xaxis.range[1]"] ?? event["xaxis.range"]?.[1];
    if (low === undefined && !event["xaxis.autorange"]) {
      if (event.autosize || "width" in event) this.draw();
      return;
    }
    zoomAll(low === undefined ? [0, this.longest] : [Number(low), Number(high)]);
  }

  spanAt(rank, offset, time) {
    if (rank < 0 || rank >= this.run.ranks) return null;
    const lanes = offset > 0.31 ? [this.transfer] : [...this.sweeps, ...this.idle];
    for (const lane of lanes) {
      const span = lane.at(rank, time);
      if (span) return span;
    }
    return null;
  }

  point(event) {
    const { xaxis, yaxis } = this.div._fullLayout, box = this.div.getBoundingClientRect();
    const left = event.clientX - box.left, top = event.clientY - box.top;
    const time = xaxis.p2d(left - xaxis._offset), row = yaxis.p2d(top - yaxis._offset);
    const rank = Math.round(row), span = this.spanAt(rank, row - rank, time);
    if (span) this.show(span, left, top); else this.tip.hidden = true;
  }

  show(span, left, top) {
    this.tip.textContent = describe(this.run, span);
    this.tip.hidden = false;
    const room = this.div.clientWidth - this.tip.offsetWidth - 8;
    this.tip.style.left = `${Math.max(0, Math.min(left + 14, room))}px`;
    this.tip.style.top = `${top + 16}px`;
  }

  choose(span) {
    this.chosen = span;
    this.rank = span.rank;
    this.detail.textContent = describe(this.run, span).replaceAll("\n", "; ");
    const [from, to] = this.range, wide = to - from;
    if (span.end < from || span.start > to) {
      const start = Math.max(0, (span.start + span.end - wide) / 2);
      zoomAll([start, start + wide]);
    } else this.draw();
  }

  // All computes of a rank in order of time.
  computes(rank) {
    return this.sweeps.flatMap((lane) => lane.rows.get(rank) || []).sort((a, b) => a.start - b.start);
  }

  step(by) {
    const row = this.computes(this.rank), time = this.chosen ? this.chosen.start : this.range[0];
    const next = by > 0 ? row.find((s) => s.start > time || !this.chosen) : row.findLast((s) => s.start < time);
    if (next) this.choose(next);
  }

  toRank(by) {
    const rank = Math.min(Math.max(this.rank + by, 0), this.run.ranks - 1), row = this.computes(rank);
    const time = this.chosen ? this.chosen.start : this.range[0];
    const next = row.find((s) => s.end > time) || row[row.length - 1];
    this.rank = rank;
    if (next) this.choose(next);
  }

  key(event) {
    const acts = {
      ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1),
      ArrowDown: () => this.toRank(1), ArrowUp: () => this.toRank(-1),
      "+": () => zoomBy(0.5, this.middle()), "=": () => zoomBy(0.5, this.middle()),
      "-": () => zoomBy(2, this.middle()), 0: () => zoomBy(Infinity), Home: () => zoomBy(Infinity),
    };
    if (acts[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      acts[event.key]();
    }
  }

  middle() {
    return this.chosen ? (this.chosen.start + this.chosen.end) / 2 : (this.range[0] + this.range[1]) / 2;
  }
}

const timelines = [];

function zoomAll(range) {
  for (const timeline of timelines) {
    timeline.range = range;
    timeline.draw();
  }
}

function zoomBy(factor, middle) {
  if (!timelines.length) return;
  const { range: [from, to], longest } = timelines[0];
  const wide = Math.min((to - from) * factor, longest);
  const centre = middle ?? (from + to) / 2;
  const start = Math.min(Math.max(0, centre - wide / 2), longest - wide);
  zoomAll([start, start + wide]);
}

function panBy(share) {
  if (!timelines.length) return;
  const { range: [from, to], longest } = timelines[0];
  const start = Math.min(Math.max(0, from + share * (to - from)), Math.max(0, longest - (to - from)));
  zoomAll([start, start + to - from]);
}

function drawTimelines() {
  const longest = Math.max(...page.runs.map((run) => run.metrics.makespan)) * 1.005;
  page.runs.forEach((run, i) => {
    timelines.push(new Timeline(run, document.getElementById(`timeline-${i}`), longest));
  });
  charts.push(...timelines);
  const acts = {
    in: () => zoomBy(0.5), out: () => zoomBy(2), left: () => panBy(-0.5), right: () => panBy(0.5),
    all: () => zoomBy(Infinity),
  };
  for (const button of document.querySelectorAll("button[data-zoom]")) {
    button.addEventListener("click", acts[button.dataset.zoom]);
  }
}
