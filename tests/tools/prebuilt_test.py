# SPDX-License-Identifier: Apache-2.0
"""A participant's clone with WORKSHOP_PREBUILT builds nothing but its own programs, judges them with what is prebuilt,
and does not change that; a clone of another version is refused.

  prebuilt_test.py BUILD     a build folder of the cpu backend in which everything is built: one program is compiled
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.path.realpath(sys.argv.pop(1))
SECONDS = 240  # for one command; CTest ends the test a minute later


class Done:
    """How a command ended, and what it printed."""

    def __init__(self, status: int, out: str):
        self.status, self.out = status, out
        self.in_one_line = " ".join(out.split())  # CMake breaks lines


def run(*command: str, cwd: str, **variables: str) -> Done:
    """Runs a command to its end. If it takes too long, it is ended with all that it has started."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("WORKSHOP_BUILD", "WORKSHOP_FILLING")
    }
    with subprocess.Popen(
        command,
        cwd=cwd,
        env={**environment, "WORKSHOP_BACKEND": "cpu", **variables},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            out = process.communicate(timeout=SECONDS)[0]
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return Done(process.returncode, out)


def setUpModule() -> None:
    done = run("ninja", "-C", BUILD, "prebuilt", cwd=ROOT)
    assert done.status == 0, done.out


class Clone:
    """A participant's: the files, without what is built, and with chapter 00 filled in. The teacher's clone is this
    repository by another name: its build folder has the name that ./workshop looks for."""

    def __init__(self, scratch: str):
        self.scratch, self.folder = scratch, os.path.join(scratch, "mine")
        self.teacher = os.path.join(scratch, "teacher")
        os.makedirs(os.path.join(self.teacher, "build"))
        os.symlink(BUILD, os.path.join(self.teacher, "build", "cpu"))
        shutil.copytree(ROOT, self.folder, symlinks=True, ignore=self._ignored)
        for file in glob.glob(os.path.join(ROOT, "solutions", "00_collectives", "*")):
            if file.endswith((".cu", ".h")):
                shutil.copy2(file, self.path("00_collectives"))

    @staticmethod
    def _ignored(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if folder == ROOT and (name.startswith("build") or name in ("runs", ".git"))]

    def path(self, *names: str) -> str:
        return os.path.join(self.folder, *names)

    def workshop(self, *words: str, prebuilt: str = "") -> Done:
        return run("./workshop", *words, cwd=self.folder, WORKSHOP_PREBUILT=prebuilt or self.teacher)

    def run_solution(self) -> Done:
        return self.workshop("run", "00", "ring_allreduce", "--solution", "-n", "2")

    def built(self) -> list[str]:
        """What is in its build folder, without what links lead to."""
        build = self.path("build", "cpu")
        files = [os.path.join(folder, name) for folder, _, names in os.walk(build) for name in names]
        return [os.path.relpath(file, build) for file in files if not os.path.islink(file)]

    def programs(self) -> list[str]:
        """The programs of chapters that it has built."""
        return [
            file
            for file in self.built()
            if re.search(r"(^|/)[0-9]{2}_[^/]*/", file) and os.stat(self.path("build", "cpu", file)).st_mode & 0o100
        ]


def changed_since(file: str) -> list[str]:
    """The files of what is prebuilt that are newer than this one."""
    before = os.stat(file).st_mtime_ns
    files = [
        os.path.join(folder, name)
        for top in ("common", "solutions", "tools")
        for folder, _, names in os.walk(os.path.join(BUILD, top))
        for name in names
    ]
    assert files, f"there is nothing in {BUILD}"
    return [path for path in files if not os.path.islink(path) and os.stat(path).st_mtime_ns > before]


class Prebuilt(unittest.TestCase):
    maxDiff = None

    def setUp(self) -> None:
        scratch = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, scratch, ignore_errors=True)
        self.clone = Clone(scratch)

    def test_a_participants_clone(self) -> None:
        before = os.path.join(self.clone.scratch, "before")
        open(before, "w").close()
        checked = self.clone.workshop("check", "00", "collectives")
        with self.subTest("check"):
            self.assertEqual(checked.status, 0, checked.out)
            self.assertRegex(checked.out, r"(?m)^[0-9]+ TODOs right$")
            self.assertRegex(checked.out, f"(?m)with what is prebuilt in {re.escape(BUILD)}$")
        with self.subTest("it builds its own program alone"):
            self.assertEqual(self.clone.programs(), ["00_collectives/collectives"])
            self.assertEqual([file for file in self.clone.built() if file.endswith(".a")], [])
        with self.subTest("what is prebuilt stays as it is"):
            self.assertEqual(changed_since(before), [])
        with self.subTest("nothing else would be compiled for its other programs"):
            commands = run("ninja", "-C", "build/cpu", "-t", "commands", "programs", cwd=self.clone.folder)
            targets = set(re.findall(r" -o (?:\S*/)?CMakeFiles/([^/\s]*)\.dir/", commands.out))
            self.assertIn("02_ddp_ddp", targets, commands.out)
            self.assertEqual([target for target in targets if "solution_" in target], [])
        with self.subTest("run --solution"):
            done = self.clone.run_solution()
            self.assertEqual(done.status, 0, done.out)
        with self.subTest("test"):
            done = self.clone.workshop("test")
            self.assertEqual(
                (done.status, done.out),
                (2, "workshop: the tests are those of the clone that has built what WORKSHOP_PREBUILT names\n"),
            )

    def test_leftovers_and_a_clone_that_was_moved(self) -> None:
        # What editors and notebooks leave behind is no other version.
        for name in (
            "solutions/02_ddp/.ddp.cu.swp",
            "tools/cmake/Cuda.cmake~",
            "common/base/check.h.orig",
            "common/.ipynb_checkpoints/x.h",
        ):
            os.makedirs(os.path.dirname(self.clone.path(name)), exist_ok=True)
            open(self.clone.path(name), "w").close()
        os.symlink("me@host.123:456", self.clone.path("solutions/02_ddp/.#ddp.cu"))
        done = self.clone.run_solution()
        self.assertEqual(done.status, 0, done.out)
        # A clone that was copied or moved builds its own files.
        was = self.clone.folder
        self.clone.folder = os.path.join(self.clone.scratch, "moved")
        os.rename(was, self.clone.folder)
        done = self.clone.run_solution()
        self.assertEqual(done.status, 0, done.out)
        self.assertRegex(done.out, f"(?m)^build/cpu was built from {re.escape(was)}: building it anew")

    def test_another_version_is_refused(self) -> None:
        with open(self.clone.path("solutions/02_ddp/ddp_overlap.h"), "a", encoding="utf-8") as file:
            file.write("// changed\n")
        done = self.clone.workshop("check", "00", "collectives")
        self.assertEqual(done.status, 1, done.out)
        self.assertIn("is of another version of the workshop", done.in_one_line)

    def test_a_folder_where_nothing_is_prebuilt_is_named(self) -> None:
        nowhere = os.path.join(self.clone.scratch, "nowhere")
        done = self.clone.workshop("check", "00", "collectives", prebuilt=nowhere)
        self.assertEqual(done.status, 1, done.out)
        self.assertIn(f"nothing is prebuilt in {nowhere}/build/cpu", done.in_one_line)


if __name__ == "__main__":
    unittest.main()
