"""What starts parties: all of a job on this machine, or one of them at a site."""
