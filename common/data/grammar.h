// SPDX-License-Identifier: Apache-2.0
// A grammar as a probabilistic finite-state machine, made from tables: it writes text, and knows how probable each next
// word of a text is.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace workshop {

// What a rule may draw and remember, a row at a time. The first column is what the slot's name alone says. A cell is
// one word, or several of the same probability: "silver/tiny".
struct Slot {
  std::string name;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

// At node `from`, with a probability in proportion to `weight`: say `text`, go on at node `to`. The text's words are
//   HERO HERO.his    draw a row of the slot `hero`, each with the same probability, and say this column of it;
//   hero hero.his    say a column of the row drawn last;
//   all others       say the word itself.
struct Rule {
  std::string from;
  int weight;
  std::string text;
  std::string to;
};

// The machine. A state is a place in a rule and the rows that are remembered there; each of its arcs says a word. Rows
// that no rule asks for again are forgotten, so that there are no more states than the text can tell apart.
class Grammar {
 public:
  struct Arc {
    int word;  // entry of words()
    int to;    // state
    std::uint64_t weight;
    double probability;  // weight over the sum of the state's weights
  };

  // A text begins at the first rule's node, state 0. Every cycle of the rules passes through that node, and there all
  // rows are forgotten. Throws std::logic_error where a rule may say a row that has not been drawn.
  Grammar(const std::vector<Slot>& slots, const std::vector<Rule>& rules);

  int states() const { return static_cast<int>(first_arcs_.size()) - 1; }
  std::span<const Arc> arcs(int state) const {
    return {arcs_.data() + first_arcs_[state], arcs_.data() + first_arcs_[state + 1]};
  }
  const std::vector<std::string>& words() const { return words_; }
  // The share of its time that the machine spends in each state: [states()], sums to 1.
  const std::vector<double>& stationary() const { return stationary_; }

  // `count` words of a text that begins in state 0, the same on every platform: random numbers are integers, and so are
  // the weights.
  std::vector<std::int32_t> write(std::size_t count, std::mt19937_64& random) const;

 private:
  class Builder;
  std::vector<double> time_in_states() const;

  std::vector<Arc> arcs_;        // those of state 0, of state 1, …
  std::vector<int> first_arcs_;  // where those of each state begin, and where the last end
  std::vector<std::string> words_;
  std::vector<double> stationary_;
};

// Reads a text of the grammar word by word, from anywhere in it, and says what the next word may be: the forward
// algorithm of hidden Markov models, from the stationary distribution. Its probabilities are exact; no model can do
// better on average without seeing more of the text.
class Reader {
 public:
  // Reads tokens, which are entries of this vocabulary; the probability of entry 0, <unk>, is that of all words that
  // are not in it. The grammar must outlive the reader.
  Reader(const Grammar& grammar, const std::vector<std::string>& vocabulary);
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Nothing is read yet, and the next word may be any of the text. The constructor does this too.
  void start() { belief_ = nullptr; }
  // The probability that each token is the next: [vocabulary.size()], sums to 1.
  std::vector<double> next() const;
  // Reads a token and returns the probability that it had. Where that is 0, starts again behind it.
  double read(std::int32_t token);

 private:
  using Belief = std::vector<std::pair<int, double>>;  // states that the machine may be in, and their probabilities

  double follow(const Belief& belief, std::int32_t token, Belief& then);

  const Grammar* grammar_;
  std::vector<std::int32_t> tokens_;  // of each of the grammar's words
  Belief stationary_;
  std::vector<Belief> saying_;             // of it, the states that may say each token
  std::vector<Belief> first_;              // after this token alone; filled when first needed
  std::vector<double> first_probability_;  // of each token
  std::array<Belief, 2> beliefs_;
  const Belief* belief_ = nullptr;  // null: stationary_
  std::vector<double> weights_;     // by state; 0 between calls
};

}  // namespace workshop
