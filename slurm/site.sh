#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Settings that differ between clusters. './workshop submit' reads this file before it calls sbatch, and every job reads
# it again on its first node. A variable that is already set keeps its value.

# Options of sbatch. They override the scripts' #SBATCH lines; sbatch's command line overrides them.
# export SBATCH_ACCOUNT=${SBATCH_ACCOUNT:-my-project}
# export SBATCH_PARTITION=${SBATCH_PARTITION:-gpu}

# The modules that the programs were built with. If jobs do not know 'module', source its init file first.
# module load gcc/12 cuda/12.4 nccl openmpi cmake

# The backend (cuda, or cpu for nodes without GPUs) and the GPUs per node. 'submit --nodes 2' takes all GPUs of a node.
export WORKSHOP_BACKEND=${WORKSHOP_BACKEND:-cuda}
export WORKSHOP_GPUS_PER_NODE=${WORKSHOP_GPUS_PER_NODE:-4}
[[ $WORKSHOP_BACKEND == cuda ]] || export SBATCH_GPUS_PER_NODE=0

# The folder of the programs, on a file system that all nodes see.
export WORKSHOP_BUILD=${WORKSHOP_BUILD:-build/$WORKSHOP_BACKEND}

# The network interface between the nodes, by its name in 'ip -br address' on a node. If empty, NCCL and MPI choose.
export WORKSHOP_INTERFACE=${WORKSHOP_INTERFACE-}

# How srun starts programs that use MPI; 'srun --mpi=list' lists the choices. With none, programs for the cuda backend
# start without MPI.
export WORKSHOP_SRUN_MPI=${WORKSHOP_SRUN_MPI:-pmix}

# The bandwidth that two GPUs should reach in each direction, in GB/s, within a node and between two nodes.
# './workshop doctor --cluster' compares its measurements with these numbers; if they are empty, it only prints the
# measurements. NVLink 4 has 450, PCIe 5 has 64, InfiniBand NDR has 50; a program reaches four fifths of this.
export WORKSHOP_NODE_GBS=${WORKSHOP_NODE_GBS-}
export WORKSHOP_NETWORK_GBS=${WORKSHOP_NETWORK_GBS-}
