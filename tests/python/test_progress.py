# SPDX-License-Identifier: Apache-2.0
"""What ./workshop progress shows of thirty made-up participants, each of whom has come as far as their number says."""

import os
import re
import shutil
import subprocess
import time

import pytest
from conftest import ROOT

HOUR = 3600


def progress(*words, **options):
    return subprocess.run(
        [os.path.join(ROOT, "workshop"), "progress", *words],
        stdin=subprocess.DEVNULL,
        text=True,
        stdout=subprocess.PIPE,
        timeout=120,
        check=False,
        **{"stderr": subprocess.PIPE, **options},
    )


def dated(path, ago):
    """Sets a file's date to so many seconds before now."""
    then = time.time() - ago
    os.utime(path, (then, then))


def states_of(number):
    """What the last check found: the last TODO that is filled in is wrong, the one before has not been reached."""
    words = [
        (k, "right" if k < number - 1 else "unreached" if k < number else "wrong" if k == number else "open")
        for k in range(1, max(number, 15) + 1)
    ]
    return "".join(f"{word} 02.{k}\n" for k, word in words)


def make_clone(clone, number):
    """A participant's: the first TODOs of chapter 02 are filled in, and were checked an hour later."""
    for chapter in ("00_collectives", "02_ddp"):
        shutil.copytree(os.path.join(ROOT, chapter), clone / chapter)
    shutil.copy(os.path.join(ROOT, "workshop"), clone)
    for source in [file for file in (clone / "02_ddp").iterdir() if file.suffix in (".cu", ".h")]:
        text = re.sub(
            r'^ *todo\("02\.(\d+)"\);',
            lambda found: f"  fill({found[1]});" if int(found[1]) <= number else found[0],
            source.read_text(encoding="utf-8"),
            flags=re.M,
        )
        source.write_text(text, encoding="utf-8")
    for file in (clone / "02_ddp").rglob("*"):
        dated(file, HOUR)
    checks = clone / "build" / "cpu" / "checks"
    checks.mkdir(parents=True)
    (checks / "02_ddp.state").write_text(states_of(number))


@pytest.fixture(scope="module", name="shown")
def show_course(tmp_path_factory):
    """What progress says of them all: the process that has ended, and the page."""
    folder = tmp_path_factory.mktemp("course")
    people = folder / "people"
    for number in range(1, 31):
        make_clone(people / f"p{number:02}", number)
    dated(people / "p05/02_ddp/ddp.h", -1)  # changed since
    state = people / "p06/build/cpu/checks/02_ddp.state"
    state.write_text("right 02.1\n")  # a check that knew of one TODO alone,
    dated(state, 2 * HOUR)
    newer = people / "p06/build/cuda/checks/02_ddp.state"
    newer.parent.mkdir(parents=True)
    newer.write_text("right 02.2\n")  # and one after it
    shutil.rmtree(people / "p07/02_ddp")  # lost
    (people / "empty").mkdir()
    names = sorted(f"people/{path.name}" for path in people.iterdir())
    done = progress("--html", "page.html", *names, cwd=folder)
    page = (folder / "page.html").read_text(encoding="utf-8")
    shutil.rmtree(people)
    return done, page


def rows(shown):
    return re.findall(r"^  people/(p[0-9]{2})  +(.*)$", shown[0].stdout, re.M)


def test_a_folder_that_is_no_clone_is_named(shown):
    assert shown[0].returncode == 2
    assert shown[0].stderr == (
        "progress: people/empty is no clone of the workshop: it has no 'workshop' or no 00_collectives\n"
    )


def test_chapters_that_no_one_has_begun_are_left_out(shown):
    assert len([line for line in shown[0].stdout.splitlines() if "TODOs" in line]) == 1


def test_everyone_has_a_row(shown):
    assert [name for name, _ in rows(shown)] == [f"p{number:02}" for number in range(1, 31)]


@pytest.mark.parametrize(
    "name,row",
    [
        ("p04", "++-x. ..... .....  2 right, 1 wrong"),
        pytest.param("p05", "????? ..... .....  0 right", id="changed since"),
        pytest.param("p06", "?+??? ?.... .....  1 right", id="the newest check"),
        pytest.param("p07", "..... ..... .....  0 right", id="a chapter that is lost"),
        pytest.param("p30", "+++++ +++++ +++++  15 right", id="all filled in"),
    ],
)
def test_a_row(shown, name, row):
    assert dict(rows(shown))[name] == row


def test_what_is_wrong_is_counted(shown):
    assert re.findall(r"02\.9 \([0-9]*\)", shown[0].stdout) == ["02.9 (1)"]


def test_the_page_has_the_same_cells(shown):
    wrong = sum(row.count("x") for _, row in rows(shown))
    assert wrong and shown[1].count('<td class="wrong"') == wrong
    row = re.search("<th>people/p04</th>.*", shown[1])[0]
    assert re.findall('title="(02.4: [a-z]*)"', row) == ["02.4: wrong"]


@pytest.fixture(scope="module", name="clone")
def make_one(tmp_path_factory):
    clone = tmp_path_factory.mktemp("one") / "p01"
    make_clone(clone, 1)
    return str(clone)


def test_success(clone):
    assert progress(clone).returncode == 0


def test_folders_are_expected():
    done = progress(stderr=subprocess.STDOUT)
    assert (done.returncode, done.stdout) == (2, "progress: expected folders, each the clone of a participant\n")


def test_a_page_that_cannot_be_written_is_named(clone, tmp_path):
    done = progress("--html", "nowhere/page.html", clone, cwd=tmp_path, stderr=subprocess.STDOUT)
    assert (done.returncode, done.stdout) == (2, "progress: --html is 'nowhere/page.html'; expected a file to write\n")
