// SPDX-License-Identifier: Apache-2.0
// Mistakes that are known by their looks: the tests run every wrong filling, and keep what its first difference from
// the solution's run looked like. A participant's run that looks the same has the same mistake.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/shared/run_record.h"

namespace workshop::tools {

// A list of values in four numbers, which tell two of them apart and are the same on every machine, but for rounding.
struct Summary {
  double l2 = 0, sum = 0, mix = 0;  // of the finite values; in `mix` each has a weight that depends on its place
  long not_finite = 0;
};
Summary summary(const std::vector<double>& values);
bool alike(const Summary& a, const Summary& b, bool integers = false);

// What of a run is the first that is not as in the solution's.
struct Sighting {
  std::string where;             // in words, which must be the same
  std::vector<Summary> numbers;  // which must be alike
  double calls = 0, bytes = 0;   // of NCCL, of all ranks: these tell those apart that are alike in the rest
  bool integers = false;         // the numbers are of integers, which are the same on every machine
};
// "where | l2 sum mix not_finite | … | calls bytes"
std::string text(const Sighting& sighting);

// A tensor that differs, or is not there: the one that is recorded for the `occurrence`-th time in a step on a rank.
Sighting sighting(const RunRecord& expected, const RunRecord& mine, const std::string& todo, const std::string& name,
                  int rank, int step, int occurrence);

// NCCL calls, or their bytes, that are other ones than expected.
Sighting traffic_sighting(const RunRecord& expected, const RunRecord& mine);

// What a program that failed, or did not finish, has printed about it: the line that says why, without places in files.
// None where it has not said why.
std::optional<Sighting> failure(int status, const std::string& output);

struct Mistake {
  std::string name, todo;  // "02.1-sum", "02.1"
  std::string sentence;    // what was done, and why it is wrong
  bool certain;            // not so where the numbers are all zero or none is finite: that has many causes
};

// A file checker/mistakes/fingerprints/NN_name.txt, which checker/make_fingerprints writes:
//
//   says 02.1-sum SENTENCE     of a mistake
//   run PROGRAM RANKS …        what the lines below are about
//   02.1-sum | SIGHTING        what that mistake looks like there
class Fingerprints {
 public:
  // Throws std::runtime_error where the file cannot be read.
  explicit Fingerprints(const std::string& path);

  // The mistake that looks like this. None where several do, after the same calls, that have not the same sentence; of
  // those that have it, one of `todo` if there is one.
  std::optional<Mistake> find(const RunRecord& run, const Sighting& sighting, const std::string& todo = "") const;

 private:
  struct Fingerprint {
    std::string program;
    int world;
    std::string mistake;
    Sighting sighting;
  };
  // The mistake of those that have one and the same sentence; none otherwise.
  std::optional<Mistake> common(const std::vector<const Fingerprint*>& found, const std::string& todo) const;

  std::vector<Fingerprint> fingerprints_;
  std::map<std::string, std::string> sentences_;  // by the mistake's name
};

// Says which known mistake a run has; or, for those who collect them, what the run looks like.
class KnownMistakes {
 public:
  // No mistake is known without a file. With `shows` every sighting is printed.
  KnownMistakes(const std::string& fingerprints, bool shows);

  // The sentence of the mistake that looks like this; empty where none does. It begins with the mistake's TODO, unless
  // that is `todo`, which the reader has been told; without `of_others` it is that TODO's or none.
  std::string sentence(const RunRecord& expected, const RunRecord& mine, Sighting seen, const std::string& todo = "",
                       bool of_others = true) const;

  // The TODO of the mistake that certainly looks like this; empty where none does.
  std::string todo(const RunRecord& expected, const RunRecord& mine, const Sighting& seen) const;

 private:
  std::optional<Mistake> find(const RunRecord& expected, const Sighting& seen, const std::string& todo) const;

  std::optional<Fingerprints> known_;
  bool shows_;
};

}  // namespace workshop::tools
