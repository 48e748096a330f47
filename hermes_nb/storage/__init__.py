"""SQLite files that survive what happens to files, and what a word is: nobody's tables."""
