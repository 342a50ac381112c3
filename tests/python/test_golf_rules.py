# SPDX-License-Identifier: Apache-2.0
"""What a file of a golf task may contain (tools/python/workshop/golf_rules.py)."""
from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from conftest import ROOT

from workshop.golf_rules import broken_by_object, broken_by_text, entity

TASKS = ("all_reduce", "all_to_all", "tensor_overlap")
SOLUTIONS = ("start", "par", "best")
HEADER = '#include "golf/judge/all_reduce.h"\n'
BODY = "void all_reduce(const golf::AllReduce& given) { golf::add(given.data, given.scratch, 1, given.streams[0]); }\n"


@pytest.fixture(name="compile_", scope="module")
def compiler(tmp_path_factory):
    """Compiles a text for the cpu backend. Returns the object file."""
    command = next(filter(shutil.which, ("c++", "g++")), None)
    if command is None or not shutil.which("nm") or not shutil.which("objdump"):
        pytest.skip("there is no compiler")
    folder = tmp_path_factory.mktemp("golf")
    count = 0

    def compile_(text: str) -> str:
        nonlocal count
        count += 1
        source, target = folder / f"{count}.cpp", folder / f"{count}.o"
        source.write_text(text)
        include = [f"-I{ROOT}", f"-I{ROOT}/backend_cpu/include"]
        subprocess.run([command, "-std=c++20", "-O1", "-DWORKSHOP_BACKEND_CPU", *include, "-c", source, "-o", target],
                       check=True, timeout=300)
        return str(target)

    return compile_


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("solution", SOLUTIONS)
def test_solutions_keep_the_rules(compile_, task, solution):
    with open(os.path.join(ROOT, "solutions", "golf", task, solution + ".cu"), encoding="utf-8") as file:
        text = file.read()
    assert not broken_by_text(text, task)
    assert not broken_by_object(compile_(text), task)


@pytest.mark.parametrize("task", TASKS)
def test_participants_get_the_start(task):
    file = f"golf/{task}/{task}.cu"
    changed = subprocess.run(["git", "-C", ROOT, "diff", "--quiet", "HEAD", "--", file], check=False, timeout=60)
    if changed.returncode != 0:
        pytest.skip("it is a participant's")
    with open(os.path.join(ROOT, file), encoding="utf-8") as mine:
        with open(os.path.join(ROOT, "solutions", "golf", task, "start.cu"), encoding="utf-8") as start:
            assert mine.read() == start.read()


@pytest.mark.parametrize("text, sentence", [
    ('#include "backend_cpu/simulation.h"\n', 'It includes "backend_cpu/simulation.h"; allowed are'),
    ("#include <thread>\n", "It includes <thread>; allowed are"),
    ("#define add subtract\n", "It has the directive '#define add subtract'; only #include is allowed."),
    ("#pragma weak add\n", "It has the directive '#pragma weak add'; only #include is allowed."),
    ("#inc\\\nlude <thread>\n", "A line ends with a backslash."),
    ("// a \\ \n/*\n#define HIDDEN\n// */\n", "A line ends with a backslash."),
    ("const int digits = 1'0; const char* text = \"' /*\";\n", "A number has a digit separator."),
    ("%:include <thread>\n", "It has digraphs."),
    ('void f() { asm("nop"); }\n', "It has asm."),
    ("__attribute__((constructor)) void f() {}\n", "It has attributes."),
    ("[[gnu::constructor]] void f() {}\n", "It has attributes."),
    ("[[maybe_unused, gnu::ifunc(\"f\")]] void g();\n", "It has attributes."),
    ("auto x = *((cudaEvent_t*)&given - 81);\n", "It has casts of pointers."),
    ("auto x = (const char *) given.world[0];\n", "It has casts of pointers."),
    ("auto x = static_cast<char*>(p);\n", "It has casts of pointers."),
    ('extern "C" int fork();\n', "It has extern."),
    ("__global__ void f() {}\n", "It has own kernels."),
    ("namespace workshop { void record_value(); }\n", "It has additions to namespaces of others."),
    ("namespace  std\n{ }\n", "It has additions to namespaces of others."),
    ("template <> struct S<int> {};\n", "It has specializations of templates."),
    ("auto f = __builtin_ia32_rdtsc();\n", "It has names that begin with two underscores."),
    ('auto text = R"(//)";\n', "It has a raw string."),
])
def test_texts_that_break_a_rule(text, sentence):
    assert any(line.startswith(sentence) for line in broken_by_text(HEADER + text + BODY, "all_reduce"))


def test_comments_and_texts_may_say_anything():
    text = HEADER + '// asm, extern\n/* #define */ const char* const name = "asm // extern";\nusing namespace golf;\n' + BODY
    assert not broken_by_text(text, "all_reduce")


def test_the_header_is_needed():
    assert broken_by_text("// " + HEADER + BODY, "all_reduce") == [
        'It does not include "golf/judge/all_reduce.h".'
    ]


@pytest.mark.parametrize("text, sentence", [
    ("void open_file() { FILE* f = fopen(\"x\", \"w\"); fclose(f); }", "It defines open_file()"),
    ("namespace { int read() { return getenv(\"HOME\") != nullptr; } int x = read(); }", "It uses getenv."),
    ("namespace { int x = fork(); }", "It uses fork."),
    ("namespace { void* p = mmap(nullptr, 1, 1, 1, 1, 1); }", "It uses mmap."),
    ("namespace { int s = socket(1, 1, 1); }", "It uses socket."),
    ("namespace { long s = syscall(39); }", "It uses syscall."),
    ("namespace { auto r = cudaStreamCreate(nullptr); }", "It uses cudaStreamCreate."),
    ("namespace { auto r = cudaDeviceSynchronize(); }", "It uses cudaDeviceSynchronize."),
    ("namespace { auto r = cudaLaunchHostFunc(nullptr, nullptr, nullptr); }", "It uses cudaLaunchHostFunc."),
    ("namespace { auto r = pncclGroupStart(); }", "It uses pncclGroupStart."),
    ("namespace { auto r = ncclCommInitRank(nullptr, 1, {}, 0); }", "It uses ncclCommInitRank."),
    ("namespace { int x = rand(); }", "It runs code before or after main() (.init_array)."),
    ("int MPI_Send; ", "It defines MPI_Send;"),
    ("extern \"C\" cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t) { return cudaSuccess; }",
     "It defines cudaEventElapsedTime;"),
    ("namespace workshop { int other(const std::string&); } inline int workshop::other(const std::string&) { return 1; } "
     "auto p = workshop::other;", "It defines workshop::other"),
    ("inline int mine() { return 1; } int (*p)() = mine;", "It defines mine() for other files."),
    ("namespace { void f() { asm volatile(\"syscall\"); } void (*volatile p)() = f; }",
     "It calls the kernel of the operating system."),
])
def test_objects_that_break_a_rule(compile_, text, sentence):
    system = "#include <cstdio>\n#include <cstdlib>\n#include <sys/mman.h>\n#include <sys/socket.h>\n#include <unistd.h>\n"
    broken = broken_by_object(compile_(system + HEADER + text + "\n" + BODY), "all_reduce")
    assert any(line.startswith(sentence) for line in broken), broken


def test_the_function_is_needed(compile_):
    broken = broken_by_object(compile_(HEADER + "void all_reduce(int) {}\n"), "all_reduce")
    assert broken == []  # the linker finds that
    assert broken_by_object(compile_(HEADER), "all_reduce") == [
        "It does not define all_reduce() as its header declares it."
    ]


@pytest.mark.parametrize("name, plain", [
    ("void std::swap<float>(float&, float&)", "std::swap"),
    ("std::vector<int, std::allocator<int> >::~vector()", "std::vector::~vector"),
    ("std::vector<int>::size() const", "std::vector::size"),
    ("void evil<std::string>(int, const std::string&)", "evil"),
    ("workshop::fail(int, const std::string&)", "workshop::fail"),
    ("DW.ref.__gxx_personality_v0", "DW.ref.__gxx_personality_v0"),
])
def test_entities(name, plain):
    assert entity(name) == plain
