// SPDX-License-Identifier: Apache-2.0
#include "checker/fingerprints.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "checker/code_difference.h"
#include "common/base/format.h"

namespace workshop::tools {
namespace {

// Runs of the same program on different processors differ by rounding. Two mistakes differ by far more.
constexpr double kTolerance = 1e-3;
constexpr double kRounding = 1e-5;    // what is left where a mistake makes a gradient 0, of what it should be
constexpr double kOfIntegers = 6e-5;  // integers are exact, but the file holds only five digits of their sums

constexpr const char* kAlone = " alone";  // ends the place of a sighting_alone()

// The reverse of text().
Sighting parse(const std::string& line) {
  static const std::string kBar = " | ";
  Sighting sighting;
  std::size_t begin = 0;
  for (bool first = true; begin != std::string::npos; first = false) {
    const std::size_t bar = line.find(kBar, begin);
    const std::string part = line.substr(begin, bar - begin);
    begin = bar == std::string::npos ? bar : bar + kBar.size();
    if (first) {
      sighting.where = part;
      continue;
    }
    Summary s;
    std::istringstream in(part), last(part);
    if (in >> s.l2 >> s.sum >> s.mix >> s.not_finite) {
      sighting.numbers.push_back(s);
    } else if (begin != std::string::npos || !(last >> sighting.calls >> sighting.bytes)) {
      throw std::runtime_error("expected four numbers, or two at the end: " + line);
    }
  }
  return sighting;
}

// The values of all recordings of a tensor in one step on one rank.
std::vector<double> in_step(const RunRecord& run, const Probe& of, int rank) {
  std::vector<double> values;
  for (const Probe& p : run.probes) {
    if (p.rank != rank || p.step != of.step || p.id != of.id || p.tensor.name != of.tensor.name) continue;
    values.insert(values.end(), p.tensor.values.begin(), p.tensor.values.end());
  }
  return values;
}

const Probe* find_probe(const RunRecord& run, const Probe& of, int occurrence) {
  for (const Probe& p : run.probes) {
    if (p.rank != of.rank || p.step != of.step || p.id != of.id || p.tensor.name != of.tensor.name) continue;
    if (occurrence-- == 0) return &p;
  }
  return nullptr;
}

// True if only values that are not recorded differ: the record holds only the first values of a large tensor.
bool differs_behind(const Tensor& mine, const Tensor& expected) {
  const auto agree = [&](double a, double b) { return relative_error(a, b, expected.rms()) <= kTolerance; };
  return expected.size() > static_cast<double>(expected.values.size()) &&
         std::ranges::equal(mine.values, expected.values, agree);
}

// True if a run ended because nothing orders two uses of memory. That reads the same on any number of ranks.
bool lacks_order(const Sighting& sighting) {
  return sighting.where.starts_with("status 1, order: ") &&
         sighting.where.find(" use the same memory, and nothing says ") != std::string::npos;
}

std::string text(const std::vector<long>& shape) {
  std::string list;
  for (long extent : shape) list += (list.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + list + "]";
}

}  // namespace

Summary summary(const std::vector<double>& values) {
  Summary s;
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      ++s.not_finite;
      continue;
    }
    const double weight = std::fmod(0.6180339887 * static_cast<double>(i + 1), 1.0) + 0.1;
    squares += values[i] * values[i];
    s.sum += values[i];
    s.mix += weight * values[i];
  }
  s.l2 = std::sqrt(squares);
  return s;
}

bool alike(const Summary& a, const Summary& b, bool integers, double expected) {
  const double rounding = kRounding * expected;
  const auto close = [&](double a, double b, double scale) {
    if (integers) return std::abs(a - b) <= kOfIntegers * std::abs(b);  // lists in other orders differ by little
    return std::abs(a - b) <= std::max(rounding, kTolerance * std::max(scale, std::abs(b)));
  };
  return a.not_finite == b.not_finite && close(a.l2, b.l2, 0) && close(a.sum, b.sum, b.l2) && close(a.mix, b.mix, b.l2);
}

std::string text(const Sighting& sighting) {
  std::string line = sighting.where;
  for (const Summary& s : sighting.numbers) {
    line += formatted(" | %.5g %.5g %.5g %ld", s.l2, s.sum, s.mix, s.not_finite);
  }
  return line + formatted(" | %.0f %.0f", sighting.calls, sighting.bytes);
}

Sighting sighting(const RunRecord& expected, const RunRecord& mine, const std::string& todo, const std::string& name,
                  int rank, int step, int occurrence) {
  const Probe probe{todo, rank, step, 0, {name, {}, {}}};
  Sighting seen{
      formatted("%s '%s' rank %d step %d time %d", todo.c_str(), name.c_str(), rank, step, occurrence), {}, 0, 0};
  const Probe *theirs = find_probe(expected, probe, occurrence), *ours = find_probe(mine, probe, occurrence);
  if (ours == nullptr) {
    seen.where += " missing";
  } else if (theirs != nullptr && ours->tensor.shape != theirs->tensor.shape) {
    seen.where += " shape " + text(ours->tensor.shape) + " for " + text(theirs->tensor.shape);
  }
  seen.integers = theirs != nullptr && theirs->tensor.integers;
  // Later recordings of the step and other ranks tell more: for example, only one rank may have the average.
  seen.numbers = {summary(in_step(mine, probe, rank)), summary(in_step(expected, probe, rank))};
  for (int other = 0; other < expected.world; ++other) {
    if (other != rank) seen.numbers.push_back(summary(in_step(mine, probe, other)));
  }
  if (ours != nullptr && theirs != nullptr && differs_behind(ours->tensor, theirs->tensor))
    seen.numbers.push_back({ours->tensor.l2, ours->tensor.sum, 0, 0});
  return seen;
}

Sighting sighting_alone(const RunRecord& expected, const RunRecord& mine, const std::string& todo,
                        const std::string& name, int rank, int step, int occurrence) {
  Sighting seen = sighting(expected, mine, todo, name, rank, step, occurrence);
  const auto numbers = [&](const RunRecord& run, int of) {
    const Probe* found = find_probe(run, {todo, of, step, 0, {name, {}, {}}}, occurrence);
    return summary(found == nullptr ? std::vector<double>() : found->tensor.values);
  };
  seen.where += kAlone;
  seen.numbers = {numbers(mine, rank), numbers(expected, rank)};
  for (int other = 0; other < expected.world; ++other) {
    if (other != rank) seen.numbers.push_back(numbers(mine, other));
  }
  return seen;
}

Sighting traffic_sighting(const RunRecord& expected, const RunRecord& mine) {
  struct Traffic {
    double calls = 0, bytes = 0;
    bool operator==(const Traffic&) const = default;
  };
  std::map<std::pair<std::string, std::string>, std::map<int, std::pair<Traffic, Traffic>>> ledger;  // mine, expected
  const auto add = [&](const Collective& c, Traffic std::pair<Traffic, Traffic>::*side) {
    Traffic& traffic = ledger[{c.op, c.communicator}][c.rank].*side;
    traffic = {traffic.calls + c.calls, traffic.bytes + c.bytes};
  };
  for (const Collective& c : mine.collectives) add(c, &std::pair<Traffic, Traffic>::first);
  for (const Collective& c : expected.collectives) add(c, &std::pair<Traffic, Traffic>::second);
  Sighting seen{"traffic", {}, 0, 0};
  for (const auto& [key, by_rank] : ledger) {
    const auto found = std::ranges::find_if(by_rank, [](const auto& r) { return r.second.first != r.second.second; });
    if (found == by_rank.end()) continue;
    const auto& [ours, theirs] = found->second;
    seen.where += formatted(" %s %s rank %d: %.0f of %.0f calls, %.0f of %.0f bytes", key.first.c_str(),
                            key.second.c_str(), found->first, ours.calls, theirs.calls, ours.bytes, theirs.bytes);
  }
  return seen;
}

std::optional<Sighting> failure(int status, const std::string& output) {
  static const std::regex kReason(
      R"((^|\n)(?:rank \d+: )?((verdict|error|order|bounds|memory): [^\n]*|)"
      R"(This schedule is wrong[^\n]*(\nstage [^\n]*)*|this is stage [^\n]*|[^\n]*see (?:TODO|WRITE) [^\n]*|)"
      R"((?:cuda[A-Z][^\n]*|the launch of a kernel) failed at [^\n]*))");
  static const std::regex kLineEnd(R"([ :]*\n *)");
  static const std::regex kPlace(R"((,| at)? ?\(?[^ ()]*\.(h|cu|cuh|cpp):\d+\)?| \(rank \d+\)$)");
  static const std::regex kAround(R"(,? part of WRITE \d\d\.[A-Z])");  // names the region at the blank level
  // How many calls the common layer has made before says nothing about the mistake.
  static const std::regex kNumber(R"(\((collective|number) \d+)");
  std::vector<std::string> reasons;
  for (std::sregex_iterator match(output.begin(), output.end(), kReason), end; match != end; ++match) {
    std::string reason = std::regex_replace((*match)[2].str(), kPlace, "");
    reason = std::regex_replace(reason, kNumber, "($1");
    reason = std::regex_replace(reason, kAround, "");
    if (reason.find("uses an address without memory") != std::string::npos) continue;  // as any kernel may
    std::ranges::replace(reason, '|', ':');
    reasons.push_back(std::regex_replace(reason, kLineEnd, " / "));
  }
  // For a call with a null buffer, keep only the rank and the reason: its arguments may be written in many ways.
  static const std::regex kNull(R"((?:^|\n)(rank \d+: )[^\n]*\((nccl\w+: (send|recv)buff is NULL)\))");
  const bool said = !reasons.empty();
  // An index beyond a std::vector: the rest of the line depends on the compiler.
  static const std::regex kAssertion(R"(\n[^\n]*: (Assertion '[^\n]*' failed))");
  const std::string lines = "\n" + output;
  for (std::sregex_iterator match(lines.begin(), lines.end(), kAssertion), end; !said && match != end; ++match)
    reasons.push_back((*match)[1].str());
  for (std::sregex_iterator match(output.begin(), output.end(), kNull), end; !said && match != end; ++match)
    reasons.push_back((*match)[1].str() + (*match)[2].str());
  // A cuBLAS call that was refused: which one is first depends on the model.
  static const std::regex kCublas(R"( failed at [^\n]*\b(CUBLAS_STATUS_[A-Z_]+))");
  for (std::sregex_iterator match(output.begin(), output.end(), kCublas), end; reasons.empty() && match != end; ++match)
    reasons.push_back((*match)[1].str());
  // The ranks print in any order, and perhaps not all of them print: take the smallest line.
  const auto first = std::ranges::min_element(reasons);
  if (first == reasons.end()) return std::nullopt;
  // After one rank has found the mistake, another may still crash, and then the status of the run is that of the crash.
  for (const char* checker : {"order: ", "bounds: ", "memory: ", "this is stage "}) {
    if (first->starts_with(checker)) status = 1;
  }
  // After the watchdog's verdict, a rank may be stopped before it ends by itself.
  if (first->starts_with("verdict: ")) status = kStuck;
  return Sighting{"status " + std::to_string(status) + ", " + *first, {}};
}

Fingerprints::Fingerprints(const std::string& path, const Todos& todos) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  TodoIds not_to_blame;
  for (const auto& [id, todo] : todos.all()) {
    if (is_solutions_code(todo)) not_to_blame.insert(id);
  }
  Fingerprint next{};
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "run") {
      words >> next.program >> next.world;
    } else if (word == "says") {
      words >> word >> std::ws;
      std::getline(words, sentences_[word]);
    } else {
      next.mistake = word;
      next.todo = todos.region_of(word.substr(0, word.find('-')));
      // Of a region that is not filled in at this level, or whose code is the solution's.
      if (next.todo.empty() || not_to_blame.contains(next.todo)) continue;
      next.sighting = parse(line.substr(std::min(line.size(), word.size() + 3)));
      fingerprints_.push_back(next);
    }
  }
}

std::optional<Mistake> Fingerprints::common(const std::vector<const Fingerprint*>& found,
                                            const std::string& todo) const {
  std::optional<Mistake> mistake;
  for (const Fingerprint* f : found) {
    const auto sentence = sentences_.find(f->mistake);
    if (sentence == sentences_.end() || (mistake && mistake->sentence != sentence->second)) return std::nullopt;
    if (!mistake || mistake->todo != todo) mistake = {f->mistake, f->todo, sentence->second, false};
  }
  return mistake;
}

std::vector<const Fingerprints::Fingerprint*> Fingerprints::all_alike(const RunRecord& run,
                                                                      const Sighting& sighting) const {
  const bool alone = sighting.where.ends_with(kAlone);
  const double expected = sighting.numbers.size() > 1 ? sighting.numbers[1].l2 : 0;
  const auto look_alike = [&](const Sighting& seen) {
    if (seen.where != sighting.where || seen.numbers.size() != sighting.numbers.size()) return false;
    for (std::size_t i = 0; i < seen.numbers.size(); ++i) {
      const Summary &a = seen.numbers[i], &b = sighting.numbers[i];
      // Behind this rank's and the solution's numbers are those of other ranks, which may have ended before.
      const bool may_lack = alone && i >= 2 && ((a.l2 == 0 && a.not_finite == 0) || (b.l2 == 0 && b.not_finite == 0));
      if (!may_lack && !alike(b, a, sighting.integers, expected)) return false;
    }
    return true;
  };
  std::vector<const Fingerprint*> found, elsewhere;
  for (const Fingerprint& f : fingerprints_) {
    if (f.program != run.program || !look_alike(f.sighting)) continue;
    (f.world == run.world ? found : elsewhere).push_back(&f);
  }
  return found.empty() && lacks_order(sighting) ? elsewhere : found;
}

std::string Fingerprints::todo(const RunRecord& run, const Sighting& sighting) const {
  const auto found = all_alike(run, sighting);
  const bool one = std::ranges::all_of(found, [&](const Fingerprint* f) { return f->todo == found[0]->todo; });
  return found.empty() || !one ? "" : found[0]->todo;
}

std::optional<Mistake> Fingerprints::find(const RunRecord& run, const Sighting& sighting, const std::string& todo,
                                          const TodoIds& settled) const {
  std::vector<const Fingerprint*> found = all_alike(run, sighting);
  std::erase_if(found, [&](const Fingerprint* f) { return settled.contains(f->todo); });
  // If the run failed, prefer mistakes of the TODO in which it failed.
  const auto of_todo = [&](const Fingerprint* f) { return f->todo == todo; };
  if (sighting.numbers.empty() && std::ranges::any_of(found, of_todo)) std::erase_if(found, std::not_fn(of_todo));
  std::optional<Mistake> mistake = common(found, todo);
  // How many calls there are when a run is cut short is chance, too.
  if (!mistake && !sighting.where.ends_with(kAlone)) {
    std::erase_if(found, [&](const Fingerprint* f) {
      return f->sighting.calls != sighting.calls || f->sighting.bytes != sighting.bytes;
    });
    mistake = common(found, todo);
  }
  if (!mistake) {  // at the blank level, mistakes of the whole region are as they show there
    std::erase_if(found, [](const Fingerprint* f) { return !is_write(f->mistake.substr(0, f->mistake.find('-'))); });
    mistake = common(found, todo);
  }
  // Many mistakes leave nothing but zeros, but few another shape.
  const bool other_shape = sighting.where.find(" shape [") != std::string::npos;
  if (mistake) mistake->certain = sighting.numbers.empty() || sighting.numbers.front().l2 > 0 || other_shape;
  return mistake;
}

KnownMistakes::KnownMistakes(const std::string& fingerprints, bool shows, const Todos& todos) : shows_(shows) {
  if (!fingerprints.empty()) known_.emplace(fingerprints, todos);
}

namespace {

Sighting with_traffic(Sighting seen, const RunRecord& mine) {
  for (const Collective& c : mine.collectives) {
    seen.calls += c.calls;
    seen.bytes += c.bytes;
  }
  return seen;
}

}  // namespace

std::optional<Mistake> KnownMistakes::find(const RunRecord& expected, const Sighting& seen, const std::string& todo,
                                           const TodoIds& settled) const {
  return known_ ? known_->find(expected, seen, todo, settled) : std::nullopt;
}

std::string KnownMistakes::todo(const RunRecord& expected, const RunRecord& mine, const Sighting& seen,
                                const std::string& preferred, const TodoIds& settled) const {
  const auto mistake = find(expected, with_traffic(seen, mine), preferred, settled);
  return mistake && mistake->certain ? mistake->todo : "";
}

std::string KnownMistakes::todo_of_time(const RunRecord& expected, const Sighting& seen) const {
  return known_ ? known_->todo(expected, seen) : "";
}

Recognized KnownMistakes::recognize(const RunRecord& expected, const RunRecord& mine, Sighting seen,
                                    const std::string& todo, bool of_others, const TodoIds& settled) const {
  seen = with_traffic(std::move(seen), mine);
  if (shows_) std::printf("sighting: %s\n", text(seen).c_str());
  const auto mistake = find(expected, seen, todo, settled);
  if (!mistake || (mistake->todo != todo && !of_others)) return {};
  const std::string whose = mistake->todo == todo ? "" : called(mistake->todo) + ": ";
  return {(mistake->certain ? "" : "Perhaps: ") + whose + mistake->sentence, mistake->todo};
}

}  // namespace workshop::tools
