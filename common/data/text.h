// SPDX-License-Identifier: Apache-2.0
// Text as a language model sees it: a sequence of tokens, which are indices into a vocabulary of words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace workshop {

// Three streams of tokens with one vocabulary, in which 0 is <unk> and 1 is <eos>. With context T, a stream of k tokens
// has floor((k - 1) / T) samples. Sample i has as x the tokens i·T to i·T + T - 1, and as y the same shifted by one.
struct Text {
  std::vector<std::string> vocabulary;
  std::vector<std::int32_t> train, valid, test;
};

// Reads train.txt, valid.txt and test.txt in `folder` or, if there is no train.txt, the files of WikiText-2:
// wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens (or .raw).
//
// As in WikiText-2, a line becomes its words, split as by Python's str.split(), and <eos>. Lines end where Python's
// open() ends them: at \n, \r or \r\n. A byte-order mark at the beginning of a file is skipped. The vocabulary is
// <unk>, <eos>, then the other words of the training file by falling frequency, and words of the same frequency in the
// order of their first appearance. `vocabulary`: number of entries in all; every word without an entry is <unk>; 0: no
// limit. `context`: each stream needs at least context + 1 tokens, which is one sample.
//
// Throws std::runtime_error with one line that names the file if the folder or a file is missing, or if a file is
// empty, too short, or binary (not UTF-8, or with a zero byte). Holds one copy of the tokens, and a few kilobytes of a
// file at a time.
Text read_text(const std::string& folder, int vocabulary, int context);

// Renumbers the tokens of a text by the rules of read_text(): <unk>, <eos>, then the training stream's words by
// frequency, with `limit` entries in all (0: no limit). The vocabulary of `text` may have any order, but no entry
// twice.
void keep_most_frequent(Text& text, int limit);

}  // namespace workshop
