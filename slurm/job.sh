#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the jobs of all chapters share. Their scripts call it on the job's first node, in the folder of the repository:
#
#   slurm/job.sh CHAPTER DEFAULT [PROGRAM] [--solution] [OPTION]...
#
# starts the chapter's program, by default DEFAULT, on all of the job's nodes, with the options given.
set -u
# shellcheck disable=SC1091  # it is checked by itself
source slurm/site.sh
chapter=$1 program=$2 folder=$WORKSHOP_BUILD
shift 2
if [[ ${1-} == [!-]* ]]; then program=$1; shift; fi
if [[ ${1-} == --solution ]]; then folder+=/solutions; shift; fi
program=$folder/$chapter/$program
if [[ ! -x $program ]]; then
  echo "job.sh: there is no program '$program'; './workshop setup --backend $WORKSHOP_BACKEND' builds it" >&2
  exit 2
fi

# A program that is not linked to MPI needs no one to start it for it.
mpi=$WORKSHOP_SRUN_MPI
ldd "$program" 2>/dev/null | grep -q libmpi || mpi=none

# Where ranks without MPI meet, the first node, and where ncclras finds them: ports that other jobs do not have.
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR=${nodes[0]} MASTER_PORT=$((20000 + 2 * (SLURM_JOB_ID % 4000)))
export NCCL_RAS_ADDR=localhost:$((MASTER_PORT + 1))
# By which they know each other there.
export WORKSHOP_JOB_TOKEN=${WORKSHOP_JOB_TOKEN:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
if [[ $WORKSHOP_INTERFACE ]]; then
  export NCCL_SOCKET_IFNAME=$WORKSHOP_INTERFACE OMPI_MCA_btl_tcp_if_include=$WORKSHOP_INTERFACE
fi

echo "Job $SLURM_JOB_ID: $program${*:+ $*} on $SLURM_NTASKS rank(s) of ${nodes[*]}, srun --mpi=$mpi," \
  "$MASTER_ADDR:$MASTER_PORT, $(date '+%F %T')"
# srun does not take the cores a task from the job by itself. A rank that fails takes the others with it, and its status
# counts; srun's own is the highest, which may be 143, of those that it ended. --wait: ranks that do not end although
# others have.
exec 3>&1
patience=${WORKSHOP_TIMEOUT:-60}
failed=$(set -o pipefail
  srun --mpi="$mpi" --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=1 --wait="${patience%%.*}" \
    "$program" "$@" 2>&1 >&3 |
    sed -un -e 'w /dev/stderr' -e 's/^srun: error: .*: Exited with exit code \([0-9]*\)$/\1/p')
status=$?
failed=${failed:-$status}
exit "${failed%%[!0-9]*}"
