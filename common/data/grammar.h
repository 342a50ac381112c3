// SPDX-License-Identifier: Apache-2.0
// A grammar as a probabilistic finite-state machine, built from tables. It writes text, and it knows the probability of
// each next word of a text.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace workshop {

// A table from which a rule may draw a row and remember it. The slot's name without a column means the first column. A
// cell is one word, or several of equal probability: "silver/tiny".
struct Slot {
  std::string name;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

// At node `from`, with a probability proportional to `weight`: say `text`, then go to node `to`. The words of the text:
//   HERO HERO.his    draw a row of the slot `hero`, all with equal probability, and say this column of it;
//   hero hero.his    say a column of the row that was drawn last;
//   all others       say the word itself.
struct Rule {
  std::string from;
  int weight;
  std::string text;
  std::string to;
};

// The machine. A state is a place in a rule and the rows that are remembered there; each of its arcs says a word. Rows
// that no rule uses again are forgotten, so there are no more states than the text can tell apart.
class Grammar {
 public:
  struct Arc {
    int word;  // entry of words()
    int to;    // state
    std::uint64_t weight;
    double probability;  // weight over the sum of the state's weights
  };

  // A text begins at the first rule's `from` node, which is state 0. Every cycle of the rules must pass through that
  // node, where all rows are forgotten. Throws std::logic_error if a rule may say a row that has not been drawn.
  Grammar(const std::vector<Slot>& slots, const std::vector<Rule>& rules);

  int states() const { return static_cast<int>(first_arcs_.size()) - 1; }
  std::span<const Arc> arcs(int state) const {
    return {arcs_.data() + first_arcs_[state], arcs_.data() + first_arcs_[state + 1]};
  }
  const std::vector<std::string>& words() const { return words_; }
  // The share of time that the machine spends in each state: [states()], sums to 1.
  const std::vector<double>& stationary() const { return stationary_; }

  // Returns `count` words of a text that begins in state 0. They are the same on every platform, because random numbers
  // and weights are integers.
  std::vector<std::int32_t> write(std::size_t count, std::mt19937_64& random) const;

 private:
  class Builder;
  std::vector<double> time_in_states() const;

  std::vector<Arc> arcs_;        // of state 0, of state 1, …
  std::vector<int> first_arcs_;  // the index of each state's first arc, then arcs_.size()
  std::vector<std::string> words_;
  std::vector<double> stationary_;
};

// Reads a text of the grammar word by word, from any place on, and predicts the next word: the forward algorithm of
// hidden Markov models, starting from the stationary distribution. Its probabilities are exact; no model can do better
// on average without seeing more of the text.
class Reader {
 public:
  // A token is an index into this vocabulary. The probability of token 0, <unk>, is that of all words that are not in
  // the vocabulary. The grammar must outlive the reader.
  Reader(const Grammar& grammar, const std::vector<std::string>& vocabulary);
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Forgets what has been read: the next word may be any word of the text. Also the state after construction.
  void start() { belief_ = nullptr; }
  // Returns the probability of each token to be the next: [vocabulary.size()], sums to 1.
  std::vector<double> next() const;
  // Reads a token and returns the probability that it had. If that is 0, starts anew after the token.
  double read(std::int32_t token);

 private:
  using Belief = std::vector<std::pair<int, double>>;  // possible states, with their probabilities

  double follow(const Belief& belief, std::int32_t token, Belief& then);

  const Grammar* grammar_;
  std::vector<std::int32_t> tokens_;  // by word of the grammar
  Belief stationary_;
  std::vector<Belief> saying_;             // by token: the part of stationary_ that may say it
  std::vector<Belief> first_;              // by token: the belief after only this token; filled when first needed
  std::vector<double> first_probability_;  // by token
  std::array<Belief, 2> beliefs_;
  const Belief* belief_ = nullptr;  // null: stationary_
  std::vector<double> weights_;     // by state; 0 between calls
};

}  // namespace workshop
