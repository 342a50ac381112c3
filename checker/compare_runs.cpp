// SPDX-License-Identifier: Apache-2.0
// Tells a participant whether a run did what the solution's run did and, if not, which TODO is the first to differ.
//
//   compare_runs EXPECTED MINE [--tolerance X] [--todos FILE]... [--sources FOLDER] [--summary FILE]
//                [--journals] [--status N] [--output FILE] [--fingerprints FILE] [--sightings] [--level LEVEL]
//
// --todos         sources of the solution, which hold the TODOs' texts
// --sources       folder with the participant's sources: FOLDER/02_ddp/ddp.cu
// --journals      MINE holds the ranks' journals, because the run failed; --status is its exit status and --output the
//                 file with what it printed
// --level         judges as if the sources were at this level, "guided" or "blank"
// --summary       writes one line per TODO, such as "right 02.1", and "blame certain 02.2" or "blame likely 02.2",
//                 followed by "known" if the mistake is a known one
// --fingerprints  what known mistakes look like
// --sightings     prints what the first difference looks like, for a file of fingerprints
//
// Exit status: 0 the runs agree; 1 they differ; 77 they agree up to a TODO that is not filled in; 2 they cannot be
// compared.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checker/code_difference.h"
#include "checker/code_notes.h"
#include "checker/diagnosis.h"
#include "checker/ending.h"
#include "checker/fingerprints.h"
#include "checker/step_time.h"
#include "checker/todos.h"
#include "checker/traffic.h"
#include "common/base/format.h"
#include "tools/shared/arguments.h"
#include "tools/shared/run_record.h"

namespace {

using namespace workshop::tools;

std::string text(double value) {
  if (!std::isfinite(value)) return "not a number";
  return workshop::formatted("%.7g", value);
}

// A TODO may record several tensors of the same name in one step on one rank; `occurrence` counts them.
struct ProbeKey {
  int rank, step;
  std::string id, name;
  int occurrence;
  auto operator<=>(const ProbeKey&) const = default;
};
using Probes = std::map<ProbeKey, const Probe*>;

bool is_bf16(const RunRecord& run) {
  const auto precision = run.settings.find("precision");
  return precision != run.settings.end() && precision->second == "bf16";
}

constexpr double kRounding = 0.1;  // fraction of the tolerance: rounding within one TODO stays below it
constexpr double kGrowth = 5;      // within one TODO, an error grows by at most this factor

class Comparison {
 public:
  Comparison(const RunRecord& expected, const RunRecord& mine, double tolerance, Todos todos, const Ending* ending,
             const KnownMistakes& known)
      : expected_(expected),
        mine_(mine),
        tolerance_(tolerance),
        todos_(std::move(todos)),
        ending_(ending),
        known_(known) {
    index(expected_, expected_probes_, &expected_order_);
    index(mine_, mine_probes_, nullptr);
    if (todos_.empty()) {
      for (const Probe& probe : expected_.probes) todos_.add(probe.id);
    }
  }

  // Prints the verdict, and where the code of the TODO to look at differs; returns the exit status.
  int run();
  // Writes the state of each TODO. Call it after run().
  void write_summary(std::ostream& file) const;

 private:
  static void index(const RunRecord& record, Probes& probes, std::vector<ProbeKey>* order);
  // Makes this TODO the one to look at. If its code is the solution's, prints that another one is. Call it before the
  // verdict is printed.
  void blame(std::string id, bool certain);
  // Prints that this TODO is the one to look at, unless blame() has named another one.
  void say_where_to_look(const std::string& id, const char* why = "") const;
  // The TODOs whose code is not the solution's: one of them must be to blame.
  std::vector<std::string> with_other_code() const;
  // The one of these that is most likely to blame for what shows in a TODO whose code is the solution's.
  std::string cause_among(const std::vector<std::string>& ids, const std::string& shows_in) const;
  // "tensor 'grad' on rank 1, step 0", and only " on rank 1, step 0".
  std::string tensor_of(const ProbeKey& key) const { return "tensor '" + key.name + "'" + rank_and_step(key); }
  std::string rank_and_step(const ProbeKey& key) const;
  // False for chapter 07's `plan`: one process, no steps.
  bool has_steps() const { return expected_.world > 1 || expected_.steps > 0; }
  // The WRITE regions in the program's own file that record nothing of their own: the training loop of each kind of
  // rank.
  TodoIds loops_of_program() const;
  std::string loop_of_program() const;  // the first of them; "" if there is none
  // The TODO of this program to blame if the tensor at `position` belongs to a different chapter's TODO: the last one
  // that this rank reached before it or, failing that, the first one after it.
  std::string own_before(std::size_t position) const;
  // The next TODO of this program, other than `before`, that records a result on this rank in this step, or "".
  std::string own_after(std::size_t position, const std::string& before) const;
  // The root mean square that errors in this tensor are relative to: the larger of its own and that over all ranks,
  // because a rank's part of a tensor may be only zeros and one small value. A tensor named "left out of …" is a small
  // difference of large values of the same TODO. Its rounding errors are as large as theirs, so their scale counts too.
  double scale(const ProbeKey& key) const;
  double rms_over_ranks(const ProbeKey& key) const;
  // Describes what is wrong with a tensor, in indented lines; returns "" if nothing is. Sets error_ and updates
  // largest_.
  std::string differing(const Tensor& mine, const Tensor& expected, double scale);
  // True with --precision bf16 if every value is at most one rounding off.
  bool one_rounding_apart(const Tensor& mine, const Tensor& expected) const;
  std::string diagnosis(const ProbeKey& key) const;
  // If `todo` is to blame: the sentence of the known mistake that looks like this; empty if there is none.
  std::string known(const ProbeKey& key, const std::string& todo) const;
  std::string known(const Sighting& seen, const std::string& todo) const;
  Sighting sighting_of(const ProbeKey& key) const;
  // Prints that sentence, if there is one. Without `of_others`, only a mistake of the blamed TODO counts; mistakes of
  // `settled` do not.
  void explain(const Sighting& seen, bool of_others = true, const TodoIds& settled = {}) const;
  // The TODOs that are right and record nothing but integers: no later work can show that they are wrong.
  TodoIds settled() const;
  Symptom symptom(const ProbeKey& key) const;
  std::vector<Known> others(const ProbeKey& key) const;
  // The TODOs with NCCL calls in the solution's run.
  TodoIds calling() const;
  // TODOs of this program that record no tensor: only the losses can show that they are wrong.
  TodoIds unobserved() const;
  // Where the run ended, on the rank that was the farthest behind: the TODO that it was at, the last probe that it
  // passed, in words, and all TODOs whose probes it passed.
  struct End {
    std::string next, last, inside;  // inside: the one whose function was entered last, if it has recorded no result
    bool elsewhere = false;          // the rank then went on in a different way than the solution
    TodoIds passed;
  };
  End where_it_ended() const;
  // Whether one of this program's TODOs that are not `behind` follows a position, in the same step on the same rank.
  bool unfinished(std::size_t position, const TodoIds& behind) const;
  // The probes that this rank has reached; only known from a journal.
  const std::vector<Probe>& passed_by(int rank) const;

  // Prints the verdict alone.
  int verdict();

  // Each of these prints the first difference and returns false, or returns true.
  bool probes_agree();
  bool probe_agrees(std::size_t position);
  // If a difference in this tensor is known to come from a WRITE region that calls its TODO, prints that and returns
  // true.
  bool caused_by_a_loop(const ProbeKey& key, const std::string& difference);
  // If a WRITE region calls the function of a probe that was reached too often or not often enough, prints that and
  // returns true.
  bool calls_differ(const ProbeKey& key, const char* what);
  // Compares what a function was given. `shown_by`: if a flag at `position` is known to differ, the tensor in which
  // that shows.
  bool given_agrees(std::size_t position, const ProbeKey* shown_by = nullptr);
  // How many tensors of this step, rank and TODO are `counted`: in the participant's run, and in the solution's.
  template <typename Predicate>
  std::pair<long, long> count(const ProbeKey& like, Predicate counted) const;
  // The TODO that makes the call: of those that make such calls, the first whose own probe follows. "" if there is
  // none.
  std::string caller(std::size_t position) const;
  // Of the TODOs that call a function, the first whose own probe follows a position, else a WRITE region.
  std::string one_that_calls(const std::string& function, std::size_t position) const;
  // The TODO that alone calls a function that was called more often than in the solution's run, and that function.
  // Empty if there is none.
  std::pair<std::string, std::string> the_one_that_calls_more_often() const;
  // Whether the last that a region has recorded before a position is a result, and not what it was given.
  bool has_recorded(const std::string& id, std::size_t position) const;
  // Whether the function of this probe was called as often as it should, as far as it records what it was given.
  bool was_called(const ProbeKey& key) const;
  bool caused_before(const ProbeKey& key, const std::string& id, const std::string& difference, double largest_before);
  void print_right() const;
  void print_drift(const ProbeKey& key, const std::string& difference);
  void print_other_way(const ProbeKey& key, const std::string& difference);
  bool losses_agree();
  bool parameters_agree();
  bool traffic_agrees();
  // The TODO that calls the function of `callee` more often than the solution does, and that function. Empty if nobody
  // does, or if the function does not record what it is given.
  std::pair<std::string, std::string> one_that_calls_too_often(const std::string& callee) const;
  bool time_agrees();
  int print_ending();
  // The first call that a WRITE region makes before or after the solution's does. Only calls of functions that record
  // what they are given are seen.
  struct Misplaced {
    std::string caller, function;
    bool early;
    ProbeKey mine, expected;  // what was recorded at this point
  };
  std::optional<Misplaced> misplaced_call() const;
  // If the run failed after such a call, prints that and returns true.
  bool called_too_early();
  void print_notes() const;
  // Prints a note on the first rank whose host does something more often than the solution's, by more than the fraction
  // `slack`.
  void note_more(const std::string& what, const char* does, const char* why, double slack = 0) const;
  int print_unfinished() const;
  void print_success();

  const RunRecord &expected_, &mine_;
  double tolerance_;
  Todos todos_;
  const Ending* ending_;  // null unless the run failed
  const KnownMistakes& known_;
  Probes expected_probes_, mine_probes_;
  std::vector<ProbeKey> expected_order_;
  TodoIds right_;  // TODOs of this program whose tensors agree, up to the first difference
  std::string blamed_;
  bool certain_ = false;
  mutable bool explained_ = false;  // a known mistake was named
  mutable std::string mistaken_;    // whose mistake was recognized
  std::string traffic_note_;
  double largest_ = 0;                  // largest relative difference so far
  double error_ = 0;                    // relative difference of the last tensor compared
  std::optional<ProbeKey> rounded_;     // a tensor that is one rounding off; nothing after it can be compared
  std::optional<ProbeKey> drift_;       // the first tensor of this program within the tolerance but beyond rounding
  std::optional<std::size_t> suspect_;  // the place of a flag "accumulate" that differs, and may do so
  std::optional<ProbeKey> other_;       // the first "(one way)" tensor that differs: see is_one_way()
};

void Comparison::index(const RunRecord& record, Probes& probes, std::vector<ProbeKey>* order) {
  std::map<ProbeKey, int> seen;
  for (const Probe& probe : record.probes) {
    ProbeKey key{probe.rank, probe.step, probe.id, probe.tensor.name, 0};
    key.occurrence = seen[key]++;
    probes[key] = &probe;
    if (order != nullptr) order->push_back(key);
  }
}

std::vector<std::string> Comparison::with_other_code() const {
  std::vector<std::string> ids;
  for (const auto& [id, todo] : todos_.all()) {
    const bool filled_in = todo.first > 0 && todo.code.find("todo(\"" + id + "\")") == std::string::npos;
    if (filled_in && !is_solutions_code(todo)) ids.push_back(id);
  }
  return ids;
}

std::string Comparison::cause_among(const std::vector<std::string>& ids, const std::string& shows_in) const {
  std::string of_known = mistaken_;
  if (of_known.empty() && ending_ != nullptr && ending_->sighting())
    of_known = known_.todo(expected_, mine_, *ending_->sighting(), "", settled());
  if (std::ranges::find(ids, of_known) != ids.end()) return of_known;
  const auto position = [&](const std::string& id) {
    return std::ranges::find(expected_order_, id, &ProbeKey::id) - expected_order_.begin();
  };
  const TodoIds surely_right = settled();
  const auto here = position(shows_in);
  // One that calls it; else, one whose results are not known to be right; of a run that failed, one that ran before.
  return *std::ranges::min_element(ids, {}, [&](const std::string& id) {
    const auto there = position(id);
    return std::tuple(surely_right.contains(id), !todos_.calls(id, shows_in),
                      ending_ != nullptr ? there > here : right_.contains(id), std::abs(there - here));
  });
}

void Comparison::say_where_to_look(const std::string& id, const char* why) const {
  if (id != blamed_ || !todos_.contains(id)) return;
  std::printf("%s is the one to look at%s.\n%s", todos_.heading(id).c_str(), why, todos_.place_line(id).c_str());
}

void Comparison::blame(std::string id, bool certain) {
  const bool is_own = todos_.contains(id);
  if (!is_own && !blamed_.empty()) return;
  const std::vector<std::string> others = with_other_code();
  if (is_own ? !others.empty() && is_solutions_code(todos_.all().at(id)) : others.size() == 1) {
    const std::string shows_in = std::exchange(id, cause_among(others, id));
    std::printf("%s is the one to look at: %s is the solution's.\n%s", todos_.heading(id).c_str(),
                is_own ? ("the code of " + called(shows_in) + ", where it shows,").c_str() : "the code of all others",
                todos_.place_line(id).c_str());
    certain = others.size() == 1;
  }
  if (!todos_.contains(id)) return;
  blamed_ = id;
  certain_ = certain;
  right_.erase(id);
}

std::string Comparison::rank_and_step(const ProbeKey& key) const {
  if (!has_steps()) return "";
  return " on rank " + std::to_string(key.rank) + (expected_.steps > 0 ? ", step " + std::to_string(key.step) : "");
}

TodoIds Comparison::loops_of_program() const {
  TodoIds ids;
  for (const auto& [id, todo] : todos_.all()) {
    const bool probed = std::ranges::any_of(expected_.probes, [&](const Probe& probe) { return probe.id == id; });
    if (is_write(id) && !probed && !todo.has_probe && todo.file.ends_with("/" + expected_.program + ".cu"))
      ids.insert(id);
  }
  return ids;
}

std::string Comparison::loop_of_program() const {
  const TodoIds loops = loops_of_program();
  return loops.empty() ? "" : *loops.begin();
}

std::string Comparison::own_before(std::size_t position) const {
  // It calls everything, and what the other regions record is right so far.
  if (const std::string loop = loop_of_program(); !loop.empty()) return loop;
  const int rank = expected_order_[position].rank;
  for (std::size_t i = position; i-- > 0;) {
    if (expected_order_[i].rank == rank && todos_.contains(expected_order_[i].id)) return expected_order_[i].id;
  }
  for (std::size_t i = position; i < expected_order_.size(); ++i) {
    if (todos_.contains(expected_order_[i].id)) return expected_order_[i].id;
  }
  return "";
}

double Comparison::scale(const ProbeKey& key) const {
  double scale = rms_over_ranks(key);
  if (!key.name.starts_with("left out of ")) return scale;
  for (const auto& [other, probe] : expected_probes_) {
    if (other.rank == key.rank && other.step == key.step && other.id == key.id && other.occurrence == key.occurrence)
      scale = std::max(scale, rms_over_ranks(other));
  }
  return scale;
}

double Comparison::rms_over_ranks(const ProbeKey& key) const {
  double squares = 0, size = 0;
  ProbeKey other = key;
  for (other.rank = 0; other.rank < expected_.world; ++other.rank) {
    const auto found = expected_probes_.find(other);
    if (found == expected_probes_.end()) continue;
    const Tensor& tensor = found->second->tensor;
    squares += tensor.l2 * tensor.l2;
    size += tensor.size();
  }
  return std::max(expected_probes_.at(key)->tensor.rms(), std::sqrt(squares / std::max(size, 1.0)));
}

std::string shape_of(const Tensor& tensor) { return tensor.size() > 0 ? bracketed(tensor.shape) : "nothing"; }

// A short list of integers is printed whole, because that says more than one entry.
std::string whole_lists(const Tensor& mine, const Tensor& expected) {
  const std::size_t longer = std::max(mine.values.size(), expected.values.size());
  if (!expected.integers || expected.shape.size() != 1 || longer < 2 || longer > 24) return "";
  const auto list = [](const Tensor& t) {
    return t.values.empty() ? "nothing" : bracketed(std::vector<long>(t.values.begin(), t.values.end()));
  };
  return "  the whole list: yours " + list(mine) + ", expected " + list(expected) + "\n";
}

std::string Comparison::differing(const Tensor& mine, const Tensor& expected, double scale) {
  if (mine.shape != expected.shape || mine.values.size() != expected.values.size()) {
    error_ = std::numeric_limits<double>::infinity();
    return "  shape: yours " + shape_of(mine) + ", expected " + shape_of(expected) + "\n" + whole_lists(mine, expected);
  }
  if (expected.integers) scale = 0;
  const bool never_written = expected.unwritten > 0 && mine.unwritten == expected.unwritten;
  double worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    // Memory that nobody writes on this rank is NaN in both runs.
    if (never_written && !std::isfinite(expected.values[i]) && !std::isfinite(mine.values[i])) continue;
    const double error = relative_error(mine.values[i], expected.values[i], scale);
    if (!(error > worst)) continue;
    worst = error;
    at = i;
    if (expected.integers) break;  // integers are equal or wrong: report the first
  }
  error_ = worst;
  largest_ = std::max(largest_, worst);
  if (!(worst <= tolerance_)) {
    const std::string name = name_of_entry(expected, at);
    return std::string(expected.integers ? "  first difference at " : "  largest difference at ") +
           bracketed(workshop::tools::place_of(at, expected.shape)) + (name.empty() ? "" : ", " + name) + ": yours " +
           text(mine.values[at]) + ", expected " + text(expected.values[at]) + "\n" + whole_lists(mine, expected);
  }
  if (never_written && !std::isfinite(expected.l2) && !std::isfinite(mine.l2)) return "";
  // The record holds only the first values of a large tensor; its norm and sum cover the rest.
  const double l2 = relative_error(mine.l2, expected.l2, scale * std::sqrt(expected.size()));
  const double sum = relative_error(mine.sum, expected.sum, scale * expected.size());
  error_ = std::max({worst, l2, sum});
  largest_ = std::max(largest_, error_);
  if (l2 <= tolerance_ && sum <= tolerance_) return "";
  return "  the first " + std::to_string(expected.values.size()) + " values agree, later ones do not: l2 norm yours " +
         text(mine.l2) + ", expected " + text(expected.l2) + "\n";
}

bool Comparison::one_rounding_apart(const Tensor& mine, const Tensor& expected) const {
  if (!is_bf16(expected_) || expected.integers) return false;
  constexpr double kStep = 1.0 / 128;  // largest relative distance between neighboring bfloat16 numbers
  if (mine.shape != expected.shape || mine.values.size() != expected.values.size()) return false;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    if (!(relative_error(mine.values[i], expected.values[i], std::abs(mine.values[i])) <= kStep)) return false;
  }
  return relative_error(mine.l2, expected.l2) <= kStep;
}

// Lists tensors of the solution's run that this one may have been mistaken for: first those of the same TODO, then the
// others of the same rank and step.
std::vector<Known> Comparison::others(const ProbeKey& key) const {
  std::vector<Known> same_todo, others;
  bool before = true;  // before the tensor that differs
  for (const ProbeKey& other : expected_order_) {
    if (other == key) {
      before = false;
      continue;
    }
    const Tensor* tensor = &expected_probes_.at(other)->tensor;
    std::string name = "the values of '" + other.name + "'";
    if (other.occurrence != key.occurrence)
      name += ", recording " + std::to_string(other.occurrence + 1) + (has_steps() ? " of the step" : " of the run");
    if (other.id == key.id) {
      name += rank_and_step(other);
      same_todo.push_back({name, tensor});
    } else if (other.rank == key.rank && other.step == key.step) {
      name += " of " + called(other.id);
      others.push_back(
          {before ? name + ", which come earlier: is the call missing on this rank, or does it write elsewhere?" : name,
           tensor});
    }
  }
  std::ranges::move(others, std::back_inserter(same_todo));
  return same_todo;
}

Symptom Comparison::symptom(const ProbeKey& key) const {
  Symptom symptom{mine_probes_.at(key)->tensor, expected_probes_.at(key)->tensor, expected_.world};
  ProbeKey other = key;
  for (other.rank = 0; other.rank < expected_.world; ++other.rank) {
    const auto mine = mine_probes_.find(other), expected = expected_probes_.find(other);
    if (mine != mine_probes_.end()) symptom.mine_by_rank.push_back(&mine->second->tensor);
    if (expected != expected_probes_.end()) symptom.expected_by_rank.push_back(&expected->second->tensor);
  }
  other = key;
  --other.step;
  if (const auto before = expected_probes_.find(other); before != expected_probes_.end())
    symptom.expected_before = &before->second->tensor;
  for (const auto& [earlier, probe] : mine_probes_) {
    if (earlier.rank == key.rank && earlier.id == key.id && earlier.name == key.name && earlier < key)
      symptom.mine_before.insert(symptom.mine_before.begin(), &probe->tensor);
  }
  symptom.others = others(key);
  symptom.options = &expected_.options;
  return symptom;
}

std::string Comparison::diagnosis(const ProbeKey& key) const {
  if (!std::isfinite(expected_probes_.at(key)->tensor.l2))
    return "The solution's own values are not finite: is the learning rate too high?";
  return diagnose(symptom(key));
}

std::string Comparison::known(const ProbeKey& key, const std::string& todo) const {
  const std::string sentence = known(sighting_of(key), todo);
  if (!sentence.empty() || mine_.complete) return sentence;
  return known(sighting_alone(expected_, mine_, key.id, key.name, key.rank, key.step, key.occurrence), todo);
}

std::string Comparison::known(const Sighting& seen, const std::string& todo) const {
  const Recognized mistake = known_.recognize(expected_, mine_, seen, todo);
  if (!mistake.todo.empty()) mistaken_ = mistake.todo;
  explained_ |= !mistake.sentence.empty();
  return mistake.sentence;
}

Sighting Comparison::sighting_of(const ProbeKey& key) const {
  return sighting(expected_, mine_, key.id, key.name, key.rank, key.step, key.occurrence);
}

TodoIds Comparison::settled() const {
  TodoIds ids = right_;
  for (const Probe& probe : expected_.probes) {
    if (!probe.tensor.integers) ids.erase(probe.id);
  }
  return ids;
}

void Comparison::explain(const Sighting& seen, bool of_others, const TodoIds& settled) const {
  const std::string sentence = known_.recognize(expected_, mine_, seen, blamed_, of_others, settled).sentence;
  if (sentence.empty()) return;
  explained_ = true;
  std::printf("%s\n", sentence.c_str());
}

TodoIds Comparison::calling() const {
  TodoIds ids;
  for (const Collective& collective : expected_.collectives) {
    for (const auto& [name, calls] : collective.places) {
      for (const Place& place : places(name)) ids.insert(todos_.at_in_solution(place));
    }
  }
  return ids;
}

TodoIds Comparison::unobserved() const {
  TodoIds ids;
  for (const auto& [id, todo] : todos_.all()) ids.insert(id);
  for (const Probe& probe : expected_.probes) ids.erase(probe.id);
  // Prefer those that the solution's run reached, as far as its NCCL calls show.
  TodoIds came_to = calling();
  std::erase_if(came_to, [&](const std::string& id) { return !ids.contains(id); });
  return came_to.empty() ? ids : came_to;
}

// If a small error grows from TODO to TODO until it is too large, the first of these TODOs is to blame.
void Comparison::print_drift(const ProbeKey& key, const std::string& difference) {
  blame(drift_->id, true);
  std::printf("%s is the first that is off by more than rounding.\n%s  %s\n", todos_.heading(drift_->id).c_str(),
              todos_.place_line(drift_->id).c_str(), tensor_of(*drift_).c_str());
  std::printf("  The error grows from there until %s, of %s, is too far off:\n%s", tensor_of(key).c_str(),
              called(key.id).c_str(), difference.c_str());
  const std::string sentence = known(key, drift_->id);
  const bool fits = !sentence.empty() && sentence.find("TODO ") == std::string::npos &&
                    sentence.find("WRITE ") == std::string::npos;  // of this TODO
  std::printf("  %s\n",
              fits ? sentence.c_str() : "Is a small constant, such as an epsilon, wrong or in the wrong place?");
  print_right();
}

// A tensor named "… (one way)", such as a flag, records a choice that may be made in several ways. A difference in it
// is no mistake, but it is the cause of any difference that follows.
bool is_one_way(const ProbeKey& key) { return key.name.ends_with(" (one way)"); }

void Comparison::print_other_way(const ProbeKey& key, const std::string& difference) {
  const auto &mine = mine_probes_.at(*other_)->tensor, &expected = expected_probes_.at(*other_)->tensor;
  blame(other_->id, true);
  std::printf("%s is done in a different way than in the solution, with a different result.\n%s  %s, shape %s\n%s",
              todos_.heading(other_->id).c_str(), todos_.place_line(other_->id).c_str(), tensor_of(*other_).c_str(),
              bracketed(expected.shape).c_str(), differing(mine, expected, scale(*other_)).c_str());
  std::printf("  The result: %s, of %s:\n%s", tensor_of(key).c_str(), called(key.id).c_str(), difference.c_str());
  // The sighting combines both tensors. Its first numbers decide whether a known mistake is certain, so they must not
  // be zero.
  Sighting seen = sighting_of(*other_), then = sighting_of(key);
  seen.where += ", then " + then.where;
  if (seen.numbers.front().l2 == 0) std::swap(seen.numbers, then.numbers);
  std::ranges::move(then.numbers, std::back_inserter(seen.numbers));
  std::string sentence = known(seen, other_->id);
  if (sentence.empty()) sentence = diagnosis(key);
  if (!sentence.empty()) std::printf("  %s\n", sentence.c_str());
  print_right();
}

// "f.backward" of a probe named "given to f.backward: share", which records what a function was called with; "" of
// others.
std::string given_to(const ProbeKey& key) {
  constexpr std::string_view kBegin = "given to ";
  return key.name.starts_with(kBegin) ? key.name.substr(kBegin.size(), key.name.find(':') - kBegin.size()) : "";
}

std::string Comparison::caller(std::size_t position) const {
  return one_that_calls(given_to(expected_order_[position]), position);
}

std::string Comparison::one_that_calls(const std::string& function, std::size_t position) const {
  const ProbeKey& at = expected_order_[position];
  const TodoIds callers = todos_.that_call(function);
  for (std::size_t i = position + 1; i < expected_order_.size() && expected_order_[i].step == at.step; ++i) {
    if (expected_order_[i].rank == at.rank && callers.contains(expected_order_[i].id)) return expected_order_[i].id;
  }
  // A whole loop may have no probe of its own.
  return !callers.empty() && is_write(*callers.begin()) ? *callers.begin() : "";
}

bool Comparison::has_recorded(const std::string& id, std::size_t position) const {
  const int rank = expected_order_[position].rank;
  for (std::size_t i = position; i-- > 0;) {
    const ProbeKey& key = expected_order_[i];
    if (key.rank == rank && key.id == id) return given_to(key).empty();
  }
  return false;
}

template <typename Predicate>
std::pair<long, long> Comparison::count(const ProbeKey& like, Predicate counted) const {
  const auto in = [&](const Probes& probes) {
    return std::ranges::count_if(probes, [&](const auto& entry) {
      const ProbeKey& key = entry.first;
      return key.rank == like.rank && key.step == like.step && key.id == like.id && counted(key);
    });
  };
  return {in(mine_probes_), in(expected_probes_)};
}

bool Comparison::was_called(const ProbeKey& key) const {
  const auto [mine, expected] = count(key, [](const ProbeKey& other) { return !given_to(other).empty(); });
  return expected > 0 && mine == expected;
}

std::string Comparison::own_after(std::size_t position, const std::string& before) const {
  const ProbeKey& at = expected_order_[position];
  for (std::size_t i = position + 1; i < expected_order_.size() && expected_order_[i].step == at.step; ++i) {
    const ProbeKey& key = expected_order_[i];
    if (key.rank == at.rank && key.id != before && todos_.contains(key.id) && given_to(key).empty()) return key.id;
  }
  return "";
}

// Whether a tensor that differs, of this TODO, shows what an earlier TODO did; if so, prints that.
bool Comparison::caused_before(const ProbeKey& key, const std::string& id, const std::string& difference,
                               double largest_before) {
  if (difference.empty()) return false;
  if (suspect_ && expected_order_[*suspect_] != key && !given_agrees(*suspect_, &key)) return true;
  if (other_ && todos_.contains(other_->id)) {
    print_other_way(key, difference);
    return true;
  }
  const bool rounds = !expected_probes_.at(key)->tensor.integers;  // integers are equal or wrong
  if (rounds && drift_ && drift_->id != id && error_ <= kGrowth * largest_before) {
    print_drift(key, difference);
    return true;
  }
  return false;
}

void Comparison::print_right() const {
  if (!right_.empty()) std::printf("Right so far: %s\n", called(right_).c_str());
}

bool Comparison::given_agrees(std::size_t position, const ProbeKey* shown_by) {
  const ProbeKey& key = expected_order_[position];
  const auto mine = mine_probes_.find(key);
  const bool there = mine != mine_probes_.end();
  if (!there && !mine_.complete) return true;
  const Tensor& expected = expected_probes_.at(key)->tensor;
  std::string difference;
  const double largest_before = largest_;
  if (there) {
    difference = differing(mine->second->tensor, expected, scale(key));
    if (difference.empty() || one_rounding_apart(mine->second->tensor, expected)) return true;
    // To add to what was cleared is as good as to overwrite: wrong only if something else differs.
    if (key.name.ends_with(": accumulate") && suspect_ != position) {
      if (!suspect_) suspect_ = position;
      largest_ = largest_before;
      return true;
    }
  }
  const std::string id = caller(position);
  if (id.empty()) {  // called by code that is not the participant's
    largest_ = largest_before;
    return true;
  }
  if (caused_before(key, id, difference, largest_before)) return false;
  // If a call is missing, the next one stands in its place.
  const auto [calls, expected_calls] = count(key, [&](const ProbeKey& other) { return other.name == key.name; });
  const bool as_often = !mine_.complete || calls == expected_calls;
  std::string sentence = known(key, id);
  if (sentence.empty() && shown_by != nullptr) sentence = known(*shown_by, id);
  if (sentence.empty() && there && as_often) sentence = diagnosis(key);
  blame(id, true);
  const char* what = as_often                 ? "calls %s() with something other than expected."
                     : calls < expected_calls ? "does not call %s() as often as expected."
                                              : "calls %s() more often than expected.";
  std::printf("%s %s\n%s  %s", todos_.heading(id).c_str(), workshop::formatted(what, given_to(key).c_str()).c_str(),
              todos_.place_line(id).c_str(), tensor_of(key).c_str());
  if (!there) std::printf(": not there\n");
  if (there && as_often) std::printf(", shape %s\n", bracketed(expected.shape).c_str());
  if (there && !as_often) {
    std::printf(": %ld calls, expected %ld\n  The first that differs is call %d, shape %s\n", calls, expected_calls,
                key.occurrence + 1, bracketed(expected.shape).c_str());
  }
  std::printf("%s%s", difference.c_str(), sentence.empty() ? "" : ("  " + sentence + "\n").c_str());
  print_right();
  return false;
}

bool Comparison::caused_by_a_loop(const ProbeKey& key, const std::string& difference) {
  const std::string todo = known_.todo(expected_, mine_, sighting_of(key), key.id);
  if (!is_write(todo) || todo == key.id) return false;
  blame(todo, true);
  std::printf("%s: what it does shows in what it calls.\n%s  %s, of %s%s  %s\n", todos_.heading(todo).c_str(),
              todos_.place_line(todo).c_str(), tensor_of(key).c_str(), called(key.id).c_str(), difference.c_str(),
              known(key, todo).c_str());
  print_right();
  return true;
}

bool Comparison::calls_differ(const ProbeKey& key, const char* what) {
  if (!todos_.contains(key.id) || was_called(key)) return false;
  const Todo& callee = todos_.all().at(key.id);
  if (callee.code.find("return") != std::string::npos) return false;  // before its probe, perhaps
  const auto position = std::ranges::find(expected_order_, key) - expected_order_.begin();
  const std::string& function = callee.function_in_solution;
  std::string caller =
      function.empty() ? "" : one_that_calls(function, std::min<std::size_t>(position, expected_order_.size() - 1));
  // In the solution's run, nobody calls it: the loop of this program does.
  if (caller.empty() && std::ranges::none_of(expected_.probes, [&](const Probe& p) { return p.id == key.id; }))
    caller = loop_of_program();
  // It is called outside of all regions, and the loop of this program calls it, too.
  for (const std::string& loop : loops_of_program()) {
    if (caller.empty() && todos_.calls(loop, key.id)) caller = loop;
  }
  if (!todos_.contains(caller) || caller == key.id) return false;
  const std::string sentence = known(key, caller);
  blame(caller, true);
  std::printf("%s %s\n%s  %s: %s\n", todos_.heading(caller).c_str(),
              workshop::formatted(what, function.c_str()).c_str(), todos_.place_line(caller).c_str(),
              tensor_of(key).c_str(), mine_probes_.contains(key) ? "once more" : "not there");
  if (!sentence.empty()) std::printf("  %s\n", sentence.c_str());
  print_right();
  return true;
}

bool Comparison::probe_agrees(std::size_t position) {
  const ProbeKey& key = expected_order_[position];
  if (!given_to(key).empty()) return given_agrees(position);
  const auto mine = mine_probes_.find(key);
  const Tensor& expected = expected_probes_.at(key)->tensor;
  std::string what, details, more;
  if (mine == mine_probes_.end()) {
    if (!mine_.complete) return true;  // the run ended before it recorded this tensor
    if (calls_differ(key, "does not call %s() as often as expected.")) return false;
    if (caused_by_a_loop(key, ": never recorded\n")) return false;
    what = " was not reached as often as expected.\n";
    details = "  " + tensor_of(key) + ": " + (key.occurrence > 0 ? "recorded too few times" : "never recorded") +
              "\n  Does a condition, a loop or an early return skip it on this rank?\n";
    if (const std::string sentence = known(key, key.id); !sentence.empty()) details += "  " + sentence + "\n";
  } else {
    // Where a run hangs, what was never written is a consequence: tell of the hang.
    if (ending_ != nullptr && ending_->waits() && mine->second->tensor.unwritten > 0) return true;
    const double largest_before = largest_;
    const std::string difference = differing(mine->second->tensor, expected, scale(key));
    if (difference.empty()) {
      if (todos_.contains(key.id)) right_.insert(key.id);
      if (!drift_ && todos_.contains(key.id) && error_ > kRounding * tolerance_) drift_ = key;
      return true;
    }
    if (is_one_way(key)) {
      if (!other_) other_ = key;
      if (todos_.contains(key.id)) right_.insert(key.id);
      return true;
    }
    if (caused_before(key, key.id, difference, largest_before)) return false;
    std::string sentence = known(key, key.id);
    if (sentence.empty() && one_rounding_apart(mine->second->tensor, expected)) {
      if (todos_.contains(key.id)) right_.insert(key.id);
      rounded_ = key;
      return true;
    }
    if (caused_by_a_loop(key, ", shape " + bracketed(expected.shape) + "\n" + difference)) return false;
    const std::string roots = differing_roots(key.id, mine_, todos_);
    if (!roots.empty() && sentence.starts_with("Perhaps: ")) sentence.clear();
    if (sentence.empty()) {
      more = roots.empty() ? other_reductions(key.id, expected_, mine_, todos_) : roots;
      if (roots.empty()) sentence = diagnosis(key);
    }
    what = " is the first that differs.\n";
    details = "  " + tensor_of(key) + ", shape " + bracketed(expected.shape) + "\n" + difference +
              (sentence.empty() ? "" : "  " + sentence + "\n");
  }
  details += more;
  if (todos_.contains(key.id)) details += calls_of(key.id, key.rank, expected_, mine_, todos_);
  if (todos_.contains(key.id)) {
    blame(key.id, true);
    std::printf("%s%s%s%s", todos_.heading(key.id).c_str(), what.c_str(), todos_.place_line(key.id).c_str(),
                details.c_str());
  } else {
    std::string own = own_before(position);
    // What this region has recorded is right, so look at its caller or, failing that, at the region that runs next.
    if (has_recorded(own, position)) {
      const std::string function = is_write(own) ? todos_.all().at(own).function_in_solution : "";
      const std::string caller = function.empty() ? "" : one_that_calls(function, position);
      const std::string next = is_write(caller) ? caller : own_after(position, own);
      if (!next.empty()) own = next;
    }
    if (const std::string of_known = known_.todo(expected_, mine_, sighting_of(key), own); todos_.contains(of_known))
      own = of_known;
    blame(own, false);
    say_where_to_look(own, ": it passes on wrong values, or overwrites right ones");
    std::printf("%s  This is the result of %s, here the solution's code with input from your code.\n", details.c_str(),
                called(key.id).c_str());
  }
  print_right();
  return false;
}

std::pair<std::string, std::string> Comparison::the_one_that_calls_more_often() const {
  std::set<std::string> functions;
  for (const auto& [key, probe] : mine_probes_) {
    if (!given_to(key).empty() && !expected_probes_.contains(key)) functions.insert(given_to(key));
  }
  for (const std::string& function : functions) {
    const TodoIds callers = todos_.that_call(function);
    // One that is itself called too often is not to blame.
    if (callers.size() == 1 && !functions.contains(todos_.all().at(*callers.begin()).function_in_solution))
      return {*callers.begin(), function};
  }
  return {};
}

bool Comparison::probes_agree() {
  for (std::size_t i = 0; i < expected_order_.size(); ++i) {
    if (!probe_agrees(i)) return false;
    if (rounded_) return true;
  }
  for (const auto& [key, probe] : mine_probes_) {
    if (expected_probes_.contains(key)) continue;
    if (!given_to(key).empty()) continue;  // what comes of it is found elsewhere
    if (calls_differ(key, "calls %s() more often than expected.")) return false;
    const Sighting seen{
        workshop::formatted("%s '%s' rank %d step %d more often", key.id.c_str(), key.name.c_str(), key.rank, key.step),
        {}};
    if (!todos_.contains(key.id)) {
      auto [todo, function] = the_one_that_calls_more_often();
      if (function.empty()) todo = known_.todo(expected_, mine_, seen, "");
      blame(todo, true);
      const std::string what =
          function.empty() ? "is the one to look at." : "calls " + function + "() more often than expected.";
      if (todos_.contains(todo)) std::printf("%s %s\n", todos_.heading(todo).c_str(), what.c_str());
    }
    blame(key.id, true);
    std::printf("%s is reached more often than expected.\n%s  %s: recorded %d times or more\n",
                todos_.heading(key.id).c_str(), todos_.place_line(key.id).c_str(), tensor_of(key).c_str(),
                key.occurrence + 1);
    explain(seen);
    return false;
  }
  return true;
}

bool Comparison::losses_agree() {
  const auto& theirs = expected_.losses;
  for (std::size_t i = 0; i < theirs.size() && i < mine_.losses.size(); ++i) {
    const StepLoss &mine = mine_.losses[i], &expected = theirs[i];
    if (mine.step != expected.step || mine.replica != expected.replica) break;
    for (const auto& [name, loss] : {std::pair("loss", &StepLoss::loss), {"global loss", &StepLoss::global_loss}}) {
      const double error = relative_error(mine.*loss, expected.*loss);
      largest_ = std::max(largest_, error);
      if (error <= tolerance_) continue;
      const Sighting seen{workshop::formatted("%s step %d replica %d", name, expected.step, expected.replica),
                          {summary({mine.*loss}), summary({expected.*loss})}};
      const TodoIds unseen = unobserved();
      std::string id = unseen.empty() ? "" : *unseen.rbegin();
      if (const std::string of_known = known_.todo(expected_, mine_, seen, id); todos_.contains(of_known))
        id = of_known;
      if (!id.empty()) {
        blame(id, false);
        say_where_to_look(id);
      }
      std::printf("The %s of step %d on replica %d differs: yours %s, expected %s.\n", name, expected.step,
                  expected.replica, text(mine.*loss).c_str(), text(expected.*loss).c_str());
      explain(seen);
      if (unseen.contains(id)) {
        std::printf("All recorded tensors agree, but none belongs to %s: look there first.\n", called(unseen).c_str());
      } else if (!right_.empty()) {
        std::printf("All tensors of the first steps agree: look at the later steps, or at the loss itself.\n");
      }
      return false;
    }
  }
  if (mine_.losses.size() == theirs.size()) return true;
  const Sighting seen{"losses", {summary({double(mine_.losses.size())}), summary({double(theirs.size())})}};
  const std::string of_known = known_.todo(expected_, mine_, seen);
  const std::string id = todos_.contains(of_known) ? of_known : loop_of_program();
  blame(id, false);
  say_where_to_look(id);
  std::printf("Your run recorded %zu losses, expected %zu: is the number of steps or replicas wrong?\n",
              mine_.losses.size(), theirs.size());
  explain(seen);
  return false;
}

bool Comparison::parameters_agree() {
  std::map<std::string, const Tensor*> mine;
  for (const Tensor& tensor : mine_.parameters) mine[tensor.name] = &tensor;
  for (const Tensor& expected : expected_.parameters) {
    const auto found = mine.find(expected.name);
    if (found == mine.end()) {
      std::printf("The parameter '%s' is not in your record.\n", expected.name.c_str());
      return false;
    }
    const std::string difference = differing(*found->second, expected, expected.rms());
    if (difference.empty()) continue;
    const std::string sentence = diagnose({*found->second, expected});
    blame("", false);
    std::printf("The losses agree, but not the parameter '%s' after the last step.\n%s%s", expected.name.c_str(),
                difference.c_str(), sentence.empty() ? "" : ("  " + sentence + "\n").c_str());
    explain({"parameter " + expected.name, {summary(found->second->values), summary(expected.values)}});
    return false;
  }
  return true;
}

bool Comparison::traffic_agrees() {
  TrafficVerdict verdict = compare_traffic(expected_, mine_, todos_);
  if (verdict.text.empty()) return true;
  if (!verdict.wrong) {
    traffic_note_ = verdict.text;
    return true;
  }
  const Sighting seen = traffic_sighting(expected_, mine_);
  if (verdict.todo.empty()) {  // the calls are not in the participant's code, but it causes them
    const std::string of_known = known_.todo(expected_, mine_, seen);
    if (todos_.contains(of_known)) {
      verdict.todo = of_known;
      verdict.text.insert(verdict.text.find('\n') + 1, todos_.place_line(of_known));
      verdict.text.insert(0, todos_.heading(of_known) + ": ");
    }
  }
  // Each call of the function is right, but there are too many of them.
  if (const auto [caller, function] = one_that_calls_too_often(verdict.todo); !caller.empty()) {
    const std::string details = verdict.text.substr(verdict.text.find('\n') + 1);
    verdict.text = todos_.heading(caller) + " calls " + function + "() more often than expected: the numbers are " +
                   "right, but the traffic is not.\n" + todos_.place_line(caller) +
                   details.substr(todos_.place_line(verdict.todo).size());
    verdict.todo = caller;
  }
  blame(verdict.todo, true);
  std::printf("%s", verdict.text.c_str());
  explain(seen);
  return false;
}

std::pair<std::string, std::string> Comparison::one_that_calls_too_often(const std::string& callee) const {
  for (const auto& [key, probe] : mine_probes_) {
    const std::string function = given_to(key);
    if (key.id != callee || function.empty() || expected_probes_.contains(key)) continue;
    for (std::size_t i = 0; i < expected_order_.size(); ++i) {
      const ProbeKey& other = expected_order_[i];
      if (other.rank != key.rank || other.step != key.step || given_to(other) != function) continue;
      if (const std::string caller = one_that_calls(function, i); !caller.empty() && caller != callee)
        return {caller, function};
    }
  }
  return {};
}

bool Comparison::time_agrees() {
  TimeVerdict verdict = compare_time(expected_, mine_, todos_);
  if (verdict.text.empty()) return true;
  // The call that waits may only show that its function is called at another time.
  const std::optional<Misplaced> call = misplaced_call();
  if (call) verdict.todo = call->caller;
  const Sighting seen{"time of a step: " + verdict.where + (call ? ", " + call->function + " misplaced" : ""),
                      {summary({mine_.seconds_per_step * 1e3}), summary({expected_.seconds_per_step * 1e3})}};
  const std::string of_known = verdict.host_waits_in_todo ? "" : known_.todo_of_time(expected_, seen);
  if (!of_known.empty()) verdict.todo = of_known;
  blame(verdict.todo, true);
  std::printf("%s: the right numbers, but %s\n%s%s",
              verdict.todo.empty() ? "Your program" : todos_.heading(verdict.todo).c_str(), verdict.headline.c_str(),
              todos_.place_line(verdict.todo).c_str(), verdict.text.c_str());
  if (call) {
    std::printf("  %s() is called %s than in the solution.\n", call->function.c_str(),
                call->early ? "earlier" : "later");
  }
  explain(seen, !verdict.host_waits_in_todo);
  return false;
}

void Comparison::print_notes() const {
  std::printf("%s", traffic_note_.c_str());
  if (other_ && todos_.contains(other_->id)) {
    std::printf("Note: %s does it in a different way than the solution, with the same result.\n",
                called(other_->id).c_str());
  }
  std::printf("%s%s", notes_on_code(todos_).c_str(), notes_on_host_memory(expected_, mine_, todos_).c_str());
  for (const auto& [rank, peak] : expected_.peak_memory) {
    const auto mine = mine_.peak_memory.find(rank);
    if (mine == mine_.peak_memory.end() || mine->second == peak) continue;
    std::printf("Note: your rank %d holds up to %s bytes of device memory, the solution's %s.\n", rank,
                text(mine->second).c_str(), text(peak).c_str());
    break;
  }
  const std::string waits = notes_on_waits(expected_, mine_, todos_);
  std::printf("%s", waits.c_str());
  if (waits.empty()) note_more("synchronizations", "waits for its device", "; the device is idle meanwhile.");
  note_more(
      "events", "records events",
      ". An event that is recorded again stands for all work enqueued on its stream by then: a stream that waits for "
      "it may wait for more than it needs, and less runs at the same time.",
      /*slack=*/0.1);
}

void Comparison::note_more(const std::string& what, const char* does, const char* why, double slack) const {
  for (const auto& [rank, host] : expected_.host) {
    const auto mine = mine_.host.find(rank);
    if (mine == mine_.host.end() || mine->second.at(what) <= (1 + slack) * host.at(what)) continue;
    const auto times = [](double count) { return text(count) + (count == 1 ? " time" : " times"); };
    std::printf("Note: your rank %d %s %s%s, the solution's %s%s\n", rank, does, times(mine->second.at(what)).c_str(),
                expected_.steps > 0 ? " during the steps" : "", times(host.at(what)).c_str(), why);
    return;
  }
}

int Comparison::print_unfinished() const {
  print_right();
  std::printf("Next: %s\n", called(mine_.todo).c_str());
  return 77;
}

void Comparison::print_success() {
  std::string parts;
  const auto add = [&parts](double count, const std::string& what) {
    if (count > 0) parts += (parts.empty() ? "" : ", ") + what + " (" + text(count) + ")";
  };
  double calls = 0;
  for (const Collective& c : expected_.collectives) calls += c.calls;
  // It is right if all that comes of it is.
  for (const std::string& loop : loops_of_program()) right_.insert(loop);
  add(static_cast<double>(expected_.probes.size()), "tensors");
  add(static_cast<double>(expected_.losses.size()), "losses");
  add(static_cast<double>(expected_.parameters.size()), "parameters");
  if (traffic_note_.empty()) add(calls, "NCCL calls");
  TodoIds missing;
  for (const auto& [id, todo] : todos_.all()) {
    if (!right_.contains(id)) missing.insert(id);
  }
  const std::string todos = !missing.empty() ? "right: " + called(right_)
                            : right_.size() == 1
                                ? "the " + todos_.kind() + " is right"
                                : "all " + std::to_string(right_.size()) + " " + todos_.kind() + "s right";
  std::printf("%s: %s agree (largest relative difference %.1e)\n", todos.c_str(), parts.c_str(), largest_);
  if (!missing.empty()) std::printf("Not reached in this run: %s\n", called(missing).c_str());
}

const std::vector<Probe>& Comparison::passed_by(int rank) const {
  static const std::vector<Probe> kNone;
  const auto passed = mine_.passed.find(rank);
  return passed == mine_.passed.end() ? kNone : passed->second;
}

// Whether a probe records this tensor, whichever time in its step.
bool is_of(const Probe& probe, const ProbeKey& key) {
  return probe.step == key.step && probe.id == key.id && probe.tensor.name == key.name;
}

bool Comparison::unfinished(std::size_t position, const TodoIds& behind) const {
  const ProbeKey& at = expected_order_[position];
  for (std::size_t i = position; i < expected_order_.size(); ++i) {
    const ProbeKey& key = expected_order_[i];
    if (key.rank == at.rank && key.step == at.step && todos_.contains(key.id) && !behind.contains(key.id)) return true;
  }
  return false;
}

Comparison::End Comparison::where_it_ended() const {
  End end;
  std::size_t earliest = expected_order_.size();
  for (int rank = 0; rank < expected_.world; ++rank) {
    if (ending_->rank() >= 0 && ending_->rank() != rank) continue;
    std::string before, inside;
    TodoIds behind;
    bool in_other_chapter = false;  // the first probe that it did not reach belongs to another chapter
    const std::vector<Probe>& passed = passed_by(rank);
    std::size_t position = 0;
    for (std::size_t i = 0; i < expected_order_.size(); ++i) {
      const ProbeKey& key = expected_order_[i];
      if (key.rank != rank) continue;
      // A rank that waits is at the first probe whose values never arrived; a rank that ended, at the first probe that
      // it did not reach.
      const bool went_on = position < passed.size();
      const bool done = ending_->waits() ? mine_probes_.contains(key) : went_on && is_of(passed[position], key);
      ++position;
      if (done) {
        if (given_to(key).empty()) behind.insert(key.id);  // that it was called does not show that it is right
        inside = given_to(key).empty() ? "" : key.id;
        before = key.id + " ('" + key.name + "'" +
                 (expected_.steps > 0 ? ", step " + std::to_string(key.step) : std::string()) + ")";
        continue;
      }
      const std::string id = given_to(key).empty() ? key.id : caller(i);
      if (!todos_.contains(id)) {
        in_other_chapter = true;
        continue;
      }
      // Such code is called by a TODO that has recorded nothing yet, not by one whose result was right.
      if (in_other_chapter && !ending_->waits() && behind.contains(id) && unfinished(i, behind)) continue;
      if (i < earliest) {
        earliest = i;
        end = {id, before.empty() ? "none" : before + " on rank " + std::to_string(rank), inside,
               went_on && !ending_->waits(), behind};
      }
      break;
    }
  }
  return end;
}

std::optional<Comparison::Misplaced> Comparison::misplaced_call() const {
  for (int rank = 0; rank < expected_.world; ++rank) {
    std::vector<const Probe*> mine;
    if (const auto passed = mine_.passed.find(rank); passed != mine_.passed.end()) {
      for (const Probe& probe : passed->second) mine.push_back(&probe);
    } else {
      for (const Probe& probe : mine_.probes) {
        if (probe.rank == rank) mine.push_back(&probe);
      }
    }
    std::size_t position = 0;
    for (std::size_t i = 0; i < expected_order_.size(); ++i) {
      const ProbeKey& key = expected_order_[i];
      if (key.rank != rank) continue;
      if (position == mine.size()) break;
      const Probe& probe = *mine[position++];
      if (is_of(probe, key)) continue;
      const ProbeKey is{rank, probe.step, probe.id, probe.tensor.name, 0};
      for (const bool early : {true, false}) {
        const std::string function = given_to(early ? is : key);
        const std::string caller = function.empty() ? "" : one_that_calls(function, i);
        if (is_write(caller)) return Misplaced{caller, function, early, is, key};
      }
      break;
    }
  }
  return std::nullopt;
}

bool Comparison::called_too_early() {
  const std::optional<Misplaced> call = misplaced_call();
  if (!call || !call->early) return false;
  blame(call->caller, true);
  // Only the checker knows the names of what other chapters record.
  const std::string first = todos_.contains(call->expected.id)
                                ? "expected first: '" + call->expected.name + "' of " + called(call->expected.id)
                                : "the solution does other work first";
  std::printf("%s calls %s() earlier than expected.\n%s  %s; %s\n", todos_.heading(call->caller).c_str(),
              call->function.c_str(), todos_.place_line(call->caller).c_str(), tensor_of(call->mine).c_str(),
              first.c_str());
  // An order that does not fit is a consequence, and advice on it would mislead.
  if (!ending_->has_verdict()) std::printf("%s", ending_->quote(todos_).c_str());
  if (ending_->sighting()) {
    Sighting seen = *ending_->sighting();
    seen.where += ", too early";
    explain(seen);
  }
  // Which two uses of memory meet depends on the model; the call does not. Zeros say that it is not certain.
  if (!explained_) explain({call->function + " too early, before " + call->expected.id, {summary({}), summary({})}});
  print_right();
  return true;
}

int Comparison::print_ending() {
  auto [next, last, inside, elsewhere, passed] = where_it_ended();
  if (called_too_early()) return 1;
  if ((ending_->crashed() || elsewhere) && is_write(inside) && todos_.contains(inside)) next = inside;
  const std::string on_default_stream = ending_->on_default_stream(todos_);
  std::string named = on_default_stream.empty() ? ending_->todo(todos_, next) : on_default_stream;
  // A TODO that worked before was called with wrong arguments: blame the TODO that calls it.
  if (on_default_stream.empty() && passed.contains(named) && todos_.calls(next, named)) named = next;
  bool of_others = true;  // what looks like this may be a mistake of another TODO
  // A known mistake tells best which TODO it is: a mistake may show in a different TODO, or after the last probe.
  if (ending_->sighting() && !ending_->uses_memory_twice()) {
    // Of several that look alike, prefer one with a line that the output names.
    std::vector<std::string> preferred = ending_->todos(todos_);
    preferred.insert(preferred.begin(), named.empty() ? next : named);
    std::string of_known;
    for (const std::string& id : preferred) {
      of_known = known_.todo(expected_, mine_, *ending_->sighting(), id, settled());
      if (of_known == id) break;
    }
    // Code that was not reached cannot have crashed.
    const bool probed = std::ranges::any_of(expected_.probes, [&](const Probe& p) { return p.id == of_known; });
    of_others = !ending_->crashed() || of_known == next || !probed || passed.contains(of_known);
    // A kernel that goes beyond its memory is that of the TODO that launches it.
    if (ending_->names_a_kernel() && !named.empty()) of_others = of_others && of_known == named;
    if (todos_.contains(of_known) && of_others) named = of_known;
  }
  blame(named.empty() ? next : named, !named.empty());
  const std::string& id = named.empty() ? next : named;
  std::printf("%s %s\n%s", id.empty() ? "Your program" : todos_.heading(id).c_str(),
              ending_->headline(expected_.world, !id.empty()).c_str(), todos_.place_line(id).c_str());
  if (!last.empty()) std::printf("  Last probe passed: %s\n", last.c_str());
  std::printf("%s", ending_->quote(todos_).c_str());
  if (ending_->sighting()) explain(*ending_->sighting(), of_others && !ending_->uses_memory_twice(), settled());
  print_right();
  return 1;
}

int Comparison::run() {
  const int status = verdict();
  if (status == 1 && todos_.contains(blamed_)) {
    const std::string where = where_code_differs(blamed_, todos_.all().at(blamed_));
    if (!where.empty()) std::printf("%s\n", where.c_str());
  }
  return status;
}

int Comparison::verdict() {
  if (!probes_agree()) {
    if (ending_ != nullptr) {
      std::printf("Your program %s This may be a consequence.\n%s", ending_->headline(expected_.world, false).c_str(),
                  ending_->quote(todos_).c_str());
      if (ending_->sighting() && !explained_) explain(*ending_->sighting(), !ending_->uses_memory_twice());
    }
    return 1;
  }
  if (!mine_.todo.empty()) return print_unfinished();
  if (ending_ != nullptr) return print_ending();
  if (rounded_) {
    std::printf("%s\n", right_.empty() ? "Nothing is wrong" : ("right: " + called(right_)).c_str());
    std::printf(
        "Note: with --precision bf16, %s (%s) is one rounding away from the solution's, as the same arithmetic "
        "in a different order may be. Nothing after it was compared in this run.\n",
        tensor_of(*rounded_).c_str(), called(rounded_->id).c_str());
    return 0;
  }
  if (!losses_agree() || !parameters_agree() || !traffic_agrees() || !time_agrees()) return 1;
  print_success();
  print_notes();
  return 0;
}

void Comparison::write_summary(std::ostream& file) const {
  // Unchecked: the solution's run reaches it, but only after the first mistake, or after this run ended. Unreached: the
  // solution's run does not reach it either.
  const bool cut_short = ending_ != nullptr || !mine_.complete || !mine_.todo.empty() || !blamed_.empty();
  TodoIds reached = calling();
  reached.merge(loops_of_program());
  for (const Probe& probe : expected_.probes) reached.insert(probe.id);
  for (const auto& [id, todo] : todos_.all()) {
    const char* state = id == blamed_                       ? "wrong"
                        : id == mine_.todo                  ? "open"
                        : right_.contains(id)               ? "right"
                        : cut_short && reached.contains(id) ? "unchecked"
                                                            : "unreached";
    file << state << ' ' << id << '\n';
  }
  if (!blamed_.empty())
    file << "blame " << (certain_ ? "certain " : "likely ") << blamed_ << (explained_ ? " known" : "") << '\n';
}

// Leaves what the program records at this level, under the names that its regions have there.
void see_as(RunRecord& record, const Todos& todos) {
  const auto rename = [&](std::vector<Probe>& probes) {
    std::erase_if(probes, [&](const Probe& probe) { return todos.region_of_probe(probe.id).empty(); });
    for (Probe& probe : probes) probe.id = todos.region_of_probe(probe.id);
  };
  rename(record.probes);
  for (auto& [rank, passed] : record.passed) rename(passed);
}

struct Settings {
  std::string expected, mine;
  std::vector<std::string> todos;
  double tolerance = 1e-5;
  std::string sources, summary, output, fingerprints, level;
  int status = 0;
  bool journals = false, sightings = false;
};

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Code may do nothing where there is nothing to do, for example for an expert without rows. Where one run records empty
// tensors more often than the other, and all others equally often, removes the empty ones from both.
void remove_skipped(RunRecord& expected, RunRecord& mine) {
  struct Counts {
    int empty = 0, others = 0;
    bool operator==(const Counts&) const = default;
  };
  using Key = std::tuple<int, int, std::string, std::string>;
  const auto key = [](const Probe& p) { return Key{p.rank, p.step, p.id, p.tensor.name}; };
  std::map<Key, Counts> counts[2];
  for (const RunRecord* run : {&expected, &mine}) {
    for (const Probe& p : run->probes) {
      Counts& of = counts[run == &mine][key(p)];
      ++(p.tensor.size() == 0 ? of.empty : of.others);
    }
  }
  const auto skipped = [&](const Probe& p) {
    if (p.tensor.size() != 0) return false;
    const Counts theirs = counts[0][key(p)], ours = counts[1][key(p)];
    return theirs.others == ours.others && theirs.empty != ours.empty;
  };
  for (RunRecord* run : {&expected, &mine}) std::erase_if(run->probes, skipped);
}

int compare(const Settings& settings) {
  RunRecord expected = read_run_record(settings.expected);
  RunRecord mine = settings.journals ? read_journals(settings.mine) : read_run_record(settings.mine);
  const bool known = !settings.journals || !mine.program.empty();  // a rank may end before it writes a journal
  if (known && (expected.chapter != mine.chapter || expected.program != mine.program || expected.world != mine.world)) {
    throw std::runtime_error("the records are of different programs or numbers of ranks");
  }
  if (!expected.complete) throw std::runtime_error(settings.expected + " is not a complete run");
  const Ending ending(settings.status, content(settings.output), is_bf16(expected));
  static const std::map<std::string, Level> kLevels = {
      {"", Level::found}, {"guided", Level::guided}, {"blank", Level::blank}};
  if (!kLevels.contains(settings.level))
    throw std::runtime_error("--level is '" + settings.level + "'; expected guided or blank");
  const Todos todos(settings.todos, settings.sources, kLevels.at(settings.level));
  see_as(expected, todos);
  see_as(mine, todos);
  if (mine.complete) remove_skipped(expected, mine);
  if (settings.status == 77 && mine.todo.empty())
    mine.todo = ending.todo(todos, "");  // a kernel on a GPU only prints its TODO
  const bool ended = (!mine.complete && mine.todo.empty()) || settings.status == 1;
  const KnownMistakes known_mistakes(settings.fingerprints, settings.sightings, todos);
  Comparison comparison(expected, mine, settings.tolerance, todos, ended || ending.has_verdict() ? &ending : nullptr,
                        known_mistakes);
  const int status = comparison.run();
  if (!settings.summary.empty()) {
    std::ofstream file(settings.summary);
    comparison.write_summary(file);
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  Arguments arguments("compare_runs", "Compares a run with the solution's and says which TODO is the first to differ.");
  arguments.require("EXPECTED", settings.expected, "the record of the solution's run");
  arguments.require("MINE", settings.mine, "the record to judge");
  arguments.add("--tolerance", settings.tolerance, "the largest relative difference that counts as equal");
  arguments.add("--todos", settings.todos, "a source of the solution, with the TODOs' texts");
  arguments.add("--sources", settings.sources, "the folder with the participant's sources, FOLDER/02_ddp/ddp.cu");
  arguments.add("--level", settings.level, "judge as if the sources were at this level, guided or blank");
  arguments.add("--summary", settings.summary, "file to write the state of each TODO to");
  arguments.add("--journals", settings.journals, "MINE holds the journals of a run that failed");
  arguments.add("--status", settings.status, "exit status of the run that failed");
  arguments.add("--output", settings.output, "file with what the failed run printed");
  arguments.add("--fingerprints", settings.fingerprints, "file with what known mistakes look like");
  arguments.add("--sightings", settings.sightings,
                "print what the first difference looks like, for a file of fingerprints");
  return arguments.run(argc, argv, [&] { return compare(settings); });
}
