# SPDX-License-Identifier: Apache-2.0
"""The format of checker/mistakes/NN_name.txt, what CMake is told of it, and the lists themselves."""

import glob
import os
import re

import pytest
from conftest import ROOT
from workshop import make_fingerprints, mistakes

LIST = """# a comment
program ddp
check 2 4 -- --max-steps 3 --name 'two words'
check 3

run 2 -- --max-steps 3 --name 'two words'
02.1-sum
says You summed; the text asks for the average.
  ncclSum;

  more;
# between
02.1-late: did not finish|x
says It is late.
  late;
right 02.1-by-hand
  by_hand;

run 3 within 15
cpu_only it stands in a kernel
02.2-crash: see TODO 02.2
says It crashes.
  crash;
02.1-sum
"""


def parsed(text):
    chapter = mistakes.Chapter("02_x")
    mistakes.Parser(chapter, "list.txt").parse(text)
    return chapter


def test_checks():
    first, second = parsed(LIST).checks
    assert (first.program, first.ranks, first.options) == ("ddp", [2, 4], ["--max-steps", "3", "--name", "two words"])
    assert (second.ranks, second.options, second.seconds) == ([3], [], None)


def test_fillings():
    chapter = parsed(LIST)
    assert [use.name for use in chapter.uses] == ["02.1-sum", "02.1-late", "02.1-by-hand", "02.2-crash", "02.1-sum"]
    assert [use.expects for use in chapter.uses] == [
        "TODO 02.1",
        "did not finish|x",
        "right",
        "see TODO 02.2",
        "TODO 02.1",
    ]
    assert chapter.uses[2].is_right and not chapter.uses[0].is_right
    assert chapter.code["02.1-sum"] == "  ncclSum;\n\n  more;\n" and chapter.code["02.1-by-hand"] == "  by_hand;\n"
    crash = chapter.uses[3].run
    assert (crash.ranks, crash.seconds, crash.cpu_only) == ([3], 15, "it stands in a kernel")
    assert chapter.uses[0].run.cpu_only == ""


def test_sentences_by_todo():
    assert parsed(LIST).sentences() == {
        "02.1": ["You summed; the text asks for the average.", "It is late."],
        "02.2": ["It crashes."],
    }


@pytest.mark.parametrize(
    "text,message",
    [
        ("check 2", "list.txt:1: a line 'program NAME' must come first"),
        ("program a\ncheck two", "list.txt:2: expected numbers of ranks"),
        ("program a\ncheck 2 within soon", "expected numbers of ranks"),
        ("program a\ncheck 0", "expected numbers of ranks"),
        ("program a\ncheck 2\nrun 3", "list.txt:3: no check is like this run on 3 ranks"),
        ("program a\ncheck 2\nrun 2 -- --x", "no check is like this run"),
        ("program a\ncheck 2\n02.1-x", "list.txt:3: no run is above 02.1-x"),
        ("program a\ncheck 2\nrun 2\nwhat is this", "list.txt:4: what is 'what is this'?"),
        ("  code", "list.txt:1: code without a filling"),
        ("says x", "'says' must follow"),
        ("cpu_only x", "'cpu_only' must follow a run"),
        ("program a\ncheck 2\nrun 2\n02.1-x\n  code\n02.1-x\n  other", "02.1-x has its code already"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text, message):
    with pytest.raises(mistakes.Wrong) as wrong:
        parsed(text)
    assert message in str(wrong.value)


def test_what_cmake_has_to_do():
    text = mistakes.for_cmake(parsed(LIST), "run ddp 2\n02.1-sum | status 1, order: x\n02.1-late | probe 02.1\n")
    lines = text.splitlines()
    assert lines[0] == "workshop_check(02_x ddp RANKS 2 4 OPTIONS --max-steps 3 --name [==[two words]==])"
    assert lines[1] == "workshop_check(02_x ddp RANKS 3 OPTIONS)"
    assert lines[2].startswith(
        "workshop_filling(02_x ddp 02.1-sum RANKS 2 LEVELS guided EXPECT [==[TODO 02.1]==] "
        "SAYS [==[You summed. the text asks for the average\\.]==] CPU_ONLY [==[the order"
    )
    assert "SAYS" not in lines[3]  # any rank may be the first to speak
    assert " RIGHT OPTIONS " in lines[4] and "TIMEOUT 15 CPU_ONLY [==[it stands in a kernel]==]" in lines[5]
    assert lines[-3:] == [
        "set(_fillings 02.1-sum 02.1-late 02.1-by-hand 02.2-crash)",
        "set(_programs ddp)",
        "set(_programs_in_bf16 )",
    ]


def test_mistakes_that_only_the_cpu_backend_shows():
    assert mistakes.only_by_checkers(
        "a | status 1, order: x\na | status 1, bounds: y\nb | status 1, order: x\nb | probe\n"
    ) == {"a"}


def test_fillings_that_are_up_to_date_stay(tmp_path):
    chapter = parsed(LIST)
    mistakes.write_fillings(chapter, str(tmp_path))
    file = tmp_path / "02.1-sum.txt"
    os.utime(file, (1, 1))
    mistakes.write_fillings(chapter, str(tmp_path))
    assert file.stat().st_mtime == 1 and file.read_text() == chapter.code["02.1-sum"]


def test_a_program_that_is_not_built_leaves_no_fingerprints(tmp_path):
    chapter = mistakes.read_chapter("01_single_gpu")
    runs = make_fingerprints.Runs(chapter, str(tmp_path), str(tmp_path))
    untested = [c for c in chapter.checks if c.is_bf16 and c.program == "mlp"]  # no filling is compiled for it
    assert untested and all(runs.of_check(check, check.ranks[0], quick=False) == [] for check in untested)
    with pytest.raises(SystemExit, match="build the target wrong_01_single_gpu_mlp first"):
        runs.of_check(next(c for c in chapter.checks if c.program == "mlp"), 1, quick=False)


def test_sentences_of_fingerprints_are_renewed():
    assert make_fingerprints.renewed("# head\nsays a old\nrun x\na | y\n", ["says a new", "says b c"]) == (
        "# head\nsays a new\nsays b c\nrun x\na | y\n"
    )


@pytest.mark.parametrize(
    "name", [os.path.basename(path)[:-4] for path in sorted(glob.glob(f"{ROOT}/checker/mistakes/[0-9]*.txt"))]
)
def test_the_lists_of_the_chapters(name):
    chapter = mistakes.read_chapter(name, with_mutants=True)
    assert chapter.checks and chapter.uses
    fingerprints = mistakes.read_text(os.path.join(mistakes.MISTAKES, "fingerprints", name + ".txt"))
    said = [line for line in fingerprints.splitlines() if line.startswith("says ")]
    assert said == make_fingerprints.says(mistakes.read_chapter(name)), "run checker/make_fingerprints --says"
    assert not re.findall(r"[ ('\"]/\w+/\w.*", fingerprints), "fingerprints have no paths of the machine that made them"


# ---- the blank level ----

SOLUTION = """void f() {
  // WRITE 02.A: All of it.
  //   More.
  begin();
  for (;;) {
    // TODO 02.1: One.
    //   More.
    one();
    // END TODO 02.1
    probe("02.1", {a,
                   b});
    same();
  }
  same();
  // END WRITE 02.A
}
"""


def test_the_code_of_a_region_is_without_todos_and_probes():
    code = "  begin();\n  for (;;) {\n    one();\n    same();\n  }\n  same();\n"
    assert mistakes.code_of("02.A", ["", SOLUTION]) == code
    assert mistakes.code_of("02.1", [SOLUTION]) == "    one();\n"
    with pytest.raises(mistakes.Wrong, match="no solution has WRITE 02.B"):
        mistakes.code_of("02.B", [SOLUTION])


@pytest.mark.parametrize(
    "edit,result",
    [
        ("- begin();", "for (;;) {|one();|same();|}|same();|"),
        ("- one();\n+ two();", "begin();|for (;;) {|two();|same();|}|same();|"),
        ("= }\n- same();", "begin();|for (;;) {|one();|same();|}|"),
        ("= begin();\n+ more();\n...\n- one();", "begin();|more();|for (;;) {|same();|}|same();|"),
        ("- same();", "2 places in the solution have the lines"),
        ("- three();", "0 places in the solution have the lines"),
        ("+ two();", "no places in the solution have the lines"),
    ],
)
def test_fillings_that_are_changes_of_the_solution(edit, result):
    code = mistakes.code_of("02.A", [SOLUTION])
    assert mistakes.is_edit(edit)
    if "places" in result:
        with pytest.raises(ValueError, match=result):
            mistakes.edited(code, edit)
    else:
        assert "|".join(line.strip() for line in mistakes.edited(code, edit).split("\n")) == result


def test_code_is_no_change():
    assert not mistakes.is_edit("  f(a\n    - b);\n") and not mistakes.is_edit("  --i;\n") and mistakes.is_edit("  - a;\n")


def test_simulated_machines():
    list_ = "program ddp\ncheck 2 4 on compute=1M -- --x\ncheck 2 -- --x\nrun 2 on compute=1M -- --x\n02.1-slow\n  wait;\n"
    chapter = parsed(list_)
    assert [(check.ranks, check.machine) for check in chapter.checks] == [([2, 4], "compute=1M"), ([2], "")]
    lines = mistakes.for_cmake(chapter, "").splitlines()
    assert lines[0] == "workshop_check(02_x ddp RANKS 2 4 MACHINE [==[compute=1M]==] OPTIONS --x)"
    assert lines[2].endswith("MACHINE [==[compute=1M]==] OPTIONS --x)")
    with pytest.raises(mistakes.Wrong, match="no check is like this run on 2 ranks"):
        parsed(list_.replace("run 2 on compute=1M", "run 2 on compute=2M"))


def test_levels():
    chapter = parsed(LIST.replace("02.1-late: did not finish|x", "02.A-late"))
    chapter.around = {"02.1": "02.A"}
    by_name = {use.name: mistakes.levels_of(chapter, use) for use in chapter.uses}
    assert by_name == {
        "02.1-sum": ("guided,blank", ["TODO 02.1", "WRITE 02.A"]),
        "02.A-late": ("blank", ["WRITE 02.A"]),
        "02.1-by-hand": ("guided,blank", ["right"]),
        "02.2-crash": ("guided", ["see TODO 02.2"]),
    }


def regions_in_kernels(text):
    """The TODOs and WRITE regions inside __global__ functions."""
    found, inside = set(), False
    for line in text.split("\n"):
        if re.match(r"(\[\[maybe_unused\]\] )?(static )?__global__ ", line) and not line.endswith(";"):
            inside = True
        elif line.startswith("}"):
            inside = False
        elif inside and (region := re.match(r" *// (?:TODO|WRITE) ([0-9]+\.[0-9A-Z]+): ", line)):
            found.add(region[1])
    return found


def test_fillings_in_kernels_are_for_the_cpu_backend_alone():
    """A kernel on a GPU cannot be told which filling to take (checker/filling.h)."""
    for path in sorted(glob.glob(os.path.join(ROOT, "checker", "mistakes", "[0-9]*.txt"))):
        name = os.path.basename(path)[:-4]
        kernels = set()
        for source in glob.glob(os.path.join(ROOT, "solutions", name, "*.*")):
            with open(source, encoding="utf-8") as file:
                kernels |= regions_in_kernels(file.read())
        chapter = mistakes.read_chapter(name)
        assert [use.name for use in chapter.uses if use.todo in kernels and not use.run.cpu_only] == []
