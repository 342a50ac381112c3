# SPDX-License-Identifier: Apache-2.0
"""The folders of the repository are layers: no two include each other, not even through others; the header and the
source of one name lie in one folder; and no two headers have one name."""

from __future__ import annotations

import collections
import os
import re
import subprocess

import pytest
from conftest import ROOT

# Where they are looked for. Exercises are copies of solutions/.
FOLDERS = ("backend_cpu/", "checker/", "common/", "model/", "solutions/", "tools/")
SOURCE = re.compile(r"\.(cu|cpp|h)$")


def source_files(root: str) -> list[str]:
    """The files with code that git tracks or, in an unpacked archive, that are there."""
    listed = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, timeout=60, check=False)
    if listed.returncode == 0 and os.path.exists(os.path.join(root, ".git")):  # not a folder in some other repository
        files = listed.stdout.split("\n")
    else:
        files = [
            os.path.relpath(os.path.join(folder, name), root)
            for top in FOLDERS
            for folder, _, names in os.walk(os.path.join(root, top))
            for name in names
        ]
    return sorted(
        file
        for file in files
        if file.startswith(FOLDERS) and SOURCE.search(file) and os.path.isfile(os.path.join(root, file))
    )


def room(file: str) -> str:
    """The folder that a file belongs to. The backend's public headers are in it; a chapter and its support/ are one."""
    return os.path.dirname(file).removesuffix("/include").removesuffix("/support")


def includes(root: str, file: str, known: set[str]) -> list[str]:
    """The files among `known` that a file includes: by a path from the root or from solutions/, or beside it."""
    found = []
    with open(os.path.join(root, file), encoding="utf-8") as source:
        for name in re.findall(r'^#include ["<]([^">]+)[">]', source.read(), re.M):
            paths = [
                os.path.normpath(os.path.join(base, name))
                for base in (os.path.dirname(file), "solutions", "", "backend_cpu/include")
            ]
            found += [path for path in paths if path in known][:1]
    return found


def shortest_circle(leads: dict[str, dict[str, str]], start: str) -> list[str]:
    """The fewest folders that lead from `start` to itself; none if it is in no circle."""
    queue, before = [start], {start: ""}
    while queue:
        folder = queue.pop(0)
        for following in leads.get(folder, {}):
            if following == start:
                path = [folder]
                while before[path[0]]:
                    path.insert(0, before[path[0]])
                return path
            if following not in before:
                before[following] = folder
                queue.append(following)
    return []


# Makes every model that a program can train, so it includes chapter 09's mixture, which is made of chapter 01's layers.
FACTORY = "solutions/01_single_gpu/models.cu"


def circles(root: str, files: list[str]) -> list[str]:
    """The circles of folders, each with an include that leads from one to the next."""
    known = set(files)
    leads: dict[str, dict[str, str]] = collections.defaultdict(dict)  # folder -> folder -> "file includes file"
    for file in files:
        if file == FACTORY:
            continue
        for other in includes(root, file, known):
            if room(file) != room(other):
                leads[room(file)].setdefault(room(other), f"{file} includes {other}")
    found, seen = [], set()
    for folder in sorted(leads):
        path = shortest_circle(leads, folder)
        if path and not seen & set(path):
            seen |= set(path)
            found.append("; ".join(leads[a][b] for a, b in zip(path, path[1:] + path[:1])))
    return found


def by_stem(files: list[str]) -> tuple[dict[str, list[str]], dict[str, set[str]]]:
    """The folders of the headers and those of the sources of each name."""
    headers, sources = collections.defaultdict(list), collections.defaultdict(set)
    for file in files:
        stem, kind = os.path.splitext(os.path.basename(file))
        if kind == ".h":
            headers[stem].append(room(file))
        else:
            sources[stem].add(room(file))
    return headers, sources


def repeated_headers(files: list[str]) -> list[str]:
    return [
        f"{stem}.h lies in several folders: {', '.join(folders)}"
        for stem, folders in by_stem(files)[0].items()
        if len(folders) > 1
    ]


def separated_sources(files: list[str]) -> list[str]:
    """The headers whose source lies in another folder below the same one of FOLDERS, and not beside them."""
    headers, sources = by_stem(files)
    found = []
    for stem, folders in headers.items():
        of_stem = sources.get(stem, set())
        elsewhere = {folder for folder in of_stem if folder.split("/")[0] == folders[0].split("/")[0]} - set(folders)
        if elsewhere and not of_stem & set(folders) and not folders[0].startswith("solutions/"):
            found.append(f"{folders[0]}/{stem}.h has its source in {', '.join(sorted(elsewhere))}")
    return found


# ---- this repository ----


@pytest.fixture(scope="module", name="files")
def find_files():
    found = source_files(ROOT)
    assert {file.partition("/")[0] + "/" for file in found} == set(FOLDERS)
    return found


def test_no_folders_include_each_other_in_a_circle(files):
    assert circles(ROOT, files) == []


def test_no_two_headers_have_one_name(files):
    assert repeated_headers(files) == []


def test_header_and_source_lie_in_one_folder(files):
    assert separated_sources(files) == []


# ---- what is found in others ----


def house(folder, files: dict[str, str]) -> str:
    """Writes files that include others, and returns their folder."""
    for name, included in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f'#include "{other}"\n' for other in included.split()))
    return str(folder)


def test_a_circle_through_a_third_folder_is_found(tmp_path):
    root = house(
        tmp_path,
        {
            "common/x/a.h": "common/y/b.h",
            "common/y/b.h": "model/c.h",
            "model/c.cpp": "",
            "model/c.h": "common/x/a.h",
            "model/notes.md": "",
            "tools/d.cpp": "common/x/a.h",
        },
    )
    files = source_files(root)
    assert files == ["common/x/a.h", "common/y/b.h", "model/c.cpp", "model/c.h", "tools/d.cpp"]
    assert circles(root, files) == [
        "common/x/a.h includes common/y/b.h; common/y/b.h includes model/c.h; " "model/c.h includes common/x/a.h"
    ]


def test_includes_are_found_beside_a_file_and_in_solutions(tmp_path):
    files = {
        "solutions/01/a.cu": "a.h 02/b.h nccl.h vector",
        "solutions/01/a.h": "",
        "solutions/02/b.h": "",
        "backend_cpu/include/nccl.h": "",
    }
    assert includes(house(tmp_path, files), "solutions/01/a.cu", set(files)) == [
        "solutions/01/a.h",
        "solutions/02/b.h",
        "backend_cpu/include/nccl.h",
    ]


def test_support_and_public_headers_are_in_the_same_room(tmp_path):
    files = {
        "solutions/01/a.h": "01/support/b.h",
        "solutions/01/support/b.h": "01/a.h",
        "backend_cpu/include/nccl.h": "backend_cpu/x.h",
        "backend_cpu/x.h": "nccl.h",
    }
    assert circles(house(tmp_path, files), sorted(files)) == []


def test_names_that_are_not_unique_are_found():
    assert repeated_headers(["common/x/a.h", "common/y/a.h", "common/y/b.h"]) == [
        "a.h lies in several folders: common/x, common/y"
    ]


@pytest.mark.parametrize(
    "files,found",
    [
        (["common/x/a.cpp", "common/x/a.h"], []),
        (["common/x/a.h", "common/y/a.cpp"], ["common/x/a.h has its source in common/y"]),
        (["common/x/a.cpp", "common/x/a.h", "common/y/a.cpp"], []),
        (["common/x/a.h", "tools/a.cpp"], []),
        (["solutions/01/a.h", "solutions/02/a.cu"], []),
    ],
)
def test_sources_that_lie_elsewhere_are_found(files, found):
    assert separated_sources(files) == found
