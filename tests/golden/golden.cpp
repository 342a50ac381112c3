// SPDX-License-Identifier: Apache-2.0
// PyTorch's results against those of the programs with the same options: one test per file and program. The chapters'
// tests have more of them.
#include <filesystem>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

TESTS(golden) {
  for (const auto& entry : std::filesystem::directory_iterator(source("tests/golden").path)) {
    if (entry.path().extension() != ".json") continue;
    const std::string name = entry.path().stem();
    const Golden run = golden("tests/golden/" + name + ".json");
    golden_test("golden." + name, run, on(run.ranks, solution(run.program), run.options));
    if (name.starts_with("gpt")) {
      for (int keys : {1, 7, 16}) {
        golden_test(text("golden.", name, ".attention_block.", keys), run,
                    on(run.ranks, solution(run.program), run.options, "--attention-block", keys));
      }
    }
    if (run.program != "02_ddp/ddp") continue;
    golden_test("golden." + name + ".overlap", run, on(run.ranks, solution("02_ddp/ddp_overlap"), run.options));
  }
}

}  // namespace
}  // namespace workshop::tests
