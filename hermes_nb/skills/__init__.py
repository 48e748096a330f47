"""Skills, which are procedures in folders: find, rank, load, change and check them."""
