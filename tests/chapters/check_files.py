# SPDX-License-Identifier: Apache-2.0
"""What --record, --timeline, --json and the standard output promise: check_files.py BIN, the folder of the solutions.

A file that is there stays until its successor is complete, and nothing else is left in its folder. No two runs write
one file.
"""
from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from support import LAUNCH, expect, run, run_main, until, without_notes

NOT_REGULAR = "which cannot be written: it is not a regular file"


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def has_text(path: str) -> bool:
    return os.path.exists(path) and os.path.getsize(path) > 0


def is_complete(record: str) -> bool:
    return read(record).count('"type":"end"') == 1


def listing() -> list[tuple[str, int, int, str, str]]:
    """What is in the folder: name, kind, size, target of a link, content of a file."""
    found = []
    for folder, folders, files in os.walk("."):
        for name in folders + files:
            path = os.path.join(folder, name)
            about = os.lstat(path)
            target = os.readlink(path) if stat.S_ISLNK(about.st_mode) else ""
            content = read(path) if stat.S_ISREG(about.st_mode) else ""
            found.append((path, stat.S_IFMT(about.st_mode), about.st_size, target, content))
    return sorted(found)


def hidden() -> list[str]:
    return [path for path, *_ in listing() if os.path.basename(path).startswith(".")]


def refused(status: int, text: str, ranks: int, *command: str) -> None:
    """The command says one line with the text, and leaves the folder as it was."""
    before = listing()
    found, output = run([LAUNCH, "-t", "20", "-n", str(ranks), "--", *command], 60)
    output = without_notes(output)
    words = " ".join(command)
    expect(found == status, f"{output}\n{words}: status {found}, expected {status}")
    expect(text in output and "\n" not in output, f"{output}\n{words}: expected one line with: {text}")
    expect(listing() == before, f"{output}\n{words}: files were changed")


def check_refusals(solutions: str, ddp: list[str]) -> None:
    bandwidth, plan = f"{solutions}/00_collectives/bandwidth", f"{solutions}/07_3d/plan"
    for ranks in (1, 2):
        refused(2, "no checkpoint", ranks, *ddp, "--record", "old", "--timeline", "new", "--resume", "nowhere")
        refused(2, "--timeline is './old', the file of --record", ranks, *ddp, "--record", "old", "--timeline", "./old")
        refused(2, "--timeline is 'folder/../new', the file of --record", ranks, *ddp, "--record", "new",
                "--timeline", "folder/../new")
        refused(2, f"--record is 'pipe', {NOT_REGULAR}", ranks, *ddp, "--record", "pipe")
        refused(2, f"--timeline is 'folder', {NOT_REGULAR}", ranks, *ddp, "--timeline", "folder")
        refused(2, f"--json is 'pipe', {NOT_REGULAR}", ranks, bandwidth, "--max-mib", "1", "--json", "pipe")
    refused(2, "--node-link is 'pipe'; expected a file", 1, plan, "--node-link", "pipe")
    refused(2, "--record is 'old', the file of --json", 1, plan, "--record", "old", "--json", "old")


def check_replacement(ddp: list[str]) -> None:
    """A run that comes to its end replaces the file, also one behind a link, which stays one."""
    os.symlink("old", "link")
    status, output = run([LAUNCH, "-t", "60", "-n", "2", "--", *ddp, "--record", "link", "--timeline", "new"], 90)
    expect(status == 0, f"{output}\nthe run failed")
    expect(os.path.islink("link") and is_complete("old") and os.path.getsize("new") > 0,
           f"{output}\nthe record is not in 'old', or the timeline not in 'new'")
    expect(not hidden(), f"files of its own are left: {hidden()}")


def check_two_runs(ddp: list[str]) -> None:
    """A file belongs to one run at a time. What a killed one has left is taken over."""
    bandwidth = [os.path.join(os.path.dirname(ddp[0]), "..", "00_collectives", "bandwidth"), "--max-mib", "1"]
    endless = [*ddp, "--epochs", "1000000", "--record", "old", "--timeline", "new"]
    before = read("old")
    with subprocess.Popen(endless, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as first:
        try:
            until(lambda: has_text(".old.lock") and has_text(".new.lock"), 60, "the first run's files")
            for ranks in (1, 2):
                for option, path in (("--record", "link"), ("--timeline", "folder/../new"), ("--record", "./new")):
                    said = (f"error: another run, process {first.pid} on {os.uname().nodename}, is going to write "
                            f"{path}: choose another file for {option}")
                    refused(2, said, ranks, *ddp, option, path)
                refused(2, "is going to write old: choose another file for --json", ranks, *bandwidth, "--json", "old")
        finally:
            first.kill()
    expect(read("old") == before, "a killed run has written its record")
    status, output = run([*ddp, "--record", "old", "--timeline", "new"], 60)
    expect(status == 0 and is_complete("old"), f"{output}\nstatus {status} after a killed run")
    expect(not hidden(), f"files of its own are left: {hidden()}")
    # A run that fails gives its files up at once.
    status, output = run([*ddp, "--record", "old", "--resume", "nowhere"], 60)
    expect(status == 2 and not hidden(), f"{output}\nstatus {status}, left: {hidden()}")


def with_small_files() -> None:
    """Lets a process write 1 KiB to a file. It gets an error, and not the signal that would end it."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def check_record_on_full_disk(ddp: list[str]) -> None:
    before = read("old")
    status, output = run([*ddp, "--record", "old"], 60, preexec_fn=with_small_files)
    said = f"cannot write old: {os.strerror(errno.EFBIG)}"
    expect(status == 1 and output.rstrip("\n").endswith(said), f"{output}\nstatus {status}: the record is cut off")
    expect(is_complete("old") and read("old") == before, f"{output}\nthe record before is gone")
    expect(not hidden(), f"files of its own are left: {hidden()}")


def check_output_on_full_disk(ddp: list[str]) -> None:
    """What is printed goes to a full disk."""
    said = os.strerror(errno.ENOSPC)
    with open("/dev/full", "wb") as full:
        streams = {"stdout": full, "stderr": subprocess.PIPE}
        status, output = run(ddp, 60, **streams)
        expect(status == 1 and without_notes(output) == f"rank 0: standard output cannot be written: {said}",
               f"{output}\nstatus {status}: what it printed is lost")
        status, output = run([LAUNCH, "-t", "60", "-n", "2", "--", *ddp], 90, **streams)
        expect(status == 1 and without_notes(output).endswith(said),
               f"{output}\nstatus {status}: what two ranks printed is lost")


def main(words: list[str]) -> int:
    solutions = words[0]
    ddp = [f"{solutions}/02_ddp/ddp", "--samples", "96", "--log-every", "0"]
    shutil.rmtree("files", ignore_errors=True)
    os.makedirs("files/folder")
    os.chdir("files")
    with open("old", "w", encoding="utf-8") as file:
        file.write("of an earlier run\n")
    os.mkfifo("pipe")
    check_refusals(solutions, ddp)
    check_replacement(ddp)
    check_two_runs(ddp)
    check_record_on_full_disk(ddp)
    if os.access("/dev/full", os.W_OK):
        check_output_on_full_disk(ddp)
    return 0


if __name__ == "__main__":
    run_main(main)
