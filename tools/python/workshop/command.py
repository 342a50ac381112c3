# SPDX-License-Identifier: Apache-2.0
"""The workshop's one command: reads the command line and calls a verb."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

from . import book, carry, golf, grade, machine, predict, processes, progress, slides, verbs_learn, verbs_measure, verbs_setup
from .context import Context
from .errors import Failed, Refused

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))

USAGE = """\
./workshop VERB [ARGUMENT]...      every verb builds what it needs

  demo                             trains one model with every strategy and prints them side by side
  list                             chapters, their programs, how many TODOs are filled in, what the last check said of
                                   them, and what to do next
  progress [--html FILE] FOLDER...
                                   for teachers: which TODOs are right, wrong or open in participants' clones, and
                                   golf's scores
  progress --export FILE, progress --import FILE
                                   carries what you have written, and your scores, to a clone on another computer
  run CHAPTER [PROGRAM] [-n RANKS] [--solution] [--launcher mpirun|env] [--restarts N [--shrink]] [-- OPTION...]
                                   runs your program, or the solution; -- --help lists the program's options;
                                   --launcher env does without mpirun (cuda backend): ranks are started here, with
                                   torchrun's variables; --restarts: again, at most N times, if a rank was killed or the
                                   ranks were stuck, with --shrink each time on one rank fewer
  submit CHAPTER [PROGRAM] [--nodes N] [--gpus N] [--solution] [--report] [--wait] [-- OPTION...]
                                   the same as a Slurm job, with --gpus a node; --wait follows it and ends as it does;
                                   --report: and shows what it has done, as 'report' does
  submit CHAPTER|TODO [PROGRAM] --check [--gpus N] [--wait] [-- OPTION...]
                                   'check' as a job on one node, with its options
  check CHAPTER|TODO [PROGRAM] [--ranks RANKS] [--verbose] [--json FILE] [--junit FILE] [--gradescope FILE]
                                   compares your programs with the solutions and says what is wrong: of the chapter, of
                                   one program, of those with one TODO (06.5), of runs on so many ranks; --verbose
                                   makes all runs, also where one has gone wrong, and says what each of them showed; the
                                   last three: writes the results for graders (docs/results.md)
  grade CHAPTER FOLDER [--json FILE] [--junit FILE] [--gradescope FILE]
                                   checks the chapter's files in FOLDER, a submission or a clone, in this clone: only
                                   what is in their TODOs counts, and nothing that could deceive the check
  watch CHAPTER|TODO [PROGRAM] [--ranks RANKS]
                                   the same, whenever you save a file of the chapter
  hint TODO [--all]                the next of three hints for a TODO such as 02.4, or all of them
  predict CHAPTER|QUESTION [NUMBER]
                                   questions such as 02.1 whose answer is a number; measures it with a run of the
                                   solution, says how far off yours is, and shows the formula
  golf [TASK [--solution par|best]]
                                   tasks with a score, a time on a simulated machine; judges golf/TASK/ and says how far
                                   it is from par and from the best known answer
  reset CHAPTER|TODO [--level guided|blank] [-y]
                                   makes the exercises anew; keeps what you wrote as FILE.mine; at the blank level, you
                                   write whole functions, whose regions are called 02.A and so on; with a TODO such as
                                   02.4, only this region is as it was
  test [--fillings | --soak] [CTEST_OPTION]...
                                runs the tests, e.g. test -L unit or test -R 02_ddp; --fillings: those of the checker,
                                with wrong exercises; --soak: those that take long
  bench [--torch PYTHON] [--json FILE]
                                   measures the building blocks, on request together with PyTorch's
  scaling CHAPTER [PROGRAM] [--ranks 1,2,4,8] [--weak] [--solution] [--json FILE] [-- OPTION...]
                                   times a program on more and more ranks: speed-up, efficiency, communication that
                                   nothing hides; --weak: each rank keeps its samples; in a Slurm job on its nodes; else
                                   the cpu backend simulates a machine, WORKSHOP_SIMULATE or the README's
  report CHAPTER [PROGRAM]... [-n RANKS,...] [--solution] [--terminal] [-o FILE] [-- OPTION...]...
  report [--terminal] [-o FILE] FILE...
                                   a page that shows what a run has done: loss, what each rank did when, where the time
                                   went, memory, what was sent; with several programs or numbers of ranks their runs
                                   side by side, and with a further -- another run, of these options and the first
                                   ones; of records and timelines that are there: FILE...; --terminal: in characters
  book [-o FOLDER]                 the pages as a site, in build/book/html, that needs no network; installs Sphinx, MyST
                                   and furo in a virtual environment, or takes the Python of WORKSHOP_SPHINX
  slides [--pdf] [-o FOLDER]       slides for each chapter, in build/slides, with notes for the speaker; installs
                                   sphinx-revealjs in the same way; --pdf: also as PDF, by Chromium
  setup [-y] [--with-slurm] [--with-fuzz] [--packages | --prebuilt]
                                   installs what is missing (asks first, unless -y or without a terminal) and builds;
                                   on request also Slurm, or clang for tests/fuzz; --packages: installs and builds nothing;
                                   --prebuilt: what other clones take from here, with WORKSHOP_PREBUILT naming this one,
                                   to build only their own programs
  doctor                           says what is here and what is missing
  doctor --cluster [--nodes N] [--gpus N]
                                   tries a cluster with a job on N nodes (2): launch, shared folders, clocks, GPUs, NCCL
                                   and links, and says in a line each what is wrong
  help                             this text

A chapter is its number (02, 2) or its folder (02_ddp); VERB --help shows what a verb takes. --backend cpu|cuda, before
or after the verb, or WORKSHOP_BACKEND, chooses what to run on; the default is cuda where there is a GPU and nvcc, and
cpu elsewhere; for jobs, slurm/site.sh's.
"""

VERBS = {
    "setup": verbs_setup.setup,
    "doctor": verbs_setup.doctor,
    "test": verbs_setup.test,
    "submit": verbs_setup.submit,
    "list": verbs_learn.list_,
    "run": verbs_learn.run,
    "check": verbs_learn.check,
    "watch": verbs_learn.watch,
    "hint": verbs_learn.hint,
    "predict": predict.predict,
    "grade": grade.grade,
    "golf": golf.golf,
    "book": book.book,
    "slides": slides.slides,
    "reset": verbs_learn.reset,
    "demo": verbs_measure.demo,
    "bench": verbs_measure.bench,
    "scaling": verbs_measure.scaling,
    "report": verbs_measure.report,
}


def help_of(verb: str) -> str:
    """What the usage says of one verb."""
    lines, here = [], False
    for line in USAGE.split("\n"):
        if re.match("  [a-z]", line):
            here = line.split()[0] == verb
        elif not line:
            here = False
        if here:
            lines.append(line)
    return "\n".join(lines)


def read_backend(words: list[str]) -> tuple[str, list[str]]:
    """The value of --backend, which may stand anywhere before a --, and the other words."""
    backend, words = os.environ.get("WORKSHOP_BACKEND", ""), list(words)
    rest: list[str] = []
    while words:
        word = words.pop(0)
        if word == "--":
            return backend, rest + [word] + words
        if word == "--backend":
            backend = words.pop(0) if words else ""
        else:
            rest.append(word)
    return backend, rest


def is_for_cluster(words: list[str]) -> bool:
    """Whether what the nodes have counts, and not what the machine has that jobs are submitted on."""
    return (
        words[:1] == ["submit"]
        or words[:2] == ["doctor", "--cluster"]
        or words[:1] == ["scaling"]
        and machine.in_slurm_job()
    )


def choose_backend(backend: str, words: list[str]) -> str:
    if is_for_cluster(words):
        if backend:
            os.environ["WORKSHOP_BACKEND"] = backend
        os.environ.update(verbs_setup.settings_of_site())
        backend = os.environ["WORKSHOP_BACKEND"]
    elif not backend:
        backend = "cuda" if machine.has_nvcc() and machine.has_gpu() else "cpu"
    if backend not in ("cpu", "cuda"):
        raise Refused(f"the backend is cpu or cuda, not '{backend}'")
    os.environ["WORKSHOP_BACKEND"] = backend
    return backend


def call(words: list[str]) -> int:
    backend, words = read_backend(words)
    verb, arguments = (words[0], words[1:]) if words else ("help", [])
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if verb in ("help", "-h", "--help"):
        print(USAGE, end="")
        return 0
    if {"--help", "-h"} & set(own) and help_of(verb):
        print(help_of(verb))
        return 0
    if verb != "progress" and verb not in VERBS:
        raise Refused(f"unknown verb '{verb}'; './workshop help' lists them")
    if verb == "progress":  # its folders and its file are those that the caller sees
        return (carry if arguments[:1] in (["--export"], ["--import"]) else progress).main(arguments)
    os.chdir(ROOT)
    backend = choose_backend(backend, words)
    context = Context(backend, os.environ.get("WORKSHOP_BUILD") or f"build/{backend}")
    return VERBS[verb](context, arguments)


def main(words: list[str]) -> int:
    processes.take_all_along()
    try:
        status = call(words)
        sys.stdout.flush()
        return status
    except Refused as refused:
        print(f"workshop: {refused}", file=sys.stderr)
        return 2
    except Failed as failed:
        return failed.status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE
    except (OSError, subprocess.SubprocessError) as error:
        try:
            sys.stdout.flush()
        except OSError:  # a full disk: what is left cannot be written at the end, either
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"workshop: {error}", file=sys.stderr)
        return 1
