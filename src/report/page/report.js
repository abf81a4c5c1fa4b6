// SPDX-License-Identifier: Apache-2.0
"use strict";
(() => {
  const root = document.documentElement, errors = [];
  addEventListener("error", event => { errors.push(event.message); root.dataset.errors = errors.join("; "); });
  const $ = id => document.getElementById(id);
  const report = JSON.parse($("data").textContent), runs = report.runs;
  const color = name => getComputedStyle(root).getPropertyValue("--" + name).trim();
  let run = runs[0], charts = [], redraws = [];

  // Numbers as a reader says them.
  const digits = (value, n = 4) => value == null ? "–" : Number(value.toPrecision(n)).toLocaleString("en", {maximumFractionDigits: 6});
  const scaled = value => {
    if (value == null) return "–";
    for (const [unit, name] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e4, " k"]]) if (Math.abs(value) >= unit) return digits(value / (unit === 1e4 ? 1e3 : unit)) + name;
    return digits(value);
  };
  const bytes = value => {
    if (!value) return "0";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"], power = Math.min(4, Math.floor(Math.log2(value) / 10));
    return digits(value / 2 ** (10 * power)) + " " + units[power];
  };
  const ms = value => value == null ? "–" : value >= 1000 ? digits(value / 1000) + " s" : digits(value) + " ms";
  const hours = value => value == null ? "–" : value >= 1 ? digits(value, 3) + " h" : value * 60 >= 1 ? digits(value * 60, 3) + " min" : digits(value * 3600, 3) + " s";

  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) name in made && typeof value !== "string" ? made[name] = value : made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const put = (id, ...children) => $(id).replaceChildren(...children);
  const empty = text => element("p", {class: "empty"}, text);
  const table = (head, rows, numbers = () => false) => element("table", {},
    element("thead", {}, element("tr", {}, ...head.map((text, i) => element("th", {scope: "col", class: numbers(i) ? "number" : ""}, text)))),
    element("tbody", {}, ...rows.map(row => element("tr", {}, ...row.map((cell, i) => i === 0
      ? element("th", {scope: "row"}, cell ?? "–") : element("td", {class: numbers(i) ? "number" : "wrap"}, cell ?? "–"))))));
  const key = pairs => element("div", {class: "key"}, ...pairs.map(([name, css]) => element("span", {}, element("i", {style: "background:" + css}), name)));

  // A curve's chart, with the keyboard.
  const chart = (id, options, data) => {
    const box = $(id);
    box.replaceChildren();
    const axis = (scale, extra) => ({scale, stroke: () => color("text"), grid: {stroke: () => color("grid"), width: 1}, ticks: {stroke: () => color("line"), width: 1}, ...extra});
    const u = new uPlot({
      width: box.clientWidth, height: options.height ?? 320, cursor: {focus: {prox: 24}}, legend: {live: true},
      scales: options.scales, series: options.series, bands: options.bands,
      axes: options.axes.map(a => axis(a.scale, a)),
    }, data, box);
    u.root.tabIndex = 0;
    u.root.setAttribute("role", "img");
    u.root.setAttribute("aria-label", options.label);
    let at = data[0].length - 1;
    const show = i => {
      at = Math.max(0, Math.min(data[0].length - 1, i));
      u.setCursor({left: u.valToPos(data[0][at], "x"), top: u.over.clientHeight / 2});
    };
    u.root.addEventListener("keydown", event => {
      const {min, max} = u.scales.x, middle = data[0][at], span = max - min;
      const see = (low, high) => {
        u.setScale("x", {min: Math.max(data[0][0], low), max: Math.min(data[0][data[0].length - 1], high)});
        queueMicrotask(() => show(at));  // behind uPlot's own: the cursor stays on its step
      };
      const zoom = by => see(middle - span * by / 2, middle + span * by / 2);
      const jump = event.shiftKey ? 10 : 1;
      if (event.key === "ArrowRight") show(at + jump);
      else if (event.key === "ArrowLeft") show(at - jump);
      else if (event.key === "Home") show(0);
      else if (event.key === "End") show(data[0].length - 1);
      else if (event.key === "+" || event.key === "=") zoom(0.5);
      else if (event.key === "-") zoom(2);
      else if (event.key === "0") see(-Infinity, Infinity);
      else return;
      event.preventDefault();
    });
    charts.push({u, box});
    return u;
  };
  const xAxis = (label, format) => ({scale: "x", label, values: (u, ticks) => ticks.map(format), space: 70, size: 36, labelSize: 22});
  const yAxis = (label, format, extra = {}) => ({scale: "y", label, values: (u, ticks) => ticks.map(t => t == null ? "" : format(t)), size: 62, labelSize: 22, ...extra});
  const joined = tables => tables.length === 1 ? tables[0] : uPlot.join(tables);

  const smoothed = (values, weight) => {
    let mean = null;
    return values.map(value => value == null ? null : mean = mean == null ? value : weight * mean + (1 - weight) * value);
  };
  const axisName = {step: "step", tokens: "tokens", hours: "hours of training"};
  const drawLoss = () => {
    const axis = $("axis").value, weight = Number($("smooth").value), log = $("log").checked;
    $("smooth-value").value = weight.toFixed(2);
    const tables = [], series = [{label: axisName[axis], value: (u, v) => scaled(v)}];
    runs.forEach((each, i) => {
      const name = runs.length > 1 ? each.name + " " : "", stroke = () => color("c" + i % 8);
      if (each.loss.step.length) {
        const raw = each.loss.loss.map(v => v > 0 || !log ? v : null);
        tables.push([each.loss[axis], ...(weight > 0 ? [raw, smoothed(raw, weight)] : [raw])]);
        if (weight > 0) series.push({label: name + "loss", stroke, width: 1, alpha: 0.3, spanGaps: true, value: (u, v) => digits(v, 5)});
        series.push({label: name + (weight > 0 ? "smoothed" : "loss"), stroke, width: 1.5, spanGaps: true, points: {show: each.loss.step.length < 60}, value: (u, v) => digits(v, 5)});
      }
      if (each.val.step.length) {
        tables.push([each.val[axis], each.val.loss.map(v => v > 0 || !log ? v : null)]);
        series.push({label: name + "validation", stroke: runs.length > 1 ? stroke : () => color("c1"), width: 2, dash: [6, 4], spanGaps: true, points: {show: true, size: 6}, value: (u, v) => digits(v, 5)});
      }
    });
    charts = charts.filter(c => c.box !== $("loss"));
    if (!tables.length) return put("loss", empty("There are no rows of steps."));
    chart("loss", {label: "Loss and validation loss over " + axisName[axis], series,
      scales: {x: {time: false}, y: log ? {distr: 3, log: 10} : {}},
      axes: [xAxis(axisName[axis], scaled), yAxis("nats a token", v => digits(v))]}, joined(tables));
  };

  const drawSpeed = () => {
    const bound = report.gflops_per_rank, tables = [], series = [{label: "step", value: (u, v) => scaled(v)}];
    const hasRate = runs.some(r => r.speed.gflop_per_s.some(v => v != null));
    runs.forEach((each, i) => {
      if (!each.speed.step.length) return;
      const name = runs.length > 1 ? each.name + " " : "";
      const rate = each.speed.gflop_per_s.map(v => v == null ? null : bound ? 100 * v / bound : v);
      tables.push([each.speed.step, each.speed.tokens_per_s, ...(hasRate ? [rate] : [])]);
      series.push({label: name + "tokens/s", stroke: () => color("c" + i % 8), width: 1.5, spanGaps: true, value: (u, v) => scaled(v)});
      if (hasRate) series.push({label: name + (bound ? "% of product bound" : "GFLOP/s of a rank"), scale: "rate", stroke: () => color("c" + (i + 4) % 8), width: 1, dash: [3, 3], spanGaps: true, value: (u, v) => digits(v, 3)});
    });
    if (!tables.length) return put("speed", empty("There are no rows of steps."));
    $("speed-note").textContent = !hasRate ? "" : bound
      ? `The matrix products of rank 0, compared with the ${digits(bound)} GFLOP/s that matrix products alone reach on this machine.`
      : "GFLOP/s: the matrix products of rank 0 over its whole step. mica-report --gflops-per-rank=G, with bound_gflop_per_s of mica-bench train, shows them in % of the product bound.";
    const axes = [xAxis("step", scaled), yAxis("tokens/s", scaled)];
    if (hasRate) axes.push(yAxis(bound ? "% of product bound" : "GFLOP/s", v => digits(v, 3), {scale: "rate", side: 1, grid: {show: false}}));
    chart("speed", {label: "Tokens a second", series, axes, height: 260, scales: {x: {time: false}, y: {range: (u, low, high) => [0, high * 1.05]}, rate: {range: (u, low, high) => [0, high * 1.35]}}}, joined(tables));
  };

  const parts = ["compute", "exposed_comm", "optimizer", "data", "checkpoint", "evaluation"];
  const partName = {compute: "compute", exposed_comm: "exposed communication", optimizer: "optimizer", data: "data", checkpoint: "checkpoints", evaluation: "evaluations"};
  const drawSplit = () => {
    const split = run.split;
    if (!split.step.length) return put("split", empty("There are no rows of steps."));
    $("split-note").textContent = "Rank 0, mean over the steps of a point; checkpoints and evaluations are averaged over them."
      + (split.is_measured ? "" : " These rows tell only the time inside collectives, which computing may have hidden: the rest is shown as compute.");
    let below = split.step.map(() => 0);
    const shown = parts.filter(part => split[part].some(v => v > 0)), stack = [];
    for (const part of shown) stack.push(below = below.map((v, i) => v + (split[part][i] ?? 0)));
    const series = [{label: "step", value: (u, v) => scaled(v)}], bands = [];
    [...shown].reverse().forEach((part, i) => {
      const fill = () => color(part);
      series.push({label: partName[part], fill, stroke: fill, width: 0.5, points: {show: false}, value: (u, v, s, at) => at == null ? "–" : ms(split[part][at])});
      if (i > 0) bands.push({series: [i, i + 1]});
    });
    series.push({label: "slowest step", stroke: () => color("text"), width: 1, points: {show: false}, value: (u, v) => ms(v)});
    chart("split", {label: "Parts of a step's time", series, bands, height: 280, scales: {x: {time: false}, y: {range: (u, low, high) => [0, high * 1.05]}},
      axes: [xAxis("step", scaled), yAxis("ms a step", v => digits(v))]}, [split.step, ...stack.reverse(), split.slowest]);
  };

  // Canvases of our own: the heat map and the timeline.
  const canvasOf = (box, height, label) => {
    const canvas = element("canvas", {class: "own", tabindex: "0", role: "img", "aria-label": label}), told = element("p", {class: "told", "aria-live": "polite"});
    box.append(canvas, told);
    const context = canvas.getContext("2d");
    const begin = () => {
      const width = canvas.clientWidth || box.clientWidth, ratio = devicePixelRatio || 1;
      canvas.style.height = height + "px";
      canvas.width = width * ratio;
      canvas.height = height * ratio;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "middle";
      return width;
    };
    return {canvas, told, context, begin};
  };
  const mix = (a, b, t) => {
    const part = (hex, i) => parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16);
    return "rgb(" + [0, 1, 2].map(i => Math.round(part(a, i) + (part(b, i) - part(a, i)) * t)).join(",") + ")";
  };

  const drawSkew = () => {
    const skew = run.skew, box = $("skew");
    box.replaceChildren();
    if (!skew) {
      $("skew-note").textContent = "";
      return box.append(empty("There are no rows of ranks: runs on one rank and runs of earlier versions have none."));
    }
    const columns = skew.own_ms, rows = Math.max(...columns.map(c => c.length)), medians = skew.median_ms;
    const excess = (c, r) => medians[c] > 0 ? columns[c][r] / medians[c] - 1 : 0;
    let most = 0, worst = [0, 0];
    columns.forEach((column, c) => column.forEach((v, r) => { if (excess(c, r) > most) { most = excess(c, r); worst = [c, r]; } }));
    const rankName = r => skew.ranks_per_row === 1 ? "rank " + r : `ranks ${r * skew.ranks_per_row} to ${Math.min(skew.ranks, (r + 1) * skew.ranks_per_row) - 1}`;
    $("skew-note").textContent = `A rank's own time per step, without waiting, compared with the median of all ${skew.ranks} ranks: the others wait for a red one. `
      + `The most: ${rankName(worst[1])} up to step ${scaled(skew.step[worst[0]])}, ${ms(columns[worst[0]][worst[1]])}, ${digits(100 * most, 3)} % more than the median.`
      + (skew.has_slowest_only ? " With more than 1,024 ranks only the slowest of each row is known; the others are drawn at the median." : "");
    const left = 58, bottom = 22, cell = Math.max(3, Math.min(22, 320 / rows)), height = rows * cell + bottom, full = Math.max(0.05, most);
    const {canvas, told, context, begin} = canvasOf(box, height, "Heat map of ranks and steps");
    let at = null, width = 0;
    const draw = () => {
      width = begin();
      const w = (width - left) / columns.length, cold = color("cold"), hot = color("hot");
      columns.forEach((column, c) => column.forEach((v, r) => {
        context.fillStyle = mix(cold, hot, Math.max(0, Math.min(1, excess(c, r) / full)));
        context.fillRect(left + c * w, r * cell, w + 0.6, cell - (cell > 6 ? 1 : 0));
      }));
      context.fillStyle = color("text");
      context.textAlign = "right";
      const every = Math.ceil(16 / cell);
      for (let r = 0; r < rows; r += every) context.fillText(skew.ranks_per_row === 1 ? r : r * skew.ranks_per_row, left - 6, Math.max(7, (r + 0.5) * cell));
      const ticks = Math.min(columns.length, Math.max(2, Math.floor(width / 130)));
      for (let i = 0; i < ticks; ++i) {
        const c = ticks === 1 ? 0 : Math.round(i * (columns.length - 1) / (ticks - 1));
        context.textAlign = i === 0 ? "left" : i === ticks - 1 ? "right" : "center";
        context.fillText((i === 0 ? "step " : "") + scaled(skew.step[c]), left + (c + (i === 0 ? 0 : i === ticks - 1 ? 1 : 0.5)) * w, rows * cell + 12);
      }
      if (at) {
        context.strokeStyle = color("text");
        context.lineWidth = 2;
        context.strokeRect(left + at[0] * w - 1, at[1] * cell - 1, w + 2, cell + 1);
      }
    };
    const tell = (c, r) => {
      c = Math.max(0, Math.min(columns.length - 1, c));
      at = [c, Math.max(0, Math.min(columns[c].length - 1, r))];
      told.textContent = `${rankName(at[1])}, up to step ${scaled(skew.step[c])}: ${ms(columns[c][at[1]])} of its own per step, median ${ms(medians[c])} (${excess(c, at[1]) >= 0 ? "+" : ""}${digits(100 * excess(c, at[1]), 3)} %)`;
      draw();
    };
    canvas.addEventListener("mousemove", e => tell(Math.floor((e.offsetX - left) / ((width - left) / columns.length)), Math.floor(e.offsetY / cell)));
    canvas.addEventListener("keydown", event => {
      const move = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
      if (!move) return;
      event.preventDefault();
      const by = event.shiftKey ? 10 : 1;
      at ? tell(at[0] + move[0] * by, at[1] + move[1] * by) : tell(...worst);
    });
    box.append(key([["at or below the median", "var(--cold)"], [`${digits(100 * full, 3)} % above it`, "var(--hot)"]]));
    draw();
    redraws.push(draw);
  };

  const drawMemory = () => {
    const memory = run.memory;
    if (!memory) {
      $("memory-note").textContent = "";
      return put("memory", empty("metrics.jsonl has no rows started and memory: it was written by an earlier version."));
    }
    const roles = [...new Set([...Object.keys(memory.planned), ...Object.keys(memory.measured)])];
    const most = Math.max(memory.planned_peak, memory.measured_peak, 1);
    $("memory-note").textContent = "Peaks of rank 0's pool by what the memory is for. Roles peak at different moments: they add up to more than the whole. The bar is measured, the line is planned.";
    const row = (name, planned, measured) => [name, bytes(planned), memory.measured_peak ? bytes(measured) : "–",
      element("div", {class: "bar", "aria-hidden": "true"}, element("i", {style: `width:${100 * measured / most}%`}), element("b", {style: `left:calc(${100 * planned / most}% - 1px)`}))];
    const rows = roles.map(role => row(role.replaceAll("_", " "), memory.planned[role] ?? 0, memory.measured[role] ?? 0));
    rows.push(row("all at once", memory.planned_peak, memory.measured_peak));
    put("memory", table(["role", "planned", "measured", ""], rows, i => i === 1 || i === 2));
    if (memory.largest_rank_peak) $("memory").append(element("p", {class: "note"}, "The largest rank's peak: " + bytes(memory.largest_rank_peak) + "."));
  };

  const kindName = ["task", "wait", "range", "collective"];
  const drawTrace = () => {
    const trace = run.trace, box = $("trace");
    box.replaceChildren();
    $("trace-controls").hidden = !trace;
    if (!trace) {
      $("trace-note").textContent = "";
      return box.append(empty(run.trace_note ?? "Nothing was traced: run a few steps with --log.trace=10-12."));
    }
    const line = trace.timelines.find(t => String(t.rank) === $("trace-rank").value) ?? trace.timelines[0];
    const total = trace.ranks.find(r => r.rank === line.rank);
    $("trace-note").textContent = `Rank ${line.rank}${line.step ? ", step " + line.step : ""}: ${ms(line.step_us / 1e3)}. In all traced steps ${total.num} collectives of ${digits(total.mib)} MiB took ${ms(total.busy_ms)}; `
      + `the compute stream was idle for ${ms(total.exposed_ms)} of it, so ${digits(total.hidden, 3)} % of the communication was hidden.`
      + (line.is_cut ? " Only a part of this step is shown: it has too many tasks." : "")
      + (run.trace_note ? ` Left out: ${run.trace_note}.` : "");
    const rows = Object.keys(line.rows).map(Number).filter(r => line.slices.some(s => s[0] === r));
    // Ranges lie above the tasks of their stream, outer ones above inner ones.
    const lanes = new Map(), laneOf = new Map();
    let num = 0;
    for (const r of rows) {
      const open = [];
      let depth = 0;
      line.slices.forEach((s, i) => {
        if (s[0] !== r || s[1] !== 2) return;
        while (open.length && open[open.length - 1] <= s[3] + 0.05) open.pop();
        laneOf.set(i, open.length);
        open.push(s[3] + s[4]);
        depth = Math.max(depth, open.length);
      });
      lanes.set(r, {first: num, depth});
      num += depth + 1;
    }
    const left = 108, lane = 20, bottom = 24, height = num * lane + bottom;
    const {canvas, told, context, begin} = canvasOf(box, height, `Timeline of rank ${line.rank}`);
    let from = 0, to = line.step_us, at = -1, width = 0;
    const y = i => { const s = line.slices[i], l = lanes.get(s[0]); return (l.first + (s[1] === 2 ? laneOf.get(i) : l.depth)) * lane; };
    const x = t => left + (t - from) / (to - from) * (width - left);
    const draw = () => {
      width = begin();
      const css = {0: color("task"), 1: color("wait"), 2: color("range"), 3: color("collective")}, text = color("text"), back = color("back"), hidden = color("hidden");
      context.save();
      context.beginPath();
      context.rect(left, 0, width - left, height);
      context.clip();
      context.textAlign = "left";
      line.slices.forEach((s, i) => {
        const x0 = Math.max(left - 2, x(s[3])), x1 = Math.min(width + 2, x(s[3] + s[4]));
        if (x1 < left || x0 > width) return;
        const w = Math.max(0.7, x1 - x0 > 4 ? x1 - x0 - 1 : x1 - x0), top = y(i) + 2;
        context.fillStyle = s[1] === 3 && s[6] < s[4] / 2 ? hidden : css[s[1]];
        context.fillRect(x0, top, w, lane - 4);
        if (i === at) { context.strokeStyle = text; context.lineWidth = 2; context.strokeRect(x0, top, w, lane - 4); }
        const name = s[1] === 1 ? "wait" : line.names[s[2]];
        if (w > 30) {
          context.fillStyle = text;
          const room = Math.floor((w - 6) / 6.4);
          if (room > 2) context.fillText(name.length > room ? name.slice(0, room - 1) + "…" : name, x0 + 3, top + lane / 2 - 2);
        }
      });
      context.restore();
      context.fillStyle = text;
      context.textAlign = "right";
      for (const r of rows) context.fillText(line.rows[r], left - 8, (lanes.get(r).first + lanes.get(r).depth + 0.5) * lane);
      const ticks = Math.max(2, Math.floor((width - left) / 110));
      for (let i = 0; i < ticks; ++i) {
        const t = from + (to - from) * i / (ticks - 1);
        context.textAlign = i === 0 ? "left" : i === ticks - 1 ? "right" : "center";
        context.fillText(digits(t / 1e3, 4) + " ms", x(t), num * lane + 13);
      }
    };
    const tell = i => {
      at = i;
      const s = line.slices[i];
      if (!s) { told.textContent = ""; return draw(); }
      told.textContent = `${line.rows[s[0]]}: ${line.names[s[2]]}${s[7] > 1 ? ` and ${s[7] - 1} more` : ""}, ${kindName[s[1]]}, ${digits(s[4] / 1e3)} ms from ${digits(s[3] / 1e3)} ms`
        + (s[5] ? `, ${bytes(s[5] * 1024)}` : "") + (s[1] === 3 ? `, ${digits(s[6] / 1e3, 3)} ms exposed` : "");
      draw();
    };
    canvas.addEventListener("mousemove", e => {
      const t = from + (e.offsetX - left) / (width - left) * (to - from), slack = (to - from) / (width - left);
      tell(line.slices.findIndex((s, i) => e.offsetY >= y(i) && e.offsetY < y(i) + lane && t >= s[3] - slack && t <= s[3] + s[4] + slack));
    });
    const zoom = (by, centre) => {
      const span = Math.min(line.step_us, (to - from) * by);
      from = Math.max(0, Math.min(line.step_us - span, centre - span / 2));
      to = from + span;
      draw();
    };
    canvas.addEventListener("dblclick", e => zoom(e.shiftKey ? 4 : 0.25, from + (e.offsetX - left) / (width - left) * (to - from)));
    canvas.addEventListener("keydown", event => {
      const s = line.slices[at], centre = s ? s[3] + s[4] / 2 : (from + to) / 2;
      const inLane = step => { let i = at < 0 ? 0 : at + step; while (line.slices[i] && at >= 0 && y(i) !== y(at)) i += step; if (line.slices[i]) { tell(i); const c = line.slices[i]; if (c[3] < from || c[3] + c[4] > to) zoom(1, c[3] + c[4] / 2); } };
      const toLane = step => {
        const want = (at < 0 ? -lane : y(at)) + step * lane, t = centre;
        let best = -1;
        line.slices.forEach((c, i) => { if (y(i) === want && (best < 0 || Math.abs(c[3] + c[4] / 2 - t) < Math.abs(line.slices[best][3] + line.slices[best][4] / 2 - t))) best = i; });
        if (best >= 0) tell(best);
      };
      if (event.key === "ArrowRight") inLane(1);
      else if (event.key === "ArrowLeft") inLane(-1);
      else if (event.key === "ArrowDown") toLane(1);
      else if (event.key === "ArrowUp") toLane(-1);
      else if (event.key === "+" || event.key === "=") zoom(0.5, centre);
      else if (event.key === "-") zoom(2, centre);
      else if (event.key === "0") zoom(1e9, 0);
      else return;
      event.preventDefault();
    });
    box.append(key([["task", "var(--task)"], ["wait for another stream", "var(--wait)"], ["collective, mostly hidden", "var(--hidden)"], ["collective, mostly exposed", "var(--collective)"], ["forward, backward, recomputation", "var(--range)"]]));
    const tables = element("div", {class: "scroll"});
    if (line.costly.length) {
      tables.append(element("h3", {}, "Waits of the compute stream and collectives of this step, the most exposed first"), table(["name", "times", "bytes", "took", "exposed"],
        line.costly.map(l => [l.name, String(l.num), l.kib ? bytes(l.kib * 1024) : "", ms(l.ms), ms(l.exposed_ms)]), i => i > 0));
    }
    if (trace.ranks.length > 1) {
      const all = table(["rank", "traced", "collectives", "MiB", "took", "exposed", "hidden"],
        trace.ranks.map(r => [String(r.rank), ms(r.span_ms), String(r.num), digits(r.mib), ms(r.busy_ms), ms(r.exposed_ms), digits(r.hidden, 3) + " %"]), i => i > 0);
      tables.append(element("details", {open: trace.ranks.length <= 8}, element("summary", {}, "All traced ranks"), all));
    }
    box.append(tables);
    draw();
    redraws.push(draw);
  };

  const kinds = {start: "c7", restart: "c3", save: "c2", eval: "c0", warning: "c6", fault: "c4"};
  const kindLabel = {start: "starts", restart: "restarts", save: "saves", eval: "evaluations", warning: "warnings", fault: "faults"};
  const drawEvents = () => {
    const events = [...run.events, ...run.val.step.map((step, i) => ({step, kind: "eval", text: "validation loss " + digits(run.val.loss[i], 5), quiet: true}))].sort((a, b) => a.step - b.step);
    if (!events.length) return put("events", empty("There are no events."));
    const last = Math.max(1, run.summary.steps, ...events.map(e => e.step)), told = element("p", {class: "told", "aria-live": "polite"});
    const strip = element("div", {class: "strip"}), order = Object.keys(kinds);
    const say = e => { told.textContent = `Step ${scaled(e.step)}: ${e.text}${e.times > 1 ? ` (${e.times} times)` : ""}${e.time ? ", " + new Date(e.time * 1000).toISOString().slice(0, 19).replace("T", " ") + " UTC" : ""}`; };
    const perKind = {};
    events.forEach(e => {
      perKind[e.kind] = (perKind[e.kind] ?? 0) + 1;
      const dot = element("button", {type: "button", title: e.text, "aria-label": `${e.kind}, step ${e.step}: ${e.text}`, style: `left:${100 * e.step / last}%;top:${order.indexOf(e.kind) * 14 + 2}px;background:var(--${kinds[e.kind]})`});
      dot.addEventListener("focus", () => say(e));
      dot.addEventListener("mouseenter", () => say(e));
      strip.append(dot);
    });
    strip.append(element("span", {style: "left:0"}, "step 0"), element("span", {style: "left:50%"}, scaled(last / 2)), element("span", {style: "left:100%"}, scaled(last)));
    const listed = events.filter(e => !e.quiet);
    const counts = order.filter(k => perKind[k]).map(k => [`${perKind[k]} ${kindLabel[k]}`, `var(--${kinds[k]})`]);
    put("events", key(counts), strip, told, element("details", {open: listed.length <= 12}, element("summary", {}, `List of ${listed.length} events`
      + (run.more_events ? `; ${run.more_events} more are left out` : "")), element("div", {class: "scroll"}, table(["step", "kind", "what"], listed.map(e => [scaled(e.step), e.kind, e.text + (e.times > 1 ? ` (${e.times} times)` : "")])))));
  };

  const drawConfig = () => {
    const config = report.config;
    if (config.note) return put("config", empty(config.note));
    if (!config.rows.length) return put("config", empty(runs.length > 1 ? "The configs are the same." : "Every key has its default."));
    put("config", element("p", {class: "note"}, runs.length > 1 ? "Keys that differ between the runs." : "Keys that differ from their defaults."), table(["key", ...config.names], config.rows));
  };

  const drawSummary = () => {
    const field = (name, value) => [name, ...runs.map(r => value(r.summary) ?? "–")];
    put("summary", table(["", ...runs.map(r => r.name)], [
      field("steps", s => scaled(s.steps) + (s.planned_steps ? " of " + scaled(s.planned_steps) : "")),
      field("tokens", s => scaled(s.tokens)),
      field("training", s => hours(s.hours)),
      field("last loss", s => digits(s.loss, 5)),
      field("best validation loss", s => s.best_val == null ? null : `${digits(s.best_val, 5)} after step ${scaled(s.best_val_step)}`),
      field("tokens/s, median", s => scaled(s.tokens_per_s)),
      field("last step", s => ms(s.step_ms)),
      field("ranks", s => s.ranks == null ? null : String(s.ranks)),
      field("device", s => s.device),
      field("version", s => s.version),
    ].filter(row => row.slice(1).some(v => v !== "–"))));
  };

  const ofRun = () => {
    run = runs[Number($("run").value)];
    charts = charts.filter(c => c.box !== $("split"));
    redraws = [];
    put("trace-rank", ...(run.trace?.timelines ?? []).map(t => element("option", {value: String(t.rank)}, String(t.rank))));
    drawSplit(); drawSkew(); drawMemory(); drawTrace(); drawEvents();
  };
  const recolor = () => { charts.forEach(c => c.u.redraw(false)); redraws.forEach(draw => draw()); };

  put("run", ...runs.map((r, i) => element("option", {value: String(i)}, r.name)));
  $("subtitle").textContent = runs.map(r => r.name).join(", ") + " · made by " + report.made_by;
  document.title = runs.map(r => r.name).join(", ") + " – training report";
  $("run").addEventListener("change", ofRun);
  $("trace-rank").addEventListener("change", () => { redraws = []; drawSkew(); drawTrace(); });
  for (const id of ["axis", "smooth", "log"]) $(id).addEventListener("input", drawLoss);
  $("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    recolor();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolor);
  let before = null;
  addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; recolor(); });
  addEventListener("afterprint", () => { if (before) root.dataset.theme = before; else delete root.dataset.theme; recolor(); });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    charts.forEach(c => c.u.setSize({width: c.box.clientWidth, height: c.u.height}));
    redraws.forEach(draw => draw());
  });
  drawSummary(); drawLoss(); drawSpeed(); ofRun(); drawConfig();
  root.dataset.readyMs = String(Math.round(performance.now()));
})();
