#!/usr/bin/env bash
# What the jobs of all chapters share. Their scripts call it on the job's first node, in the folder of the repository:
#
#   slurm/job.sh CHAPTER DEFAULT [PROGRAM] [--solution] [OPTION]...
#
# starts the chapter's program, by default DEFAULT, on all of the job's nodes, with the options given.
set -u
die() { echo "$SLURM_JOB_NAME: $1" >&2; exit 2; }

[[ -e slurm/site.sh ]] || die "submit jobs in the workshop's folder; $PWD is not"
# shellcheck disable=SC1091  # it is checked by itself
source slurm/site.sh
chapter=$1 program=$2 folder=$WORKSHOP_BUILD
shift 2
if [[ ${1-} == [!-]* ]]; then program=$1; shift; fi
if [[ ${1-} == --solution ]]; then folder+=/solutions; shift; fi
program=$folder/$chapter/$program
[[ -x $program ]] || die "there is no program '$program'; './workshop setup --backend $WORKSHOP_BACKEND' builds it"

# A program that is not linked to MPI needs no one to start it for it.
mpi=$WORKSHOP_SRUN_MPI
ldd "$program" 2>/dev/null | grep -q libmpi || mpi=none

# Where ranks without MPI meet: the first node, at a port that another job on that node does not have.
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR=${nodes[0]} MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
if [[ $WORKSHOP_INTERFACE ]]; then
  export NCCL_SOCKET_IFNAME=$WORKSHOP_INTERFACE OMPI_MCA_btl_tcp_if_include=$WORKSHOP_INTERFACE
fi

echo "Job $SLURM_JOB_ID: $program${*:+ $*} on $SLURM_NTASKS rank(s) of ${nodes[*]}, srun --mpi=$mpi," \
  "$MASTER_ADDR:$MASTER_PORT, $(date '+%F %T')"
# srun does not take the cores a task from the job by itself. A rank that fails takes the others with it, and its status
# counts; srun's own is the highest, which may be 143, of those that it ended.
exec 3>&1
failed=$(set -o pipefail
  srun --mpi="$mpi" --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=1 "$program" "$@" 2>&1 >&3 |
    sed -un -e 'w /dev/stderr' -e 's/^srun: error: .*: Exited with exit code \([0-9]*\)$/\1/p')
status=$?
failed=${failed:-$status}
exit "${failed%%[!0-9]*}"
