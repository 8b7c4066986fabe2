"""What holders learn together: one file each, one line in ``task.TASKS``."""
