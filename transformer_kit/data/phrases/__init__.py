"""The grammar of the demo corpus: a lexicon, inflection in both languages, numbers and times, sentence templates."""
