# SPDX-License-Identifier: Apache-2.0
"""Which checks of a chapter run, which of their verdicts counts, and what is said. The checks just say something."""

import os
import signal
import subprocess

import pytest
import support
from conftest import ROOT
from workshop import check_chapter, processes

# A check that leaves behind what its arguments say: status, verdict, lines of todos.txt.
SAY = """#!/bin/bash
while [[ $1 == --todos || $1 == --fingerprints ]]; do shift 2; done
echo -e "$2" >verdict.txt
printf '%s\\n' "${@:3}" | sed '/^--$/,$d' >todos.txt
exit "$1"
"""
CERTAIN = "wrong 02.1,blame certain 02.1"


class Chapter:
    def __init__(self, folder):
        self.folder = folder
        (folder / "build" / "checks").mkdir(parents=True)
        (folder / "one.cu").write_text("  // TODO 02.1: x\n")
        (folder / "two.cu").write_text("  // TODO 02.3: x\n")
        self.script("say", SAY)

    def script(self, name, text):
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def checks(self, *lines):
        """Lines "name|program|ranks|status|verdict|todo lines, by commas[|options]"."""
        subprocess.run(["rm", "-rf", str(self.folder / "build" / "tests")], check=True)
        text = ""
        for line in lines:
            name, program, ranks, status, verdict, todos, *options = line.split("|")
            source = "one.cu" if program == "a" else "two.cu"
            text += (
                "\t".join(
                    [
                        name,
                        program,
                        ranks,
                        f"{self.folder}/say",
                        "--fingerprints",
                        f"{self.folder}/fingerprints.txt",
                        "--todos",
                        f"{self.folder}/{source}",
                        status,
                        verdict,
                        *todos.split(","),
                        "--",
                        "--epochs",
                        "3",
                        *[w for o in options for w in o.split()],
                    ]
                )
                + "\n"
            )
        (self.folder / "build" / "checks" / "02_x").write_text(text)

    def judge(self, *options):
        """Status, what was said, and which checks ran."""
        done = subprocess.run(
            [os.path.join(ROOT, "checker", "check_chapter"), *options, "--state", "state", "build", "02_x"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        self.progress = done.stderr
        ran = self.folder / "build" / "tests" / "run"
        names = sorted(path.parent.name for path in ran.glob("*/status.txt"))
        return done.returncode, done.stdout, " ".join(names)

    def fingerprints(self, *lines):
        (self.folder / "fingerprints.txt").write_text("".join(line + "\n" for line in lines))


@pytest.fixture
def chapter(tmp_path):
    return Chapter(tmp_path)


def test_all_right(chapter):
    chapter.checks("one|a|2|0|fine|right 02.1,unreached 02.2", "two|b|2|0|fine|right 02.2,right 02.3")
    assert chapter.judge()[:2] == (0, "all 3 TODOs right\nright 02.1 02.2 02.3\n")
    assert chapter.progress == "[1/2] a on 2 ranks\n[2/2] b on 2 ranks\n"
    assert (chapter.folder / "state").read_text() == "right 02.1\nright 02.2\nright 02.3\n"


def test_a_todo_that_is_not_reached_is_not_right(chapter):
    chapter.checks("one|a|2|0|fine|right 01.2,right 02.1,unreached 02.2,unreached 01.3")
    assert chapter.judge()[1] == "right 02.1 · not reached 02.2\n"
    assert chapter.judge("--program", "a")[1] == "the TODO is right\nright 02.1\n"


def test_where_a_todo_is_right_is_said(chapter):
    chapter.checks("one|a|3|0|fine|right 02.1", "two|a|2|0|fine|right 02.1", "three|b|1|0|fine|unreached 02.1")
    assert chapter.judge("--todo", "02.1")[1].startswith("TODO 02.1: right (a on 2, 3 ranks)\n")
    chapter.checks("one|a|3|77|Next: TODO 02.2|right 02.1,open 02.2")
    assert chapter.judge("--todo", "02.1")[1].startswith("TODO 02.1: right (a on 3 ranks)\nNext: TODO 02.2\n")


def test_a_note_is_said_once(chapter):
    chapter.checks(
        "one|a|2|0|fine|right 02.1", "two|a|4|0|Note: it waits|right 02.1", "three|b|2|0|Note: it waits|right 02.2"
    )
    assert chapter.judge()[1] == "all 2 TODOs right\nNote: it waits\nright 02.1 02.2\n"


def test_that_something_was_not_compared_counts_only_if_it_never_was(chapter):
    note = "Note: with --precision bf16, tensor x"
    chapter.checks(f"one|a|2|0|{note}|right 02.1,unreached 02.2", "two|b|2|0|fine|right 02.2")
    assert chapter.judge()[1] == "all 2 TODOs right\nright 02.1 02.2\n"
    chapter.checks(f"one|a|2|0|{note}|right 02.1,unreached 02.2", "two|b|2|0|fine|right 02.1")
    assert chapter.judge()[1] == f"{note}\nright 02.1 · not reached 02.2\n"


def test_the_first_that_is_certainly_wrong_is_shown(chapter):
    chapter.checks(
        "one|a|1|1|crash|right 02.1,wrong 02.2,blame likely 02.2",
        "two|b|2|1|TODO 02.10 late|right 02.2,wrong 02.10,blame certain 02.10",
        "three|c|4|1|TODO 02.3 (x) first|wrong 02.3,blame certain 02.3",
    )
    status, said, _ = chapter.judge()
    assert status == 1
    assert said == (
        "TODO 02.3 (x) first\nThis run: ./workshop run 02 c -n 4 -- --epochs 3\nStuck? ./workshop hint 02.3\n"
        "right so far 02.1 · wrong 02.3, and perhaps because of that 02.2 02.10\n3 runs are wrong in all: --verbose shows them\n"
    )


def test_a_known_mistake_is_shown_before_an_earlier_todo_that_differs(chapter):
    chapter.checks(
        "one|a|1|1|TODO 02.1 (x) first|wrong 02.1,blame certain 02.1",
        "two|b|2|1|TODO 02.3 (x) known|wrong 02.3,blame certain 02.3 known",
    )
    assert chapter.judge()[1].startswith("TODO 02.3 (x) known\n")


def test_a_known_mistake_is_that_of_the_todo_that_its_sentence_names(chapter):
    # What differs belongs to an earlier chapter, or to the TODO before.
    text = "TODO 01.2 is reached too often\nTODO 02.3: You call it twice."
    a_line = text.replace("\n", r"\n")
    chapter.checks(f"one|a|2|1|{a_line}|right 02.1,right 02.3", "two|b|2|0|fine|right 02.1,right 02.3")
    run = "This run: ./workshop run 02 a -n 2 -- --epochs 3\n"
    assert chapter.judge()[1] == text + f"\n{run}Stuck? ./workshop hint 02.3\nright so far 02.1 · wrong 02.3\n"
    text = "TODO 02.1 is the one to look at\n  TODO 02.3: You call it twice."
    a_line = text.replace("\n", r"\n")
    chapter.checks(f"one|a|2|1|{a_line}|wrong 02.1,right 02.3,blame likely 02.1 known", "two|b|2|0|fine|right 02.1")
    assert chapter.judge()[1] == text + f"\n{run}Stuck? ./workshop hint 02.3\nright so far 02.1 · wrong 02.3\n"


def test_a_wrong_run_is_never_summed_up_as_right(chapter):
    chapter.checks("one|a|2|1|TODO 01.2 is reached too often|right 02.1,right 02.3", "two|b|2|0|fine|right 02.1")
    said = chapter.judge("--todo", "02.1")[1]
    assert "TODO 02.1: right so far (a on 2 ranks)\n" in said
    assert said.endswith("\nright so far 02.1 02.3 · wrong one of these, in how it uses TODO 01.2\n")


def test_what_is_right_may_not_compile_for_another_precision(chapter):
    chapter.checks(
        "one|a|2|0|fine|right 02.1",
        "two|a|2|1|The program does not compile for --precision bf16: read the compiler's messages.||--precision bf16",
    )
    assert chapter.judge("--todo", "02.1")[1].startswith(
        "TODO 02.1: right in float32 (a on 2 ranks), not checked in another precision:\nThe program does not compile"
    )


class TestWhichRun:
    LINES = (
        "one|a|2|1|TODO 02.1|" + CERTAIN,
        "two|a|4|1|x|" + CERTAIN,
        "three|b|1|1|Your program did not finish|wrong 02.2,blame likely 02.2",
        "four|b|2|1|x|wrong 02.2",
        "five|c|2|0|x|right 02.3",
    )

    def test_what_is_certain_or_does_not_end_is_the_last_of_its_program(self, chapter):
        chapter.checks(*self.LINES)
        assert chapter.judge()[2] == "five one three"

    def test_verbose_runs_all(self, chapter):
        chapter.checks(*self.LINES)
        _, said, ran = chapter.judge("--verbose")
        assert ran == "five four one three two" and "== a on 4 ranks\nx\n" in said
        assert "5 runs are wrong" not in chapter.judge()[1]  # what was found before is forgotten

    def test_narrowed(self, chapter):
        chapter.checks(*self.LINES)
        assert chapter.judge("--program", "b", "--ranks", "1")[1].startswith(
            "Your program did not finish\nThis run: ./workshop run 02 b -n 1 -- --epochs 3\n"
        )
        said = chapter.judge("--todo", "02.1")[1]
        assert "TODO 02.1: wrong\n" in said and "did not finish" not in said
        status, said, _ = chapter.judge("--ranks", "3")
        assert status == 2 and "on 3 ranks; there are:\n  a on 2 ranks\n  a on 4 ranks\n" in said

    def test_two_more_where_mistakes_are_known(self, chapter):
        chapter.fingerprints(
            "run a 2 --epochs 3",
            "02.2-x | y",
            "run a 3 --epochs 3",
            "02.1-x | y",
            "run a 5 --epochs 3",
            "02.1-x | y",
            "run a 6 --epochs 3",
            "02.1-x | y",
        )
        chapter.checks(
            f"one|a|1|1|first|{CERTAIN}",
            f"two|a|2|1|second|{CERTAIN}",
            f"three|a|3|1|third|{CERTAIN}",
            f"four|a|5|1|fourth|{CERTAIN}",
            f"five|a|6|1|fifth|{CERTAIN}",
        )
        _, said, ran = chapter.judge()
        assert ran == "four one three" and said.startswith("first\n")
        chapter.checks(
            f"one|a|1|1|first|{CERTAIN}",
            f"two|a|2|1|second|{CERTAIN}",
            f"three|a|3|1|third|{CERTAIN} known",
            f"four|a|5|1|fourth|{CERTAIN}",
        )
        _, said, ran = chapter.judge()
        assert ran == "one three" and said.startswith("third\n")


def test_what_is_open_counts_less_than_what_is_wrong(chapter):
    chapter.checks("one|a|2|77|Next: TODO 02.2|right 02.1,open 02.2,unreached 02.3")
    assert chapter.judge()[:2] == (
        77,
        "Next: TODO 02.2\nStuck? ./workshop hint 02.2\n" "right so far 02.1 · open 02.2 · not reached 02.3\n",
    )
    chapter.checks(
        "one|a|2|77|Next: TODO 02.2|right 02.1,open 02.2,unchecked 02.3", "two|b|2|0|x|unreached 02.3,unreached 02.4"
    )
    assert (
        "right so far 02.1 · open 02.2 · not reached 02.4 · not checked 02.3, because of what is open or wrong\n"
        in chapter.judge()[1]
    )


def test_what_did_not_run_is_not_wrong(chapter):
    chapter.checks("one|a|2|77|Next: TODO 02.2|open 02.2", "two|b|2|2|The program did not start|unreached 02.3")
    status, said, _ = chapter.judge()
    assert status == 2 and said.startswith("The program did not start\n") and "wrong" not in said
    assert "wrong" not in (chapter.folder / "state").read_text()


def test_a_check_that_cannot_be_started_is_not_right(chapter):
    chapter.checks("one|a|1|0|x|right 02.1", "two|b|1|0|x|right 02.3")
    (chapter.folder / "say").unlink()
    status, said, _ = chapter.judge()
    assert status == check_chapter.NOT_COMPARABLE and "say" in said + chapter.progress
    assert "Traceback" not in chapter.progress


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_no_check_outlives_the_command(chapter, number):
    chapter.checks("one|a|2|0|fine|right 02.1", "two|b|2|0|fine|right 02.2")
    chapter.script("say", "#!/bin/sh\nsleep 60 & echo $! >child.txt; wait\n")
    judge = subprocess.Popen(
        [os.path.join(ROOT, "checker", "check_chapter"), "build", "02_x"], cwd=chapter.folder, stderr=subprocess.DEVNULL
    )
    child = chapter.folder / "build" / "tests" / "run" / "one" / "child.txt"
    support.until(lambda: child.exists() and child.read_text(), 20, "the first check")
    judge.send_signal(number)
    assert judge.wait(timeout=20) == 128 + number
    support.until(lambda: not processes.is_running(int(child.read_text())), 20, "its end")
    assert not (child.parent.parent / "two").exists()


def test_what_is_right_in_one_run_only_is_left_out(chapter):
    chapter.checks("one|a|1|1|Right so far: TODO 02.9|wrong 02.1,blame certain 02.1")
    assert "Right so far" not in chapter.judge()[1]
    assert "Right so far" in chapter.judge("--verbose")[1]


class TestOneTodo:
    @pytest.fixture(autouse=True)
    def builds(self, chapter):
        (chapter.folder / "two.cu").write_text("  // TODO 02.1: x\n")
        self.build(chapter, "b")

    @staticmethod
    def build(chapter, fails):
        chapter.script("build_it", f'#!/bin/sh\necho "$*" >>built.txt\n[ "$2" != {fails} ]\n')

    @staticmethod
    def built(chapter):
        return (chapter.folder / "built.txt").read_text().splitlines()

    def judge(self, chapter):
        return chapter.judge("--todo", "02.1", "--build", "./build_it")

    def test_other_programs_are_not_asked_about_what_is_wrong(self, chapter):
        chapter.checks(f"one|a|1|1|first|{CERTAIN}", "two|b|1|0|fine|right 02.1")
        status, _, ran = self.judge(chapter)
        assert (status, ran, self.built(chapter)) == (1, "one", ["02_x a"])

    def test_unless_they_know_its_mistakes(self, chapter):
        chapter.fingerprints("run b 2 --epochs 3", "02.1-x | y")
        chapter.checks(f"one|a|1|1|first|{CERTAIN}", "two|b|1|0|fine|right 02.1", f"three|b|2|1|third|{CERTAIN} known")
        self.build(chapter, "c")
        _, said, ran = self.judge(chapter)
        assert ran == "one three" and said.startswith("third\n")
        self.build(chapter, "b")
        assert self.judge(chapter)[1].startswith("first\n")  # the other does not build
        chapter.checks(f"one|a|1|1|first|{CERTAIN} known", f"three|b|2|1|third|{CERTAIN} known")
        assert self.judge(chapter)[2] == "one"

    def test_what_is_open_ends_it(self, chapter):
        chapter.checks(
            "one|a|1|77|Next: TODO 02.1|open 02.1",
            "two|a|2|77|Next: TODO 02.1|open 02.1",
            "three|b|1|0|fine|right 02.1",
        )
        assert self.judge(chapter)[::2] == (77, "one")

    def test_both_precisions_are_built(self, chapter):
        chapter.checks("two|a|1|0|fine|right 02.1|--precision bf16", "one|a|1|0|fine|right 02.1")
        assert self.judge(chapter)[0] == 0 and self.built(chapter) == ["02_x a", "02_x a_bf16"]

    def test_what_does_not_build_has_no_verdict(self, chapter):
        chapter.checks("one|a|1|0|fine|right 02.1", "two|b|2|0|fine|right 02.1")
        assert self.judge(chapter)[:2] == (1, "")


def test_a_long_line_is_broken_and_keeps_its_indentation(chapter):
    chapter.checks(f"one|a|2|1|    {30 * 'word '}|{CERTAIN}")
    assert "word word\n      word" in chapter.judge()[1]


def test_a_wrong_option_is_refused(chapter):
    assert chapter.judge("--what")[0] == 2


def test_a_line_without_options_ends_with_a_tab(tmp_path):
    check = check_chapter.Check("one\ta\t2\tcheck_exercise\t-n\t2\t--\t\n", str(tmp_path))
    assert check.command == ["check_exercise", "-n", "2", "--"] and check.options == []
