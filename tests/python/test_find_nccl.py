# SPDX-License-Identifier: Apache-2.0
"""tools/cmake/FindNCCL.cmake takes the header and the library from the same place."""

import os
import subprocess

from conftest import ROOT

PROJECT = f"""cmake_minimum_required(VERSION 3.25)
project(find_nccl LANGUAGES NONE)
set(CMAKE_FIND_LIBRARY_PREFIXES lib)
set(CMAKE_FIND_LIBRARY_SUFFIXES .so)
list(APPEND CMAKE_MODULE_PATH "{ROOT}/tools/cmake")
find_package(NCCL 2.18 REQUIRED)
message(STATUS "found ${{NCCL_VERSION}} in ${{NCCL_LIBRARY}}")
"""


def test_a_wheels_library_wins_over_that_of_another_version(tmp_path):
    """A wheel has libnccl.so.2 alone; the other version has libnccl.so, the name that the linker asks for."""
    for folder in ("wheel/include", "wheel/lib", "other/lib"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "wheel/include/nccl.h").write_text(
        "#define NCCL_MAJOR 2\n#define NCCL_MINOR 18\n#define NCCL_PATCH 3\n"
    )
    (tmp_path / "wheel/lib/libnccl.so.2").touch()
    (tmp_path / "other/lib/libnccl.so").touch()
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    done = subprocess.run(
        ["cmake", "-G", "Ninja", "-B", "build", f"-DCMAKE_PREFIX_PATH={tmp_path}/other"],
        cwd=tmp_path,
        env=dict(os.environ, NCCL_ROOT=f"{tmp_path}/wheel"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert f"found 2.18.3 in {tmp_path}/wheel/lib/libnccl.so.2\n" in done.stdout and done.returncode == 0
