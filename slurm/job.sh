#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shared by the jobs of all chapters. Their scripts call it on the job's first node, in the folder of the repository:
#
#   slurm/job.sh CHAPTER DEFAULT [PROGRAM] [--solution] [--report] [OPTION]...
#
# Starts the chapter's PROGRAM (or DEFAULT) on all nodes of the job, with these options. With --report it then prints a
# report of the run, and draws it if plotly is installed.
set -u
# shellcheck disable=SC1091  # it is checked by itself
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

[[ $report ]] || exec "${WORKSHOP_STEP:-slurm/step}" -- "$program" "$@"

mkdir -p runs/report
files=("$report.jsonl" "$report.json")
WORKSHOP_PROBES=0 "${WORKSHOP_STEP:-slurm/step}" -- "$program" "$@" --record "${files[0]}" --timeline "${files[1]}" || exit
"$WORKSHOP_BUILD/tools/report" "${files[@]}" || exit
if tools/report/python_with_plotly >/dev/null; then
  ./workshop report -o "$report.html" "${files[@]}"
else
  echo "With plotly installed, './workshop report ${files[*]}' draws it"
fi
