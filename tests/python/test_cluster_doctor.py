# SPDX-License-Identifier: Apache-2.0
"""What slurm/doctor says of clusters that are pretended here, and the parts that it is made of.
tests/slurm/doctor_test.py runs it on a real cluster, which has no GPUs."""

import os
import re
import shutil
import subprocess
import time

import pytest
from conftest import ROOT
from workshop import cluster_doctor
from workshop.cluster_doctor import Said, Seen

# ---- the parts ----


def test_what_nodes_have_seen():
    seen = Seen("node1 time 5.5\nnode1 library libnccl.so.2\nnode1 library libmpi.so\nnode2 folder\nsrun: error: x y\n")
    assert seen.one("node1", "time") == "5.5" and seen.all("node1", "library") == ["libnccl.so.2", "libmpi.so"]
    assert seen.has("node2", "folder") and not seen.has("node1", "folder") and seen.one("node2", "time") == ""


def test_clocks():
    seen = Seen("a time 100.5\nb time 99.1\nc time 98.5\nd time 107.2\ne time 3700")
    assert cluster_doctor.differing_clocks(seen, list("abcde"), 100, 102) == ["c by -2 s", "d by 5 s", "e by 3598 s"]
    assert cluster_doctor.differing_clocks(seen, ["a", "b"], 100, 102) == []


def test_gpus():
    seen = Seen(
        "n1 gpu 0, H100, Not Active, Not Active, Not Active\nn1 gpu 1, H100, Not Active, Active, Not Active\n"
        "n2 gpu 0, H100, Active, Not Active, Not Active\n"
    )
    assert cluster_doctor.few_gpus(seen, ["n1", "n2", "n3"], 2) == ["n2 1", "n3 0"]
    assert cluster_doctor.slow_gpus(seen, ["n1", "n2"]) == ["n1 GPU 1", "n2 GPU 0"]


@pytest.mark.parametrize(
    "text,reason",
    [
        ("all\nWRONG: 2 tasks\nsrun: error: node1: task 0\n", "WRONG: 2 tasks"),
        ("srun: error: first\nan error of its own\nlast\n", "an error of its own"),
        ("rank 0: verdict\nsrun: error: x", "rank 0: verdict"),
        ("srun: error: node1\nsrun: it ends\n", "srun: it ends"),
        ("", ""),
    ],
)
def test_the_reason_of_a_failure(text, reason):
    assert Said(1, text).reason() == reason


def test_bandwidth():
    assert cluster_doctor.bandwidth_of("size a b c\n1024 x 1 2.5\n67108864 float 9.1 42.5 0\n") == "42.5"
    assert cluster_doctor.bandwidth_of("67108864 float\nerror") == ""


def test_a_command_and_what_it_has_started_are_ended_in_time():
    begin = time.monotonic()
    said = cluster_doctor.say(["sh", "-c", "echo begun; sleep 60 & echo $!; wait"], 3)
    assert said.status == 124 and time.monotonic() - begin < 30
    begun, pid = said.text.split()
    assert begun == "begun" and not cluster_doctor.processes.is_running(int(pid))


def test_statuses_are_those_of_a_shell():
    assert cluster_doctor.say(["sh", "-c", "echo out; echo err >&2; exit 3"], 60).status == 3
    assert cluster_doctor.say(["sh", "-c", "kill -KILL $$"], 60).status == 137
    assert cluster_doctor.say(["printenv", "GIVEN"], 60, GIVEN="value").text == "value\n"


# ---- the whole, on pretended clusters ----

SCONTROL = "#!/bin/sh\necho node1; echo node2\n"
# srun: lists its MPIs; starts the command once per node; or says why not.
SRUN = """#!/bin/sh
case "$*" in --mpi=list) printf 'MPI plugin types are...\\n\\tnone\\n\\tpmix\\n'; exit;; esac
while [ "$1" != sh ]; do shift; done
for node in $NODES_UP; do SLURMD_NODENAME=$node "$@"; done
[ "$NODES_UP" = 'node1 node2' ] || echo 'srun: error: node2 is down' >&2
"""
SMI = '#!/bin/sh\nif [ $SLURMD_NODENAME = node2 ]; then printf "$GPUS_OF_NODE2"; else printf "$GPUS"; fi\n'
LDD = '#!/bin/sh\n[ "$SLURMD_NODENAME" = node2 ] && printf "$LDD_OF_NODE2"\nprintf "$LDD"\n'
STEP = """#!/bin/sh
case "$*" in
  *hello*) printf "$HELLO"; exit ${HELLO_STATUS-0} ;;
  "-n 2 -N 1 -- "*"/bandwidth --op send_recv --min-kib 65536 --max-mib 64") echo "67108864 float 1 $NODE_MEASURED" ;;
  "-n 2 -N 2 -- "*"/bandwidth --op send_recv --min-kib 65536 --max-mib 64") echo "67108864 float 1 $NETWORK_MEASURED" ;;
  *) exit 9 ;;
esac
"""
TWO_GPUS = "0, H100, Not Active, Not Active, Not Active\\n1, H100, Not Active, Not Active, Not Active\\n"


@pytest.fixture(name="clone")
def make_clone(tmp_path):
    """A clone with slurm/doctor, tools/python and the programs, where all that speaks with Slurm is pretended."""
    clone = tmp_path / "clone"
    (clone / "slurm").mkdir(parents=True)
    for name in ("doctor", "site.sh"):
        shutil.copy(os.path.join(ROOT, "slurm", name), clone / "slurm")
    (clone / "tools").mkdir()
    (clone / "tools" / "python").symlink_to(os.path.join(ROOT, "tools", "python"))
    (clone / "bin").mkdir()
    programs = clone / "programs" / "solutions" / "00_collectives"
    programs.mkdir(parents=True)
    for path, text in (
        (clone / "bin" / "scontrol", SCONTROL),
        (clone / "bin" / "srun", SRUN),
        (clone / "bin" / "nvidia-smi", SMI),
        (clone / "bin" / "ldd", LDD),
        (clone / "slurm" / "step", STEP),
        (programs / "hello", "#!/bin/sh\n"),
    ):
        path.write_text(text)
        path.chmod(0o755)
    return clone


def doctor(clone, **variables):
    """Runs it in the clone. Returns the status and the lines."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WORKSHOP_", "SLURM_"))}
    environment.update(
        PATH=f"{clone}/bin:{os.environ['PATH']}",
        SLURM_JOB_ID="7",
        SLURM_JOB_NODELIST="node[1-2]",
        SLURM_NTASKS="4",
        WORKSHOP_BUILD="programs",
        WORKSHOP_BACKEND="cuda",
        NODES_UP="node1 node2",
        GPUS=TWO_GPUS,
        GPUS_OF_NODE2=TWO_GPUS,
        LDD="\\tlibmpi.so.40 => /lib/libmpi.so.40\\n",
        LDD_OF_NODE2="",
        HELLO="hello with NCCL 2.19.3\\nThe job uses what it was given\\n",
        NODE_MEASURED="300.0",
        NETWORK_MEASURED="40.0",
    )
    environment.update(variables)
    done = subprocess.run(
        ["slurm/doctor"],
        cwd=clone,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert list(clone.glob("runs/doctor.*")) == []
    return done.returncode, done.stdout.splitlines()


def test_all_is_well(clone):
    status, lines = doctor(clone, WORKSHOP_NODE_GBS="360", WORKSHOP_INTERFACE="lo")
    assert (status, [re.sub("within [0-9]+ s$", "within # s", line) for line in lines]) == (
        0,
        [
            "Job 7: 2 node(s), node1 node2, with 2 task(s) each; backend cuda",
            "ok     launch   srun starts tasks on all nodes",
            f"ok     folders  all nodes see and write {clone}",
            "ok     clocks   the nodes' clocks agree within # s",
            "ok     GPUs     2 or more on every node, none slowed down by heat or power",
            "ok     NCCL     NCCL 2.19.3: The job uses what it was given",
            "ok     links    two ranks of node1: 300.0 GB/s each way, expected 360",
            "ok     links    node1 and node2: 40.0 GB/s each way; to compare it, set WORKSHOP_NETWORK_GBS in "
            "slurm/site.sh",
            "All is well",
        ],
    )


@pytest.mark.parametrize(
    "variables,last_lines",
    [
        (
            {"NODES_UP": "node1"},
            [
                "WRONG  launch   srun cannot start tasks on node2: srun: error: node2 is down; 'scontrol show node "
                "node2' shows the reason"
            ],
        ),
        (
            {"GPUS_OF_NODE2": "0, H100, Not Active, Not Active, Not Active\\n"},
            [
                "WRONG  GPUs     fewer GPUs than the job's 2 tasks per node: node2 1 (run nvidia-smi there)",
                "-      NCCL     not tried, and neither are the links: first fix the errors above",
            ],
        ),
        (
            {"GPUS_OF_NODE2": TWO_GPUS.replace("Not Active", "Active", 1)},
            [
                "WRONG  GPUs     slowed down by heat or power: node2 GPU 0; run 'nvidia-smi -q -d PERFORMANCE' there, "
                "and ask the administrators",
                "-      NCCL     not tried, and neither are the links: first fix the errors above",
            ],
        ),
        (
            {"WORKSHOP_SRUN_MPI": "pmi9"},
            ["WRONG  launch   srun has no --mpi=pmi9 but none pmix: set WORKSHOP_SRUN_MPI in slurm/site.sh"],
        ),
        (
            {"HELLO": "NCCL error 3\\n", "HELLO_STATUS": "3"},
            [
                "WRONG  NCCL     hello on all ranks ends with status 3: NCCL error 3; './workshop submit 00 hello "
                "--solution --wait' shows the whole output, slurm/README.md says what to check"
            ],
        ),
        (
            {
                "WORKSHOP_NODE_GBS": "360",
                "NODE_MEASURED": "251",
                "WORKSHOP_NETWORK_GBS": "50",
                "NETWORK_MEASURED": "35",
            },
            [
                "WRONG  links    two ranks of node1: 251 GB/s each way, expected 360: 'NCCL_DEBUG=INFO ./workshop "
                "submit 00 bandwidth --solution --wait' names interface and transport (WORKSHOP_NODE_GBS)",
                "ok     links    node1 and node2: 35 GB/s each way, expected 50",
            ],
        ),
        (
            {"NODE_MEASURED": "", "WORKSHOP_NETWORK_GBS": "much"},
            [
                "WRONG  links    two ranks of node1: bandwidth fails: 67108864 float 1 ",
                "WRONG  links    node1 and node2: 40.0 GB/s each way, but WORKSHOP_NETWORK_GBS in slurm/site.sh is no "
                "number: 'much'",
            ],
        ),
        (
            {"LDD_OF_NODE2": "\\tlibnccl.so.2 => not found\\n\\tlibx.so => not found\\n", "WORKSHOP_INTERFACE": "no0"},
            [
                "WRONG  programs node2 lacks libnccl.so.2 libx.so: load the modules that the programs were built with "
                "in slurm/site.sh"
            ],
        ),
    ],
)
def test_what_is_wrong(clone, variables, last_lines):
    status, lines = doctor(clone, **variables)
    assert status == 1 and "All is well" not in lines
    if "LDD_OF_NODE2" in variables:  # what comes after depends on the interfaces of this machine
        assert last_lines[0] in lines
        assert [line[:42] for line in lines if "network" in line] == [
            f"WRONG  network  {node} has no interface no0"[:42] for node in ("node1", "node2")
        ]
    else:
        assert lines[-len(last_lines) :] == last_lines


def test_programs_that_are_not_there(clone):
    status, lines = doctor(clone, WORKSHOP_BUILD="elsewhere")
    for node in ("node1", "node2"):
        assert (
            f"WRONG  programs {node} has no {clone}/elsewhere/solutions/00_collectives/hello: WORKSHOP_BUILD must be a "
            "folder that all nodes see"
        ) in lines
    assert status == 1


def test_programs_without_mpi_need_none_of_srun(clone):
    assert doctor(clone, LDD="", WORKSHOP_SRUN_MPI="pmi9")[0] == 0


def test_a_folder_that_cannot_be_written(clone):
    (clone / "runs").write_text("no folder")
    status, lines = doctor(clone)
    assert status == 1 and lines[1:] == [f"WRONG  folders  the first node cannot write to {clone}/runs"]
