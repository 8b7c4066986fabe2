"""What a job does on disk and between processes: run directories, parties, sites, ledgers and records."""
