// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace workshop {

// During its lifetime, NCCL calls enter neither the ledger nor the timeline. For calls that only report on what the
// program does.
class OffTheRecord {
 public:
  OffTheRecord();
  ~OffTheRecord();
  OffTheRecord(const OffTheRecord&) = delete;
  OffTheRecord& operator=(const OffTheRecord&) = delete;

 private:
  bool before_;
};

}  // namespace workshop
