"""One party's session of a job: its data, the publisher, training, and statements of its records."""
