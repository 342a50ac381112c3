// SPDX-License-Identifier: Apache-2.0
// One rank of a running job: its device, and the communicator of all ranks.
#pragma once

#include <nccl.h>

#include <string>

#include "common/base/check.h"
#include "common/base/print.h"
#include "common/base/ranks.h"
#include "common/nccl/group.h"
#include "common/options/options.h"

namespace workshop {

// One rank of a running job. The constructor finds the rank and its device, meets the other ranks, and makes the NCCL
// communicator of all of them; the destructor writes the run record and takes everything down again.
class Job {
 public:
  explicit Job(const Options& options);
  ~Job();

  int rank() const { return ranks_.rank; }
  int world() const { return ranks_.world; }
  const Ranks& ranks() const { return ranks_; }
  int devices() const { return devices_; }  // that this node has for the job: as many as ranks, or some stay idle
  int own_devices() const { return own_devices_; }  // of them: Options::devices, or as many as there are; else one
  const Group& group() const { return group_; }     // all ranks
  ncclComm_t comm() const { return group_.comm(); }

 private:
  void set_device(const Options& options);

  Ranks ranks_;
  int device_ = 0, devices_ = 0, own_devices_ = 1;
  Group group_;
};

// Ends the job with status 2 where CUDA_LAUNCH_BLOCKING makes the host wait for each kernel and each NCCL call. For
// programs that would then hang, because of `schedule`.
void refuse_launch_blocking(const std::string& schedule);

// Of the library that the programs are linked to: "Open MPI v4.1.4", or "no MPI".
std::string mpi_version();

}  // namespace workshop
