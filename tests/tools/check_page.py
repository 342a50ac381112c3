# SPDX-License-Identifier: Apache-2.0
"""check_page.py REPORT numbers|browser: the page of ./workshop report, made of runs that are known.

numbers: what is read back from the page is what the runs have, with 100,000 spans, too.
browser: a browser without a network draws every chart and has nothing to complain of.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STEP, PIECES, RANKS = 1000, 10, 4  # microseconds a step; spans of a rank in it


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


# A pipeline in which each rank computes for 60 % of a step, communicates for 10 and waits for the next one for 20.
def write_run(folder, schedule, steps):
    run = {"type": "run", "chapter": "04_pipeline", "program": "pipeline", "world": RANKS,
           "options": {"schedule": schedule, "micro-batches": 8, "chunks": 1}}
    kinds = ["parameters", "gradients", "optimizer", "activations"]
    with open(f"{folder}/{schedule}.jsonl", "w") as file:
        lines = [run]
        lines += [{"type": "step", "replica": 0, "step": step, "epoch": 0, "loss": 1 / (step + 1),
                   "global_loss": 1 / (step + 1)} for step in range(steps)]
        for rank in range(RANKS):
            lines.append({"type": "collective", "rank": rank, "op": "ncclSend", "communicator": "world", "ranks": RANKS,
                          "calls": steps, "elements": 16 * steps, "bytes": 64 * steps})
            peak = {kind: 2**20 * (rank + 1) for kind in kinds}
            lines.append({"type": "memory", "rank": rank, "peak": peak, "current": peak})
        lines.append({"type": "end", "status": "complete", "steps": steps, "seconds_per_step": STEP / 1e6})
        file.writelines(json.dumps(line) + "\n" for line in lines)
    events = []
    for rank in range(RANKS):
        for step in range(steps):
            at = step * STEP
            mark = {"ph": "i", "name": f"step {step}", "s": "t", "pid": rank, "tid": 0, "ts": at, "args": {"step": step}}
            events.append(mark)
            for piece in range(PIECES - 2):
                name = f"{'forward' if piece % 2 == 0 else 'backward'} {piece // 2}"
                events.append({"ph": "X", "name": name, "pid": rank, "tid": 0, "ts": at + 75 * piece, "dur": 75})
            key = {"communicator": "world", "id": "00000000000000ab", "number": step + 1, "bytes": 64}
            # The send of the next rank begins 200 later than the receive of this one, and both end 100 after that.
            events.append({"ph": "X", "name": "ncclRecv", "pid": rank, "tid": 1, "ts": at + 600, "dur": 300,
                           "args": {"calls": [{**key, "op": "ncclRecv", "rank": rank, "peer": (rank + 1) % RANKS}]}})
            events.append({"ph": "X", "name": "ncclSend", "pid": rank, "tid": 2, "ts": at + 800, "dur": 100,
                           "args": {"calls": [{**key, "op": "ncclSend", "rank": rank, "peer": (rank - 1) % RANKS}]}})
        events.append({"ph": "i", "name": "end of the epoch", "s": "t", "pid": rank, "tid": 0, "ts": steps * STEP})
    with open(f"{folder}/{schedule}.json", "w") as file:
        json.dump({"otherData": run, "traceEvents": events}, file)
    return [f"{folder}/{schedule}.jsonl", f"{folder}/{schedule}.json"]


def make_page(report, folder, files):
    with open(f"{folder}/data", "w") as data:
        subprocess.run([report, "--json", *files], stdout=data, check=True)
    page = f"{folder}/page.html"
    subprocess.run([sys.executable, f"{SOURCE}/tools/report_page.py", data.name, page], check=True)
    return page


def read_back(page):
    with open(page, encoding="utf-8") as file:
        text = file.read()
    assert "http-equiv" not in text and not re.search(r'<(script|link|img)[^>]+(src|href)="?(https?:|/)', text), \
        "the page loads something"
    read = lambda name: json.loads(re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', text).group(1))
    return text, read("data"), read("charts")


def check_numbers(report, folder):
    steps = 100_000 // (RANKS * PIECES)
    page = make_page(report, folder, write_run(folder, "1f1b", steps))
    text, data, charts = read_back(page)
    assert len(text.encode()) < 20_000_000, f"{len(text)} bytes"
    assert len(data["runs"][0]["timeline"]["lane"]) == 100_000, "spans are lost"
    expected = {"compute": 0.6, "communication that nothing hides": 0.1, "waiting for another rank": 0.2, "idle": 0.1}
    for trace in charts["shares"]["data"]:
        for value in trace["x"]:
            assert abs(value - expected[trace["name"]]) < 1e-6, (trace["name"], trace["x"])
    (loss,) = charts["loss"]["data"]
    assert list(loss["y"]) == [1 / (step + 1) for step in range(steps)]
    memory = {trace["name"]: trace["x"] for trace in charts["memory-0"]["data"]}
    assert memory["activations"] == [1, 2, 3, 4], memory
    assert sum(len(trace["y"]) for trace in charts["schedule-0"]["data"]) == RANKS * 16
    assert f"<td>{64 * steps:,}</td>" in text, "the ledger's bytes"
    assert "it waits for rank 1&#x27;s activations." in text, data["runs"][0]["headline"]


def check_in_browser(report, folder):
    browser = shutil.which("chromium") or shutil.which("google-chrome") or \
        skip("no Chromium here (package chromium), to draw the page with")
    page = make_page(report, folder, write_run(folder, "gpipe", 20) + write_run(folder, "1f1b", 20))
    _, data, charts = read_back(page)
    run = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile",
                          "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr",
                          "--virtual-time-budget=20000", "--window-size=1280,3000", "--dump-dom", f"file://{page}"],
                         capture_output=True, text=True, timeout=240)
    said = [line for line in run.stderr.splitlines() if "CONSOLE" in line]
    assert not said, said
    drawn = re.search(r'<body[^>]*data-drawn="(\d+)"', run.stdout)
    assert drawn, run.stdout[-2000:] + run.stderr[-2000:]
    assert int(drawn.group(1)) == len(charts) + len(data["runs"]), (drawn.group(1), list(charts))
    for name in [*charts, "timeline-0", "timeline-1"]:
        chart = run.stdout.split(f'id="{name}"', 1)[1].split("</figure>", 1)[0]
        assert "main-svg" in chart and chart.count("<path") > 4, f"nothing is drawn in {name}"
    # A step of each rank, and what lies half a width beside it: nothing is put together where all of it can be seen.
    assert run.stdout.split('id="timeline-0"', 1)[1].split("</figure>", 1)[0].count('class="point"') >= RANKS * PIECES


def main():
    report, what = os.path.abspath(sys.argv[1]), sys.argv[2]
    # Where a browser in a sandbox can read; its processes may still write while the folder is removed.
    with tempfile.TemporaryDirectory(dir=os.getcwd(), ignore_cleanup_errors=True) as folder:
        {"numbers": check_numbers, "browser": check_in_browser}[what](report, folder)


main()
