// SPDX-License-Identifier: Apache-2.0
#include "common/base/ranks.h"

#include "common/base/environment.h"
#include "common/base/environment_errors.h"

namespace workshop {

const Ranks& process_ranks() {
  static const Ranks ranks = from_environment(discover_ranks);
  return ranks;
}

}  // namespace workshop
