// SPDX-License-Identifier: Apache-2.0
#include "common/data/grammar.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <unordered_map>

namespace workshop {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

template <typename Range, typename Predicate>
int find_index(const Range& range, const Predicate& predicate) {
  const auto found = std::find_if(range.begin(), range.end(), predicate);
  return found == range.end() ? -1 : static_cast<int>(found - range.begin());
}

bool is_upper(const std::string& word) {
  return std::all_of(word.begin(), word.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}

std::string lower(std::string word) {
  for (char& c : word) c = static_cast<char>(std::tolower(c));
  return word;
}

}  // namespace

// Numbers the places in the rules: nodes first, then each word of each rule. A state is a place and its memory. The
// memory has four bits per slot: 0, or one plus the row's number.
class Grammar::Builder {
 public:
  Builder(Grammar& grammar, const std::vector<Slot>& slots, const std::vector<Rule>& rules)
      : grammar_(grammar), slots_(slots) {
    const bool fits =
        slots.size() <= 16 && std::ranges::all_of(slots, [](auto& slot) { return slot.rows.size() < 16; });
    if (!fits) throw std::logic_error("more than 16 slots, or more than 15 rows in a slot");
    for (const Rule& rule : rules) node(rule.from);
    for (const Rule& rule : rules) node(rule.to);
    for (const Rule& rule : rules) add(rule);
    live_.resize(nodes_.size() + items_.size());
    live_[0] = 0;
    for (const Option& option : nodes_[0].options) require_nothing(live(option.first));

    states_.reserve(1 << 15);
    state(0, 0);
    // NOLINTNEXTLINE(modernize-loop-convert): add_arcs() adds places
    for (std::size_t from = 0; from < places_.size(); ++from) {
      grammar_.first_arcs_.push_back(static_cast<int>(grammar_.arcs_.size()));
      const auto [place, memory] = places_[from];
      add_arcs(place, memory);
    }
    grammar_.first_arcs_.push_back(static_cast<int>(grammar_.arcs_.size()));
  }

 private:
  using Memory = std::uint64_t;
  struct State {
    int place;
    Memory memory;

    bool operator==(const State&) const = default;
  };
  struct Hash {
    std::size_t operator()(const State& state) const {
      return (state.memory ^ static_cast<std::uint64_t>(state.place) << 48) * 0x9e3779b97f4a7c15 >> 20;
    }
  };
  static Memory bits_of(int slot) { return Memory{15} << 4 * slot; }

  struct Option {
    int first;  // place
    int weight;
  };
  struct Node {
    std::string name;
    std::vector<Option> options;
  };
  struct Item {
    int slot = -1, column = 0;  // -1: the item is the word itself
    bool draws = false;
    std::string word;
    int next = 0;  // place
  };

  int node(const std::string& name) {
    const int found = find_index(nodes_, [&](const Node& node) { return node.name == name; });
    if (found >= 0) return found;
    nodes_.push_back({name, {}});
    return static_cast<int>(nodes_.size()) - 1;
  }

  void add(const Rule& rule) {
    const auto place = [&] { return static_cast<int>(nodes_.size() + items_.size()); };
    nodes_[node(rule.from)].options.push_back({place(), rule.weight});
    for (const std::string& word : split(rule.text, ' ')) {
      items_.push_back(item(word));
      items_.back().next = place();
    }
    items_.back().next = node(rule.to);
  }

  Item item(const std::string& word) const {
    Item item;
    item.word = word;
    const std::string name = word.substr(0, word.find('.'));
    item.slot = find_index(slots_, [&](const Slot& slot) { return slot.name == lower(name); });
    if (item.slot < 0) return item;
    item.draws = is_upper(name);
    if (name == word) return item;
    const Slot& slot = slots_[item.slot];
    item.column = find_index(slot.columns, [&](const std::string& c) { return c == word.substr(name.size() + 1); });
    if (item.column < 0) throw std::logic_error("no column " + word);
    return item;
  }

  // Returns the bits of the slots whose rows may be said from this place on before they are drawn again.
  Memory live(int place) {
    if (live_[place]) return *live_[place];
    Memory bits = 0;
    if (place < static_cast<int>(nodes_.size())) {
      for (const Option& option : nodes_[place].options) bits |= live(option.first);
    } else {
      const Item& item = items_[place - nodes_.size()];
      bits = live(item.next);
      if (item.slot >= 0) bits = item.draws ? bits & ~bits_of(item.slot) : bits | bits_of(item.slot);
    }
    live_[place] = bits;
    return bits;
  }

  void require_nothing(Memory bits) const {
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      if (bits & bits_of(static_cast<int>(s)))
        throw std::logic_error("a rule may say a row of '" + slots_[s].name + "' that has not been drawn");
    }
  }

  int state(int place, Memory memory) {
    const State kept = {place, memory & live(place)};
    const auto [state, is_new] = states_.emplace(kept, static_cast<int>(places_.size()));
    if (is_new) places_.push_back(kept);
    return state->second;
  }

  int word(const std::string& text) {
    const auto [word, is_new] = word_numbers_.emplace(text, static_cast<int>(grammar_.words_.size()));
    if (is_new) grammar_.words_.push_back(text);
    return word->second;
  }

  const std::vector<int>& words(const std::string& cell) {
    const auto [words, is_new] = cells_.try_emplace(cell);
    if (is_new) {
      for (const std::string& text : split(cell, '/')) words->second.push_back(word(text));
    }
    return words->second;
  }

  void add_arcs(int place, Memory memory) {
    std::vector<Arc>& arcs = grammar_.arcs_;
    const std::size_t first = arcs.size();
    std::vector<std::uint64_t> shares;  // per arc: its weight must be divided by this
    const auto say = [&](const Item& item, int weight) {
      const auto say_one_of = [&](const std::string& cell, Memory then, std::size_t rows) {
        const std::vector<int>& words = this->words(cell);
        for (int word : words) {
          arcs.push_back({word, state(item.next, then), static_cast<std::uint64_t>(weight), 0});
          shares.push_back(rows * words.size());
        }
      };
      if (item.slot < 0) return say_one_of(item.word, memory, 1);
      const auto& rows = slots_[item.slot].rows;
      const Memory others = memory & ~bits_of(item.slot);
      if (!item.draws) return say_one_of(rows[((memory ^ others) >> 4 * item.slot) - 1][item.column], memory, 1);
      for (std::size_t row = 0; row < rows.size(); ++row) {
        say_one_of(rows[row][item.column], others | (row + 1) << 4 * item.slot, rows.size());
      }
    };
    const int nodes = static_cast<int>(nodes_.size());
    if (place >= nodes) {
      say(items_[place - nodes], 1);
    } else {
      for (const Option& option : nodes_[place].options) say(items_[option.first - nodes], option.weight);
    }

    std::uint64_t common = 1, sum = 0;
    for (std::uint64_t share : shares) common = std::lcm(common, share);
    const std::span<Arc> added = std::span(arcs).subspan(first);
    for (std::size_t i = 0; i < added.size(); ++i) sum += added[i].weight *= common / shares[i];
    for (Arc& arc : added) arc.probability = static_cast<double>(arc.weight) / static_cast<double>(sum);
  }

  Grammar& grammar_;
  const std::vector<Slot>& slots_;
  std::vector<Node> nodes_;
  std::vector<Item> items_;
  std::vector<std::optional<Memory>> live_;  // by place
  std::vector<State> places_;                // by state
  std::unordered_map<State, int, Hash> states_;
  std::unordered_map<std::string, int> word_numbers_;
  std::unordered_map<std::string, std::vector<int>> cells_;  // the words of each cell
};

Grammar::Grammar(const std::vector<Slot>& slots, const std::vector<Rule>& rules) {
  const Builder built(*this, slots, rules);
  stationary_ = time_in_states();
}

std::vector<double> Grammar::time_in_states() const {
  // Computes the expected visits to each state between two visits to state 0, one word at a time, and divides them by
  // the expected number of words in between.
  std::vector<double> visits(states()), now(states()), then(states());
  now[0] = 1;
  for (bool any = true; any;) {
    any = false;
    for (int state = 0; state < states(); ++state) {
      if (now[state] == 0) continue;
      visits[state] += now[state];
      for (const Arc& arc : arcs(state)) {
        if (arc.to == 0) continue;
        then[arc.to] += now[state] * arc.probability;
        any = true;
      }
      now[state] = 0;
    }
    std::swap(now, then);
  }
  const double words = std::accumulate(visits.begin(), visits.end(), 0.0);
  for (double& time : visits) time /= words;
  return visits;
}

std::vector<std::int32_t> Grammar::write(std::size_t count, std::mt19937_64& random) const {
  std::vector<std::int32_t> text;
  text.reserve(count);
  for (int state = 0; text.size() < count;) {
    std::uint64_t sum = 0;
    for (const Arc& arc : arcs(state)) sum += arc.weight;
    // The remainder favors small numbers by less than sum / 2^64.
    std::uint64_t drawn = arcs(state).size() == 1 ? 0 : random() % sum;
    auto arc = arcs(state).begin();
    for (; drawn >= arc->weight; ++arc) drawn -= arc->weight;
    text.push_back(arc->word);
    state = arc->to;
  }
  return text;
}

Reader::Reader(const Grammar& grammar, const std::vector<std::string>& vocabulary)
    : grammar_(&grammar), saying_(vocabulary.size()), first_(vocabulary.size()), weights_(grammar.states()) {
  for (const std::string& word : grammar.words()) {
    tokens_.push_back(std::max(0, find_index(vocabulary, [&](const std::string& entry) { return entry == word; })));
  }
  for (int state = 0; state < grammar.states(); ++state) {
    stationary_.emplace_back(state, grammar.stationary()[state]);
    for (const Grammar::Arc& arc : grammar.arcs(state)) {
      Belief& saying = saying_[tokens_[arc.word]];
      if (saying.empty() || saying.back().first != state) saying.push_back(stationary_.back());
    }
  }
  first_probability_ = next();
}

std::vector<double> Reader::next() const {
  std::vector<double> probabilities(first_.size());
  for (const auto& [state, probability] : belief_ ? *belief_ : stationary_) {
    for (const Grammar::Arc& arc : grammar_->arcs(state)) {
      probabilities[tokens_[arc.word]] += probability * arc.probability;
    }
  }
  return probabilities;
}

double Reader::read(std::int32_t token) {
  double probability = 0;
  if (belief_ == nullptr) {
    Belief& belief = first_[token];
    if (belief.empty()) follow(saying_[token], token, belief);
    probability = first_probability_[token];
    belief_ = &belief;
  } else {
    Belief& then = beliefs_[belief_ == beliefs_.data() ? 1 : 0];
    probability = follow(*belief_, token, then);
    belief_ = &then;
  }
  if (belief_->empty()) start();
  return probability;
}

// Computes the belief after this token. Returns the token's probability.
double Reader::follow(const Belief& belief, std::int32_t token, Belief& then) {
  then.clear();
  double sum = 0;
  for (const auto& [state, probability] : belief) {
    for (const Grammar::Arc& arc : grammar_->arcs(state)) {
      if (tokens_[arc.word] != token) continue;
      if (weights_[arc.to] == 0) then.emplace_back(arc.to, 0);
      weights_[arc.to] += probability * arc.probability;
      sum += probability * arc.probability;
    }
  }
  for (auto& [state, probability] : then) probability = std::exchange(weights_[state], 0) / sum;
  return sum;
}

}  // namespace workshop
