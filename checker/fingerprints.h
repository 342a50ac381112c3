// SPDX-License-Identifier: Apache-2.0
// Recognizes known mistakes: the tests run every wrong filling and record what its first difference from the solution's
// run looks like. A participant's run that looks the same has the same mistake.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checker/todos.h"
#include "tools/shared/run_record.h"

namespace workshop::tools {

// A list of values, reduced to four numbers that distinguish it from other lists. They are the same on every machine,
// up to rounding.
struct Summary {
  double l2 = 0, sum = 0, mix = 0;  // over the finite values; `mix` is a sum with weights that depend on the place
  long not_finite = 0;
};
Summary summary(const std::vector<double>& values);
// `expected`: the l2 norm of the right values. A difference that is only rounding in relation to it does not count,
// unless `integers`.
bool alike(const Summary& a, const Summary& b, bool integers = false, double expected = 0);

// The first difference of a run from the solution's.
struct Sighting {
  std::string where;             // must be equal for two sightings to match
  std::vector<Summary> numbers;  // must be alike
  double calls = 0, bytes = 0;   // NCCL calls and bytes of all ranks; to tell apart mistakes that are otherwise alike
  bool integers = false;         // the numbers summarize integers, which are the same on every machine
};
// "where | l2 sum mix not_finite | … | calls bytes"
std::string text(const Sighting& sighting);

// The sighting of a tensor that differs or is missing. `occurrence` counts, from 0, its recordings in one step on one
// rank.
Sighting sighting(const RunRecord& expected, const RunRecord& mine, const std::string& todo, const std::string& name,
                  int rank, int step, int occurrence);

// The same from this recording alone, on this rank and on the others that got that far. How far the ranks get before
// one ends the run, and so how many further recordings there are, depends on chance.
Sighting sighting_alone(const RunRecord& expected, const RunRecord& mine, const std::string& todo,
                        const std::string& name, int rank, int step, int occurrence);

// The sighting of NCCL calls whose number or bytes differ.
Sighting traffic_sighting(const RunRecord& expected, const RunRecord& mine);

constexpr int kStuck = 86;  // exit status of a run whose ranks wait in vain (common/base/check.h)

// The sighting of a program that failed or did not finish: the line of its output that says why, without the places in
// files. Empty if no line says why.
std::optional<Sighting> failure(int status, const std::string& output);

struct Mistake {
  std::string name, todo;  // "02.1-sum", and the region that it counts for, "02.1" or "02.A"
  std::string sentence;    // what the participant did, and why it is wrong
  bool certain;            // false if all values are zero or not finite, which has many causes
};

// Reads checker/mistakes/fingerprints/NN_name.txt, which checker/make_fingerprints writes:
//
//   says 02.1-sum SENTENCE     the sentence about a mistake
//   run PROGRAM RANKS …        the run that the following lines are from
//   02.1-sum | SIGHTING        what the mistake looks like in that run
class Fingerprints {
 public:
  // Mistakes of a TODO count as those of its region at the level of `todos`, unless the code of that is the solution's.
  // Throws std::runtime_error if the file cannot be read.
  explicit Fingerprints(const std::string& path, const Todos& todos = {});

  // Returns the mistake that looks like this. If several do, calls and bytes decide; if several sentences are left,
  // returns nothing. Of several with the same sentence, prefers one of `todo`. A run that ended because a wait is
  // missing is compared with runs on other numbers of ranks, too, if none on this one looks like it.
  // Mistakes of the TODOs in `settled`, which are right, do not count.
  std::optional<Mistake> find(const RunRecord& run, const Sighting& sighting, const std::string& todo = "",
                              const TodoIds& settled = {}) const;

  // Returns the TODO of the mistakes that look like this; empty if none does, or if they are of several TODOs.
  std::string todo(const RunRecord& run, const Sighting& sighting) const;

 private:
  struct Fingerprint {
    std::string program;
    int world;
    std::string mistake, todo;  // "02.1-sum", and the region that it counts for
    Sighting sighting;
  };
  std::vector<const Fingerprint*> all_alike(const RunRecord& run, const Sighting& sighting) const;
  // Returns a mistake of these, preferably of `todo`, if all have the same sentence.
  std::optional<Mistake> common(const std::vector<const Fingerprint*>& found, const std::string& todo) const;

  std::vector<Fingerprint> fingerprints_;
  std::map<std::string, std::string> sentences_;  // by the mistake's name
};

// What to say of a mistake, and whose it is; both are empty if none is recognized.
struct Recognized {
  std::string sentence, todo;
};

// Names the known mistake in a run; prints the run's sightings, to collect fingerprints.
class KnownMistakes {
 public:
  // An empty file name means that no mistake is known. `shows` prints every sighting.
  KnownMistakes(const std::string& fingerprints, bool shows, const Todos& todos);

  // Recognizes the mistake that looks like this. Its sentence begins with its TODO unless that is `todo`, which the
  // reader already knows. Without `of_others`, only mistakes of `todo` count.
  Recognized recognize(const RunRecord& expected, const RunRecord& mine, Sighting seen, const std::string& todo = "",
                       bool of_others = true, const TodoIds& settled = {}) const;

  // The TODO of the mistake that looks like this, `preferred` if one of its mistakes does; empty if no mistake does, or
  // if it is not certain.
  std::string todo(const RunRecord& expected, const RunRecord& mine, const Sighting& seen,
                   const std::string& preferred = "", const TodoIds& settled = {}) const;

  // The TODO in which a step becomes longer like this, whichever of its mistakes does it; empty if it is not known.
  std::string todo_of_time(const RunRecord& expected, const Sighting& seen) const;

 private:
  std::optional<Mistake> find(const RunRecord& expected, const Sighting& seen, const std::string& todo,
                              const TodoIds& settled) const;

  std::optional<Fingerprints> known_;
  bool shows_;
};

}  // namespace workshop::tools
