// SPDX-License-Identifier: Apache-2.0
#include "common/group.h"

#include <numeric>

#include "common/device.h"
#include "common/record.h"

namespace workshop {

Group::Group(ncclComm_t comm) : comm_(comm) {
  NCCL_CHECK(ncclCommUserRank(comm, &rank_));
  NCCL_CHECK(ncclCommCount(comm, &size_));
  members_.resize(size_);
  std::iota(members_.begin(), members_.end(), 0);
}

Group::~Group() {
  if (owned_) ncclCommDestroy(comm_);
}

Group Group::split(int color, int key, const std::string& name) const {
  ncclComm_t comm = nullptr;
  NCCL_CHECK(ncclCommSplit(comm_, color, key, &comm, nullptr));
  if (comm == nullptr) return {};
  name_communicator(comm, name);
  Group group(comm);
  group.owned_ = true;
  group.members_ = group.gather(members_[rank_]);
  return group;
}

}  // namespace workshop
