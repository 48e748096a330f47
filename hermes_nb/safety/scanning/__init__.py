"""All that speaks for an attack, gathered: words, code, markup, imitations."""
