# SPDX-License-Identifier: Apache-2.0
"""Open MPI's mpirun: finding it, making it run on this machine only, and leaving out what it says beside the ranks."""

from __future__ import annotations

import os

# Batch systems and hostfiles that mpirun would follow to other machines.
_ASK_FOR_NODES = ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile")
_ALLOCATIONS = "^slurm,gridengine,lsf,loadleveler,tm,alps,pbs,pals"


def is_open_mpi(mpirun: str) -> bool:
    if os.path.basename(os.path.realpath(mpirun)) in ("orterun", "prterun"):
        return True  # Open MPI's own names: no need to start it
    return "Open MPI" in first_line_of_version(mpirun)


def first_line_of_version(program: str) -> str:
    import subprocess  # only for an mpirun with a name of its own

    try:
        said = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=20,
            check=False,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return (said.decode("utf-8", "replace").strip().splitlines() or [""])[0].strip()


def find_mpirun(path: str) -> tuple[str | None, list[str]]:
    """The first mpirun of Open MPI in `path`, and those of other MPIs before it."""
    others = []
    for folder in path.split(os.pathsep):
        # mpirun takes the folder above its own for Open MPI's, and "/bin" may be a link to "/usr/bin".
        candidate = os.path.join(os.path.realpath(folder or "."), "mpirun")
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            if is_open_mpi(candidate):
                return candidate, others
            others.append(candidate)
    return None, others


def is_of_another(prefix: str, path: str) -> bool:
    """Whether OPAL_PREFIX names an Open MPI that is not the one in `path`."""
    mpirun, _ = find_mpirun(path)
    named = os.path.join(prefix, "bin", "mpirun")
    return bool(mpirun) and os.path.realpath(named) != os.path.realpath(mpirun)


def settings(mpirun: str, environment: dict[str, str], session: str, as_root: bool) -> dict[str, str]:
    """Variables for mpirun and its ranks. `session` is a folder for everything that they keep in the file system.
    Values that the user has set stay."""
    is_version_4 = os.path.basename(os.path.realpath(mpirun)) == "orterun"
    defaults = {
        # All ranks run here. Open MPI 4 and 5 need not look for a batch system, hosts or networks.
        "OMPI_MCA_plm": "isolated",
        "OMPI_MCA_ras": _ALLOCATIONS,
        "OMPI_MCA_orte_default_hostfile": "none",
        "PRTE_MCA_ras": _ALLOCATIONS,
        "PRTE_MCA_plm": "^slurm,lsf,tm,pals",
        "PRTE_MCA_prte_default_hostfile": "none",
        "OMPI_MCA_pml": "ob1",
        # Ranks of one machine talk through shared memory. Other transports need not even be loaded.
        "OMPI_MCA_btl": "self,vader" if is_version_4 else "^tcp,openib,usnic,ofi",
        # What it knows of a few ranks need not be in shared segments of megabytes.
        "PMIX_MCA_gds": "hash",
    }
    if any(environment.get(name) for name in _ASK_FOR_NODES):
        del defaults["OMPI_MCA_btl"]  # the user has named other machines
    found = {name: value for name, value in defaults.items() if name not in environment}
    # The folder that Open MPI would use is shared by all jobs and removed by whichever ends last, while another begins.
    # The memory that ranks share lies in the session, too: a killed rank leaves its own behind, for a later job with
    # the same process ids to stumble over. The names are those of Open MPI 4, then of Open MPI 5.
    found.update(
        OMPI_MCA_orte_tmpdir_base=session,
        PRTE_MCA_prte_tmpdir_base=session,
        OMPI_MCA_btl_vader_backing_directory=session,
        OMPI_MCA_btl_sm_backing_directory=session,
    )
    # When a rank fails, mpirun sends the others TERM and, a second later, KILL. They do nothing on TERM but end.
    found.update(OMPI_MCA_odls_base_sigkill_timeout="0", PRTE_MCA_odls_base_sigkill_timeout="0")
    if as_root:
        found.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    if not may_read_other_processes():
        for name in ("OMPI_MCA_btl_vader_single_copy_mechanism", "OMPI_MCA_btl_sm_single_copy_mechanism"):
            if name not in environment:
                found[name] = "none"
    return found


def may_read_other_processes() -> bool:
    """Whether process_vm_readv works, by which ranks read each other's memory. Some containers forbid it."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            filtered = "\nSeccomp:\t2" in file.read()
    except OSError:
        return True
    return not filtered or _can_read_itself()


def _can_read_itself() -> bool:
    import ctypes  # only in containers

    class Range(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    try:
        read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except (OSError, AttributeError):
        return False
    source, target = ctypes.create_string_buffer(b"x", 1), ctypes.create_string_buffer(1)
    local, remote = Range(ctypes.addressof(target), 1), Range(ctypes.addressof(source), 1)
    return read(os.getpid(), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) == 1


class Notes:
    """Leaves out mpirun's notes on a failed rank, because the rank has explained the failure better.

    Notes stand between two lines of dashes. Some versions of Open MPI crash at every other failure in MPI_Init; what
    they say of that is left out, too, and so is what they say of a rank that goes on in MPI_Init after the others gave
    up. """

    def __init__(self, mpirun_pid: int):
        import re  # only when mpirun or a rank says something

        self._about_failure = re.compile(
            r"(mpirun|prterun) (has exited|detected)|Primary job +terminated|MPI_ABORT was invoked"
        )
        self._of_rank = re.compile(
            r"(error|order|bounds|memory|verdict|note|warning|launch): |rank [0-9]|TODO |Not filled in yet"
        )
        self._noise = re.compile(
            r"Unable to find reachable pairing|^\[warn\] Epoll |btl_tcp_proc\.c:|^(mpirun|prterun): Forwarding signal "
        )
        self._dashes = re.compile(r"-{70,}$")
        self._speaker = re.compile(r"\[[^][]*:([0-9]+)\]( \*\*\* )?")
        self._mpirun_pid = mpirun_pid
        self._inside = False
        self._given_up = False
        self._note = ""

    def line(self, line: str) -> str:
        """What to print for a line, which comes without its end: "", the line with its end, or the kept note."""
        without_zeros = line.replace("\0", "")  # Open MPI 5 puts a zero beside what it says of an abort
        if without_zeros != line and not without_zeros:
            return ""
        line = without_zeros
        if self._noise.search(line):
            return ""
        if line.startswith("error: MPI_Init took longer than "):
            self._given_up = True
        speaker = self._speaker.match(line)
        if self._given_up and speaker and speaker[2]:
            return ""
        dashes = self._dashes.search(line)
        if dashes and (dashes.start() == 0 or not self._inside):
            shown = ""
            if not self._inside:
                shown = line[: dashes.start()]  # of a line that the note breaks; its rest comes after the note
            elif not self._given_up and not self._about_failure.search(self._note):
                shown = f"{dashes[0]}\n{self._note}{dashes[0]}\n"
            self._inside = not self._inside
            self._note = ""
            return shown
        if self._inside and not self._of_rank.match(line):  # a rank's own line may come in between
            self._note += line + "\n"
            return ""
        if speaker and int(speaker[1]) == self._mpirun_pid:
            return ""
        return line + "\n"

    def end(self) -> str:
        return self._note
