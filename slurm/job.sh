#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shared by the jobs of all chapters. Their scripts call it on the job's first node, in the folder of the repository:
#
#   slurm/job.sh CHAPTER DEFAULT [PROGRAM] [--solution] [--report] [OPTION]...
#
# Starts the chapter's PROGRAM (or DEFAULT) on all nodes of the job, with these options. With --report it then prints a
# report of the run, and draws it if plotly is installed.
#
# Two minutes before the time limit, Slurm sends USR1 to this shell. The ranks do not get it from Slurm, because it would
# end a program that saves nothing. In a run with --checkpoints, this shell passes it on to the ranks, which save their
# state and end with 75. If the run also has --resume, the job goes back to the queue and continues later.
set -u
trap '' USR1
# shellcheck disable=SC1091  # site.sh is checked separately
source slurm/site.sh
chapter=$1 program=$2 folder=$WORKSHOP_BUILD
shift 2
if [[ ${1-} == [!-]* ]]; then program=$1; shift; fi
if [[ ${1-} == --solution ]]; then folder+=/solutions; shift; fi
report=''
if [[ ${1-} == --report ]]; then report=runs/report/job-$SLURM_JOB_ID; shift; fi
program=$folder/$chapter/$program
if [[ ! -x $program ]]; then
  echo "job.sh: there is no program '$program'; './workshop setup --backend $WORKSHOP_BACKEND' builds it" >&2
  exit 2
fi

saves='' resumes=''
[[ " $* " != *' --checkpoints'[\ =]* ]] || saves=yes
[[ ! $saves || " $* " != *' --resume'[\ =]* ]] || resumes=yes
# The scripts say --no-requeue, because after a failure of a node, most runs would begin anew, unnoticed. A run that
# resumes would continue, so its job may be requeued.
[[ ! $resumes ]] || scontrol update JobId="$SLURM_JOB_ID" Requeue=1

# Passes USR1 on to the ranks, once there are any.
ask_to_save() {
  asked=yes
  while kill -0 "$step" 2>/dev/null && ! scancel --signal=USR1 "$SLURM_JOB_ID.0" 2>/dev/null; do sleep 1; done
}

# Runs the program with these options, and returns its status. If the program has saved its state, ends the job.
run() {
  local status asked=''
  if [[ ! $saves ]]; then
    "${WORKSHOP_STEP:-slurm/step}" -- "$program" "$@"
    return
  fi
  "${WORKSHOP_STEP:-slurm/step}" -- "$program" "$@" &
  step=$!
  trap ask_to_save USR1
  # USR1 also ends a wait, with the status 128 + 10.
  while wait "$step"; status=$?; [[ $status == 138 && $asked ]]; do asked=''; done
  trap '' USR1
  ((status == 75)) || return "$status"
  if [[ ! $resumes ]]; then
    echo 'job.sh: the run has saved its state; with --resume, it could have gone on by itself' >&2
  else
    # The message comes first, because Slurm may end this shell as soon as it gets the request.
    echo "job.sh: the run has saved its state; job $SLURM_JOB_ID goes back to the queue" >&2
    scontrol requeue "$SLURM_JOB_ID" || echo 'job.sh: Slurm refuses; start the job again with sbatch' >&2
  fi
  exit "$status"
}

[[ $report || $saves ]] || exec "${WORKSHOP_STEP:-slurm/step}" -- "$program" "$@"
[[ $report ]] || { run "$@"; exit; }

mkdir -p runs/report
files=("$report.jsonl" "$report.json")
export WORKSHOP_PROBES=0
run "$@" --record "${files[0]}" --timeline "${files[1]}" || exit
"$WORKSHOP_BUILD/tools/report" "${files[@]}" || exit
if tools/report/python_with_plotly >/dev/null; then
  ./workshop report -o "$report.html" "${files[@]}"
else
  echo "With plotly installed, './workshop report ${files[*]}' draws it"
fi
