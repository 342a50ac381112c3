# SPDX-License-Identifier: Apache-2.0
"""What ./workshop golf accepts, says and keeps. Its scores are tested by scores_of_golf.py."""

import os
import re
import subprocess

import pytest
from conftest import ROOT

from workshop import context, errors, golf, progress

PAGES = {task.name: os.path.join(ROOT, "golf", task.name, "README.md") for task in golf.TASKS}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


@pytest.mark.parametrize("task", golf.TASKS, ids=lambda task: task.name)
def test_pages_say_what_the_judge_does(task):
    page = read(PAGES[task.name])
    for score in (task.par, task.best):
        assert f"{score:,.3f} {task.unit}" in page
    sections = re.findall(r"^## (.*)$", page, re.M)
    assert sections == ["The problem", "The machine", "Rules", "Score", "Ideas"]
    assert " ".join(re.sub("[`\n]", " ", page).split()).count(getattr(task, "machine", "")) >= 1
    assert f"]({task.name}/README.md)" in read(os.path.join(ROOT, "golf", "README.md"))
    assert os.path.isfile(os.path.join(ROOT, task.path("mine")))
    assert task.best < task.par


@pytest.mark.parametrize(
    "words,why",
    [
        (["--a", "1"], None),
        (["--flag", "--a", "12"], None),
        ([], None),
        (["--a"], "no value"),
        (["--a", "x"], "no value"),
        (["--a", "1\n2"], "no value"),
        (["--a=1"], "not for you to choose"),
        (["--b", "1"], "not for you to choose"),
        (["1"], "not for you to choose"),
        (["--flag", "--flag"], "twice"),
    ],
)
def test_words_of_an_answer(words, why):
    allowed = {"--a": golf.INTEGER, "--flag": ""}
    if why is None:
        golf.check_words(words, allowed)
    else:
        with pytest.raises(golf.Wrong, match=why):
            golf.check_words(words, allowed)


def test_comments_and_quotes(tmp_path):
    answer = tmp_path / "options.txt"
    answer.write_text("--a 1  # why\n# all of it\n--b 'two words'\n")
    assert golf.words_of(str(answer)) == ["--a", "1", "--b", "two words"]
    answer.write_text("--a 'open")
    with pytest.raises(errors.Refused, match="options.txt"):
        golf.words_of(str(answer))
    answer.write_bytes(b"--a \xff")
    with pytest.raises(errors.Refused, match="options.txt is not text"):
        golf.words_of(str(answer))
    answer.write_text("x" * (golf.LONGEST + 1))
    with pytest.raises(errors.Refused, match="an answer has at most 65,536"):
        golf.words_of(str(answer))
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)):
        odd = tmp_path / f"odd{len(os.listdir(tmp_path))}"
        make(odd)
        with pytest.raises(errors.Refused, match="is no regular file"):
            golf.words_of(str(odd))
    with pytest.raises(errors.Refused, match="is missing"):
        golf.words_of(str(tmp_path / "none"))


def test_what_several_ranks_say_is_there_once():
    said = "rank 0: WRONG, 3 of 4\nrank 1: WRONG, 3 of 4\nrank 2: right\norder: a (rank 1)\norder: a (rank 0)\n"
    assert golf.said_by_ranks(said).split("\n") == [
        "rank 0: WRONG, 3 of 4 (and 1 more like this)",
        "rank 2: right",
        "order: a (rank 1) (and 1 more like this)",
    ]
    assert len(golf.said_by_ranks("".join(f"line {i}\n" for i in range(99))).split("\n")) == 31


def run_of(loss=1.0, parameter=(1.0, 2.0)):
    return [
        {"type": "step", "step": 1, "replica": 0, "loss": loss, "global_loss": loss},
        {"type": "parameter", "name": "w", "l2": 3.0, "sum": 4.0, "floats": list(parameter)},
        {"type": "end"},
    ]


def test_same_results():
    expected = golf.numbers(run_of())
    golf.require_same(golf.numbers(run_of(1 + 1e-6)), expected)
    for other in (run_of(1.1), run_of(float("nan")), run_of("nan"), run_of(parameter=("unwritten", 2.0)), run_of(parameter=(1.0, 2.1)), run_of(parameter=(1.0,)), run_of()[1:]):
        with pytest.raises(golf.Wrong):
            golf.require_same(golf.numbers(other), expected)
    with pytest.raises(golf.Wrong):
        golf.require_same({}, {})


@pytest.mark.parametrize(
    "score,said",
    [
        (12.0, "Par takes 16.7 % less."),
        (10.0, "Par. The best known answer takes 20.0 % less."),
        (9.0, "Under par. The best known answer takes 11.1 % less."),
        (8.0, "As good as the best known answer."),
        (8.0002, "As good as the best known answer."),
        (7.0, "Nobody has been better: please tell the authors of the workshop."),
    ],
)
def test_what_a_score_means(score, said):
    task = golf.Options("a", "", 10.0, 8.0)
    assert golf.told(task, golf.Result(score, 1234567, 89)).endswith(said)
    assert "a rank sends 1,234,567 bytes" in golf.told(task, golf.Result(score, 1234567, 89))


def make_clone(folder, scores):
    (folder / "00_collectives").mkdir(parents=True)
    (folder / "workshop").write_text("")
    here = context.Context("cpu", str(folder / "build" / "cpu"))
    for name, score in scores:
        task = next(task for task in golf.TASKS if task.name == name)
        golf.keep(here, task, golf.Result(score))
    return str(folder)


def test_the_best_score_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    clone = make_clone(tmp_path / "a", [("buckets", 40.0), ("buckets", 37.0), ("buckets", 39.0), ("mesh", 20.0)])
    assert golf.scores_of(clone) == {"buckets": 37.0, "mesh": 20.0}
    here = context.Context("cpu", os.path.join(clone, "build", "cpu"))
    buckets = next(task for task in golf.TASKS if task.name == "buckets")
    golf.keep(here, buckets, golf.Result(37.0, sent=5, memory=7))  # no better than before, which sent nothing
    assert '"memory": 0' in read(golf.kept(here.folder, "buckets"))
    golf.keep(here, buckets, golf.Result(36.0, sent=5, memory=7))
    golf.keep(here, buckets, golf.Result(36.0, sent=5, memory=6))
    assert '"memory": 6' in read(golf.kept(here.folder, "buckets"))
    golf.keep(here, buckets, golf.Result(36.5))
    kept = os.path.join(clone, "build", "cpu", "checks", "golf", "buckets-options.txt")
    assert read(kept) == read(os.path.join(ROOT, "golf", "buckets", "options.txt"))
    with open(golf.kept(os.path.join(clone, "build", "cpu"), "mesh"), "w", encoding="utf-8") as file:
        file.write("damaged")
    assert golf.scores_of(clone) == {"buckets": 36.0}


def test_board(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    clones = [
        make_clone(tmp_path / "a", [("buckets", 40.0), ("mesh", 20.0)]),
        make_clone(tmp_path / "b", [("buckets", 37.0)]),
        make_clone(tmp_path / "c <&>", []),
    ]
    page = tmp_path / "page.html"
    assert progress.main(["--html", str(page), *clones]) == 0
    board = capsys.readouterr().out
    assert board.index("b  ") < board.index("a  ", board.index("buckets: par"))
    assert "37.000 ms*" in board and "40.000 ms " in board and "20.000 s*" in board and "c <&>" not in board
    assert "<td class=right>37.000 ms*</td>" in read(page)


def workshop(*words):
    return subprocess.run(
        [os.path.join(ROOT, "workshop"), *words], stdin=subprocess.DEVNULL, text=True, capture_output=True, check=False
    )


@pytest.mark.parametrize(
    "words,why",
    [
        (["golf", "chess"], "no task 'chess'; there are schedule "),
        (["golf", "mesh", "--solution", "worst"], "--solution is par or best, not 'worst'"),
        (["golf", "mesh", "buckets"], "golf takes a task, not 'buckets' too"),
        (["golf", "--backend", "cuda"], "golf needs a simulated machine: add --backend cpu"),
    ],
)
def test_refused(words, why):
    done = workshop(*words)
    assert done.returncode == 2 and done.stderr.startswith("workshop: " + why) and done.stderr.count("\n") == 1


def test_list():
    done = workshop("golf", "--backend", "cpu")
    assert done.returncode == 0
    assert all(re.search(rf"^{task.name} .*{task.par:.3f} {task.unit}", done.stdout, re.M) for task in golf.TASKS)
