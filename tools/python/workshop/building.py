# SPDX-License-Identifier: Apache-2.0
"""Configuring and building, in one build folder."""

from __future__ import annotations

import fcntl
import glob
import os
import re
import shutil
import subprocess
import sys
import time
import zlib

from . import machine
from .chapters import all_chapters, read
from .errors import Failed, Refused


class Lock:
    """Holds FOLDER/NAME as long as the with block lasts. Another command that has it is waited for, with a message."""

    def __init__(self, folder: str, name: str, message: str):
        self._path, self._folder, self._message = os.path.join(folder, name), folder, message

    def __enter__(self) -> None:
        try:
            os.makedirs(self._folder, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise Refused(
                f"{self._folder} cannot be written ({error.strerror}): name a folder for what is built in "
                "WORKSHOP_BUILD"
            ) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(self._message, file=sys.stderr, flush=True)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


class Progress:
    """Shows how far a build is, "[3/40] …": on a terminal in one line, elsewhere now and then. What a compiler says is
    shown as soon as it fails, and not otherwise. Nothing is shown if everything is built."""

    def __init__(self, output, terminal: bool):
        self._output, self._terminal = output, terminal
        self._begun = False
        self._tenth = 0
        self._said: list[str] = []  # since the last step, if nothing has failed
        self._failed = False
        self._skips = 0  # lines that are the command which failed

    def line(self, line: str) -> None:
        step = re.match(r"\[(\d+)/(\d+)\] (.*)", line)
        if step and step[3].startswith("Re-"):
            return  # CMake looks whether files have come or gone
        if step:
            self._said, self._failed = [], False
            if not self._begun:
                self._begun = True
                self._write("Building\n")
            done, total = int(step[1]), int(step[2])
            if self._terminal:
                self._write(
                    f"\r\x1b[K[{done}/{total}] {os.path.basename(step[3].split()[-1] if step[3].split() else '')}"
                )
            elif 10 * done // total > self._tenth:
                self._tenth = 10 * done // total
                self._write(f"[{done}/{total}]\n")
            return
        if self._skips:
            self._skips -= 1
            return
        if line.startswith(("FAILED: ", "ninja: error", "ninja: build stopped")):
            if self._terminal and not self._failed:
                self._write("\r\x1b[K")
            self._failed = True
            self._write("".join(self._said))
            self._said = []
            self._skips = int(line.startswith("FAILED: "))
        if self._failed:
            self._write(line + "\n")
        else:
            self._said.append(line + "\n")

    def end(self) -> None:
        if self._terminal and self._begun:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        if text:
            self._output.write(text)
            self._output.flush()


class Builder:
    def __init__(self, backend: str, folder: str, yes: bool = False):
        self.backend, self.folder = backend, folder
        self.yes = yes  # install without asking
        self.jobs = machine.cores()
        self.with_slurm = self.with_fuzz = False

    def _cached(self, name: str) -> str:
        found = re.search(rf"^{name}:\w+=(.*)$", read(os.path.join(self.folder, "CMakeCache.txt")), re.M)
        return found[1] if found else ""

    def prebuilt(self) -> str:
        """The build folder of another clone that has everything but the participant's own programs; "" if there is
        none."""
        clone = os.environ.get("WORKSHOP_PREBUILT")
        if not clone:
            return ""
        folder = os.path.realpath(os.path.join(clone, "build", self.backend))
        return "" if folder == os.path.realpath(self.folder) else folder  # this may be the clone that others take from

    def _forget_other_source(self) -> None:
        """A clone that was copied or moved has a build folder of another source: those programs would be built and
        judged."""
        source = self._cached("CMAKE_HOME_DIRECTORY")
        if not source or os.path.realpath(source) == os.path.realpath("."):
            return
        if not os.path.realpath(self.folder).startswith(os.path.realpath(".") + os.sep):
            raise Refused(
                f"{self.folder} is the build folder of {source}: name a different one in WORKSHOP_BUILD, or take what is "
                "built there with WORKSHOP_PREBUILT"
            )
        print(f"{self.folder} was built from {source}: building it anew for this clone", file=sys.stderr)
        shutil.rmtree(self.folder)

    @staticmethod
    def _settle_clocks() -> None:
        """Ninja configures again and again while a file that CMake reads is dated in the future: the clock of a file
        server may be ahead."""
        now = time.time()
        files = [
            "CMakeLists.txt",
            "CMakePresets.json",
            *glob.glob("*/CMakeLists.txt"),
            *glob.glob("*/*/CMakeLists.txt"),
            *glob.glob("tools/cmake/*.cmake"),
            *glob.glob("checker/*.cmake"),
            *glob.glob("checker/mistakes/*.txt"),
            *glob.glob("checker/mistakes/fingerprints/*.txt"),
            *glob.glob("checker/mutants/*.txt"),
            *glob.glob("tools/python/workshop/*.py"),
        ]
        ahead = [file for file in files if os.path.exists(file) and os.stat(file).st_mtime > now + 1]
        if ahead:
            print(
                f"{ahead[0]}{' and others are' if len(ahead) > 1 else ' is'} dated in the future; setting the date to now",
                file=sys.stderr,
            )
            for file in ahead:
                os.utime(file)

    def _renew_dates(self) -> None:
        """Ninja builds what has a later date. A file of a participant that was put back, from a copy for example, may
        have another content and an earlier date: its date is set to now."""
        list_of_contents = os.path.join(self.folder, "contents.txt")
        lines = (line.partition(" ") for line in read(list_of_contents).splitlines())
        before = {file: checksum for checksum, _, file in lines}
        listed = os.stat(list_of_contents).st_mtime if before else 0
        now = {}
        for chapter in all_chapters():
            for file in chapter.handed_out():
                try:
                    with open(file, "rb") as source:
                        now[file] = f"{zlib.crc32(source.read()):08x}"
                    if before.get(file, now[file]) != now[file] and os.stat(file).st_mtime <= listed:
                        os.utime(file)
                except OSError:
                    pass  # the compiler says what is wrong with it
        with open(list_of_contents, "w", encoding="utf-8") as output:  # its date is that of the last build
            output.writelines(f"{checksum} {file}\n" for file, checksum in now.items())

    def _unconfigured(self, prebuilt: str, tests: bool) -> bool:
        return (
            not os.path.exists(os.path.join(self.folder, "build.ninja"))
            or prebuilt != self._cached("WORKSHOP_PREBUILT")
            or (tests and self._cached("WORKSHOP_TESTS") == "OFF")
        )

    def install_missing(self) -> None:
        machine.install_missing(self.backend, self.folder, self.yes, self.with_slurm, self.with_fuzz)

    @staticmethod
    def require_plain_path(path: str) -> None:
        """CMake takes some characters in a path for patterns or lists."""
        odd = sorted(set(path) & set('[]*?;$\\"\n#|<>'))
        if odd:
            raise Refused(f"CMake cannot build in {path!r}, which has {odd[0]!r}: move this clone to another folder")

    def build(self, *targets: str, tests: bool = False) -> None:
        """Installs, configures and builds what these targets need. Without `tests`, a new folder is configured for
        participants, which takes half the time. With WORKSHOP_PREBUILT, only a participant's own programs are built
        here; their targets begin with their chapter or golf_."""
        prebuilt = self.prebuilt()
        for path in (os.getcwd(), os.path.abspath(self.folder), prebuilt):
            self.require_plain_path(path)
        with Lock(self.folder, "build.lock", "Waiting for another build to end"):
            self._forget_other_source()
            os.makedirs(self.folder, exist_ok=True)
            if self._unconfigured(prebuilt, tests):
                print(
                    f"Configuring for the {self.backend} backend{' with what is prebuilt in ' + prebuilt if prebuilt else ''}",
                    file=sys.stderr,
                    flush=True,
                )
                if not prebuilt:
                    self.install_missing()
                configure = ["cmake", "--preset", self.backend, "-B", self.folder]
                configure += ["-D", f"WORKSHOP_PREBUILT={prebuilt}"]
                configure += ["-D", f"WORKSHOP_TESTS={'ON' if tests or self._cached('WORKSHOP_TESTS') == 'ON' else 'OFF'}"]
                if not os.path.exists(os.path.join(self.folder, "build.ninja")):
                    configure.append("--fresh")  # an attempt that failed may have left its settings behind
                if self._unconfigured(prebuilt, tests) and machine.quietly(configure):
                    raise Failed(1)
            wanted = [target for target in targets if not prebuilt or re.match("[0-9]|golf_|programs$", target)]
            if wanted:
                self._settle_clocks()
                self._renew_dates()
                self._ninja(wanted)

    def _ninja(self, targets: list[str]) -> None:
        command = ["cmake", "--build", self.folder, "-j", str(self.jobs), "--target", *targets]
        with subprocess.Popen(
            command,
            env=dict(os.environ, NINJA_STATUS="[%f/%t] "),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            assert process.stdout
            progress = Progress(sys.stderr, sys.stderr.isatty())
            for line in process.stdout:
                progress.line(line.decode("utf-8", "replace").rstrip("\n"))
            progress.end()
        if process.returncode:
            raise Failed(1)
