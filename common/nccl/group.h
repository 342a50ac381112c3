// SPDX-License-Identifier: Apache-2.0
// Some ranks of the job with a communicator of their own: the world, or what split() makes of it.
#pragma once

#include <nccl.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace workshop {

class Group {
 public:
  Group() = default;  // this rank alone, without a communicator
  // All ranks of a communicator that is held elsewhere.
  explicit Group(ncclComm_t comm);

  // The ranks of this group that give the same color become one group, in the order of their keys. Collective: every
  // rank of this group must call it, in the same order as other splits. `name` is what the ledger calls the group. A
  // rank that gives NCCL_SPLIT_NOCOLOR is in none of the groups, and has one without a communicator.
  Group split(int color, int key, const std::string& name) const;

  // Every rank's value, in the order of the ranks: preparation and no part of the training. Collective, and waits.
  template <typename T>
  std::vector<T> gather(const T& mine) const {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::vector<char> bytes = gather_bytes({reinterpret_cast<const char*>(&mine), sizeof mine});
    std::vector<T> values(size());
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  ncclComm_t comm() const { return comm_.get(); }
  int rank() const { return rank_; }                            // of this process in the group
  int size() const { return size_; }                            // ranks of the group
  const std::vector<int>& members() const { return members_; }  // their ranks in the job, in their order in the group

 private:
  std::vector<char> gather_bytes(std::string_view mine) const;

  std::shared_ptr<ncclComm> comm_;  // of split(): destroyed with the last group that shares it
  int rank_ = 0, size_ = 1;
  std::vector<int> members_ = {0};
};

}  // namespace workshop
