"""The public interface, of which ``veilgraph`` has the names."""
