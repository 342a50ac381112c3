# SPDX-License-Identifier: Apache-2.0
"""check_page.py REPORT numbers|browser: the page of ./workshop report, made of runs that are known. Skipped if no
Python has plotly.

numbers: what the page is to draw is what the runs have, with 100,000 spans, too.
browser: a browser without a network draws every chart, with these numbers, and has nothing to complain of.
"""
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tools", "python"))
from workshop.verbs_measure import plotly_here  # noqa: E402  # it is found there

STEP, PIECES, RANKS = 1000, 10, 4  # microseconds a step; spans of a rank in it


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


def step_mark(rank, step, at):
    return {"ph": "i", "name": f"step {step}", "s": "t", "pid": rank, "tid": 0, "ts": at, "args": {"step": step}}


def end_mark(rank, at):
    return {"ph": "i", "name": "end of the epoch", "s": "t", "pid": rank, "tid": 0, "ts": at}


def message(rank, op, at, duration, stream, number, size, peer):
    call = {"op": op, "communicator": "world", "id": "00000000000000ab", "number": number, "bytes": size, "rank": rank,
            "peer": peer}
    return {"ph": "X", "name": op, "pid": rank, "tid": stream, "ts": at, "dur": duration, "args": {"calls": [call]}}


def write_files(name, run, lines, steps, events):
    with open(f"{name}.jsonl", "w") as file:
        end = {"type": "end", "status": "complete", "steps": steps, "seconds_per_step": STEP / 1e6}
        file.writelines(json.dumps(line) + "\n" for line in [run, *lines, end])
    with open(f"{name}.json", "w") as file:
        json.dump({"otherData": run, "traceEvents": events}, file)
    return [f"{name}.jsonl", f"{name}.json"]


# A pipeline in which each rank computes for 60 % of a step, communicates for 10 and waits for the next one for 20. It holds
# (rank + 1) MiB of four kinds: parameters from the start on, all others from 10 on.
def write_run(folder, schedule, steps):
    run = {"type": "run", "chapter": "04_pipeline", "program": "pipeline", "world": RANKS,
           "options": {"schedule": schedule, "micro-batches": 8, "chunks": 1, "layers": [8] * 9, "batch-size": 32,
                       "activation": "none", "optimizer": "sgd", "model": "mlp"}}
    kinds = ["parameters", "gradients", "optimizer", "activations"]
    lines = [{"type": "step", "replica": 0, "step": step, "epoch": 0, "loss": 1 / (step + 1),
              "global_loss": 1 / (step + 1)} for step in range(steps)]
    events = []
    for rank in range(RANKS):
        lines.append({"type": "collective", "rank": rank, "op": "ncclSend", "communicator": "world", "ranks": RANKS,
                      "calls": steps, "elements": 16 * steps, "bytes": 64 * steps})
        peak = {**{kind: 2**20 * (rank + 1) for kind in kinds}, "buckets": 0}
        lines.append({"type": "memory", "rank": rank, "peak": peak, "current": peak})
        nothing = {kind: 0 for kind in peak}
        for at, held in ((0, {**nothing, "parameters": peak["parameters"]}), (10, peak), (steps * STEP + 10, nothing)):
            events.append({"ph": "C", "name": "memory", "pid": rank, "id": rank, "ts": at, "args": held})
        for step in range(steps):
            at = step * STEP
            events.append(step_mark(rank, step, at))
            for piece in range(PIECES - 2):
                name = f"{'forward' if piece % 2 == 0 else 'backward'} {piece // 2}"
                events.append({"ph": "X", "name": name, "pid": rank, "tid": 0, "ts": at + 75 * piece, "dur": 75})
            # The send of the next rank begins 200 later than the receive of this one, and both end 100 after that.
            events.append(message(rank, "ncclRecv", at + 600, 300, 1, step + 1, 64, (rank + 1) % RANKS))
            events.append(message(rank, "ncclSend", at + 800, 100, 2, step + 1, 64, (rank - 1) % RANKS))
        events.append(end_mark(rank, steps * STEP))
    return write_files(f"{folder}/{schedule}", run, lines, steps, events)


# Replicas that are 1, 1/2, 1/3 … apart after 2, 4, 6 … steps; and a server, whose updates of worker 1 are 0, 1, 2 steps
# stale in turn, and those of worker 2 always 3. In step i rank 0 of the first sends i KiB, and of the second 1 KiB.
def write_replicas(folder, steps):
    files = []
    for program in ("decentralized", "parameter_server"):
        run = {"type": "run", "chapter": "10_less_communication", "program": program, "world": 3, "options": {}}
        if program == "decentralized":
            values = {f"distance after step {2 * i}": 1 / i for i in range(1, steps // 2 + 1)}
        else:
            values = {f"worker of update {i}": 1 + i % 2 for i in range(steps)}
            values |= {f"staleness of update {i}": 3 if i % 2 else i // 2 % 3 for i in range(steps)}
        lines = [{"type": "value", "rank": 0, "name": name, "value": value} for name, value in values.items()]
        sizes = [1024 * (step if program == "decentralized" else 1) for step in range(steps)]
        lines.append({"type": "collective", "rank": 0, "op": "ncclSend", "communicator": "world", "ranks": 3,
                      "calls": steps, "elements": 0, "bytes": sum(sizes)})
        events = [step_mark(0, step, step * STEP) for step in range(steps)] + [end_mark(0, steps * STEP)]
        events += [message(0, "ncclSend", step * STEP + 10, 500, 0, step + 1, size, 1) for step, size in enumerate(sizes)]
        files += write_files(f"{folder}/{program}", run, lines, steps, events)
    return files


# Loads of two experts: those of block 0 are 75 and 25 % on rank 0, 50 and 75 % on rank 1, to have two means that differ.
def write_mixture(folder):
    run = {"type": "run", "chapter": "09_expert_parallel", "program": "moe_parallel", "world": 2, "options": {}}
    lines = [{"type": "value", "rank": rank, "name": f"load of expert {expert} of block {block}",
              "value": 0.5 if block == 1 else 0.75 if rank == expert else 0.25 + 0.25 * rank}
             for rank in range(2) for expert in range(2) for block in range(2)]
    events = [step_mark(0, 0, 0), message(0, "ncclSend", 10, 500, 0, 1, 1024, 1), end_mark(0, STEP)]
    return write_files(f"{folder}/mixture", run, lines, 1, events)


def make_page(report, python, folder, files):
    with open(f"{folder}/data", "w") as data:
        subprocess.run([report, "--json", *files], stdout=data, check=True, timeout=240)
    page = f"{folder}/page.html"
    subprocess.run([*python, f"{SOURCE}/tools/report/report_page.py", data.name, page], check=True, timeout=240)
    return page


def read_back(page):
    with open(page, encoding="utf-8") as file:
        text = file.read()
    assert "http-equiv" not in text and not re.search(r'<(script|link|img)[^>]+(src|href)="?(https?:|/)', text), \
        "the page loads something"
    read = lambda name: json.loads(re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', text).group(1))
    return text, read("data"), read("charts")


def close(found, expected):
    return len(found) == len(expected) and all(abs(a - b) <= 1e-6 * max(1, abs(b)) for a, b in zip(found, expected))


def trace(charts, chart, name, number=0):
    return [one for one in charts[chart] if one.get("name") == name][number]


# `charts`: the traces of each chart, as they are to be drawn or have been. Run `number` of a page is that pipeline.
def check_pipeline(charts, number, schedule, steps):
    forms = {"gpipe": ([8] * 4, [0, 8, 8, 8]), "1f1b": ([4, 3, 2, 1], [0, 4, 3, 2])}  # sets of activations, inputs
    memory = f"memory-{number}"
    held = [128 * (2 * sets + 2 + inputs) / 2**20 for sets, inputs in zip(*forms[schedule])]  # by chapter 04's formula
    assert close(trace(charts, memory, "activations")["x"], [value for pair in zip([1, 2, 3, 4], held) for value in pair])
    assert close(trace(charts, memory, "parameters")["x"][1::2], [576 / 2**20] * RANKS)

    over_time = f"memory-over-time-{number}"
    for rank in range(RANKS):
        assert close(trace(charts, over_time, "parameters", rank)["x"], [0, 0.01, steps + 0.01])
        assert close(trace(charts, over_time, "parameters", rank)["y"], [rank + 1, rank + 1, 0])
        assert close(trace(charts, over_time, "activations", rank)["y"], [0, rank + 1, 0])
        formula = trace(charts, over_time, "formula", rank)["y"]
        assert 0 < formula[0] == formula[1] < 0.01, formula

    # The chart, and below it what each rank has done in a step.
    planned, ran = (trace(charts, f"schedule-{number}", "forward", row) for row in (0, 1))
    assert len(planned["x"]) == RANKS * 8 and set(planned["x"]) == {1}
    last = [base for base, stage in zip(planned["base"], planned["y"]) if stage == "stage 3"]
    assert min(last) == 3, "the last stage begins in slot 3"
    assert len(ran["x"]) == RANKS * 4 and close(ran["x"], [0.075] * RANKS * 4)
    first = [base for base, rank in zip(ran["base"], ran["y"]) if rank == "rank 0"]
    assert close(first, [0, 0.15, 0.3, 0.45]), first

    utilization = trace(charts, f"utilization-{number}", "waiting for another rank", 2)
    assert close(utilization["y"], [0.2] * len(utilization["y"])), utilization["y"]


def check_replicas(charts, number, steps):
    distance = trace(charts, "distance", "10_less_communication decentralized, 3 ranks")
    assert close(distance["x"], range(2, steps + 1, 2)) and close(distance["y"], [1 / i for i in range(1, steps // 2 + 1)])
    assert close(trace(charts, "traffic", "10_less_communication decentralized, 3 ranks")["y"], range(steps))
    assert close(trace(charts, "traffic", "10_less_communication parameter_server, 3 ranks")["y"], [1] * steps)
    worker = [trace(charts, f"staleness-{number}", f"worker {worker}") for worker in (1, 2)]
    assert dict(zip(worker[0]["x"], worker[0]["y"])) == {0: 4, 1: 3, 2: 3}, worker[0]
    assert dict(zip(worker[1]["x"], worker[1]["y"])) == {3: 10}, worker[1]


def check_shares(charts):
    expected = {"compute": 0.6, "communication that nothing hides": 0.1, "waiting for another rank": 0.2, "idle": 0.1}
    for name, share in expected.items():
        of_pipelines = trace(charts, "shares", name)["x"][:RANKS]
        assert close(of_pipelines, [share] * RANKS), (name, of_pipelines)


def check_numbers(make, folder):
    steps = 100_000 // (RANKS * PIECES)
    page = make(write_run(folder, "1f1b", steps))
    text, data, charts = read_back(page)
    assert len(text.encode()) < 20_000_000, f"{len(text)} bytes"
    assert len(data["runs"][0]["timeline"]["lane"]) == 100_000, "spans are lost"
    traces = {name: chart["data"] for name, chart in charts.items()}
    check_shares(traces)
    check_pipeline(traces, 0, "1f1b", steps)
    (loss,) = traces["loss"]
    assert list(loss["y"]) == [1 / (step + 1) for step in range(steps)]
    assert f"<td>{64 * steps:,}</td>" in text, "the ledger's bytes"
    row = "<tr><td>held: activations</td><td>0</td><td>1,048,576</td><td>1,280</td><td>+81820.0 %</td></tr>"
    assert row in text, "what is held beside the formula"
    assert "it waits for rank 1&#x27;s activations." in text, data["runs"][0]["headline"]


# Says in the page what plotly has drawn, once it is drawn.
READ_BACK = """
<script>
{
const drawn = {};
for (const chart of document.querySelectorAll('.chart.js-plotly-plot')) {
  drawn[chart.id] = chart.data.map(({name, x, y, base}) =>
      Object.fromEntries(Object.entries({x, y, base}).filter(([, list]) => list).map(([key, list]) => [key, [...list]])
                             .concat([['name', name]])));
}
const told = document.createElement('script');
told.type = 'application/json';
told.id = 'drawn';
told.textContent = JSON.stringify(drawn);
document.body.append(told);
}
</script>
"""


def check_in_browser(make, folder):
    browser = shutil.which("chromium") or shutil.which("google-chrome") or \
        skip("no Chromium here (package chromium), to draw the page with")
    steps = 20
    page = make(write_run(folder, "gpipe", steps) + write_run(folder, "1f1b", steps) + write_replicas(folder, steps)
                + write_mixture(folder))
    text, data, charts = read_back(page)
    with open(page, "w", encoding="utf-8") as file:
        file.write(text.replace("</body>", READ_BACK + "</body>"))
    run = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile",
                          "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr",
                          "--virtual-time-budget=20000", "--window-size=1280,3000", "--dump-dom", f"file://{page}"],
                         capture_output=True, text=True, timeout=240)
    said = [line for line in run.stderr.splitlines() if "CONSOLE" in line]
    assert not said, said
    drawn = re.search(r'<body[^>]*data-drawn="(\d+)"', run.stdout)
    assert drawn, run.stdout[-2000:] + run.stderr[-2000:]
    assert int(drawn.group(1)) == len(charts) + len(data["runs"]), (drawn.group(1), list(charts))
    for name in [*charts, *(f"timeline-{i}" for i in range(len(data["runs"])))]:
        chart = run.stdout.split(f'id="{name}"', 1)[1].split("</figure>", 1)[0]
        assert "main-svg" in chart and chart.count("<path") > 4, f"nothing is drawn in {name}"
    # A step of each rank, and what lies half a width beside it: nothing is put together where all of it can be seen.
    assert run.stdout.split('id="timeline-0"', 1)[1].split("</figure>", 1)[0].count('class="point"') >= RANKS * PIECES
    traces = json.loads(re.search(r'<script type="application/json" id="drawn">(.*?)</script>', run.stdout).group(1))
    check_shares(traces)
    check_pipeline(traces, 0, "gpipe", steps)
    check_pipeline(traces, 1, "1f1b", steps)
    check_replicas(traces, 3, steps)
    loads = [trace(traces, "loads-4", f"block {block}") for block in range(2)]
    assert close(loads[0]["y"], [62.5, 50]) and close(loads[1]["y"], [50, 50]), loads


def main():
    report, what = os.path.abspath(sys.argv[1]), sys.argv[2]
    python = plotly_here() or skip("no Python here has plotly (package python3-plotly)")
    # Where a browser in a sandbox can read; its processes may still write while the folder is removed.
    folder = tempfile.mkdtemp(dir=os.getcwd())
    try:
        check = {"numbers": check_numbers, "browser": check_in_browser}[what]
        check(functools.partial(make_page, report, python, folder), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


main()
