# SPDX-License-Identifier: Apache-2.0
"""Starts a program on several ranks of this machine and leaves none of them behind, whatever happens.

  launch [--env] -n RANKS [-t SECONDS] [--restarts N [--shrink]] -- PROGRAM [ARGUMENT]...

  --env       start the processes here, with torchrun's variables; the default without mpirun
  -t          end everything after so many seconds, with status 124
  --restarts  start the job again, at most N times, if a signal has ended a rank or the ranks were stuck (status 86)
  --shrink    each time on one rank fewer, but on at least one

The status is the program's. The first rank that fails ends the others, and its status counts. Status 75 is no failure:
the rank has saved its state, and so will the others; it is the status of the job if no rank fails. If some ranks have
ended and others do not within WORKSHOP_TIMEOUT seconds (60; 0: no deadline), the status is 86.

SIGTERM asks the ranks to save their state and to end: it is passed on to them, through mpirun as SIGUSR1, because
mpirun would end them. The status is then the job's, or 143 if the signal has ended a rank. A second SIGTERM ends
everything at once, and so does the first one if the ranks have not ended WORKSHOP_GRACE seconds later (60; 0: at once).
SIGINT, SIGHUP and SIGALRM always end everything at once. SIGUSR1 and SIGUSR2 are passed on to the ranks.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time

from . import mpi, processes

# Every start of ranks waits for this file's imports: re, subprocess, shutil and the like would double its time.

SAVED, STUCK, TIMED_OUT = 75, 86, 124


class Refused(Exception):
    """A command line or a machine with which nothing can be started."""


class Job:
    def __init__(
        self, ranks: int, seconds: int | None, env: bool, command: list[str], restarts: int = 0, shrink: bool = False
    ):
        self.ranks = ranks
        self.seconds = seconds  # limit of the whole job, or None
        self.env = env  # start the ranks without mpirun
        self.command = command
        self.restarts = restarts  # at most
        self.shrink = shrink  # each on one rank fewer


def is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit()


def parse(words: list[str]) -> Job:
    ranks, seconds, env, restarts, shrink = "", "", False, "0", False
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "-n":
            ranks = rest.pop(0) if rest else ""
        elif word == "-t":
            seconds = rest.pop(0) if rest else ""
        elif word == "--env":
            env = True
        elif word == "--restarts":
            restarts = rest.pop(0) if rest else ""
        elif word == "--shrink":
            shrink = True
        elif word == "--":
            break
        else:
            raise Refused(f"unknown option '{word}'")
    if not is_whole(ranks) or ranks.startswith("0"):
        raise Refused(f"-n expects a number of ranks, not '{ranks}'")
    if seconds and not is_whole(seconds):
        raise Refused(f"-t expects seconds, not '{seconds}'")
    if not is_whole(restarts):
        raise Refused(f"--restarts expects a number, not '{restarts}'")
    if shrink and not int(restarts):
        raise Refused("--shrink is for --restarts")
    if not rest:
        raise Refused("no program after --")
    if not processes.which(rest[0]):
        raise Refused(f"there is no program '{rest[0]}'")
    return Job(int(ranks), int(seconds) if seconds else None, env, rest, int(restarts), shrink)


def needs_mpi(program: str, backend: str) -> bool:
    """The cpu backend always needs MPI; a program for GPUs only if it is linked to it."""
    if backend != "cuda":
        return True
    import subprocess

    linked = subprocess.run(
        ["ldd", processes.which(program) or program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    )
    return b"libmpi" in linked.stdout


def common_settings(environment: dict[str, str], terminal: bool) -> dict[str, str]:
    """Variables for the ranks, with mpirun or without. Values that the user has set stay, where that is harmless."""
    found = {
        "OMPI_MCA_mpi_yield_when_idle": "1",  # with more ranks than cores, those that wait must let the others run
        "OPENBLAS_NUM_THREADS": "1",  # the cpu backend runs kernels on threads of its own
    }
    # hwloc, which Open MPI asks for cores, need not look for displays and devices: with slow name servers, its search
    # for an X server takes seconds, and reading the PCI bus is a quarter of a start. Loading its plugins is a tenth.
    for name, value in (
        ("HWLOC_PLUGINS_PATH", "/dev/null"),
        ("HWLOC_COMPONENTS", "-gl,-opencl,-cuda,-nvml,-rsmi,-pci,-linuxio"),
    ):
        if name not in environment:
            found[name] = value
    if terminal:
        found["WORKSHOP_TERMINAL"] = "1"  # mpirun gives the ranks a terminal of its own in any case
    return found


def own_environment(environment: dict[str, str]) -> dict[str, str]:
    """Without what other launchers and another Open MPI have left there: they would say who the ranks are, and where
    the library is."""
    torchrun = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    of_mpi = ("PMI_RANK", "PMI_SIZE", "PMIX_RANK", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_")
    found = {
        name: value for name, value in environment.items() if name not in torchrun and not name.startswith(of_mpi)
    }
    found["PATH"] = found.get("PATH") or os.defpath
    if "OPAL_PREFIX" in found and mpi.is_of_another(found["OPAL_PREFIX"], found["PATH"]):
        del found["OPAL_PREFIX"]
    return found


def free_port() -> int:
    """A port that nothing listens on, below those that the system hands out itself."""
    used = ""
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(name, encoding="ascii") as file:
                used += file.read()
        except OSError:
            pass
    while True:
        port = 10000 + int.from_bytes(os.urandom(4), "big") % 20000
        if f":{port:04X} " not in used:
            return port


def torchrun_settings(rank: int, ranks: int, port: int, token: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORKSHOP_JOB_TOKEN": token,
    }


def deadline(environment: dict[str, str], ranks: int) -> int | None:
    """How many seconds a rank may run after others have ended, or None."""
    seconds = environment.get("WORKSHOP_TIMEOUT", "60").partition(".")[0]
    return int(seconds) if ranks > 1 and is_whole(seconds) and 0 < int(seconds) < 1000000 else None


def grace(environment: dict[str, str]) -> int:
    """How many seconds the ranks have to end after SIGTERM."""
    seconds = environment.get("WORKSHOP_GRACE") or "60"
    if not is_whole(seconds):
        raise Refused(f"WORKSHOP_GRACE expects seconds, not '{seconds}'")
    return int(seconds)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name[3:]
    except ValueError:
        return str(number)


def has_space(folder: str, ranks: int) -> bool:
    """Whether the folder can hold what the ranks share, and what mpirun keeps: some MB and files for each."""
    if not os.access(folder, os.W_OK):
        return False
    about = os.statvfs(folder)  # a file system without limits has no blocks and no files
    enough = not about.f_blocks or about.f_bavail * about.f_frsize >= (8 + 2 * ranks) << 20
    return enough and (not about.f_files or about.f_favail >= 20 + 10 * ranks)


def remove_tree(path: str) -> None:
    """Removes a folder with all that is in it, as far as it can be removed."""
    for folder, folders, files in os.walk(path, topdown=False):
        for name in files + folders:
            entry = os.path.join(folder, name)
            try:
                if os.path.isdir(entry) and not os.path.islink(entry):
                    os.rmdir(entry)
                else:
                    os.unlink(entry)
            except OSError:
                pass
    try:
        os.rmdir(path)
    except OSError:
        pass


# ---- the session: a folder of one job ------------------------------------------------------------------------------


class Session:
    """A folder for everything that a job keeps in the file system. It is locked while this process or mpirun, which
    inherits the descriptor `lock`, lives; the next start removes folders with a free lock."""

    def __init__(self, parent: str):
        self._remove_abandoned(parent)
        while True:
            self.path = os.path.join(parent, f"workshop-launch.{os.urandom(6).hex()}")
            os.mkdir(self.path, 0o700)
            try:  # until it is locked, another launcher may take it for abandoned and remove it
                self.lock = os.open(self.path, os.O_RDONLY)
            except FileNotFoundError:
                continue
            fcntl.flock(self.lock, fcntl.LOCK_EX)
            if os.path.isdir(self.path):
                return
            os.close(self.lock)

    @staticmethod
    def _remove_abandoned(parent: str) -> None:
        for entry in os.scandir(parent):
            if not entry.name.startswith("workshop-launch.") or not entry.is_dir(follow_symlinks=False):
                continue
            try:
                lock = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
            except OSError:
                continue
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_tree(entry.path)
            except OSError:
                pass  # its owner lives
            finally:
                os.close(lock)

    def statuses(self, name: str) -> list[tuple[int, int]]:
        """Status and rank of those that have `ended` or `failed`, as far as written."""
        try:
            with open(os.path.join(self.path, name), encoding="ascii") as file:
                words = [line.split() for line in file if line.endswith("\n")]
            return [(int(status), int(rank)) for status, rank in words]
        except (OSError, ValueError):
            return []

    def first_failed(self) -> int | None:
        failed = self.statuses("failed")
        return failed[0][0] if failed else None

    def is_over(self, ranks: int) -> bool:
        """Whether all ranks have ended well, or one has failed, after which mpirun ends the others."""
        return self.first_failed() is not None or len(self.statuses("ended")) == ranks

    def remove(self) -> None:
        remove_tree(self.path)
        os.close(self.lock)


# What mpirun starts: the program, and a note of how it ended. mpirun does not always say which rank a signal ended, and
# if it crashes, it loses the status. At a status that is not 0, it ends the other ranks, so a rank that has saved its
# state ends with 0 for it. Signals that mpirun passes on are for the program. $0 is the session's folder.
AS_RANK = r"""trap : USR1 USR2
exec 3>&2 2>/dev/null
if command -v setpriv; then set -- setpriv --pdeathsig KILL "$@"; fi >/dev/null
(exec "$@" 2>&3 3>&-)
status=$?
case $status in 0 | 75) file=ended ;; *) file=failed ;; esac
echo "$status $OMPI_COMM_WORLD_RANK" >>"$0/$file" && [ $status = 75 ] && exit 0
[ $status -le 128 ] || echo "launch: rank $OMPI_COMM_WORLD_RANK was ended by signal $(kill -l $((status - 128)))" >&3
exit $status"""

# ---- the launcher --------------------------------------------------------------------------------------------------


class Child:
    """A process that was started here."""

    def __init__(self, command: list[str], environment: dict[str, str], descriptors: dict[int, int]):
        """Starts it. `descriptors`: those of this process, by their numbers in the new one."""
        actions = [(os.POSIX_SPAWN_DUP2, mine, its) for its, mine in descriptors.items()]
        defaults = [signal.SIGINT, signal.SIGPIPE]
        self.pid = os.posix_spawnp(command[0], command, environment, file_actions=actions, setsigdef=defaults)
        self.status: int | None = None  # as in a shell: 128 + the number of the signal that ended it

    def poll(self) -> int | None:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else 128 - code
        return self.status


class Launcher:
    """Starts a job, passes on what it prints, and waits until it ends or has to be ended."""

    def __init__(self, job: Job, environment: dict[str, str]):
        self.job = job
        self.environment = dict(environment, **common_settings(environment, os.isatty(1)))
        self.session: Session | None = None
        self.started: list[Child] = []
        self.signal = 0  # that ends this process
        self.lost_output = False
        self._grace = grace(environment)
        self._begin = time.monotonic()
        self._asked = False  # to end, by SIGTERM
        self._asked_at: float | None = None  # when that was passed on
        self._passed_on: set[int] = set()  # other signals
        self._below: list[int] = []  # descriptors of processes that ranks had started when they were asked
        self._restarts_left = job.restarts
        self._failed = (0, 0)  # status and number of the process that counts
        self._kept: list[str] = []  # lines that say how ranks were ended
        self._wakeup = -1
        self._readers = {}  # what to do with data from a descriptor; None for one that just wakes this process
        self._poll = select.poll()
        self._pipes: set[int] = set()  # descriptors of mpirun's output
        self._notes: mpi.Notes | None = None
        self._pending = b""  # the begin of a line of mpirun's standard error

    def run(self, mpirun: str | None) -> int:
        """Starts the job, again if it may be. Returns its status."""
        while True:
            try:
                self.start(mpirun)
            except OSError as error:
                self._tell(f"cannot start: {error}")
                processes.stop_all([child.pid for child in self.started])
                return 2
            status = self.wait()
            why = self._why_again(status)
            for line in self._kept:
                if line != f"launch: {why}":
                    self._write_error(line + "\n")
            if not why:
                return status
            self._restarts_left -= 1
            self.close()
            self.session, self.started, self._notes, self._kept = None, [], None, []
            fewer = self.job.shrink and self.job.ranks > 1
            self.job.ranks -= fewer
            self._tell(
                f"{why}; starting again{f' on {self.job.ranks} rank(s)' if fewer else ''} "
                f"({self.job.restarts - self._restarts_left} of {self.job.restarts})"
            )

    # ---- starting ----

    def start(self, mpirun: str | None) -> None:
        if self.job.env:
            token = self.environment.get("WORKSHOP_JOB_TOKEN") or os.urandom(16).hex()
            port = free_port()
            for rank in range(self.job.ranks):
                self._start_here(torchrun_settings(rank, self.job.ranks, port, token))
        elif self.job.ranks == 1:
            self._start_here({})
        else:
            assert mpirun is not None
            self._start_mpirun(mpirun)
        for child in self.started:
            try:
                self._register(os.pidfd_open(child.pid), None)  # select() returns when it ends
            except (AttributeError, OSError):
                pass  # an old kernel: the loop looks every 0.1 s

    def _start_here(self, settings: dict[str, str]) -> None:
        command = processes.dying_with_me(self.job.command, "KILL")
        self.started.append(Child(command, dict(self.environment, **settings), {}))

    def _start_mpirun(self, mpirun: str) -> None:
        shared = "/dev/shm"
        if not has_space(shared, self.job.ranks):
            shared = os.environ.get("TMPDIR") or "/tmp"
        self.session = Session(shared)
        os.set_inheritable(self.session.lock, True)
        environment = dict(self.environment)
        environment.update(mpi.settings(mpirun, environment, self.session.path, os.geteuid() == 0))
        # Its output comes through this process: mpirun drops what it cannot write, on a full disk for example, and ends
        # well. It may write to a rank that has just ended, so it must survive a broken pipe.
        command = processes.dying_with_me(
            [
                "sh",
                "-c",
                "trap '' PIPE; exec \"$@\"",
                "sh",
                mpirun,
                "--oversubscribe",
                "--bind-to",
                "none",
                "-n",
                str(self.job.ranks),
                "sh",
                "-c",
                AS_RANK,
                self.session.path,
                *self.job.command,
            ],
            "TERM",
        )
        (out, its_out), (err, its_err) = os.pipe(), os.pipe()
        self.started.append(Child(command, environment, {1: its_out, 2: its_err}))
        os.close(its_out)
        os.close(its_err)
        self._register(out, self._print)
        self._register(err, self._print_notes)
        self._pipes = {out, err}

    def _register(self, descriptor: int, reader) -> None:
        self._readers[descriptor] = reader
        self._poll.register(descriptor, select.POLLIN)

    def _close(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        self._pipes.discard(descriptor)
        del self._readers[descriptor]
        os.close(descriptor)

    # ---- output ----

    def _print(self, data: bytes) -> None:
        try:
            while data and not self.lost_output:
                data = data[os.write(1, data) :]
        except OSError as error:
            self._tell(f"cannot write: {error.strerror}")
            self.lost_output = True

    def _print_notes(self, data: bytes) -> None:
        if not self._notes:
            self._notes = mpi.Notes(self.started[0].pid)
        *lines, self._pending = (self._pending + data).split(b"\n")
        texts = [line.decode("utf-8", "surrogateescape") for line in lines]
        self._write_error("".join(self._notes.line(text) for text in texts if not self._keeps(text)))

    def _keeps(self, line: str) -> bool:
        """Whether a line is not to be printed now. What signal has ended a rank may be the reason to start the job
        again, and it is no news if it is the one that was passed on."""
        if not line.startswith("launch: rank ") or " was ended by signal " not in line:
            return False
        if self._asked:
            return line.endswith((" TERM", " USR1"))
        if self._restarts_left:
            self._kept.append(line)
        return self._restarts_left > 0

    def _finish_notes(self) -> None:
        if self._notes:
            text = self._notes.line(self._pending.decode("utf-8", "surrogateescape")) if self._pending else ""
            self._pending = b""
            self._write_error(text + self._notes.end())

    @staticmethod
    def _write_error(text: str) -> None:
        try:
            data = text.encode("utf-8", "surrogateescape")
            while data:
                data = data[os.write(2, data) :]
        except OSError:
            pass

    def _tell(self, message: str) -> None:
        self._write_error(f"launch: {message}\n")

    def _read(self, seconds: float) -> None:
        """Passes on what has been printed. Returns after `seconds`, or when something was printed or a process
        ended."""
        for descriptor, _ in self._poll.poll(int(seconds * 1000)):
            reader = self._readers[descriptor]
            data = os.read(descriptor, 1 << 16) if reader else b""
            if data:
                reader(data)
            else:
                self._close(descriptor)

    # ---- until they end ----

    def _ranks_that_run(self) -> tuple[list[int], int]:
        """The ranks that run on this machine, and how many there are once all have started."""
        rank_name, size_name = (
            ("RANK", "LOCAL_WORLD_SIZE") if self.job.env else ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
        )
        pids = [child.pid for child in self.started]
        if not self.job.env:
            try:
                with open(f"/proc/{pids[0]}/task/{pids[0]}/children", encoding="ascii") as file:
                    pids += [int(pid) for pid in file.read().split()]
            except OSError:
                pids += processes.descendants(pids)
        running, size = [], 0
        for pid in pids:
            if processes.is_running(pid):
                variables = processes.environment_of(pid)
                if variables.get(rank_name, "").isdigit() and variables.get(size_name, "").isdigit():
                    running.append(int(variables[rank_name]))
                    size = int(variables[size_name])
        return running, size

    def wait(self) -> int:
        """Waits until the job ends, or ends it. Returns the status."""
        since = time.monotonic()
        looked, size, over_since = 0.0, 0, None
        patience = deadline(self.environment, self.job.ranks)
        waiting = list(enumerate(self.started))
        status, ended = 0, 0
        while waiting and not status:
            over = [entry for entry in waiting if entry[1].poll() is not None]
            if over:
                waiting = [entry for entry in waiting if entry not in over]
                failed = [(child.status or 0, rank) for rank, child in over if child.status not in (0, SAVED)]
                # Of those that ended since the last look, one that a signal ended may have made the others fail.
                status, ended = max(failed, key=lambda one: one[0] > 128, default=(0, 0))
                continue
            self._read(0.1)
            now = time.monotonic()
            if self._asked and self._asked_at is None and not self.signal:
                self._ask(now)
            if self.signal:
                status = 128 + self.signal
            elif self._asked_at is not None and now - self._asked_at >= self._grace:
                self._tell(f"the ranks have not ended, {self._grace} s after SIGTERM")
                self.signal = signal.SIGTERM
                status = 128 + self.signal
            elif self.job.seconds is not None and now - self._begin >= self.job.seconds:
                self._tell(f"ended after {self.job.seconds} seconds")
                status = TIMED_OUT
            elif self.session and self.session.is_over(self.job.ranks):
                over_since = over_since or now
                if now - over_since > 5:
                    # At the end of mpirun, PMIx 4.2 sometimes waits for a lock that it holds itself.
                    processes.stop_all([self.started[0].pid])
                    self._drain()
                    return self._status(self.session.first_failed() or 0)
            elif patience and (size == 0 or now - looked >= 1):
                # A rank that is stopped on its way out has no other rank to notice it.
                looked = now
                running, found = self._ranks_that_run()
                size = max(size, found)
                if len(running) >= size:
                    since = now
                if now - since > patience:
                    for name in [f"rank {rank}" for rank in running] or ["mpirun"]:
                        self._tell(f"{name} has not ended, {patience} s after others")
                    status = STUCK
        status = self._explained(status, ended)
        if status:
            processes.stop_all([child.pid for child in self.started])
        self._end_what_is_below()
        self._drain()
        return self._status(status)

    def _ask(self, now: float) -> None:
        """Passes SIGTERM on, so that the ranks save their state and end."""
        self._asked_at = now
        pids = [child.pid for child in self.started if child.status is None]
        if not self.session:
            self._below = descriptors_of(processes.descendants(pids))
            processes.send(signal.SIGTERM, pids)
            return
        running, size = self._ranks_that_run()
        over = len(self.session.statuses("ended")) + len(self.session.statuses("failed"))
        if len(running) + over < max(size, 1):
            self.signal = signal.SIGTERM  # mpirun has not started all of them: it would pass nothing on
        else:
            processes.send(signal.SIGUSR1, pids)

    def _end_what_is_below(self) -> None:
        """Ends what ranks have left behind that a signal has ended."""
        for descriptor in self._below:
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            except OSError:
                pass  # it has ended
            os.close(descriptor)
        self._below = []

    def _explained(self, status: int, ended: int) -> int:
        """The status of the rank that failed; says how a process was ended, unless its rank has said so."""
        self._failed = (status, ended)
        if status <= 128 or self.signal:
            return status
        if not self.session:
            line = f"launch: rank {ended} was ended by signal {signal_name(status - 128)}"
            if not self._keeps(line):
                self._write_error(line + "\n")
            return status
        failed = self.session.first_failed()
        if failed is None:
            self._tell(f"mpirun ended with status {status}")
        return status if failed is None else failed

    def _status(self, status: int) -> int:
        """The status of the job: a rank that was asked to end may have been ended by that, or have saved its state."""
        if self._asked and status - 128 in (signal.SIGTERM, signal.SIGUSR1):
            return 128 + signal.SIGTERM
        saved = [child.status for child in self.started]
        if self.session:
            saved += [note for note, _ in self.session.statuses("ended")]
        return SAVED if status == 0 and SAVED in saved else status

    def _why_again(self, status: int) -> str:
        """Why the job is to be started again, or "" if it is not."""
        if not self._restarts_left or self.signal or self._asked or self.lost_output or status in (0, SAVED, TIMED_OUT):
            return ""
        if not all(has_ended(child) for child in self.started):
            return ""  # its ranks may still write what the next ones would read
        failed = self.session.statuses("failed") if self.session else [self._failed]
        first, rank = failed[0] if failed else (0, 0)
        if first > 128 and first - 128 not in self._passed_on:
            return f"rank {rank} was ended by signal {signal_name(first - 128)}"
        return f"the ranks were stuck (status {STUCK})" if status == STUCK else ""

    def _drain(self) -> None:
        """Passes on the rest of what was printed."""
        end = time.monotonic() + 2
        while self._pipes and time.monotonic() < end:
            self._read(0.1)
        self._finish_notes()

    def close(self) -> None:
        """Gives back what the job was started with."""
        for descriptor in set(self._readers) - {self._wakeup}:
            self._close(descriptor)
        if self.session:
            self.session.remove()

    # ---- signals ----

    def handle_signals(self) -> None:
        def end(number: int, _frame: object) -> None:
            self.signal = number

        def ask_to_end(number: int, _frame: object) -> None:
            if self._asked or not self._grace:
                self.signal = number
            self._asked = True

        def pass_on(number: int, _frame: object) -> None:
            self._passed_on.add(number)
            processes.send(number, [child.pid for child in self.started])

        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, end)
        signal.signal(signal.SIGTERM, ask_to_end)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, pass_on)
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # a signal ends poll()
        self._register(reader, lambda data: None)
        self._wakeup = reader


def has_ended(child: Child) -> bool:
    """Waits a moment for a process that was ended. Returns whether it is no more."""
    end = time.monotonic() + 5
    while child.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    return child.poll() is not None


def descriptors_of(pids: list[int]) -> list[int]:
    """Descriptors of processes: a number may be another's process later, a descriptor may not."""
    found = []
    for pid in pids:
        try:
            found.append(os.pidfd_open(pid))
        except (AttributeError, OSError):
            pass  # it has ended, or the kernel is old
    return found


def choose(job: Job, environment: dict[str, str]) -> str | None:
    """Sets job.env if the ranks are to be started without mpirun; else returns mpirun, if it is needed."""
    if not job.env and not needs_mpi(job.command[0], environment.get("WORKSHOP_BACKEND", "cpu")):
        job.env = True
    if job.env or job.ranks == 1:
        return None
    mpirun, others = mpi.find_mpirun(environment["PATH"])
    if mpirun:
        return mpirun
    if others:
        raise Refused(
            f"the programs need Open MPI's mpirun; {others[0]} is of another MPI "
            f"({mpi.first_line_of_version(others[0])})"
        )
    raise Refused("mpirun is missing ('./workshop setup' installs it)")


def main(words: list[str]) -> int:
    environment = own_environment(dict(os.environ))
    try:
        job = parse(words)
        mpirun = choose(job, environment)
        launcher = Launcher(job, environment)
    except Refused as refused:
        print(f"launch: {refused}", file=sys.stderr)
        return 2
    launcher.handle_signals()
    try:
        return launcher.run(mpirun) or int(launcher.lost_output)
    finally:
        launcher.close()
