# SPDX-License-Identifier: Apache-2.0
"""Writes checker/mistakes/fingerprints/CHAPTER.txt: what each wrong filling of checker/mistakes/CHAPTER.txt looks like
in each of the chapter's checks. Run it after a change of the fillings, of the checks, or of what the solutions record.

  make_fingerprints [--quick | --says] [BUILD] CHAPTER...

BUILD, build/cpu, holds compare_runs and the chapter's targets wrong_… and solution_…. --quick: runs each mistake only
as its tests do, and not in all other checks that reach its TODO: a tenth of the time, for while you work on it. --says:
renews only the sentences and runs nothing. """

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

from . import chapters, mistakes
from .check_exercise import LAUNCH, anywhere, of_ranks, remove

ROOT = mistakes.ROOT


def says(chapter: mistakes.Chapter) -> list[str]:
    names = dict.fromkeys(use.name for use in chapter.uses)
    return [f"says {name} {chapter.says[name]}" for name in names if chapter.says.get(name)]


class Runs:
    """Runs a chapter's solutions and its wrong fillings."""

    def __init__(self, chapter: mistakes.Chapter, build: str, folder: str):
        self.chapter, self.build, self.folder = chapter, build, folder
        sources = [
            file for end in ("cu", "h") for file in sorted(glob.glob(f"{ROOT}/solutions/{chapter.name}/*.{end}"))
        ]
        self.todos = ["--sources", f"{build}/fillings", *[word for file in sources for word in ("--todos", file)]]
        self.probed = set(re.findall(r'"(\d\d\.(?:\d+|[A-Z]))"', "".join(mistakes.read_text(file) for file in sources)))
        self.programs: dict[str, set[str]] = {}  # of each mistake
        for use in chapter.uses:
            self.programs.setdefault(use.name, set()).add(use.run.program)
        self.tested = {(use.name, use.run.on(ranks)) for use in chapter.uses for ranks in use.run.ranks}

    def start(self, program: str, run: mistakes.Run, ranks: int, record: str, filling: str = "") -> int:
        remove([record, *[os.path.join(self.folder, name) for name in of_ranks(record)]])
        environment = dict(
            os.environ,
            WORKSHOP_TIMEOUT="8",
            WORKSHOP_ORDER="1",
            WORKSHOP_JOURNAL="1",
            WORKSHOP_FILLING=filling,
        )
        for name in ("WORKSHOP_SLOW", "WORKSHOP_PROBES", "WORKSHOP_SIMULATE"):
            environment.pop(name, None)
        if run.machine:
            environment["WORKSHOP_SIMULATE"] = run.machine
        with open(record + ".out", "wb") as output:
            return subprocess.run(
                [LAUNCH, "-n", str(ranks), "-t", "60", "--", program, *anywhere(run.options), "--record", record],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode

    def reached(self, name: str, program: str, expected: str) -> bool:
        """Whether the solution's run gets to the region of a mistake. One without a probe may be reached wherever it is
        run."""
        todo = name.partition("-")[0]
        return f'"id":"{todo}"' in expected if todo in self.probed else program in self.programs[name]

    def of_check(self, run: mistakes.Run, ranks: int, quick: bool) -> list[str]:
        """The lines about one check."""
        names = [name for name in self.programs if not quick or (name, run.on(ranks)) in self.tested]
        if not names:
            return []
        # That of another precision has the mistakes only if a test runs them there.
        program = run.program + ("_bf16" if run.is_bf16 else "")
        if not os.access(f"{self.build}/fillings/{self.chapter.name}/{program}", os.X_OK):
            if any(tested == run.on(ranks) for _, tested in self.tested):
                sys.exit(f"make_fingerprints: build the target wrong_{self.chapter.name}_{program} first")
            return []
        record = os.path.join(self.folder, "expected.jsonl")
        if self.start(f"{self.build}/solutions/{self.chapter.name}/{run.program}", run, ranks, record):
            sys.exit(f"make_fingerprints: the solution failed\n{mistakes.read_text(record + '.out')}")
        expected = mistakes.read_text(record)
        lines = [" ".join(["run", run.program, str(ranks), *run.options])]
        for name in names:
            if quick or self.reached(name, run.program, expected):
                lines += [f"{name} | {sighting}" for sighting in self.sightings(name, run, ranks, record)]
        return lines

    def sightings(self, name: str, run: mistakes.Run, ranks: int, expected: str) -> list[str]:
        record = os.path.join(self.folder, "mine.jsonl")
        status = self.start(f"{self.build}/fillings/{self.chapter.name}/{run.program}", run, ranks, record, name)
        how = []
        if not os.path.exists(record):
            how = ["--journals"]
            journals = [os.path.join(self.folder, file) for file in of_ranks(record)]
            record = os.path.join(self.folder, "mine.journals")
            with open(record, "wb") as file:
                for journal in journals:
                    with open(journal, "rb") as of_rank:
                        shutil.copyfileobj(of_rank, file)
        of_region = not name.partition("-")[0][-1].isdecimal()
        found: dict[str, None] = {}
        for level in [chapters.BLANK] if of_region else [chapters.GUIDED, chapters.BLANK]:
            done = subprocess.run(
                [
                    f"{self.build}/tools/compare_runs",
                    "--sightings",
                    "--level",
                    level,
                    "--status",
                    str(status),
                    "--output",
                    os.path.join(self.folder, "mine.jsonl.out"),
                    *how,
                    *self.todos,
                    expected,
                    record,
                ],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                check=False,
            )
            for line in done.stdout.decode("utf-8", "replace").splitlines():
                if line.startswith("sighting: "):
                    found[line[len("sighting: ") :]] = None
        return list(found)


def renewed(text: str, sentences: list[str]) -> str:
    """Fingerprints with other sentences."""
    lines = text.splitlines()
    rest = [line for line in lines if not line.startswith("says ")]
    return "\n".join(rest[:1] + sentences + rest[1:]) + "\n"


def main(words: list[str]) -> int:
    quick, only_says = "--quick" in words, "--says" in words
    names = [word for word in words if not word.startswith("--")]
    build = os.path.join(ROOT, "build", "cpu")
    if names and not re.fullmatch(r"\d\d_\w+", names[0]):
        build = os.path.abspath(names.pop(0))
    if not names or set(words) & {"--help", "-h"}:
        print(__doc__, file=sys.stderr)
        return 2
    for name in names:
        try:
            chapter = mistakes.read_chapter(name)
        except (mistakes.Wrong, OSError) as error:
            print(f"make_fingerprints: {error}", file=sys.stderr)
            return 2
        path = os.path.join(mistakes.MISTAKES, "fingerprints", name + ".txt")
        if only_says:
            text = renewed(mistakes.read_text(path), says(chapter))
        else:
            lines = [
                f"# Written by checker/make_fingerprints: what the mistakes of {name} look like (checker/fingerprints.h).",
                *says(chapter),
            ]
            with tempfile.TemporaryDirectory() as folder:
                runs = Runs(chapter, build, folder)
                for check in chapter.checks:
                    for ranks in check.ranks:
                        lines += runs.of_check(check, ranks, quick)
            text = "\n".join(lines) + "\n"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    return 0
