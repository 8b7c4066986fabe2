"""Party graphs: what one party holds, public data sets, simulated vertical splits."""
