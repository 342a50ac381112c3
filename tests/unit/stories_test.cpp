// SPDX-License-Identifier: Apache-2.0
// The automaton that writes the stories, what a reader of them can know, and the loss that follows.
#include "common/data/stories.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace workshop {
namespace {

using Tokens = std::vector<std::int32_t>;
using Words = std::vector<std::string>;

// --- A grammar that is small enough to calculate with.

const std::vector<Slot> kPets = {{"pet", {"name", "he"}, {{"cat", "she"}, {"dog", "he/it"}}}};
const std::vector<Rule> kPetRules = {
    {"begin", 3, "a PET ran .", "end"},
    {"begin", 1, "PET.he ran .", "begin"},
    {"end", 1, "pet.he sat .", "begin"},
};
const Words kPetWords = {"<unk>", "a", "cat", "dog", "ran", ".", "she", "he", "it", "sat"};

// Returns the reader's probability for each word of a text, one after another.
std::vector<double> probabilities(Reader& reader, const Words& vocabulary, const Words& text) {
  std::vector<double> result;
  for (const std::string& word : text) {
    const auto entry = std::find(vocabulary.begin(), vocabulary.end(), word);
    result.push_back(reader.read(entry == vocabulary.end() ? 0 : static_cast<int>(entry - vocabulary.begin())));
  }
  return result;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-14) << "number " << i;
}

TEST(Grammar, SpendsItsTimeInProportionToTheWordsOfItsTexts) {
  const Grammar grammar(kPets, kPetRules);
  // Between two story beginnings there are 7 words with probability 3/4 and 3 words with 1/4: 6 on average.
  EXPECT_DOUBLE_EQ(grammar.stationary()[0], 1 / 6.);
  EXPECT_DOUBLE_EQ(std::accumulate(grammar.stationary().begin(), grammar.stationary().end(), 0.), 1);
}

TEST(Reader, KnowsWhatFollows) {
  const Grammar grammar(kPets, kPetRules);
  Reader reader(grammar, kPetWords);
  // A story of 6 words has, on average: 3/4 a, cat or dog; 1 ran; 7/4 full stops; 3/4 sat; one of she, he, it.
  const double a = 1 / 8., ran = 1 / 6., stop = 7 / 24.;
  expect_near(reader.next(), {0, a, a / 2, a / 2, ran, stop, 1 / 12., 1 / 24., 1 / 24., a});
  // 3 of 7 full stops are followed by a pet's pronoun, which is "he" with probability 1/4. After the other 4 a story
  // begins, with "he" in one of 16.
  expect_near(probabilities(reader, kPetWords, {".", "he"}), {stop, 3 / 7. * 1 / 4. + 4 / 7. * 1 / 16.});
  // Of these 3/28 and 1/28, the first continues with "sat", the second with "ran".
  expect_near(probabilities(reader, kPetWords, {"sat", "."}), {3 / 4., 1});
  expect_near(probabilities(reader, kPetWords, {"a", "cat", "ran", ".", "she", "sat"}), {3 / 4., 1 / 2., 1, 1, 1, 1});
  reader.start();
  expect_near(probabilities(reader, kPetWords, {"cat", "ran"}), {a / 2, 1});
}

TEST(Reader, AddsUpTheWordsThatAreNotInTheVocabulary) {
  const Grammar grammar(kPets, kPetRules);
  const Words vocabulary = {"<unk>", ".", "a"};
  Reader reader(grammar, vocabulary);
  // After an "a" everything is known except which pet follows, and <unk> covers all pets.
  expect_near(probabilities(reader, vocabulary, {"a", "cat", "ran", ".", "she"}), {1 / 8., 1, 1, 1, 1});
  reader.start();
  // A full stop (7/4 of 6 words) always follows a pair of unknown words: "cat ran", "she ran", "she sat". So 7/2 of 6
  // words are unknown, and every second one of these is followed by another.
  expect_near(probabilities(reader, vocabulary, {"?", "?", "."}), {7 / 12., 1 / 2., 1});
}

TEST(Reader, StartsAnewBehindTheImpossible) {
  const Grammar grammar(kPets, kPetRules);
  Reader reader(grammar, kPetWords);
  expect_near(probabilities(reader, kPetWords, {"a", "a", "a", "she"}), {1 / 8., 0, 1 / 8., 0});
}

TEST(Grammar, RefusesToSayWhatIsNotDrawn) {
  EXPECT_THROW(Grammar(kPets, {{"begin", 1, "a pet ran .", "begin"}}), std::logic_error);
  EXPECT_THROW(Grammar(kPets, {{"begin", 1, "a PET ran .", "end"}, {"end", 1, "pet.she sat .", "begin"}}),
               std::logic_error);
}

// --- The stories.

TEST(Stories, AreTheSameOnEveryPlatform) {
  const Text text = write_stories(12345, 20000, 0);
  std::string words;
  for (const Tokens* stream : {&text.train, &text.valid, &text.test}) {
    for (std::int32_t token : *stream) words += text.vocabulary[token] + " ";
  }
  EXPECT_EQ(crc32_z(0, reinterpret_cast<const unsigned char*>(words.data()), words.size()), 4061105484u);
  EXPECT_NE(write_stories(12346, 20000, 0).train, text.train);
  EXPECT_NE(write_stories(12345 + (std::uint64_t{1} << 32), 20000, 0).train, text.train);
}

TEST(Stories, HaveTheSizesThatAreAskedFor) {
  const Text text = write_stories(1, 50000, 0);
  EXPECT_EQ(text.train.size(), 50000);
  EXPECT_EQ(text.valid.size(), 5000);
  EXPECT_EQ(text.test.size(), 5000);
  EXPECT_EQ(text.vocabulary.size(), story_grammar().words().size() + 1);  // and <unk>
  EXPECT_EQ(text.vocabulary[0], "<unk>");
  EXPECT_EQ(text.vocabulary[1], "<eos>");
  EXPECT_EQ(write_stories(1, 300, 0).test.size(), 1000);
  EXPECT_EQ(write_stories(1, 50000, 100).vocabulary.size(), 100);
}

TEST(Stories, HaveAStationaryDistribution) {
  const Grammar& grammar = story_grammar();
  std::vector<double> next(grammar.states());
  for (int state = 0; state < grammar.states(); ++state) {
    for (const Grammar::Arc& arc : grammar.arcs(state)) next[arc.to] += grammar.stationary()[state] * arc.probability;
  }
  for (int state = 0; state < grammar.states(); ++state) ASSERT_NEAR(next[state], grammar.stationary()[state], 1e-15);
  EXPECT_NEAR(std::accumulate(next.begin(), next.end(), 0.), 1, 1e-12);
}

TEST(Stories, HaveProbabilitiesThatSumToOne) {
  for (int vocabulary : {0, 60}) {
    const Text text = write_stories(2, 3000, vocabulary);
    Reader reader(story_grammar(), text.vocabulary);
    for (int i = 0; i < 500; ++i) {
      if (i % 50 == 0) reader.start();
      const std::vector<double> next = reader.next();
      ASSERT_NEAR(std::accumulate(next.begin(), next.end(), 0.), 1, 1e-12);
      ASSERT_NEAR(reader.read(text.test[i]), next[text.test[i]], 1e-15);
    }
  }
}

// Returns the probability of these tokens from a state on: the sum over all paths through the automaton.
double sum_over_paths(int state, const std::int32_t* tokens, int count, const Tokens& token_of_word) {
  if (count == 0) return 1;
  double sum = 0;
  for (const Grammar::Arc& arc : story_grammar().arcs(state)) {
    if (token_of_word[arc.word] != *tokens) continue;
    sum += arc.probability * sum_over_paths(arc.to, tokens + 1, count - 1, token_of_word);
  }
  return sum;
}

Tokens token_of_word(const Words& vocabulary) {
  std::map<std::string, std::int32_t> numbers;
  for (std::size_t i = 0; i < vocabulary.size(); ++i) numbers[vocabulary[i]] = static_cast<std::int32_t>(i);
  Tokens tokens;
  for (const std::string& word : story_grammar().words()) tokens.push_back(numbers.count(word) ? numbers[word] : 0);
  return tokens;
}

TEST(BestLoss, IsThatOfAllWaysThroughTheMachine) {
  constexpr int context = 10;
  for (int vocabulary : {0, 60, 20}) {
    const Text text = write_stories(3, 3000, vocabulary);
    const Tokens tokens = token_of_word(text.vocabulary);
    const Tokens stream(text.valid.begin(), text.valid.begin() + 20 * context + 5);
    // The product of the probabilities of each next token must be the probability of all tokens divided by that of the
    // first.
    double sum = 0;
    for (int sample = 0; sample < 20; ++sample) {
      double all = 0, first = 0;
      for (int state = 0; state < story_grammar().states(); ++state) {
        const double time = story_grammar().stationary()[state];
        all += time * sum_over_paths(state, stream.data() + sample * context, context + 1, tokens);
        first += time * sum_over_paths(state, stream.data() + sample * context, 1, tokens);
      }
      sum -= std::log(all / first);
    }
    EXPECT_NEAR(best_loss(text.vocabulary, stream, context), sum / (20 * context), 1e-12);
  }
}

TEST(BestLoss, FallsWithTheContextToThatOfOneWhoKnowsTheBeginning) {
  const Text text = write_stories(4, 20000, 0);
  double before = std::numeric_limits<double>::max();
  for (int context : {8, 16, 32, 64, 128, 256}) {
    const double loss = best_loss(text.vocabulary, text.train, context);
    EXPECT_LT(loss, before);
    before = loss;
  }
  // One sample of the whole text, against the probability of each story from its first word on. The two differ only in
  // what is known at the beginning of the text.
  const Tokens tokens = token_of_word(text.vocabulary);
  const int count = static_cast<int>(text.valid.size());
  double sum = 0;
  for (int first = 0, last = 0; first < count; first = last) {
    while (last < count && text.valid[last++] != 1) continue;
    sum -= std::log(sum_over_paths(0, text.valid.data() + first, last - first, tokens));
  }
  const double beginning = -std::log(story_grammar().stationary()[0]);
  const double loss = best_loss(text.vocabulary, text.valid, count - 1);
  EXPECT_LT(loss, before);
  EXPECT_NEAR(loss, sum / count, beginning / count);
}

TEST(BestLoss, IsTheEntropyOnAverage) {
  // The expected loss of a token, given the tokens before it, is the entropy of the reader's distribution. The
  // differences have mean zero and are uncorrelated, even if they depend on each other, so the variance of their sum is
  // the sum of their squares. A deviation of five standard deviations occurs once in a million seeds.
  for (int vocabulary : {0, 100}) {
    const Text text = write_stories(5, 20000, vocabulary);
    Reader reader(story_grammar(), text.vocabulary);
    reader.read(text.train[0]);
    double sum = 0, squares = 0;
    for (std::size_t i = 1; i < text.train.size(); ++i) {
      double entropy = 0;
      for (double p : reader.next()) entropy -= p > 0 ? p * std::log(p) : 0;
      const double difference = -std::log(reader.read(text.train[i])) - entropy;
      sum += difference;
      squares += difference * difference;
    }
    EXPECT_LE(std::abs(sum), 5 * std::sqrt(squares));
  }
}

TEST(BestLoss, IsInfiniteForOtherTexts) {
  const Text text = write_stories(6, 1000, 0);
  EXPECT_EQ(best_loss(text.vocabulary, Tokens{1, 1, 1}, 2), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace workshop
