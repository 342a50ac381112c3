# SPDX-License-Identifier: Apache-2.0
"""What checker/mutants/soak draws, judges and keeps. Programs that say something stand for the tools, the compiler and
the checks."""
import os
import subprocess

import pytest
from conftest import ROOT
from workshop import mistakes, soak


def mutants(*names):
    return [soak.Mutant(name, "a;", "b;") for name in names]


def result(name, what="caught", named=None, how="./workshop run 02 ddp -n 2 -- --max-steps 3"):
    return soak.Result(soak.Mutant(name, "a;", "b;"), what, name.partition("-")[0] if named is None else named, how)


# ---- the command line ----


def test_parse(tmp_path):
    arguments = soak.parse(["--todos", "02.1,02.3", "--sample", "0", "--keep", "4", str(tmp_path), "02_ddp"])
    assert (arguments.todos, arguments.sample, arguments.seed, arguments.jobs, arguments.keep, arguments.chapter) == (
        ["02.1", "02.3"], 0, "1", 1, 4, "02_ddp")
    assert soak.parse(["b", "02_ddp"]).sample == 8 and soak.parse(["b", "02_ddp"]).build == os.path.realpath("b")


@pytest.mark.parametrize("words,message", [
    (["--what", "1", "b", "c"], "unknown option '--what'"), (["--jobs"], "--jobs lacks its value"),
    (["--jobs", "two", "b", "c"], "--jobs expects a number"), (["b"], "expected BUILD CHAPTER")])
def test_a_wrong_command_line_is_refused(words, message):
    done = subprocess.run([os.path.join(ROOT, "checker", "mutants", "soak"), *words], capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 2 and done.stderr.startswith(f"soak: {message}") and done.stderr.count("\n") == 1


# ---- drawing ----


def test_the_first_of_each_todo():
    all_of_them = mutants("02.1-a", "02.10-b", "02.1-c", "02.1-d", "02.10-e")
    assert [mutant.name for mutant in soak.first(all_of_them, 2)] == ["02.1-a", "02.10-b", "02.1-c", "02.10-e"]
    assert soak.first(all_of_them, 0) == all_of_them


def test_a_seed_always_draws_the_same():
    all_of_them = mutants(*[f"02.1-{k}" for k in range(100)])
    drawn = [mutant.name for mutant in soak.draw(all_of_them, [], 2, "1")]
    assert drawn == [mutant.name for mutant in soak.draw(all_of_them, [], 2, "1")]
    assert len(set(drawn)) == 8 and drawn != [mutant.name for mutant in soak.draw(all_of_them, [], 2, "2")]
    assert {mutant.name for mutant in soak.shuffled(all_of_them, "1")} == {mutant.name for mutant in all_of_them}


def test_only_of_some_todos():
    drawn = soak.draw(mutants("02.1-a", "02.10-b", "02.3-c"), ["02.1", "02.3"], 0, "1")
    assert sorted(mutant.name for mutant in drawn) == ["02.1-a", "02.3-c"]


# ---- what does not compile ----


def test_places_of_errors():
    output = """mutants/02_ddp/ddp.h:12:5: error: no such name
mutants/02_ddp/ddp.h:14:5: warning: unused
In file included from mutants/02_ddp/ddp.cu:3:
mutants/02_ddp/ddp.h:30:1:   required from here
/usr/include/c++/vector:3:1: error: static assertion
"""
    assert soak.places_of_errors(output, "02_ddp") == [("mutants/02_ddp/ddp.h", 12), ("mutants/02_ddp/ddp.h", 30)]


def test_the_filling_of_a_line():
    source = 'x\nif (workshop::filling("02.1-a")) {\n  one\n} else if (workshop::filling("02.1-b")) {\n  two\n}\n'
    assert [soak.filling_at(source, line) for line in range(1, 6)] == ["", "02.1-a", "02.1-a", "02.1-b", "02.1-b"]


# ---- what came of it ----


def test_what_is_listed_as_equivalent():
    listed = soak.listed_names("# why\n02.1-a the same: always\n\n02.1-b so: too\n")
    assert listed == {"02.1-a", "02.1-b"}
    results = [result("02.1-a", "survived"), result("02.1-b"), result("02.1-c", "survived"), result("02.1-d")]
    soak.mark_listed(results, listed)
    assert [one.what for one in results] == ["equivalent", "not equivalent", "survived", "caught"]
    assert [one.is_failure for one in results] == [False, True, True, False]


def test_summary():
    results = [result("02.1-a"), result("02.1-b", named="02.2"), result("02.1-c", named=""),
               result("02.1-d", "equivalent"), result("02.1-e", "survived"), result("02.1-f", "not equivalent")]
    assert soak.summary("02_ddp", 99, 20, 10, results) == (
        "02_ddp: 99 mutants, 20 drawn, 10 of them compile; of 6 run 3 caught, 1 with the right TODO named; "
        "1 equivalent, 2 survived\n")


def test_kept():
    results = [result("02.10-a"), result("02.1-a"), result("02.1-b"), result("02.3-a", named="02.2"),
               result("02.4-a", how="WORKSHOP_SLOW=1 ./workshop run"), result("02.2-a"), result("02.9-a")]
    assert [one.mutant.name for one in soak.kept(results, 9)] == ["02.1-a", "02.2-a", "02.9-a", "02.10-a"]
    assert [one.mutant.name for one in soak.kept(results, 2)] == ["02.1-a", "02.9-a"]
    assert not soak.kept([], 4)


def test_the_list_of_those_kept_can_be_read():
    results = [result("02.1-a"), result("02.2-a", how="./workshop run 02 ddp_overlap -n 4"),
               result("02.3-a", how="WORKSHOP_SIMULATE=compute=1M ./workshop run 02 ddp -n 2 -- --x")]
    text = soak.kept_list(results, lambda mutant: f"  {mutant.after}\n")
    assert text.split("\n", 1)[1] == ("program ddp\nrun 2 -- --max-steps 3\n02.1-a\n  b;\n"
                                      "program ddp_overlap\nrun 4\n02.2-a\n  b;\n"
                                      "program ddp\nrun 2 on compute=1M -- --x\n02.3-a\n  b;\n")
    chapter = mistakes.Chapter("02_x")
    checks = "program ddp\ncheck 2 -- --max-steps 3\ncheck 2 on compute=1M -- --x\nprogram ddp_overlap\ncheck 4\n"
    mistakes.Parser(chapter, "list.txt").parse(checks + text)
    assert [use.name for use in chapter.uses] == ["02.1-a", "02.2-a", "02.3-a"]


# ---- all of it ----

MAKE_MUTANTS = """#!/bin/sh
for name in 02.1-caught 02.1-survives 02.1-broken 02.1-equal 02.2-misnamed 02.2-gone; do
  printf '%s\\tbefore\\tafter\\n' $name
  echo '  after;' >"$3/$name.txt"
done
"""
# Writes a source with a line for each filling, of two lines.
MAKE_EXERCISES = """#!/bin/bash
fillings=()
while [[ $1 == --filling ]]; do fillings+=("$2"); shift 2; done
mkdir -p "$2/$3"
for file in "${fillings[@]}"; do name=${file##*/}; printf 'if (workshop::filling("%s")) {\\nx\\n' "${name%.txt}"; done \
  >"$2/$3/a.cu"
"""
CMAKE = """#!/bin/sh
cd "$2"
line=$(grep -n broken mutants/02_x/a.cu | cut -d: -f1)
[ ! "$line" ] || { echo "mutants/02_x/a.cu:$((line + 1)):1: error: broken"; exit 1; }
"""
# The check: its verdict depends on the mutant. One names another TODO at first, as on a busy machine.
CHECK = """#!/bin/bash
echo "$WORKSHOP_FILLING $(ulimit -v) $*" >>"$(dirname "$0")/checked"
verdict() {
  echo "TODO $1 (x) is wrong" >verdict.txt
  printf 'wrong %s\\nblame certain %s\\n' $1 $1 >todos.txt
  exit 1
}
case $WORKSHOP_FILLING in
  *caught | *gone) verdict "${WORKSHOP_FILLING%-*}" ;;
  *misnamed) [[ $(grep -c "^$WORKSHOP_FILLING" "$(dirname "$0")/checked") == 1 ]] && verdict 02.1; verdict 02.2 ;;
esac
echo "right ${WORKSHOP_FILLING%-*}" >todos.txt
"""


@pytest.fixture
def build(tmp_path, monkeypatch):
    folder = tmp_path / "build"
    for name, text in (("tools/make_mutants", MAKE_MUTANTS), ("tools/make_exercises", MAKE_EXERCISES),
                       ("bin/cmake", CMAKE), ("check", CHECK)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "a.cu").write_text("  // TODO 02.1: x\n  // TODO 02.2: x\n")
    (folder / "checks").mkdir()
    (folder / "checks" / "02_x").write_text("\t".join([
        "one", "a", "2", f"{folder}/check", "--sources", "/mine", "--todos", f"{folder}/a.cu", "--mine", "/mine/02_x/a",
        "--", "--max-steps", "3"]) + "\n")
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(mistakes, "MUTANTS", str(tmp_path))
    monkeypatch.setattr(soak, "limit_address_space", lambda: None)  # it would be that of the other tests
    (tmp_path / "equivalent.txt").write_text("02.1-equal the same: x\n02.2-gone gone: x\n")
    return folder


def test_a_soak(build, tmp_path, capfd):
    assert soak.Soak(soak.parse(["--jobs", "2", "--keep", "4", str(build), "02_x"])).run() == 1
    said = capfd.readouterr().out
    assert said.startswith("02_x: 6 mutants, 6 drawn, 5 of them compile; of 5 run 2 caught, "
                           "2 with the right TODO named; 1 equivalent, 2 survived\n  ")
    assert "  02.1-survives survived\n    - before\n    + after\n" in said
    assert "  02.2-gone not equivalent\n" in said and said.count("\n    + ") == 2
    lines = [line.split("\t") for line in (build / "mutants" / "02_x.results").read_text().splitlines()]
    how = "./workshop run 02 a -n 2 -- --max-steps 3"
    assert sorted(line[:4] for line in lines) == [
        ["02.1-caught", "caught", "02.1", how], ["02.1-equal", "equivalent", "", ""],
        ["02.1-survives", "survived", "", ""], ["02.2-gone", "not equivalent", "02.2", how],
        ["02.2-misnamed", "caught", "02.2", how]]  # the second time
    assert all(line[4:] == ["before", "after"] for line in lines)
    assert f"--sources {build}/mutants " in (build / "checked").read_text()
    assert f"--mine {build}/mutants/02_x/a --" in (build / "checked").read_text()
    assert (tmp_path / "02_x.txt").read_text() == (
        "# Mutants that the checks have caught, of many: checker/mutants/soak --keep writes these.\n"
        "program a\nrun 2 -- --max-steps 3\n02.1-caught\n  after;\n"
        "program a\nrun 2 -- --max-steps 3\n02.2-misnamed\n  after;\n")
    assert not list((build / "mutants" / "run").iterdir())


def test_a_soak_in_which_all_are_caught(build, capfd):
    (build / "tools" / "make_mutants").write_text(MAKE_MUTANTS.replace("02.1-survives 02.1-broken 02.1-equal", "")
                                                  .replace("02.2-gone", ""))
    assert soak.Soak(soak.parse([str(build), "02_x"])).run() == 0
    assert capfd.readouterr().out.count("\n") == 1


def test_an_error_outside_of_the_mutants_prevents_it(build, capfd):
    (build / "bin" / "cmake").write_text("#!/bin/sh\necho 'ddp.cu:1:1: error: no'; exit 1\n")
    assert soak.main([str(build), "02_x"]) == 2
    assert capfd.readouterr().err == "ddp.cu:1:1: error: no\nsoak: 02_x does not compile\n"


def test_no_mutants_of_these_todos(build, capfd):
    assert soak.main(["--todos", "02.9", str(build), "02_x"]) == 2
    assert "no mutants of these TODOs" in capfd.readouterr().err


def test_memory_is_limited(build):
    done = subprocess.run([os.path.join(ROOT, "checker", "mutants", "soak"), "--todos", "02.1", str(build), "02_x"],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1  # 02.1-survives
    assert {line.split()[1] for line in (build / "checked").read_text().splitlines()} == {"8000000"}
