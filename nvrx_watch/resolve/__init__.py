"""From what the user typed to whom we watch and where its files are."""
