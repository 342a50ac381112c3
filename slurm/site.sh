#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What differs between clusters, and nothing else. './workshop submit' reads it before it calls sbatch, and every job
# reads it again on its first node. A variable that is set already keeps its value.

# What sbatch takes from its environment; its command line counts more than these, the scripts' #SBATCH lines less.
# export SBATCH_ACCOUNT=${SBATCH_ACCOUNT:-my-project}
# export SBATCH_PARTITION=${SBATCH_PARTITION:-gpu}

# The modules that the programs were built with. Where jobs do not know 'module', source its init file first.
# module load gcc/12 cuda/12.4 nccl openmpi cmake

# What the nodes have: cuda or, without GPUs, cpu; and how many GPUs a node, which 'submit --nodes 2' takes all of.
export WORKSHOP_BACKEND=${WORKSHOP_BACKEND:-cuda}
export WORKSHOP_GPUS_PER_NODE=${WORKSHOP_GPUS_PER_NODE:-4}
[[ $WORKSHOP_BACKEND == cuda ]] || export SBATCH_GPUS_PER_NODE=0

# Where the programs are, on a file system that all nodes see.
export WORKSHOP_BUILD=${WORKSHOP_BUILD:-build/$WORKSHOP_BACKEND}

# The network interface between the nodes, as 'ip -br address' names it there; empty: NCCL and MPI choose.
export WORKSHOP_INTERFACE=${WORKSHOP_INTERFACE-}

# How srun starts programs that use MPI ('srun --mpi=list' shows what there is). With none, programs for the cuda backend
# meet without MPI.
export WORKSHOP_SRUN_MPI=${WORKSHOP_SRUN_MPI:-pmix}

# What two GPUs should send each other, in GB/s each way: of one node, and of two nodes. './workshop doctor --cluster' holds
# what it measures against it; empty: it only says how much it is. NVLink 4 has 450, PCIe 5 has 64, InfiniBand NDR has 50;
# four fifths of that is what a program sees.
export WORKSHOP_NODE_GBS=${WORKSHOP_NODE_GBS-}
export WORKSHOP_NETWORK_GBS=${WORKSHOP_NETWORK_GBS-}
