// SPDX-License-Identifier: Apache-2.0
// The workshop's own corpus: stories of animals who lose and find things.
#pragma once

#include <cstdint>
#include <vector>

#include "common/data/grammar.h"
#include "common/data/text.h"

namespace workshop {

// A grammar with 213 words, including <eos>. A story has 60 words on average and ends with <eos>.
const Grammar& story_grammar();

// Writes stories from a seed, the same on every platform: first the training stream, then validation and test. `words`,
// at least 1, is the number of tokens in the training stream; the others have a tenth of that each, but at least 1,000.
// A stream begins with a story and may end within one. The vocabulary is as in read_text(): at most `vocabulary`
// entries (0: no limit). Words that do not occur in the training stream are also <unk>.
Text write_stories(std::uint64_t seed, int words, int vocabulary);

// Returns the mean of -log p(next token | the sample's tokens so far) over the tokens of the stream's samples
// (common/data/text.h), in nats, where p is the grammar's own probability. No model that sees `context` tokens can have
// a lower loss on average. Token 0 stands for any word that is not in the vocabulary. The result is infinite if the
// stream cannot have come from the grammar, and NaN if it has no sample.
double best_loss(const std::vector<std::string>& vocabulary, const std::vector<std::int32_t>& stream, int context);

}  // namespace workshop
