# SPDX-License-Identifier: Apache-2.0
"""What is installed on this machine, and installing what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile

from .errors import Failed, Refused


def has(program: str, extra_path: str = "") -> bool:
    path = os.environ.get("PATH", os.defpath)
    return shutil.which(program, path=f"{path}:{extra_path}" if extra_path else path) is not None


def said(*command: str, **options) -> str:
    """What a command prints on stdout; "" if it is not there or fails."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, **options
        )
    except OSError:
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def cores() -> int:
    """Cores that this process may use. (nproc counts OMP_NUM_THREADS instead, if that is set.)"""
    return len(os.sched_getaffinity(0))


def has_nvcc() -> bool:
    return has("nvcc", "/usr/local/cuda/bin")


def has_gpu() -> bool:
    return bool(said("nvidia-smi", "-L"))


def free_mib() -> list[str]:
    """The free memory of each GPU that a program may see, in MiB."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    free = said(
        "nvidia-smi",
        *([f"--id={visible}"] if visible else []),
        "--query-gpu=memory.free",
        "--format=csv,noheader,nounits",
    )
    return free.split()


def has_slurm() -> bool:
    """Debian keeps daemons where an ordinary user's PATH does not lead."""
    return all(has(program, "/usr/sbin:/sbin") for program in ("sbatch", "slurmctld", "slurmd", "munged"))


def in_slurm_job() -> bool:
    return bool(os.environ.get("SLURM_JOB_ID") and os.environ.get("SLURM_JOB_NODELIST"))


def cmake_version() -> str:
    found = re.match(r"cmake version ([0-9.]+)", said("cmake", "--version"))
    return found[1] if found else ""


def has_cmake() -> bool:
    return [int(part) for part in cmake_version().split(".") if part][:2] >= [3, 25]


def has_libfuzzer() -> bool:
    if not has("clang++"):
        return False
    source = b'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }'
    return (
        subprocess.run(
            ["clang++", "-fsanitize=fuzzer,address,undefined", "-x", "c++", "-o", os.devnull, "-"],
            input=source,
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )


def compiler() -> str:
    """The C++ compiler that CMake takes: the first word of CXX."""
    return next(iter(os.environ.get("CXX", "").split()), "c++")


def libfuzzer_package() -> str:
    """The package for the compiler that the package clang installs."""
    found = re.search(r"Depends: clang-([0-9]+)$", said("apt-cache", "depends", "clang"), re.M)
    return f"libclang-rt-{found[1]}-dev" if found else ""


def has_pytest() -> bool:
    return any(
        subprocess.run([python, "-c", "import pytest"], capture_output=True, check=False).returncode == 0
        for python in ("/usr/bin/python3", "python3")
        if has(python)
    )


class Missing:
    """Something that is not installed, and the Debian and Ubuntu packages that have it."""

    def __init__(self, what: str, packages: str):
        self.what, self.packages = what, packages.split()

    def __str__(self) -> str:
        return f"{self.what}: {' '.join(self.packages)}"


def missing(backend: str, folder: str = "", with_slurm: bool = False, with_fuzz: bool = False) -> list[Missing]:
    """What is missing: what CMake needs to run; if that is here, what CMake misses (tools/cmake/Dependencies.cmake),
    which is asked in a folder without a past. If `folder` has none, it is that one, and configured if nothing is
    missing."""
    lack = []
    for there, what, packages in (
        (has_cmake(), "CMake 3.25 or newer", "cmake"),
        (has("ninja"), "Ninja", "ninja-build"),
        (has(compiler()), "a C++ compiler", "g++"),
        (has("git"), "git", "git"),
        (not with_slurm or has_slurm(), "Slurm", "slurm-wlm munge"),
    ):
        if not there:
            lack.append(Missing(what, packages))
    if with_fuzz and not has_libfuzzer():
        lack.append(Missing("clang with libFuzzer", f"clang {libfuzzer_package()}"))
    if lack:
        return lack
    own = bool(folder) and not os.path.exists(os.path.join(folder, "CMakeCache.txt"))
    scratch = folder if own else tempfile.mkdtemp()
    done = subprocess.run(
        ["cmake", "--preset", backend, "-B", scratch],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if own and done.returncode == 0:
        return []
    if own:
        shutil.rmtree(os.path.join(scratch, "CMakeFiles"), ignore_errors=True)
        if os.path.exists(os.path.join(scratch, "CMakeCache.txt")):
            os.unlink(os.path.join(scratch, "CMakeCache.txt"))
    else:
        shutil.rmtree(scratch, ignore_errors=True)
    found = re.findall(r"^missing: (.*): (.*)$", done.stdout.decode("utf-8", "replace"), re.M)
    return [Missing(what, packages) for what, packages in found]


def wanted() -> list[str]:
    """Packages that are good to have."""
    return [
        package
        for there, package in (
            (has("ccache"), "ccache"),
            (has("ip"), "iproute2"),  # the tests of several nodes
            (has_pytest(), "python3-pytest"),
        )
        if not there
    ]


def may_install() -> bool:
    if not has("apt-get"):
        return False
    if os.geteuid() == 0:
        return True
    return has("sudo") and (
        sys.stdin.isatty() or subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0
    )


def confirm(question: str) -> bool:
    """Asks on the terminal."""
    # Python refuses to open a terminal for reading and writing text at once.
    with open("/dev/tty", "w", encoding="utf-8") as terminal, open("/dev/tty", encoding="utf-8") as answers:
        terminal.write(f"{question} [Y/n] ")
        terminal.flush()
        answer = answers.readline()
    return bool(answer) and answer.strip()[:1] in ("", "y", "Y")


def quietly(command: list[str], **options) -> int:
    """Runs a command and shows its output only if it fails. Returns its status."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **options
    )
    if done.returncode:
        sys.stderr.write(done.stdout.decode("utf-8", "replace"))
        sys.stderr.flush()
    return done.returncode


def install(packages: list[str]) -> bool:
    root = [] if os.geteuid() == 0 else ["sudo"]
    command = [
        *root,
        "env",
        "DEBIAN_FRONTEND=noninteractive",
        "apt-get",
        "-o",
        "DPkg::Lock::Timeout=300",
        "install",
        "-y",
        "-q",
        "--no-install-recommends",
        *packages,
    ]
    # The packages' scripts must not run with the user's own Python or libraries.
    of_user = ("PYTHON", "LD_LIBRARY_", "LD_PRELOAD")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(of_user)}
    print(f"Installing {' '.join(packages)}", flush=True)
    # Package lists that are old or absent make the first attempt fail; most machines need no update.
    first = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if first.returncode == 0:
        return True
    update = quietly([*root, "apt-get", "update", "-q"], env=environment)
    return update == 0 and quietly(command, env=environment) == 0


def install_missing(backend: str, folder: str, yes: bool, with_slurm: bool = False, with_fuzz: bool = False) -> None:
    """Installs what is missing, if it may; ends the command if something stays missing."""
    if os.environ.get("CXX") and not has(compiler()):
        raise Refused(f"CXX is '{os.environ['CXX']}', but there is no such compiler: unset it, or correct it")
    lack: list[Missing] = []
    for attempt in range(3):  # what else is missing, CMake can only say once it is here
        lack = missing(backend, folder, with_slurm, with_fuzz)
        packages = wanted() + [package for line in lack for package in line.packages]
        if attempt == 2 or not packages or not may_install():
            break
        if not yes and sys.stdin.isatty() and not confirm(f"Install {' '.join(packages)} with apt?"):
            break
        if not install(packages):
            if lack:
                raise Failed(1)
            break
    if not lack:
        return
    print(
        "These are missing (after the colon: the Debian and Ubuntu packages that have them):",
        *lack,
        sep="\n",
        file=sys.stderr,
    )
    if cmake_version() and not has_cmake():
        print(
            f"CMake here is {cmake_version()}. Ubuntu 22.04 and older have no newer one: use Kitware's packages "
            "(https://apt.kitware.com), or 'pip install cmake'.",
            file=sys.stderr,
        )
    raise Failed(1)
