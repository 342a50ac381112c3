# SPDX-License-Identifier: Apache-2.0
"""`./workshop grade`: judges somebody's files in this clone, by what they wrote in the TODOs and nothing else.

Each region of the submission, between its `// TODO` or `// WRITE` and its `// END` line, is put into the file as it is
handed out; whatever else the submission has changed does not count, except for additional standard headers. A region
that could deceive the check stays open, and is named: one that opens files, starts processes, or writes to the record.
This finds simple tricks. It is no sandbox: the code runs with the rights of whoever grades.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass, field
from itertools import accumulate

from . import chapters, verbs_learn
from .chapters import Chapter, called
from .context import Context, Words, require
from .golf_rules import COMMENT_OR_TEXT, HEADERS

# Names that a region may not use, unless the solution uses them in its regions of the same file.
NAMES = {
    "opens files": "fopen freopen fdopen open openat creat ifstream ofstream fstream filebuf basic_filebuf filesystem fs "
    "tmpfile mkstemp mmap read write pread pwrite readlink opendir symlink link unlink rename sendfile read_file "
    "write_file claim_file release_files read_values",
    "starts processes or threads": "system popen fork vfork clone execl execlp execle execv execvp execve execvpe fexecve "
    "posix_spawn posix_spawnp thread jthread async pthread_create dlopen dlsym",
    "sends signals": "kill killpg tgkill pthread_kill raise signal sigaction sigqueue ptrace alarm setitimer",
    "ends the program": "exit _exit _Exit quick_exit abort terminate set_terminate atexit at_quick_exit longjmp siglongjmp "
    "__builtin_trap unreachable",
    "uses the environment or the network": "getenv secure_getenv setenv putenv unsetenv environ process_environment socket "
    "connect bind listen shm_open memfd_create process_vm_readv process_vm_writev prctl syscall getppid",
    "writes to the record": "probe probe_ probing Probe record_loss record_value record_parameter off_the_record "
    "OffTheRecord",
}
TEXTS = {
    "has preprocessor lines": r"^\s*(#|%:)",
    "has assembly": r"\b(__)?asm(__)?\b",
    "has attributes": r"\b__attribute(__)?\b|\[\s*\[\s*(?!(maybe_unused|fallthrough|likely|unlikely)\s*\]\s*\])",
    "declares something as extern": r"\bextern\b",
    "has reinterpret_cast": r"\breinterpret_cast\b",
    "has names that begin with two underscores": r"\b__(?!(global|device|host|shared|syncthreads|restrict|syncwarp))\w+",
    "begins or ends a comment that it does not end or begin": r"/\*|\*/",
    "adds to a namespace": r"\bnamespace\s+\w[\w:]*\s*\{",
}
TRICKS = {  # that hide what is code, so also in comments and texts
    "has lines that end with a backslash": r"\\\s*$",
    "has a raw string": r'\bu?8?[uUL]?R"',
    "has trigraphs or digraphs": r"<%|%>|<:|:>|\?\?[=/'()!<>-]",
}
LARGEST = 1 << 20  # bytes of a file


def code_of(region: str) -> str:
    """A region without its comments and texts."""
    return re.sub(COMMENT_OR_TEXT, lambda found: '""' if found.group()[0] in "\"'" else " ", region)


def names_in(code: str) -> set[str]:
    """Names that are not a member of an object."""
    return set(re.findall(r"(?<![\w.])(?<!->)([A-Za-z_]\w*)", re.sub(r"(\.|->)\s+", r"\1", code)))


def closes_too_many(code: str) -> bool:
    return min(accumulate((brace == "{") - (brace == "}") for brace in re.findall("[{}]", code)), default=0) < 0


def broken_rules(region: str, allowed: set[str]) -> list[str]:
    """What a region does that it may not, "opens files (fopen)". `allowed`: names that the solution uses there."""
    code = code_of(region)
    broken = [what for what, pattern in TEXTS.items() if re.search(pattern, code, re.M)]
    broken += [what for what, pattern in TRICKS.items() if re.search(pattern, region, re.M)]
    if closes_too_many(code):
        broken.append("closes braces that it has not opened")
    for what, names in NAMES.items():
        found = sorted((names_in(code) & set(names.split())) - allowed)
        if found:
            broken.append(f"{what} ({', '.join(found)})")
    return broken


@dataclass
class Assembled:
    files: dict[str, str] = field(default_factory=dict)  # path in the clone, and its text
    said: list[str] = field(default_factory=list)


def names_of_solution(chapter: Chapter, file: str) -> set[str]:
    """The names that the solution's regions of a file use."""
    text = chapters.read(os.path.join("solutions", file))
    regions = (verbs_learn.region_of(text, todo) for _, todo, _ in chapters.marked(text))
    return {name for region in regions if region for name in names_in(code_of(region[0]))} - {"probe"}


def submitted(folder: str, name: str) -> str | None:
    """The text of a file that somebody has handed in; None if it is none, or not an ordinary one in this folder."""
    whole, path = os.path.realpath(folder), os.path.join(folder, name)
    if os.path.realpath(path) != os.path.join(whole, name) or not os.path.isfile(path) or os.path.getsize(path) > LARGEST:
        return None
    return chapters.read_if_there(path)


def assemble(chapter: Chapter, folder: str, made: dict[str, str]) -> Assembled:
    """The files to judge, from the submission in `folder` and what is handed out at each level."""
    result = Assembled()
    of_guided = verbs_learn.files_below(made[chapters.GUIDED])
    for file in sorted({*of_guided, *verbs_learn.files_below(made[chapters.BLANK])}):
        found = (submitted(folder, name) for name in (file, os.path.basename(file)))
        mine = next((text for text in found if text is not None), None)
        if mine is None:
            if file not in of_guided:
                continue
            result.said.append(f"{file} is missing, so its TODOs are open")
        blank = file not in of_guided or re.search(r"^[ \t]*// WRITE ", mine or "", re.M)
        handed_out = chapters.read(os.path.join(made[chapters.BLANK if blank else chapters.GUIDED], file))
        result.files[file] = handed_out if mine is None else merged(result, chapter, file, handed_out, mine)
    return result


def merged(result: Assembled, chapter: Chapter, file: str, handed_out: str, mine: str) -> str:
    """`handed_out` with the regions and standard headers of `mine`."""
    text, rest, rest_of_mine = handed_out, handed_out, mine
    for _, todo, _ in chapters.marked(handed_out):  # none of these is within another one
        theirs = verbs_learn.region_of(mine, todo)
        if not theirs:
            result.said.append(f"{called(todo)} stays open: its first or last line is not in {file}")
            continue
        fresh = verbs_learn.region_of(handed_out, todo)[0]
        rest, rest_of_mine = rest.replace(fresh, ""), rest_of_mine.replace(theirs[0], "")
        broken = broken_rules(theirs[0], names_of_solution(chapter, file))
        if broken:
            result.said.append(f"{called(todo)} stays open: it {'; it '.join(broken)}")
        else:
            text = text.replace(fresh, theirs[0])
    include = re.compile(r"^#include <(\w+)>\n", re.M)
    if include.sub("", rest_of_mine) != include.sub("", rest):
        result.said.append(f"{file} has changes outside its TODOs, which do not count")
    headers = [name for name in include.findall(rest_of_mine) if name in HEADERS and f"#include <{name}>" not in rest]
    return "".join(f"#include <{name}>\n" for name in dict.fromkeys(headers)) + text


def grade(context: Context, words: list[str]) -> int:
    rest = Words(words)
    chapter, folder = chapters.choose(rest.next()), rest.next()
    require(folder and not folder.startswith("-"), "grade takes a chapter and a folder with somebody's files")
    require(os.path.isdir(folder), f"'{folder}' is no folder")
    wanted = verbs_learn.Wanted([chapter.number, *rest.rest()])
    require(not wanted.program and not wanted.ranks, "grade takes a whole chapter")
    with tempfile.TemporaryDirectory() as temporary:
        made = verbs_learn.make_exercises(context, chapter, temporary)
        assembled = assemble(chapter, folder, made)
        filled_in = verbs_learn.changed(made)
        require(
            not filled_in,
            f"{' '.join(filled_in)} would be overwritten: grade in a clone of its own, or ./workshop reset {chapter.number}",
        )
        for line in assembled.said:
            print(line, flush=True)
        try:
            for file, text in assembled.files.items():
                with open(file, "w", encoding="utf-8") as output:
                    output.write(text)
            return verbs_learn.check_files(context, wanted, os.devnull, assembled.said)
        finally:
            verbs_learn.hand_out(made, chapters.GUIDED, yes=True, keep=False)
