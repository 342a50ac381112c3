// SPDX-License-Identifier: Apache-2.0
#ifdef WORKSHOP_BACKEND_CPU
#include "backend_cpu/simulation.h"

#include <gtest/gtest.h>

#include <string>

namespace workshop::cpu {
namespace {

SimulatedMachine machine(const std::string& text) { return parse_machine(text).machine.value(); }

TEST(SimulatedMachine, IsReadFromItsDescription) {
  const SimulatedMachine m = machine("compute=500G,link=5us+1G/s,node=4,between=20us+100M/s");
  EXPECT_DOUBLE_EQ(m.seconds_per_operation, 2e-12);
  EXPECT_DOUBLE_EQ(m.link.latency, 5e-6);
  EXPECT_DOUBLE_EQ(m.link.seconds_per_byte, 1e-9);
  EXPECT_EQ(m.node, 4);
  EXPECT_DOUBLE_EQ(m.between.latency, 20e-6);
  EXPECT_DOUBLE_EQ(m.between.seconds_per_byte, 1e-8);
}

TEST(SimulatedMachine, WhatIsNotSaidTakesNoTime) {
  EXPECT_DOUBLE_EQ(machine("host=2us+10G/s").host.seconds_per_byte, 1e-10);
  EXPECT_EQ(machine("host=2us+10G/s").link.latency, 0);
  EXPECT_DOUBLE_EQ(machine("call=2us").call, 2e-6);
  EXPECT_EQ(machine("host=2us+10G/s").call, 0);
  const SimulatedMachine m = machine("link=1ms+2T/s");
  EXPECT_EQ(m.host.latency, 0);
  EXPECT_EQ(m.seconds_per_operation, 0);
  EXPECT_DOUBLE_EQ(m.between.latency, 1e-3);  // only one kind of link was given
  EXPECT_DOUBLE_EQ(m.between.seconds_per_byte, 5e-13);
}

TEST(SimulatedMachine, NamesThePartThatMakesNoSense) {
  for (const std::string part :
       {"compute=", "compute=fast", "compute=0", "compute=-1G", "compute=5X", "link=5us", "link=5+1G/s", "link=5us+1G",
        "link=5us+0/s", "node=0", "node=1.5", "host=1G/s", "call=2", "gpu=8", "x"}) {
    const ParsedMachine parsed = parse_machine("compute=1T," + part);
    EXPECT_FALSE(parsed.machine.has_value()) << part;
    EXPECT_EQ(parsed.error, part);
  }
}

// The formulas of chapter 00.
TEST(SimulatedMachine, CollectivesTakeTheStepsOfTheirRing) {
  const LinkSpeed link = {1e-6, 1e-9};
  const auto seconds = [&](Pattern pattern, int ranks, std::size_t bytes) {
    const Duration d = collective_time(pattern, ranks, bytes, link);
    return d.latency + d.transfer;
  };
  EXPECT_DOUBLE_EQ(seconds(Pattern::all_reduce, 4, 4'000'000), 6e-6 + 6e-3);     // 2(P-1) steps of a quarter
  EXPECT_DOUBLE_EQ(seconds(Pattern::all_reduce, 64, 4), 12e-6 + 8e-9);           // a tree of 6 levels, up and down
  EXPECT_DOUBLE_EQ(seconds(Pattern::part_per_rank, 4, 4'000'000), 3e-6 + 3e-3);  // P-1 steps
  EXPECT_DOUBLE_EQ(seconds(Pattern::tree, 5, 1'000'000), 3e-6 + 1e-3);           // a pipeline of 3 levels
  EXPECT_DOUBLE_EQ(seconds(Pattern::through_root, 4, 4'000'000), 1e-6 + 3e-3);   // limited by the root's link
  EXPECT_EQ(seconds(Pattern::all_reduce, 1, 4'000'000), 0);
}

TEST(SimulatedMachine, ALinkHasOneMessageAtATime) {
  const Moment start;
  const auto use = [&](double from, double seconds) {
    const std::chrono::duration<double> end =
        use_link(Direction::out, true, later(start, from), later(start, from), seconds) - start;
    return end.count();
  };
  EXPECT_DOUBLE_EQ(use(1, 2), 3);
  EXPECT_DOUBLE_EQ(use(2, 1), 4);      // after the first
  EXPECT_DOUBLE_EQ(use(0, 1), 1);      // there is a gap before it
  EXPECT_DOUBLE_EQ(use(0, 0.5), 4.5);  // but this no longer fits
  const std::chrono::duration<double> in = use_link(Direction::in, true, later(start, 1), later(start, 1), 2) - start;
  EXPECT_DOUBLE_EQ(in.count(), 3);  // the other direction is free
}

}  // namespace
}  // namespace workshop::cpu
#endif
