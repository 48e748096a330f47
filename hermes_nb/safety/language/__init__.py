"""Injections in words: the lexicon, a text as a row of tags, and the rules over those."""
