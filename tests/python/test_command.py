# SPDX-License-Identifier: Apache-2.0
"""What ./workshop answers without building anything, and the parts that it is made of."""

import fcntl
import io
import os
import pty
import re
import shutil
import subprocess
import time

import pytest
from conftest import ROOT
from workshop import building, chapters, command, context, errors, machine, verbs_learn, verbs_measure, verbs_setup

WORKSHOP = os.path.join(ROOT, "workshop")


def workshop(*words, **environment):
    return subprocess.run(
        [WORKSHOP, *words],
        env=dict(os.environ, WORKSHOP_BACKEND="cpu", **environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


# ---- one line for whatever it does not know ----


@pytest.mark.parametrize(
    "words,text",
    [
        ("fly", "unknown verb 'fly'"),
        ("run 99", "no chapter '99'"),
        ("check 77", "no chapter '77'"),
        ("check 02.77", "no TODO 02.77 in 02_ddp"),
        ("check 2 --ranks two", "--ranks expects a number of ranks, not 'two'"),
        ("check 02 --epochs 3", "check knows --ranks, --verbose, --json, --junit, --gradescope, not '--epochs'"),
        ("check 02 nope", "no program 'nope' in 02_ddp; there is ddp ddp_overlap long_run"),
        ("watch 99", "no chapter '99'"),
        ("reset", "which chapter"),
        ("reset 02 ddp", "reset takes one chapter, --level and -y, not 'ddp'"),
        ("run 02 nope", "no program 'nope' in 02_ddp; there is ddp ddp_overlap long_run"),
        ("run 02 -n many", "-n expects a number of ranks, not 'many'"),
        ("run 02 -n", "-n expects a number of ranks, not 'nothing'"),
        ("run 02 --launcher ssh", "--launcher is mpirun or env, not 'ssh'"),
        ("run 02 --restarts", "--restarts expects a number, not 'nothing'"),
        ("run 02 --shrink", "--shrink is for --restarts"),
        ("run 02 --epochs 3", "not '--epochs'"),
        ("submit 02 nope", "no program 'nope' in 02_ddp; there is ddp ddp_overlap long_run"),
        ("submit 02 --nodes two", "--nodes expects a number of nodes, not 'two'"),
        ("submit 02 --gpus", "--gpus expects a number of GPUs per node, not 'nothing'"),
        ("submit 02 --epochs 3", "submit knows --nodes, --gpus, --solution, --check, --report, --wait and --"),
        ("submit 02 --check --solution", "submit --check takes --gpus, --wait and --"),
        ("submit 02.1", "no chapter '02.1'"),
        ("doctor --cluster --all", "doctor --cluster knows --nodes and --gpus, not '--all'"),
        ("doctor now", "doctor takes no arguments but --cluster, not 'now'"),
        ("scaling 02 --ranks all", "--ranks expects numbers such as 1,2,4,8, not 'all'"),
        ("scaling 02 --epochs 3", "scaling knows --ranks, --weak, --solution, --json and --"),
        ("report", "report expects a chapter"),
        ("report 99", "no chapter '99'"),
        ("report 02 -n two", "expects numbers of ranks such as 2 or 1,2,4, not 'two'"),
        ("report run.jsonl -n 2", "takes --terminal and -o alone"),
        ("bench --json", "bench: --json lacks its value"),
        ("bench --torch /no/such", "bench: '/no/such' is no Python with torch"),
        ("list --backend tpu", "cpu or cuda, not 'tpu'"),
        ("list all", "list takes no arguments, not 'all'"),
        ("demo fast", "demo takes no arguments, not 'fast'"),
        ("setup --packages --prebuilt", "--packages builds nothing, and --prebuilt does"),
        ("setup --prebuilt --packages", "--packages builds nothing, and --prebuilt does"),
        ("setup --what", "setup knows -y, --with-slurm, --with-fuzz, --packages and --prebuilt, not '--what'"),
        ("hint", "expects the number of a TODO, such as 02.4, not ''"),
        ("hint 02", "expects the number of a TODO, such as 02.4, not '02'"),
        ("hint 02.4a", "expects the number of a TODO, such as 02.4, not '02.4a'"),
        ("hint 02.77", "there is no TODO 02.77; 02_ddp/README.md"),
        ("hint 99.1", "no chapter '99'"),
        ("hint 02.4 -n", "hint knows --all, not '-n'"),
        ("hint 02.4 02.5", "hint takes one TODO, not '02.5' too"),
    ],
)
def test_refusals(words, text):
    done = workshop(*words.split())
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1 and text in done.stderr


@pytest.mark.parametrize("words", ["help", "-h", "--help", ""])
def test_help(words):
    done = workshop(*words.split())
    assert done.returncode == 0 and done.stdout.count("\n  reset CHAPTER") == 1


def test_help_of_a_verb():
    done = workshop("check", "--help")
    assert done.stdout.startswith("  check CHAPTER") and "  watch" not in done.stdout
    assert command.help_of("list").count("\n") == 1
    assert set(command.VERBS) | {"progress"} == {
        verb
        for verb in [
            line.split()[0] for line in command.USAGE.split("\n") if line.startswith("  ") and line[2:3].isalpha()
        ]
    } - {"help"}


def test_list():
    done = workshop("list")
    assert done.returncode == 0 and "Next: " in done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("02_ddp  ") and " of 15 filled in" in line]


def test_it_works_from_anywhere_and_through_a_link(tmp_path):
    (tmp_path / "link").symlink_to(WORKSHOP)
    done = subprocess.run(
        [str(tmp_path / "link"), "list"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=dict(
            os.environ,
            WORKSHOP_BACKEND="cpu",
            CDPATH=".",
            PYTHONPATH="/nowhere",
            PYTHONHOME="/nowhere",
            GREP_OPTIONS="-x",
            POSIXLY_CORRECT="1",
            BASH_ENV="/nowhere",
        ),
    )
    assert done.returncode == 0 and done.stdout.startswith("chapter ") and done.stderr == ""


def test_without_python_one_line_says_so(tmp_path):
    for name in ("sh", "dirname", "readlink", "id"):
        (tmp_path / name).symlink_to(shutil.which(name))
    start = tmp_path / "start"
    start.write_text(open(os.path.join(ROOT, "tools/python/start")).read().replace("/usr/bin/python3", "/no/python3"))
    start.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(start), "command", "list"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "install python3" in done.stderr


# ---- the command line ----


def test_backend_stands_anywhere_before_the_options_of_a_program(monkeypatch):
    monkeypatch.delenv("WORKSHOP_BACKEND", raising=False)
    assert command.read_backend(["--backend", "cuda", "run", "02"]) == ("cuda", ["run", "02"])
    assert command.read_backend(["run", "02", "--backend", "cpu", "--", "--backend", "x"]) == (
        "cpu",
        ["run", "02", "--", "--backend", "x"],
    )


def test_sets_of_options():
    assert verbs_measure.sets_of([]) == [[]]
    assert verbs_measure.sets_of(["--", "--a", "1"]) == [["--a", "1"]]
    assert verbs_measure.sets_of(["--", "--a", "--", "--b", "--", "--c"]) == [["--a"], ["--a", "--b"], ["--a", "--c"]]


@pytest.mark.parametrize(
    "text,ranks", [("1,2,4", [1, 2, 4]), ("8", [8]), ("", None), ("0", None), ("1,", None), ("a", None)]
)
def test_ranks(text, ranks):
    assert context.parse_ranks(text) == ranks


@pytest.mark.parametrize(
    "program,ranks",
    [
        ("01_single_gpu/gpt", 1),
        ("02_ddp/ddp", 2),
        ("03_model_parallel/one_process", 1),
        ("03_model_parallel/model_parallel", 2),
        ("07_3d/plan", 1),
        ("07_3d/train_3d", 2),
    ],
)
def test_default_ranks(program, ranks, monkeypatch):
    monkeypatch.chdir(ROOT)
    chapter, name = program.split("/")
    assert context.default_ranks(chapters.choose(chapter), name) == ranks


def test_a_program_is_built_for_the_precision_of_its_options(monkeypatch):
    monkeypatch.chdir(ROOT)
    chapter = chapters.choose("02")
    assert context.targets_of(chapter, "ddp", True, ["--epochs", "3"]) == ["solution_02_ddp_ddp"]
    assert context.targets_of(chapter, "ddp", False, ["--precision", "bf16"]) == ["02_ddp_ddp", "02_ddp_ddp_bf16"]
    assert context.targets_of(chapters.choose("00"), "hello", False, ["--precision", "bf16"]) == [
        "00_collectives_hello"
    ]


def test_all_programs_with_two_precisions_are_built_in_both(monkeypatch):
    """CMake's lists of such programs, and what the sources of the programs say."""
    monkeypatch.chdir(ROOT)
    with open("CMakeLists.txt", encoding="utf-8") as file:
        listed = re.findall(r"^workshop_bf16\((\w+) ([^)]*)\)", file.read(), re.M)
    assert len(listed) >= 10
    for folder, programs in listed:
        for program in programs.split():
            targets = context.targets_of(chapters.choose(folder), program, False, ["--precision", "bf16"])
            assert len(targets) == 2, f"{folder}/{program}.cu does not call with_precision()"


def test_slots_of_gpus():
    def slots(*free):
        return [gpu["slots"] for gpu in verbs_setup.gpu_slots(list(free))["local"][0]["gpus"]]

    assert slots("81000", "7000", "[N/A]") == [8, 4, 3] and slots("4000") == [8]


# ---- chapters and TODOs ----


@pytest.fixture
def clone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "CMakeLists.txt").write_text(
        "workshop_chapter(02_ddp ddp ddp_overlap)\nworkshop_chapter(10_less local)\n"
    )
    for folder, code in (("solutions/02_ddp", "  all();\n"), ("02_ddp", '  todo("02.10");\n')):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "ddp.h").write_text(f"  // TODO 02.10: Ten.\n{code}  // END TODO 02.10\n")
        (tmp_path / folder / "ddp.cu").write_text("// TODO 02.9: Nine.\n" + code.replace("10", "9"))
    return tmp_path


def test_chapters(clone):
    assert [chapter.name for chapter in chapters.all_chapters()] == ["02_ddp", "10_less"]
    assert chapters.choose("2").programs == ["ddp", "ddp_overlap"] and chapters.choose("02_ddp/").number == "02"
    with pytest.raises(errors.Refused, match="no chapter '03'; there are 02_ddp 10_less"):
        chapters.choose("3")


def test_todos_are_in_order(clone):
    chapter = chapters.choose("02")
    assert chapters.todos(chapter) == ["02.9", "02.10"]
    assert [(found.todo, found.place) for found in chapters.open_todos(chapter)] == [
        ("02.9", "02_ddp/ddp.cu:2"),
        ("02.10", "02_ddp/ddp.h:2"),
    ]


BLANK = "  // WRITE 02.A: All.\n{}  // END WRITE 02.A\n"


@pytest.fixture
def blank(clone):
    """The same with a region around TODO 02.10, and a loop that is a region: at the blank level."""
    header = (clone / "solutions" / "02_ddp" / "ddp.h").read_text()
    (clone / "solutions" / "02_ddp" / "ddp.h").write_text(BLANK.format(header))
    (clone / "solutions" / "02_ddp" / "ddp_overlap.cu").write_text(BLANK.format("  loop();\n").replace("02.A", "02.B"))
    (clone / "02_ddp" / "ddp.h").write_text(BLANK.format('  todo("02.A");\n'))
    (clone / "02_ddp" / "ddp_overlap.cu").write_text(BLANK.format('  todo("02.B");\n').replace("02.A", "02.B"))
    return clone


def test_the_blank_level(blank, capsys):
    chapter = chapters.choose("02")
    assert chapters.level_of(chapter) == "blank"
    assert chapters.todos(chapter) == ["02.A", "02.B", "02.9"]
    assert [found.todo for found in chapters.open_todos(chapter)] == ["02.A", "02.B", "02.9"]
    assert [os.path.basename(file) for file in chapter.handed_out()] == ["ddp.cu", "ddp.h", "ddp_overlap.cu"]
    assert verbs_learn.list_(context.Context("cpu", "build"), []) == 0
    assert "0 of 3 filled in at the blank level" in capsys.readouterr().out
    for asked, text in [("02.10", "at the blank level, TODO 02.10 is inside WRITE 02.A: check 02.A"),
                        ("02.C", "no WRITE 02.C in 02_ddp")]:
        with pytest.raises(errors.Refused, match=text):
            verbs_learn.Wanted([asked])
    assert verbs_learn.Wanted(["2.a"]).todo == "02.A"


def test_a_region_without_its_comments_is_still_the_participants(blank):
    (blank / "02_ddp" / "ddp.h").write_text("  mine();\n")
    assert chapters.todos(chapters.choose("02")) == ["02.A", "02.B", "02.9"]


def test_the_guided_level_of_the_same_solutions(blank):
    chapter = chapters.choose("02")
    (blank / "02_ddp" / "ddp.h").write_text("  // TODO 02.10: Ten.\n  mine();\n  // END TODO 02.10\n")
    (blank / "02_ddp" / "ddp_overlap.cu").unlink()
    assert chapters.level_of(chapter) == "guided" and chapters.todos(chapter) == ["02.9", "02.10"]
    assert chapters.todos(chapter, level="blank") == ["02.A", "02.B", "02.9"]
    with pytest.raises(errors.Refused, match="WRITE 02.A is at the blank level: ./workshop reset 02 --level blank"):
        verbs_learn.Wanted(["02.A"])


def test_handing_out_another_level(blank):
    """What was not changed needs no copy; a file that the level does not have goes."""
    made = {}
    for level, files in (("guided", {"ddp.h": "guided"}), ("blank", {"ddp.h": "blank", "ddp_overlap.cu": "loop"})):
        made[level] = str(blank / level)
        (blank / level / "02_ddp").mkdir(parents=True)
        for name, text in files.items():
            (blank / level / "02_ddp" / name).write_text(text)
    folder = blank / "02_ddp"
    (folder / "ddp.cu").unlink()
    (folder / "ddp.h").write_text("guided")
    (folder / "ddp_overlap.cu").write_text("what I wrote")
    with pytest.raises(errors.Refused, match="02_ddp/ddp_overlap.cu would be overwritten"):
        verbs_learn.hand_out(made, "guided", yes=False)
    verbs_learn.hand_out(made, "blank", yes=True)
    assert (folder / "ddp.h").read_text() == "blank" and (folder / "ddp_overlap.cu").read_text() == "loop"
    assert (folder / "ddp_overlap.cu.mine").read_text() == "what I wrote"
    verbs_learn.hand_out(made, "guided", yes=False)
    assert sorted(file.name for file in folder.iterdir()) == ["ddp.h", "ddp_overlap.cu.mine"]


@pytest.mark.parametrize("name", [".ddp.h.swp", "#ddp.h#", "ddp.h~", "ddp.h.mine", "ddp.h.orig"])
def test_files_of_editors_have_no_todos(clone, name):
    (clone / "02_ddp" / name).write_text('  todo("02.1");\n')
    (clone / "02_ddp" / ".ipynb_checkpoints").mkdir()
    assert len(chapters.open_todos(chapters.choose("02"))) == 2


def test_what_the_last_check_found(clone, capsys):
    chapter = chapters.choose("02")
    assert verbs_learn.last_check("build", chapter) == ""
    state = clone / "build" / "checks" / "02_ddp.state"
    state.parent.mkdir(parents=True)
    state.write_text("right 02.9\nunreached 02.10\n")
    assert verbs_learn.last_check("build", chapter) == "; last check: 1 right, 1 not reached"
    later = time.time() + 5
    os.utime(clone / "02_ddp" / "ddp.h", (later, later))
    assert verbs_learn.last_check("build", chapter).endswith("; changed since")
    state.write_text("wrong 02.9\n")
    os.utime(state, (later + 5, later + 5))
    assert verbs_learn.list_(context.Context("cpu", "build"), []) == 0
    assert "Next: TODO 02.9 is wrong: ./workshop check 02.9" in capsys.readouterr().out


def test_a_check_of_one_todo_is_remembered(clone):
    chapter = chapters.choose("02")
    state = clone / "build" / "checks" / "02_ddp.state"
    state.parent.mkdir(parents=True)
    part = clone / "part"
    for remembered, found, then in [
        ("", "wrong 02.10\nright 02.9\n", "wrong 02.10\n"),
        ("right 02.9\nwrong 02.10\n", "right 02.10\n", "right 02.9\nright 02.10\n"),
        ("right 02.9\n", "right 02.1\n", "right 02.9\n"),
        ("right 02.9\n", "", "right 02.9\n"),
    ]:
        if remembered:
            state.write_text(remembered)
        part.write_text(found)
        chapters.merge_state(chapter, str(part), str(state), "02.10")
        assert state.read_text() == then and not part.exists()
    old = time.time() - 100
    os.utime(state, (old, old))
    part.write_text("right 02.10\n")
    chapters.merge_state(chapter, str(part), str(state), "02.10")
    assert chapters.changed_since(chapter, str(state))  # 02.9 was not checked again
    chapters.merge_state(chapter, "missing", str(state), "02.10")


@pytest.mark.parametrize("name", ["ddp-Copy1.h", "old.cu"])
def test_only_files_that_are_handed_out_count(clone, name):
    chapter = chapters.choose("02")
    (clone / "02_ddp" / name).symlink_to("/nowhere")
    (clone / "solutions" / "02_ddp" / "without_todo.h").write_text("int x;\n")
    assert [os.path.basename(file) for file in chapter.handed_out()] == ["ddp.cu", "ddp.h"]


def test_a_missing_file_is_open(clone):
    chapter = chapters.choose("02")
    (clone / "02_ddp" / "ddp.h").unlink()
    assert [(found.todo, found.place) for found in chapters.open_todos(chapter)] == [
        ("02.9", "02_ddp/ddp.cu:2"),
        ("02.10", "02_ddp/ddp.h, which is missing"),
    ]
    for verb in (verbs_learn.check, verbs_learn.watch):
        with pytest.raises(errors.Refused, match="^02_ddp/ddp.h is missing: './workshop reset 02' hands it out again"):
            verb(context.Context("cpu", "build"), ["02"])


def test_a_file_that_is_put_back_is_built(clone):
    file, builder = clone / "02_ddp" / "ddp.h", building.Builder("cpu", "build")
    (clone / "build").mkdir()
    builder._renew_dates()
    yesterday = time.time() - 86400
    os.utime(file, (yesterday, yesterday))
    builder._renew_dates()
    assert file.stat().st_mtime == yesterday  # as it was
    file.write_text("another\n")
    os.utime(file, (yesterday, yesterday))
    builder._renew_dates()
    assert file.stat().st_mtime > yesterday + 80000
    builder._renew_dates()  # another build
    file.write_text("from before that build\n")
    before = (clone / "build" / "contents.txt").stat().st_mtime - 0.001
    os.utime(file, (before, before))
    builder._renew_dates()
    assert file.stat().st_mtime > before


def test_hints():
    text = "# head\nTODO 02.1\n1. one\n   more\n2. two\n\nTODO 02.10\n1. ten\n"
    assert chapters.hints(text, "02.1") == [["one", "more"], ["two"]]
    assert chapters.hints(text, "02.10") == [["ten"]] and chapters.hints(text, "02.2") == []


def test_run_makes_the_folder_of_the_records(clone, monkeypatch):
    class Ended(Exception):
        pass

    def execv(path, words):
        raise Ended

    monkeypatch.setattr(context.Context, "build", lambda *_: None)
    monkeypatch.setattr(os, "execv", execv)
    for options, made in [(["--epochs", "3"], False), (["--record", "runs/a.jsonl"], True)]:
        with pytest.raises(Ended):
            verbs_learn.run(context.Context("cpu", "build"), ["02", "--", *options])
        assert os.path.isdir("runs") == made


def test_run_passes_on_what_is_for_the_launcher(clone, monkeypatch):
    started = []
    monkeypatch.setattr(context.Context, "build", lambda *_: None)
    monkeypatch.setattr(os, "execv", lambda _, words: started.append(words))
    words = "02 -n 3 --launcher env --restarts 2 --shrink -- --epochs 3".split()
    verbs_learn.run(context.Context("cpu", "build"), words)
    assert " ".join(started[0]) == "tools/launch --env -n 3 --restarts 2 --shrink -- build/02_ddp/ddp --epochs 3"
    verbs_learn.run(context.Context("cpu", "build"), ["02"])
    assert started[1] == ["tools/launch", "-n", "2", "--", "build/02_ddp/ddp"]


def test_copies_of_what_was_written_are_kept(tmp_path):
    file = str(tmp_path / "a.h")
    for text in ("first", "second", "third"):
        open(verbs_learn.numbered_copy(file), "w").write(text)
    assert [open(file + end).read() for end in (".mine.~1~", ".mine.~2~", ".mine")] == ["first", "second", "third"]


# ---- building ----


def progress(lines, terminal=False):
    output = io.StringIO()
    shown = building.Progress(output, terminal)
    for line in lines:
        shown.line(line)
    shown.end()
    return output.getvalue()


def test_nothing_is_said_of_what_is_built():
    assert progress(["ninja: no work to do."]) == ""


def test_progress_now_and_then():
    lines = [f"[{i}/20] Building CXX object a/b{i}.o" for i in range(1, 21)]
    assert progress(lines).split() == ["Building"] + [f"[{i}/20]" for i in range(2, 21, 2)]
    assert "\r\x1b[K[3/20] b3.o" in progress(lines, terminal=True)


def test_what_a_compiler_says_is_shown_if_it_fails():
    said = progress(
        [
            "[1/2] Building CXX object a.o",
            "a.cpp:1: warning: unused",
            "[2/2] Building CXX object b.o",
            "FAILED: b.o",
            "/usr/bin/c++ -c b.cpp",
            "b.cpp:3: error: what",
            "ninja: build stopped: subcommand failed.",
        ]
    )
    assert "warning" not in said and "/usr/bin/c++" not in said
    assert said.endswith("FAILED: b.o\nb.cpp:3: error: what\nninja: build stopped: subcommand failed.\n")


def test_an_error_of_ninja_is_shown_with_what_came_before():
    assert progress(["CMake Error at CMakeLists.txt:3", "ninja: error: rebuilding 'build.ninja'"]).startswith(
        "CMake Error"
    )


def test_a_build_folder_of_another_clone_is_built_anew(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    cache = tmp_path / "build" / "CMakeCache.txt"
    builder = building.Builder("cpu", "build")
    cache.write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={tmp_path}\n")
    builder._forget_other_source()
    assert cache.exists()
    cache.write_text("CMAKE_HOME_DIRECTORY:INTERNAL=/somewhere/else\n")
    builder._forget_other_source()
    assert not cache.exists() and "build was built from /somewhere/else: building it anew" in capsys.readouterr().err


def test_the_build_folder_of_another_clone_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "theirs").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    (tmp_path / "theirs" / "CMakeCache.txt").write_text("CMAKE_HOME_DIRECTORY:INTERNAL=/somewhere/else\n")
    (tmp_path / "mine" / "build").symlink_to(tmp_path / "theirs")
    for folder in (str(tmp_path / "theirs"), "build"):
        with pytest.raises(errors.Refused, match="is the build folder of /somewhere/else"):
            building.Builder("cpu", folder)._forget_other_source()
    assert (tmp_path / "theirs" / "CMakeCache.txt").exists()


def test_dates_in_the_future_are_set_to_now(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "CMakeLists.txt").write_text("")
    os.utime("CMakeLists.txt", (time.time() + 1800,) * 2)
    building.Builder._settle_clocks()
    assert os.stat("CMakeLists.txt").st_mtime <= time.time() + 1
    assert "CMakeLists.txt is dated in the future" in capsys.readouterr().err


def test_the_compiler_of_the_environment(monkeypatch):
    monkeypatch.setenv("CXX", "sh -c")
    assert machine.compiler() == "sh"
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with pytest.raises(errors.Refused, match="unset it"):
        machine.install_missing("cpu", "", yes=True)
    monkeypatch.delenv("CXX")
    assert machine.compiler() == "c++"


def test_packages_are_installed_without_the_users_python(monkeypatch):
    seen = []

    def ran(command, env=None, **_):
        seen.append(env)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    monkeypatch.setattr(machine.subprocess, "run", ran)
    assert machine.install(["x"])
    assert "PYTHONHOME" not in seen[0] and "LD_LIBRARY_PATH" not in seen[0] and "PATH" in seen[0]


def test_python_of_the_pages(tmp_path, monkeypatch):
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\n[ "$1" = -E ]\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + ":" + os.environ["PATH"])
    assert verbs_measure.plotly_here() == ["python3", "-E"]  # it is there without what the environment adds


def test_a_job_that_slurm_does_not_know(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(machine, "said", lambda *_: "")
    with pytest.raises(errors.Refused, match="unset SLURM_JOB_ID"):
        verbs_measure.SlurmJob()


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_closed_descriptors(closed):
    done = subprocess.run(["bash", "-c", f"'{WORKSHOP}' list {closed}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")



@pytest.mark.parametrize("words", ["list", "help"])
def test_a_full_disk(words):
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run([WORKSHOP, words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and done.stderr == "workshop: [Errno 28] No space left on device\n"


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.Refused, match="WORKSHOP_BUILD"):
        building.Lock(str(tmp_path / "file" / "build"), "build.lock", "").__enter__()


@pytest.mark.parametrize("path,odd", [("/home/a [2026]/w", "'['"), ("/a;b", "';'"), ("/a$b", "'$'"), ("/a*", "'*'"), ("/a#1", "'#'")])
def test_a_path_that_cmake_does_not_take_is_refused(path, odd):
    with pytest.raises(errors.Refused, match="move this clone") as refused:
        building.Builder.require_plain_path(path)
    assert odd in str(refused.value)


@pytest.mark.parametrize("path", ["/home/Zoë Ångström/a b/w", "/a(b)/c'd/e,f/ü+~%=!"])
def test_other_paths_are_taken(path):
    building.Builder.require_plain_path(path)


def test_one_build_at_a_time(tmp_path, capsys):
    with open(tmp_path / "build.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        child = os.fork()
        if child == 0:
            time.sleep(0.5)
            os._exit(0)  # its copy of the lock goes with it
        file.close()
        with building.Lock(str(tmp_path), "build.lock", "Waiting for another build to end"):
            os.waitpid(child, 0)
    assert "Waiting for another build to end" in capsys.readouterr().err


def test_prebuilt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    builder = building.Builder("cpu", "build/cpu")
    monkeypatch.delenv("WORKSHOP_PREBUILT", raising=False)
    assert builder.prebuilt() == ""
    monkeypatch.setenv("WORKSHOP_PREBUILT", "/teacher")
    assert builder.prebuilt() == "/teacher/build/cpu"
    monkeypatch.setenv("WORKSHOP_PREBUILT", str(tmp_path))
    assert builder.prebuilt() == ""  # the clone that others take from


def test_a_participant_configures_without_tests(tmp_path, monkeypatch):
    (tmp_path / "CMakeLists.txt").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORKSHOP_PREBUILT", raising=False)
    builder = building.Builder("cpu", "build/cpu")
    configured = []

    def configure(command):
        configured.append(command[-1] if command[-1] != "--fresh" else command[-2])
        (tmp_path / "build/cpu/build.ninja").touch()
        (tmp_path / "build/cpu/CMakeCache.txt").write_text(configured[-1].replace("=", ":BOOL="))

    monkeypatch.setattr(building.machine, "quietly", configure)
    monkeypatch.setattr(builder, "install_missing", lambda: None)
    monkeypatch.setattr(builder, "_ninja", lambda targets: None)
    for tests in (False, False, True, True, False):
        builder.build("programs", tests=tests)
    assert configured == ["WORKSHOP_TESTS=OFF", "WORKSHOP_TESTS=ON"]


def test_cores_are_not_those_of_openmp(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    assert machine.cores() == len(os.sched_getaffinity(0))


def test_scratch_folders_differ(tmp_path):
    with (
        verbs_measure.Scratch(str(tmp_path), "report") as first,
        verbs_measure.Scratch(str(tmp_path), "report") as second,
    ):
        assert first != second and os.path.isdir(second)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("answer, agreed", [("\n", True), ("y\n", True), ("n\n", False), ("\x04", False)])
def test_a_question_on_the_terminal(answer, agreed):
    child, terminal = pty.fork()
    if child == 0:
        try:
            os._exit(42 if machine.confirm("Really?") else 43)
        finally:
            os._exit(44)
    shown = b""
    while b"[Y/n] " not in shown:
        shown += os.read(terminal, 1000)
    os.write(terminal, answer.encode())
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(terminal)
    assert status == (42 if agreed else 43)


def test_apptainers_recipe_installs_what_setup_would(monkeypatch):
    """It cannot call setup, because no clone is there when Apptainer builds. tools/Containerfile does."""
    monkeypatch.setattr(machine, "has", lambda *_: False)
    monkeypatch.setattr(machine, "has_cmake", lambda: False)
    monkeypatch.setattr(machine, "has_pytest", lambda: False)
    needed = {package for line in machine.missing("cpu") for package in line.packages} | set(machine.wanted())
    of_cmake = chapters.read(os.path.join(ROOT, "tools", "cmake", "Dependencies.cmake"))
    for packages in re.findall(r'^ *_needs\("[^"]*" "[^"]*" "([^"]*)"\)', of_cmake, re.M):
        needed |= set(packages.split())
    assert len(needed) > 12
    recipe = chapters.read(os.path.join(ROOT, "tools", "workshop.def")).replace("\\\n", " ")
    installed = set(re.search(r"apt-get install -y -q --no-install-recommends (.*)", recipe)[1].split())
    assert installed - needed == {"ca-certificates", "python3"} and needed <= installed


def test_setup_of_packages_builds_nothing(monkeypatch, capsys):
    class Clone:
        backend, folder = "cpu", "build/cpu"

        class builder:
            installed = 0

            @classmethod
            def install_missing(cls):
                cls.installed += 1

        def build(self, *targets):
            raise AssertionError(targets)

    assert verbs_setup.setup(Clone(), ["-y", "--packages"]) == 0
    assert Clone.builder.installed == 1 and "nothing was built" in capsys.readouterr().out
