// What the ranks of a node share.
#pragma once

namespace workshop::cpu {

// The ranks that a launcher has started on this node; 1 without one.
int ranks_of_node();

}  // namespace workshop::cpu
