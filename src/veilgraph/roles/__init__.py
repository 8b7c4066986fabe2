"""The parties of a job: data holder, label holder, server, and how they are launched."""
