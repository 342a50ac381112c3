# SPDX-License-Identifier: Apache-2.0
"""Starts a Slurm cluster of two nodes on this machine, node1 and node2, and runs a command there.

  with_cluster.py SECONDS COMMAND [ARGUMENT]...

For Slurm, each node has 16 cores and two GPUs. The cluster's daemons have their own key, ports and folders; no other
daemon or configuration of the machine is changed. Everything, including jobs, is taken down when the command ends, when
SECONDS are over (status 124), or when this is interrupted or killed.

The command finds the cluster through SLURM_CONF; $CLUSTER is its folder, which has the daemons' logs. Ends with the
command's status, or with 77 if Slurm is not installed.
"""

from __future__ import annotations

import glob
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

import jobs

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
CGROUPS = "/sys/fs/cgroup/cpu"

CONFIGURATION = """\
ClusterName=workshop
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdTimeout=10
KillWait=2
ReturnToService=2
GresTypes=gpu
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port_of_node1} CPUs=16 Gres=gpu:2
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port_of_node2} CPUs=16 Gres=gpu:2
PartitionName=all Nodes=node1,node2 Default=YES MaxTime=30 State=UP
"""


# ---- taking down ---------------------------------------------------------------------------------------------------


def of_cluster(folder: str) -> list[int]:
    """All processes that were started with the cluster's configuration in their environment: daemons, steps, ranks."""
    mark = f"SLURM_CONF={folder}/slurm.conf".encode()
    return [pid for pid, environment in jobs.environments() if mark in environment]


def take_down(folder: str, share: str) -> None:
    """Ends what is of the cluster, and removes its folder and its share of the cores."""

    def all_have_ended() -> bool:
        left = of_cluster(folder)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # it has ended
        return not left

    if not jobs.until(all_have_ended, 5):
        print("with_cluster: could not end", *of_cluster(folder), file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    if share:
        os.rmdir(share)


class Cleaner:
    """A process that takes the cluster down when close() is called, or when the process that made it is no more. It is
    no child of that process, so it survives what ends all its children."""

    def __init__(self, folder: str, share: str):
        alive, self._alive = os.pipe()
        self._done, done = os.pipe()
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                os.close(self._alive)
                os.close(self._done)
                self._run(alive, folder, share)
            os._exit(0)
        os.waitpid(child, 0)
        os.close(alive)
        os.close(done)

    @staticmethod
    def _run(alive: int, folder: str, share: str) -> None:
        try:
            os.setsid()
            on_interrupts(signal.SIG_IGN)
            os.read(alive, 1)  # nothing comes: it returns at the end of the pipe
            take_down(folder, share)
        except OSError as error:
            print(f"with_cluster: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(0)

    def close(self) -> None:
        os.close(self._alive)
        os.read(self._done, 1)  # the same


def share_of_cores(folder: str) -> str:
    """A control group for the cluster, or "". Linux gives each session a share of the cores (autogroup), and each step
    on each node is a session. Ranks that wait yield, and Linux 6.18 may then leave other ranks without a core for good.
    A control group makes one share for all. This happens only in the root control group, so it is needed only there."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        if not re.search(r":cpu(,cpuacct)?:/$", file.read(), re.M):
            return ""
    share = os.path.join(CGROUPS, os.path.basename(folder))
    try:
        os.mkdir(share)
    except OSError:
        return ""
    return share


def enter(group: str) -> None:
    with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
        file.write(str(os.getpid()))


# ---- bringing up ---------------------------------------------------------------------------------------------------


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def free_ports() -> int:
    """The first of three ports that nothing uses, below the ports that jobs and the system use."""
    while True:
        port = random.randrange(10000, 19000)
        if all(is_free(port + i) for i in range(3)):
            return port


def configure(folder: str) -> None:
    """Writes the files of the daemons. Both nodes are this machine. Paths that they must not share contain %n, the
    node's name."""
    for name in ("state", "spool.node1", "spool.node2", "tmp.node1", "tmp.node2"):
        os.mkdir(os.path.join(folder, name))
    with open(os.open(os.path.join(folder, "munge.key"), os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(os.urandom(1024))
    with open(os.path.join(folder, "gres.conf"), "w", encoding="ascii") as file:
        file.write("Name=gpu File=/dev/null,/dev/zero\n")  # any two devices serve as GPUs
    port = free_ports()
    with open(os.path.join(folder, "slurm.conf"), "w", encoding="ascii") as file:
        file.write(
            CONFIGURATION.format(
                folder=folder,
                host=socket.gethostname().partition(".")[0],
                user=pwd.getpwuid(os.getuid()).pw_name,
                port=port,
                port_of_node1=port + 1,
                port_of_node2=port + 2,
            )
        )


def bring_up(folder: str) -> bool:
    """Starts the daemons. Returns whether both nodes are ready for jobs within 20 seconds."""
    with open(os.path.join(folder, "bring_up.log"), "wb") as log:
        # --force, because it refuses to have its files below /tmp.
        for command in (
            [
                "munged",
                "--force",
                f"--socket={folder}/munge.socket",
                f"--key-file={folder}/munge.key",
                f"--pid-file={folder}/munged.pid",
                f"--log-file={folder}/munged.log",
                f"--seed-file={folder}/munge.seed",
            ],
            ["slurmctld"],
            ["slurmd", "-N", "node1"],
            ["slurmd", "-N", "node2"],
        ):
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=60, check=False)
            if done.returncode:
                return False
    return jobs.until(lambda: jobs.said("sinfo", "-h", "-o", "%D %t") == "2 idle\n", 60)


def show_logs(folder: str) -> None:
    for path in sorted(glob.glob(os.path.join(folder, "*.log"))):
        with open(path, encoding="utf-8", errors="replace") as file:
            print(f"==> {path} <==", *file.read().splitlines()[-20:], sep="\n", flush=True)


# ---- the command ---------------------------------------------------------------------------------------------------


def on_interrupts(handler) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def interrupted(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def set_up_environment(folder: str) -> None:
    """Settings of an enclosing job or of the user must not affect this cluster."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SBATCH_", "SRUN_")):
            del os.environ[name]
    os.environ.update(CLUSTER=folder, SLURM_CONF=f"{folder}/slurm.conf", TMPDIR=folder)


def run(seconds: str, command: list[str], folder: str) -> int:
    configure(folder)
    if not bring_up(folder):
        print("with_cluster: the cluster does not come up")
        show_logs(folder)
        return 1
    launch = os.path.join(jobs.ROOT, "tools", "launch")
    return subprocess.Popen([launch, "-n", "1", "-t", seconds, "--", *command]).wait()  # launch ends it in time


def main(words: list[str]) -> int:
    os.environ["PATH"] = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    for tool in TOOLS:
        if not shutil.which(tool):
            print(f"skipped: no {tool} here; './workshop setup --with-slurm' installs it")
            return 77
    folder = tempfile.mkdtemp(prefix="workshop-slurm.", dir="/tmp")
    share = share_of_cores(folder)
    cleaner = Cleaner(folder, share)
    try:
        on_interrupts(interrupted)
        if share:
            enter(share)
        set_up_environment(folder)
        return run(words[0], words[1:], folder)
    finally:
        on_interrupts(signal.SIG_IGN)
        if share:
            enter(CGROUPS)
        cleaner.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
