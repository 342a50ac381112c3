#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws a report as one HTML file, which needs no other files and no network.

    report_page.py DATA PAGE      DATA is the output of tools/report --json

The charts are made with plotly as in Debian and Ubuntu (python3-plotly, 5.4 and newer). Only the timeline is drawn in
the browser, by tools/report/report_timeline.js: of its 100,000 spans, those that can be seen.
"""
import html
import json
import os
import sys

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

WIDTH = 1160  # of all charts: fits on a screen of 1,280 pixels
COLORS = {"compute": "#2f6fb0", "communication": "#e08a1e", "waiting": "#b9467a", "idle": "#dfe3e8"}
FORWARD, BACKWARD, WEIGHTS = "#7fb2e5", COLORS["compute"], "#8c6bb1"
NAMES = {"compute": "compute", "communication": "communication that nothing hides", "waiting": "waiting for another rank",
         "idle": "idle"}
RUN_COLORS = ["#2f6fb0", "#e08a1e", "#3a9b6c", "#b9467a", "#7a5cb0", "#8a6d3b", "#4aa3b5", "#666666"]
KINDS = {"parameters": "#2f6fb0", "gradients": "#e08a1e", "optimizer": "#3a9b6c", "activations": "#7fb2e5",
         "buckets": "#b9467a", "data": "#c9ced6", "host": "#8a6d3b"}
OF_MODEL = ["parameters", "gradients", "optimizer", "activations", "buckets"]  # the kinds with formulas
OTHER_ROADS = ["ddp_compressed", "decentralized", "local_sgd", "parameter_server"]  # may send differently in each step
NO_FORMULA = "There is no formula for this model with these options; the chapter's README has those of its program."
# What a rank sends in a call on P ranks, in terms of its bytes, with ring algorithms.
FORMULAS = {"ncclAllReduce": "2(P−1)/P · bytes", "ncclReduceScatter": "(P−1) · bytes", "ncclAllGather": "(P−1) · bytes",
            "ncclAlltoAll": "(P−1) · bytes", "ncclBroadcast": "(P−1)/P · bytes", "ncclReduce": "(P−1)/P · bytes",
            "ncclGather": "(P−1)/P · bytes", "ncclScatter": "(P−1)/P · bytes", "ncclSend": "bytes",
            "ncclRecv": "0: counted by the sender"}


# ---- texts ---------------------------------------------------------------------------------------------------------

def time_text(seconds):
    for unit, size in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return "–" if seconds == 0 else f"{seconds * 1e9:.3g} ns"


def bytes_text(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def percent(share):
    return f"{100 * share:.1f} %"


def span_text(values, text):
    """Returns a range, or one text if all ranks have the same value."""
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} – {high}"


def table(head, rows):
    cells = lambda row, tag: "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in row)
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{cells(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"


# ---- charts --------------------------------------------------------------------------------------------------------

class Page:
    """The parts of the page, in order. The browser draws the charts when it loads the page."""

    def __init__(self):
        self.parts, self.charts = [], {}

    def add(self, text):
        self.parts.append(text)

    def chart(self, name, figure, height, title, note=""):
        figure.update_layout(template="plotly_white", width=WIDTH, height=height, title=None, barmode="stack",
                             margin=dict(l=130, r=20, t=30, b=45), hoverlabel=dict(align="left"),
                             font=dict(family="system-ui, sans-serif", size=13),
                             legend=dict(orientation="h", x=0, y=1, yanchor="bottom", traceorder="normal"))
        self.charts[name] = json.loads(figure.to_json())
        self.frame(name, height, title, note)

    def frame(self, name, height, title, note):
        self.add(f"<figure><h3>{html.escape(title)}</h3><p class=note>{html.escape(note)}</p>"
                 f"<div class=chart id={name} style='height:{height}px'></div></figure>")


def loss_chart(runs):
    figure = go.Figure()
    for number, run in enumerate(runs):
        color = RUN_COLORS[number % len(RUN_COLORS)]
        for kind, mode in (("training", "lines"), ("validation", "lines+markers")):
            if run[kind]:
                steps, losses = zip(*run[kind])
                figure.add_scatter(x=steps, y=losses, mode=mode, name=f"{run['title']}: {kind}",
                                   line=dict(color=color, width=2, dash="dot" if kind == "validation" else "solid"))
    figure.update_xaxes(title="step")
    figure.update_yaxes(title="loss")
    return figure


def shares_chart(runs):
    labels = [f"{run['title']} · rank {share['rank']}" if len(runs) > 1 else f"rank {share['rank']}"
              for run in runs for share in run["shares"]]
    figure = go.Figure()
    for kind, name in NAMES.items():
        values = [share[kind] for run in runs for share in run["shares"]]
        figure.add_bar(x=values, y=labels, orientation="h", name=name, marker_color=COLORS[kind],
                       text=[f"{100 * value:.0f} %" if value >= 0.04 else "" for value in values],
                       textposition="inside", insidetextanchor="middle", hovertemplate="%{x:.1%}")
    figure.update_yaxes(autorange="reversed", type="category", automargin=True)
    figure.update_xaxes(range=[0, 1], tickformat=".0%")
    return figure


def utilization_chart(run):
    ranks = run["utilization"]
    figure = make_subplots(rows=len(ranks), cols=1, shared_xaxes=True, vertical_spacing=0.12 / len(ranks))
    start = min((rank["at"][0] for rank in ranks if rank["at"]), default=0)
    for row, rank in enumerate(ranks, 1):
        for kind, name in NAMES.items():
            figure.add_scatter(x=[(at - start) / 1e3 for at in rank["at"]], y=rank[kind], name=name, mode="lines",
                               stackgroup=f"rank {row}", line=dict(width=0), fillcolor=COLORS[kind], legendgroup=kind,
                               showlegend=row == 1, hovertemplate="%{y:.0%}", row=row, col=1)
        figure.update_yaxes(range=[0, 1], tickvals=[0.5], ticktext=[f"rank {rank['rank']}"], row=row, col=1)
    figure.update_xaxes(title="ms since the first step that counts", row=len(ranks), col=1)
    return figure


def add_passes(figure, row, passes):
    """Adds a bar for each (lane, begin, length, kind, micro-batch, chunk)."""
    chunks = max(one[5] for one in passes) + 1
    for kind, (name, color) in enumerate((("forward", FORWARD), ("backward", BACKWARD), ("weights", WEIGHTS))):
        those = [one for one in passes if one[3] == kind]
        if not those:
            continue
        texts = [f"{one[4]}{chr(97 + one[5]) if chunks > 1 else ''}" for one in those]
        figure.add_bar(x=[one[2] for one in those], base=[one[1] for one in those], y=[one[0] for one in those],
                       orientation="h", name=name, legendgroup=name, showlegend=row == 1, text=texts, textangle=0,
                       textposition="inside", insidetextanchor="middle", row=row, col=1,
                       marker=dict(color=color, line=dict(color="white", width=1)),
                       hovertemplate=name + " %{text}: %{x:.4g}")


def schedule_chart(run):
    """Draws the schedule with slots of equal length and, if there is a timeline, what happened in a step below it."""
    plan = [[f"stage {stage}", begin, 1, kind, batch, chunk] for stage, begin, kind, batch, chunk in run["schedule"]]
    ran = [[f"rank {rank}", begin / 1e3, duration / 1e3, kind, batch, chunk]
           for rank, begin, duration, kind, batch, chunk in run.get("passes") or []]
    rows = [run["stages"]] + ([len({one[0] for one in ran})] if ran else [])
    figure = make_subplots(rows=len(rows), cols=1, row_heights=rows, vertical_spacing=55 / schedule_height(run))
    for row, (passes, unit) in enumerate(((plan, "slots"), (ran, "ms since the step began"))[:len(rows)], 1):
        add_passes(figure, row, passes)
        figure.update_xaxes(title=dict(text=unit, standoff=2), row=row, col=1,
                            range=[min(0, *(one[1] for one in passes)), max(one[1] + one[2] for one in passes)])
        # The first stage is at the top.
        figure.update_yaxes(autorange="reversed", type="category", categoryorder="array", row=row, col=1,
                            categoryarray=sorted({one[0] for one in passes}, key=lambda name: int(name.split()[1])))
    return figure


def schedule_height(run):
    return 130 + 30 * (run["stages"] + len({one[0] for one in run.get("passes") or []}))


def unit_for(largest):
    """Returns the name and the size of the unit in which the largest value is below 1,024."""
    for name, size in (("B", 1), ("KiB", 2**10), ("MiB", 2**20)):
        if largest < 1024 * size:
            return name, size
    return "GiB", 2**30


def formula_of(run, rank):
    return next((formula for formula in run["formulas"] if formula["rank"] == rank), None)


def memory_chart(run):
    bars = []  # (label, bytes by kind)
    for memory in run["memory"]:
        bars.append((f"rank {memory['rank']}", memory["peak"]))
        if formula := formula_of(run, memory["rank"]):
            bars.append((f"formula, rank {memory['rank']}", formula["memory"]))
    unit, size = unit_for(max(sum(kinds.values()) for _, kinds in bars))
    figure = go.Figure()
    for kind, color in KINDS.items():
        values = [kinds.get(kind, 0) / size for _, kinds in bars]
        if any(values):
            figure.add_bar(y=[label for label, _ in bars], x=values, orientation="h", name=kind, marker=dict(
                color=color, pattern_shape=["/" if label.startswith("formula") else "" for label, _ in bars]),
                hovertemplate=f"{kind}: %{{x:.4g}} {unit}", visible=True if kind in OF_MODEL else "legendonly")
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(title=f"{unit}, the peak of each kind", rangemode="tozero")
    return figure


def memory_over_time_chart(run):
    devices = run["memory_over_time"]
    largest = max(max(map(sum, zip(*(of["bytes"][kind] for kind in OF_MODEL)))) for of in devices)
    unit, size = unit_for(largest)
    several = len({of["rank"] for of in devices}) < len(devices)
    figure = make_subplots(rows=len(devices), cols=1, shared_xaxes=True, vertical_spacing=0.2 / len(devices))
    for row, of in enumerate(devices, 1):
        at = [moment / 1e3 for moment in of["at"]]
        for kind, color in KINDS.items():
            if any(kind in other["bytes"] and any(other["bytes"][kind]) for other in devices):
                figure.add_scatter(x=at, y=[count / size for count in of["bytes"][kind]], name=kind, legendgroup=kind,
                                   showlegend=row == 1, mode="lines", stackgroup=f"device {row}", fillcolor=color,
                                   line=dict(width=0, shape="hv", color=color), row=row, col=1,
                                   visible=True if kind in OF_MODEL else "legendonly",
                                   hovertemplate=f"{kind}: %{{y:.4g}} {unit}")
        formula = formula_of(run, of["rank"])
        if formula and not several and all(kind in formula["memory"] for kind in OF_MODEL):
            total = sum(formula["memory"].values()) / size
            figure.add_scatter(x=[at[0], at[-1]], y=[total, total], name="formula", legendgroup="formula", mode="lines",
                               showlegend=row == 1, line=dict(color="#1c2430", dash="dot", width=2), row=row, col=1,
                               hovertemplate=f"formula: %{{y:.4g}} {unit}")
        for moment in of.get("steps", []):
            figure.add_vline(x=moment / 1e3, line=dict(color="#8a94a3", width=1, dash="dash"), row=row, col=1)
        label = f"rank {of['rank']}" + (f"<br>device {of['device']}" if several else "")
        figure.update_yaxes(title=label, rangemode="tozero", nticks=4, ticksuffix=f" {unit}", row=row, col=1)
    figure.update_xaxes(title="ms since the job began", row=len(devices), col=1)
    return figure


def by_step_chart(runs, values, title, shape="linear"):
    """Draws a line per run through values(run), a list of (step, value)."""
    figure = go.Figure()
    for number, run in enumerate(runs):
        if points := values(run):
            steps, numbers = zip(*points)
            figure.add_scatter(x=steps, y=numbers, name=run["title"], mode="lines+markers" if len(points) < 40 else "lines",
                               line=dict(color=RUN_COLORS[number % len(RUN_COLORS)], width=2, shape=shape))
    figure.update_layout(showlegend=True)
    figure.update_xaxes(title="step")
    figure.update_yaxes(title=title, rangemode="tozero", exponentformat="power")
    return figure


def staleness_chart(run):
    figure = go.Figure()
    workers = run["workers"] or [0] * len(run["staleness"])
    for number, worker in enumerate(sorted(set(workers))):
        counts = {}
        for value in (value for value, by in zip(run["staleness"], workers) if by == worker):
            counts[value] = counts.get(value, 0) + 1
        figure.add_bar(x=list(counts), y=list(counts.values()), name=f"worker {worker:.0f}",
                       marker_color=RUN_COLORS[number % len(RUN_COLORS)])
    figure.update_xaxes(title="updates by other workers since this worker read the parameters", dtick=1)
    figure.update_yaxes(title="updates")
    return figure


def expert_loads_chart(run):
    """Draws a group of bars for each expert, with a bar for each block."""
    figure = go.Figure()
    for block, loads in enumerate(run["expert_loads"]):
        figure.add_bar(x=list(range(len(loads))), y=[100 * load for load in loads], name=f"block {block}",
                       marker_color=RUN_COLORS[block % len(RUN_COLORS)])
    figure.add_hline(y=100 / len(run["expert_loads"][0]), line_dash="dash", line_color="#5b6776")
    figure.update_xaxes(title="expert", dtick=1)
    figure.update_yaxes(title="% of the choices", rangemode="tozero")
    return figure


def scaling_chart(rows):
    figure = make_subplots(rows=1, cols=2)
    ranks = [row["ranks"] for row in rows]
    figure.add_scatter(x=ranks, y=[count / ranks[0] for count in ranks], name="ideal", row=1, col=1,
                       line=dict(color="#888888", dash="dot"))
    figure.add_scatter(x=ranks, y=[row["speedup"] for row in rows], name="speed-up", mode="lines+markers", row=1, col=1,
                       line=dict(color=COLORS["compute"]), hovertext=[row["title"] for row in rows])
    figure.add_bar(x=[str(count) for count in ranks], y=[row["efficiency"] for row in rows], name="efficiency", row=1,
                   col=2, marker_color=COLORS["compute"], text=[f"{100 * row['efficiency']:.0f} %" for row in rows],
                   textposition="auto")
    figure.update_xaxes(title="ranks", tickvals=ranks, row=1, col=1)
    figure.update_yaxes(title="speed-up", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title="ranks", type="category", row=1, col=2)
    figure.update_yaxes(title="efficiency", tickformat=".0%", rangemode="tozero", row=1, col=2)
    return figure


# ---- tables --------------------------------------------------------------------------------------------------------

def runs_table(runs):
    rows = []
    for run in runs:
        shares = run.get("shares") or []
        mean = lambda kind: percent(sum(share[kind] for share in shares) / len(shares)) if shares else "–"
        sent = {}
        for line in run["ledger"]:
            sent[line["rank"]] = sent.get(line["rank"], 0) + line["sent"]
        held = [sum(size for kind, size in memory["peak"].items() if kind not in ("data", "host"))
                for memory in run.get("memory") or []]
        rows.append([run["title"], f"{run['training'][-1][1]:.6f}" if run["training"] and run["training"][-1][1] is not None
                     else "–", time_text(run["seconds_per_step"]), *map(mean, COLORS),
                     bytes_text(max(held)) if held else "–",
                     bytes_text(max(sent.values(), default=0) / run["steps"]) if run["steps"] else "–"])
    return table(["run", "final loss", "time per step", "compute", "communication", "waiting", "idle",
                  "peak memory per rank", "sent per rank and step"], rows)


def ledger_table(run):
    lines = {}
    for line in run["ledger"]:
        lines.setdefault((line["op"], line["communicator"]), []).append(line)
    steps = max(1, run["steps"])
    count = lambda value: f"{value:,.0f}"
    return table(["operation", "communicator", "P", "ranks", "calls per rank", "bytes per rank", "sent, by the formula",
                  "sent per rank", "sent per rank and step"],
                 [[op, communicator, of[0]["ranks"], len(of), span_text([line["calls"] for line in of], count),
                   span_text([line["bytes"] for line in of], count), FORMULAS.get(op, ""),
                   span_text([line["sent"] for line in of], count),
                   span_text([line["sent"] / steps for line in of], bytes_text)]
                  for (op, communicator), of in sorted(lines.items())])


def formula_table(run):
    """Compares what the ranks hold and send with the formulas. Ranks with equal numbers share a line."""
    lines = {}
    for formula in run["formulas"]:
        rank = formula["rank"]
        peak = next((memory["peak"] for memory in run.get("memory") or [] if memory["rank"] == rank), {})
        compared = [("held: " + kind, peak.get(kind), count) for kind, count in formula["memory"].items()]
        compared += [(f"sent per step: {group} group", formula.get("measured", {}).get(group, 0), count)
                     for group, count in formula["sent"].items()]
        for what, found, expected in compared:
            if found is not None and (found or expected):
                lines.setdefault(what, {}).setdefault((found, expected), []).append(rank)
    rows = []
    for what, of in lines.items():
        for (found, expected), ranks in of.items():
            off = f"{100 * (found / expected - 1):+.1f} %" if expected else "–"
            rows.append([what, ", ".join(map(str, ranks)), f"{found:,.0f}", f"{expected:,.0f}", off])
    return table(["", "ranks", "bytes", "by the formula", "off by"], rows)


# ---- the page ------------------------------------------------------------------------------------------------------

def add_overview(page, runs, scaling):
    for run in runs:
        page.add(f"<section class=headline><h2>{html.escape(run['title'])}</h2><p>{html.escape(run['headline'])}</p>"
                 f"<p class=advice>{html.escape(run['advice'])}</p></section>")
    page.add(runs_table(runs))
    page.add("<p class=note>Shares are medians over the steps (for local_sgd, over the rounds), averaged over the ranks. Peak "
             "memory does not include the data set.</p>")
    timed = [run for run in runs if run.get("shares")]
    if timed:
        bars = sum(len(run["shares"]) for run in timed)
        page.chart("shares", shares_chart(timed), 90 + 26 * bars, "Where the time of a step goes",
                   "Communication and waiting count only while the rank does not compute: computation hides the rest.")
    for number, series in enumerate(scaling):
        page.chart(f"scaling-{number}", scaling_chart(series["rows"]), 330, f"How {series['program']} scales")
    if any(run["training"] for run in runs):
        page.chart("loss", loss_chart(runs), 330, "Loss")
    if any(run["distance"] for run in runs):
        page.chart("distance", by_step_chart(runs, lambda run: run["distance"], "distance"), 300,
                   "Distance between the replicas", "The square root of the mean of ‖wᵢ − w̄‖², at the end of each epoch.")
    if any(run["program"] in OTHER_ROADS and run.get("traffic", {}).get("bytes") for run in runs):
        page.chart("traffic", by_step_chart(runs, sent_by_step, "KiB", shape="hvh"), 300, "Bytes sent in each step",
                   "Of the rank that sends the most.")


def sent_by_step(run):
    return [(step, count / 1024) for step, count in enumerate(run.get("traffic", {}).get("bytes", []))]


def add_run(page, number, run):
    page.add(f"<h2 class=run>{html.escape(run['title'])}</h2>")
    if run["simulated"]:
        page.add(f"<p class=note>On a simulated machine: {html.escape(run['simulated'])}</p>")
    if run.get("schedule"):
        page.chart(f"schedule-{number}", schedule_chart(run), schedule_height(run), "The schedule and what happened",
                   "Above: as if each forward and backward took one slot and messages took no time. Below: a typical step.")
    if run.get("timeline", {}).get("lane"):
        page.add(f"<p class=buttons><button data-chart=timeline-{number} data-view=step>one step</button> "
                 f"<button data-chart=timeline-{number} data-view=run>the whole run</button></p>")
        page.frame(f"timeline-{number}", 100 + 30 * len(run["timeline"]["lanes"]), "What ran when",
                   "Drag to zoom, double-click to see one step again. An NCCL call waits until the last of its ranks has "
                   "begun its own.")
        page.chart(f"utilization-{number}", utilization_chart(run), 90 + 45 * len(run["utilization"]),
                   "Utilization over time")
    if run.get("memory"):
        bars = len(run["memory"]) + len(run["formulas"])
        page.chart(f"memory-{number}", memory_chart(run), 100 + 26 * bars, "Memory by kind, at its peaks", NO_FORMULA if not
                   run["formulas"] else "Hatched: by the formulas of the chapters' READMEs, without kinds that have none.")
    if run.get("memory_over_time"):
        page.chart(f"memory-over-time-{number}", memory_over_time_chart(run), 90 + 75 * len(run["memory_over_time"]),
                   "Memory by kind over time", "The steps run between the dashed lines, and allocate nothing.")
    if run["staleness"]:
        page.chart(f"staleness-{number}", staleness_chart(run), 280, "Staleness of the gradients")
    if run["expert_loads"]:
        page.chart(f"loads-{number}", expert_loads_chart(run), 280, "Load of the experts in the last epoch",
                   "Dashed: all experts are chosen equally often.")
    if run["formulas"] and run.get("memory"):
        page.add("<h3>Held and sent, compared with the formulas</h3>" + formula_table(run) + "<p class=note>Formulas leave "
                 "out what is sent once per run or epoch, such as the first parameters and the losses, and the padding of "
                 "shards.</p>")
    if run["ledger"]:
        page.add("<h3>Ledger: what the program's NCCL calls sent</h3>" + ledger_table(run))


STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1c2430; margin: 0 auto; padding: 20px 0 60px; width: 1160px; }
h1 { font-size: 26px; margin: 0 0 14px; } h2 { font-size: 19px; margin: 0 0 4px; } h3 { font-size: 16px; margin: 0; }
h2.run { margin-top: 44px; border-top: 2px solid #d5dae1; padding-top: 18px; }
.headline { background: #f2f5f9; border-left: 5px solid #b9467a; padding: 10px 16px; margin: 0 0 10px; }
.headline p { margin: 2px 0; font-size: 17px; } .headline .advice { color: #44566c; font-size: 15px; }
figure { margin: 22px 0 0; } .note { color: #5b6776; margin: 2px 0; font-size: 14px; min-height: 2px; }
.buttons { float: right; margin: 22px 0 0; } button { font: inherit; font-size: 13px; padding: 2px 10px; }
table { border-collapse: collapse; margin: 12px 0 4px; width: 100%; font-size: 14px; }
th, td { text-align: right; padding: 4px 8px; border-bottom: 1px solid #e3e7ec; }
th:first-child, td:first-child { text-align: left; } td { white-space: nowrap; } th { color: #44566c; font-weight: 600; vertical-align: bottom; }
@page { size: A4 landscape; margin: 10mm; }
@media print { body { zoom: 0.88; padding: 0; } figure, .headline, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
  .buttons { display: none; } }
"""


def script(text, **attributes):
    # The text must not contain the end tag of a script.
    names = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<script{names}>{text}</script>\n"


def data_script(name, value):
    return script(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c"), type="application/json", id=name)


def write_page(data, file):
    page = Page()
    add_overview(page, data["runs"], data["scaling"])
    for number, run in enumerate(data["runs"]):
        add_run(page, number, run)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "report_timeline.js"), encoding="utf-8") as code:
        drawing = code.read()
    file.write("<!DOCTYPE html>\n<html lang=en>\n<head><meta charset=utf-8><title>Report</title>\n"
               '<link rel=icon href="data:,">\n'
               f"<style>{STYLE}</style></head>\n<body>\n<h1>Report</h1>\n")
    file.write("\n".join(page.parts) + "\n")
    file.write(data_script("data", data) + data_script("charts", page.charts))
    file.write(script(get_plotlyjs()) + script(drawing) + "</body>\n</html>\n")


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: report_page.py DATA PAGE")
    with open(sys.argv[1], encoding="utf-8") as file:
        data = json.load(file)
    # Keep the page of an earlier report until this one is complete.
    whole = sys.argv[2] + ".new"
    with open(whole, "w", encoding="utf-8") as file:
        write_page(data, file)
    os.replace(whole, sys.argv[2])


if __name__ == "__main__":
    main()
