"""Skills: procedures in folders, found, ranked, read, changed and guarded."""
