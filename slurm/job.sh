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

exec "${WORKSHOP_STEP:-slurm/step}" -- "$program" "$@"
