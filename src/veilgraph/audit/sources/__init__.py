"""What the messages of each paradigm hold for attacks: one file for each."""
