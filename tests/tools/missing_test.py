# SPDX-License-Identifier: Apache-2.0
"""What is said if something is not installed: by CMake, from which './workshop setup' takes the packages, and by the
tests that need it. It makes the folders 'other', 'build' and 'tools' in the working directory.

  missing_test.py SOURCE     the repository
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import unittest

SOURCE = os.path.abspath(sys.argv.pop(1))


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=dict(os.environ, **environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )


def system_folders() -> list[str]:
    """Where the system has headers and libraries."""
    patterns = [
        f"{prefix}/{kind}{machine}{openblas}"
        for prefix in ("", "/usr", "/usr/local")
        for kind in ("include", "lib", "lib64")
        for machine in ("", "/*-linux-gnu")
        for openblas in ("", "/openblas*")
    ]
    return [folder for pattern in patterns for folder in sorted(glob.glob(pattern))]


def configure(*options: str) -> list[str]:
    """The lines that name what is missing."""
    shutil.rmtree("build", ignore_errors=True)
    done = run("cmake", "-S", SOURCE, "-B", "build", "-G", "Ninja", "-DWORKSHOP_BACKEND=cpu", *options)
    lines = [line for line in done.stdout.splitlines() if line.startswith("missing: ")]
    assert bool(lines) == bool(done.returncode), done.stdout
    return lines


class Missing(unittest.TestCase):
    maxDiff = None

    def test_openblas_zlib_and_openssl_are_named(self):
        """Another library's cblas.h is not OpenBLAS's, even if OpenBLAS's library is there."""
        for file in ("other/include/cblas.h", "other/lib/libopenblas.so"):
            os.makedirs(os.path.dirname(file), exist_ok=True)
            open(file, "w").close()
        lines = configure(
            f"-DCMAKE_PREFIX_PATH={os.getcwd()}/other",
            f"-DCMAKE_IGNORE_PATH={';'.join(system_folders())}",
            "-DCMAKE_DISABLE_FIND_PACKAGE_ZLIB=ON",
            "-DCMAKE_DISABLE_FIND_PACKAGE_OpenSSL=ON",
        )
        self.assertEqual(
            [line for line in lines if any(what in line for what in ("zlib", "OpenSSL", "OpenBLAS"))],
            [
                "missing: zlib: zlib1g-dev",
                "missing: OpenSSL 3: libssl-dev",
                "missing: OpenBLAS: libopenblas-pthread-dev",
            ],
        )

    def test_nothing_is_missing_here(self):
        self.assertEqual(configure(), [])

    def test_a_test_that_cannot_run_is_skipped_and_says_why(self):
        """Here one of several nodes, where there is no iproute2."""
        os.makedirs("tools", exist_ok=True)
        for tool in ("bash", "realpath", "dirname", "grep"):
            if not os.path.lexists(f"tools/{tool}"):
                os.symlink(shutil.which(tool), f"tools/{tool}")
        done = run(
            f"{SOURCE}/tests/expect_status",
            "-s",
            "^with_nodes: ",
            "0",
            f"{SOURCE}/tests/nodes/with_nodes",
            "1",
            "1",
            "true",
            PATH=f"{os.getcwd()}/tools",
        )
        self.assertEqual((done.returncode, done.stdout), (77, "with_nodes: unshare is missing\n"))

    def test_a_todo_is_no_reason_to_skip(self):
        done = run(f"{SOURCE}/tests/expect_status", "-s", "^with_nodes: ", "0", "sh", "-c", "echo TODO; exit 77")
        self.assertEqual(done.returncode, 1, done.stdout)


if __name__ == "__main__":
    unittest.main()
