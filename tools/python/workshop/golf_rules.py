# SPDX-License-Identifier: Apache-2.0
"""What the file of a golf task may contain. The judge counts time and bytes on the simulated machine, so a function
must not do anything that the machine does not know about: it may call NCCL, events and the judge's own functions, and
nothing else. This finds mistakes and simple tricks. It is no sandbox: the file runs with the participant's rights."""
from __future__ import annotations

import re
import subprocess

# Functions that a file may call, as `nm -C` writes them without their arguments.
CALLS = {
    *(f"nccl{name}" for name in ("Send Recv GroupStart GroupEnd AllReduce ReduceScatter AllGather Broadcast Bcast Reduce "
                                 "AlltoAll Gather Scatter").split()),
    *(f"golf::{name}" for name in ("add", "copy", "wait", "multiply", "gelu")),
    *(f"cuda{name}" for name in "EventCreate EventCreateWithFlags EventRecord EventDestroy StreamWaitEvent".split()),
    # What the macros NCCL_CHECK and CUDA_CHECK need.
    *(f"workshop::{name}" for name in ("nccl_failed", "cuda_failed", "InCall::wait_for_the_end")),
    # What the compiler and the standard library need.
    "memcpy", "memmove", "memset", "memcmp", "operator new", "operator new[]", "operator delete", "operator delete[]",
    "_Unwind_Resume", "__gxx_personality_v0", "__stack_chk_fail", "__cxa_begin_catch", "__cxa_end_catch",
    "__cxa_rethrow", "__cxa_guard_acquire", "__cxa_guard_release", "__cxa_guard_abort", "__cxa_atexit", "__dso_handle",
    "_GLOBAL_OFFSET_TABLE_", "std::__glibcxx_assert_fail", "std::__replacement_assert", "std::terminate",
}
CALLS_LIKE = re.compile(r"std::__throw_\w+$")
HEADERS = {"algorithm", "array", "cmath", "cstddef", "cstdint", "iterator", "numeric", "tuple", "utility", "vector"}
# Functions and variables of headers, of which each object file that uses them has a copy.
OF_HEADERS = re.compile(r"(std::|__gnu_cxx::|workshop::InCall::)|DW\.ref\.__gxx_personality_v0$")
WORDS = {
    "asm": r"\b(__)?asm(__|\b)",
    "attributes": r"\b__attribute(__)?\b|\[\s*\[\s*(?!maybe_unused\s*\]\s*\])",
    "casts of pointers": r"\(\s*(const\s+)?[A-Za-z_][\w:]*\s*(const\s*)?\*[*\s]*\)\s*[\w&(*]|\bstatic_cast\s*<[^>]*\*\s*>",
    "extern": r"\bextern\b",
    "own kernels": r"\b__(global|device|host)__\b",
    "volatile": r"\bvolatile\b",
    "specializations of templates": r"\btemplate\s*<\s*>",
    "additions to namespaces of others": r"\bnamespace\s+(::\s*)?(std|workshop|golf|__gnu_cxx)\b(?!\s*;)",
    "thread_local": r"\bthread_local\b",
    "reinterpret_cast": r"\breinterpret_cast\b",
    "const_cast": r"\bconst_cast\b",
    "names that begin with two underscores": r"\b__(?!(asm|attribute|global|device|host))\w+",
    "digraphs": r"<%|%>|<:|:>|%:|\?\?",
    "_Pragma": r"\b_Pragma\b",
}
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def broken_rules(source: str, object_file: str, entry: str) -> list[str]:
    """Sentences about what is not allowed in the text `source`, and in the object file that it was compiled to.
    `entry` is the function that it must define, "all_reduce"."""
    return broken_by_text(source, entry) + broken_by_object(object_file, entry)


def broken_by_text(source: str, entry: str) -> list[str]:
    broken = []
    text = re.sub(r"\\\s*\n", "", source)  # the compiler joins lines even if a space follows the backslash
    if text != source:
        broken.append("A line ends with a backslash.")
    if re.search(r"\b[0-9]\w*'[0-9a-fA-F]", text):
        broken.append("A number has a digit separator.")
    if re.search(r'\bu?8?[uUL]?R"', text):
        broken.append("It has a raw string.")
    headers = {f'"golf/judge/{entry}.h"'} | {f"<{name}>" for name in HEADERS}
    includes = set()
    for directive in re.findall(r"^\s*#\s*(.*)", without_comments(text), re.M):
        name = re.match(r"include\s*(<[^>]*>|\"[^\"]*\")\s*$", directive)
        if name is None:
            broken.append(f"It has the directive '#{directive.strip()}'; only #include is allowed.")
        elif name.group(1) not in headers:
            allowed = ", ".join(sorted(HEADERS))
            broken.append(f"It includes {name.group(1)}; allowed are \"golf/judge/{entry}.h\" and {allowed}.")
        else:
            includes.add(name.group(1))
    if f'"golf/judge/{entry}.h"' not in includes:
        broken.append(f'It does not include "golf/judge/{entry}.h".')
    code = re.sub(COMMENT_OR_TEXT, lambda found: '""' if found.group()[0] in "\"'" else " ", text)
    for what, pattern in WORDS.items():
        if re.search(pattern, re.sub(r"^\s*#.*", "", code, flags=re.M)):
            broken.append(f"It has {what}.")
    return broken


def without_comments(text: str) -> str:
    return re.sub(COMMENT_OR_TEXT, lambda found: found.group() if found.group()[0] in "\"'" else " ", text)


def broken_by_object(object_file: str, entry: str) -> list[str]:
    broken = []
    defined = 0
    for kind, name in symbols(object_file):
        plain = re.sub(r"(\[abi:\w+\])|\(.*", "", name) if not name.startswith("operator()") else name
        if kind == "U":
            if plain not in CALLS and not CALLS_LIKE.search(plain):
                broken.append(f"It uses {name}.")
        elif kind.islower() and kind not in "uvwi":
            continue  # of this file only
        elif kind in "uVWvw":
            if not OF_HEADERS.match(entity(name)):
                broken.append(f"It defines {name} for other files.")
        elif kind == "T" and plain == entry:
            defined += 1
        else:
            broken.append(f"It defines {name}; only {entry}() may be visible to other files.")
    if defined != 1:
        broken.append(f"It does not define {entry}() as its header declares it.")
    code = output("objdump", "-d", "--no-show-raw-insn", object_file)
    if re.search(r"\t(syscall|sysenter|int +\$0x80|svc\b)", code):
        broken.append("It calls the kernel of the operating system.")
    sections = output("objdump", "-h", object_file)
    for section in re.findall(r"\.(?:init_array|fini_array|ctors|dtors|preinit_array)\S*", sections):
        broken.append(f"It runs code before or after main() ({section}).")
    return broken


def entity(name: str) -> str:
    """"std::swap" of "void std::swap<float>(float&, float&)"."""
    while (shorter := re.sub(r"<[^<>]*>|\([^()]*\)|\[[^\[\]]*\]", "", name)) != name:
        name = shorter
    return re.sub(r"^(guard variable for|vtable for|typeinfo for|typeinfo name for) ", "", name).split(" const")[0].split(" ")[-1]


def symbols(object_file: str) -> list[tuple[str, str]]:
    found = []
    for line in output("nm", "-C", object_file).splitlines():
        kind, name = re.match(r"[0-9a-f ]{16,} (\S) (.*)", line).groups()
        found.append((kind, name))
    return found


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
