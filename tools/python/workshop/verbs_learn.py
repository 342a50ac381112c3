# SPDX-License-Identifier: Apache-2.0
"""The verbs of participants: list, run, check, watch, hint, reset."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from . import chapters, check_chapter, machine, mistakes, results
from .building import Lock
from .chapters import Chapter, called
from .context import LAUNCH, Context, Words, default_ranks, is_number, require, targets_of
from .errors import Failed, Refused

# ---- list ----------------------------------------------------------------------------------------------------------


def last_check(folder: str, chapter: Chapter) -> str:
    """ "; last check: 2 right, 1 wrong", or ""."""
    state = chapters.state_file(folder, chapter)
    known = chapters.read_state(state)
    counts = [
        (word, sum(found == word for found, _ in known))
        for word in ("right", "wrong", "open", "unreached", "unchecked")
    ]
    text = ", ".join(f"{count} {word.replace('un', 'not ', 1)}" for word, count in counts if count)
    if not text:
        return ""
    return f"; last check: {text}{'; changed since' if chapters.changed_since(chapter, state) else ''}"


def list_(context: Context, words: list[str]) -> int:
    require(not words, f"list takes no arguments, not '{(words or [''])[0]}'")
    all_chapters = chapters.all_chapters()
    names = max(len(chapter.name) for chapter in all_chapters)
    programs = max(len(" ".join(chapter.programs)) for chapter in all_chapters)
    print(f"{'chapter':<{names}} {'programs':<{programs}} TODOs")
    wrong, following, begun = "", "", False
    for chapter in all_chapters:
        todos, left = chapters.todos(chapter), chapters.open_todos(chapter)
        last = last_check(context.folder, chapter)
        blank = " at the blank level" if any(not todo[-1].isdecimal() for todo in todos) else ""
        print(
            f"{chapter.name:<{names}} {' '.join(chapter.programs):<{programs}} "
            f"{len(todos) - len(left)} of {len(todos)} filled in{blank}{last}"
        )
        # What was wrong before the last change may be right now.
        if not wrong and not last.endswith("changed since"):
            known = chapters.read_state(chapters.state_file(context.folder, chapter))
            wrong = next((todo for word, todo in known if word == "wrong"), "")
        # A chapter that was begun goes before one that was not.
        begins = 0 < len(left) < len(todos)
        if left and not begun and (begins or not following):
            todo = left[0].todo
            following = f"{called(todo)}, at {left[0].place}: ./workshop hint {todo}, ./workshop check {chapter.number}"
            begun = begins
    if wrong:
        print(f"Next: {called(wrong)} is wrong: ./workshop check {wrong} says how")
    elif following:
        print(f"Next: {following}")
    return 0


# ---- run -----------------------------------------------------------------------------------------------------------


def run(context: Context, words: list[str]) -> int:
    rest = Words(words)
    chapter = chapters.choose(rest.next())
    program, ranks, solution, launcher, options = chapter.programs[0], "", False, "mpirun", []
    restarts, shrink = "", []
    while rest:
        word = rest.next()
        if word == "-n":
            ranks = rest.next() or "nothing"
        elif word == "--solution":
            solution = True
        elif word == "--launcher":
            launcher = rest.next()
        elif word == "--restarts":
            restarts = rest.next("nothing")
        elif word == "--shrink":
            shrink = [word]
        elif word == "--":
            options = rest.rest()
        elif word.startswith("-"):
            raise Refused(
                "run knows -n, --solution, --launcher, --restarts, --shrink and -- before the program's own options, "
                f"not '{word}'"
            )
        else:
            program = word
    chapter.program(program)
    ranks = ranks or str(default_ranks(chapter, program))
    require(is_number(ranks), f"-n expects a number of ranks, not '{ranks}'")
    require(launcher in ("mpirun", "env"), f"--launcher is mpirun or env, not '{launcher}'")
    require(not restarts or is_number(restarts), f"--restarts expects a number, not '{restarts}'")
    require(restarts or not shrink, "--shrink is for --restarts")
    context.build(*targets_of(chapter, program, solution, options))
    if any(option.startswith("runs/") or "=runs/" in option for option in options):  # the README's commands keep their records there
        os.makedirs("runs", exist_ok=True)
    sys.stdout.flush()
    os.execv(
        LAUNCH,
        [
            LAUNCH,
            *(["--env"] if launcher == "env" else []),
            "-n",
            ranks,
            *(["--restarts", restarts] if restarts else []),
            *shrink,
            "--",
            context.program(chapter, program, solution),
            *options,
        ],
    )


# ---- check ---------------------------------------------------------------------------------------------------------


class Wanted:
    """What is to be checked: a chapter, one of its programs, what has one TODO, runs on so many ranks."""

    def __init__(self, words: list[str]):
        rest = Words(words)
        asked = rest.next()
        self.todo = self.program = self.ranks = ""
        self.verbose = False
        self.files: dict[str, str] = {}  # for the results, by format
        todo = re.fullmatch(r"([0-9]{1,2})\.([0-9]+|[A-Za-z])", asked)
        if todo:
            self.todo = f"{int(todo[1]):02}.{todo[2].upper()}"
            self.chapter = chapters.choose(self.todo.partition(".")[0])
            self.require_todo()
        else:
            self.chapter = chapters.choose(asked)
        while rest:
            word = rest.next()
            if word in ("--ranks", "-n"):
                self.ranks = rest.next("nothing")
            elif word == "--verbose":
                self.verbose = True
            elif word in results.FORMATS:
                self.files[word] = rest.next()
            elif word.startswith("-"):
                raise Refused(f"check knows --ranks, --verbose, {', '.join(results.FORMATS)}, not '{word}'")
            else:
                self.program = self.chapter.program(word)
        require(not self.ranks or is_number(self.ranks), f"--ranks expects a number of ranks, not '{self.ranks}'")
        results.require_writable(self.files)

    def require_todo(self) -> None:
        """Refuses a TODO that is not in the participant's files."""
        if self.todo in chapters.todos(self.chapter):
            return
        around = [write for file in self.chapter.sources() for write, todos in chapters.regions_in(file).writes.items()
                  if self.todo in todos]
        if around:
            raise Refused(f"at the blank level, {called(self.todo)} is inside {called(around[0])}: check {around[0]}")
        require(
            self.todo not in chapters.todos(self.chapter, level=chapters.BLANK),
            f"{called(self.todo)} is at the blank level: ./workshop reset {self.chapter.number} --level blank",
        )
        raise Refused(f"no {called(self.todo)} in {self.chapter.name}")

    def words(self) -> list[str]:
        return (
            [self.todo or self.chapter.name]
            + [self.program] * bool(self.program)
            + (["--ranks", self.ranks] if self.ranks else [])
            + ["--verbose"] * self.verbose
        )


def build_checks(context: Context, wanted: Wanted) -> None:
    """Builds what the checks of a chapter, or of one program, take."""
    checks = mistakes.read_chapter(wanted.chapter.name).checks
    targets, twins = ["compare_runs"], []
    for program in [wanted.program] if wanted.program else wanted.chapter.programs:
        of_program = [option for check in checks if check.program == program for option in ["", *check.options]]
        own = targets_of(wanted.chapter, program, False, of_program)
        targets += own[:1] + targets_of(wanted.chapter, program, True, of_program)
        twins += own[1:]
    context.build(*targets)
    for twin in twins:
        build_twin(context, wanted.chapter, twin)


def build_twin(context: Context, chapter: Chapter, target: str) -> None:
    """Builds a participant's program for another precision. What does not compile for that is judged for this one all
    the same."""
    try:
        context.build(target)
    except Failed:
        program = context.path(chapter.name, target[len(chapter.name) + 1 :])
        if os.path.exists(program):
            os.unlink(program)


def build_for_group(context: Context, chapter: Chapter, group: str) -> bool:
    """Builds what the checks of a program take; "ddp_bf16" is its twin for another precision. Returns whether that went
    well."""
    try:
        solution = f"solution_{chapter.name}_{group}"
        if group.endswith("_bf16"):
            context.build(solution)
            build_twin(context, chapter, f"{chapter.name}_{group}")
        else:
            context.build(f"{chapter.name}_{group}", solution)
    except Failed:
        return False
    return True


def first_program(wanted: Wanted) -> str:
    """The program that is checked first for a TODO: its solution is built while all else is."""
    if wanted.program:
        return wanted.program
    for program in wanted.chapter.programs:
        if f"// {called(wanted.todo)}:" in chapters.read(f"solutions/{wanted.chapter.name}/{program}.cu"):
            return program
    return wanted.chapter.programs[0]


def check(context: Context, words: list[str]) -> int:
    wanted = Wanted(words)
    wanted.chapter.require_files()
    status = check_files(context, wanted, chapters.state_file(context.folder, wanted.chapter))
    if context.backend == "cuda":
        on_cpu = check_on_cpu(wanted)
        if status != 1 and on_cpu:
            status = on_cpu
    return status


def check_files(context: Context, wanted: Wanted, state: str, said: Sequence[str] = ()) -> int:
    """Checks the exercises that are there. Keeps what is known of each TODO in the file `state`, and `said` in front of
    what the check says. Returns the status."""
    arguments = check_chapter.Arguments(
        (["--todo", wanted.todo] if wanted.todo else [])
        + (["--program", wanted.program] if wanted.program else [])
        + (["--ranks", wanted.ranks] if wanted.ranks else [])
        + ["--verbose"] * wanted.verbose
        + [
            "--jobs",
            "1" if context.backend == "cuda" else str(context.builder.jobs),
            context.folder,
            wanted.chapter.name,
        ]
    )
    only_todo = wanted.todo and not wanted.program and not wanted.ranks
    if only_todo:
        arguments.state = state + ".part"
        if os.path.exists(arguments.state):  # of a check that was ended
            os.unlink(arguments.state)
    elif not arguments.narrowed:
        arguments.state = state
    arguments.results = results.Results(
        wanted.chapter.name,
        chapters.level_of(wanted.chapter),
        context.backend,
        dict.fromkeys([wanted.todo] if wanted.todo else chapters.todos(wanted.chapter), "unchecked"),
        said="The programs could not be built, or the check was interrupted.\n",
    )
    try:
        return checked(context, wanted, arguments, state, only_todo)
    finally:
        arguments.results.said = "".join(f"{line}\n" for line in said) + arguments.results.said
        results.write(wanted.files, arguments.results)


def checked(
    context: Context, wanted: Wanted, arguments: check_chapter.Arguments, state: str, only_todo: bool
) -> int:
    """Builds, and runs the checks. Returns the status."""
    with Lock(context.folder, "check.lock", "Waiting for another check to end"):
        if wanted.todo:
            first = f"{wanted.chapter.name}_{first_program(wanted)}"
            context.build("compare_runs", "workshop_common", f"solution_{first}", first)
            status = check_chapter.check(arguments, lambda group: build_for_group(context, wanted.chapter, group))
        else:
            build_checks(context, wanted)
            status = check_chapter.check(arguments, None)
        if only_todo:
            chapters.merge_state(wanted.chapter, arguments.state, state, wanted.todo)
    return status


def check_on_cpu(wanted: Wanted) -> int:
    """A GPU does not show what the cpu backend does: an event or a write that is missing, and often goes well."""
    sys.stdout.flush()
    if machine.missing("cpu"):
        print(
            "Not checked, because a GPU rarely shows it: missing events, and memory that is read before it is written. "
            "'./workshop setup --backend cpu' installs what that takes."
        )
        return 0
    print(
        "And on the cpu backend, which shows missing events, and memory that is read before it is written:", flush=True
    )
    environment = dict(os.environ, WORKSHOP_BACKEND="cpu")
    environment.pop("WORKSHOP_BUILD", None)
    return subprocess.run(["./workshop", "check", *wanted.words()], env=environment, check=False).returncode


def watch(context: Context, words: list[str]) -> int:
    asked = words[0] if words else ""
    chapter = chapters.choose(asked.partition(".")[0])
    chapter.require_files()

    def saved() -> list[tuple[str, int, int]]:
        return [(file, about.st_mtime_ns, about.st_size) for file in chapter.handed_out() for about in [os.stat(file)]]

    before: list[tuple[str, int, int]] = []
    while True:
        try:
            now = saved()
        except OSError:
            now = before  # a file is being replaced
        if now == before:
            time.sleep(0.3)
            continue
        before = now
        try:
            check(context, words)
        except Refused:
            raise
        except Failed:
            pass
        sys.stdout.flush()
        print(
            f"\n{time.strftime('%H:%M:%S')}  Waiting for a change in {chapter.name}; Ctrl-C ends",
            file=sys.stderr,
            flush=True,
        )


# ---- hint ----------------------------------------------------------------------------------------------------------


def hint(context: Context, words: list[str]) -> int:
    show_all, asked = False, ""
    for word in words:
        if word == "--all":
            show_all = True
        elif word.startswith("-"):
            raise Refused(f"hint knows --all, not '{word}'")
        else:
            require(not asked, f"hint takes one TODO, not '{word}' too")
            asked = word
    number = re.fullmatch(r"([0-9]{1,2})\.([0-9]{1,2}|[A-Za-z])", asked)
    require(number, f"hint expects the number of a TODO, such as 02.4, not '{asked}'")
    todo = f"{int(number[1]):02}.{number[2].upper().lstrip('0')}"
    chapter = chapters.choose(todo.partition(".")[0])
    place, title = title_of(chapter, todo)
    require(place, f"there is no {called(todo)}; {chapter.name}/README.md lists those of the chapter")

    # How many hints were shown is kept in the build folder.
    kept = context.path("hints", todo)
    shown = chapters.read(kept).strip()
    first = last = (int(shown) if shown.isdigit() else 0) + 1
    if show_all or first > 3:
        first, last = 1, 3
    of_todo = chapters.hints(chapters.read(f"solutions/{chapter.name}/hints.txt"), todo)
    print(f"{called(todo)} in {place}: {title}")
    for step in range(first, last + 1):
        print(f"\nHint {step} of 3")
        for line in of_todo[step - 1] if step <= len(of_todo) else []:
            print(f"  {line}")
    if last < 3:
        print(f"\nThe next hint: ./workshop hint {todo}")
    else:
        print(f"\nThere are no more: docs/calls.md has the calls, solutions/{place} the code")
    try:
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        with open(kept, "w", encoding="ascii") as file:
            file.write(f"{last}\n")
    except OSError:
        if not show_all:
            print(
                "(The build folder cannot be written, so the next call shows the same hint; --all shows all of them.)"
            )
    return 0


def title_of(chapter: Chapter, todo: str) -> tuple[str, str]:
    """The file of a TODO and its first line; empty if there is none."""
    for file in chapter.sources():
        found = re.search(rf"^ *// {re.escape(called(todo))}: (.*)$", chapters.read(file), re.M)
        if found:
            return os.path.relpath(file, "solutions"), found[1]
    return "", ""


# ---- reset ---------------------------------------------------------------------------------------------------------


def numbered_copy(file: str) -> str:
    """Where a copy of a file is kept: FILE.mine; an earlier one becomes FILE.mine.~1~ and so on."""
    mine = file + ".mine"
    if os.path.exists(mine):
        number = 1
        while os.path.exists(f"{mine}.~{number}~"):
            number += 1
        os.rename(mine, f"{mine}.~{number}~")
    return mine


def files_below(folder: str) -> list[str]:
    return sorted(
        os.path.relpath(os.path.join(path, name), folder) for path, _, names in os.walk(folder) for name in names
    )


def exercises_there(made: dict[str, str]) -> list[str]:
    """The files of this clone that are among the exercises of any level."""
    return sorted(file for file in {file for folder in made.values() for file in files_below(folder)} if os.path.exists(file))


def changed(made: dict[str, str]) -> list[str]:
    """Those of them that are not as handed out."""

    def is_as_made(file: str) -> bool:
        fresh = [os.path.join(folder, file) for folder in made.values()]
        return any(os.path.exists(one) and filecmp.cmp(file, one, shallow=False) for one in fresh)

    return [file for file in exercises_there(made) if not is_as_made(file)]


def hand_out(made: dict[str, str], level: str, yes: bool, keep: bool = True) -> None:
    """Replaces the exercises by those of a level, and removes files that are not among these. Keeps copies of what is
    not as handed out, if `keep`. Raises Failed if the user does not want it."""
    files, mine = files_below(made[level]), changed(made) if keep else []
    if mine and not yes:
        require(sys.stdin.isatty(), f"{' '.join(mine)} would be overwritten; -y does it and keeps a copy")
        if not machine.confirm(f"Overwrite {' '.join(mine)}? Copies are kept as *.mine."):
            raise Failed(1)
    for file in mine:
        copy = numbered_copy(file)
        shutil.copy2(file, copy)
        print(f"Kept your {file} as {copy}")
    for file in exercises_there(made):
        if file not in files:
            os.unlink(file)
    for file in files:
        os.makedirs(os.path.dirname(file), exist_ok=True)
        shutil.copyfile(os.path.join(made[level], file), file)


def make_exercises(context: Context, chapter: Chapter, folder: str) -> dict[str, str]:
    """Makes what is handed out at each level in a folder below `folder`. Returns these."""
    context.build("make_exercises")
    made = {}
    for level in (chapters.GUIDED, chapters.BLANK):
        made[level] = os.path.join(folder, level)
        command = [context.path("tools", "make_exercises"), "--level", level, "solutions", made[level], chapter.name]
        if subprocess.run(command, check=False).returncode:
            raise Failed(1)
    return made


def region_of(text: str, todo: str) -> re.Match[str] | None:
    """The lines of a TODO or WRITE region, with its markers."""
    marker = re.escape(called(todo))
    return re.search(rf"^[ \t]*// {marker}: .*?^[ \t]*// END {marker}\b[^\n]*\n", text, re.M | re.S)


def reset_todo(context: Context, todo: str) -> int:
    """Makes one region as it was handed out, and leaves the rest of its file alone."""
    chapter = chapters.choose(todo.partition(".")[0])
    wanted = Wanted([todo])  # refuses one that is not in the participant's files
    with tempfile.TemporaryDirectory() as folder:
        made = make_exercises(context, chapter, folder)[chapters.level_of(chapter)]
        for file in files_below(made):
            fresh = region_of(chapters.read(os.path.join(made, file)), wanted.todo)
            if not fresh:
                continue
            text = chapters.read(file)
            mine = region_of(text, wanted.todo)
            require(mine, f"{file} has no whole {called(wanted.todo)} any more: ./workshop reset {chapter.number}")
            assert mine
            if mine[0] == fresh[0]:
                print(f"{called(wanted.todo)} is as handed out")
                return 0
            copy = numbered_copy(file)
            shutil.copy2(file, copy)
            with open(file, "w", encoding="utf-8") as output:
                output.write(text[: mine.start()] + fresh[0] + text[mine.end() :])
            print(f"{called(wanted.todo)} is as handed out, in {file}; your version is in {copy}")
            return 0
    raise Refused(f"no {called(wanted.todo)} in {chapter.name}")


def reset(context: Context, words: list[str]) -> int:
    if words and re.fullmatch(r"[0-9]{1,2}\.([0-9]+|[A-Za-z])", words[0]):
        require(not [word for word in words[1:] if word != "-y"], f"reset {words[0]} takes only -y")
        return reset_todo(context, words[0])
    rest, yes = Words([word for word in words if word != "-y"]), "-y" in words
    chapter, level = chapters.choose(rest.next()), chapters.GUIDED
    while rest:
        word = rest.next()
        if word == "--level":
            level = rest.next("nothing")
        else:
            raise Refused(f"reset takes one chapter, --level and -y, not '{word}'")
    require(level in (chapters.GUIDED, chapters.BLANK), f"--level is guided or blank, not '{level}'")
    require(
        level == chapters.GUIDED or chapters.todos(chapter, level=level) != chapters.todos(chapter, level=chapters.GUIDED),
        f"{chapter.name} has no blank level",
    )
    with tempfile.TemporaryDirectory() as folder:
        hand_out(make_exercises(context, chapter, folder), level, yes)
    hints_shown = context.path("hints")
    for name in os.listdir(hints_shown) if os.path.isdir(hints_shown) else []:
        if name.startswith(chapter.number + "."):
            os.unlink(os.path.join(hints_shown, name))
    print(f"The exercises of {chapter.name} are as handed out{', at the blank level' * (level == chapters.BLANK)}")
    return 0
