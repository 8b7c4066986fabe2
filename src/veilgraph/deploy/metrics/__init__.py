"""How a site or a service is, for programs that watch it: metrics for Prometheus, and whether it is ready."""
