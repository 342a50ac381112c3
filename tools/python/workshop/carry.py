# SPDX-License-Identifier: Apache-2.0
"""Carries what a participant has written to another clone, for those who change computers.

  progress --export FILE    the exercises and golf's answers, and what the last checks found, into a ZIP file
  progress --import FILE    puts them into this clone; files that differ are kept as FILE.mine
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
import zipfile

from . import chapters, golf, progress
from .errors import Refused

ABOUT = "workshop-progress-1"  # an empty file in the archive: its version
FILES = re.compile(r"\d\d_\w+/\w+\.(cu|h)|golf/\w+/\w+\.(cu|txt)")
STATES = re.compile(r"build/(cpu|cuda)/checks/(\d\d_\w+\.state|golf/[\w.-]+)")
MOST = 1 << 20  # bytes of a file


def written() -> list[str]:
    """What the participant has, of what they can write."""
    files = [os.path.normpath(file) for chapter in chapters.all_chapters() for file in chapter.handed_out()]
    files += [task.path("mine") for task in golf.TASKS]
    return [file for file in files if os.path.isfile(file)]


def found() -> list[str]:
    """What the last checks found, as far as the files have not changed since."""
    states = []
    for backend in ("cpu", "cuda"):
        checks = os.path.join("build", backend, "checks")
        for chapter in chapters.all_chapters():
            state = os.path.join(checks, chapter.name + ".state")
            if os.path.isfile(state) and not chapters.changed_since(chapter, state):
                states.append(state)
        folder = os.path.join(checks, golf.FOLDER)
        if os.path.isdir(folder):
            states += [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    return [state for state in states if STATES.fullmatch(state)]


def export(path: str) -> None:
    with zipfile.ZipFile(path + ".part", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(ABOUT, "")
        files = [*written(), *found()]
        for file in files:
            archive.write(file)
    os.replace(path + ".part", path)
    print(f"{len(files)} files are in {path}: './workshop progress --import' puts them into another clone")


def take(path: str) -> None:
    from .verbs_learn import numbered_copy

    with zipfile.ZipFile(path) as archive:
        if ABOUT not in archive.namelist():
            raise Refused(f"{path} is no archive of './workshop progress --export', or of another version")
        known = {chapter.name for chapter in chapters.all_chapters()} | {golf.FOLDER}
        members = [one for one in archive.infolist() if one.filename != ABOUT]
        odd = [
            one.filename
            for one in members
            if one.file_size > MOST
            or not (STATES.fullmatch(one.filename) or FILES.fullmatch(one.filename))
            or FILES.fullmatch(one.filename) and one.filename.split("/")[0] not in known
        ]
        if odd:
            raise Refused(f"{path} has {odd[0]!r}, which no participant writes; nothing was changed")
        contents = {one.filename: archive.read(one) for one in members}
    changed = 0
    for file, content in contents.items():
        if not FILES.fullmatch(file):
            continue
        if os.path.isfile(file):
            with open(file, "rb") as there:
                if there.read() == content:
                    continue
            shutil.copy2(file, numbered_copy(file))
        put(file, content)
        changed += 1
    time.sleep(0.01)  # what was found is newer than the files
    for file, content in contents.items():
        if STATES.fullmatch(file):
            put(file, content)
    print(f"{changed} files have changed; your versions of before are beside them, as FILE.mine")


def put(file: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(file), exist_ok=True)
    with open(file + ".part", "wb") as output:
        output.write(content)
    os.replace(file + ".part", file)


def main(words: list[str]) -> int:
    """`words`: --export or --import, and the file."""
    verb, path = words[0], os.path.abspath(words[1]) if len(words) == 2 and words[1] else ""
    try:
        if not path or os.path.isdir(path):
            raise Refused(f"{verb} expects a file")
        os.chdir(progress.ROOT)
        (export if verb == "--export" else take)(path)
    except Refused as refused:
        print(f"progress: {refused}", file=sys.stderr)
        return 2
    except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        print(f"progress: {words[1]}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        return 2
    return 0
