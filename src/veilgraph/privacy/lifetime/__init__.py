"""What a party ever released of its data: one ledger for all jobs, predictions and alignments, and its budget."""
