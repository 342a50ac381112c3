// SPDX-License-Identifier: Apache-2.0
// Text as a language model sees it: tokens, which are numbers of words in a vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace workshop {

// Three streams of tokens over one vocabulary, in which 0 is <unk> and 1 is <eos>. Sample i of a stream of n tokens
// with context T is x = tokens i T to i T + T - 1 and y, the same shifted by one: floor((n - 1) / T) samples.
struct Text {
  std::vector<std::string> vocabulary;
  std::vector<std::int32_t> train, valid, test;
};

// Reads train.txt, valid.txt and test.txt in `folder`, or, where there is no train.txt, the files of WikiText-2:
// wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens (or .raw).
//
// A line is its words, split where Python's str.split() does it, and <eos>, as in WikiText-2; lines end where Python's
// open() says, at \n, \r or \r\n. Vocabulary: <unk>, <eos>, then the other words of the training file, most frequent
// first, those of the same frequency in the order of their first appearance. `vocabulary`: entries in all, every word
// without one is <unk>; 0: all words. `context`: each stream needs context + 1 tokens at least, one sample.
//
// Throws std::runtime_error, one line that names the file, where a folder or file is missing, or a file is empty, too
// short, or binary: no UTF-8, or with a zero byte. Holds one copy of the tokens, and a few kilobytes of a file at a
// time.
Text read_text(const std::string& folder, int vocabulary, int context);

// Numbers the tokens of a text anew, whose vocabulary is in any order and without repetition, by the rules of
// read_text(): <unk>, <eos>, the training stream's words by frequency, `limit` entries in all (0: no limit).
void keep_most_frequent(Text& text, int limit);

}  // namespace workshop
