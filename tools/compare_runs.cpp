// SPDX-License-Identifier: Apache-2.0
// Tells a participant whether a run did what the solution's run did and, where not, which TODO is the first to differ.
// Exit status: 0 the runs agree; 1 they differ; 77 they agree up to a TODO that is not filled in; 2 no comparison.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "common/run/text.h"
#include "tools/diagnosis.h"
#include "tools/fingerprints.h"
#include "tools/run_record.h"

namespace {

using namespace workshop::tools;

// "2.1" of "02.1" as numbers, so that 02.10 comes after 02.9.
struct TodoOrder {
  bool operator()(const std::string& a, const std::string& b) const { return key(a) < key(b); }
  static std::pair<int, int> key(const std::string& id) {
    int chapter = 0, number = 0;
    std::sscanf(id.c_str(), "%d.%d", &chapter, &number);
    return {chapter, number};
  }
};
using Todos = std::map<std::string, std::string, TodoOrder>;  // number -> first line of its text

Todos read_todos(const std::vector<std::string>& files) {
  static const std::regex kTodo(R"(\s*// TODO (\d\d\.\d+): (.*))");
  Todos todos;
  for (const std::string& path : files) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error("cannot read " + path);
    std::string line;
    std::smatch match;
    while (std::getline(file, line)) {
      if (std::regex_match(line, match, kTodo)) todos[match[1]] = match[2];
    }
  }
  return todos;
}

std::string text(double value) {
  if (!std::isfinite(value)) return "not a number";
  return workshop::formatted("%.7g", value);
}

std::string text(const std::vector<long>& list) {
  std::string result = "[";
  for (long value : list) result += (result.size() > 1 ? ", " : "") + std::to_string(value);
  return result + "]";
}

std::string joined(const std::set<std::string, TodoOrder>& ids) {
  std::string list;
  for (const std::string& id : ids) list += (list.empty() ? "" : ", ") + id;
  return list;
}

// The place of a value in its tensor: [row, column] for position row * columns + column.
std::vector<long> place(std::size_t position, const std::vector<long>& shape) {
  std::vector<long> index(shape.size());
  auto rest = static_cast<long>(position);
  for (std::size_t axis = shape.size(); axis-- > 0; rest /= std::max(shape[axis], 1L)) {
    index[axis] = rest % std::max(shape[axis], 1L);
  }
  return index;
}

// The n-th tensor of a name after a TODO, in one step on one rank.
struct ProbeKey {
  int rank, step;
  std::string id, name;
  int occurrence;
  auto operator<=>(const ProbeKey&) const = default;
};
using Probes = std::map<ProbeKey, const Probe*>;

class Comparison {
 public:
  Comparison(const RunRecord& expected, const RunRecord& mine, double tolerance, Todos todos,
             const KnownMistakes& known)
      : expected_(expected), mine_(mine), tolerance_(tolerance), todos_(std::move(todos)), known_(known) {
    index(expected_, expected_probes_, &expected_order_);
    index(mine_, mine_probes_, nullptr);
    if (todos_.empty()) {
      for (const Probe& probe : expected_.probes) todos_.try_emplace(probe.id);
    }
  }

  // Prints the verdict and returns the exit status.
  int run();

 private:
  static void index(const RunRecord& record, Probes& probes, std::vector<ProbeKey>* order);
  std::string heading(const std::string& id) const;
  // What is wrong with a tensor, as indented lines; empty if nothing is. Keeps the largest difference.
  std::string differing(const Tensor& mine, const Tensor& expected);
  std::string diagnosis(const ProbeKey& key) const;
  // The sentence of the known mistake that looks like this; empty where there is none.
  std::string known(const ProbeKey& key) const;
  // TODOs of this program after which nothing is recorded: only the losses can show that they are wrong.
  std::set<std::string, TodoOrder> unobserved() const;

  // Each prints what differs first and returns false, or returns true.
  bool probes_agree();
  bool losses_agree();
  bool parameters_agree();
  bool traffic_agrees();
  // Prints the sentence of the known mistake that looks like this, if there is one.
  void explain(const Sighting& seen) const;
  void print_notes() const;
  int print_unfinished() const;
  void print_success() const;

  const RunRecord &expected_, &mine_;
  double tolerance_;
  Todos todos_;
  const KnownMistakes& known_;
  Probes expected_probes_, mine_probes_;
  std::vector<ProbeKey> expected_order_;
  std::set<std::string, TodoOrder> right_;  // of this program's TODOs, those whose tensors agree until one does not
  double largest_ = 0;                      // relative difference seen
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

std::string Comparison::heading(const std::string& id) const {
  const auto todo = todos_.find(id);
  return "TODO " + id + (todo == todos_.end() || todo->second.empty() ? "" : " (" + todo->second + ")");
}

std::string Comparison::differing(const Tensor& mine, const Tensor& expected) {
  if (mine.shape != expected.shape || mine.values.size() != expected.values.size()) {
    return "  shape: yours " + text(mine.shape) + ", expected " + text(expected.shape) + "\n";
  }
  const double rms = expected.rms();
  double worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const double error = relative_error(mine.values[i], expected.values[i], rms);
    if (error > worst) {
      worst = error;
      at = i;
    }
  }
  largest_ = std::max(largest_, worst);
  if (!(worst <= tolerance_)) {
    return "  largest difference at " + text(place(at, expected.shape)) + ": yours " + text(mine.values[at]) +
           ", expected " + text(expected.values[at]) + "\n";
  }
  // Of a large tensor the record holds the first values; the sums speak for the rest.
  const double l2 = relative_error(mine.l2, expected.l2);
  const double sum = relative_error(mine.sum, expected.sum, expected.l2 * std::sqrt(std::max(expected.size(), 1.0)));
  largest_ = std::max({largest_, l2, sum});
  if (l2 <= tolerance_ && sum <= tolerance_) return "";
  return "  the first " + std::to_string(expected.values.size()) + " values agree, later ones do not: l2 norm yours " +
         text(mine.l2) + ", expected " + text(expected.l2) + "\n";
}

std::string Comparison::diagnosis(const ProbeKey& key) const {
  Symptom symptom{mine_probes_.at(key)->tensor, expected_probes_.at(key)->tensor, expected_.world, {}, {}, nullptr};
  if (!std::isfinite(symptom.expected.l2))
    return "The solution's own values are not finite: is the learning rate too high?";
  ProbeKey other = key;
  for (other.rank = 0; other.rank < expected_.world; ++other.rank) {
    const auto mine = mine_probes_.find(other), expected = expected_probes_.find(other);
    if (mine != mine_probes_.end()) symptom.mine_by_rank.push_back(&mine->second->tensor);
    if (expected != expected_probes_.end()) symptom.expected_by_rank.push_back(&expected->second->tensor);
  }
  other = key;
  --other.step;
  const auto before = expected_probes_.find(other);
  if (before != expected_probes_.end()) symptom.expected_before = &before->second->tensor;
  return diagnose(symptom);
}

std::string Comparison::known(const ProbeKey& key) const {
  return known_.sentence(expected_, mine_,
                         sighting(expected_, mine_, key.id, key.name, key.rank, key.step, key.occurrence), key.id);
}

std::set<std::string, TodoOrder> Comparison::unobserved() const {
  std::set<std::string, TodoOrder> ids;
  for (const auto& [id, text] : todos_) ids.insert(id);
  for (const Probe& probe : expected_.probes) ids.erase(probe.id);
  return ids;
}

bool Comparison::probes_agree() {
  const bool partial = !mine_.todo.empty();  // then only what one rank did before the TODO is there
  for (const ProbeKey& key : expected_order_) {
    const auto mine = mine_probes_.find(key);
    if (mine == mine_probes_.end() && partial) continue;
    const std::string place =
        "  tensor '" + key.name + "' on rank " + std::to_string(key.rank) + ", step " + std::to_string(key.step);
    const Tensor& expected = expected_probes_.at(key)->tensor;
    std::string wrong;
    if (mine == mine_probes_.end()) {
      wrong = " was not reached as often as expected.\n" + place + ": not there " +
              (key.occurrence > 0 ? "a further time" : "at all") +
              "\n  Does a condition, a loop or an early return leave it out on this rank?\n";
      if (const std::string sentence = known(key); !sentence.empty()) {
        wrong += "  " + sentence + "\n";
      }
    } else {
      const std::string difference = differing(mine->second->tensor, expected);
      if (!difference.empty()) {
        std::string sentence = known(key);
        if (sentence.empty()) sentence = diagnosis(key);
        if (sentence.empty() && expected_.world > 1) {
          sentence =
              "No common mistake fits. Where streams overlap, a wait that a later TODO leaves out can show here too.";
        }
        wrong = " is the first that differs.\n" + place + ", shape " + text(expected.shape) + "\n" + difference +
                (sentence.empty() ? "" : "  " + sentence + "\n");
      }
    }
    if (!wrong.empty()) {
      right_.erase(key.id);
      std::printf("%s%s", heading(key.id).c_str(), wrong.c_str());
      if (!todos_.contains(key.id)) {
        std::printf(
            "  It belongs to an earlier chapter: unless that is your own, it works on what one of this program's "
            "TODOs has left wrong, or not finished yet.\n");
      }
      if (!right_.empty()) std::printf("Right until there: TODO %s\n", joined(right_).c_str());
      return false;
    }
    if (todos_.contains(key.id)) right_.insert(key.id);
  }
  for (const auto& [key, probe] : mine_probes_) {
    if (expected_probes_.contains(key)) continue;
    std::printf("%s is reached more often than expected.\n  tensor '%s' on rank %d, step %d: seen %d times or more\n",
                heading(key.id).c_str(), key.name.c_str(), key.rank, key.step, key.occurrence + 1);
    explain({workshop::formatted("%s '%s' rank %d step %d more often", key.id.c_str(), key.name.c_str(), key.rank,
                                 key.step),
             {}});
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
      std::printf("The %s of step %d on replica %d differs: yours %s, expected %s.\n", name, expected.step,
                  expected.replica, text(mine.*loss).c_str(), text(expected.*loss).c_str());
      explain({workshop::formatted("%s step %d replica %d", name, expected.step, expected.replica),
               {summary({mine.*loss}), summary({expected.*loss})}});
      if (!unobserved().empty()) {
        std::printf("All recorded tensors agree; none stands for TODO %s: look there first.\n",
                    joined(unobserved()).c_str());
      } else if (!right_.empty()) {
        std::printf("All tensors of the first steps agree: look at what happens after them, or to the loss itself.\n");
      }
      return false;
    }
  }
  if (mine_.losses.size() == theirs.size()) return true;
  std::printf("Your run recorded %zu losses, expected %zu: more or fewer steps or replicas.\n", mine_.losses.size(),
              theirs.size());
  explain({workshop::formatted("%zu losses for %zu", mine_.losses.size(), theirs.size()), {}});
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
    const std::string difference = differing(*found->second, expected);
    if (difference.empty()) continue;
    const std::string sentence = diagnose({*found->second, expected, 1, {}, {}, nullptr});
    std::printf("The losses agree, but not the parameter '%s' after the last step.\n%s%s", expected.name.c_str(),
                difference.c_str(), sentence.empty() ? "" : ("  " + sentence + "\n").c_str());
    explain({"parameter " + expected.name, {summary(found->second->values), summary(expected.values)}});
    return false;
  }
  return true;
}

bool Comparison::traffic_agrees() {
  struct Traffic {
    double calls = 0, bytes = 0;
  };
  // By operation and communicator first, so that one line can stand for all ranks.
  std::map<std::pair<std::string, std::string>, std::map<int, std::pair<Traffic, Traffic>>> ledger;
  for (const Collective& c : expected_.collectives) {
    Traffic& traffic = ledger[{c.op, c.communicator}][c.rank].first;
    traffic = {traffic.calls + c.calls, traffic.bytes + c.bytes};
  }
  for (const Collective& c : mine_.collectives) {
    Traffic& traffic = ledger[{c.op, c.communicator}][c.rank].second;
    traffic = {traffic.calls + c.calls, traffic.bytes + c.bytes};
  }
  bool agree = true;
  for (const auto& [key, by_rank] : ledger) {
    for (const auto& [rank, both] : by_rank) {
      const auto& [expected, mine] = both;
      if (mine.calls == expected.calls && mine.bytes == expected.bytes) continue;
      if (agree) std::printf("The numbers are right, but not what is sent for them:\n");
      agree = false;
      std::printf(
          "  your %s on communicator '%s' is called %s times on rank %d, expected %s; with %s bytes, expected %s\n",
          key.first.c_str(), key.second.c_str(), text(mine.calls).c_str(), rank, text(expected.calls).c_str(),
          text(mine.bytes).c_str(), text(expected.bytes).c_str());
      break;  // the other ranks say the same most of the time
    }
  }
  if (!agree) explain(traffic_sighting(expected_, mine_));
  return agree;
}

void Comparison::explain(const Sighting& seen) const {
  if (const std::string sentence = known_.sentence(expected_, mine_, seen); !sentence.empty())
    std::printf("%s\n", sentence.c_str());
}

void Comparison::print_notes() const {
  for (const auto& [rank, peak] : expected_.peak_memory) {
    const auto mine = mine_.peak_memory.find(rank);
    if (mine == mine_.peak_memory.end() || mine->second == peak) continue;
    std::printf("Note: your rank %d holds up to %s bytes of device memory, the solution's %s.\n", rank,
                text(mine->second).c_str(), text(peak).c_str());
    break;
  }
  for (const auto& [rank, host] : expected_.host) {
    const double waits = host.at("synchronizations");
    const auto mine = mine_.host.find(rank);
    if (mine == mine_.host.end() || mine->second.at("synchronizations") <= waits) continue;
    std::printf(
        "Note: your rank %d waits for its device %s times during the steps, the solution's %s times; the "
        "device has nothing to do meanwhile.\n",
        rank, text(mine->second.at("synchronizations")).c_str(), text(waits).c_str());
    break;
  }
}

int Comparison::print_unfinished() const {
  if (!right_.empty()) std::printf("Right so far: TODO %s\n", joined(right_).c_str());
  std::printf("Next: TODO %s\n", mine_.todo.c_str());
  return 77;
}

void Comparison::print_success() const {
  std::string parts;
  const auto add = [&parts](double count, const std::string& what) {
    if (count > 0) parts += (parts.empty() ? "" : ", ") + what + " (" + text(count) + ")";
  };
  double calls = 0;
  for (const Collective& c : expected_.collectives) calls += c.calls;
  add(static_cast<double>(expected_.probes.size()), "tensors");
  add(static_cast<double>(expected_.losses.size()), "losses");
  add(static_cast<double>(expected_.parameters.size()), "parameters");
  add(calls, "NCCL calls");
  const std::string todos =
      todos_.size() == 1 ? "the TODO is right" : "all " + std::to_string(todos_.size()) + " TODOs right";
  std::printf("%s: %s agree (largest relative difference %.1e)\n", todos.c_str(), parts.c_str(), largest_);
}

int Comparison::run() {
  if (!probes_agree()) return 1;
  if (!mine_.todo.empty()) return print_unfinished();
  if (!losses_agree() || !parameters_agree() || !traffic_agrees()) return 1;
  print_success();
  print_notes();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Compares the record of a run with the solution's");
  std::string expected_path, mine_path;
  double tolerance = 1e-5;
  std::vector<std::string> todo_files;
  std::string fingerprints;
  bool shows = false;
  int failed = 0;
  app.add_option("EXPECTED", expected_path, "record of the solution's run")->required();
  app.add_option("MINE", mine_path, "record of the run to judge")->required();
  app.add_option("--tolerance", tolerance, "largest relative difference that counts as equal")->capture_default_str();
  app.add_option("--todos", todo_files, "sources with the TODOs' texts");
  app.add_option("--fingerprints", fingerprints, "what known mistakes look like");
  app.add_flag("--sightings", shows, "also print what the first difference looks like, for a file of fingerprints");
  app.add_option("--failed", failed, "the run ended with this status, and MINE is its output: is it a known mistake?");
  try {
    app.parse(argc, argv);
    const KnownMistakes known(fingerprints, shows);
    const RunRecord expected = read_run_record(expected_path);
    if (failed != 0) {
      std::ifstream file(mine_path);
      std::ostringstream output;
      output << file.rdbuf();
      const std::optional<Sighting> seen = failure(failed, output.str());
      const std::string sentence = seen ? known.sentence(expected, {}, *seen) : "";
      if (!sentence.empty()) std::printf("%s\n", sentence.c_str());
      return 0;
    }
    const RunRecord mine = read_run_record(mine_path);
    if (expected.chapter != mine.chapter || expected.program != mine.program || expected.world != mine.world) {
      throw std::runtime_error("the records are of different programs or numbers of ranks");
    }
    if (!expected.todo.empty()) throw std::runtime_error(expected_path + " is not a complete run");
    return Comparison(expected, mine, tolerance, read_todos(todo_files), known).run();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "compare_runs: %s\n", error.what());
    return 2;
  }
}
