// SPDX-License-Identifier: Apache-2.0
// The simulated machines of the tasks (backend_cpu/semantics.md).
#pragma once

namespace golf {

// The two tasks about communication leave out the device's speed, so computation takes no time there.
inline constexpr const char* kTwoNodes = "link=2us+10G/s,node=4,between=10us+1G/s";
inline constexpr const char* kOneNode = "compute=80G,link=4us+1G/s";

}  // namespace golf
